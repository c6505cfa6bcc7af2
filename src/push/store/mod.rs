//! The state of push that all servers share besides the records: the leases of slots, and the results of deliveries.
//! Has plain values, the trait [`PushStore`], and its two implementations, which keep their data beside tokens and
//! limits: in a Redis, or on the disk of the default pool.

pub mod disk;
mod leases;
pub mod redis;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use crate::clock::Millis;
use crate::error::Result;
use crate::name::{PoolName, Queue};

/// Number of attempts kept per queue, over all servers.
pub const ATTEMPTS_KEPT: usize = 20;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PushKey {
    pub pool: PoolName,
    pub queue: Queue,
}

impl fmt::Display for PushKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.pool, self.queue)
    }
}

/// A worker's request for slots and rate of one queue. Repeated about once a second, which also shows that the server
/// lives.
#[derive(Clone, Debug, Default)]
pub struct Lease {
    /// Name of the worker; unique per server and start.
    pub server: Arc<str>,
    /// Duration of the lease. Zero: the worker leaves.
    pub time: Duration,
    /// Number of slots over all servers.
    pub slots: u32,
    /// How many of them this server could use.
    pub wants: u32,
    /// How many it holds: it may have that many requests in flight until it receives the grant.
    pub holds: u32,
    /// How many requests all servers together may begin per `per`; 0: no limit.
    pub rate: u32,
    pub per: Duration,
    /// How many of them this server may begin until it receives the grant; how many it has begun, if it wants no
    /// slots or its lease has ended.
    pub rate_held: u32,
    pub in_flight: u32,
    /// Since when its breaker is open.
    pub open: Option<Millis>,
}

/// Slots and rate granted to one server for the time of its [`Lease`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Grant {
    /// How many requests it may have in flight. If it holds more, it begins none until enough have ended.
    pub slots: u32,
    /// How many it may begin per `per`; 0 also if there is no limit.
    pub rate: u32,
    /// Number of failed attempts so far, on all servers.
    pub failed: u64,
    /// Time since the last successful attempt ended, on any server; `None` if unknown.
    pub delivered_ago: Option<Duration>,
    /// No other worker pushes the queue.
    pub alone: bool,
}

/// One attempt, as shown to operators. Stored as JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attempt {
    pub job_id: String,
    /// When it ended, by the server's clock.
    pub time: Millis,
    /// `None` if no response arrived.
    pub status: Option<u16>,
    pub milliseconds: u64,
    /// The beginning of the response, or why no response arrived.
    pub answer: String,
}

/// Results of deliveries.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PushReport {
    pub delivered: u64,
    pub failed: u64,
    /// Jobs that died after a failed attempt.
    pub dead: u64,
    /// Latest last; at most [`ATTEMPTS_KEPT`].
    pub attempts: Vec<Attempt>,
    /// Time since the last successful attempt ended. The store converts it to its own clock, since servers' clocks
    /// differ.
    #[serde(skip)]
    pub delivered_ago: Option<Duration>,
}

impl PushReport {
    /// Adds a later report.
    pub fn add(&mut self, more: PushReport) {
        self.delivered += more.delivered;
        self.failed += more.failed;
        self.dead += more.dead;
        self.delivered_ago = more.delivered_ago.or(self.delivered_ago);
        self.attempts.extend(more.attempts);
        let extra = self.attempts.len().saturating_sub(ATTEMPTS_KEPT);
        self.attempts.drain(..extra);
    }
}

/// Results of a queue over all servers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    pub report: PushReport,
    pub in_flight: u64,
    /// Since when the breaker of some server is open.
    pub open: Option<Millis>,
}

/// A store for push. Every method is one atomic step.
#[async_trait]
pub trait PushStore: Send + Sync + fmt::Debug + 'static {
    /// Divides slots and rate evenly among the servers that ask. All together never hold more than there is: a server
    /// gets more only after others have given it up. The lease of a server that does not renew it ends. Requests that
    /// it may have begun count in the rate for one more `per`, also after a restart.
    async fn lease(&self, key: &PushKey, lease: Lease) -> Result<Grant>;

    /// Adds a report to the results of a queue.
    async fn report(&self, key: &PushKey, report: PushReport) -> Result<()>;

    /// Deletes the results of a queue. Leases stay: requests may be in flight.
    async fn forget(&self, key: &PushKey) -> Result<()>;

    /// Returns the results of a queue over all servers.
    async fn seen(&self, key: &PushKey) -> Result<Seen>;
}
