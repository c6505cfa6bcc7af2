//! Points in time as plain numbers, and clocks. Jobs and people get milliseconds since the Unix epoch, timers
//! count in microseconds. Who measures a time takes a [`Clock`] as an argument, so that tests run in virtual time. A
//! Redis pool uses the clock of its Redis.
//!
//! A machine has two clocks. The time of day can be set, back too. The monotonic one cannot, and says only how much
//! time has passed. How old something is, and when it ends, is measured by the monotonic clock: the yes to a token,
//! a counter of requests. The time of a pool on disk needs both (src/engine/disk/state/clock.rs has its rule).

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Milliseconds since the Unix epoch.
pub type Millis = u64;

/// Microseconds since the Unix epoch.
pub type Micros = u64;

/// A duration in microseconds, rounded up, since nothing may be early.
pub fn micros(time: Duration) -> Micros {
    Micros::try_from(time.as_nanos().div_ceil(1000)).unwrap_or(Micros::MAX)
}

/// The two clocks of a machine.
pub trait Clock: Send + Sync + std::fmt::Debug + 'static {
    /// The time of day, in microseconds; 0 before 1970. It steps when the machine's clock is set, and when a
    /// machine that slept goes on.
    fn wall_micros(&self) -> Micros;

    /// Now by the monotonic clock, in microseconds. It begins anywhere and never steps, so only differences mean
    /// something.
    fn now_micros(&self) -> Micros;

    /// The same in milliseconds.
    fn now(&self) -> Millis {
        self.now_micros() / 1000
    }
}

/// The clocks of this machine.
#[derive(Debug)]
pub struct SystemClock {
    began: Instant,
}

impl Default for SystemClock {
    fn default() -> SystemClock {
        SystemClock { began: Instant::now() }
    }
}

impl Clock for SystemClock {
    fn wall_micros(&self) -> Micros {
        Micros::try_from(since_epoch().as_micros()).unwrap_or(Micros::MAX)
    }

    fn now_micros(&self) -> Micros {
        Micros::try_from(self.began.elapsed().as_micros()).unwrap_or(Micros::MAX)
    }
}

/// What time of day the machine says it is; 0 before 1970.
pub fn system_now() -> Millis {
    Millis::try_from(since_epoch().as_millis()).unwrap_or(Millis::MAX)
}

fn since_epoch() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// Clocks that move only when told to: for tests.
#[derive(Debug)]
pub struct ManualClock {
    now: AtomicU64,
    /// What the time of day is ahead of `now`.
    wall_ahead: AtomicI64,
}

impl ManualClock {
    /// Both clocks stand at `start`.
    pub fn new(start: Millis) -> ManualClock {
        ManualClock { now: AtomicU64::new(start * 1000), wall_ahead: AtomicI64::new(0) }
    }

    /// Lets time pass, on both clocks.
    pub fn advance(&self, by: Duration) {
        self.now.fetch_add(by.as_micros() as Micros, Ordering::SeqCst);
    }

    /// Sets the time of day ahead, or back when `millis` is negative.
    pub fn step_wall(&self, millis: i64) {
        self.wall_ahead.fetch_add(millis.saturating_mul(1000), Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn wall_micros(&self) -> Micros {
        self.now_micros().saturating_add_signed(self.wall_ahead.load(Ordering::SeqCst))
    }

    fn now_micros(&self) -> Micros {
        self.now.load(Ordering::SeqCst)
    }
}
