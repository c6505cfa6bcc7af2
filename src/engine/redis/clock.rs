//! An estimate of the Redis's clock, for the ids and ages that this process makes, and for the deadlines of its
//! calls. It is corrected by replies that say what time it is, those that prove it wrong. What is due the scripts
//! decide by the Redis's own clock, never by this one.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::clock::{Micros, Millis};

/// Later than any time. Lua reads it without loss.
const NEVER: Micros = (1 << 53) - 1;

/// The local monotonic clock plus an offset.
#[derive(Debug)]
pub struct RedisClock {
    base: Instant,
    /// Redis time minus local time since `base`, in microseconds.
    offset: AtomicI64,
    /// The latest time told: a clock does not go backwards, not even after a failover to a slower one.
    last: AtomicU64,
}

impl RedisClock {
    /// A clock that knows nothing yet; [`learn`](RedisClock::learn) sets it.
    pub fn new() -> RedisClock {
        RedisClock { base: Instant::now(), offset: AtomicI64::new(i64::MIN), last: AtomicU64::new(0) }
    }

    /// A moment to hand to `learn` later: taken just before a call is sent.
    pub fn mark(&self) -> Instant {
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

    /// When that Redis's clock will be `after` from now. This follows a clock that was set back too: a deadline
    /// that is too late would let calls begin that nobody waits for.
    pub fn in_a_while(&self, after: Duration) -> Micros {
        match self.offset.load(Ordering::Relaxed) {
            i64::MIN => NEVER,
            offset => (offset + (self.base.elapsed() + after).as_micros() as i64).max(0) as u64,
        }
    }

    /// Now, in microseconds.
    pub fn now_micros(&self) -> Micros {
        self.at(self.base.elapsed())
    }

    /// Now, in milliseconds.
    pub fn now(&self) -> Millis {
        self.now_micros() / 1000
    }

    fn at(&self, elapsed: Duration) -> Micros {
        let offset = self.offset.load(Ordering::Relaxed).max(0);
        let now = (offset + elapsed.as_micros() as i64).max(0) as u64;
        self.last.fetch_max(now, Ordering::Relaxed).max(now)
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
        assert_eq!(clock.in_a_while(MS(1)), NEVER, "nothing is known yet");
        let hour = 3_600_000_000;
        for at in [2 * hour, 9 * hour, hour] {
            let sent = clock.mark();
            clock.learn(sent, at);
            let told = clock.in_a_while(MS(4000));
            let expected = at + 4_000_000;
            assert!((expected..expected + 1_000_000).contains(&told), "{told} is not 4 s after {at}");
        }
    }

    #[test]
    fn a_clock_that_was_set_is_followed_forward_and_held_backward() {
        let clock = RedisClock::new();
        clock.learn_between(MS(0), MS(0), 5_000_000);
        clock.learn_between(MS(1), MS(1), 9_000_000);
        assert_eq!(clock.at(MS(1)), 9_000_000, "the Redis is ahead now");
        clock.learn_between(MS(2), MS(2), 7_000_000);
        assert_eq!(clock.at(MS(2)), 9_000_000, "not backwards");
        assert_eq!(clock.at(MS(2003)), 9_001_000, "it goes on once the Redis has caught up");
    }
}
