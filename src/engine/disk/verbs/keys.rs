//! Cancel: deletes the job that has a key.

use crate::clock::Micros;
use crate::engine::disk::state::WriterState;
use crate::engine::disk::step::{Step, StepResult};
use crate::job::JobRef;
use crate::name::{JobKey, Queue};

/// Deletes the job that has a key.
pub struct CancelKey {
    pub queue: Queue,
    pub key: JobKey,
}

impl Step for CancelKey {
    /// Whether there was one.
    type Reply = bool;
    const MUST_LAST: bool = true;

    fn run(self, state: &mut WriterState, now: Micros) -> StepResult<bool> {
        match state.key_holder(&self.queue, &self.key)? {
            Some((id, record)) if !record.expired(now) => {
                state.ack(&JobRef { queue: self.queue, id }, now)?
            }
            _ => return Ok(false),
        }
        Ok(true)
    }
}
