//! The verbs that name a job by its key.

use crate::clock::Micros;
use crate::engine::disk::state::WriterState;
use crate::engine::disk::step::{Outcome, Step};
use crate::job::{JobRef, JobView};
use crate::name::{JobKey, Queue};

/// The job that has a key.
pub struct FindKey {
    pub queue: Queue,
    pub key: JobKey,
}

/// Deletes the job that has a key.
pub struct CancelKey {
    pub queue: Queue,
    pub key: JobKey,
}

impl Step for FindKey {
    type Reply = Option<JobView>;
    const MUST_LAST: bool = false;

    fn run(self, state: &mut WriterState, now: Micros) -> Outcome<Option<JobView>> {
        Ok(match state.key_holder(&self.queue, &self.key)? {
            Some((id, record)) if !record.expired(now) => {
                Some(state.view(&JobRef { queue: self.queue, id }, record, now)?)
            }
            _ => None,
        })
    }
}

impl Step for CancelKey {
    /// Whether there was one.
    type Reply = bool;
    const MUST_LAST: bool = true;

    fn run(self, state: &mut WriterState, now: Micros) -> Outcome<bool> {
        match state.key_holder(&self.queue, &self.key)? {
            Some((id, record)) if !record.expired(now) => {
                state.ack(&JobRef { queue: self.queue, id }, now)?
            }
            _ => return Ok(false),
        }
        Ok(true)
    }
}
