//! The quarantine: jobs whose record cannot be read. A bad sector harms the jobs in it and nobody else: what leads to
//! such a job is taken out of the lists, and an entry here says which job it was, and why. Its record stays as it is,
//! so that a peek at it says what is wrong; an ack deletes both.

use crate::engine::disk::codec::{self, Entry};
use crate::engine::disk::state::WriterState;
use crate::engine::disk::store::{Fatal, Slice, Space, Store};
use crate::job::JobRef;
use crate::name::Queue;

/// All jobs in quarantine, by id, each with what is wrong with its record.
pub fn list(store: &Store) -> Result<Vec<(JobRef, String)>, Fatal> {
    let read = |item: Result<(Slice, Slice), Fatal>| {
        let (key, value) = item?;
        let (id, queue) = codec::read_job_key(&key)?;
        Ok((JobRef { queue, id }, codec::read_quarantined(&value)?.1))
    };
    store.all(Space::Quarantine).map(read).collect()
}

impl WriterState {
    /// Puts a job into quarantine. Whoever calls takes the entry out of its list.
    pub fn quarantine(&mut self, queue: &Queue, entry: &Entry, reason: &str) {
        tracing::error!(%queue, job = %entry.id, reason, "a stored job cannot be read and goes into quarantine");
        let key = self.job_key(queue, entry.id);
        self.txn.put(Space::Quarantine, &key, codec::quarantined(entry, reason));
        self.quarantine.insert(key);
    }

    /// The job with this key is deleted.
    pub fn leave_quarantine(&mut self, key: &[u8]) {
        if self.quarantine.remove(key) {
            self.txn.delete(Space::Quarantine, key);
        }
    }
}
