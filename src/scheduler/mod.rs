//! Schedules of a pool: places due occurrences, and executes changes. Decisions are made by [`schedule`], and all state
//! is in the settings; memory is only a cache, so any number of servers can run this at the same time. Independent of
//! HTTP, and of the kinds of stores.
//!
//! - [`run`](fn@run): the task that places occurrences due now. Sleeps until the next one, or a change by this process.
//! - [`catch_up`](fn@catch_up): the task for late occurrences and walks through all schedules (`walk`); `backlog`: its
//!   state.
//! - `store`: the records of a pool's schedules, and the step of one; `stored`: the encoding of a record; `index`: due
//!   times in memory.
//! - `record`: a decoded schedule, and the encoding of its setting and progress; `place`: one check of a schedule;
//!   `confirm`, `recent`: what a failover may have lost; `change`, `run` and `find`: requests; `condition`: their
//!   preconditions; `core`: shared state; `troubles`: errors that could not be written to a record.
//!
//! [`schedule`]: crate::schedule

mod backlog;
mod change;
mod condition;
mod confirm;
mod core;
mod find;
mod index;
mod late;
mod place;
mod recent;
mod record;
mod run;
mod store;
mod stored;
mod task;
mod troubles;
mod walk;

pub use self::change::{Changed, Run};
pub use self::condition::{Condition, Matches, NotChanged};
pub use self::confirm::confirm;
pub use self::core::Scheduler;
pub use self::find::FoundSchedule;
pub use self::late::catch_up;
pub use self::record::Schedule;
pub use self::run::{Ran, Runs};
pub use self::store::{DueList, DueSchedules, Part, SchedulePage, ScheduleStore};
pub use self::stored::{
    Landed, ScheduleBounds, ScheduleId, SchedulePut, ScheduleSetting, ScheduleState, ScheduleStep,
    ScheduleVersion, Stepped, StoredSchedule,
};
pub use self::task::run;
