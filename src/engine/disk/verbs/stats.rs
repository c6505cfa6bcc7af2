//! Statistics of queues and of the whole store. Queues are read page by page in storage order, so that large numbers
//! of them do not delay other calls.

use std::ops::Bound;
use std::time::Duration;

use xxhash_rust::xxh3::xxh3_64;

use crate::clock::Micros;
use crate::engine::disk::state::WriterState;
use crate::engine::disk::state::queue::{QueueState, Waiting};
use crate::engine::disk::step::{STEP_ENTRIES, Step, StepResult};
use crate::engine::disk::store::{Fatal, Space};
use crate::engine::{Estimated, QueueSize, Size, SizeOf};
use crate::name::Queue;

/// Returns the number of ready jobs of a queue, including acked and expired ones still in the list; or of dead jobs.
pub struct ReadSize {
    pub queue: Queue,
    pub of: SizeOf,
}

impl Step for ReadSize {
    type Reply = Size;
    const MUST_LAST: bool = false;

    fn run(self, state: &mut WriterState, now: Micros) -> StepResult<Size> {
        if self.of == SizeOf::Dead {
            state.end_dead_of(&self.queue, STEP_ENTRIES, now)?;
        }
        let Some(queue) = state.queues.get(&self.queue) else { return Ok(Size::default()) };
        Ok(match self.of {
            SizeOf::Ready => Size { jobs: queue.ready, head: None },
            SizeOf::Dead => {
                let jobs = queue.dead;
                Size { jobs, head: state.oldest_dead(&self.queue, 1)?.first().map(|(_, entry, _)| entry.id) }
            }
        })
    }
}

/// Returns the sizes of some queues, sorted, after `after`: all queues that a job was published to and that were not
/// forgotten.
pub struct ReadSizes {
    pub after: Option<Queue>,
}

/// A page of queues.
#[derive(Debug)]
pub struct Page {
    pub queues: Vec<QueueSize>,
    /// Whether there may be more after the last.
    pub more: bool,
}

impl Step for ReadSizes {
    type Reply = Page;
    const MUST_LAST: bool = false;

    fn run(self, state: &mut WriterState, now: Micros) -> StepResult<Page> {
        let size = |(queue, q): (&Queue, &QueueState)| QueueSize {
            queue: queue.clone(),
            ready: q.ready,
            dead: q.dead,
            delayed: Some(q.timers.saturating_sub(q.running)),
            running: Some(q.running),
            oldest_ready: None,
            estimated: Estimated::default(),
            head: None,
        };
        let from = self.after.as_ref().map_or(Bound::Unbounded, Bound::Excluded);
        let mut queues: Vec<QueueSize> = state.queues.page(from, STEP_ENTRIES).map(size).collect();
        for of in queues.iter_mut().filter(|of| of.ready > 0) {
            let Some((seq, entry, since)) = state.first_ready(&of.queue)? else { continue };
            of.oldest_ready = Some(Duration::from_millis((now / 1000).saturating_sub(since)));
            // A number at the head is reused by returned jobs.
            let place = [&seq.to_be_bytes()[..], &entry.tries.to_be_bytes(), &since.to_be_bytes()].concat();
            of.head = Some(xxh3_64(&place));
        }
        let more = queues.len() == STEP_ENTRIES;
        Ok(Page { queues, more })
    }
}

impl WriterState {
    /// Returns the first entry of a queue. Its job may have expired, until the next sweep. If memory has no entry of
    /// the queue, one is read and not kept: a scrape reads every queue.
    fn first_ready(&mut self, queue: &Queue) -> Result<Option<Waiting>, Fatal> {
        let Some(of) = self.queues.get(queue) else { return Ok(None) };
        if let Some(first) = of.front() {
            return Ok(Some(first));
        }
        let Some(from) = of.refill_from() else { return Ok(None) };
        let key = of.key.clone();
        self.txn.flush()?;
        let first = self.read_list(Space::Ready, &key, from, u64::MAX, 1)?;
        Ok(first.first().copied())
    }
}

/// Returns statistics of the whole store.
pub struct ReadStatistics;

/// Reply of [`ReadStatistics`].
#[derive(Debug)]
pub struct StoreStatistics {
    /// Delayed and running jobs.
    pub timers: u64,
    /// How long the earliest of them has been overdue.
    pub overdue: Option<Duration>,
    pub gauges: Vec<(&'static str, f64)>,
}

impl Step for ReadStatistics {
    type Reply = StoreStatistics;
    const MUST_LAST: bool = false;

    fn run(self, state: &mut WriterState, now: Micros) -> StepResult<StoreStatistics> {
        let store = state.txn.store();
        let gauges = vec![
            ("disk_bytes", store.disk_bytes() as f64),
            ("disk_journals", store.log_files() as f64),
            ("disk_quarantined_jobs", state.quarantine.len() as f64),
            ("disk_ready_in_memory", state.queues.held() as f64),
        ];
        let due = [state.timers.delayed_from(), state.timers.running_from()].into_iter().flatten().min();
        let overdue = due.and_then(|(due, _)| now.checked_sub(due)).filter(|late| *late > 0);
        Ok(StoreStatistics {
            timers: state.timers.len(),
            overdue: overdue.map(Duration::from_micros),
            gauges,
        })
    }
}
