//! What push keeps so that all servers share it: the record of each pushed queue, who holds how many of its slots, and
//! what became of its deliveries. Plain values, the trait [`PushStore`], and its two stores, which lie where tokens and
//! limits are kept: in a Redis, or on the disk of the default pool. What a record says is not known here: it is bytes,
//! and holds secrets.

pub mod disk;
mod leases;
pub mod redis;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::clock::Millis;
use crate::error::Result;
use crate::name::{PoolName, Queue};

/// How many attempts are remembered of a queue, over all servers.
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

/// Changes with every change of a record.
pub type Version = u64;

/// Every record. Its `Debug` shows none: a record holds secrets.
#[derive(Clone, Default)]
pub struct PushRecords {
    pub version: Version,
    pub all: Vec<(PushKey, Bytes)>,
}

impl fmt::Debug for PushRecords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PushRecords({} at {})", self.all.len(), self.version)
    }
}

/// What one server asks for, of one queue. Asked about once a second, which is also the sign that the server lives.
#[derive(Clone, Debug, Default)]
pub struct Lease {
    /// The name of the worker that asks: another one on each server, and after each start.
    pub server: Arc<str>,
    /// For how long the answer stands. Zero: the server leaves.
    pub time: Duration,
    /// How many slots there are over all servers.
    pub slots: u32,
    /// How many of them this server could use.
    pub wants: u32,
    /// How many it holds: it may have that many requests in flight until the answer.
    pub holds: u32,
    /// How many requests all servers together may begin in any `per`; 0: no limit.
    pub rate: u32,
    pub per: Duration,
    /// How many of them this server may begin until the answer; how many it has begun if it wants no slots, or if its
    /// lease has ended.
    pub rate_held: u32,
    pub in_flight: u32,
    /// Since when its breaker is open.
    pub open: Option<Millis>,
}

/// What one server may do, for as long as it asked: the answer to a [`Lease`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Grant {
    /// How many requests it may have in flight. Fewer than it holds: it begins none until so many are left.
    pub slots: u32,
    /// How many it may begin in any `per`; 0 where there is no limit, too.
    pub rate: u32,
    /// How many attempts have failed so far, on all servers.
    pub failed: u64,
    /// How long ago the last attempt ended that delivered, on any server; `None` if that is not known.
    pub delivered_ago: Option<Duration>,
    /// Nobody else pushes the queue.
    pub alone: bool,
}

/// One attempt, as it is shown. Stored as JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attempt {
    pub job_id: String,
    /// When it ended, by the server's clock.
    pub time: Millis,
    /// `None` where no answer came.
    pub status: Option<u16>,
    pub milliseconds: u64,
    /// The beginning of the answer, or why there was none.
    pub answer: String,
}

/// What became of deliveries.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PushReport {
    pub delivered: u64,
    pub failed: u64,
    /// Jobs that died by a failed attempt.
    pub dead: u64,
    /// The latest last; [`ATTEMPTS_KEPT`] at most.
    pub attempts: Vec<Attempt>,
    /// How long ago the last of the delivered ones ended. The store turns it into an instant of its own clock, since those
    /// of servers differ.
    #[serde(skip)]
    pub delivered_ago: Option<Duration>,
}

impl PushReport {
    /// Adds what came after it.
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

/// What all servers have told of a queue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    pub report: PushReport,
    pub in_flight: u64,
    /// Since when the breaker of some server is open.
    pub open: Option<Millis>,
}

/// A store of what push keeps. Every method is one atomic step.
#[async_trait]
pub trait PushStore: Send + Sync + fmt::Debug + 'static {
    /// Every record; `None` when nothing has changed since `known`.
    async fn records(&self, known: Option<Version>) -> Result<Option<PushRecords>>;

    /// The record of one queue.
    async fn record(&self, key: &PushKey) -> Result<Option<Bytes>>;

    /// Puts `new` in the place of the record `old`, byte by byte. `false`, and nothing changes, when it is another
    /// one by now. `None` is no record; without one what was reported of the queue is forgotten too. What is leased
    /// stands: requests may be in flight.
    async fn swap(&self, key: &PushKey, old: Option<Bytes>, new: Option<Bytes>) -> Result<bool>;

    /// Divides the slots and the rate among the servers that ask, evenly. What all of them hold is never more than
    /// there is: who gets more waits until others have given it up. A server that did not ask again within its time
    /// holds nothing. What it may have begun counts in the rate for one more `per`, also after a restart.
    async fn lease(&self, key: &PushKey, lease: Lease) -> Result<Grant>;

    /// Adds to what is known of a queue.
    async fn report(&self, key: &PushKey, report: PushReport) -> Result<()>;

    /// What all servers have told.
    async fn seen(&self, key: &PushKey) -> Result<Seen>;
}
