//! What is to be done of a schedule now: a pure function of its setting, of what was decided last and of the time of
//! day. Whoever places asks [`step`], does what it says in one step of the store, together with the progress that comes
//! with it, and asks again.
//!
//! - An occurrence is placed from its due time and its jitter on. It is *missed* once its due time, the longest jitter
//!   and the deadline are over.
//! - What is in time goes first. What is caught up waits in [`Progress::backlog`], so that it delays nobody.
//! - What was decided is not decided again: a step back of the clock by up to [`RAN_AHEAD`] is a pause until it has come
//!   up again, and a step ahead is like an absence. Beyond that the clock ran ahead and was set right: the schedule goes
//!   on from now ([`Progress::set_right`]).

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use super::identity::jitter;
use super::setting::{CatchUp, Rule, Setting};
use super::when::{Cursor, MOST_CAUGHT_UP, MOST_COUNTED, Missed, Occurrence, When};
use crate::clock::Millis;
use crate::name::ScheduleName;

/// A clock by which something was decided that lies further in the future than this ran ahead, and was set right.
pub const RAN_AHEAD: Millis = 60_000;

/// What is stored of a schedule beside its setting: until where it is decided. Written with each step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    pub cursor: Cursor,
    /// Missed ones that are to be caught up, oldest first.
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

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "one lives at a time")]
pub enum Step {
    /// Nothing before this instant, by the time of day.
    Wait(Millis),
    /// Nothing until somebody changes or resumes it.
    Idle,
    Do(Decision),
}

/// One step: `missed` is recorded, then `place` is published, and the progress is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// These are given up.
    pub missed: Option<GivenUp>,
    pub place: Option<Place>,
    /// What is stored in the same step, whatever becomes of `place`.
    pub progress: Progress,
    /// The same without `place`: where the store has no room for its job, `missed` is recorded all the same.
    pub unplaced: Progress,
    /// When the next occurrence is to be placed after that. `None`: none comes any more. What is left to be caught up can
    /// be placed at once.
    pub next: Option<Millis>,
}

/// Missed occurrences that nobody catches up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GivenUp {
    pub due: Millis,
    pub last_due: Millis,
    /// `None` above [`MOST_COUNTED`].
    pub count: Option<u32>,
}

/// An occurrence whose job is to be stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    pub occurrence: Occurrence,
    /// It was missed. Such a one is placed after what is in time, of all schedules.
    pub caught_up: bool,
}

impl Progress {
    /// Of a schedule that is created now: nothing before is owed.
    pub fn new(now: Millis) -> Progress {
        Progress { cursor: Cursor::at(now), backlog: VecDeque::new(), every_set_at: now, paused: None }
    }

    /// Returns the progress from which a schedule goes on that was decided by a clock that ran ahead and was set right
    /// since; `None` if it was not. Nothing after `now` counts as decided. `every` keeps its phase: an instant that was
    /// placed comes again as the same one, with the same job id.
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

    /// After a change of the setting. What of the old one was due by now should be decided before: [`step`] says
    /// whether something is.
    pub fn changed(&self, old: &Setting, new: &Setting, now: Millis) -> Progress {
        let mut progress = self.awake(now);
        if new.moves(old) {
            // After the clock was set back what was decided stays so.
            progress.cursor = Cursor::at(now.max(self.cursor.after));
        }
        if matches!(new.rule, Rule::Every(_)) && new.rule != old.rule {
            progress.every_set_at = now;
        }
        progress
    }

    /// Paused, whatever it was.
    pub fn pause(&self, until: Option<Millis>) -> Progress {
        Progress { paused: Some(Paused { until }), ..self.clone() }
    }

    /// Goes on with what comes after now. What was owed before is not.
    pub fn resume(&self, now: Millis) -> Progress {
        let awake = self.awake(now);
        match awake.paused {
            None => awake,
            Some(_) => awake.after_pause(now),
        }
    }

    /// Whether it is paused now.
    pub fn is_paused(&self, now: Millis) -> bool {
        self.paused.is_some_and(|paused| paused.until.is_none_or(|until| until > now))
    }

    /// Without a pause that has ended.
    pub fn awake(&self, now: Millis) -> Progress {
        match self.paused.and_then(|paused| paused.until).filter(|until| *until <= now) {
            // What is due as it ends is due.
            Some(until) => self.after_pause(until.saturating_sub(1)),
            None => self.clone(),
        }
    }

    /// Nothing that was due during the pause is owed, nor what waited to be caught up when it began.
    fn after_pause(&self, end: Millis) -> Progress {
        let cursor = if end > self.cursor.after { Cursor::at(end) } else { self.cursor };
        Progress { cursor, backlog: VecDeque::new(), paused: None, every_set_at: self.every_set_at }
    }
}

/// Whether nothing can come any more.
pub fn is_ended(when: &When, progress: &Progress) -> bool {
    progress.backlog.is_empty() && when.next(progress.cursor).is_none()
}

/// What is to be done now, by the time of day.
pub fn step(name: &ScheduleName, setting: &Setting, when: &When, progress: &Progress, now: Millis) -> Step {
    if progress.is_paused(now) {
        return progress.paused.and_then(|paused| paused.until).map_or(Step::Idle, Step::Wait);
    }
    let mut after = progress.awake(now);
    let placed_at = |occurrence: &Occurrence| occurrence.due + jitter(name, occurrence.due, setting.jitter);
    let late = now.saturating_sub(setting.jitter + setting.deadline).saturating_sub(1);
    // Most often there is nothing: one search says so.
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

/// Puts into the backlog what is to be caught up of `missed`, and answers what is given up, of the backlog too.
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
    // How many are too old to be in `newest`, which has one more than can be caught up.
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
