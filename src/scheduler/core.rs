//! What placing and changing have in common: the store of a pool's schedules and that of its jobs, the zone database, what is counted.

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
    /// Those that this server cannot read, by the revision that was logged.
    pub aside: Mutex<HashMap<ScheduleId, u64>>,
    pub troubles: Troubles,
    /// Whether it was logged that other servers have a newer zone database.
    is_behind: AtomicBool,
    /// How many steps servers with an older zone database have taken, as far as this one has seen.
    pub by_older: AtomicU64,
    /// The same of servers with a newer one.
    by_newer: AtomicU64,
    /// The pool's time of day, as it was heard last.
    heard: AtomicU64,
    /// How often it was set back by more than [`RAN_AHEAD`] since the start.
    set_back: AtomicU64,
}

/// The store was not asked yet.
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
            metrics.occurrences(outcome.as_str(), 0); // born with 0
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

    /// Notes the pool's time of day. Where it was set back, what was decided until then may have to be set right: a walk
    /// through all schedules finds those.
    pub fn hear_time(&self, now: Millis) {
        if now.saturating_add(RAN_AHEAD) < self.heard.swap(now, Ordering::Relaxed) {
            self.set_back.fetch_add(1, Ordering::Relaxed);
            self.late.nudge();
        }
    }

    /// Grows with each event after which a walk through all schedules is due.
    pub fn causes_to_walk(&self) -> u64 {
        self.by_older.load(Ordering::Relaxed).wrapping_add(self.set_back.load(Ordering::Relaxed))
    }

    /// Sets a schedule right that was decided by a clock that ran ahead. Returns whether it was.
    pub fn set_right(&self, schedule: &mut Schedule, now: Millis) -> bool {
        let ahead = schedule.changed_at.saturating_sub(now);
        let progress = &schedule.state.progress;
        let mut right = progress.set_right(&schedule.setting.rule, now);
        // It was to last for some time from the change on.
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

    /// Whether a server with an older zone database has computed when this schedule is looked at next.
    pub fn is_newer_than(&self, state: &PlacerState) -> bool {
        self.zones.is_newer_than(&state.zones)
    }

    /// Whether a server with a newer zone database has computed when this schedule is looked at next. Logs that once.
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

    /// Hears how many steps placers with other zone databases have taken.
    pub fn hear(&self, by: &BTreeMap<Box<str>, u64>) {
        let older = by.iter().filter(|(by, _)| self.zones.is_newer_than(by)).map(|(_, count)| count);
        let older: u64 = older.sum();
        if self.by_older.swap(older, Ordering::Relaxed) != older {
            self.late.nudge();
        }
        let newer = || by.iter().filter(|(by, _)| self.zones.is_older_than(by));
        let count: u64 = newer().map(|(_, count)| count).sum();
        // The first time says nothing: they may be gone.
        let before = self.by_newer.swap(count, Ordering::Relaxed);
        if before != UNHEARD
            && count > before
            && let Some((theirs, _)) = newer().next_back()
        {
            self.tell_behind(theirs);
        }
    }
}
