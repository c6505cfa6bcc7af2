//! One check of a schedule. Its step publishes the job of a due occurrence, and then writes the history and the time of
//! the next check to the record. If a server dies in between, the next one repeats the publish, which has no effect.

use std::time::Duration;

use bytes::Bytes;

use super::backlog::TAKE_UP;
use super::core::Scheduler;
use super::record::{Pending, Schedule, entry_of};
use super::stored::{Landed, ScheduleId, SchedulePut, ScheduleState, ScheduleStep, ScheduleVersion, Stepped};
use crate::clock::Millis;
use crate::engine::{By, Detail, How, OnConflict, Once, OnceKind, Placed, Placing, Publication};
use crate::error::{Error, Result};
use crate::job::NewJob;
use crate::schedule::{self, Became, Decision, Entry, GivenUp, Overlap, Place, Step};

/// How long a due schedule is left to a server with the newer zone database that computed it.
const GRACE: Millis = 1000;
/// Delay before retrying a job that the store had no room for.
const TRY_AGAIN: Millis = 1000;

/// Result of checking a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Looked {
    /// A step was taken, and the schedule may be due again. Contains its new version and the result of its job.
    Moved { version: ScheduleVersion, landed: Option<Landed> },
    /// The store has no room for its job; it is retried soon.
    Postponed,
    /// The schedule has changed since it was read.
    Stale,
    /// The pool's clock was set back to before the due time.
    Early,
}

/// The next step of a schedule.
pub struct Plan {
    schedule: Schedule,
    put: SchedulePut,
    /// Missed occurrences that this step gives up.
    given_up: Option<GivenUp>,
    /// Whether this step records missed occurrences, given up or to be caught up.
    misses: bool,
    place: Option<Place>,
    /// Written instead of `put` if the store has no room for the job.
    unplaced: Option<Box<Schedule>>,
    owes: Owes,
}

/// Due time of the oldest occurrence that a schedule owes after a step.
#[derive(Clone, Copy, Debug, Default)]
pub struct Owes {
    pub after: Option<Millis>,
    /// The same if the store had no room for its job.
    pub unplaced: Option<Millis>,
}

impl Plan {
    /// Creates a plan without a decision.
    fn plain(schedule: Schedule, put: SchedulePut) -> Plan {
        let owes = Owes::default();
        Plan { schedule, put, given_up: None, misses: false, place: None, unplaced: None, owes }
    }

    pub fn id(&self) -> &ScheduleId {
        &self.schedule.id
    }

    pub fn owes(&self) -> Owes {
        self.owes
    }

    /// Returns the schedule and the progress to be written, if a backlog remains after this step.
    pub fn rest(&self) -> Option<Box<(Schedule, Bytes)>> {
        let rest = || Box::new((self.schedule.clone(), self.put.progress.clone()));
        self.owes.after.map(|_| rest())
    }

    /// Returns whether it places a missed occurrence.
    pub fn catches_up(&self) -> bool {
        self.place.is_some_and(|place| place.caught_up)
    }

    /// Returns whether other plans go first: it places a missed occurrence or none.
    pub fn is_catching_up(&self) -> bool {
        self.place.is_none_or(|place| place.caught_up)
    }

    /// Returns whether it decides about an occurrence whose due time or deadline has come.
    fn decides(&self) -> bool {
        self.misses || self.given_up.is_some() || !self.is_catching_up()
    }
}

impl Scheduler {
    /// Returns the step to take now. `next` is the stored time of the next check. `None`: nothing is due and the record
    /// is up to date, or a server with a newer zone database goes first.
    pub fn plan(&self, mut schedule: Schedule, next: Option<Millis>, now: Millis) -> Option<Plan> {
        let is_set_right = self.set_right(&mut schedule, now);
        let Some(when) = schedule.when(&self.zones) else {
            if self.is_older_than(&schedule.state) {
                return None; // the newer database has the zone
            }
            let put = self.put(&schedule, ScheduleState::Broken, None);
            return next.is_some().then_some(Plan::plain(schedule, put));
        };
        // A server with the newer zone database goes first.
        let is_older = self.is_older_than(&schedule.state);
        if is_older && next.is_some_and(|next| now < next + GRACE) {
            return None;
        }
        let (id, progress) = (schedule.id.clone(), schedule.state.progress.clone());
        let step = schedule::step(&id.name, &schedule.setting, &when, &progress, now);
        let Step::Do(Decision { missed, place, progress, unplaced, next }) = step else {
            let due = if let Step::Wait(due) = step { Some(due) } else { None };
            let state = schedule.state_at(Some(&when), now);
            // Another zone database computed another instant, or a pause has ended.
            if due == next && !is_set_right || is_older {
                return None;
            }
            schedule.state.zones = self.zones.version().to_owned();
            let put = self.put(&schedule, state, due);
            return Some(Plan::plain(schedule, put));
        };
        // An occurrence placed by a clock that ran ahead is not placed again.
        let place = place.filter(|place| !schedule.state.history.has_placed(place.occurrence.due));
        // A missed occurrence is decided first, and then given up or caught up.
        let misses = unplaced.cursor != schedule.state.progress.cursor;
        let mut after = schedule.clone();
        if missed.is_some() && after.state.trouble.is_none() {
            after.state.trouble = self.troubles.of(&schedule);
        }
        after.state.progress = unplaced;
        after.state.zones = self.zones.version().to_owned();
        if let Some(given_up) = missed {
            after.state.miss(given_up, now);
        }
        let unplaced = place.is_some().then(|| Box::new(after.clone()));
        after.state.progress = progress;
        after.state.pending = place.map(|Place { occurrence, caught_up }| Pending {
            due: occurrence.due,
            outcome: if caught_up { Became::CaughtUp } else { Became::Placed },
        });
        if place.is_some_and(|place| !place.caught_up) {
            (after.state.ailing, after.state.trouble) = (false, None);
        }
        let backlog = |of: &Schedule| of.state.progress.backlog.front().map(|oldest| oldest.due);
        let owed =
            |of: &Schedule| place.map(|place| place.occurrence.due).into_iter().chain(backlog(of)).min();
        let owes = Owes { after: backlog(&after), unplaced: unplaced.as_deref().and_then(owed) };
        // The server that catches up continues at once. For others it becomes due later.
        let again = owes.after.map(|_| now + TAKE_UP);
        let next = next.into_iter().chain(again).min();
        let state = after.state_at(Some(&when), now);
        let mut put = self.put(&after, state, next);
        if let Some(place) = place {
            put.job = Some(self.job_of(&schedule, &place));
            put.not_before = place.occurrence.due;
        }
        Some(Plan { schedule, put, given_up: missed, misses, place, unplaced, owes })
    }

    /// Recomputes the next check of a schedule that an older zone database computed, or that a clock which ran ahead
    /// decided. A due schedule is left to the tasks that process it.
    pub fn recompute(&self, mut schedule: Schedule, next: Option<Millis>, now: Millis) -> Option<Plan> {
        if next.is_some_and(|next| next <= now) {
            return None;
        }
        let is_set_right = self.set_right(&mut schedule, now);
        let due = self.next_of(&schedule, now);
        if !is_set_right && (due.is_some_and(|due| due <= now) || !self.is_newer_than(&schedule.state)) {
            return None;
        }
        if is_set_right {
            let (pool, id) = (&self.pool, &schedule.id);
            tracing::warn!(%pool, schedule = %id, "the clock ran ahead and was set right: the schedule goes on from now");
        }
        schedule.state.zones = self.zones.version().to_owned();
        let state = schedule.state_at(schedule.when(&self.zones).as_ref(), now);
        let put = self.put(&schedule, state, due);
        Some(Plan::plain(schedule, put))
    }

    /// Returns the step that must precede a change: due occurrences are placed at once, without waiting for their
    /// jitter.
    pub fn plan_before(&self, schedule: &Schedule, now: Millis) -> Option<Plan> {
        let mut hurried = schedule.clone();
        hurried.setting.deadline += std::mem::take(&mut hurried.setting.jitter);
        let plan = self.plan(hurried, None, now).filter(Plan::decides)?;
        Some(Plan { schedule: schedule.clone(), ..plan })
    }

    /// Carries out a plan. A job without room in the store is retried until its deadline; a job that the store rejects
    /// individually has failed.
    pub async fn carry_out(&self, plan: Plan, now: Millis) -> Result<Looked> {
        let Plan { schedule, put, given_up, place, unplaced, .. } = plan;
        let Some(place) = place else {
            let answer = self.step(&schedule, put).await.inspect_err(|error| self.note(&schedule, error))?;
            if let Stepped::Done { .. } = answer {
                self.tell_missed(&schedule, given_up);
            }
            return Ok(looked(&answer));
        };
        let why = match self.step(&schedule, put.clone()).await {
            Ok(answer @ Stepped::Done { landed: Some(landed), .. }) => {
                self.tell_missed(&schedule, given_up);
                let outcome = if place.caught_up { Became::CaughtUp } else { Became::Placed };
                let outcome = entry_of(place.occurrence.due, outcome, landed).outcome;
                self.count(outcome, 1);
                if !place.caught_up {
                    let due = place.occurrence.due
                        + schedule::jitter(&schedule.id.name, place.occurrence.due, schedule.setting.jitter);
                    self.metrics.late(Duration::from_millis(landed.at.saturating_sub(due)));
                    self.tell_well(&schedule, given_up.is_some());
                }
                return Ok(looked(&answer));
            }
            Ok(Stepped::NotPlaced(_)) => "a job has the key".to_owned(), // no occurrence uses `Fail`
            Ok(Stepped::Refused(why)) => match self.is_placed(&put).await? {
                Some(placed) => {
                    let landed = Some(Landed { at: now, placed });
                    return Ok(looked(
                        &self.step(&schedule, SchedulePut { landed, job: None, ..put }).await?,
                    ));
                }
                None => why,
            },
            Ok(answer) => return Ok(looked(&answer)),
            Err(error @ (Error::Full { .. } | Error::OverQuota(_) | Error::Refused(_))) => {
                let after = unplaced.unwrap_or_else(|| Box::new(schedule.clone()));
                return self.postpone(&schedule, *after, given_up, now, error.to_string()).await;
            }
            Err(error) => return Err(error),
        };
        let mut failed = schedule.clone();
        if let Ok(state) = serde_json::from_slice(&put.progress) {
            failed.state = state;
        }
        failed.state.pending = None;
        failed.state.ailing = true;
        let due = place.occurrence.due;
        let (at, outcome, why) = (now, Became::Failed, Some(why));
        failed.state.history.add(Entry {
            due,
            last_due: None,
            at,
            outcome,
            job_id: None,
            why,
            count: Some(1),
        });
        let put = SchedulePut { progress: failed.state.to_progress(), job: None, ..put };
        let answer = self.step(&schedule, put).await?;
        if let Stepped::Done { .. } = answer {
            self.tell_missed(&schedule, given_up);
            self.count(Became::Failed, 1);
            self.tell_ailing(&schedule, "failed");
        }
        Ok(looked(&answer))
    }

    /// Returns the stored job of this step, if a clock that ran ahead has placed it already.
    async fn is_placed(&self, put: &SchedulePut) -> Result<Option<Placed>> {
        let Some(Placing { job, .. }) = put.job.as_ref().and_then(|job| job.jobs.first()) else {
            return Ok(None);
        };
        let found = self.engine.inspect(&job.queue, By::Id(job.id), Detail::Stored).await?;
        Ok(found.map(|found| Placed { id: found.id, due_at: None, how: How::New }))
    }

    /// Schedules a retry and records the reason, with occurrences that were missed.
    async fn postpone(
        &self,
        schedule: &Schedule,
        mut after: Schedule,
        given_up: Option<GivenUp>,
        now: Millis,
        why: String,
    ) -> Result<Looked> {
        after.state.trouble = Some(why);
        let put = self.put(&after, ScheduleState::On, Some(now + TRY_AGAIN));
        let answer = self.step(schedule, put).await.inspect_err(|error| self.note(schedule, error))?;
        if let Stepped::Done { .. } = answer {
            self.tell_missed(schedule, given_up);
            return Ok(Looked::Postponed);
        }
        Ok(looked(&answer))
    }

    /// Remembers why a schedule's record could not be written.
    fn note(&self, schedule: &Schedule, error: &Error) {
        if matches!(error, Error::Full { .. } | Error::OverQuota(_) | Error::Refused(_)) {
            self.troubles.note(schedule, error.to_string());
        }
    }

    /// Returns the record that a step without a job writes.
    pub fn put(&self, schedule: &Schedule, state: ScheduleState, next: Option<Millis>) -> SchedulePut {
        SchedulePut {
            setting: schedule.to_setting(),
            is_change: false,
            state,
            next,
            progress: schedule.state.to_progress(),
            landed: None,
            bounds: self.bounds,
            job: None,
            not_before: 0,
            zones: self.zones.version().into(),
            dry: false,
        }
    }

    async fn step(&self, schedule: &Schedule, put: SchedulePut) -> Result<Stepped> {
        let (id, expected) = (schedule.id.clone(), Some(schedule.version));
        self.store.step(ScheduleStep { id, expected, put }).await
    }

    /// Returns the publication of an occurrence's job. Its id and idempotency key depend only on the schedule's name
    /// and the occurrence, so that a repeated publish stores no second job, even after a change of the setting.
    fn job_of(&self, schedule: &Schedule, Place { occurrence, caught_up }: &Place) -> Publication {
        let ScheduleId { namespace, name } = &schedule.id;
        let id = schedule::job_id(namespace, name, occurrence);
        let key = schedule::occurrence_key(name, id);
        let mut publication = self.publication(schedule, id, occurrence.due, *caught_up, OnConflict::Keep);
        publication.once = Some(Once { key, fingerprint: [0; 16], kind: OnceKind::Occurrence });
        for placing in &mut publication.jobs {
            placing.at = Some(occurrence.due);
        }
        publication
    }

    /// Returns the publication of a job that is ready at once. `skip` applies if another job holds its key, unless the
    /// schedule replaces that job.
    pub fn publication(
        &self,
        schedule: &Schedule,
        id: crate::job::JobId,
        due: Millis,
        caught_up: bool,
        skip: OnConflict,
    ) -> Publication {
        let setting = &schedule.setting;
        let on_conflict = if setting.overlap == Overlap::Replace { OnConflict::Replace } else { skip };
        let job = NewJob {
            queue: schedule.queue(),
            id,
            body: setting.body.bytes(),
            attributes: setting.job_attributes(&schedule.id.name, due, caught_up),
            ttl: setting.ttl,
            delay: Duration::ZERO,
            tries: setting.tries,
        };
        let key = setting.key.clone().map(|key| (key, on_conflict));
        Publication { jobs: vec![Placing { job, at: None, key }], replaces: None, once: None }
    }

    pub fn tell_missed(&self, schedule: &Schedule, given_up: Option<GivenUp>) {
        let Some(GivenUp { count, .. }) = given_up else { return };
        self.count(Became::Missed, u64::from(count.unwrap_or(schedule::MOST_COUNTED)));
        self.tell_ailing(schedule, "missed");
    }

    /// Logs one line when occurrences begin to be missed or to fail.
    fn tell_ailing(&self, schedule: &Schedule, what: &str) {
        if !schedule.state.ailing {
            let (pool, id, why) = (&self.pool, &schedule.id, schedule.state.trouble.as_deref());
            tracing::warn!(%pool, schedule = %id, why, "occurrences of a schedule are {what}");
        }
    }

    /// Logs one line when a schedule has recovered.
    fn tell_well(&self, schedule: &Schedule, just_missed: bool) {
        if schedule.state.ailing || just_missed {
            tracing::info!(pool = %self.pool, schedule = %schedule.id, "a schedule is placed in time again");
        }
    }

    fn count(&self, outcome: Became, by: u64) {
        self.metrics.occurrences(outcome.as_str(), by);
    }
}

fn looked(answer: &Stepped) -> Looked {
    match answer {
        Stepped::TooEarly => Looked::Early,
        Stepped::Done { version, landed } => Looked::Moved { version: *version, landed: *landed },
        _ => Looked::Stale,
    }
}
