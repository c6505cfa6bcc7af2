//! The task that places. It looks at what is due, does what is to be done of it, many at once, and looks again; when
//! nothing is due it sleeps until something is. The store answers a second at most where others may store schedules or
//! its time of day may be set.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

use super::core::Scheduler;
use super::place::{Looked, Plan};
use super::record::Schedule;
use crate::clock::Millis;
use crate::engine::{Cursor, DueList, DueSchedules, MAX_DUE, ScheduleState, StoredSchedule, together};
use crate::error::{Error, Result};
use crate::outage::Outage;
use crate::pump::timer::Timer;

/// The shortest time from one look to the next, unless more is due already.
const SHORTEST_PAUSE: Duration = Duration::from_millis(1);
/// After a failure it waits this long, and twice as long after each further one, up to `LONGEST_RETRY`.
const FIRST_RETRY: Duration = Duration::from_millis(50);
const LONGEST_RETRY: Duration = Duration::from_secs(1);
/// And after a look in which others were faster each time.
const STALE_PAUSE: Duration = Duration::from_millis(10);
/// From the end of a pass to the next one, as so many times as long as it took.
const PASS_PAUSE: u32 = 20;
/// Of so many it is remembered that they cannot be read.
const MOST_ASIDE: usize = 1000;
/// Where more is due than one look shows, what has become due within this time goes first.
const LATELY: Duration = Duration::from_secs(2);

/// Places until `stop`. Tells `outage` whether each step worked. Fails only with its timer.
pub async fn run(scheduler: Arc<Scheduler>, outage: Arc<Outage>, stop: CancellationToken) -> io::Result<()> {
    let mut timer = Timer::new()?;
    let mut retry: Option<Duration> = None;
    let mut pass = Pass::default();
    while !stop.is_cancelled() {
        let began = Instant::now();
        let mut looked = scheduler.look_and_pass(&mut pass).await;
        // The trouble of one shows when the others have nothing more to do.
        let failed = looked.as_mut().ok().and_then(|look| look.failed.take());
        let next = looked.as_ref().map_or(LONGEST_RETRY, |look| look.wait);
        let is_heard = looked.is_ok();
        let told = looked.map(drop).and(failed.map_or(Ok(()), Err));
        outage.report(&told);
        let wait = match told {
            Ok(()) => {
                retry = None;
                next
            }
            // It is tried again with what is due meanwhile.
            Err(_) => next.min(*retry.insert(retry.map_or(FIRST_RETRY, |last| LONGEST_RETRY.min(last * 2)))),
        };
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

/// A way through all schedules, whenever they are due: when those are looked at next that a server with an older zone
/// database has written is computed anew. One begins with the server, and one when such a server has taken steps.
#[derive(Debug, Default)]
struct Pass {
    /// There is one.
    goes_on: bool,
    /// Where it goes on.
    from: Option<Cursor>,
    began: Option<Instant>,
    /// No one begins before.
    next: Option<Instant>,
    /// How many steps older servers had taken when the last one began.
    seen: u64,
}

impl Pass {
    fn begins(&mut self, by_older: u64) -> bool {
        let is_wanted = self.began.is_none() || by_older != self.seen;
        if !self.goes_on && is_wanted && self.next.is_none_or(|next| next <= Instant::now()) {
            (self.goes_on, self.from, self.began, self.seen) = (true, None, Some(Instant::now()), by_older);
        }
        self.goes_on
    }

    fn end(&mut self) {
        let took = self.began.map_or(Duration::ZERO, |began| began.elapsed());
        (self.goes_on, self.next) = (false, Some(Instant::now() + took * PASS_PAUSE));
    }
}

/// What a look has found.
#[derive(Debug)]
struct Look {
    /// How long until something is due: zero when something may be already.
    wait: Duration,
    /// A step has failed, and no other was taken.
    failed: Option<Error>,
}

/// What became of all that was due.
#[derive(Debug, Default)]
struct Taken {
    moved: bool,
    /// Somebody else was faster, with one at least.
    stale: bool,
    /// How many cannot be read.
    unreadable: u64,
    failed: Option<Error>,
}

impl Taken {
    fn add(&mut self, looked: Result<Looked>) {
        match looked {
            Ok(Looked::Moved | Looked::Postponed) => self.moved = true,
            Ok(Looked::Stale) => self.stale = true,
            Ok(Looked::Early) => {}
            Err(error) => self.failed = Some(error),
        }
    }
}

impl Scheduler {
    /// A look, and a part of a pass.
    async fn look_and_pass(&self, pass: &mut Pass) -> Result<Look> {
        let look = self.take_due().await?;
        if look.failed.is_some() || !pass.begins(self.by_older.load(Ordering::Relaxed)) {
            return Ok(look);
        }
        let part = DueList::Ever { from: pass.from.clone(), limit: MAX_DUE };
        let all = self.engine.due_schedules(part).await?;
        let stale = all.schedules.iter().filter(|stored| stored.state == ScheduleState::On);
        let stale = stale.filter_map(|stored| {
            let schedule = Schedule::read(stored.clone()).ok()?;
            self.is_newer_than(&schedule.state).then(|| self.recompute(schedule, stored.next, all.now))
        });
        let plans: Vec<Plan> = stale.flatten().collect();
        for looked in together::all(plans.into_iter().map(|plan| self.carry_out(plan, all.now))).await {
            looked?;
        }
        pass.from = all.more;
        if pass.from.is_some() {
            return Ok(Look { wait: Duration::ZERO, failed: None });
        }
        pass.end();
        Ok(look)
    }

    /// Does what is due, up to a bound. Answers how long until something is: zero when something may be already.
    pub async fn look(&self) -> Result<Duration> {
        let Look { wait, failed } = self.take_due().await?;
        failed.map_or(Ok(wait), Err)
    }

    async fn take_due(&self) -> Result<Look> {
        let due = self.engine.due_schedules(DueList::Now(MAX_DUE)).await?;
        let mut taken = self.take_all(&due).await;
        self.tell(&due, taken.unreadable);
        if due.next.is_zero() {
            // A backlog: what is due now does not wait for it.
            let lately = self.engine.due_schedules(DueList::Within(MAX_DUE, LATELY)).await?;
            let more = self.take_all(&lately).await;
            taken.moved |= more.moved;
            taken.stale |= more.stale;
            taken.failed = taken.failed.or(more.failed);
        }
        // Somebody else may be about to take what this server leaves alone.
        let wait = match due.next {
            _ if taken.moved => Duration::ZERO,
            next if taken.stale => next.clamp(STALE_PAUSE, LONGEST_RETRY),
            Duration::ZERO => LONGEST_RETRY,
            next if due.schedules.is_empty() => next,
            next => next.min(LONGEST_RETRY),
        };
        Ok(Look { wait, failed: taken.failed.filter(|_| !taken.moved) })
    }

    /// Takes the steps of all that is due: first of what is in time.
    async fn take_all(&self, due: &DueSchedules) -> Taken {
        let mut taken = Taken::default();
        let (mut first, mut later): (Vec<Plan>, Vec<Plan>) = Default::default();
        for stored in &due.schedules {
            match Schedule::read(stored.clone()) {
                Ok(schedule) => match self.plan(schedule, stored.next, due.now) {
                    Some(plan) if plan.is_catching_up() => later.push(plan),
                    Some(plan) => first.push(plan),
                    None => {}
                },
                Err(error) => {
                    self.set_aside(stored, &error);
                    taken.unreadable += 1;
                }
            }
        }
        for plans in [first, later] {
            for looked in together::all(plans.into_iter().map(|plan| self.carry_out(plan, due.now))).await {
                taken.add(looked);
            }
        }
        taken
    }

    /// What cannot be read counts as broken, whatever its writer has told the store.
    fn tell(&self, due: &DueSchedules, unreadable: u64) {
        for (state, count) in ScheduleState::ALL.iter().zip(due.counts) {
            let count = match state {
                ScheduleState::On => count.saturating_sub(unreadable),
                ScheduleState::Broken => count + unreadable,
                _ => count,
            };
            self.metrics.schedules(state.as_str(), count);
        }
        let oldest: Option<Millis> = due.schedules.first().and_then(|first| first.next);
        self.hear(&due.by);
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
