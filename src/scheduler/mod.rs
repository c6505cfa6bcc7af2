//! Schedules of a pool: places what is due, and changes what is set. Knows what a schedule is by [`schedule`], and keeps
//! all of it in the store: no memory of its own decides anything, so any number of servers may run this at once.
//!
//! - [`run`]: the task that places. Asleep until the next is due, or until this process has changed one.
//! - `record`: a schedule, as two texts of the store; `place`: one look at one; `change`: what requests ask for; `core`: what
//!   all of them have in common.
//!
//! [`schedule`]: crate::schedule

mod change;
mod core;
mod place;
mod record;
mod task;

pub use self::change::{Changed, Condition, Matches, NotChanged, Page, Ran, Run, Runs};
pub use self::core::Scheduler;
pub use self::record::{Schedule, State};
pub use self::task::run;
