//! When each partition is to be pumped next. Asks nobody.

use std::time::Duration;

use parking_lot::Mutex;

use super::partitions::Partition;
use crate::clock::{self, Micros};
use crate::engine::next_due::NextDue;

/// The longest pause between two pumps of a partition: nobody tells this process of the jobs that other servers store.
pub const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// All partitions.
#[derive(Debug)]
pub struct Dues {
    each: Mutex<Vec<Due>>,
    /// The earliest of them.
    pub next: NextDue,
}

#[derive(Clone, Copy, Debug)]
struct Due {
    /// When it is to be pumped; 0: it never was.
    at: Micros,
    /// The earliest that this process has stored since its last pump began: the pump may not have seen it.
    stored: Micros,
    /// When what has ended was looked for last, and how often that was.
    swept: Micros,
    sweeps: u64,
    /// Its pump has not ended.
    under_way: bool,
}

impl Dues {
    pub fn new(count: u16) -> Dues {
        let due = Due { at: 0, stored: Micros::MAX, swept: 0, sweeps: 0, under_way: false };
        Dues { each: Mutex::new(vec![due; count.into()]), next: NextDue::default() }
    }

    /// A job was stored that is due then.
    pub fn stored(&self, partition: Partition, due: Micros) {
        let mut each = self.each.lock();
        let of = &mut each[usize::from(partition)];
        (of.at, of.stored) = (of.at.min(due), of.stored.min(due));
        drop(each);
        self.next.stored(due);
    }

    /// The partitions that are to be pumped now and are not. A pump of them begins. A time that is too far away is one of a clock
    /// that was set back since.
    pub fn begin(&self, now: Micros) -> Vec<Partition> {
        let latest = now + clock::micros(LONGEST_PAUSE);
        let mut each = self.each.lock();
        let due = each.iter_mut().zip(0..).filter(|(due, _)| due.at <= now || due.at > latest);
        let due = due.filter(|(due, _)| !due.under_way).map(|(due, partition)| {
            (due.stored, due.under_way) = (Micros::MAX, true);
            partition
        });
        let due = due.collect();
        self.next.pump_begins();
        due
    }

    /// A pump has ended, and said how long it is until the next is due.
    pub fn said(&self, partition: Partition, now: Micros, next: Duration) {
        let mut each = self.each.lock();
        let of = &mut each[usize::from(partition)];
        of.at = (now + clock::micros(next.min(LONGEST_PAUSE))).min(of.stored);
        of.under_way = false;
        let at = of.at;
        drop(each);
        // Nobody may wait for this pump any more.
        self.next.stored(at);
    }

    /// Whether it is time to look for what has ended, and how often that was done.
    pub fn sweep(&self, partition: Partition, now: Micros, every: Micros) -> Option<u64> {
        let of = &mut self.each.lock()[usize::from(partition)];
        if of.swept.abs_diff(now) < every {
            return None;
        }
        (of.swept, of.sweeps) = (now, of.sweeps + 1);
        Some(of.sweeps)
    }

    /// The pumps have ended that were waited for. When the next partition is to be pumped.
    pub fn end(&self) -> Micros {
        let at = self.each.lock().iter().filter(|due| !due.under_way).map(|due| due.at).min();
        let at = at.unwrap_or(Micros::MAX);
        self.next.pump_said(at);
        at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Micros = 1_000_000;

    #[test]
    fn partitions_are_pumped_when_they_are_due_and_once_a_second() {
        let (dues, now) = (Dues::new(3), 1000 * SECOND);
        assert_eq!(dues.begin(now), [0, 1, 2], "none was pumped yet");
        dues.said(0, now, Duration::from_millis(20));
        dues.said(1, now, Duration::MAX);
        dues.said(2, now, Duration::MAX);
        assert_eq!(dues.end(), now + 20_000);
        assert_eq!(dues.begin(now + 10_000), [0_u16; 0]);
        dues.stored(2, now + 15_000);
        assert_eq!(dues.begin(now + 20_000), [0, 2]);
        dues.said(0, now + 20_000, Duration::MAX);
        dues.stored(2, now + 25_000);
        dues.said(2, now + 20_000, Duration::MAX);
        assert_eq!(dues.end(), now + 25_000, "what was stored while the pump was under way");
        assert_eq!(dues.begin(now + SECOND), [1, 2]);
    }

    /// Guards against a node that does not answer and is asked again and again.
    #[test]
    fn a_partition_is_pumped_once_at_a_time() {
        let (dues, now) = (Dues::new(2), 1000 * SECOND);
        dues.begin(now);
        dues.said(0, now, Duration::MAX);
        assert_eq!(dues.end(), now + SECOND, "the other one's pump goes on by itself");
        assert_eq!(dues.begin(now + 5 * SECOND), [0]);
        dues.said(1, now + 5 * SECOND, Duration::ZERO);
        assert_eq!(dues.begin(now + 5 * SECOND), [1]);
    }

    /// Guards against a pool that is not pumped for an hour because its Redis's clock went back by one.
    #[test]
    fn a_clock_that_was_set_back_makes_no_partition_wait() {
        let (dues, now) = (Dues::new(1), 10_000 * SECOND);
        dues.begin(now);
        dues.said(0, now, Duration::MAX);
        assert_eq!(dues.begin(now - 3600 * SECOND), [0]);
    }
}
