//! The pool's clock. Knows no database.
//!
//! The rule: it continues with the machine's monotonic clock, and is never behind the time of day.
//!
//! - The time of day is set ahead, or the machine slept: the pool's clock follows at once. Delayed jobs are due
//!   sooner, by at most the step.
//! - The time of day is set back: the pool's clock continues. It is now ahead of the time of day, and every delay
//!   keeps its length. A later step ahead moves it only as far as the time of day passes it, so a clock that is set
//!   back and ahead again has no effect.
//! - The pool is opened, and the time of day is behind the last stored time: the pool's clock continues from the
//!   stored time, as after a step back. The time for which the pool was closed reduces its lead.
//!
//! It never decreases, neither while the store is open nor over a restart: a new timer is due later than every timer
//! that was pumped, and ids increase with it. Instants in calls and replies are in the time of day
//! ([`to_day`](PoolClock::to_day), [`at_time_of_day`](PoolClock::at_time_of_day)).

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use crate::clock::{Clock, Micros, Millis};

/// Minimum step of the machine's clock that is logged, in microseconds.
const STEP: i64 = 1_000_000;

/// The pool's clock. Clones are the same clock.
#[derive(Clone, Debug)]
pub struct PoolClock {
    clock: Arc<dyn Clock>,
    offsets: Arc<Offsets>,
}

#[derive(Debug)]
struct Offsets {
    /// The pool's time minus the monotonic time. It only grows.
    pool: AtomicI64,
    /// Lead of the pool's clock over the time of day, in milliseconds: see [`PoolClock::ahead`].
    ahead: AtomicU64,
    /// The time of day minus the monotonic time, when last checked for the log.
    wall: AtomicI64,
}

impl PoolClock {
    /// Creates a clock that shows at least `seen`.
    pub fn new(clock: Arc<dyn Clock>, seen: Micros) -> PoolClock {
        let (wall, now) = read(&*clock);
        let offset = wall.max(signed(seen)).saturating_sub(now);
        let offsets = Offsets {
            pool: AtomicI64::new(offset),
            ahead: AtomicU64::new(0),
            wall: AtomicI64::new(wall - now),
        };
        let clock = PoolClock { clock, offsets: Arc::new(offsets) };
        clock.now_micros();
        clock
    }

    /// Returns the time in the unit of timers.
    pub fn now_micros(&self) -> Micros {
        let (wall, now) = read(&*self.clock);
        let least = wall.saturating_sub(now);
        let mut offset = self.offsets.pool.load(Ordering::Relaxed);
        if offset < least {
            offset = self.offsets.pool.fetch_max(least, Ordering::Relaxed).max(least);
        }
        self.learn_ahead(offset, offset.saturating_sub(least));
        Micros::try_from(now.saturating_add(offset)).unwrap_or(0)
    }

    /// Stores by how much the pool's clock is ahead, measured as `ahead` microseconds. Rounded up, so that no instant
    /// in the time of day is early, and unchanged if it is right to a millisecond: the two clocks are not read at the
    /// same moment, and a stored instant should be reported alike each time.
    fn learn_ahead(&self, offset: i64, mut ahead: i64) {
        let whole = |micros: i64| match u64::try_from(micros) {
            Ok(micros) if micros >= 1000 => micros.div_ceil(1000),
            _ => 0,
        };
        let known = self.offsets.ahead.load(Ordering::Relaxed);
        if whole(ahead) > known {
            // A thread that was stopped between the two reads has measured too much.
            for _ in 0..2 {
                let (wall, now) = read(&*self.clock);
                ahead = ahead.min(offset.saturating_sub(wall.saturating_sub(now)));
            }
        }
        let ahead = whole(ahead);
        if ahead != known && (ahead == 0 || ahead + 1 != known) {
            self.offsets.ahead.store(ahead, Ordering::Relaxed);
        }
    }

    /// Returns the time.
    pub fn now(&self) -> Millis {
        self.now_micros() / 1000
    }

    /// Returns the machine's time of day, which may be set back.
    pub fn time_of_day(&self) -> Millis {
        self.clock.wall_micros() / 1000
    }

    /// Returns by how many milliseconds it was ahead of the time of day when last read, rounded up; 0 below one.
    pub fn ahead(&self) -> Millis {
        self.offsets.ahead.load(Ordering::Relaxed)
    }

    /// Converts the time `at` of this clock to the time of day.
    pub fn to_day(&self, at: Micros) -> Millis {
        (at / 1000).saturating_sub(self.ahead())
    }

    /// Converts the time of day `at` to this clock, rounded up.
    pub fn at_time_of_day(&self, at: Millis) -> Micros {
        at.saturating_add(self.ahead()).saturating_mul(1000)
    }

    /// Logs a step of the machine's clock since the last call.
    pub fn log_step(&self) {
        let (wall, now) = read(&*self.clock);
        let offset = wall.saturating_sub(now);
        let step = offset.saturating_sub(self.offsets.wall.swap(offset, Ordering::Relaxed));
        self.now_micros();
        let (step_ms, ahead_ms) = (step / 1000, self.ahead());
        if step <= -STEP {
            tracing::warn!(
                step_ms,
                ahead_ms,
                "the system clock was set back; the pool's clock continues unchanged"
            );
        } else if step >= STEP {
            tracing::warn!(
                step_ms,
                ahead_ms,
                "the system clock was set ahead, or the system slept; the pool's clock follows"
            );
        }
    }
}

/// Reads the time of day, then the monotonic clock. In this order a thread that is stopped in between reads the time
/// of day too early, which has no effect. In the other order each such stop would move the pool's clock ahead
/// permanently.
fn read(clock: &dyn Clock) -> (i64, i64) {
    let wall = signed(clock.wall_micros());
    (wall, signed(clock.now_micros()))
}

fn signed(time: Micros) -> i64 {
    i64::try_from(time).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::clock::ManualClock;

    const START: Millis = 1_700_000_000_000;
    const HOUR: i64 = 3_600_000;
    const YEAR: i64 = 366 * 24 * HOUR;

    fn clocks() -> (Arc<ManualClock>, PoolClock) {
        let machine = Arc::new(ManualClock::new(START));
        (machine.clone(), PoolClock::new(machine, 0))
    }

    #[test]
    fn a_step_back_neither_stops_it_nor_moves_it() {
        for step in [1000, HOUR, YEAR, START as i64 + YEAR] {
            let (machine, pool) = clocks();
            machine.step_wall(-step);
            assert_eq!(pool.now(), START, "not back by {step} ms");
            machine.advance(Duration::from_millis(10));
            assert_eq!(pool.now(), START + 10, "time continues after a step back by {step} ms");
            machine.step_wall(step);
            machine.advance(Duration::from_millis(10));
            assert_eq!(pool.now(), START + 20, "and as before when the clock is right again");
        }
    }

    #[test]
    fn a_step_ahead_is_followed_at_once() {
        for step in [1000, HOUR, YEAR] {
            let (machine, pool) = clocks();
            machine.step_wall(step);
            assert_eq!(pool.now(), START + step as u64, "ahead by {step} ms");
            machine.step_wall(-step);
            machine.advance(Duration::from_millis(10));
            assert_eq!(pool.now(), START + step as u64 + 10, "time continues from there");
        }
    }

    #[test]
    fn a_machine_that_starts_without_the_time_does_not_run_ahead_once_it_is_told() {
        // Like a machine without a battery: it starts in 1970, and gets the time a minute later.
        let machine = Arc::new(ManualClock::new(0));
        let pool = PoolClock::new(machine.clone(), START * 1000);
        assert_eq!(pool.now(), START, "time continues from the stored time");
        machine.advance(Duration::from_secs(60));
        assert_eq!(pool.now(), START + 60_000, "and at its pace");
        machine.step_wall(START as i64 + HOUR);
        assert_eq!(pool.now(), START + 60_000 + HOUR as u64, "the pool's clock equals the time of day");
        assert_eq!(pool.ahead(), 0, "nothing of it is left");
    }

    /// Guards against a warning that a fresh pool is ahead by nothing: both clocks are truncated to whole
    /// microseconds.
    #[test]
    fn a_microsecond_between_the_two_clocks_is_not_ahead() {
        let machine = Arc::new(ManualClock::new(START));
        let pool = PoolClock::new(machine.clone(), machine.wall_micros() + 1);
        assert_eq!(pool.ahead(), 0, "milliseconds that the pool is ahead of the time of day");
        let pool = PoolClock::new(machine.clone(), machine.wall_micros() + 1_000);
        assert_eq!(pool.ahead(), 1, "milliseconds that the pool is ahead of the time of day");
    }

    /// Guards against instants that are early forever, because the clock was ahead once.
    #[test]
    fn an_instant_of_the_time_of_day_is_itself_again_and_never_early() {
        for micros in [0, 1, 999, 1000, 1001, 59_999_999, 3_600_000_000u64] {
            let machine = Arc::new(ManualClock::new(START));
            let pool = PoolClock::new(machine.clone(), machine.wall_micros() + micros);
            let at = START + 5_000;
            let due = pool.at_time_of_day(at);
            assert_eq!(pool.to_day(due), at, "{micros} us ahead");
            machine.advance(Duration::from_micros(5_000_000 - 1001));
            assert!(pool.now_micros() < due, "{micros} us ahead: due more than a millisecond too early");
        }
    }

    proptest! {
        /// The rule, for any changes of the time of day: (elapsed time, step of the time of day).
        #[test]
        fn it_is_never_behind_and_ahead_only_by_what_was_set(
            stored in prop_oneof![Just(0), Just(START), Just(START + YEAR as u64)],
            happens in prop::collection::vec((0u64..100_000, -2 * YEAR..2 * YEAR, 0..3), 1..50),
        ) {
            let machine = Arc::new(ManualClock::new(START));
            let pool = PoolClock::new(machine.clone(), stored * 1000);
            let mut expected = START.max(stored);
            prop_assert_eq!(pool.now(), expected);
            for (passes, step, kind) in happens {
                machine.advance(Duration::from_millis(passes));
                // Most steps are small.
                machine.step_wall(match kind { 0 => step, 1 => step / YEAR * 1000, _ => 0 });
                expected = (expected + passes).max(machine.wall_micros() / 1000);
                prop_assert_eq!(pool.now(), expected, "after {} ms and a step by {} ms", passes, step);
            }
        }
    }
}
