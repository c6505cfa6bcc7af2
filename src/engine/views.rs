//! Arguments and results of the reads: numbers of jobs, lists, and statistics. Types only.

use std::ops::BitOrAssign;
use std::time::Duration;

use serde::{Serialize, Serializer};

use crate::job::{JobId, JobState, JobView};
use crate::name::{Queue, QueueName};

/// Which of a queue's jobs to count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SizeOf {
    Ready,
    Dead,
}

/// Number of a queue's ready or dead jobs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Size {
    pub jobs: u64,
    /// The oldest dead job. `None` for ready ones: a peek shows the first.
    pub head: Option<JobId>,
}

/// Which fields of a job to return.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detail {
    /// Stored fields only: body, attributes, ttl. State, `due_at`, `tries_left`, key and reason are `None`. The
    /// cheapest way to read a job by id.
    Stored,
    All,
    /// Like `All`, with the current receipt of a running job if it has this number of tries left.
    HeldWith(u16),
}

impl Detail {
    /// Returns the number of tries left for which the receipt is requested.
    pub fn held_with(self) -> Option<u16> {
        if let Detail::HeldWith(tries) = self { Some(tries) } else { None }
    }

    /// Removes the fields that were not requested.
    pub fn of(self, view: JobView) -> JobView {
        match self {
            Detail::All | Detail::HeldWith(_) => view,
            Detail::Stored => {
                JobView { state: None, due_at: None, tries_left: None, key: None, reason: None, ..view }
            }
        }
    }
}

/// Numbers of a queue's jobs by state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueSize {
    pub queue: Queue,
    pub ready: u64,
    pub dead: u64,
    /// `None` if the store does not count them by queue.
    pub delayed: Option<u64>,
    pub running: Option<u64>,
    /// Age of the first ready job; `None` if there is none.
    pub oldest_ready: Option<Duration>,
    pub estimated: Estimated,
    /// Identifies the first ready job within its queue: changes when another job comes to the head, and may change
    /// when the same one returns to it. `None` if no job is ready.
    pub head: Option<u64>,
}

/// Which statistics of a queue are estimates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Estimated {
    /// The numbers of delayed and running jobs.
    pub timers: bool,
    /// The age of the first ready job: from its id.
    pub age: bool,
}

impl Estimated {
    /// Whether nothing is an estimate.
    pub fn is_none(&self) -> bool {
        *self == Estimated::default()
    }
}

/// The names of the fields.
impl Serialize for Estimated {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let timers = self.timers.then_some(["delayed", "running"]);
        s.collect_seq(timers.iter().flatten().chain(self.age.then_some(&"oldest_ready_age")))
    }
}

impl BitOrAssign for Estimated {
    fn bitor_assign(&mut self, other: Estimated) {
        self.timers |= other.timers;
        self.age |= other.age;
    }
}

/// Statistics of a store, for the metrics.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stats {
    /// Jobs with a timer: delayed and running ones.
    pub timers: u64,
    /// How long the earliest of them has been overdue; `None` if none is due.
    pub overdue: Option<Duration>,
    pub queues: Vec<QueueSize>,
    /// Gauges specific to one kind of store, by name (`used_mem_bytes`, …).
    pub gauges: Vec<(&'static str, f64)>,
}

/// Position in a list of jobs. At most 600 URL-safe characters, interpreted only by the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cursor(pub String);

/// Selects a page of a queue's jobs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobList {
    pub state: JobState,
    /// 1 to [`MAX_LISTED`](super::MAX_LISTED).
    pub limit: usize,
    /// `None` starts at the beginning.
    pub cursor: Option<Cursor>,
    pub bodies: bool,
}

/// A page of a queue's jobs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobPage {
    /// May be empty although there are more.
    pub jobs: Vec<JobView>,
    /// Cursor of the next page; `None` at the end.
    pub cursor: Option<Cursor>,
    /// Number of the queue's jobs examined; some may have been deleted.
    pub scanned: u64,
}

/// Statistics of one queue. `None` if the store cannot tell, or only with much work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueView {
    pub queue: Queue,
    /// As [`Engine::size`](super::Engine::size) counts them.
    pub ready: Option<u64>,
    pub delayed: Option<u64>,
    pub running: Option<u64>,
    pub dead: Option<u64>,
    /// Age of the job at the head; `None` also if no job is ready.
    pub oldest_ready_age: Option<Duration>,
    pub estimated: Estimated,
}

impl QueueView {
    /// Returns the statistics of a queue without jobs.
    pub fn empty(queue: Queue) -> QueueView {
        let none = Some(0);
        QueueView {
            queue,
            ready: none,
            delayed: none,
            running: none,
            dead: none,
            oldest_ready_age: None,
            estimated: Estimated::default(),
        }
    }
}

/// A page of a namespace's queues.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueuePage {
    /// May be shorter than requested although there are more.
    pub queues: Vec<QueueView>,
    /// Name after which the next page begins; `None` at the end.
    pub next: Option<QueueName>,
}
