//! The task for late occurrences: schedules due for more than two minutes, as after an outage, and those being caught
//! up. It may need many steps or wait for a slow store without delaying the task for occurrences due now (`task`).
//! It also performs the walk through all schedules (`walk`).

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::core::Scheduler;
use super::place::{Looked, Plan};
use super::store::DueList;
use super::stored::StoredSchedule;
use super::task::{LONGEST_RETRY, Look, MAX_DUE, Retry, STALE_PAUSE, Taken, apart, is_late};
use super::walk::Walk;
use crate::clock::Millis;
use crate::engine::together;
use crate::error::Result;
use crate::outage::Outage;

/// Maximum number of concurrent steps: other publishes wait for no more than these.
const AT_A_TIME: usize = 64;
/// Number of schedules to plan before yielding the processor.
const PLANNED_AT_ONCE: usize = 16;

/// Processes late schedules until `stop`, and reports each result to `outage`.
pub async fn catch_up(scheduler: Arc<Scheduler>, outage: Arc<Outage>, stop: CancellationToken) {
    let (mut retry, mut walk) = (Retry::default(), Walk::default());
    while !stop.is_cancelled() {
        let woken_times = scheduler.late.woken_times();
        let looked = scheduler.look_late_and_walk(&mut walk).await;
        let wait = retry.wait(looked, &outage);
        // With work left it waits for its own retry; otherwise any wake-up since the check ends the wait.
        let rests = scheduler.late.has_done(woken_times);
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            () = scheduler.late.woken(), if rests => {}
            () = sleep(wait) => {}
        }
    }
}

impl Scheduler {
    async fn look_late_and_walk(&self, walk: &mut Walk) -> Result<Look> {
        let look = match self.late.is_busy() {
            true => self.look_late().await?,
            false => Look { wait: Duration::MAX, failed: None },
        };
        if look.failed.is_some() {
            return Ok(look);
        }
        let next = self.walk(walk).await?;
        Ok(Look { wait: look.wait.min(next), ..look })
    }

    /// Processes late schedules, up to a bound: one step of each. Continues backlogs once no other schedule is late.
    pub(super) async fn look_late(&self) -> Result<Look> {
        let woken_times = self.late.woken_times();
        let due = self.store.due(DueList::Now(MAX_DUE)).await?;
        let schedules = self.store.read_due(&due.schedules, due.now).await?;
        let is_overdue = |stored: &StoredSchedule| stored.next.is_some_and(|next| is_late(next, due.now));
        let is_left = schedules.iter().any(is_overdue);
        let (mut taken, mut unreadable) = (Taken::default(), 0);
        for some in schedules.chunks(PLANNED_AT_ONCE) {
            let (late, recent): (Vec<_>, Vec<_>) = some.iter().cloned().partition(is_overdue);
            let (late, recent) = apart(|| (self.plans(&late, due.now), self.plans(&recent, due.now)));
            unreadable += late.1 + recent.1;
            // Other recent occurrences are left to the other task.
            let plans = late.0.into_iter().chain(recent.0.into_iter().filter(Plan::catches_up));
            // Occurrences within their deadline go first.
            let (later, first): (Vec<Plan>, Vec<Plan>) = plans.partition(Plan::is_catching_up);
            self.take(first, due.now, &mut taken).await;
            self.take(later, due.now, &mut taken).await;
        }
        self.tell(&due, unreadable);
        if !is_left || !taken.moved {
            let more = self.late.take(AT_A_TIME).into_iter();
            let more = more.filter_map(|schedule| self.plan(schedule, None, due.now)).collect();
            self.take(more, due.now, &mut taken).await;
        }
        let wait = match () {
            () if taken.moved || self.late.has_more() => Duration::ZERO,
            () if taken.stale => STALE_PAUSE,
            // Another server can read it, or has a newer zone database.
            () if is_left || taken.failed.is_some() => LONGEST_RETRY,
            () => {
                self.late.rest(woken_times);
                Duration::MAX
            }
        };
        Ok(Look { wait, failed: taken.failed.filter(|_| !taken.moved) })
    }

    async fn take(&self, plans: Vec<Plan>, now: Millis, taken: &mut Taken) {
        let mut plans = plans.into_iter().peekable();
        while plans.peek().is_some() {
            let some = plans.by_ref().take(AT_A_TIME).map(|plan| self.go_on(plan, now));
            together::all(some).await.into_iter().for_each(|looked| taken.add(looked));
        }
    }

    /// Carries out a plan. If its schedule still has a backlog, hands it over to be continued.
    pub(super) async fn go_on(&self, plan: Plan, now: Millis) -> Result<Looked> {
        let (id, owes) = (plan.id().clone(), plan.owes());
        let rest = plan.rest();
        let looked = self.carry_out(plan, now).await?;
        match &looked {
            Looked::Moved { version, landed } => {
                self.late.owes(&id, owes.after);
                if let (Some(rest), Some(landed)) = (rest, *landed) {
                    let (schedule, progress) = *rest;
                    schedule
                        .after(*version, &progress, landed)?
                        .into_iter()
                        .for_each(|rest| self.late.hand(rest));
                }
            }
            Looked::Postponed => self.late.owes(&id, owes.unplaced),
            Looked::Stale | Looked::Early => {}
        }
        Ok(looked)
    }
}
