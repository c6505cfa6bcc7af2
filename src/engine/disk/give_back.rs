//! Give back: undoes hand-overs whose consumers have left.

use super::state::WriterState;
use super::step::{Outcome, Step};
use super::store::{Space, codec};
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

    fn run(self, state: &mut WriterState, _: Micros) -> Outcome<()> {
        let limit = state.windows.ready;
        // Each goes before all others, so the last goes first.
        for (job, receipt) in self.0.iter().rev() {
            if state.timers.running(job).is_none_or(|(_, seq)| seq != *receipt) {
                continue;
            }
            let Some((timer, mut entry)) = state.timers.stop(job) else { continue };
            state.txn.delete(Space::Running, codec::timer_key(timer));
            entry.tries = entry.tries.saturating_add(1);
            let queue = state.queue(&job.queue);
            queue.timers = queue.timers.saturating_sub(1);
            let seq = queue.push_front(entry, limit);
            let key = codec::list_key(&queue.key, seq);
            state.txn.put(Space::Ready, key, codec::list_value(seq, &entry));
            state.notify(&job.queue);
        }
        Ok(())
    }
}
