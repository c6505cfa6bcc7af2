//! Decides what to do for a schedule now: a pure function of its setting, its progress and the time of day. The
//! caller asks [`step`], performs the decision and stores the new progress in one step, and asks again.
//!
//! - An occurrence is placed (its job is published) once its due time and its jitter have passed. It is *missed* once
//!   its due time, the maximum jitter and the deadline have passed.
//! - Occurrences in time go first. Missed ones wait in [`Progress::backlog`] to be caught up, so that they delay no
//!   others.
//! - A decision is final: if the clock steps back by up to [`RAN_AHEAD`], the schedule pauses until the clock has
//!   caught up; a step ahead is like a downtime. After a larger step back, the earlier clock counts as wrong, and the
//!   schedule continues from now ([`Progress::set_right`]).

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use super::identity::jitter;
use super::setting::{CatchUp, Rule, Setting};
use super::when::{Cursor, MOST_CAUGHT_UP, MOST_COUNTED, Missed, Occurrence, When};
use crate::clock::Millis;
use crate::name::ScheduleName;

/// If a decision is further in the future than this, it was made by a clock that ran ahead and has been corrected.
pub const RAN_AHEAD: Millis = 60_000;

/// State of a schedule besides its setting: up to where it is decided. Written with each step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    pub cursor: Cursor,
    /// Missed occurrences to be caught up, oldest first.
    #[serde(default, skip_serializing_if = "VecDeque::is_empty")]
    pub backlog: VecDeque<Occurrence>,
    /// When `every` was set: its anchor, unless there is a start.
    pub every_set_at: Millis,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused: Option<Paused>,
}

/// A pause, and when it ends by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Paused {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Millis>,
}

/// What to do for a schedule.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "one lives at a time")]
pub enum Step {
    /// Nothing before this time of day.
    Wait(Millis),
    /// Nothing until the schedule is changed or resumed.
    Idle,
    Do(Decision),
}

/// One step: record `missed`, publish `place`, and store the progress.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Missed occurrences that are not caught up.
    pub missed: Option<GivenUp>,
    pub place: Option<Place>,
    /// Progress to store in the same step, with any outcome of `place`.
    pub progress: Progress,
    /// Progress without `place`: if the store has no space for its job, `missed` is still recorded.
    pub unplaced: Progress,
    /// When the next occurrence should be placed. `None` without one. The backlog can be placed at once.
    pub next: Option<Millis>,
}

/// Missed occurrences that are not caught up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GivenUp {
    pub due: Millis,
    pub last_due: Millis,
    /// `None` above [`MOST_COUNTED`].
    pub count: Option<u32>,
}

/// An occurrence whose job to publish.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    pub occurrence: Occurrence,
    /// It was missed. Such jobs are published after all jobs in time, over all schedules.
    pub caught_up: bool,
}

impl Progress {
    /// Returns the progress of a new schedule: earlier occurrences do not count.
    pub fn new(now: Millis) -> Progress {
        Progress { cursor: Cursor::at(now), backlog: VecDeque::new(), every_set_at: now, paused: None }
    }

    /// Returns the progress for continuing if decisions were made by a clock that ran ahead and has been
    /// corrected; `None` if not. Nothing after `now` counts as decided. `every` keeps its phase: an occurrence that
    /// was placed recurs with the same identity and job id.
    pub fn set_right(&self, rule: &Rule, now: Millis) -> Option<Progress> {
        let latest = now.saturating_add(RAN_AHEAD);
        if self.cursor.after <= latest && self.every_set_at <= latest {
            return None;
        }
        let mut progress = self.clone();
        if self.cursor.after > now {
            progress.cursor = Cursor::at(now);
        }
        progress.backlog.retain(|occurrence| occurrence.due <= now);
        progress.every_set_at = match rule {
            Rule::Every(every) => {
                let ahead = self.every_set_at.saturating_sub(now);
                self.every_set_at.saturating_sub(ahead.div_ceil(*every).saturating_mul(*every))
            }
            Rule::Cron(_) => self.every_set_at.min(now),
        };
        Some(progress)
    }

    /// Returns the progress after a change of the setting. Due occurrences of the old setting should be decided
    /// first: [`step`] tells whether there are any.
    pub fn changed(&self, old: &Setting, new: &Setting, now: Millis) -> Progress {
        let mut progress = self.awake(now);
        if new.moves(old) {
            // Decisions stay final after the clock was set back.
            progress.cursor = Cursor::at(now.max(self.cursor.after));
        }
        if matches!(new.rule, Rule::Every(_)) && new.rule != old.rule {
            progress.every_set_at = now;
        }
        progress
    }

    /// Returns the progress with this pause, replacing any other.
    pub fn pause(&self, until: Option<Millis>) -> Progress {
        Progress { paused: Some(Paused { until }), ..self.clone() }
    }

    /// Ends a pause: continues after now, without the occurrences before.
    pub fn resume(&self, now: Millis) -> Progress {
        let awake = self.awake(now);
        match awake.paused {
            None => awake,
            Some(_) => awake.after_pause(now),
        }
    }

    /// Whether the schedule is paused at `now`.
    pub fn is_paused(&self, now: Millis) -> bool {
        self.paused.is_some_and(|paused| paused.until.is_none_or(|until| until > now))
    }

    /// Removes a pause that has ended.
    pub fn awake(&self, now: Millis) -> Progress {
        match self.paused.and_then(|paused| paused.until).filter(|until| *until <= now) {
            // An occurrence at the end of the pause is due.
            Some(until) => self.after_pause(until.saturating_sub(1)),
            None => self.clone(),
        }
    }

    /// Skips everything due during the pause, and the backlog from before.
    fn after_pause(&self, end: Millis) -> Progress {
        let cursor = if end > self.cursor.after { Cursor::at(end) } else { self.cursor };
        Progress { cursor, backlog: VecDeque::new(), paused: None, every_set_at: self.every_set_at }
    }
}

/// Whether there are no further occurrences.
pub fn is_ended(when: &When, progress: &Progress) -> bool {
    progress.backlog.is_empty() && when.next(progress.cursor).is_none()
}

/// Decides what to do at `now`, by the time of day.
pub fn step(name: &ScheduleName, setting: &Setting, when: &When, progress: &Progress, now: Millis) -> Step {
    if progress.is_paused(now) {
        return progress.paused.and_then(|paused| paused.until).map_or(Step::Idle, Step::Wait);
    }
    let mut after = progress.awake(now);
    let placed_at = |occurrence: &Occurrence| occurrence.due + jitter(name, occurrence.due, setting.jitter);
    let late = now.saturating_sub(setting.jitter + setting.deadline).saturating_sub(1);
    // Mostly there is nothing to do, which one search shows.
    let first = when.next(after.cursor);
    let missed = match first {
        Some(first) if first.due <= late => when.missed(after.cursor, late),
        _ => None,
    };
    if let Some(newest) = missed.as_ref().and_then(|missed| missed.newest.back()) {
        after.cursor = when.decided(newest);
    }
    let next = if missed.is_some() { when.next(after.cursor) } else { first };
    let in_time = next.filter(|next| next.due <= now);
    let given_up = owe(&mut after.backlog, missed, setting.catch_up, in_time.is_some());
    let unplaced = after.clone();
    let place = match in_time.filter(|next| placed_at(next) <= now) {
        Some(occurrence) => {
            after.cursor = when.decided(&occurrence);
            Some(Place { occurrence, caught_up: false })
        }
        None => after.backlog.pop_front().map(|occurrence| Place { occurrence, caught_up: true }),
    };
    let next = when.next(after.cursor).map(|next| placed_at(&next));
    match (given_up, place) {
        (None, None) => next.map_or(Step::Idle, Step::Wait),
        (missed, place) => Step::Do(Decision { missed, place, progress: after, unplaced, next }),
    }
}

/// Adds the occurrences of `missed` that are to be caught up to the backlog. Returns the others, including ones dropped
/// from the backlog.
fn owe(
    backlog: &mut VecDeque<Occurrence>,
    missed: Option<Missed>,
    catch_up: CatchUp,
    in_time: bool,
) -> Option<GivenUp> {
    let most = match catch_up {
        CatchUp::None => 0,
        CatchUp::Last => usize::from(!in_time),
        CatchUp::All => MOST_CAUGHT_UP,
    };
    let oldest = backlog.front().copied().or(missed.as_ref().map(|missed| missed.first))?;
    // Number of occurrences too old for `newest`, which has one more than can be caught up.
    let too_old = missed
        .as_ref()
        .map_or(Some(0), |missed| missed.count.map(|count| count as usize - missed.newest.len()));
    backlog.extend(missed.into_iter().flat_map(|missed| missed.newest));
    let dropped = backlog.len().saturating_sub(most);
    let last = backlog.drain(..dropped).next_back()?;
    let count = too_old.and_then(|too_old| u32::try_from(too_old + dropped).ok());
    let count = count.filter(|count| *count <= MOST_COUNTED);
    Some(GivenUp { due: oldest.due, last_due: last.due, count })
}
