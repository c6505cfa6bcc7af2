//! Reacts to an endpoint that is down or overloaded: the breaker stops everything except probes, the
//! slow-down halves the concurrency. Both belong to one queue on one server. Time is an argument; knows no
//! job.

use std::time::Duration;

use tokio::time::Instant;

/// Number of consecutive failures of the endpoint that opens the breaker.
const ROW: u32 = 10;
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// A due probe begins within this time if a job and a slot are available.
const PROBED: Duration = Duration::from_secs(2);
/// The full concurrency is restored after this time without a request to slow down.
const SLOW_FOR: Duration = Duration::from_secs(60);

/// Conclusion about the endpoint from the result of an attempt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sign {
    #[default]
    None,
    /// It responds, with a status not listed below.
    Answers,
    /// It is down: connection refused or reset, timeout, TLS, unknown host, 502, 503, 504.
    Down,
}

/// Whether requests may be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    /// All slots may be used.
    Closed,
    /// One request may be sent now, as a probe.
    Probe,
    /// No request may be sent before this time; `None`: until the probe has ended.
    Wait(Option<Instant>),
}

/// Counts failures of the endpoint, and opens after too many in a row.
#[derive(Debug, Default)]
pub struct Breaker {
    row: u32,
    open: Option<Open>,
}

#[derive(Debug)]
struct Open {
    pause: Duration,
    next: Instant,
    probing: bool,
    /// Time of the last failed attempt.
    failed: Instant,
    /// Another server has delivered since, while this server had no job to probe with. The endpoint then counts as up.
    answers_others: bool,
}

impl Breaker {
    /// Whether only probes may be sent.
    pub fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Whether the endpoint is down, as far as this server knows.
    pub fn is_down(&self) -> bool {
        self.open.as_ref().is_some_and(|open| !open.answers_others)
    }

    /// Learns that the last successful attempt of any server ended `ago`. Returns whether that changes
    /// [`is_down`](Breaker::is_down) to false. This server still sends a probe first: its own network may be
    /// broken.
    pub fn learn_delivered(&mut self, now: Instant, ago: Option<Duration>) -> bool {
        let Some(open) = &mut self.open else { return false };
        let delivered = ago.and_then(|ago| now.checked_sub(ago));
        let idle = !open.probing && now >= open.next + PROBED;
        let ends = idle && delivered > Some(open.failed) && !open.answers_others;
        open.answers_others |= ends;
        ends
    }

    /// Returns which requests may be sent at `now`.
    pub fn gate(&self, now: Instant) -> Gate {
        match &self.open {
            None => Gate::Closed,
            Some(open) if open.probing => Gate::Wait(None),
            Some(open) if now < open.next => Gate::Wait(Some(open.next)),
            Some(_) => Gate::Probe,
        }
    }

    pub fn probing(&mut self) {
        if let Some(open) = &mut self.open {
            open.probing = true;
        }
    }

    /// Records the end of an attempt. Returns whether that changes [`is_down`](Breaker::is_down).
    pub fn ended(&mut self, now: Instant, probe: bool, sign: Sign) -> bool {
        match (sign, &mut self.open) {
            (Sign::Answers, open) => {
                self.row = 0;
                open.take().is_some_and(|open| !open.answers_others)
            }
            (sign, Some(open)) => {
                if probe {
                    open.probing = false;
                    if sign == Sign::Down {
                        open.pause = (open.pause * 2).min(LONGEST_PAUSE);
                    }
                    open.next = now + open.pause;
                }
                if sign == Sign::Down {
                    open.failed = now;
                }
                sign == Sign::Down && std::mem::take(&mut open.answers_others)
            }
            (Sign::None, None) => false,
            (Sign::Down, None) => {
                self.row += 1;
                if self.row < ROW {
                    return false;
                }
                self.open = Some(Open {
                    pause: FIRST_PAUSE,
                    next: now + FIRST_PAUSE,
                    probing: false,
                    failed: now,
                    answers_others: false,
                });
                true
            }
        }
    }

    /// Starts afresh after a change of the setting. Returns whether the endpoint was down.
    pub fn reset(&mut self) -> bool {
        std::mem::take(self).is_down()
    }
}

/// Halves the concurrency when the endpoint asks for fewer requests.
#[derive(Debug, Default)]
pub struct SlowDown {
    /// The reduced concurrency, and when it was halved last.
    halved: Option<(u32, Instant)>,
}

impl SlowDown {
    /// Returns how many of `slots` may be used.
    pub fn limit(&self, slots: u32) -> u32 {
        self.halved.map_or(slots, |(limit, _)| limit.min(slots))
    }

    /// Handles a 429, 502, 503 or 504 for a request that began at `began`. Requests that were in flight
    /// together halve the concurrency once.
    pub fn slow(&mut self, began: Instant, now: Instant, slots: u32) {
        if self.halved.is_none_or(|(_, at)| began >= at) {
            self.halved = Some(((self.limit(slots) / 2).max(1), now));
        }
    }

    /// Handles a success: the concurrency grows by one.
    pub fn success(&mut self, now: Instant, slots: u32) {
        if let Some((limit, at)) = &mut self.halved {
            *limit += 1;
            if *limit >= slots || now >= *at + SLOW_FOR {
                self.halved = None;
            }
        }
    }

    /// Restores the full concurrency when its time has come. Returns when to call again.
    pub fn tick(&mut self, now: Instant) -> Option<Instant> {
        let (_, at) = self.halved?;
        if now >= at + SLOW_FOR {
            self.halved = None;
            return None;
        }
        Some(at + SLOW_FOR)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn ten_in_a_row_open_it_and_probes_come_ever_later() {
        let (mut breaker, mut now) = (Breaker::default(), Instant::now());
        for _ in 0..9 {
            assert!(!breaker.ended(now, false, Sign::Down), "nine are not enough");
        }
        assert!(!breaker.ended(now, false, Sign::Answers), "an answer ends the row");
        for _ in 0..9 {
            breaker.ended(now, false, Sign::Down);
        }
        assert_eq!(breaker.gate(now), Gate::Closed);
        assert!(breaker.ended(now, false, Sign::Down), "the tenth opens it");
        let mut pauses = Vec::new();
        for _ in 0..9 {
            let Gate::Wait(Some(next)) = breaker.gate(now) else { panic!("it waits for the next probe") };
            pauses.push(next.duration_since(now).as_secs());
            now = next;
            assert_eq!(breaker.gate(now), Gate::Probe);
            breaker.probing();
            assert_eq!(breaker.gate(now), Gate::Wait(None), "one probe at a time");
            assert!(!breaker.ended(now, false, Sign::Down), "requests that were in flight change nothing");
            assert_eq!(breaker.gate(now), Gate::Wait(None), "the probe is still in flight");
            assert!(!breaker.ended(now, true, Sign::Down), "it stays open");
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60, 60], "seconds between probes");
        assert!(breaker.ended(now, true, Sign::Answers), "an answer closes it");
        assert_eq!(breaker.gate(now), Gate::Closed);
    }

    #[test]
    fn a_probe_that_says_nothing_is_followed_by_another() {
        let (mut breaker, now) = (Breaker::default(), Instant::now());
        let opened = (0..ROW).filter(|_| breaker.ended(now, false, Sign::Down)).count();
        assert_eq!(opened, 1, "it opens once");
        breaker.probing();
        breaker.ended(now + SECOND, true, Sign::None);
        assert_eq!(breaker.gate(now + SECOND), Gate::Wait(Some(now + 2 * SECOND)), "after the same pause");
    }

    #[test]
    fn requests_that_were_under_way_together_halve_once() {
        let (mut slow_down, began) = (SlowDown::default(), Instant::now());
        assert_eq!(slow_down.limit(50), 50);
        let now = began + SECOND;
        (0..50).for_each(|_| slow_down.slow(began, now, 50));
        assert_eq!(slow_down.limit(50), 25, "all of them began before it was halved");
        slow_down.slow(now, now + SECOND, 50);
        assert_eq!(slow_down.limit(50), 12, "one that began after it halves again");
        (0..5).for_each(|_| slow_down.success(now + SECOND, 50));
        assert_eq!(slow_down.limit(50), 17, "each success gives one back");
        (0..40).for_each(|_| slow_down.success(now + SECOND, 50));
        assert_eq!(slow_down.limit(50), 50, "it is whole again");
        (0..9).for_each(|n| slow_down.slow(now + n * 2 * SECOND, now + n * 2 * SECOND + SECOND, 50));
        assert_eq!(slow_down.limit(50), 1, "one is always left");
        assert_eq!(slow_down.tick(now + 200 * SECOND), None);
        assert_eq!(slow_down.limit(50), 50, "whole again after a minute of peace");
    }

    /// Guards against a server that shows `open` forever: another server delivered everything right after the last
    /// failure here, and this server had no reports.
    #[test]
    fn what_another_server_delivers_after_the_last_failure_ends_the_open_state() {
        let (mut breaker, began) = (Breaker::default(), Instant::now());
        let failed = began + SECOND;
        let opened = (0..ROW).filter(|_| breaker.ended(failed, false, Sign::Down)).count();
        assert_eq!(opened, 1, "it opens once");
        let ago = |now: Instant, at: Instant| Some(now.duration_since(at));
        let later = failed + 10 * SECOND;
        assert!(!breaker.learn_delivered(later, None), "no server has delivered anything");
        assert!(!breaker.learn_delivered(later, ago(later, began)), "that was before the failure");
        let delivered = failed + SECOND / 10;
        let soon = failed + SECOND;
        assert!(!breaker.learn_delivered(soon, ago(soon, delivered)), "a probe may begin by itself");
        assert!(breaker.learn_delivered(later, ago(later, delivered)), "it has nothing to probe with");
        assert!((!breaker.is_down()) && breaker.is_open(), "not down, and it probes first");
        assert!(!breaker.learn_delivered(later, ago(later, delivered)), "once");
        breaker.probing();
        assert!(breaker.ended(later + SECOND, true, Sign::Down), "down again by its own probe");
    }
}
