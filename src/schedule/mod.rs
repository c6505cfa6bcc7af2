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
mod preview;
mod refusal;
mod setting;
#[cfg(test)]
mod tests;
mod when;
mod zones;

use jiff::tz::Offset;
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

pub use self::cron::{Cron, CronError, MAX_CRON, Part};
pub use self::decide::{Decision, GivenUp, Paused, Place, Progress, Step, is_ended, step};
pub use self::fields::{instant, zone};
pub use self::given::Given;
pub use self::history::{Entry, History, MOST_KEPT, Outcome};
pub use self::preview::Preview;
pub use self::refusal::{Refusal, quoted};
pub use self::setting::{
    Body, CAUGHT_UP, CatchUp, JobDefaults, MAX_BODY, MAX_SETTING, Overlap, Rule, SCHEDULE, SCHEDULED_AT,
    Setting, seconds,
};
pub use self::when::{Cursor, MOST_CAUGHT_UP, MOST_COUNTED, Missed, Mode, Occurrence, When};
pub use self::zones::{NoZone, Zones, local};
use crate::clock::Millis;
use crate::job::JobId;
use crate::name::{Namespace, ScheduleName};

/// How long after its due time an occurrence is placed, of `most` at most: the same on every server and for ever.
pub fn jitter(name: &ScheduleName, due: Millis, most: Millis) -> Millis {
    if most == 0 {
        return 0;
    }
    let mut bytes = name.as_str().as_bytes().to_vec();
    bytes.extend(due.to_be_bytes());
    xxh3_64(&bytes) % (most + 1)
}

/// The id of an occurrence's job, the same whenever it is placed: its time is the due time, its delay is none, and the
/// bits between come from the names of the namespace and the schedule and from the occurrence's identity, which by the
/// clock is the local time. It is versioned, since the job has attributes. Every store takes it: the compact layout finds
/// a job by its queue's home, whatever partition an id names.
pub fn job_id(namespace: &Namespace, name: &ScheduleName, occurrence: &Occurrence) -> JobId {
    let mut hash = Xxh3::new();
    for text in [namespace.as_str(), name.as_str()] {
        hash.update(text.as_bytes());
        hash.update(&[0]);
    }
    // Local times as if they were UTC, told apart from instants.
    let local = occurrence.local.and_then(|local| Offset::UTC.to_timestamp(local).ok());
    match local {
        Some(local) => hash.update(&[&b"local"[..], &local.as_second().to_be_bytes()].concat()),
        None => hash.update(&occurrence.due.to_be_bytes()),
    }
    JobId::from_parts(occurrence.due, hash.digest(), 0, true)
}
