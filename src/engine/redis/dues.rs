//! Schedules the pumps of each partition. The server that holds a partition's lease pumps it. Other servers check
//! whether the lease is free when it ends, and pump for jobs that they stored and that are due before the holder's next
//! pump. Uses no connection.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::cluster::map::Partition;
use crate::clock::{self, Micros};
use crate::engine::next_due::NextDue;
use crate::engine::notifier::Notifiers;

/// Longest pause between two pumps of a partition: this process is not notified of jobs that other servers store.
pub const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// The lease holder pumps each second, so it will have seen a job that is due later than this from now. lua/pump.lua
/// defines the duration of a lease.
const SEEN: Micros = 1_250_000;
/// Maximum error of a clock: a pump may run slightly before its job is due.
const EARLY: Micros = 5_000;

/// The pump times of all partitions.
#[derive(Debug)]
pub struct Dues {
    each: Mutex<Vec<Due>>,
    /// The earliest due time of all partitions.
    pub next: NextDue,
}

#[derive(Clone, Debug)]
struct Due {
    /// Time of the next pump; 0: never pumped.
    at: Micros,
    /// Earliest due time stored by this process since its last pump began: the pump may not have seen it.
    stored: Micros,
    /// Another server has the lease. `own` then has the due times of jobs recently stored by this process, rounded up
    /// to milliseconds: the holder may not have seen them.
    is_others: bool,
    own: BTreeSet<Micros>,
    /// A pump is in flight.
    under_way: bool,
}

/// A partition that must be pumped now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    pub partition: Partition,
    /// A job stored by this process is due: pumps without the lease too.
    pub is_own: bool,
}

/// The reply of a pump.
#[derive(Clone, Copy, Debug)]
pub struct Said {
    /// Time until the next job is due.
    pub next: Duration,
    /// Time that another server still has the lease.
    pub held: Duration,
}

impl Said {
    /// Returns a reply that requests another pump after this time.
    pub fn again(after: Duration) -> Said {
        Said { next: after, held: Duration::ZERO }
    }
}

impl Dues {
    pub fn new(count: u16, notifiers: Arc<Notifiers>) -> Dues {
        let due =
            Due { at: 0, stored: Micros::MAX, is_others: false, own: BTreeSet::new(), under_way: false };
        Dues { each: Mutex::new(vec![due; count.into()]), next: NextDue::new(notifiers) }
    }

    /// Records that a job was stored, due at `due`.
    pub fn stored(&self, partition: Partition, due: Micros, now: Micros) {
        let mut each = self.each.lock();
        let of = &mut each[usize::from(partition)];
        let mut at = due;
        if of.is_others {
            if due > now + SEEN {
                return; // the lease holder sees it in time
            }
            at = due.next_multiple_of(1000);
            of.own.insert(at);
        }
        (of.at, of.stored) = (of.at.min(at), of.stored.min(at));
        drop(each);
        self.next.stored(at);
    }

    /// Starts a pump of each partition that is due and not being pumped, and returns them. A time too far ahead was
    /// stored before Redis's clock was set back, and counts as due.
    pub fn begin(&self, now: Micros) -> Vec<Turn> {
        let latest = now + SEEN + EARLY;
        let mut each = self.each.lock();
        let due = each.iter_mut().zip(0..).filter(|(due, _)| due.at <= now || due.at > latest);
        let due = due.filter(|(due, _)| !due.under_way).map(|(due, partition)| {
            let is_own = due.stored <= now || due.own.first().is_some_and(|own| *own <= now);
            due.own = due.own.split_off(&(now + 1));
            (due.stored, due.under_way) = (Micros::MAX, true);
            Turn { partition, is_own }
        });
        let due = due.collect();
        self.next.pump_begins();
        due
    }

    /// Records the reply of a pump.
    pub fn said(&self, turn: Turn, now: Micros, said: Said) {
        let (next, held) = (clock::micros(said.next), clock::micros(said.held));
        let mut each = self.each.lock();
        let of = &mut each[usize::from(turn.partition)];
        of.is_others = held > 0;
        of.under_way = false;
        of.at = if of.is_others {
            // The job may be due a moment later by another clock.
            if turn.is_own && next < EARLY {
                of.own.insert(now + next.max(1000));
            }
            (now + held).min(of.own.first().copied().unwrap_or(Micros::MAX)).min(of.stored)
        } else {
            of.own.clear();
            (now + next.min(clock::micros(LONGEST_PAUSE))).min(of.stored)
        };
        let at = of.at;
        drop(each);
        // The pump task may no longer be waiting for this partition, so this wakes it if needed.
        self.next.stored(at);
    }

    /// Ends a round of pumps. Returns when the next partition must be pumped.
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

    fn begin(dues: &Dues, now: Micros) -> Vec<Partition> {
        dues.begin(now).into_iter().map(|turn| turn.partition).collect()
    }

    fn said(dues: &Dues, partition: Partition, now: Micros, next: Duration) {
        dues.said(Turn { partition, is_own: false }, now, Said::again(next));
    }

    #[test]
    fn partitions_are_pumped_when_they_are_due_and_once_a_second() {
        let (dues, now) = (Dues::new(3, Arc::default()), 1000 * SECOND);
        assert_eq!(begin(&dues, now), [0, 1, 2], "none was pumped yet");
        said(&dues, 0, now, Duration::from_millis(20));
        said(&dues, 1, now, Duration::MAX);
        said(&dues, 2, now, Duration::MAX);
        assert_eq!(dues.end(), now + 20_000);
        assert_eq!(begin(&dues, now + 10_000), [0_u16; 0]);
        dues.stored(2, now + 15_000, now);
        assert_eq!(begin(&dues, now + 20_000), [0, 2]);
        said(&dues, 0, now + 20_000, Duration::MAX);
        dues.stored(2, now + 25_000, now);
        said(&dues, 2, now + 20_000, Duration::MAX);
        assert_eq!(dues.end(), now + 25_000, "a time stored during the pump");
        assert_eq!(begin(&dues, now + SECOND), [1, 2]);
    }

    /// Guards against N servers that all pump each partition, and against a job that is late because its server relies
    /// on a holder that does not know of it.
    #[test]
    fn who_has_no_lease_pumps_for_what_it_has_stored_and_asks_when_the_lease_ends() {
        let (dues, now) = (Dues::new(1, Arc::default()), 1000 * SECOND);
        let held = Said { next: Duration::MAX, held: Duration::from_millis(700) };
        let [turn] = dues.begin(now)[..] else { panic!("it was never pumped") };
        assert!(!turn.is_own, "nothing was stored");
        dues.said(turn, now, held);
        dues.stored(0, now + 2 * SECOND, now);
        assert_eq!(dues.end(), now + 700_000, "the holder handles distant times");
        dues.stored(0, now + 20_300, now);
        dues.stored(0, now + 400_000, now);
        assert_eq!(begin(&dues, now + 20_300), [0_u16; 0], "a millisecond is as near as it needs");
        let [turn] = dues.begin(now + 21_000)[..] else { panic!("it is due") };
        assert!(turn.is_own, "the holder may not know of it");
        dues.said(turn, now + 21_000, Said { next: Duration::from_millis(379), ..held });
        assert_eq!(dues.end(), now + 400_000, "its other stored time");
        let [turn] = dues.begin(now + 400_000)[..] else { panic!("it is due") };
        dues.said(turn, now + 400_000, Said { next: Duration::from_micros(200), ..held });
        assert_eq!(dues.end(), now + 401_000, "the clock was a little early");
        let [turn] = dues.begin(now + 401_000)[..] else { panic!("it is due") };
        dues.said(turn, now + 401_000, Said { next: Duration::from_millis(30), ..held });
        assert_eq!(dues.end(), now + 1_101_000, "times stored by other servers are not its own");
        let [turn] = dues.begin(now + 1_101_000)[..] else { panic!("the lease ends") };
        assert!(!turn.is_own);
        dues.said(turn, now + 1_101_000, Said::again(Duration::from_millis(30)));
        assert_eq!(dues.end(), now + 1_131_000, "it has the lease now");
    }

    /// Guards against repeated pumps of a node that does not reply.
    #[test]
    fn a_partition_is_pumped_once_at_a_time() {
        let (dues, now) = (Dues::new(2, Arc::default()), 1000 * SECOND);
        begin(&dues, now);
        said(&dues, 0, now, Duration::MAX);
        assert_eq!(dues.end(), now + SECOND, "the pump of the other partition continues independently");
        assert_eq!(begin(&dues, now + 5 * SECOND), [0]);
        said(&dues, 1, now + 5 * SECOND, Duration::ZERO);
        assert_eq!(begin(&dues, now + 5 * SECOND), [1]);
    }

    /// Guards against a pool that is not pumped for an hour because Redis's clock was set back by an hour.
    #[test]
    fn a_clock_that_was_set_back_makes_no_partition_wait() {
        let (dues, now) = (Dues::new(1, Arc::default()), 10_000 * SECOND);
        begin(&dues, now);
        said(&dues, 0, now, Duration::MAX);
        assert_eq!(begin(&dues, now - 3600 * SECOND), [0]);
    }
}
