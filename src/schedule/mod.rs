//! Recurring jobs: all rules about time. Knows no store, no HTTP and no clock: the current time is an argument, and
//! the caller performs the decisions.
//!
//! - [`Zones`]: a database of time zones, and its version.
//! - [`Given::parse`]: the JSON of a PUT, or a [`Refusal`] with its field. [`Setting`]: with all defaults; it is stored
//!   as its own JSON ([`Setting::to_json`], [`Setting::stored`]).
//! - [`Setting::when`]: its instants, a [`When`]. `None`: no database has its zone any more (`broken`).
//! - [`Progress`]: up to where a schedule is decided. [`step`]: the decision for now, and the progress after it.
//! - [`History`]: results of the last occurrences.
//! - [`Preview`]: occurrences of a schedule that is not stored.
//! - [`job_id`], [`Setting::job_attributes`]: of the job of an occurrence.
//!
//! For each due schedule, the caller asks `step`. On [`Step::Do`] it publishes `place`, adds to the history and
//! stores the progress, on condition that the stored progress has not changed; then it asks `step` again. A change of
//! the setting, by [`Progress::changed`], follows all decisions that are due by then.

mod cron;
mod decide;
mod fields;
mod given;
mod history;
mod identity;
mod preview;
mod refusal;
mod setting;
#[cfg(test)]
mod tests;
mod when;
mod zones;

pub use self::decide::{Decision, GivenUp, Paused, Place, Progress, RAN_AHEAD, Step, is_ended, step};
pub use self::fields::instant;
pub use self::given::Given;
pub use self::history::{Became, Entry, History};
pub use self::identity::{jitter, job_id, occurrence_key};
pub use self::preview::Preview;
pub use self::refusal::{Refusal, quoted, shorten};
pub use self::setting::{Body, JobDefaults, MAX_SETTING, Overlap, SCHEDULE, Setting};
pub use self::when::{Cursor, MOST_COUNTED, Mode, When};
pub use self::zones::Zones;
