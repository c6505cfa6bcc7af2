//! Points in time as numbers, and clocks. The API uses milliseconds since the Unix epoch, timers use microseconds. Code
//! that measures time takes a [`Clock`] as an argument, so that tests run in virtual time. A Redis pool uses the clock
//! of its Redis.
//!
//! A machine has two clocks. The time of day can be set, even backwards. The monotonic clock cannot, and gives only
//! differences. Ages and expiries, as of cached tokens and rate limits, use the monotonic clock. A disk pool's time
//! uses both (see src/engine/disk/state/clock.rs).

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};

/// Milliseconds since the Unix epoch.
pub type Millis = u64;

/// Microseconds since the Unix epoch.
pub type Micros = u64;

/// Returns a duration in microseconds, rounded up, so that nothing is early.
pub fn micros(time: Duration) -> Micros {
    Micros::try_from(time.as_nanos().div_ceil(1000)).unwrap_or(Micros::MAX)
}

/// The two clocks of a machine.
pub trait Clock: Send + Sync + std::fmt::Debug + 'static {
    /// Returns the time of day in microseconds; 0 before 1970. It steps when the machine's clock is set and when the
    /// machine wakes from sleep.
    fn wall_micros(&self) -> Micros;

    /// Returns the time of the monotonic clock in microseconds. It starts anywhere and never steps, so only differences
    /// are meaningful.
    fn now_micros(&self) -> Micros;

    /// Returns the time of the monotonic clock in milliseconds.
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

/// Returns the machine's time of day; 0 before 1970.
pub fn system_now() -> Millis {
    Millis::try_from(since_epoch().as_millis()).unwrap_or(Millis::MAX)
}

fn since_epoch() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// Returns the time since the machine booted, including sleep, during which the monotonic clock stands still.
fn since_boot() -> Duration {
    let time = clock_gettime(ClockId::Boottime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Time base of a server's statistics: the time of day at its start plus the time elapsed since, which never goes back.
/// [`of_day`](Began::of_day) converts to the time of day, which can be set.
#[derive(Clone, Copy, Debug)]
pub struct Began {
    wall: Millis,
    boot: Duration,
}

impl Began {
    /// Returns the current moment.
    pub fn now() -> Began {
        Began { wall: system_now(), boot: since_boot() }
    }

    /// Returns the time of day at the start.
    pub fn wall(&self) -> Millis {
        self.wall
    }

    /// Returns the current time, as if the clock had not been set since the start.
    pub fn time(&self) -> Millis {
        self.wall + since_boot().saturating_sub(self.boot).as_millis() as u64
    }

    /// Converts a [`time`](Began::time) to the time of day, given that it is `now`.
    pub fn of_day(&self, time: Millis, now: Millis) -> Millis {
        time.saturating_add_signed(set_by(self.time(), now))
    }
}

/// Returns by how much a clock was set, given its actual and its expected time. In whole seconds, since the two are not
/// read at the same moment and displayed times in the past must not fluctuate.
fn set_by(would_be: Millis, is: Millis) -> i64 {
    let by = is as i64 - would_be as i64;
    (by + 500).div_euclid(1000) * 1000
}

/// Clocks for tests, which move only when told to.
#[derive(Debug)]
pub struct ManualClock {
    now: AtomicU64,
    /// Difference between the time of day and `now`.
    wall_ahead: AtomicI64,
}

impl ManualClock {
    /// Sets both clocks to `start`.
    pub fn new(start: Millis) -> ManualClock {
        ManualClock { now: AtomicU64::new(start * 1000), wall_ahead: AtomicI64::new(0) }
    }

    /// Advances both clocks.
    pub fn advance(&self, by: Duration) {
        self.now.fetch_add(by.as_micros() as Micros, Ordering::SeqCst);
    }

    /// Moves the time of day by `millis`, which may be negative.
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

    /// Guards against pages on which fixed times fluctuate, and pages that do not follow a changed clock.
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
