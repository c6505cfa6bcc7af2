//! Errors of schedules whose record could not be written at all. The record of the missed occurrences, written later,
//! includes them.

use ahash::HashMap;
use parking_lot::Mutex;

use super::record::Schedule;
use super::stored::{ScheduleId, ScheduleVersion};

/// Upper bound on entries.
const MOST: usize = 10_000;

/// The last error of schedules whose records have not been written since.
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

    /// Returns the error of a schedule; `None` if its record was written since.
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
