//! When the pump must run next, with a wake-up for jobs that are due earlier. Kept by the code that changes a store;
//! knows no store and no clock.

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::clock::Micros;

/// When the pump must run next, with a wake-up for jobs that are due earlier.
#[derive(Debug)]
pub struct NextDue {
    state: Mutex<Dues>,
    told: Notify,
}

#[derive(Debug)]
struct Dues {
    said: Micros,
    /// Earliest due time stored by this process since the last pump began. The pump may have missed it, in whichever
    /// order the two replies are read.
    stored: Micros,
    /// Whether the pump must be woken. A pump that begins needs no wake-up.
    earlier: bool,
}

impl Default for NextDue {
    fn default() -> NextDue {
        let dues = Dues { said: 0, stored: Micros::MAX, earlier: false };
        NextDue { state: Mutex::new(dues), told: Notify::new() }
    }
}

impl NextDue {
    /// Records a stored job that is due at `due`.
    pub fn stored(&self, due: Micros) {
        let mut state = self.state.lock();
        state.stored = state.stored.min(due);
        if due < state.said {
            state.said = due;
            state.earlier = true;
            drop(state);
            self.told.notify_one();
        }
    }

    pub fn pump_begins(&self) {
        let mut state = self.state.lock();
        state.stored = Micros::MAX;
        state.earlier = false;
    }

    /// Records the next due time that a pump has returned.
    pub fn pump_said(&self, due: Micros) {
        let mut state = self.state.lock();
        state.said = due.min(state.stored);
        state.earlier = state.stored < due;
        if state.earlier {
            drop(state);
            self.told.notify_one();
        }
    }

    /// Waits until a stored job is due earlier than the last pump returned.
    pub async fn earlier(&self) {
        while !self.state.lock().earlier {
            self.told.notified().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test]
    async fn a_job_stored_while_a_pump_is_under_way_is_not_slept_over() {
        let due = NextDue::default();
        due.pump_begins();
        due.stored(500);
        due.pump_said(1000);
        tokio::time::timeout(SECOND, due.earlier()).await.expect("due at 500, and the pump said 1000");
    }

    #[tokio::test(start_paused = true)]
    async fn a_later_job_wakes_nobody() {
        let due = NextDue::default();
        due.pump_begins();
        due.pump_said(1000);
        due.stored(1500);
        assert!(tokio::time::timeout(SECOND, due.earlier()).await.is_err(), "1500 is after 1000");
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_pump_has_seen_since_wakes_nobody() {
        let due = NextDue::default();
        due.pump_begins();
        due.pump_said(1000);
        due.stored(500);
        due.pump_begins();
        due.pump_said(500);
        assert!(tokio::time::timeout(SECOND, due.earlier()).await.is_err(), "the second pump said 500");
    }
}
