//! The engine's threads: starting, stopping and supervising them. A thread that panics, or ends before it was stopped,
//! poisons the store.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::poison::Poison;

/// Stop signal for all threads of an engine.
#[derive(Debug, Default)]
pub struct Stop {
    stopped: Mutex<bool>,
    changed: Condvar,
}

impl Stop {
    /// Sends the signal.
    pub fn signal(&self) {
        *self.stopped.lock() = true;
        self.changed.notify_all();
    }

    /// Returns whether the signal was sent.
    pub fn is_stopped(&self) -> bool {
        *self.stopped.lock()
    }

    /// Waits up to `time` for the signal. Returns whether it was sent.
    pub fn stopped_within(&self, time: Duration) -> bool {
        let mut stopped = self.stopped.lock();
        self.changed.wait_while_for(&mut stopped, |stopped| !*stopped, time);
        *stopped
    }
}

/// Supervises a thread; dropped at its end.
struct Watch {
    name: &'static str,
    stop: Arc<Stop>,
    poison: Arc<Poison>,
}

impl Drop for Watch {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.poison.set(format!("the thread {} panicked", self.name));
        } else if !self.stop.is_stopped() {
            self.poison.set(format!("the thread {} ended before it was asked to", self.name));
        }
    }
}

/// Starts a supervised thread that runs `body`.
pub fn spawn<T: Send + 'static>(
    name: &'static str,
    stop: &Arc<Stop>,
    poison: &Arc<Poison>,
    mut body: impl FnMut() -> T + Send + 'static,
) -> std::io::Result<JoinHandle<T>> {
    let watch = Watch { name, stop: stop.clone(), poison: poison.clone() };
    std::thread::Builder::new().name(name.to_owned()).spawn(move || {
        // Dropped before `body`, so that callers whose replies `body` owns find the store poisoned.
        let _watch = watch;
        body()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;

    /// Returns why the store is poisoned after a thread with this body has ended.
    fn reason_after(name: &'static str, told: bool, body: fn()) -> Option<String> {
        let (stop, poison) = (Arc::<Stop>::default(), Arc::<Poison>::default());
        if told {
            stop.signal();
        }
        let thread = spawn(name, &stop, &poison, body).unwrap(); // the machine has room for a thread
        let _ = thread.join();
        match poison.error() {
            Some(Error::Poisoned(reason)) => Some(reason),
            None => None,
            Some(other) => panic!("a poisoned store should say so, but says {other}"),
        }
    }

    #[test]
    fn a_thread_that_dies_poisons_the_store_and_one_that_was_told_to_end_does_not() {
        for name in ["disk-writer", "disk-sweep", "disk-second"] {
            let panicked = Some(format!("the thread {name} panicked"));
            assert_eq!(reason_after(name, false, || panic!("on purpose")), panicked, "after a panic");
            assert_eq!(
                reason_after(name, true, || panic!("on purpose")),
                panicked,
                "after a panic at the end"
            );
            let ended = Some(format!("the thread {name} ended before it was asked to"));
            assert_eq!(reason_after(name, false, || ()), ended, "after an end without a stop");
            assert_eq!(reason_after(name, true, || ()), None, "after a stop");
        }
    }

    #[test]
    fn a_thread_that_waits_hears_at_once_that_it_should_end() {
        let stop = Arc::<Stop>::default();
        assert!(!stop.stopped_within(Duration::from_millis(1)), "stopped without a signal");
        let thread = spawn("disk-test", &stop, &Arc::default(), {
            let stop = stop.clone();
            move || stop.stopped_within(Duration::from_secs(3600))
        });
        stop.signal();
        let told = thread.unwrap().join(); // the machine has room for a thread
        assert!(matches!(told, Ok(true)), "after a stop the wait returned {told:?}");
    }
}
