//! Metrics of a pool's schedules.

use std::sync::Arc;
use std::time::Duration;

use super::families::ScheduleFamilies;
use crate::name::PoolName;

/// Metrics of one pool's schedules.
#[derive(Clone, Debug)]
pub struct ScheduleMetrics {
    pub(super) pool: PoolName,
    pub(super) families: Arc<ScheduleFamilies>,
}

impl ScheduleMetrics {
    /// Sets the number of schedules in a state.
    pub fn schedules(&self, state: &str, count: u64) {
        self.families.schedules.with_label_values(&[self.pool.as_str(), state]).set(count as i64);
    }

    /// Counts occurrences with an outcome.
    pub fn occurrences(&self, outcome: &str, count: u64) {
        self.families.occurrences.with_label_values(&[self.pool.as_str(), outcome]).inc_by(count);
    }

    /// Records that an occurrence was placed `by` late.
    pub fn late(&self, by: Duration) {
        self.families.lateness.with_label_values(&[self.pool.as_str()]).observe(by.as_secs_f64());
    }

    /// Sets the age of the oldest overdue schedule.
    pub fn oldest_owed(&self, age: Duration) {
        self.families.oldest_owed.with_label_values(&[self.pool.as_str()]).set(age.as_secs() as i64);
    }
}
