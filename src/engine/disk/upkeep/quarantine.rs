//! The quarantine: jobs whose record is unreadable. A bad sector affects only its own jobs: their entries are removed
//! from the lists, and a row here keeps the job's id and the error. The record stays, so that a peek reports the error;
//! an ack deletes both.

use crate::engine::disk::codec::{self, Entry, Malformed};
use crate::engine::disk::state::WriterState;
use crate::engine::disk::store::Space;
use crate::job::JobRef;
use crate::name::Queue;

/// Reads a row of the quarantine: the job, and the error of its record.
pub fn read(key: &[u8], value: &[u8]) -> Result<(JobRef, String), Malformed> {
    let (id, queue) = codec::read_job_key(key)?;
    Ok((JobRef { queue, id }, codec::read_quarantined(value)?.1))
}

impl WriterState {
    /// Puts a job into quarantine. The caller removes its entry from the list.
    pub fn quarantine(&mut self, queue: &Queue, entry: &Entry, reason: &str) {
        tracing::error!(%queue, job = %entry.id, reason, "a stored job is unreadable and is quarantined");
        let key = self.job_key(queue, entry.id);
        self.txn.put(Space::Quarantine, &key, codec::quarantined(entry, reason));
        self.quarantine.insert(key);
    }

    /// Removes a deleted job from quarantine.
    pub fn leave_quarantine(&mut self, key: &[u8]) {
        if self.quarantine.remove(key) {
            self.txn.delete(Space::Quarantine, key);
        }
    }
}
