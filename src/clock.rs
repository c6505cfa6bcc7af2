//! Time as a value: milliseconds since the Unix epoch, and clocks that tell them. The disk engine takes its
//! clock from here, so that tests run in virtual time. A Redis pool's clock is the Redis's own.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Milliseconds since the Unix epoch.
pub type Millis = u64;

/// Tells the time. Must not go backwards.
pub trait Clock: Send + Sync + std::fmt::Debug + 'static {
    /// Now.
    fn now(&self) -> Millis;

    /// Now, rounded up: a delay counted from here is not over before it is over, although the clock tells
    /// whole milliseconds.
    fn now_up(&self) -> Millis {
        self.now()
    }
}

/// The machine's clock, held where it was while the machine sets it back.
#[derive(Debug, Default)]
pub struct SystemClock {
    last: AtomicU64,
}

impl Clock for SystemClock {
    fn now(&self) -> Millis {
        let now = system_now();
        self.last.fetch_max(now, Ordering::Relaxed).max(now)
    }

    fn now_up(&self) -> Millis {
        // At most a millisecond too much, and right also while the machine's clock is held.
        self.now() + 1
    }
}

/// What the machine's clock says; 0 before 1970.
pub fn system_now() -> Millis {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as Millis)
}

/// A clock that moves only when told to: for tests.
#[derive(Debug)]
pub struct ManualClock {
    now: AtomicU64,
}

impl ManualClock {
    /// A clock that stands at `start`.
    pub fn new(start: Millis) -> ManualClock {
        ManualClock { now: AtomicU64::new(start) }
    }

    /// Moves it forward.
    pub fn advance(&self, by: Duration) {
        self.now.fetch_add(by.as_millis() as Millis, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Millis {
        self.now.load(Ordering::SeqCst)
    }
}
