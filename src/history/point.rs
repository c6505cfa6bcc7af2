//! Statistics of a queue in one step of time, as nine numbers.

/// Number of fields of a point.
pub const FIELDS: usize = 9;
/// Number of leading fields that count events within the step. The others are levels.
pub const COUNTS: usize = 4;

/// Statistics of a queue in one step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Point {
    /// Jobs published, delivered, acked, and died within the step, as far as this server knows.
    pub counts: [u64; COUNTS],
    pub ready: u64,
    pub dead: u64,
    /// `None` if the store does not count them by queue.
    pub delayed: Option<u64>,
    pub running: Option<u64>,
    /// Age of the oldest ready job in tenths of a second; `None` if there is none.
    pub oldest: Option<u64>,
}

impl Point {
    /// Returns the number of events within the step.
    pub fn events(&self) -> u64 {
        self.counts.iter().fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// Encodes the point as numbers. Optional fields are 0 if unknown, otherwise their value plus one.
    pub fn fields(&self) -> [u64; FIELDS] {
        let [a, b, c, d] = self.counts;
        let some = |known: Option<u64>| known.map_or(0, |value| value.saturating_add(1));
        [a, b, c, d, self.ready, self.dead, some(self.delayed), some(self.running), some(self.oldest)]
    }

    /// Decodes [`fields`](Point::fields).
    pub fn of(fields: [u64; FIELDS]) -> Point {
        let [a, b, c, d, ready, dead, delayed, running, oldest] = fields;
        let known = |value: u64| value.checked_sub(1);
        Point {
            counts: [a, b, c, d],
            ready,
            dead,
            delayed: known(delayed),
            running: known(running),
            oldest: known(oldest),
        }
    }

    /// Merges two points of one step: adds counts, and takes the maximum of each level.
    pub fn and(&self, later: &Point) -> Point {
        let mut counts = self.counts;
        for (sum, more) in counts.iter_mut().zip(later.counts) {
            *sum = sum.saturating_add(more);
        }
        Point {
            counts,
            ready: self.ready.max(later.ready),
            dead: self.dead.max(later.dead),
            delayed: self.delayed.max(later.delayed),
            running: self.running.max(later.running),
            oldest: self.oldest.max(later.oldest),
        }
    }

    /// Adds the points of two queues: sums everything except the age, which is the maximum. A field unknown in one is
    /// unknown in the result.
    pub fn plus(&self, other: &Point) -> Point {
        let both = |a: Option<u64>, b: Option<u64>| Some(a?.saturating_add(b?));
        let sum = self.and(other);
        Point {
            counts: sum.counts,
            ready: self.ready.saturating_add(other.ready),
            dead: self.dead.saturating_add(other.dead),
            delayed: both(self.delayed, other.delayed),
            running: both(self.running, other.running),
            oldest: sum.oldest,
        }
    }

    /// Returns the point with its counts divided by `steps`.
    pub fn spread(&self, steps: u64) -> Point {
        Point { counts: self.counts.map(|count| count / steps.max(1)), ..*self }
    }
}
