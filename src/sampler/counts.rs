//! Counters of a queue between two samples, and their rates per second.

use crate::clock::Millis;

/// Number of seconds over which rates are averaged.
const RATES: u64 = 60;

/// Converts milliseconds to seconds.
pub(super) fn seconds(at: Millis) -> u64 {
    at / 1000
}

/// Counters of one queue.
#[derive(Debug, Default)]
pub(super) struct Counted {
    counts: [u64; 4],
    /// Counts within the last minute: start, end, and counts of each interval.
    pub lately: Vec<(u64, u64, [u64; 4])>,
    pub handed_out: Option<Millis>,
}

impl Counted {
    /// Records the current counters; the previous ones were read at `before`. Returns the increase.
    pub fn count(&mut self, counts: [u64; 4], before: u64, now: Millis) -> [u64; 4] {
        let mut since = counts;
        since.iter_mut().zip(self.counts).for_each(|(count, old)| *count = count.saturating_sub(old));
        self.counts = counts;
        if since[1] > 0 {
            self.handed_out = Some(now);
        }
        self.lately.retain(|(_, until, _)| until + RATES > seconds(now));
        if since != [0; 4] {
            self.lately.push((before, seconds(now), since));
        } else if self.lately.is_empty() {
            // Most of many queues are idle, so free the memory.
            self.lately = Vec::new();
        }
        since
    }

    /// Returns the rates per second at `now`, of a server that started at `began`.
    pub fn rates(&self, began: u64, now: u64) -> [f64; 4] {
        let from = self.lately.iter().map(|(from, ..)| *from).min().unwrap_or(now);
        // For a queue idle during part of the minute, the whole minute counts.
        let known = now.saturating_sub(began).clamp(1, RATES);
        let time = now.saturating_sub(from).max(known) as f64;
        let sum = |n: usize| self.lately.iter().map(|(.., counts)| counts[n]).sum::<u64>() as f64;
        std::array::from_fn(|n| sum(n) / time)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_those_of_the_last_minute() {
        let mut counted = Counted::default();
        let at = |second: u64| (1_000_000 + second) * 1000;
        for second in (10..=120).step_by(10) {
            let count = 5 * second;
            let since = counted.count([count, 0, 0, 0], 1_000_000 + second - 10, at(second));
            assert_eq!(since, [50, 0, 0, 0]);
        }
        assert_eq!(counted.rates(1_000_000, 1_000_120)[0], 5.0);
        let (mut early, quarter) = (Counted::default(), at(15));
        early.count([30, 0, 0, 0], 1_000_000, quarter);
        assert_eq!(early.rates(1_000_000, 1_000_015)[0], 2.0, "a server that began a moment ago");
        counted.count([600, 0, 0, 0], 1_000_120, at(150));
        assert_eq!(counted.rates(1_000_000, 1_000_150)[0], 2.5, "half a minute of nothing");
        counted.count([600, 1, 0, 0], 1_000_150, at(300));
        assert_eq!((counted.rates(1_000_000, 1_000_300)[0], counted.handed_out), (0.0, Some(at(300))));
    }
}
