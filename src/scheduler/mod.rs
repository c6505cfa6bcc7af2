//! Schedules of a pool: places what is due, and changes what is set. Knows what a schedule is by [`schedule`], and keeps
//! all of it in the store: no memory of its own decides anything, so any number of servers may run this at once.
//!
//! - [`run`]: the task that places. Asleep until the next is due, or until this process has changed one.
//! - `record`: a schedule, as two texts of the store; `place`: one look at one; `change`: what requests ask for.
//!
//! [`schedule`]: crate::schedule

mod change;
mod place;
mod record;
mod task;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Notify;

pub use self::change::{Changed, Condition, Matches, NotChanged, Page, Ran, Runs};
pub use self::record::{Schedule, State};
pub use self::task::run;
use crate::engine::{Engine, ScheduleBounds};
use crate::metrics::ScheduleMetrics;
use crate::name::PoolName;
use crate::schedule::Zones;

/// The schedules of one pool.
#[derive(Debug)]
pub struct Scheduler {
    pool: PoolName,
    engine: Arc<dyn Engine>,
    pub zones: Arc<Zones>,
    pub bounds: ScheduleBounds,
    metrics: ScheduleMetrics,
    /// Notified when this process has changed a schedule.
    changed: Notify,
    /// Whether it was logged that other servers have a newer zone database.
    is_behind: AtomicBool,
}

impl Scheduler {
    pub fn new(
        pool: PoolName,
        engine: Arc<dyn Engine>,
        zones: Arc<Zones>,
        bounds: ScheduleBounds,
        metrics: ScheduleMetrics,
    ) -> Scheduler {
        let (changed, is_behind) = (Notify::new(), AtomicBool::new(false));
        Scheduler { pool, engine, zones, bounds, metrics, changed, is_behind }
    }

    /// Whether a server with an older zone database has computed when this schedule is looked at next.
    fn is_newer_than(&self, state: &State) -> bool {
        self.zones.is_newer_than(&state.zones)
    }

    /// Whether a server with a newer zone database has computed when this schedule is looked at next. Logs that once.
    fn is_older_than(&self, state: &State) -> bool {
        let version = &*state.zones;
        let is_older = version != self.zones.version() && !self.zones.is_newer_than(version);
        if is_older && !self.is_behind.swap(true, Ordering::Relaxed) {
            let (ours, theirs) = (self.zones.version(), version);
            tracing::warn!(pool = %self.pool, ours, theirs, "other servers have a newer time zone database");
        }
        is_older
    }
}
