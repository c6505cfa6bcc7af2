//! The task that places occurrences that are due now. It lists due schedules, reads and processes them in concurrent
//! parts, and repeats; when none is due it sleeps until the next one or a change by this process, but not longer than
//! the interval at which it reads other servers' changes. Occurrences that have been due for longer, and backlogs, are
//! left to the task in `late`, so that they never delay this task.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::runtime::{Handle, RuntimeFlavor};
use tokio_util::sync::CancellationToken;

use super::core::Scheduler;
use super::place::{Looked, Plan};
use super::record::Schedule;
use super::store::{DueList, DueSchedules};
use super::stored::{ScheduleId, ScheduleState, StoredSchedule};
use crate::clock::Millis;
use crate::engine::together;
use crate::error::{Error, Result};
use crate::outage::Outage;
use crate::pump::timer::Timer;
use crate::settings::MAX_SCAN;

/// Minimum time between two checks, unless more is due already.
const SHORTEST_PAUSE: Duration = Duration::from_millis(1);
/// Delay after a failure; it doubles with each further one, up to `LONGEST_RETRY`.
const FIRST_RETRY: Duration = Duration::from_millis(50);
pub(super) const LONGEST_RETRY: Duration = Duration::from_secs(1);
/// Delay after a check that met a conflict and took no step.
pub(super) const STALE_PAUSE: Duration = Duration::from_millis(10);
/// Maximum number of schedules read at a time.
pub(super) const MAX_DUE: usize = MAX_SCAN;
/// Number of schedules that are read, planned and written together. Meanwhile the store works on other parts.
const PART: usize = MAX_DUE / 4;
/// Maximum number of unreadable schedules to remember.
const MOST_ASIDE: usize = 1000;
/// Schedules that became due within the first of these times are due now. If a check does not reach all of them, those
/// that became due within the next time are read too, so that schedules left to the other task hide no newer ones.
const LATELY: [Duration; 3] = [Duration::from_secs(120), Duration::from_secs(2), Duration::from_millis(100)];

/// Places occurrences until `stop`, and reports each result to `outage`. Fails only if its timer fails.
pub async fn run(scheduler: Arc<Scheduler>, outage: Arc<Outage>, stop: CancellationToken) -> io::Result<()> {
    let mut timer = Timer::new()?;
    let mut retry = Retry::default();
    while !stop.is_cancelled() {
        let began = Instant::now();
        let looked = scheduler.look_now().await;
        let is_heard = looked.is_ok();
        let wait = retry.wait(looked, &outage);
        if wait.is_zero() {
            tokio::task::yield_now().await;
            continue;
        }
        let wait = wait.max(SHORTEST_PAUSE.saturating_sub(began.elapsed()));
        tokio::select! {
            biased;
            () = stop.cancelled() => return Ok(()),
            () = scheduler.changed.notified(), if is_heard => {}
            slept = timer.sleep(wait) => slept?,
        }
    }
    Ok(())
}

/// Back-off of a task after failed checks.
#[derive(Debug, Default)]
pub struct Retry(Option<Duration>);

impl Retry {
    /// Reports the result of a check to `outage`. Returns the delay until the next one.
    pub fn wait(&mut self, mut looked: Result<Look>, outage: &Outage) -> Duration {
        // A failed step is reported only when no other step was taken.
        let failed = looked.as_mut().ok().and_then(|look| look.failed.take());
        let next = looked.as_ref().map_or(LONGEST_RETRY, |look| look.wait);
        let told = looked.map(drop).and(failed.map_or(Ok(()), Err));
        outage.report(&told);
        match told {
            Ok(()) => {
                self.0 = None;
                next
            }
            // The retry includes schedules that become due meanwhile.
            Err(_) => {
                next.min(*self.0.insert(self.0.map_or(FIRST_RETRY, |last| LONGEST_RETRY.min(last * 2))))
            }
        }
    }
}

/// Result of a check.
#[derive(Debug)]
pub struct Look {
    /// Time until something is due: zero if something may be due already.
    pub wait: Duration,
    /// Error of a step, if no other step was taken.
    pub failed: Option<Error>,
}

/// Results of the steps of a check.
#[derive(Debug, Default)]
pub struct Taken {
    pub moved: bool,
    /// At least one schedule has changed since it was read.
    pub stale: bool,
    pub failed: Option<Error>,
}

impl Taken {
    pub fn add(&mut self, looked: Result<Looked>) {
        match looked {
            Ok(Looked::Moved { .. } | Looked::Postponed) => self.moved = true,
            Ok(Looked::Stale) => self.stale = true,
            Ok(Looked::Early) => {}
            Err(error) => self.failed = Some(error),
        }
    }
}

impl Scheduler {
    /// Processes due and late schedules, up to a bound each. Returns the time until something is due: zero if something
    /// may be due already.
    pub async fn look(&self) -> Result<Duration> {
        let now = self.look_now().await?;
        let late = self.look_late().await?;
        now.failed.or(late.failed).map_or(Ok(now.wait.min(late.wait)), Err)
    }

    /// Processes schedules that are due now, up to a bound.
    pub(super) async fn look_now(&self) -> Result<Look> {
        let [lately, more @ ..] = LATELY;
        // While something is late the other task reads all due schedules and updates the metrics.
        let is_read = self.late.is_busy();
        let mut due = match is_read {
            true => self.store.due(DueList::Within(MAX_DUE, lately)).await?,
            false => self.store.due(DueList::Now(MAX_DUE)).await?,
        };
        self.hear_time(due.now);
        if due.schedules.iter().any(|(next, _)| is_late(*next, due.now)) {
            self.late.wake();
            match due.next.is_zero() {
                true => due = self.store.due(DueList::Within(MAX_DUE, lately)).await?,
                false => due.schedules.retain(|(next, _)| !is_late(*next, due.now)),
            }
        }
        let mut taken = Taken::default();
        let unreadable = self.take_now(&due, &mut taken).await?;
        if !is_read && !self.late.is_busy() {
            self.tell(&due, unreadable);
        }
        for time in more {
            if due.next.is_zero() {
                due = self.store.due(DueList::Within(MAX_DUE, time)).await?;
                self.take_now(&due, &mut taken).await?;
            }
        }
        // Another server may be about to process schedules that this server cannot.
        let wait = match due.next {
            _ if taken.moved => Duration::ZERO,
            next if taken.stale => next.clamp(STALE_PAUSE, LONGEST_RETRY),
            Duration::ZERO => LONGEST_RETRY,
            next if due.schedules.is_empty() && !self.late.is_busy() => next,
            next => next.min(LONGEST_RETRY),
        };
        Ok(Look { wait, failed: taken.failed.filter(|_| !taken.moved) })
    }

    /// Takes the steps of schedules that are due now; catching up is left to the other task. Returns the number of
    /// unreadable ones.
    async fn take_now(&self, due: &DueSchedules, taken: &mut Taken) -> Result<u64> {
        let parts = due.schedules.chunks(PART).map(|part| self.take_part(part));
        let mut unreadable = 0;
        for (looked, of_part) in together::try_all(parts).await? {
            looked.into_iter().for_each(|looked| taken.add(looked));
            unreadable += of_part;
        }
        Ok(unreadable)
    }

    /// Takes the steps of some schedules. Returns the results, and the number of unreadable schedules.
    async fn take_part(&self, part: &[(Millis, ScheduleId)]) -> Result<(Vec<Result<Looked>>, u64)> {
        let now = self.store.now();
        let (plans, unreadable) = self.plans(&self.store.read_due(part, now).await?, now);
        let (catches_up, plans): (Vec<Plan>, Vec<Plan>) = plans.into_iter().partition(Plan::catches_up);
        if !catches_up.is_empty() {
            self.late.wake();
        }
        Ok((together::all(plans.into_iter().map(|plan| self.go_on(plan, now))).await, unreadable))
    }

    /// Returns the plans of these schedules, and the number of unreadable ones.
    pub(super) fn plans(&self, due: &[StoredSchedule], now: Millis) -> (Vec<Plan>, u64) {
        let (mut plans, mut unreadable) = (Vec::new(), 0);
        for stored in due {
            match Schedule::read(stored.clone()) {
                Ok(schedule) => plans.extend(self.plan(schedule, stored.next, now)),
                Err(error) => {
                    self.set_aside(stored, &error);
                    unreadable += 1;
                }
            }
        }
        (plans, unreadable)
    }

    /// Updates the metrics from all due schedules. Unreadable ones count as broken, regardless of their stored state.
    pub(super) fn tell(&self, due: &DueSchedules, unreadable: u64) {
        for (state, count) in ScheduleState::ALL.iter().zip(due.counts) {
            let count = match state {
                ScheduleState::On => count.saturating_sub(unreadable),
                ScheduleState::Broken => count + unreadable,
                _ => count,
            };
            self.metrics.schedules(state.as_str(), count);
        }
        self.hear(&due.by_zones);
        let first = due.schedules.first().map(|(next, _)| *next);
        let oldest = first.into_iter().chain(self.late.oldest_owed()).min();
        let age = oldest.map_or(0, |oldest| due.now.saturating_sub(oldest));
        self.metrics.oldest_owed(Duration::from_millis(age));
    }

    /// Leaves a schedule that this server cannot read to others: a newer one may have written it. Logs it once.
    fn set_aside(&self, stored: &StoredSchedule, error: &Error) {
        let mut aside = self.aside.lock();
        if aside.len() >= MOST_ASIDE {
            aside.clear();
        }
        let revision = stored.version.revision;
        if aside.insert(stored.id.clone(), revision) != Some(revision) {
            tracing::error!(pool = %self.pool, %error, "a schedule cannot be read and this server places nothing of it");
        }
    }
}

/// Returns whether a schedule has been due for too long to be processed as due now.
pub(super) fn is_late(next: Millis, now: Millis) -> bool {
    next < now.saturating_sub(LATELY[0].as_millis() as Millis)
}

/// Runs work that may take long without blocking other tasks.
pub(super) fn apart<T>(work: impl FnOnce() -> T) -> T {
    match Handle::current().runtime_flavor() {
        RuntimeFlavor::MultiThread => tokio::task::block_in_place(work),
        _ => work(),
    }
}
