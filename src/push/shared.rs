//! What the parts of push share: one [`PushServer`] for the process, a [`PushedPool`] for each of its pools, and a
//! [`PushedQueue`] for each worker with its requests, acks and leases. Decides nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::{OnceCell, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::client;
use super::limits::{Part, PushShares};
use super::record::{self, PushRecord};
use super::store::{PushKey, PushReport, PushStore};
use crate::clock::{Clock, Millis};
use crate::dispatch::Dispatcher;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::job::JobIds;
use crate::metrics::{PoolMetrics, PushSeries};
use crate::name::PoolName;
use crate::outage::Outage;
use crate::process::tasks::Tasks;
use crate::random;

/// The pause before what has failed is tried again.
pub const AGAIN: Duration = Duration::from_millis(250);
/// How often the store is asked for changes: every server knows of one within a second.
pub const LOOK: Duration = Duration::from_millis(500);
/// How much memory bodies and answers in flight may take over all queues, in KiB.
pub const MEMORY: usize = 256 << 10;

/// What all workers of this server share.
#[derive(Debug)]
pub struct PushServer {
    pub store: Arc<dyn PushStore>,
    /// Hears whether the store answers.
    pub outage: Arc<Outage>,
    pub client: Arc<dyn client::Send>,
    pub clock: Arc<dyn Clock>,
    /// This process; what its workers are called begins with it.
    pub name: String,
    /// Workers, leases, requests, acks.
    pub tasks: Tasks,
    /// Requests in flight are cut.
    pub cut: CancellationToken,
    /// How many requests of all queues may be in flight: open files are bounded.
    pub connections: Arc<PushShares>,
    /// How much memory their bodies and answers may take, in KiB: [`MEMORY`].
    pub memory: Arc<PushShares>,
}

impl PushServer {
    pub fn now(&self) -> Millis {
        self.clock.wall_micros() / 1000
    }

    /// Changes a record by `change`, which may be asked more than once, and answers what was stored. `change` answers
    /// nothing when there is nothing to change. It is given a record that cannot be read as an error. One that is locked
    /// is never changed.
    pub async fn change<E: From<Error>>(
        &self,
        key: &PushKey,
        mut change: impl FnMut(Result<Option<PushRecord>>) -> std::result::Result<Option<PushRecord>, E>,
    ) -> std::result::Result<Option<PushRecord>, E> {
        loop {
            let old = self.store.record(key).await.inspect_err(|error| self.outage.failed(error))?;
            let record = match old.as_ref().map(|old: &Bytes| record::read(key, old)).transpose() {
                Err(Error::Locked) => return Err(Error::Locked.into()),
                record => record,
            };
            let Some(new) = change(record)? else { return Ok(None) };
            if self.store.swap(key, old, Some(new.to_bytes().into())).await? {
                return Ok(Some(new));
            }
        }
    }
}

#[derive(Debug)]
pub struct PushedPool {
    pub name: PoolName,
    pub engine: Arc<dyn Engine>,
    pub dispatcher: Arc<Dispatcher>,
    pub ids: Arc<JobIds>,
    pub metrics: Arc<PoolMetrics>,
    /// Hears whether the pool's store answers.
    pub outage: Arc<Outage>,
}

/// What the worker of one queue shares with its requests, its acks and its leases.
#[derive(Debug)]
pub struct PushedQueue {
    pub server: Arc<PushServer>,
    pub pool: Arc<PushedPool>,
    pub key: PushKey,
    /// This worker, for the leases: an earlier one of the same queue may still have requests in flight.
    pub name: Arc<str>,
    pub metrics: PushSeries,
    /// What was not told to the store yet.
    pub report: Mutex<PushReport>,
    /// When an attempt has delivered last, on this server.
    pub delivered: Mutex<Option<Instant>>,
    /// The revision of the record for which it is stored that the endpoint has said 410, or was tried in vain.
    pub turned_off: watch::Sender<u64>,
    /// How many attempts have failed, on any server.
    pub failed: AtomicU64,
    /// The store knows that attempts fail.
    pub failure_told: OnceCell<()>,
    /// No other server pushes the queue.
    pub alone: AtomicBool,
    /// What it holds of connections and memory.
    pub connections: Part,
    pub memory: Part,
}

impl PushedQueue {
    pub fn new(server: Arc<PushServer>, pool: Arc<PushedPool>, key: PushKey) -> PushedQueue {
        PushedQueue {
            name: format!("{}-{}", server.name, random::ulid()).into(),
            metrics: pool.metrics.pushed(&key.queue),
            report: Mutex::default(),
            delivered: Mutex::default(),
            turned_off: watch::Sender::new(0),
            failed: AtomicU64::new(0),
            failure_told: OnceCell::new(),
            alone: AtomicBool::new(false),
            connections: server.connections.join(),
            memory: server.memory.join(),
            server,
            pool,
            key,
        }
    }
}
