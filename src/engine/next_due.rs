//! When the pump must run next, with a notification of jobs that are due earlier. Kept by the code that changes a
//! store; knows no store and no clock.

use std::sync::Arc;

use parking_lot::Mutex;

use super::notifier::Notifiers;
use crate::clock::Micros;

/// When the pump must run next. Notifies of jobs that are due earlier.
#[derive(Debug)]
pub struct NextDue {
    state: Mutex<Dues>,
    notifiers: Arc<Notifiers>,
}

#[derive(Debug)]
struct Dues {
    said: Micros,
    /// Earliest due time stored by this process since the last pump began. The pump may have missed it, in whichever
    /// order the two replies are read.
    stored: Micros,
}

impl NextDue {
    pub fn new(notifiers: Arc<Notifiers>) -> NextDue {
        NextDue { state: Mutex::new(Dues { said: 0, stored: Micros::MAX }), notifiers }
    }

    /// Records a stored job that is due at `due`.
    pub fn stored(&self, due: Micros) {
        let mut state = self.state.lock();
        state.stored = state.stored.min(due);
        let is_earlier = due < state.said;
        state.said = state.said.min(due);
        drop(state);
        if is_earlier {
            self.notifiers.due_earlier();
        }
    }

    pub fn pump_begins(&self) {
        self.state.lock().stored = Micros::MAX;
    }

    /// Records the next due time that a pump has returned.
    pub fn pump_said(&self, due: Micros) {
        let mut state = self.state.lock();
        state.said = due.min(state.stored);
        let is_earlier = state.stored < due;
        drop(state);
        if is_earlier {
            self.notifiers.due_earlier();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::engine::notifier::Notifier;

    #[derive(Debug, Default)]
    struct Told(AtomicUsize);

    impl Notifier for Told {
        fn due_earlier(&self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns how often `steps` notifies of an earlier job.
    fn told(steps: impl FnOnce(&NextDue)) -> usize {
        let (told, notifiers) = (Arc::new(Told::default()), Arc::new(Notifiers::default()));
        let notifier: Arc<dyn Notifier> = told.clone();
        notifiers.attach(Arc::downgrade(&notifier));
        steps(&NextDue::new(notifiers));
        told.0.load(Ordering::Relaxed)
    }

    #[test]
    fn a_job_stored_while_a_pump_is_under_way_is_not_slept_over() {
        let told = told(|due| {
            due.pump_begins();
            due.stored(500);
            due.pump_said(1000);
        });
        assert_eq!(told, 1, "due at 500, and the pump said 1000");
    }

    #[test]
    fn a_later_job_wakes_nobody() {
        let told = told(|due| {
            due.pump_begins();
            due.pump_said(1000);
            due.stored(1500);
        });
        assert_eq!(told, 0, "1500 is after 1000");
    }

    #[test]
    fn a_job_wakes_the_pump_once() {
        let told = told(|due| {
            due.pump_begins();
            due.pump_said(1000);
            due.stored(500);
            due.stored(500);
            due.stored(600);
            due.pump_begins();
            due.pump_said(500);
        });
        assert_eq!(told, 1, "the first is earlier than 1000, and the second pump said 500");
    }
}
