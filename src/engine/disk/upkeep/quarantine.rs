//! The quarantine: jobs whose record is unreadable. A bad sector affects only its own jobs: their entries are removed
//! from the lists, and a row here keeps the job's id and the error. The record stays, so that a peek reports the error;
//! an ack deletes both.

use crate::engine::disk::codec::{self, Entry};
use crate::engine::disk::state::WriterState;
use crate::engine::disk::store::{Fatal, Slice, Space, Store};
use crate::job::JobRef;
use crate::name::Queue;

/// Returns all jobs in quarantine, by id, each with the error of its record.
pub fn list(store: &Store) -> Result<Vec<(JobRef, String)>, Fatal> {
    let read = |item: Result<(Slice, Slice), Fatal>| {
        let (key, value) = item?;
        let (id, queue) = codec::read_job_key(&key)?;
        Ok((JobRef { queue, id }, codec::read_quarantined(&value)?.1))
    };
    store.all(Space::Quarantine).map(read).collect()
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
