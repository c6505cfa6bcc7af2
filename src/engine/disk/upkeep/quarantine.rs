//! The quarantine: jobs whose record cannot be read. A bad sector harms the jobs in it and nobody else: what leads to
//! such a job is taken out of the lists, and an entry here says which job it was, and why. Its record stays as it is,
//! so that a peek at it says what is wrong; an ack deletes both.

use std::path::Path;

use crate::clock::Micros;
use crate::engine::disk::codec::{self, Entry};
use crate::engine::disk::state::WriterState;
use crate::engine::disk::step::{Step, StepResult};
use crate::engine::disk::store::mark::OpenError;
use crate::engine::disk::store::open;
use crate::engine::disk::store::{Fatal, Slice, Space, Store, StoreLimits};
use crate::job::JobRef;
use crate::name::Queue;

/// A job whose record cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quarantined {
    pub job: JobRef,
    /// How many tries it had left.
    pub tries: u16,
    /// What is wrong with its record.
    pub reason: String,
}

/// All jobs in quarantine of the pool in `path`, which nobody has open.
pub fn quarantined(path: &Path) -> Result<Vec<Quarantined>, OpenError> {
    let (store, _mark) = open::open(path, StoreLimits::OF_A_TOOL)?;
    list(&store).map_err(|Fatal(reason)| OpenError::Damaged(path.to_owned(), reason))
}

/// All jobs in quarantine, by id.
pub fn list(store: &Store) -> Result<Vec<Quarantined>, Fatal> {
    let read = |item: Result<(Slice, Slice), Fatal>| {
        let (key, value) = item?;
        let (id, queue) = codec::read_job_key(&key)?;
        let (entry, reason) = codec::read_quarantined(&value)?;
        Ok(Quarantined { job: JobRef { queue, id }, tries: entry.tries, reason })
    };
    store.all(Space::Quarantine).map(read).collect()
}

/// Lists them all.
pub struct ListQuarantine;

impl Step for ListQuarantine {
    type Reply = Vec<Quarantined>;
    const MUST_LAST: bool = false;

    fn run(self, state: &mut WriterState, _: Micros) -> StepResult<Vec<Quarantined>> {
        state.txn.flush()?;
        Ok(list(state.txn.store())?)
    }
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
