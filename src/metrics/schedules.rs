//! What is counted of the schedules of a pool. Knows no store.

use std::sync::Arc;
use std::time::Duration;

use super::families::ScheduleFamilies;
use crate::name::PoolName;

/// One pool's schedules.
#[derive(Clone, Debug)]
pub struct ScheduleMetrics {
    pub(super) pool: PoolName,
    pub(super) families: Arc<ScheduleFamilies>,
}

impl ScheduleMetrics {
    /// So many schedules are in this state.
    pub fn schedules(&self, state: &str, count: u64) {
        self.families.schedules.with_label_values(&[self.pool.as_str(), state]).set(count as i64);
    }

    /// This became of so many occurrences.
    pub fn occurrences(&self, outcome: &str, count: u64) {
        self.families.occurrences.with_label_values(&[self.pool.as_str(), outcome]).inc_by(count);
    }

    /// One was placed so long after it was to be.
    pub fn late(&self, by: Duration) {
        self.families.lateness.with_label_values(&[self.pool.as_str()]).observe(by.as_secs_f64());
    }

    /// The schedule that waits longest has been due for so long.
    pub fn oldest_owed(&self, age: Duration) {
        self.families.oldest_owed.with_label_values(&[self.pool.as_str()]).set(age.as_secs() as i64);
    }
}
