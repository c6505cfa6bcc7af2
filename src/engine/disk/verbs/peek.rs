//! Reads of one job: the head of a queue, and any job by its id.

use crate::clock::Micros;
use crate::engine::disk::state::WriterState;
use crate::engine::disk::step::{Outcome, Progress, STEP_ENTRIES, Step};
use crate::engine::disk::store::Found;
use crate::engine::disk::store::codec::Entry;
use crate::job::{Job, JobRef};
use crate::name::Queue;

/// The first ready job that a consume would hand out. Deletes what it would pass over.
pub struct Peek(pub Queue);

impl Step for Peek {
    type Reply = Progress<Option<Job>>;
    const MUST_LAST: bool = false;

    fn run(self, state: &mut WriterState, now: Micros) -> Outcome<Progress<Option<Job>>> {
        let queue = &self.0;
        for _ in 0..STEP_ENTRIES {
            let Some((_, entry)) = state.head(queue)? else { return Ok(Progress::Done(None)) };
            match state.read_entry(queue, &entry)? {
                Some(Ok(record)) if !record.expired(now) => {
                    return Ok(Progress::Done(Some(WriterState::show(queue, &entry, record, 0, now))));
                }
                unfit => state.pass_over(queue, unfit, now)?,
            }
        }
        Ok(Progress::Again)
    }
}

/// A job by id, in whatever state.
pub struct PeekJob(pub JobRef);

impl Step for PeekJob {
    type Reply = Option<Job>;
    const MUST_LAST: bool = false;

    fn run(self, state: &mut WriterState, now: Micros) -> Outcome<Option<Job>> {
        let JobRef { queue, id } = self.0;
        match state.txn.job(&state.job_key(&queue, id))? {
            Found::Record(record) if !record.expired(now) => {
                let entry = Entry { id, tries: 0, generation: record.generation, keyed: false };
                Ok(Some(WriterState::show(&queue, &entry, record, 0, now)))
            }
            Found::Record(_) | Found::Nothing => Ok(None),
            Found::Corrupt(reason) => Err(WriterState::corrupt(&queue, id, &reason).into()),
        }
    }
}
