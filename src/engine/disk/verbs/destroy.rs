//! Destroy: deletes the ready jobs of a queue in steps, and its name with the last one.

use crate::clock::Micros;
use crate::engine::Listing;
use crate::engine::disk::codec;
use crate::engine::disk::state::WriterState;
use crate::engine::disk::step::{STEP_ENTRIES, Step, StepResult};
use crate::engine::disk::store::{Found, Space};
use crate::name::Queue;

/// Deletes the jobs of a queue that were ready at the first step.
pub struct Destroy {
    pub queue: Queue,
    /// Position of the last step.
    pub from: Option<Rest>,
    pub listing: Listing,
}

/// Remaining work of a destroy.
#[derive(Clone, Copy, Debug)]
pub struct Rest {
    /// Everything up to this number is done.
    after: u64,
    /// Jobs that became ready later have larger numbers.
    last: u64,
    /// Number of entries done.
    pub done: u64,
}

impl Step for Destroy {
    /// `None` when everything is done.
    type Reply = Option<Rest>;
    const MUST_LAST: bool = true;

    fn items(&self) -> usize {
        STEP_ENTRIES
    }

    fn run(self, state: &mut WriterState, now: Micros) -> StepResult<Option<Rest>> {
        let Destroy { queue, from, listing } = self;
        let Some(key) = state.queues.get(&queue).map(|q| q.key.clone()) else { return Ok(None) };
        let from = from.unwrap_or(Rest { after: 0, last: state.seq.0 - 1, done: 0 });
        state.txn.flush()?;
        let run = state.read_list(Space::Ready, &key, from.after + 1, from.last, STEP_ENTRIES)?;
        for (seq, entry, _) in &run {
            state.txn.delete(Space::Ready, codec::list_key(&key, *seq));
            let job = codec::job_key(&key, entry.id);
            match state.txn.job(&job)? {
                Found::Record(record) if record.generation == entry.generation => {
                    state.forget(&queue, entry.id, &record)?;
                }
                // It is unknown whether the record belongs to this entry: deleted, as by an ack.
                Found::Corrupt(_) => {
                    state.leave_quarantine(&job);
                    state.delete_job(&queue, job)?;
                }
                Found::Record(_) | Found::Nothing => {}
            }
        }
        let after = run.last().map_or(from.after, |(after, ..)| *after);
        if let Some(q) = state.queues.get_mut(&queue) {
            q.remove_run(from.after, after, run.len() as u64);
        }
        state.queues.note_idle(&queue, now);
        if run.len() == STEP_ENTRIES {
            return Ok(Some(Rest { after, done: from.done + run.len() as u64, ..from }));
        }
        if listing == Listing::Delete {
            state.delete_name(&queue);
        }
        Ok(None)
    }
}

impl WriterState {
    /// Deletes the name of a queue without jobs other than running ones.
    fn delete_name(&mut self, queue: &Queue) {
        let Some(of) = self.queues.get(queue) else { return };
        if of.ready == 0 && of.dead == 0 && of.timers == of.running {
            let key = of.key.clone();
            self.queues.unlist(queue);
            self.txn.delete(Space::Queues, key);
        }
    }
}
