//! Points in time as plain numbers, and clocks. Jobs and people get milliseconds since the Unix epoch, timers
//! count in microseconds. Who measures a time takes a [`Clock`] as an argument, so that tests run in virtual time. A
//! Redis pool uses the clock of its Redis.
//!
//! A machine has two clocks. The time of day can be set, back too. The monotonic one cannot, and says only how much
//! time has passed. How old something is, and when it ends, is measured by the monotonic clock: the yes to a token,
//! a counter of requests. The time of a pool on disk needs both (src/engine/disk/state/clock.rs has its rule).

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};

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

/// How long ago the machine was started, the time that it slept included. The monotonic clock stands still meanwhile.
fn since_boot() -> Duration {
    let time = clock_gettime(ClockId::Boottime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// What the figures of a server go by: the time of day at its start, and the time that has passed since. It never goes
/// back. The time of day can be set: what is shown is told as [`of_day`](Began::of_day) says.
#[derive(Clone, Copy, Debug)]
pub struct Began {
    wall: Millis,
    boot: Duration,
}

impl Began {
    /// Now.
    pub fn now() -> Began {
        Began { wall: system_now(), boot: since_boot() }
    }

    /// When that was.
    pub fn wall(&self) -> Millis {
        self.wall
    }

    /// What time it is, if the clock was not set since.
    pub fn time(&self) -> Millis {
        self.wall + since_boot().saturating_sub(self.boot).as_millis() as u64
    }

    /// What time of day it was at this [`time`](Began::time), by a clock by which it is `now`.
    pub fn of_day(&self, time: Millis, now: Millis) -> Millis {
        time.saturating_add_signed(set_by(self.time(), now))
    }
}

/// How far a clock was set that is so and would be so. In whole seconds: both are not read at the same moment, and what is
/// shown of the past is to stay as it is.
fn set_by(would_be: Millis, is: Millis) -> i64 {
    let by = is as i64 - would_be as i64;
    (by + 500).div_euclid(1000) * 1000
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Guards against pages that show each second another time of what stays, and against those that do not follow a clock
    /// that was set.
    #[test]
    fn what_is_shown_follows_a_clock_that_was_set_and_no_moment_between_two_reads() {
        const NOW: Millis = 1_795_442_400_000;
        for (is, by) in [
            (NOW, 0),
            (NOW + 3, 0),
            (NOW - 3, 0),
            (NOW + 3_600_002, 3_600_000),
            (NOW - 3_599_999, -3_600_000),
            (0, -(NOW as i64)),
        ] {
            assert_eq!(set_by(NOW, is), by, "a clock that is at {is} in place of {NOW}");
        }
        let began = Began::now();
        for set_since in [0, -3_600_000, 86_400_000i64] {
            let now = began.time().saturating_add_signed(set_since);
            let shown = began.of_day(began.wall(), now);
            assert_eq!(shown, began.wall().saturating_add_signed(set_since), "set by {set_since} ms");
        }
    }
}
