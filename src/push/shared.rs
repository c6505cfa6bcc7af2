//! State shared within push: one [`PushServer`] per process, a [`PushedPool`] for each of its pools, and a
//! [`PushedQueue`] shared by a worker and its requests, acks and leases. Decides nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, OnceCell, mpsc, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::client;
use super::demand::{SharedDemand, Slots};
use super::key::PushKey;
use super::limits::{Part, PushShares};
use super::record::{self, PushRecord};
use super::records::PushRecords;
use super::results::PushReport;
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
use crate::settings::SettingsStore;

/// Pause before an operation that failed is retried.
pub const AGAIN: Duration = Duration::from_millis(250);
/// How often the settings are asked for changes: every server learns of one within a second.
pub const LOOK: Duration = Duration::from_millis(500);
/// Memory for bodies and responses in flight, over all queues, in KiB.
pub const MEMORY: usize = 256 << 10;

/// Shared by all workers of this server.
#[derive(Debug)]
pub struct PushServer {
    pub settings: Arc<dyn SettingsStore>,
    pub records: PushRecords,
    /// Receives whether calls of the settings succeed.
    pub outage: Arc<Outage>,
    pub client: Arc<dyn client::Send>,
    pub clock: Arc<dyn Clock>,
    /// Name of this process in leases; unique.
    pub name: String,
    /// Workers, leases, requests, acks.
    pub tasks: Tasks,
    /// Cancels the requests in flight.
    pub cut: CancellationToken,
    /// Bounds the requests in flight of all queues, since each has a file open.
    pub connections: Arc<PushShares>,
    /// Bounds the memory of their bodies and responses, in KiB: [`MEMORY`].
    pub memory: Arc<PushShares>,
    pub leasing: Leasing,
}

/// The way to the leasing task of this server, which runs while there are workers.
#[derive(Debug, Default)]
pub struct Leasing {
    pub(super) new: Mutex<Option<mpsc::UnboundedSender<NewWorker>>>,
    /// Notified when a demand has changed.
    pub(super) wake: Notify,
}

/// A worker that begins to lease.
#[derive(Debug)]
pub(super) struct NewWorker {
    pub queue: Arc<PushedQueue>,
    pub demand: Arc<SharedDemand>,
    pub slots: watch::Sender<Slots>,
}

impl PushServer {
    pub fn now(&self) -> Millis {
        self.clock.wall_micros() / 1000
    }

    /// Replaces a record by the result of `change`, and returns the stored record. `change` may be called more than
    /// once, receives a record that cannot be read as an error, and returns `None` if there is nothing to change. A
    /// locked record is never changed.
    pub async fn change<E: From<Error>>(
        &self,
        key: &PushKey,
        mut change: impl FnMut(Result<Option<PushRecord>>) -> std::result::Result<Option<PushRecord>, E>,
    ) -> std::result::Result<Option<PushRecord>, E> {
        loop {
            let old = self.records.get(key).await.inspect_err(|error| self.outage.failed(error))?;
            let record = match old.as_ref().map(|old| record::read(key, &old.plain)).transpose() {
                Err(Error::Locked) => return Err(Error::Locked.into()),
                record => record,
            };
            let Some(new) = change(record)? else { return Ok(None) };
            let version = old.map(|old| old.version);
            if self.records.put(key, Some(new.to_bytes().into()), version).await? {
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
    /// Receives whether calls of the pool's store succeed.
    pub outage: Arc<Outage>,
}

/// Shared by the worker of one queue and its requests, acks and leases.
#[derive(Debug)]
pub struct PushedQueue {
    pub server: Arc<PushServer>,
    pub pool: Arc<PushedPool>,
    pub key: PushKey,
    /// Name of this worker for the leases: an earlier worker of the same queue may still have requests in flight.
    pub name: String,
    pub metrics: PushSeries,
    /// Results that are not reported yet.
    pub report: Mutex<PushReport>,
    /// When an attempt of this server last succeeded.
    pub delivered: Mutex<Option<Instant>>,
    /// Latest revision whose 410 is stored, or could not be stored.
    pub turned_off: watch::Sender<u64>,
    /// Number of failed attempts, on all servers.
    pub failed: AtomicU64,
    /// Set when the failure of an attempt is reported.
    pub failure_told: OnceCell<()>,
    /// Number of death messages dropped since one was last published.
    pub dropped_messages: AtomicU64,
    /// No other server pushes the queue.
    pub alone: AtomicBool,
    /// The queue's share of connections and of memory.
    pub connections: Part,
    pub memory: Part,
}

impl PushedQueue {
    pub fn new(server: Arc<PushServer>, pool: Arc<PushedPool>, key: PushKey) -> PushedQueue {
        PushedQueue {
            name: random::ulid().to_string(),
            metrics: pool.metrics.pushed(&key.queue),
            report: Mutex::default(),
            delivered: Mutex::default(),
            turned_off: watch::Sender::new(0),
            failed: AtomicU64::new(0),
            failure_told: OnceCell::new(),
            dropped_messages: AtomicU64::new(0),
            alone: AtomicBool::new(false),
            connections: server.connections.join(),
            memory: server.memory.join(),
            server,
            pool,
            key,
        }
    }
}
