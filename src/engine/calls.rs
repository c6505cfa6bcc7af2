//! What the calls of an [`Engine`](super::Engine) take and answer, where that is more than a job or a number. Plain
//! values; the trait's documentation says what they do.

use std::collections::BTreeMap;
use std::num::NonZeroU16;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::clock::Millis;
use crate::job::{Job, JobId, JobRef, JobState, JobView, NewJob, Reason, Receipt};
use crate::name::{IdempotencyKey, JobKey, Namespace, Queue, QueueName};

/// How much one namespace may keep in a store, in whatever state its jobs are; 0: no bound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Quota {
    pub jobs: u64,
    /// Of the jobs' bodies, as they are stored.
    pub bytes: u64,
    /// Queues that the store knows: one that was emptied counts until it is forgotten.
    pub queues: u64,
}

impl Quota {
    pub fn counts_jobs(&self) -> bool {
        self.jobs > 0 || self.bytes > 0
    }
}

/// The quotas of those namespaces that have one.
pub type Quotas = BTreeMap<Namespace, Quota>;

/// A delay as an id has it, in seconds.
pub fn delay_in_id(delay: Duration) -> u32 {
    u32::try_from(delay.as_secs()).unwrap_or(u32::MAX)
}

/// What one consume handed out.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Consumed {
    /// In the order in which they were handed out.
    pub jobs: Vec<Job>,
    /// The queues may have more ready jobs, although fewer than asked for were handed out: the call has reached
    /// its bound while it skipped jobs that are gone, or one of two stores did not answer. Consume again.
    pub more: bool,
}

/// What one pump did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pumped {
    /// How many due jobs left the timer.
    pub moved: usize,
    /// How long until the next is due: zero when some are due already. Stores that others write to answer at
    /// most a second, since nobody tells them of a job that became due earlier.
    pub next: Duration,
}

/// Which of a queue's jobs are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SizeOf {
    Ready,
    Dead,
}

/// How many jobs of a queue are ready, or dead.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Size {
    pub jobs: u64,
    /// The oldest of the dead ones. `None` of ready ones: a peek shows the first.
    pub head: Option<JobId>,
}

/// What names a job within its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By<'a> {
    Id(JobId),
    Key(&'a JobKey),
}

/// How much is to be told of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detail {
    /// What it was stored with: body, attributes, ttl. State, `due_at`, `tries_left`, key and reason are `None`. Of a
    /// job by its id it costs the least.
    Stored,
    All,
    /// As `All`, and of a running job that has as many tries left the receipt that is valid now.
    HeldWith(u16),
}

impl Detail {
    /// With how many tries left the job must run whose receipt is to be told.
    pub fn held_with(self) -> Option<u16> {
        if let Detail::HeldWith(tries) = self { Some(tries) } else { None }
    }

    /// What of a view is to be told.
    pub fn of(self, view: JobView) -> JobView {
        match self {
            Detail::All | Detail::HeldWith(_) => view,
            Detail::Stored => {
                JobView { state: None, due_at: None, tries_left: None, key: None, reason: None, ..view }
            }
        }
    }
}

/// How many jobs of one queue are where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueSize {
    pub queue: Queue,
    pub ready: u64,
    pub dead: u64,
    /// `None` where the store does not know them by queue.
    pub delayed: Option<u64>,
    pub running: Option<u64>,
    /// For how long the first ready job has been ready; `None` when none is.
    pub oldest_ready: Option<Duration>,
    /// Tells the first ready job from others of its queue: it changes when another one comes to the head, and may when
    /// the same one comes back to it. `None` when nothing is ready.
    pub head: Option<u64>,
}

/// What a scrape of the metrics shows of a store.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stats {
    /// Jobs with a timer: delayed ones and running ones.
    pub timers: u64,
    /// How long ago the earliest of them was due; `None` when none is due.
    pub overdue: Option<Duration>,
    pub queues: Vec<QueueSize>,
    /// Figures that only one kind of store has, by the name of their gauge (`used_mem_bytes`, …).
    pub gauges: Vec<(&'static str, f64)>,
}

/// What one [`Engine::publish`](super::Engine::publish) is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Publication {
    /// 1 to [`MAX_PUBLISH`](super::MAX_PUBLISH), all of one queue if there is a [`once`](Publication::once). No two
    /// have the same key.
    pub jobs: Vec<Placing>,
    /// Acked in the same step, before keys are looked at; one that is not there is fine.
    pub replaces: Option<JobRef>,
    /// Makes the call safe to repeat.
    pub once: Option<Once>,
}

impl Publication {
    /// Bytes of all bodies.
    pub fn bytes(&self) -> usize {
        self.jobs.iter().map(|placing| placing.job.body.len()).sum()
    }
}

/// These jobs, and nothing more.
impl From<Vec<NewJob>> for Publication {
    fn from(jobs: Vec<NewJob>) -> Publication {
        Publication { jobs: jobs.into_iter().map(Placing::from).collect(), replaces: None, once: None }
    }
}

/// One job of a [`Publication`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placing {
    pub job: NewJob,
    /// When it is due by the store's time of day, in place of the job's `delay`; a time that has passed is now.
    pub at: Option<Millis>,
    /// Its key, and what to do when another job has it.
    pub key: Option<(JobKey, OnConflict)>,
}

/// By its own delay, without a key.
impl From<NewJob> for Placing {
    fn from(job: NewJob) -> Placing {
        Placing { job, at: None, key: None }
    }
}

/// What a key means that another job has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnConflict {
    /// The other job stays, and this one is not stored.
    #[default]
    Keep,
    /// A delayed or ready one goes, as if it was acked. A running one goes on without the key.
    Replace,
    /// Nothing is stored, of the whole call.
    Fail,
    /// A job of another store has the key, and this becomes of the one that was to get it: a duplicate is not stored,
    /// and one that has replaced a job is. From a wrapper of several stores.
    Elsewhere(Placed),
}

/// How a repeated request is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Once {
    /// Kept apart for each queue: that of the first job.
    pub key: IdempotencyKey,
    /// Equal for equal requests.
    pub fingerprint: Fingerprint,
}

/// A hash of everything that makes two requests equal.
pub type Fingerprint = [u8; 16];

/// What became of a [`Publication`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Published {
    /// It is done. One for each job, in order.
    Done(Vec<Placed>),
    /// It was done already, by an equal request with the same [`Once::key`], and this is what became of that one.
    /// Nothing has changed.
    Replay(Vec<Placed>),
    /// Another request has used the [`Once::key`]. Nothing has changed.
    Mismatch,
    /// The key of the job at `index` is taken by the job `id`, and it was to [`Fail`](OnConflict::Fail). Nothing has
    /// changed.
    Conflict { index: usize, id: JobId },
}

/// What became of one job of a [`Publication`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placed {
    /// The job that is there now: for a duplicate the one that was there before.
    pub id: JobId,
    /// Its [`due_at`](JobView::due_at).
    pub due_at: Option<Millis>,
    pub how: How,
}

/// Whether a job was stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    New,
    /// Its key was taken and it was to [`Keep`](OnConflict::Keep) the other job: it was not stored.
    Duplicate,
    /// This delayed or ready job, which had its key, is gone.
    Replaced(JobId),
}

/// What became of a step that only the holder of a hand-over may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Held<T> {
    Done(T),
    /// The job is there, and this hand-over of it is over. Nothing has changed.
    NotYours,
    /// There is no such job. Nothing has changed.
    NotFound,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Touched {
    /// Takes the place of the receipt that was shown.
    pub receipt: Receipt,
    /// When the ttr ends now.
    pub until: Millis,
}

/// How a job is released.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Release {
    /// Zero: ready at once, at the head of its queue. A job whose ttl does not last longer than this dies.
    pub delay: Duration,
    pub tries: Tries,
    /// Takes the place of the job's reason, if there is one.
    pub reason: Option<Reason>,
}

/// What a release does to the tries of a job. A job that has none left dies, whatever the delay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tries {
    /// The hand-over has taken its try.
    #[default]
    Spend,
    /// The hand-over gives its try back.
    Restore,
    /// It has none left, whatever it had: it is buried.
    Forfeit,
}

impl Release {
    /// Into the dead letter.
    pub fn bury(reason: Option<Reason>) -> Release {
        Release { delay: Duration::ZERO, tries: Tries::Forfeit, reason }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Released {
    /// The job is ready or delayed again.
    Back { tries_left: u16, due_at: Millis },
    /// It had no tries left, or its ttl would end before it is due again.
    Dead,
}

/// Which dead jobs are respawned, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Respawn<'a> {
    /// So many, the oldest first. Each is ready at once, with one try and this ttl; `None` is forever.
    Oldest { limit: u64, ttl: Option<Duration> },
    /// These, 1 to [`MAX_NAMED`](super::MAX_NAMED).
    Jobs(&'a [JobId], Revival),
}

/// What a respawn did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Respawned {
    /// How many jobs are alive again.
    pub count: u64,
    /// What became of each that was named, in the order given.
    pub each: Vec<Revived>,
}

impl Respawned {
    /// Counts what became of the jobs that were named.
    pub fn of(each: Vec<Revived>) -> Respawned {
        let done = each.iter().filter(|revived| matches!(revived, Revived::Done { .. }));
        Respawned { count: done.count() as u64, each }
    }
}

/// What jobs get that are respawned by id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Revival {
    pub tries: NonZeroU16,
    /// Zero: ready at once, behind all others.
    pub delay: Duration,
    /// From now on; `None` is forever. Longer than `delay`.
    pub ttl: Option<Duration>,
}

/// What became of one job that was to be respawned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Revived {
    Done {
        due_at: Millis,
    },
    /// It is delayed, ready or running. Nothing has changed.
    NotDead,
    /// It is alive, or too far from both ends of a long dead letter. Nothing has changed.
    OutOfReach,
    NotFound,
}

/// What became of a job that was to be promoted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Promoted {
    /// It is ready.
    Done,
    /// It is in this state; `None` where the store cannot find out with a bounded piece of work. Nothing has changed.
    NotDelayed(Option<JobState>),
    NotFound,
}

/// How long a queue is to be paused from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pausing {
    For(Duration),
    UntilResumed,
    /// Not at all: its pause ends.
    Resumed,
}

/// How long a queue is paused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pause {
    /// `None`: until it is resumed.
    pub until: Option<Millis>,
}

impl Pause {
    /// Whether it has not ended by then.
    pub fn lasts(&self, now: Millis) -> bool {
        self.until.is_none_or(|until| until > now)
    }
}

/// Where a list of jobs goes on. Text of URL-safe characters, 600 at most, with a meaning for the store alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cursor(pub String);

/// Which part of a queue's jobs to show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobList {
    pub state: JobState,
    /// 1 to [`MAX_LISTED`](super::MAX_LISTED).
    pub limit: usize,
    /// `None` begins.
    pub cursor: Option<Cursor>,
    pub bodies: bool,
}

/// A part of a queue's jobs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobPage {
    /// May be none although there are more.
    pub jobs: Vec<JobView>,
    /// Where to go on; `None` at the end.
    pub cursor: Option<Cursor>,
    /// How many jobs of the queue the store looked at; some may be gone.
    pub scanned: u64,
}

/// Figures of one queue. `None` is what the store cannot tell without much work, or at all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueView {
    pub queue: Queue,
    /// As [`Engine::size`](super::Engine::size) counts them.
    pub ready: Option<u64>,
    pub delayed: Option<u64>,
    pub running: Option<u64>,
    pub dead: Option<u64>,
    /// For how long the head has been ready; `None` also when nothing is ready.
    pub oldest_ready_age: Option<Duration>,
    /// `None` when it is not paused.
    pub paused: Option<Pause>,
}

/// A part of a namespace's queues.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueuePage {
    /// May be fewer than asked for although there are more.
    pub queues: Vec<QueueView>,
    /// Where to go on: behind this name. `None` at the end.
    pub next: Option<QueueName>,
}
