//! Demand and grant: plain values exchanged by a worker and the leasing task.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::clock::Millis;

/// Slots and rate granted to a worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Grant {
    /// How many requests it may have in flight. If it holds more, it begins none until enough have ended.
    pub slots: u32,
    /// How many it may begin per `per`; 0 also if there is no limit.
    pub rate: u32,
    /// Time since the last successful attempt ended on another server; `None` if unknown.
    pub delivered_ago: Option<Duration>,
}

/// The slots and rate of a worker, for a time.
#[derive(Clone, Copy, Debug)]
pub struct Slots {
    pub grant: Grant,
    /// The worker may do nothing after this time.
    pub until: Instant,
    /// Number of this grant, counted from 1.
    pub number: u64,
}

/// The lease that a worker asks for: the most that it may hold until it receives other slots, and how much it could use.
#[derive(Clone, Debug, Default)]
pub struct Demand {
    /// Number of the grant that it keeps to. 0: it has not begun.
    pub number: u64,
    /// Number of slots over all servers.
    pub slots: u32,
    /// How many of them this worker could use.
    pub wants: u32,
    /// How many it holds: it may have that many requests in flight until it receives a grant.
    pub holds: u32,
    /// How many requests all servers together may begin per `per`; 0: no limit.
    pub rate: u32,
    pub per: Duration,
    /// How many of them this worker may begin until it receives a grant; how many it has begun, if it wants no slots or
    /// its lease has ended.
    pub rate_held: u32,
    pub in_flight: u32,
    /// Since when its breaker is open.
    pub open: Option<Millis>,
    /// The worker and all of its requests have ended.
    pub has_ended: bool,
    /// Others must learn of it, or of an earlier one with this number.
    pub is_urgent: bool,
}

impl Demand {
    /// Whether the others must learn at once of a demand that differs from `told`.
    pub fn is_news(&self, told: &Demand) -> bool {
        let news = |of: &Demand| (of.slots, of.wants, of.rate, of.per, of.open, of.has_ended);
        news(self) != news(told)
    }
}

/// A worker's demand, as shared with the leasing task.
#[derive(Debug, Default)]
pub struct SharedDemand {
    pub demand: Mutex<Demand>,
    /// The worker has died or ended.
    pub is_gone: AtomicBool,
}
