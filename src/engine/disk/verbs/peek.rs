//! Peek: the head of a queue.

use crate::clock::Micros;
use crate::engine::disk::state::WriterState;
use crate::engine::disk::step::{Progress, STEP_ENTRIES, Step, StepResult};
use crate::job::Job;
use crate::name::Queue;

/// Returns the first ready job that a consume would deliver. Deletes entries that a consume would skip.
pub struct Peek(pub Queue);

impl Step for Peek {
    type Reply = Progress<Option<Job>>;
    const MUST_LAST: bool = false;

    fn run(self, state: &mut WriterState, now: Micros) -> StepResult<Progress<Option<Job>>> {
        let queue = &self.0;
        for _ in 0..STEP_ENTRIES {
            let Some((_, entry, since)) = state.head(queue)? else { return Ok(Progress::Done(None)) };
            match state.read_entry(queue, &entry)? {
                Some(Ok(record)) if !record.expired(now) => {
                    let job = WriterState::show(queue, (&entry, since), record, 0, now);
                    return Ok(Progress::Done(Some(job)));
                }
                unfit => state.pass_over(queue, unfit, now)?,
            }
        }
        Ok(Progress::Again)
    }
}
