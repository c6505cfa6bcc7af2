//! When jobs come again: the room that knows time. It knows no store, no HTTP and no clock: now is an argument, and what
//! it says is done by others.
//!
//! - [`Zones`]: a database of time zones, and its version.
//! - [`Given::parse`]: the JSON of a PUT, or a [`Refusal`] with its field. [`Setting`]: with all defaults; it is stored
//!   as its own JSON ([`Setting::to_json`], [`Setting::stored`]).
//! - [`Setting::when`]: its instants, a [`When`]. `None`: no database has its zone any more (`broken`).
//! - [`Progress`]: until where a schedule is decided. [`step`]: what is to be done now, and the progress after it.
//! - [`History`]: what became of the last occurrences.
//! - [`Preview`]: the next instants of what is not set.
//! - [`job_id`], [`Setting::job_attributes`]: of the job of an occurrence.
//!
//! Whoever places does, of each schedule whose time has come: `step`; if it says [`Step::Do`], one step of the store that
//! compares what was last decided, publishes `place`, adds to the history and stores the progress with its `next`; then
//! `step` again. A change of the setting, by [`Progress::changed`], comes after all that `step` has to do by then.

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
pub use self::identity::{jitter, job_id};
pub use self::preview::Preview;
pub use self::refusal::{Refusal, quoted, shorten};
pub use self::setting::{Body, JobDefaults, MAX_SETTING, Overlap, SCHEDULE, Setting};
pub use self::when::{Cursor, MOST_COUNTED, Mode, When};
pub use self::zones::Zones;
