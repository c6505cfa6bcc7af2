//! The last step of forgetting a queue: its name is removed from all lists.

use crate::clock::Micros;
use crate::engine::disk::state::WriterState;
use crate::engine::disk::step::{Step, StepResult};
use crate::engine::disk::store::Space;
use crate::name::Queue;

/// Removes the name of a queue without jobs other than running ones.
pub struct ForgetQueue(pub Queue);

impl Step for ForgetQueue {
    type Reply = ();
    const MUST_LAST: bool = true;

    fn run(self, state: &mut WriterState, _: Micros) -> StepResult<()> {
        let ForgetQueue(queue) = self;
        let Some(of) = state.queues.get(&queue) else { return Ok(()) };
        let only_runs = of.ready == 0 && of.dead == 0 && of.timers == of.running;
        if only_runs {
            let key = of.key.clone();
            state.queues.unlist(&queue);
            state.txn.delete(Space::Queues, key);
        }
        Ok(())
    }
}
