//! An estimate of the Redis's clock, for the ids and ages that this process makes, and for the deadlines of its
//! calls. It is corrected by replies that say what time it is, those that prove it wrong. What is due the scripts
//! decide by the Redis's own clock, never by this one.
//!
//! The estimate follows the Redis's clock ahead and back, at once. Back it goes when the Redis's clock is set, and
//! after a failover to a Redis whose clock is behind. All servers of one Redis then agree about the age of the jobs
//! that are published from there on.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use crate::clock::Micros;

/// Later than any time. Lua reads it without loss.
const NEVER: Micros = (1 << 53) - 1;

/// The local monotonic clock plus an offset.
#[derive(Debug)]
pub struct RedisClock {
    base: Instant,
    /// Redis time minus local time since `base`, in microseconds.
    offset: AtomicI64,
}

impl RedisClock {
    /// A clock that knows nothing yet; [`learn`](RedisClock::learn) sets it.
    pub fn new() -> RedisClock {
        RedisClock { base: Instant::now(), offset: AtomicI64::new(i64::MIN) }
    }

    /// A moment to hand to `learn` later: taken just before a call is sent.
    pub fn begin(&self) -> Instant {
        Instant::now()
    }

    /// The Redis said that it was `at`, somewhere between `sent` and now. The offset is moved only when it
    /// cannot be true any more, and then as little as possible: slow replies do not make a good clock worse.
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

    /// What that Redis's clock will say at `moment`. This follows a clock that was set back too: a deadline
    /// that is too late would let calls begin that nobody waits for.
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
        assert_eq!(clock.at(MS(3)), 4 * HOUR + 1000, "it goes on from there");
    }
}
