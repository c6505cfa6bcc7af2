//! The Redis's clock as this process knows it, and when the next job is due by it. Both are estimates that
//! every reply with a time in it makes better; nothing here decides when a job moves, the Redis does.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::clock::Millis;

/// Microseconds since the epoch, by the Redis's clock.
pub type Micros = u64;

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
        let known = self.offset.load(Ordering::Relaxed);
        self.offset.store(
            if known == i64::MIN { (least + most) / 2 } else { known.clamp(least, most.max(least)) },
            Ordering::Relaxed,
        );
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

/// When the pump must look again, and who tells it that something is due before that.
#[derive(Debug)]
pub struct NextDue {
    state: Mutex<Dues>,
    earlier: Notify,
}

#[derive(Debug)]
struct Dues {
    /// What the last pump said.
    said: Micros,
    /// The earliest that this process has stored since the last pump began. The pump may not have seen it,
    /// whichever of the two replies is read first.
    stored: Micros,
}

impl Default for NextDue {
    fn default() -> NextDue {
        NextDue { state: Mutex::new(Dues { said: 0, stored: Micros::MAX }), earlier: Notify::new() }
    }
}

impl NextDue {
    /// A job was stored that is due then.
    pub fn stored(&self, due: Micros) {
        let mut state = self.state.lock();
        state.stored = state.stored.min(due);
        if due < state.said {
            state.said = due;
            drop(state);
            self.earlier.notify_one();
        }
    }

    /// A pump begins.
    pub fn pump_begins(&self) {
        self.state.lock().stored = Micros::MAX;
    }

    /// A pump said when the next is due.
    pub fn pump_said(&self, due: Micros) {
        let mut state = self.state.lock();
        state.said = due.min(state.stored);
        if state.stored < due {
            drop(state);
            self.earlier.notify_one();
        }
    }

    /// Waits until a job was stored that is due earlier than the last pump said.
    pub async fn earlier(&self) {
        self.earlier.notified().await;
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
    fn a_clock_that_was_set_is_followed_forward_and_held_backward() {
        let clock = RedisClock::new();
        clock.learn_between(MS(0), MS(0), 5_000_000);
        clock.learn_between(MS(1), MS(1), 9_000_000);
        assert_eq!(clock.at(MS(1)), 9_000_000, "the Redis is ahead now");
        clock.learn_between(MS(2), MS(2), 7_000_000);
        assert_eq!(clock.at(MS(2)), 9_000_000, "not backwards");
        assert_eq!(clock.at(MS(2003)), 9_001_000, "it goes on once the Redis has caught up");
    }

    #[tokio::test]
    async fn a_job_stored_while_a_pump_is_under_way_is_not_slept_over() {
        let due = NextDue::default();
        due.pump_begins();
        due.stored(500);
        due.pump_said(1000);
        tokio::time::timeout(MS(1000), due.earlier()).await.expect("due at 500, and the pump said 1000");
    }

    #[tokio::test(start_paused = true)]
    async fn a_later_job_wakes_nobody() {
        let due = NextDue::default();
        due.pump_begins();
        due.pump_said(1000);
        due.stored(1500);
        assert!(tokio::time::timeout(MS(1000), due.earlier()).await.is_err(), "1500 is after 1000");
    }
}
