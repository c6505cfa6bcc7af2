//! An estimate of Redis's clock, for ids and ages computed by this process, and for deadlines of its calls. A reply
//! that contains a time corrects the estimate if it contradicts it. Scripts never use the estimate: jobs become due by
//! Redis's own clock.
//!
//! The estimate follows Redis's clock forwards and backwards, at once. It goes backwards when Redis's clock is set, and
//! after a failover to a Redis whose clock is behind. All servers of one Redis then agree about the ages of jobs
//! published from then on.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use crate::clock::Micros;

/// Later than any time. Lua represents it exactly.
const NEVER: Micros = (1 << 53) - 1;

/// The local monotonic clock plus an offset.
#[derive(Debug)]
pub struct RedisClock {
    base: Instant,
    /// Redis time minus local time since `base`, in microseconds.
    offset: AtomicI64,
}

impl RedisClock {
    /// Returns an unset clock; [`learn`](RedisClock::learn) sets it.
    pub fn new() -> RedisClock {
        RedisClock { base: Instant::now(), offset: AtomicI64::new(i64::MIN) }
    }

    /// Returns the start time for a later `learn`: call it just before sending a call.
    pub fn begin(&self) -> Instant {
        Instant::now()
    }

    /// Corrects the estimate: Redis's clock read `at`, sometime between `sent` and now. The offset changes only if it
    /// contradicts that, and by the least amount: slow replies do not degrade a good estimate.
    pub fn learn(&self, sent: Instant, at: Micros) {
        self.learn_between(sent.duration_since(self.base), self.base.elapsed(), at);
    }

    fn learn_between(&self, sent: Duration, received: Duration, at: Micros) {
        let least = at as i64 - received.as_micros() as i64;
        let most = at as i64 - sent.as_micros() as i64;
        let offset = self.offset.load(Ordering::Relaxed);
        self.offset.store(
            if offset == i64::MIN { (least + most) / 2 } else { offset.clamp(least, most.max(least)) },
            Ordering::Relaxed,
        );
    }

    /// Returns the estimated time of Redis's clock at `moment`. It follows a clock that was set back, since a deadline
    /// too late would let calls begin after their callers stopped waiting.
    pub fn at_moment(&self, moment: Instant) -> Micros {
        match self.offset.load(Ordering::Relaxed) {
            i64::MIN => NEVER,
            offset => (offset + moment.duration_since(self.base).as_micros() as i64).max(0) as u64,
        }
    }

    pub fn now_micros(&self) -> Micros {
        self.at(self.base.elapsed())
    }

    fn at(&self, elapsed: Duration) -> Micros {
        let offset = self.offset.load(Ordering::Relaxed).max(0);
        (offset + elapsed.as_micros() as i64).max(0) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    #[test]
    fn a_slow_reply_does_not_make_the_clock_worse() {
        let clock = RedisClock::new();
        clock.learn_between(MS(10), MS(10), 1_000_000);
        clock.learn_between(MS(10), MS(900), 1_500_000);
        assert_eq!(clock.at(MS(10)), 1_000_000, "the second reply says nothing that the first denies");
    }

    #[test]
    fn a_time_to_come_follows_a_clock_that_was_set_also_backward() {
        let clock = RedisClock::new();
        assert_eq!(clock.at_moment(Instant::now()), NEVER, "nothing is known yet");
        let hour = 3_600_000_000;
        for at in [2 * hour, 9 * hour, hour] {
            let sent = clock.begin();
            clock.learn(sent, at);
            let told = clock.at_moment(Instant::now() + MS(4000));
            let expected = at + 4_000_000;
            assert!((expected..expected + 1_000_000).contains(&told), "{told} is not 4 s after {at}");
        }
    }

    #[test]
    fn a_clock_that_was_set_is_followed_ahead_and_back() {
        const HOUR: u64 = 3_600_000_000;
        let clock = RedisClock::new();
        clock.learn_between(MS(0), MS(0), 5 * HOUR);
        clock.learn_between(MS(1), MS(1), 6 * HOUR);
        assert_eq!(clock.at(MS(1)), 6 * HOUR, "the Redis's clock was set ahead");
        clock.learn_between(MS(2), MS(2), 4 * HOUR);
        assert_eq!(clock.at(MS(2)), 4 * HOUR, "and back");
        assert_eq!(clock.at(MS(3)), 4 * HOUR + 1000, "time continues from there");
    }
}
