//! A way through all schedules, whenever they are due: when those are looked at next that a server with an older zone
//! database has written is computed anew, and what a clock has decided that ran ahead is set right. One begins with the
//! server, one when such a server has taken steps, and one when the store's clock was set back.

use std::time::{Duration, Instant};

use super::core::Scheduler;
use super::place::Plan;
use super::record::Schedule;
use super::task::{MAX_DUE, apart};
use crate::engine::together;
use crate::error::Result;

/// From the end of a walk to the next one, as so many times as long as it took.
const PAUSE: u32 = 20;

#[derive(Debug, Default)]
pub struct Walk {
    /// There is one.
    goes_on: bool,
    /// Where it goes on.
    from: Option<String>,
    began: Option<Instant>,
    /// No one begins before.
    next: Option<Instant>,
    /// The [`causes`](Scheduler::causes_to_walk) when the last one began.
    seen: u64,
}

impl Walk {
    /// How long until there is something to walk for.
    fn begins(&mut self, causes: u64) -> Duration {
        if self.goes_on {
            return Duration::ZERO;
        }
        if self.began.is_some() && causes == self.seen {
            return Duration::MAX;
        }
        let wait = self.next.map_or(Duration::ZERO, |next| next.saturating_duration_since(Instant::now()));
        if wait.is_zero() {
            (self.goes_on, self.from, self.began, self.seen) = (true, None, Some(Instant::now()), causes);
        }
        wait
    }

    fn end(&mut self) {
        let took = self.began.map_or(Duration::ZERO, |began| began.elapsed());
        (self.goes_on, self.next) = (false, Some(Instant::now() + took * PAUSE));
    }
}

impl Scheduler {
    /// Goes on with a walk, or begins one. Answers when to go on.
    pub(super) async fn walk(&self, walk: &mut Walk) -> Result<Duration> {
        let wait = walk.begins(self.causes_to_walk());
        if !wait.is_zero() {
            return Ok(wait);
        }
        let all = self.store.part(walk.from.as_deref(), MAX_DUE).await?;
        let plans: Vec<Plan> = apart(|| {
            let stale = all.schedules.iter().filter_map(|stored| {
                let schedule = Schedule::read(stored.clone()).ok()?;
                self.recompute(schedule, stored.next, all.now)
            });
            stale.collect()
        });
        for looked in together::all(plans.into_iter().map(|plan| self.carry_out(plan, all.now))).await {
            looked?;
        }
        walk.from = all.more;
        if walk.from.is_some() {
            return Ok(Duration::ZERO);
        }
        walk.end();
        Ok(walk.begins(self.causes_to_walk()))
    }
}
