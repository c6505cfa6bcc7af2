//! What requests ask for: a schedule is set, deleted, paused, resumed, run. Each is one step of the store that compares
//! what was read; when somebody else was faster it is read again.

use std::collections::BTreeMap;
use std::time::Duration;

use super::core::Scheduler;
use super::place::Looked;
use super::record::{Pending, Schedule, entry_of};
use crate::clock::Millis;
use crate::engine::{
    DueList, Landed, MAX_LISTED, NewId, OnConflict, Once, Published, ScheduleId, ScheduleList, ScheduleState,
    ScheduleStep, ScheduleThen, ScheduleVersion, Stepped,
};
use crate::error::{Error, Result};
use crate::job::{JobId, JobIds};
use crate::name::{Namespace, ScheduleName};
use crate::schedule::{self, Given, GivenUp, Outcome, Overlap, Step};

/// How often a change is tried again that met another one.
const TRIES: usize = 16;
/// How many occurrences a change decides before it: beyond that the placer is waited for.
const MOST_BEFORE: usize = 1000;

/// What must hold for a change to be done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Condition {
    pub matches: Option<Matches>,
    /// This is in force.
    pub revision: Option<u64>,
    /// There is no such schedule.
    pub is_new: bool,
}

/// Which revision must be in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Matches {
    Any,
    /// One of these.
    These(Vec<u64>),
}

/// Whether a change is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Run {
    Real,
    /// Nothing is written: the store says what would be.
    Dry,
    /// The same, and the store is not asked for its bounds. The revision is the one before.
    Unasked,
}

/// What a change has done, or would do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Changed {
    Created,
    Changed,
    Unchanged,
}

/// Why a change was not done.
#[derive(Debug)]
pub enum NotChanged {
    /// The condition does not hold: the revision that is in force.
    Condition(Option<u64>),
    NotFound,
    TooMany,
    /// None may be made at all.
    Forbidden,
    /// It was moved to another pool.
    Moved,
    Store(Error),
}

impl From<Error> for NotChanged {
    fn from(error: Error) -> NotChanged {
        NotChanged::Store(error)
    }
}

/// A job that somebody asked for.
#[derive(Clone, Debug)]
pub struct Runs<'a> {
    pub ids: &'a JobIds,
    /// The due time to show, in place of now.
    pub at: Option<Millis>,
    /// Makes it safe to repeat.
    pub once: Option<Once>,
}

/// What became of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ran {
    Placed {
        id: JobId,
        due_at: Option<Millis>,
        replayed: bool,
    },
    /// This job lives.
    Lives(JobId),
    /// Another request has used the key.
    Mismatch,
}

impl Condition {
    /// Whether it holds of what is in force.
    fn check(&self, revision: Option<u64>) -> Result<(), NotChanged> {
        let matches = match &self.matches {
            None => true,
            Some(Matches::Any) => revision.is_some(),
            Some(Matches::These(told)) => revision.is_some_and(|revision| told.contains(&revision)),
        };
        let matches = matches && (self.revision.is_none() || self.revision == revision);
        if matches && !(self.is_new && revision.is_some()) {
            Ok(())
        } else {
            Err(NotChanged::Condition(revision))
        }
    }
}

/// A part of a namespace's schedules.
#[derive(Debug)]
pub struct Page {
    /// The store's time of day.
    pub now: Millis,
    pub schedules: Vec<Schedule>,
    /// Behind which name it goes on.
    pub next: Option<ScheduleName>,
}

/// A change that is to be written.
struct Change {
    schedule: Schedule,
    what: Changed,
}

/// How far a change has come with what was due before it.
#[derive(Debug, Default)]
struct Before {
    /// How many occurrences it has decided.
    decided: usize,
    /// The store has no room for the job of one.
    has_no_room: bool,
    /// How often somebody else was faster.
    tries: usize,
}

impl Before {
    fn goes_on(&self) -> bool {
        self.tries < TRIES && self.decided < MOST_BEFORE
    }
}

/// Whether a change has another time, or begins a pause: what is due is decided before.
fn decides_before(old: &Schedule, given: &Given, now: Millis) -> bool {
    let pauses = given.paused == Some(true) && !old.state.progress.is_paused(now);
    pauses || given.setting.moves(&old.setting)
}

impl Scheduler {
    /// A schedule, and the store's time of day.
    pub async fn get(&self, id: &ScheduleId) -> Result<(Schedule, Millis), NotChanged> {
        let (found, now) = self.find(id).await?;
        Ok((found.ok_or(NotChanged::NotFound)?, now))
    }

    /// Schedules of a namespace whose names begin with `prefix`, behind `after`. One that has moved is left out.
    pub async fn page(
        &self,
        namespace: &Namespace,
        prefix: &str,
        after: Option<ScheduleName>,
        limit: usize,
        bodies: bool,
    ) -> Result<Page> {
        let list = ScheduleList::Page { prefix: prefix.to_owned(), after, limit, bodies };
        let page = self.engine.list_schedules(namespace, list).await?;
        let there = page.schedules.into_iter().filter(|stored| stored.state != ScheduleState::Moved);
        let schedules = there.map(Schedule::read).collect::<Result<_>>()?;
        Ok(Page { now: page.now, schedules, next: page.next })
    }

    /// How many more schedules the pool takes.
    pub async fn room(&self) -> Result<u64> {
        let there: u64 = self.engine.due_schedules(DueList::Now(1)).await?.counts.iter().sum();
        Ok(self.bounds.of_pool.saturating_sub(there))
    }

    /// The names of a namespace's schedules, and their revisions.
    pub async fn names(&self, namespace: &Namespace) -> Result<BTreeMap<ScheduleName, u64>> {
        let (mut all, mut after) = (BTreeMap::new(), None);
        loop {
            let list = ScheduleList::Page { prefix: String::new(), after, limit: MAX_LISTED, bodies: false };
            let page = self.engine.list_schedules(namespace, list).await?;
            let there = page.schedules.into_iter().filter(|stored| stored.state != ScheduleState::Moved);
            all.extend(there.map(|stored| (stored.id.name, stored.version.revision)));
            after = page.next;
            if after.is_none() {
                return Ok(all);
            }
        }
    }

    /// The same of one that may not be there.
    async fn find(&self, id: &ScheduleId) -> Result<(Option<Schedule>, Millis), NotChanged> {
        let list = ScheduleList::One(id.name.clone());
        let page = self.engine.list_schedules(&id.namespace, list).await?;
        let Some(stored) = page.schedules.into_iter().next() else { return Ok((None, page.now)) };
        if stored.state == ScheduleState::Moved {
            return Err(NotChanged::Moved);
        }
        Ok((Some(Schedule::read(stored)?), page.now))
    }

    /// Sets a schedule, or answers what would be.
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
            let (mut found, now) = self.find(id).await?;
            condition.check(found.as_ref().map(|found| found.version.revision))?;
            let mut given_up = None;
            if run == Run::Real
                && let Some(found) = &mut found
                && decides_before(found, given, now)
            {
                if self.decide_before(found, &mut before, now).await? {
                    continue;
                }
                given_up = self.give_up(found, &before, now);
            }
            let old = found.clone();
            let Change { mut schedule, what } = self.changed_to(id, found, given, now);
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

    /// What a schedule becomes.
    fn changed_to(&self, id: &ScheduleId, found: Option<Schedule>, given: &Given, now: Millis) -> Change {
        let Some(old) = found else {
            let mut schedule = Schedule::new(id.clone(), given.setting.clone(), now, &self.zones);
            if given.paused == Some(true) {
                schedule.state.progress = schedule.state.progress.pause(None);
            }
            return Change { schedule, what: Changed::Created };
        };
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

    /// What was due before a change is the old setting's: it is decided first. Answers whether it must be read again.
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
            Looked::Moved => before.decided += 1,
            Looked::Postponed => before.has_no_room = true,
            Looked::Stale | Looked::Early => before.tries += 1,
        }
        Ok(true)
    }

    /// What is due, and the store has no room for, is missed by a change that counts from now.
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

    /// Writes a schedule whose setting is another one, or that is new, or asks what would become of that. `None`: somebody
    /// else was faster.
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
        (put.setting, put.dry) = (Some(schedule.to_setting()), dry);
        let expected = (!is_new).then_some(schedule.version);
        let then = ScheduleThen::Put(Box::new(put));
        let step = ScheduleStep { id: schedule.id.clone(), expected, then };
        match self.engine.step_schedule(step).await? {
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
            condition.check(Some(found.version.revision))?;
            let step =
                ScheduleStep { id: id.clone(), expected: Some(found.version), then: ScheduleThen::Delete };
            if let Stepped::Done { .. } = self.engine.step_schedule(step).await? {
                self.changed.notify_one();
                return Ok(());
            }
        }
        Err(Error::Overloaded.into())
    }

    /// Pauses a schedule, until then or until it is resumed. Answers until when.
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

    /// Places one job now, and moves nothing.
    pub async fn run(&self, id: &ScheduleId, runs: Runs<'_>) -> Result<Ran, NotChanged> {
        for _ in 0..TRIES {
            let (mut schedule, now) = self.get(id).await?;
            let due = runs.at.unwrap_or(now);
            let queue = schedule.queue();
            if let Some(once) = &runs.once
                && let Some(done) = self.engine.recall(&queue, once).await?
            {
                return Ok(ran(done));
            }
            let of = NewId {
                queue: &queue,
                delay: Duration::ZERO,
                bytes: schedule.setting.body.bytes().len(),
                versioned: true,
            };
            let job_id = self.engine.make_id(runs.ids, of);
            let on_conflict = match schedule.setting.overlap {
                Overlap::Skip => OnConflict::Fail,
                Overlap::Allow | Overlap::Replace => OnConflict::Keep,
            };
            let mut job = self.publication(&schedule, job_id, due, false, on_conflict);
            job.once = runs.once.clone();
            schedule.state.pending = Some(Pending { due, outcome: Outcome::Run });
            schedule.state.zones = self.zones.version().to_owned();
            let when = schedule.when(&self.zones);
            let state = schedule.state_at(when.as_ref(), now);
            let mut put = self.put(&schedule, state, self.next_of(&schedule, now));
            put.job = Some(job);
            let then = ScheduleThen::Put(Box::new(put));
            let step = ScheduleStep { id: id.clone(), expected: Some(schedule.version), then };
            match self.engine.step_schedule(step).await? {
                Stepped::Done { landed: Some(Landed { placed, at }), .. } => {
                    let outcome = entry_of(due, Outcome::Run, Landed { placed, at }).outcome;
                    self.metrics.occurrences(outcome.as_str(), 1);
                    self.changed.notify_one();
                    return Ok(Ran::Placed { id: placed.id, due_at: placed.due_at, replayed: false });
                }
                Stepped::NotPlaced(published) => return Ok(ran(published)),
                Stepped::Refused(why) => return Err(Error::refused(why).into()),
                _ => {}
            }
        }
        Err(Error::Overloaded.into())
    }

    /// When a schedule is to be looked at next, as a step without a decision writes it.
    pub fn next_of(&self, schedule: &Schedule, now: Millis) -> Option<Millis> {
        let when = schedule.when(&self.zones)?;
        match schedule::step(&schedule.id.name, &schedule.setting, &when, &schedule.state.progress, now) {
            Step::Wait(due) => Some(due),
            Step::Idle => None,
            Step::Do(_) => Some(now),
        }
    }
}

/// What an earlier request did, or why this one did nothing.
fn ran(published: Published) -> Ran {
    match published {
        Published::Replay(placed) | Published::Done(placed) => match placed.first() {
            Some(placed) => Ran::Placed { id: placed.id, due_at: placed.due_at, replayed: true },
            None => Ran::Mismatch,
        },
        Published::Conflict { id, .. } => Ran::Lives(id),
        Published::Mismatch => Ran::Mismatch,
    }
}
