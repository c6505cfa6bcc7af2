//! Points in time as plain numbers, and clocks. Jobs and people get milliseconds since the Unix epoch, timers
//! count in microseconds. The disk engine takes its clock as an argument, so that tests run in virtual time. A
//! Redis pool uses the clock of its Redis.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Milliseconds since the Unix epoch.
pub type Millis = u64;

/// Microseconds since the Unix epoch.
pub type Micros = u64;

/// A duration in microseconds, rounded up, since nothing may be early.
pub fn micros(time: Duration) -> Micros {
    Micros::try_from(time.as_nanos().div_ceil(1000)).unwrap_or(Micros::MAX)
}

/// Tells the time. Must not go backwards.
pub trait Clock: Send + Sync + std::fmt::Debug + 'static {
    /// Now, in microseconds. Timers in whole milliseconds would be rounded up, since nothing may be early, and jobs
    /// would be late by up to a millisecond.
    fn now_micros(&self) -> Micros;

    /// Now, in milliseconds.
    fn now(&self) -> Millis {
        self.now_micros() / 1000
    }
}

/// The machine's clock. When the machine's time is set back, this clock stands still until the time is reached
/// again.
#[derive(Debug, Default)]
pub struct SystemClock {
    last: AtomicU64,
}

impl Clock for SystemClock {
    fn now_micros(&self) -> Micros {
        let now = since_epoch().as_micros() as Micros;
        self.last.fetch_max(now, Ordering::Relaxed).max(now)
    }
}

/// What the machine's clock says; 0 before 1970.
pub fn system_now() -> Millis {
    since_epoch().as_millis() as Millis
}

fn since_epoch() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// A clock that moves only when told to: for tests.
#[derive(Debug)]
pub struct ManualClock {
    now: AtomicU64,
}

impl ManualClock {
    /// A clock that stands at `start`.
    pub fn new(start: Millis) -> ManualClock {
        ManualClock { now: AtomicU64::new(start * 1000) }
    }

    /// Moves it forward.
    pub fn advance(&self, by: Duration) {
        self.now.fetch_add(by.as_micros() as Micros, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now_micros(&self) -> Micros {
        self.now.load(Ordering::SeqCst)
    }
}
