//! Schedules as a store keeps them: records, replaced by compare-and-swap in the step that stores the job. A store
//! knows neither cron expressions nor time zones: the scheduler computes when a schedule is due next.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use bytes::Bytes;

use super::calls::{Cursor, Placed, Publication, Published};
use crate::clock::Millis;
use crate::name::{Namespace, Queue, QueueName, ScheduleName};

/// Identifies a schedule within a pool.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ScheduleId {
    pub namespace: Namespace,
    pub name: ScheduleName,
}

impl fmt::Display for ScheduleId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// State of a schedule, set by the scheduler; a store only counts schedules by state.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum ScheduleState {
    On,
    Paused,
    /// No further occurrence is possible.
    Ended,
    /// Its time zone is unknown.
    Broken,
    /// It belongs to another store. Without a `next` it has arrived there; with one, its move has begun and not ended.
    /// Set by a wrapper of several stores.
    Moved,
}

impl ScheduleState {
    pub const ALL: [ScheduleState; 5] = [
        ScheduleState::On,
        ScheduleState::Paused,
        ScheduleState::Ended,
        ScheduleState::Broken,
        ScheduleState::Moved,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            ScheduleState::On => "on",
            ScheduleState::Paused => "paused",
            ScheduleState::Ended => "ended",
            ScheduleState::Broken => "broken",
            ScheduleState::Moved => "moved",
        }
    }

    pub fn parse(s: &str) -> Option<ScheduleState> {
        ScheduleState::ALL.into_iter().find(|state| state.as_str() == s)
    }
}

/// Version of a schedule's record, for compare-and-swap. Every step makes a new one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ScheduleVersion {
    /// Grows with each change of the setting, and is never reused for a name.
    pub revision: u64,
    /// Number of steps since that change.
    pub step: u64,
}

/// The definition of a schedule. A store does not interpret `text`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScheduleSetting {
    /// The queue that its jobs are published to.
    pub queue: QueueName,
    pub text: Bytes,
    /// The body of its jobs.
    pub body: Bytes,
}

impl ScheduleSetting {
    /// Returns the bytes of text and body.
    pub fn bytes(&self) -> usize {
        self.text.len() + self.body.len()
    }
}

/// Result of a job placed by a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Landed {
    /// When it was placed, by the store's time of day.
    pub at: Millis,
    pub placed: Placed,
}

/// A schedule as stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredSchedule {
    pub id: ScheduleId,
    pub version: ScheduleVersion,
    pub state: ScheduleState,
    /// When it is due next; `None`: never.
    pub next: Option<Millis>,
    /// The body is empty if it was not requested.
    pub setting: ScheduleSetting,
    pub progress: Bytes,
    /// Result of the job of the step that wrote `progress`; `None` if it had none.
    pub landed: Option<Landed>,
}

impl StoredSchedule {
    /// Returns the queue of its jobs.
    pub fn queue(&self) -> Queue {
        Queue { namespace: self.id.namespace.clone(), name: self.setting.queue.clone() }
    }
}

/// Maximum numbers of schedules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScheduleBounds {
    pub of_namespace: u64,
    pub of_pool: u64,
}

/// One step of one schedule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScheduleStep {
    pub id: ScheduleId,
    /// The version that the record must have; `None`: the schedule must not exist.
    pub expected: Option<ScheduleVersion>,
    pub then: ScheduleThen,
}

impl ScheduleStep {
    /// Returns the job to place.
    pub fn job(&self) -> Option<&Publication> {
        let ScheduleThen::Put(put) = &self.then else { return None };
        put.job.as_ref()
    }

    /// Returns the bytes of its bodies and texts.
    pub fn carried(&self) -> usize {
        let ScheduleThen::Put(put) = &self.then else { return 0 };
        let setting = put.setting.as_ref().map_or(0, ScheduleSetting::bytes);
        setting + put.progress.len() + put.job.as_ref().map_or(0, Publication::bytes)
    }

    /// Returns the queue of its job.
    pub fn queue(&self) -> Option<Queue> {
        Some(self.job()?.jobs.first()?.job.queue.clone())
    }
}

/// What to do with the schedule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ScheduleThen {
    Put(Box<SchedulePut>),
    /// Deletes the schedule. Its jobs stay.
    Delete,
}

/// The new record, and the job stored in the same step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SchedulePut {
    /// `None`: unchanged. A new setting gets a new revision.
    pub setting: Option<ScheduleSetting>,
    /// Replaces the next revision. Set by a wrapper of several stores.
    pub revision: Option<u64>,
    pub state: ScheduleState,
    pub next: Option<Millis>,
    pub progress: Bytes,
    /// Result to record if this step has no job.
    pub landed: Option<Landed>,
    /// Checked if the schedule is new.
    pub bounds: ScheduleBounds,
    /// Stored in the same step; if it cannot be, nothing of the step is done. All of one queue.
    pub job: Option<Publication>,
    /// The step fails before this time of day.
    pub not_before: Millis,
    /// Version of the data that `next` was computed with: a store counts steps by it. Empty: not counted.
    pub by: Box<str>,
    /// Checks the step and writes nothing. It has no job.
    pub dry: bool,
}

impl SchedulePut {
    /// Returns a step for an existing schedule that changes no setting and has no job.
    pub fn plain(
        state: ScheduleState,
        next: Option<Millis>,
        progress: Bytes,
        landed: Option<Landed>,
    ) -> SchedulePut {
        let (bounds, by) = (ScheduleBounds { of_namespace: 0, of_pool: 0 }, Box::default());
        let (setting, revision, job, not_before, dry) = (None, None, None, 0, false);
        SchedulePut { setting, revision, state, next, progress, landed, bounds, job, not_before, by, dry }
    }
}

/// Result of a [`ScheduleStep`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stepped {
    Done {
        /// Of the new record; of a deleted one, its last version.
        version: ScheduleVersion,
        /// The result of the job, if there was one.
        landed: Option<Landed>,
    },
    /// The job was not stored: [`Replay`](Published::Replay), [`Mismatch`](Published::Mismatch) or
    /// [`Conflict`](Published::Conflict). Nothing has changed.
    NotPlaced(Published),
    /// The store rejects this job, for this reason. Nothing has changed.
    Refused(String),
    /// The schedule has another version than expected. Nothing has changed.
    Stale,
    /// The store's time of day is before `not_before`. Nothing has changed.
    TooEarly,
    /// The maximum number of schedules is reached. Nothing has changed.
    TooMany,
}

/// Which schedules to return.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ScheduleList {
    One(ScheduleName),
    /// A page of schedules whose names begin with `prefix`, after `after`: up to `limit`, 1 to
    /// [`MAX_LISTED`](super::MAX_LISTED).
    Page {
        prefix: String,
        after: Option<ScheduleName>,
        limit: usize,
        bodies: bool,
    },
}

/// A page of schedules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SchedulePage {
    /// The store's time of day.
    pub now: Millis,
    /// May be shorter than requested although there are more.
    pub schedules: Vec<StoredSchedule>,
    /// Name after which the next page begins; `None` at the end.
    pub next: Option<ScheduleName>,
}

/// Which of a pool's schedules to return.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DueList {
    /// Up to this many due schedules, the earliest first.
    Now(usize),
    /// Like `Now`, but only schedules that became due within this time.
    Within(usize, Duration),
    /// A page of all schedules that have not moved to another store, due or not, without bodies and in any order:
    /// `limit`, or a few more if there are few. A schedule that exists throughout is in at least one of the pages,
    /// even if steps change it meanwhile.
    Ever { from: Option<Cursor>, limit: usize },
}

impl DueList {
    pub fn limit(&self) -> usize {
        match self {
            DueList::Now(limit) | DueList::Within(limit, _) | DueList::Ever { limit, .. } => *limit,
        }
    }
}

/// Due schedules, with statistics of all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DueSchedules {
    /// The store's time of day.
    pub now: Millis,
    /// In order of due time.
    pub schedules: Vec<StoredSchedule>,
    /// Of [`Ever`](DueList::Ever): cursor of the next page; `None` at the end.
    pub more: Option<Cursor>,
    /// Time until the next schedule is due: zero if more are due now. At most a second for stores with other writers,
    /// or whose time of day may be set; a store without schedules may return a longer time.
    pub next: Duration,
    /// Number of schedules in each state, in the order of [`ScheduleState::ALL`]. For a page of [`Ever`](DueList::Ever)
    /// it may cover only a part of the store.
    pub counts: [u64; ScheduleState::ALL.len()],
    /// Number of steps by [`SchedulePut::by`]. A number that grows shows that a scheduler with this value is active.
    /// The counts may restart from zero.
    pub by: BTreeMap<Box<str>, u64>,
}
