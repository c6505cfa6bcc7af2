//! What is known of a queue at one step of time, as nine numbers. Knows no ring and no clock.

/// How many numbers a point has.
pub const FIELDS: usize = 9;
/// Where the age stands among them.
pub const OLDEST: usize = 8;
/// How many of them, from the first, count what happened within the step. The others are levels.
pub const COUNTS: usize = 4;

/// The figures of a queue in one step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Point {
    /// Jobs published, handed out, acked, and died within the step, as far as this server knows.
    pub counts: [u64; COUNTS],
    pub ready: u64,
    pub dead: u64,
    /// `None` where the store does not know them by queue.
    pub delayed: Option<u64>,
    pub running: Option<u64>,
    /// For how long the first ready job has been ready, in tenths of a second. `None` when none is.
    pub oldest: Option<u64>,
}

impl Point {
    /// As numbers. What may be unknown is 0 then, and otherwise one more than it is.
    pub fn fields(&self) -> [u64; FIELDS] {
        let [a, b, c, d] = self.counts;
        let some = |known: Option<u64>| known.map_or(0, |value| value.saturating_add(1));
        [a, b, c, d, self.ready, self.dead, some(self.delayed), some(self.running), some(self.oldest)]
    }

    /// The point whose fields these are.
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

    /// Both of one step: counts are added, and of each level the greatest counts.
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

    /// Those of two queues: everything is added, but for the age, of which the greatest counts. What is unknown of one
    /// is unknown of both.
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

    /// The same with counts that were made over so many steps, as they were in one.
    pub fn spread(&self, steps: u64) -> Point {
        Point { counts: self.counts.map(|count| count / steps.max(1)), ..*self }
    }
}
