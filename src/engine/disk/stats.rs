//! Figures of queues and of the whole store.

use super::state::WriterState;
use super::step::{Outcome, Step};
use crate::clock::Micros;
use crate::engine::{QueueSize, Stats};
use crate::name::Queue;

/// How many jobs of a queue are ready, with acked and expired ones that are still in the list.
pub struct Size(pub Queue);

impl Step for Size {
    type Reply = u64;
    const MUST_LAST: bool = false;

    fn run(self, state: &mut WriterState, _: Micros) -> Outcome<u64> {
        Ok(state.queues.get(&self.0).map_or(0, |q| q.ready))
    }
}

/// Every queue that a job was published to and that was not forgotten, sorted.
pub struct ListQueues;

impl Step for ListQueues {
    type Reply = Vec<Queue>;
    const MUST_LAST: bool = false;

    fn run(self, state: &mut WriterState, _: Micros) -> Outcome<Vec<Queue>> {
        Ok(state.queues.names())
    }
}

/// Sizes of all.
pub struct ReadStats;

impl Step for ReadStats {
    type Reply = Stats;
    const MUST_LAST: bool = false;

    fn run(self, state: &mut WriterState, _: Micros) -> Outcome<Stats> {
        let sizes = state.queues.iter();
        let mut queues: Vec<QueueSize> = sizes
            .map(|(queue, q)| QueueSize { queue: queue.clone(), ready: q.ready, dead: q.dead })
            .collect();
        queues.sort_unstable_by(|a, b| a.queue.cmp(&b.queue));
        let gauges = vec![("disk_bytes", state.txn.store().disk_bytes()? as f64)];
        Ok(Stats { timers: state.timers.len(), queues, gauges })
    }
}
