//! Schedules as a store keeps them: records that it compares and replaces, and the job that it stores in the same step.
//! A store knows neither expressions nor zones: whoever places says what comes next.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use bytes::Bytes;

use super::calls::{Cursor, Placed, Publication, Published};
use crate::clock::Millis;
use crate::name::{Namespace, Queue, QueueName, ScheduleName};

/// Names a schedule within a pool.
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

/// What a schedule does, as its placer has said: a store counts by it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum ScheduleState {
    On,
    Paused,
    /// Nothing can come any more.
    Ended,
    /// Its zone is in no database any more.
    Broken,
    /// It belongs to another store, which has it, or is about to get it from here if it has a `next`. From a wrapper of
    /// several stores.
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

/// Which form of a record a step expects. Each step makes another one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ScheduleVersion {
    /// Grows with each change of the setting, and is never used twice for a name.
    pub revision: u64,
    /// How many steps were taken since that change.
    pub step: u64,
}

/// What decides about a schedule, in its owner's own terms.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScheduleSetting {
    /// Where its jobs go: decides where a store of several parts keeps the schedule.
    pub queue: QueueName,
    pub text: Bytes,
    /// The body of its jobs.
    pub body: Bytes,
}

impl ScheduleSetting {
    /// Of its text and its body.
    pub fn bytes(&self) -> usize {
        self.text.len() + self.body.len()
    }
}

/// What the last step that had a job has done with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Landed {
    /// When, by the store's time of day.
    pub at: Millis,
    pub placed: Placed,
}

/// A schedule, as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredSchedule {
    pub id: ScheduleId,
    pub version: ScheduleVersion,
    pub state: ScheduleState,
    /// From when on it is due to be looked at; `None`: never.
    pub next: Option<Millis>,
    /// Its body is empty where it was not asked for.
    pub setting: ScheduleSetting,
    pub progress: Bytes,
    /// Of the step that wrote `progress`.
    pub landed: Option<Landed>,
}

impl StoredSchedule {
    /// The queue of its jobs.
    pub fn queue(&self) -> Queue {
        Queue { namespace: self.id.namespace.clone(), name: self.setting.queue.clone() }
    }
}

/// How many schedules there may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScheduleBounds {
    pub of_namespace: u64,
    pub of_pool: u64,
}

/// One step of one schedule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScheduleStep {
    pub id: ScheduleId,
    /// `None`: there is no such schedule.
    pub expected: Option<ScheduleVersion>,
    pub then: ScheduleThen,
}

impl ScheduleStep {
    /// The job that it places.
    pub fn job(&self) -> Option<&Publication> {
        let ScheduleThen::Put(put) = &self.then else { return None };
        put.job.as_ref()
    }

    /// Bytes of the bodies and texts that it carries.
    pub fn carried(&self) -> usize {
        let ScheduleThen::Put(put) = &self.then else { return 0 };
        let setting = put.setting.as_ref().map_or(0, ScheduleSetting::bytes);
        setting + put.progress.len() + put.job.as_ref().map_or(0, Publication::bytes)
    }

    /// The queue of its job.
    pub fn queue(&self) -> Option<Queue> {
        Some(self.job()?.jobs.first()?.job.queue.clone())
    }
}

/// What becomes of the schedule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ScheduleThen {
    Put(Box<SchedulePut>),
    /// Jobs stay.
    Delete,
}

/// What is written, and the job that goes with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SchedulePut {
    /// `None`: as it is. Otherwise the revision is another one.
    pub setting: Option<ScheduleSetting>,
    /// In place of the next revision: from a wrapper of several stores.
    pub revision: Option<u64>,
    pub state: ScheduleState,
    pub next: Option<Millis>,
    pub progress: Bytes,
    /// What became of the last job, where this step has none: from a wrapper of several stores.
    pub landed: Option<Landed>,
    /// Looked at where the schedule is new.
    pub bounds: ScheduleBounds,
    /// Stored in the same step, or nothing of the step is done. All of one queue.
    pub job: Option<Publication>,
    /// Nothing is done before this time of day.
    pub not_before: Millis,
    /// What `next` was computed with, in its placer's own terms: a store counts by it. Empty: it is not counted.
    pub by: Box<str>,
    /// Nothing is written: what would become of it is answered. It has no job.
    pub dry: bool,
}

impl SchedulePut {
    /// One that changes no setting and has no job. Of a schedule that is there.
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

/// What became of a [`ScheduleStep`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stepped {
    Done {
        /// Of the record now; of a deleted one, what it was.
        version: ScheduleVersion,
        /// What became of the job, if there was one, and when.
        landed: Option<Landed>,
    },
    /// The job was not stored for that: [`Replay`](Published::Replay), [`Mismatch`](Published::Mismatch) or
    /// [`Conflict`](Published::Conflict). Nothing has changed.
    NotPlaced(Published),
    /// The store refuses this job alone, for this reason. Nothing has changed.
    Refused(String),
    /// The schedule is another one than was expected. Nothing has changed.
    Stale,
    /// The store's time of day is before `not_before`. Nothing has changed.
    TooEarly,
    /// There are as many schedules as there may be. Nothing has changed.
    TooMany,
}

/// Which schedules are to be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ScheduleList {
    One(ScheduleName),
    /// Those whose names begin with `prefix`, behind `after`: up to `limit`, 1 to [`MAX_LISTED`](super::MAX_LISTED).
    Page {
        prefix: String,
        after: Option<ScheduleName>,
        limit: usize,
        bodies: bool,
    },
}

/// Schedules that were read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SchedulePage {
    /// The store's time of day.
    pub now: Millis,
    /// May be fewer than asked for although there are more.
    pub schedules: Vec<StoredSchedule>,
    /// Where to go on: behind this name. `None` at the end.
    pub next: Option<ScheduleName>,
}

/// Which of a pool's schedules are asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DueList {
    /// Those that are due, up to so many, the earliest first.
    Now(usize),
    /// The same of those that have become due within this time.
    Within(usize, Duration),
    /// A part of all that are not elsewhere by now, whenever they are due, without their bodies and in any order: `limit`, or
    /// a few more where they are few. From the begin, or from where another part has ended. What is there all the time
    /// until the last part is in one of them at least, whatever its steps are meanwhile.
    Ever { from: Option<Cursor>, limit: usize },
}

impl DueList {
    pub fn limit(&self) -> usize {
        match self {
            DueList::Now(limit) | DueList::Within(limit, _) | DueList::Ever { limit, .. } => *limit,
        }
    }
}

/// Schedules that are to be looked at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DueSchedules {
    /// The store's time of day.
    pub now: Millis,
    /// In the order in which they are due.
    pub schedules: Vec<StoredSchedule>,
    /// Of all: where the next part begins, if there may be more.
    pub more: Option<Cursor>,
    /// How long until there is another one: zero when there is one already. A store that others write to answers a
    /// second at most, and so does one whose time of day may be set; one without schedules need not be asked again.
    pub next: Duration,
    /// How many schedules there are in each state, in the order of [`ScheduleState::ALL`]. Beside a part of all it may be that
    /// of a part of the store.
    pub counts: [u64; ScheduleState::ALL.len()],
    /// How many steps there were by [`SchedulePut::by`]: who sees a number grow knows that such a placer is at work. They
    /// may begin anew.
    pub by: BTreeMap<Box<str>, u64>,
}
