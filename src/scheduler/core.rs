//! State shared by placing and changing schedules: the stores of schedules and jobs, the zone database, metrics.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use ahash::HashMap;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::backlog::Late;
use super::record::{PlacerState, Schedule};
use super::store::ScheduleStore;
use super::stored::{ScheduleBounds, ScheduleId};
use super::troubles::Troubles;
use crate::clock::Millis;
use crate::engine::Engine;
use crate::metrics::ScheduleMetrics;
use crate::name::PoolName;
use crate::schedule::{Became, Paused, RAN_AHEAD, Zones};

/// The schedules of one pool.
#[derive(Debug)]
pub struct Scheduler {
    pub pool: PoolName,
    pub engine: Arc<dyn Engine>,
    pub store: ScheduleStore,
    pub zones: Arc<Zones>,
    pub bounds: ScheduleBounds,
    pub metrics: ScheduleMetrics,
    /// Notified when this process has changed a schedule.
    pub changed: Notify,
    pub late: Late,
    /// Schedules that this server cannot read, with the revision that was logged.
    pub aside: Mutex<HashMap<ScheduleId, u64>>,
    pub troubles: Troubles,
    /// Whether the log already says that other servers have a newer zone database.
    is_behind: AtomicBool,
    /// Number of records seen that servers with an older zone database wrote.
    pub by_older: AtomicU64,
    /// Number of records seen that servers with a newer zone database wrote.
    by_newer: AtomicU64,
    /// Latest time of day of the pool.
    heard: AtomicU64,
    /// Number of times it was set back by more than [`RAN_AHEAD`] since the start.
    set_back: AtomicU64,
}

/// Value of `by_newer` before the first reading.
const UNHEARD: u64 = u64::MAX;

impl Scheduler {
    pub fn new(
        pool: PoolName,
        engine: Arc<dyn Engine>,
        store: ScheduleStore,
        zones: Arc<Zones>,
        bounds: ScheduleBounds,
        metrics: ScheduleMetrics,
    ) -> Scheduler {
        for outcome in Became::ALL {
            metrics.occurrences(outcome.as_str(), 0); // exported as 0 before the first occurrence
        }
        let (changed, is_behind) = (Notify::new(), AtomicBool::new(false));
        let (by_older, by_newer) = (AtomicU64::new(0), AtomicU64::new(UNHEARD));
        let (aside, troubles) = (Mutex::default(), Troubles::default());
        Scheduler {
            pool,
            engine,
            store,
            zones,
            bounds,
            metrics,
            changed,
            late: Late::default(),
            aside,
            troubles,
            is_behind,
            by_older,
            by_newer,
            heard: AtomicU64::new(0),
            set_back: AtomicU64::new(0),
        }
    }

    /// Records the pool's time of day. If it was set back, schedules decided by the clock that ran ahead need
    /// correction: a walk through all schedules finds them.
    pub fn hear_time(&self, now: Millis) {
        if now.saturating_add(RAN_AHEAD) < self.heard.swap(now, Ordering::Relaxed) {
            self.set_back.fetch_add(1, Ordering::Relaxed);
            self.late.nudge();
        }
    }

    /// Returns a number that changes with each event that requires a walk through all schedules.
    pub fn causes_to_walk(&self) -> u64 {
        self.by_older.load(Ordering::Relaxed).wrapping_add(self.set_back.load(Ordering::Relaxed))
    }

    /// Corrects a schedule decided by a clock that ran ahead. Returns whether it needed correction.
    pub fn set_right(&self, schedule: &mut Schedule, now: Millis) -> bool {
        let ahead = schedule.changed_at.saturating_sub(now);
        let progress = &schedule.state.progress;
        let mut right = progress.set_right(&schedule.setting.rule, now);
        // The pause has a duration that begins at the change.
        if let Some(Paused { until: Some(until) }) = progress.paused
            && ahead > RAN_AHEAD
        {
            right.get_or_insert(progress.clone()).paused =
                Some(Paused { until: Some(until.saturating_sub(ahead)) });
        }
        let Some(right) = right else { return false };
        schedule.state.progress = right;
        schedule.changed_at = schedule.changed_at.min(now);
        true
    }

    /// Returns whether an older zone database computed the next check of this schedule.
    pub fn is_newer_than(&self, state: &PlacerState) -> bool {
        self.zones.is_newer_than(&state.zones)
    }

    /// Returns whether a newer zone database computed the next check of this schedule. Logs that once.
    pub fn is_older_than(&self, state: &PlacerState) -> bool {
        let is_older = self.zones.is_older_than(&state.zones);
        if is_older {
            self.tell_behind(&state.zones);
        }
        is_older
    }

    fn tell_behind(&self, theirs: &str) {
        if !self.is_behind.swap(true, Ordering::Relaxed) {
            let ours = self.zones.version();
            tracing::warn!(pool = %self.pool, ours, theirs, "other servers have a newer time zone database");
        }
    }

    /// Records the number of records seen, by the version of the zone database that computed them.
    pub fn hear(&self, by: &BTreeMap<Box<str>, u64>) {
        let older = by.iter().filter(|(by, _)| self.zones.is_newer_than(by)).map(|(_, count)| count);
        let older: u64 = older.sum();
        if self.by_older.swap(older, Ordering::Relaxed) != older {
            self.late.nudge();
        }
        let newer = || by.iter().filter(|(by, _)| self.zones.is_older_than(by));
        let count: u64 = newer().map(|(_, count)| count).sum();
        // The first reading is not evidence: the servers that wrote these records may have stopped.
        let before = self.by_newer.swap(count, Ordering::Relaxed);
        if before != UNHEARD
            && count > before
            && let Some((theirs, _)) = newer().next_back()
        {
            self.tell_behind(theirs);
        }
    }
}
