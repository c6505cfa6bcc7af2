//! Figures of queues and of the whole store. Queues are read page by page in the order in which they are kept, so that
//! very many of them hold up nobody.

use std::ops::Bound;

use crate::clock::Micros;
use crate::engine::disk::state::WriterState;
use crate::engine::disk::step::{STEP_ENTRIES, Step, StepResult};
use crate::engine::{QueueSize, Size, SizeOf};
use crate::name::Queue;

/// How many jobs of a queue are ready, with acked and expired ones that are still in the list; or how many are dead.
pub struct ReadSize {
    pub queue: Queue,
    pub of: SizeOf,
}

impl Step for ReadSize {
    type Reply = Size;
    const MUST_LAST: bool = false;

    fn run(self, state: &mut WriterState, _: Micros) -> StepResult<Size> {
        let Some(queue) = state.queues.get(&self.queue) else { return Ok(Size::default()) };
        Ok(match self.of {
            SizeOf::Ready => Size { jobs: queue.ready, head: None },
            SizeOf::Dead => {
                let jobs = queue.dead;
                Size { jobs, head: state.oldest_dead(&self.queue, 1)?.first().map(|(_, entry)| entry.id) }
            }
        })
    }
}

/// The sizes of some of the queues that a job was published to and that were not forgotten, sorted: those behind
/// `after`.
pub struct ReadSizes {
    pub after: Option<Queue>,
}

/// A part of the queues.
#[derive(Debug)]
pub struct Page {
    pub queues: Vec<QueueSize>,
    /// Whether there may be more behind the last.
    pub more: bool,
}

impl Step for ReadSizes {
    type Reply = Page;
    const MUST_LAST: bool = false;

    fn run(self, state: &mut WriterState, _: Micros) -> StepResult<Page> {
        let queues: Vec<QueueSize> = state
            .queues
            .page(self.after.as_ref().map_or(Bound::Unbounded, Bound::Excluded), STEP_ENTRIES)
            .map(|(queue, q)| QueueSize { queue: queue.clone(), ready: q.ready, dead: q.dead })
            .collect();
        let more = queues.len() == STEP_ENTRIES;
        Ok(Page { queues, more })
    }
}

/// Figures of the whole store.
pub struct ReadFigures;

/// What [`ReadFigures`] answers.
#[derive(Debug)]
pub struct Figures {
    /// Delayed and running jobs.
    pub timers: u64,
    pub gauges: Vec<(&'static str, f64)>,
}

impl Step for ReadFigures {
    type Reply = Figures;
    const MUST_LAST: bool = false;

    fn run(self, state: &mut WriterState, _: Micros) -> StepResult<Figures> {
        let store = state.txn.store();
        let gauges = vec![
            ("disk_bytes", store.disk_bytes() as f64),
            ("disk_journals", store.log_files() as f64),
            ("disk_quarantined_jobs", state.quarantine.len() as f64),
            ("disk_ready_in_memory", state.queues.held() as f64),
        ];
        Ok(Figures { timers: state.timers.len(), gauges })
    }
}
