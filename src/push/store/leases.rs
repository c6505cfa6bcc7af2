//! Divides the slots and the rate of a pushed queue among the workers of one process. Plain values: time is an
//! argument, and the caller persists the rows that the next start needs.

use std::sync::Arc;
use std::time::Duration;

use ahash::HashMap;

use super::{Grant, Lease};
use crate::clock::Millis;

/// A number of requests of a rate, and until when they may begin, or count.
pub(super) type Begun = (u32, Millis);

/// How far ahead the store records that requests may begin, so that rows are written rarely.
const AHEAD: Duration = Duration::from_secs(60);

/// Number of locks over which queues are spread, for leases and for records and reports.
pub(super) const TURNS: usize = 64;

pub(super) fn millis(time: Duration) -> Millis {
    time.as_millis() as Millis
}

/// The leases of one queue.
#[derive(Debug, Default)]
pub(super) struct Leased {
    pub workers: HashMap<Arc<str>, Holds>,
    /// Requests of the rate that belong to no lease any more, and until when they count.
    pub lent: Vec<Begun>,
    /// How many requests may have begun, and until when: the next start must count them. By the pool's clock, which
    /// continues over restarts. `None` until it was read.
    pub stored: Option<Begun>,
}

/// A worker's last lease, and when it ends.
#[derive(Debug)]
pub(super) struct Holds {
    until: Millis,
    slots: u32,
    rate: u32,
    pub in_flight: u32,
    pub open: Option<Millis>,
}

impl Leased {
    /// Returns the grant for one worker. Works like the script for a Redis, but grants all free slots to the first that
    /// asks: of two workers, one is ending.
    pub fn divide(&mut self, lease: &Lease, now: Millis) -> Grant {
        let until = now + millis(lease.per);
        self.lent.retain(|(_, until)| *until > now);
        self.workers.remove(&lease.server);
        let ended = self.workers.extract_if(|_, holds| holds.until <= now);
        self.lent.extend(ended.map(|(_, holds)| (holds.rate, until)));
        let (slots, rate) = self
            .workers
            .values()
            .fold((0, 0), |(slots, rate), holds| (slots + holds.slots, rate + holds.rate));
        let mut grant = Grant { alone: self.workers.is_empty(), ..Grant::default() };
        if !lease.time.is_zero() {
            // A worker without demand keeps the requests it has begun: if they moved to `lent`, they would count
            // twice when it wants slots again.
            grant.rate = lease.rate.min(lease.rate_held);
        }
        if lease.wants > 0 {
            grant.slots = lease.slots.saturating_sub(slots);
            let lent: u32 = self.lent.iter().map(|(lent, _)| lent).sum();
            grant.rate = grant.rate.max(lease.rate.saturating_sub(rate + lent));
        }
        if lease.rate_held > grant.rate {
            self.lent.push((lease.rate_held - grant.rate, until));
        }
        if !lease.time.is_zero() {
            let holds = Holds {
                until: now + millis(lease.time),
                slots: lease.holds.max(grant.slots),
                rate: grant.rate,
                in_flight: lease.in_flight,
                open: lease.open,
            };
            self.workers.insert(lease.server.clone(), holds);
        }
        grant
    }

    /// Returns the row that the next start must find, if it differs from the stored one: how many requests may begin,
    /// and until when; none if nothing counts. The caller sets `stored` once it is written. `now` is by the pool's
    /// clock.
    pub fn row(&self, lease: &Lease, now: Millis) -> Option<Begun> {
        let (rate, until) = self.stored.unwrap_or_default();
        let row = match self.workers.is_empty() {
            true => (self.lent.iter().map(|(lent, _)| lent).sum(), now),
            false if lease.rate > rate || now + millis(lease.time) > until => {
                (lease.rate, now + millis(AHEAD))
            }
            false => return None,
        };
        (row.0 > 0 || rate > 0).then_some(row)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a lease of worker `a`, at a rate of three per hour.
    fn lease(wants: u32, rate_held: u32) -> Lease {
        Lease {
            server: "a".into(),
            time: Duration::from_secs(10),
            slots: 4,
            wants,
            holds: 0,
            rate: 3,
            per: Duration::from_secs(3600),
            rate_held,
            in_flight: 0,
            open: None,
        }
    }

    /// Guards against a pause after which earlier requests count twice, and none may begin for one `per`.
    #[test]
    fn who_wants_nothing_keeps_what_it_has_begun_and_gets_the_rest_back() {
        let mut leased = Leased::default();
        assert_eq!(leased.divide(&lease(4, 0), 1000).rate, 3, "alone: everything");
        assert_eq!(leased.divide(&lease(0, 2), 2000).rate, 2, "two were begun");
        assert_eq!(leased.divide(&lease(4, 2), 3000).rate, 3, "it wants again");
        let leave = Lease { time: Duration::ZERO, ..lease(0, 2) };
        assert_eq!(leased.divide(&leave, 4000).rate, 0, "a server that leaves holds nothing");
        assert_eq!(
            leased.divide(&Lease { server: "b".into(), ..lease(4, 0) }, 5000).rate,
            1,
            "two still count"
        );
    }

    /// Guards against taking a row for stored although its write failed: a kill would lose the rate.
    #[test]
    fn a_row_is_asked_for_until_it_was_stored() {
        let (mut leased, lease) = (Leased::default(), lease(4, 0));
        leased.divide(&lease, 1000);
        let row = leased.row(&lease, 1000);
        assert_eq!(row.map(|(rate, _)| rate), Some(3), "three may be begun");
        leased.divide(&lease, 2000);
        assert_eq!(leased.row(&lease, 2000).map(|(rate, _)| rate), Some(3), "it was not stored");
        leased.stored = row;
        leased.divide(&lease, 3000);
        assert_eq!(leased.row(&lease, 3000), None, "it was");
    }
}
