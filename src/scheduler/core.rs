//! What placing and changing have in common: the store of a pool, the zone database, what is counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use ahash::HashMap;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::record::State;
use super::troubles::Troubles;
use crate::engine::{Engine, ScheduleBounds, ScheduleId};
use crate::metrics::ScheduleMetrics;
use crate::name::PoolName;
use crate::schedule::{Outcome, Zones};

/// The schedules of one pool.
#[derive(Debug)]
pub struct Scheduler {
    pub pool: PoolName,
    pub engine: Arc<dyn Engine>,
    pub zones: Arc<Zones>,
    pub bounds: ScheduleBounds,
    pub metrics: ScheduleMetrics,
    /// Notified when this process has changed a schedule.
    pub changed: Notify,
    /// Those that this server cannot read, by the revision that was logged.
    pub aside: Mutex<HashMap<ScheduleId, u64>>,
    pub troubles: Troubles,
    /// Whether it was logged that other servers have a newer zone database.
    is_behind: AtomicBool,
    /// How many steps servers with an older zone database have taken, as the store has told.
    pub by_older: AtomicU64,
}

impl Scheduler {
    pub fn new(
        pool: PoolName,
        engine: Arc<dyn Engine>,
        zones: Arc<Zones>,
        bounds: ScheduleBounds,
        metrics: ScheduleMetrics,
    ) -> Scheduler {
        for outcome in Outcome::ALL {
            metrics.occurrences(outcome.as_str(), 0); // born with 0
        }
        let (changed, is_behind, by_older) = (Notify::new(), AtomicBool::new(false), AtomicU64::new(0));
        let (aside, troubles) = (Mutex::default(), Troubles::default());
        Scheduler { pool, engine, zones, bounds, metrics, changed, aside, troubles, is_behind, by_older }
    }

    /// Whether a server with an older zone database has computed when this schedule is looked at next.
    pub fn is_newer_than(&self, state: &State) -> bool {
        self.zones.is_newer_than(&state.zones)
    }

    /// Whether a server with a newer zone database has computed when this schedule is looked at next. Logs that once.
    pub fn is_older_than(&self, state: &State) -> bool {
        let version = &*state.zones;
        let is_older = version != self.zones.version() && !self.zones.is_newer_than(version);
        if is_older && !self.is_behind.swap(true, Ordering::Relaxed) {
            let (ours, theirs) = (self.zones.version(), version);
            tracing::warn!(pool = %self.pool, ours, theirs, "other servers have a newer time zone database");
        }
        is_older
    }
}
