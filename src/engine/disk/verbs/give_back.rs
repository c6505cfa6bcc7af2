//! Give back: undoes deliveries whose consumers have disconnected.

use std::time::Duration;

use crate::clock::{Micros, micros};
use crate::engine::disk::state::WriterState;
use crate::engine::disk::step::{Step, StepResult};
use crate::job::JobRef;

/// Returns jobs whose deliveries are current. Each job has its receipt, and its remaining ttl at the delivery.
pub struct GiveBack(pub Vec<(JobRef, u64, Option<Duration>)>);

impl Step for GiveBack {
    type Reply = ();
    const MUST_LAST: bool = false;

    fn items(&self) -> usize {
        self.0.len()
    }

    fn run(self, state: &mut WriterState, now: Micros) -> StepResult<()> {
        // Each is inserted at the head, so the last goes first.
        for (job, receipt, ttl) in self.0.iter().rev() {
            if state.timers.running(job).is_none_or(|(_, seq)| seq != *receipt) {
                continue;
            }
            let Some(mut entry) = state.stop_running(job) else { continue };
            entry.tries = entry.tries.saturating_add(1);
            // Slightly late, since the delivery was before now.
            let expires = ttl.map(|ttl| now.saturating_add(micros(ttl)));
            state.push_ready_first(&job.queue, entry, expires, now);
        }
        Ok(())
    }
}
