//! Arguments and results of an [`Engine`](super::Engine)'s methods, beyond a job or a number. Plain values; the
//! trait's documentation explains them.

use std::collections::BTreeMap;
use std::num::NonZeroU16;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::clock::Millis;
use crate::job::{Job, JobId, JobRef, JobState, NewJob, Reason, Receipt};
use crate::name::{IdempotencyKey, JobKey, Namespace};

/// Limits of one namespace in a store, over all states of its jobs; 0: no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Quota {
    pub jobs: u64,
    /// Bytes of the jobs' bodies, as stored.
    pub bytes: u64,
    /// Queues known to the store: an emptied queue counts until it is forgotten.
    pub queues: u64,
}

impl Quota {
    pub fn counts_jobs(&self) -> bool {
        self.jobs > 0 || self.bytes > 0
    }
}

/// The quotas of all namespaces that have one.
pub type Quotas = BTreeMap<Namespace, Quota>;

/// Jobs stored in a namespace, and the bytes of their bodies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    pub jobs: u64,
    pub bytes: u64,
}

/// Returns a delay as an id contains it, in seconds.
pub fn delay_in_id(delay: Duration) -> u32 {
    u32::try_from(delay.as_secs()).unwrap_or(u32::MAX)
}

/// Result of a consume.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Consumed {
    /// In order of delivery.
    pub jobs: Vec<Job>,
    /// The queues may have more ready jobs, although fewer than requested were delivered: the call has reached its
    /// bound while it skipped deleted jobs, or one of two stores did not reply. Consume again.
    pub more: bool,
    /// With `more`: no ready job is known, and the store notifies of those that there are. Then only a consumer that does
    /// not wait needs to consume again.
    pub notifies: bool,
}

/// Result of a pump.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pumped {
    /// Number of due jobs moved.
    pub moved: usize,
    /// Time until the next job is due: zero if there are due jobs left. At most a second for stores with other
    /// writers, since they do not report jobs that are due earlier.
    pub next: Duration,
}

/// Name of a job within its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By<'a> {
    Id(JobId),
    Key(&'a JobKey),
}

/// Argument of [`Engine::publish`](super::Engine::publish).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Publication {
    /// 1 to [`MAX_PUBLISH`](super::MAX_PUBLISH), all of one queue if there is a [`once`](Publication::once). No two
    /// have the same key.
    pub jobs: Vec<Placing>,
    /// Acked in the same step, before keys are checked; ignored if missing. Not one of `jobs`.
    pub replaces: Option<JobRef>,
    /// Makes the call idempotent.
    pub once: Option<Once>,
}

impl Publication {
    /// Returns the bytes of all bodies.
    pub fn bytes(&self) -> usize {
        self.jobs.iter().map(|placing| placing.job.body.len()).sum()
    }
}

/// Only these jobs.
impl From<Vec<NewJob>> for Publication {
    fn from(jobs: Vec<NewJob>) -> Publication {
        Publication { jobs: jobs.into_iter().map(Placing::from).collect(), replaces: None, once: None }
    }
}

/// One job of a [`Publication`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placing {
    pub job: NewJob,
    /// When it is due by the store's time of day, instead of the job's `delay`; a past time means now.
    pub at: Option<Millis>,
    /// Its key, and what to do if another job has it.
    pub key: Option<(JobKey, OnConflict)>,
}

/// With its own delay, without a key.
impl From<NewJob> for Placing {
    fn from(job: NewJob) -> Placing {
        Placing { job, at: None, key: None }
    }
}

/// What to do if another job has the key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnConflict {
    /// The other job stays, and this one is not stored.
    #[default]
    Keep,
    /// A delayed or ready job is deleted, like by an ack. A running one continues without the key.
    Replace,
    /// Nothing of the whole call is stored.
    Fail,
    /// The key belongs to a job in another store; this is the outcome for the new job: a duplicate is not stored, a
    /// replacement is. Set by a wrapper of several stores.
    Elsewhere(Placed),
}

/// Identity of a request that may be repeated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Once {
    /// Separate per queue: that of the first job.
    pub key: IdempotencyKey,
    /// Equal for equal requests.
    pub fingerprint: Fingerprint,
    pub kind: OnceKind,
}

impl Once {
    /// Returns the identity of a client's request.
    pub fn request(key: IdempotencyKey, fingerprint: Fingerprint) -> Once {
        Once { key, fingerprint, kind: OnceKind::Request }
    }
}

/// Minimum time for which a client's request with a [`Once`] is remembered.
pub const REMEMBERED: Duration = Duration::from_secs(600);

/// Kind of an idempotent publish.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnceKind {
    /// A client's request.
    Request,
    /// An occurrence of a schedule, whose job has the same id each time.
    Occurrence,
}

impl OnceKind {
    /// Returns the minimum time for which the publish is remembered.
    pub fn remembered(self) -> Duration {
        match self {
            OnceKind::Request => REMEMBERED,
            OnceKind::Occurrence => Duration::from_secs(24 * 3600),
        }
    }
}

/// A hash of everything that makes two requests equal.
pub type Fingerprint = [u8; 16];

/// Result of a [`Publication`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Published {
    /// Executed. One result per job, in order.
    Done(Vec<Placed>),
    /// An equal request with the same [`Once::key`] was executed before, with these results. Nothing has changed.
    Replay(Vec<Placed>),
    /// Another request has used the [`Once::key`]. Nothing has changed.
    Mismatch,
    /// The job at `index` has [`Fail`](OnConflict::Fail), and its key belongs to the job `id`. Nothing has changed.
    Conflict { index: usize, id: JobId },
}

/// Result of one job of a [`Publication`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placed {
    /// The job that exists now: for a duplicate, the job that existed before.
    pub id: JobId,
    /// Its [`due_at`](crate::job::JobView::due_at).
    pub due_at: Option<Millis>,
    pub how: How,
}

/// Whether a job was stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    New,
    /// It was not stored: its key was taken, and it has [`Keep`](OnConflict::Keep).
    Duplicate,
    /// This delayed or ready job, which had the key, was deleted.
    Replaced(JobId),
}

/// Result of an operation that requires a receipt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Held<T> {
    Done(T),
    /// The job exists, but this delivery of it has ended. Nothing has changed.
    NotYours,
    /// There is no such job. Nothing has changed.
    NotFound,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Touched {
    /// Replaces the previous receipt.
    pub receipt: Receipt,
    /// The new end of the ttr.
    pub until: Millis,
}

/// How to release a job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Release {
    /// Zero: ready at once, at the head of its queue. A job whose ttl does not last longer than this dies.
    pub delay: Duration,
    pub tries: Tries,
    /// Replaces the job's reason, if given.
    pub reason: Option<Reason>,
}

/// What a release does to the tries of a job. A job without tries left dies, with any delay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tries {
    /// The delivery has used its try.
    #[default]
    Spend,
    /// The delivery returns its try.
    Restore,
    /// All tries are removed: the job is buried.
    Forfeit,
}

impl Release {
    /// Returns a release into the dead letter.
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

/// What becomes of the name of a queue whose ready jobs are deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listing {
    Keep,
    Delete,
}

/// Which dead jobs to respawn, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Respawn<'a> {
    /// Up to `limit` jobs, oldest first. Each is ready at once, with one try and this ttl; `None` is forever.
    Oldest { limit: u64, ttl: Option<Duration> },
    /// These jobs, 1 to [`MAX_NAMED`](super::MAX_NAMED).
    Jobs(&'a [JobId], Revival),
}

/// Result of a respawn.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Respawned {
    /// Number of respawned jobs.
    pub count: u64,
    /// Result for each named job, in order.
    pub each: Vec<Revived>,
}

impl Respawned {
    /// Counts the results of named jobs.
    pub fn of(each: Vec<Revived>) -> Respawned {
        let done = each.iter().filter(|revived| matches!(revived, Revived::Done { .. }));
        Respawned { count: done.count() as u64, each }
    }
}

/// Settings of jobs respawned by id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Revival {
    pub tries: NonZeroU16,
    /// Zero: ready at once, after all others.
    pub delay: Duration,
    /// From now on; `None` is forever. Longer than `delay`.
    pub ttl: Option<Duration>,
}

/// Result of the respawn of one job.
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

/// Result of a promotion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Promoted {
    /// It is ready.
    Done,
    /// It is in this state; `None` if the store cannot determine it in bounded time. Nothing has changed.
    NotDelayed(Option<JobState>),
    NotFound,
}
