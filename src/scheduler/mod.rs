//! Schedules of a pool: places what is due, and changes what is set. Knows what a schedule is by [`schedule`], and keeps
//! all of it in the settings store: no memory of its own decides anything, so any number of servers may run this at once.
//!
//! - [`run`](fn@run): the task that places what is due now. Asleep until the next is due, or until this process has changed one.
//! - [`catch_up`](fn@catch_up): the task that does what is late, and walks through all for a newer zone database (`walk`).
//! - `store`: the records, and the step of one; `stored`: what they look like; `index`: when each is due.
//! - `record`: a schedule, as two texts of the store; `place`: one look at one; `change`, `run` and `find`: what
//!   requests ask for; `condition`: what must hold for it; `core`: what all of them have in common;
//!   `troubles`: what a store was in that could not even write it down.
//!
//! [`schedule`]: crate::schedule

mod backlog;
mod change;
mod condition;
mod core;
mod find;
mod index;
mod late;
mod place;
mod record;
mod run;
mod store;
mod stored;
mod task;
mod troubles;
mod walk;

pub use self::change::{Changed, Run};
pub use self::condition::{Condition, Matches, NotChanged};
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
