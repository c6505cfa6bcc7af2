//! Give back: undoes hand-overs whose consumers have left.

use super::state::WriterState;
use super::step::{Outcome, Step};
use crate::clock::Micros;
use crate::job::JobRef;

/// Takes back jobs of hand-overs that still stand. Each job comes with its receipt.
pub struct GiveBack(pub Vec<(JobRef, u64)>);

impl Step for GiveBack {
    type Reply = ();
    const MUST_LAST: bool = false;

    fn items(&self) -> usize {
        self.0.len()
    }

    fn run(self, state: &mut WriterState, now: Micros) -> Outcome<()> {
        // Each goes before all others, so the last goes first.
        for (job, receipt) in self.0.iter().rev() {
            if state.timers.running(job).is_none_or(|(_, seq)| seq != *receipt) {
                continue;
            }
            let Some(mut entry) = state.stop_running(job) else { continue };
            entry.tries = entry.tries.saturating_add(1);
            state.push_ready_first(&job.queue, entry, now);
        }
        Ok(())
    }
}
