//! The task that places what is due now. It looks at what is due, does it, many at once, and looks again; when nothing is
//! due it sleeps until something is. The store answers a second at most where others may store schedules or its time of
//! day may be set. What has been due for longer, and what is caught up, is left to the task in `late`: however much that
//! is, nothing here waits for it.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::runtime::{Handle, RuntimeFlavor};
use tokio_util::sync::CancellationToken;

use super::core::Scheduler;
use super::place::{Looked, Plan};
use super::record::Schedule;
use super::store::{DueList, DueSchedules};
use super::stored::{ScheduleState, StoredSchedule};
use crate::clock::Millis;
use crate::engine::together;
use crate::error::{Error, Result};
use crate::outage::Outage;
use crate::pump::timer::Timer;

/// The shortest time from one look to the next, unless more is due already.
const SHORTEST_PAUSE: Duration = Duration::from_millis(1);
/// After a failure a task waits this long, and twice as long after each further one, up to `LONGEST_RETRY`.
const FIRST_RETRY: Duration = Duration::from_millis(50);
pub(super) const LONGEST_RETRY: Duration = Duration::from_secs(1);
/// And after a look in which others were faster each time.
pub(super) const STALE_PAUSE: Duration = Duration::from_millis(10);
/// The most schedules that are read at a time.
pub(super) const MAX_DUE: usize = 256;
/// Of so many it is remembered that they cannot be read.
const MOST_ASIDE: usize = 1000;
/// What has become due within the first of these times is due now. Where one look shows not all of that, what has become
/// due within the next one is looked at too: what waits for the other task hides nothing.
const LATELY: [Duration; 3] = [Duration::from_secs(120), Duration::from_secs(2), Duration::from_millis(100)];

/// Places until `stop`. Tells `outage` whether each step worked. Fails only with its timer.
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

/// How long a task waits after looks that fail.
#[derive(Debug, Default)]
pub struct Retry(Option<Duration>);

impl Retry {
    /// Tells `outage` what came of a look. Answers how long to wait until the next one.
    pub fn wait(&mut self, mut looked: Result<Look>, outage: &Outage) -> Duration {
        // The trouble of one shows when the others have nothing more to do.
        let failed = looked.as_mut().ok().and_then(|look| look.failed.take());
        let next = looked.as_ref().map_or(LONGEST_RETRY, |look| look.wait);
        let told = looked.map(drop).and(failed.map_or(Ok(()), Err));
        outage.report(&told);
        match told {
            Ok(()) => {
                self.0 = None;
                next
            }
            // It is tried again with what is due meanwhile.
            Err(_) => {
                next.min(*self.0.insert(self.0.map_or(FIRST_RETRY, |last| LONGEST_RETRY.min(last * 2))))
            }
        }
    }
}

/// What a look has found.
#[derive(Debug)]
pub struct Look {
    /// How long until something is due: zero when something may be already.
    pub wait: Duration,
    /// A step has failed, and no other was taken.
    pub failed: Option<Error>,
}

/// What became of all that was due.
#[derive(Debug, Default)]
pub struct Taken {
    pub moved: bool,
    /// Somebody else was faster, with one at least.
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
    /// Does what is due, up to a bound, and what is late, up to another one. Answers how long until something is due: zero
    /// when something may be already.
    pub async fn look(&self) -> Result<Duration> {
        let now = self.look_now().await?;
        let late = self.look_late().await?;
        now.failed.or(late.failed).map_or(Ok(now.wait.min(late.wait)), Err)
    }

    /// Does what is due now, up to a bound.
    pub(super) async fn look_now(&self) -> Result<Look> {
        let [lately, more @ ..] = LATELY;
        // While something is late the other task reads all that is due, and tells of it.
        let is_read = self.late.is_busy();
        let mut due = match is_read {
            true => self.store.due(DueList::Within(MAX_DUE, lately)).await?,
            false => self.store.due(DueList::Now(MAX_DUE)).await?,
        };
        self.hear_time(due.now);
        if due.schedules.iter().any(|stored| is_late(stored, due.now)) {
            self.late.wake();
            match due.next.is_zero() {
                true => due = self.store.due(DueList::Within(MAX_DUE, lately)).await?,
                false => due.schedules.retain(|stored| !is_late(stored, due.now)),
            }
        }
        let mut taken = Taken::default();
        let unreadable = self.take_now(&due, &mut taken).await;
        if !is_read && !self.late.is_busy() {
            self.tell(&due, unreadable);
        }
        for time in more {
            if due.next.is_zero() {
                due = self.store.due(DueList::Within(MAX_DUE, time)).await?;
                self.take_now(&due, &mut taken).await;
            }
        }
        // Somebody else may be about to take what this server leaves alone.
        let wait = match due.next {
            _ if taken.moved => Duration::ZERO,
            next if taken.stale => next.clamp(STALE_PAUSE, LONGEST_RETRY),
            Duration::ZERO => LONGEST_RETRY,
            next if due.schedules.is_empty() && !self.late.is_busy() => next,
            next => next.min(LONGEST_RETRY),
        };
        Ok(Look { wait, failed: taken.failed.filter(|_| !taken.moved) })
    }

    /// Takes the steps of what is due now; what is caught up is left to the other task. Answers how many cannot be read.
    async fn take_now(&self, due: &DueSchedules, taken: &mut Taken) -> u64 {
        let (plans, unreadable) = self.plans(&due.schedules, due.now);
        let (catches_up, now): (Vec<Plan>, Vec<Plan>) = plans.into_iter().partition(Plan::catches_up);
        if !catches_up.is_empty() {
            self.late.wake();
        }
        for looked in together::all(now.into_iter().map(|plan| self.go_on(plan, due.now))).await {
            taken.add(looked);
        }
        unreadable
    }

    /// What is to be done of these, and how many cannot be read.
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

    /// Tells of all that is due. What cannot be read counts as broken, whatever its writer has told the store.
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
        let first = due.schedules.first().and_then(|first| first.next);
        let oldest = first.into_iter().chain(self.late.oldest_owed()).min();
        let age = oldest.map_or(0, |oldest| due.now.saturating_sub(oldest));
        self.metrics.oldest_owed(Duration::from_millis(age));
    }

    /// A schedule that cannot be read is left to servers that can: one that is newer may have written it. Logged once.
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

/// Whether it has been due for longer than what is done at once.
pub(super) fn is_late(stored: &StoredSchedule, now: Millis) -> bool {
    stored.next.is_some_and(|next| next < now.saturating_sub(LATELY[0].as_millis() as Millis))
}

/// Does what may take long where no other task waits for it.
pub(super) fn apart<T>(work: impl FnOnce() -> T) -> T {
    match Handle::current().runtime_flavor() {
        RuntimeFlavor::MultiThread => tokio::task::block_in_place(work),
        _ => work(),
    }
}
