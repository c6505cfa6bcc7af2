//! Why the store could write nothing of a schedule, not even that: what is missed for it tells it later.

use ahash::HashMap;
use parking_lot::Mutex;

use super::record::Schedule;
use super::stored::{ScheduleId, ScheduleVersion};

/// More are not remembered at a time.
const MOST: usize = 10_000;

/// Of schedules of which no step was taken since.
#[derive(Debug, Default)]
pub struct Troubles(Mutex<HashMap<ScheduleId, (ScheduleVersion, String)>>);

impl Troubles {
    pub fn note(&self, of: &Schedule, why: String) {
        let mut all = self.0.lock();
        if all.len() >= MOST {
            all.clear();
        }
        all.insert(of.id.clone(), (of.version, why));
    }

    /// Of what was read: `None` if a step was taken since.
    pub fn of(&self, schedule: &Schedule) -> Option<String> {
        let mut all = self.0.lock();
        let (version, why) = all.get(&schedule.id)?;
        if *version == schedule.version {
            return Some(why.clone());
        }
        all.remove(&schedule.id);
        None
    }
}
