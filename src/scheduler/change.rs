//! Requests that set, delete, pause and resume a schedule. Each is one compare-and-swap of its record, and is retried
//! after a conflict.

use super::condition::{Condition, NotChanged, TRIES};
use super::core::Scheduler;
use super::find::FoundSchedule;
use super::place::Looked;
use super::record::Schedule;
use super::stored::{ScheduleId, ScheduleStep, ScheduleVersion, Stepped};
use crate::clock::Millis;
use crate::error::Error;
use crate::schedule::{self, Given, GivenUp, Step};

/// Maximum number of due occurrences that a change decides itself. Beyond that it fails, and the tasks decide the rest.
const MOST_BEFORE: usize = 1000;

/// How to execute a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Run {
    Real,
    /// Writes nothing, and returns the result that a real run would give.
    Dry,
    /// Like `Dry`, without checking bounds and quotas. Returns the current revision.
    Unasked,
}

/// Effect of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Changed {
    Created,
    Changed,
    Unchanged,
}

/// A change to be written.
struct Change {
    schedule: Schedule,
    what: Changed,
}

/// Progress of a change with the occurrences due before it.
#[derive(Debug, Default)]
struct Before {
    /// Number of decided occurrences.
    decided: usize,
    /// The store has no room for a job.
    has_no_room: bool,
    /// Number of conflicts with other changes and steps.
    tries: usize,
}

impl Before {
    fn goes_on(&self) -> bool {
        self.tries < TRIES && self.decided < MOST_BEFORE
    }
}

/// Returns whether a change moves occurrences or begins a pause, so that due ones must be decided before it.
fn decides_before(old: &Schedule, given: &Given, now: Millis) -> bool {
    let pauses = given.paused == Some(true) && !old.state.progress.is_paused(now);
    pauses || given.setting.moves(&old.setting)
}

/// Returns the schedule after a change.
fn changed_to(old: Schedule, given: &Given, now: Millis) -> Change {
    let is_paused = old.state.progress.is_paused(now);
    let paused = given.paused.unwrap_or(is_paused);
    if old.setting == given.setting && paused == is_paused {
        return Change { schedule: old, what: Changed::Unchanged };
    }
    let mut progress = old.state.progress.changed(&old.setting, &given.setting, now);
    if paused && !is_paused {
        progress = progress.pause(None);
    } else if is_paused && !paused {
        progress = progress.resume(now);
    }
    let mut schedule = Schedule { setting: given.setting.clone(), changed_at: now, ..old };
    schedule.state.progress = progress;
    Change { schedule, what: Changed::Changed }
}

impl Scheduler {
    /// Sets a schedule, or returns what would happen.
    pub async fn set(
        &self,
        id: &ScheduleId,
        given: &Given,
        condition: &Condition,
        run: Run,
    ) -> Result<(Changed, Schedule, Millis), NotChanged> {
        if self.bounds.of_namespace == 0 {
            return Err(NotChanged::Forbidden);
        }
        let mut before = Before::default();
        while before.goes_on() {
            let (found, now) = self.find(id).await?;
            condition.check(found.as_ref().map(FoundSchedule::revision))?;
            let (mut old, mut given_up) = (None, None);
            let Change { mut schedule, what } = match found {
                None => self.created(id, given, now),
                Some(FoundSchedule::Whole(mut found)) => {
                    if run == Run::Real && decides_before(&found, given, now) {
                        if self.decide_before(&found, &mut before, now).await? {
                            continue;
                        }
                        given_up = self.give_up(&mut found, &before, now);
                    }
                    old = Some(found.clone());
                    changed_to(found, given, now)
                }
                Some(FoundSchedule::Unreadable { stored, .. }) => {
                    let schedule = Schedule::anew(stored, given, now, &self.zones);
                    Change { schedule, what: Changed::Changed }
                }
            };
            if what == Changed::Unchanged || run == Run::Unasked {
                return Ok((what, schedule, now));
            }
            let is_new = what == Changed::Created;
            if let Some(version) = self.write(&schedule, now, is_new, run == Run::Dry).await? {
                if let Some(old) = &old {
                    self.tell_missed(old, given_up);
                }
                schedule.version = version;
                return Ok((what, schedule, now));
            }
            before.tries += 1;
        }
        Err(Error::Overloaded.into())
    }

    /// Returns a new schedule.
    fn created(&self, id: &ScheduleId, given: &Given, now: Millis) -> Change {
        let mut schedule = Schedule::new(id.clone(), given.setting.clone(), now, &self.zones);
        if given.paused == Some(true) {
            schedule.state.progress = schedule.state.progress.pause(None);
        }
        Change { schedule, what: Changed::Created }
    }

    /// Decides an occurrence that was due before a change, by the old setting. Returns whether the schedule must be
    /// read again.
    async fn decide_before(
        &self,
        old: &Schedule,
        before: &mut Before,
        now: Millis,
    ) -> Result<bool, NotChanged> {
        if before.has_no_room {
            return Ok(false);
        }
        let Some(plan) = self.plan_before(old, now) else { return Ok(false) };
        match self.carry_out(plan, now).await? {
            Looked::Moved { .. } => before.decided += 1,
            Looked::Postponed => before.has_no_room = true,
            Looked::Stale | Looked::Early => before.tries += 1,
        }
        Ok(true)
    }

    /// Gives up due occurrences for which the store has no room, as the change counts from now.
    fn give_up(&self, of: &mut Schedule, before: &Before, now: Millis) -> Option<GivenUp> {
        if !before.has_no_room {
            return None;
        }
        let (when, progress) = (of.when(&self.zones)?, of.state.progress.awake(now));
        let missed = when.missed(progress.cursor, now)?;
        let last = *missed.newest.back()?;
        let given_up = GivenUp { due: missed.first.due, last_due: last.due, count: missed.count };
        of.state.progress = progress;
        of.state.progress.cursor = when.decided(&last);
        of.state.miss(given_up, now);
        Some(given_up)
    }

    /// Writes a new or changed schedule; `dry`: only checks it. `None`: the schedule has changed meanwhile.
    async fn write(
        &self,
        schedule: &Schedule,
        now: Millis,
        is_new: bool,
        dry: bool,
    ) -> Result<Option<ScheduleVersion>, NotChanged> {
        let mut schedule = schedule.clone();
        schedule.state.zones = self.zones.version().to_owned();
        let when = schedule.when(&self.zones);
        let (state, next) = (schedule.state_at(when.as_ref(), now), self.next_of(&schedule, now));
        let mut put = self.put(&schedule, state, next);
        (put.is_change, put.dry) = (true, dry);
        let expected = (!is_new).then_some(schedule.version);
        let step = ScheduleStep { id: schedule.id.clone(), expected, put };
        match self.store.step(step).await? {
            Stepped::Done { version, .. } => {
                self.changed.notify_one();
                Ok(Some(version))
            }
            Stepped::TooMany => Err(NotChanged::TooMany),
            Stepped::Stale | Stepped::TooEarly | Stepped::NotPlaced(_) | Stepped::Refused(_) => Ok(None),
        }
    }

    /// Deletes a schedule. Its jobs stay.
    pub async fn delete(&self, id: &ScheduleId, condition: &Condition) -> Result<(), NotChanged> {
        for _ in 0..TRIES {
            let (found, _) = self.find(id).await?;
            let Some(found) = found else { return Err(NotChanged::NotFound) };
            condition.check(Some(found.revision()))?;
            if self.store.delete(id, found.version()).await? {
                self.changed.notify_one();
                return Ok(());
            }
        }
        Err(Error::Overloaded.into())
    }

    /// Pauses a schedule, for `time` or until it is resumed. Returns the end of the pause.
    pub async fn pause(&self, id: &ScheduleId, time: Option<Millis>) -> Result<Option<Millis>, NotChanged> {
        let mut before = Before::default();
        while before.goes_on() {
            let (mut schedule, now) = self.get(id).await?;
            let until = time.map(|time| now.saturating_add(time));
            let paused = schedule.state.progress.paused.filter(|_| schedule.state.progress.is_paused(now));
            if paused.is_some_and(|paused| paused.until == until) {
                return Ok(until);
            }
            if paused.is_none() && self.decide_before(&schedule, &mut before, now).await? {
                continue;
            }
            let old = schedule.clone();
            let given_up = self.give_up(&mut schedule, &before, now);
            schedule.state.progress =
                schedule.state.progress.changed(&schedule.setting, &schedule.setting, now);
            schedule.state.progress = schedule.state.progress.pause(until);
            schedule.changed_at = now;
            if self.write(&schedule, now, false, false).await?.is_some() {
                self.tell_missed(&old, given_up);
                return Ok(until);
            }
            before.tries += 1;
        }
        Err(Error::Overloaded.into())
    }

    /// Ends the pause of a schedule, if there is one.
    pub async fn resume(&self, id: &ScheduleId) -> Result<(), NotChanged> {
        for _ in 0..TRIES {
            let (mut schedule, now) = self.get(id).await?;
            if !schedule.state.progress.is_paused(now) {
                return Ok(());
            }
            schedule.state.progress = schedule.state.progress.resume(now);
            schedule.changed_at = now;
            if self.write(&schedule, now, false, false).await?.is_some() {
                return Ok(());
            }
        }
        Err(Error::Overloaded.into())
    }

    /// Returns the time of the next check of a schedule, as a step without a decision writes it.
    pub fn next_of(&self, schedule: &Schedule, now: Millis) -> Option<Millis> {
        let when = schedule.when(&self.zones)?;
        match schedule::step(&schedule.id.name, &schedule.setting, &when, &schedule.state.progress, now) {
            Step::Wait(due) => Some(due),
            Step::Idle => None,
            Step::Do(_) => Some(now),
        }
    }
}
