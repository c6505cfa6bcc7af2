//! A walk through all schedules: recomputes the next check of those written by a server with an older zone database,
//! and corrects those decided by a clock that ran ahead. A walk starts with the server, when a server with an older
//! database has written records, and when the pool's clock was set back.

use std::time::{Duration, Instant};

use super::core::Scheduler;
use super::place::Plan;
use super::record::Schedule;
use super::task::{MAX_DUE, apart};
use crate::engine::together;
use crate::error::Result;

/// Minimum pause between two walks, as a multiple of the duration of the last.
const PAUSE: u32 = 20;

#[derive(Debug, Default)]
pub struct Walk {
    /// Whether a walk is in progress.
    goes_on: bool,
    /// Position of the next part.
    from: Option<String>,
    began: Option<Instant>,
    /// Earliest start of the next walk.
    next: Option<Instant>,
    /// Value of [`causes_to_walk`](Scheduler::causes_to_walk) at the start of the last walk.
    seen: u64,
}

impl Walk {
    /// Starts a walk if one is needed. Returns the time until then.
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
    /// Continues or starts a walk. Returns the time until the next part.
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
