//! Push sends a queue's jobs to a URL. One [`worker`] per pushed queue consumes them through the dispatcher,
//! like any consumer, and only into free slots. Settings and results are shared by all servers. Knows the engine's
//! verbs and an HTTP client, and nothing of the HTTP server.
//!
//! ```text
//! Push ── every half second, or at once after a change here ──> PushRecords
//!   └── worker of each queue ── setting ── client: address, TLS, connections
//!         ├── breaker, slow-down, window: how many requests may begin now
//!         └── delivery: builds requests, judges responses
//! ```

mod acks;
pub mod address;
mod attempt;
mod breaker;
mod changes;
pub mod client;
mod delivery;
mod demand;
pub mod encrypted;
pub mod key;
mod leases;
pub mod limits;
pub mod names;
mod ok_when;
mod rates;
mod record;
pub mod records;
pub mod results;
pub mod setting;
pub mod shared;
pub mod shown;
mod sign;
mod slots;
mod worker;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use self::address::AddressGuard;
use self::delivery::Plan;
use self::key::PushKey;
use self::record::{PushRecord, Switch};
use self::records::KnownRecords;
use self::shared::{LOOK, PushServer, PushedPool, PushedQueue};
pub use self::shown::PushState;
use crate::clock::Millis;
use crate::error::{Error, LOCKED};
use crate::name::{PoolName, Queue};

/// Why an operator's request failed.
#[derive(Debug, thiserror::Error)]
pub enum PushError {
    #[error("{0}")]
    Bad(String),
    #[error("the queue is not pushed")]
    NotFound,
    #[error("{0}")]
    Store(#[from] Error),
}

type Result<T> = std::result::Result<T, PushError>;
/// All pushed queues of this server.
pub struct Push {
    server: Arc<PushServer>,
    guard: Arc<AddressGuard>,
    pools: BTreeMap<PoolName, Arc<PushedPool>>,
    /// A worker ends when it is removed, since that drops the sender of its plans.
    workers: Mutex<HashMap<PushKey, Running>>,
    /// Records that no key of this server opens.
    locked: Mutex<HashSet<PushKey>>,
    /// Notified after a change on this server.
    changed: Notify,
    /// Number of reads of the records that have begun, and of the last one whose records the workers have.
    begun: AtomicU64,
    applied: watch::Sender<u64>,
}

/// A worker and its plan.
struct Running {
    plan: watch::Sender<Arc<Plan>>,
    /// The record that the plan was made of.
    record: bytes::Bytes,
    /// Since when the endpoint is down, as far as this server knows; 0 while it is up.
    down_since: Arc<AtomicU64>,
    task: JoinHandle<()>,
}

/// Shows no record: there are secrets in them.
impl fmt::Debug for Push {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Push").field("server", &self.server).finish_non_exhaustive()
    }
}

impl Push {
    /// Pushes nothing until [`run`](Push::run).
    pub fn new(
        server: PushServer,
        guard: Arc<AddressGuard>,
        pools: impl IntoIterator<Item = PushedPool>,
    ) -> Arc<Push> {
        let pools = pools.into_iter().map(|pool| (pool.name.clone(), Arc::new(pool))).collect();
        Arc::new(Push {
            server: Arc::new(server),
            guard,
            pools,
            workers: Mutex::default(),
            locked: Mutex::default(),
            changed: Notify::new(),
            begun: AtomicU64::new(0),
            applied: watch::Sender::new(0),
        })
    }

    /// Applies settings until the tasks are stopped.
    pub async fn run(self: Arc<Self>) {
        let stop = self.server.tasks.stopping().clone();
        let (mut known, mut is_behind, mut is_clean) = (KnownRecords::default(), false, false);
        while !stop.is_cancelled() {
            // A worker that has died is started again.
            is_behind |= self.a_worker_died();
            let round = self.begun.fetch_add(1, Ordering::AcqRel) + 1;
            let read = stop.run_until_cancelled(self.server.records.catch_up(&mut known)).await;
            let Some(read) = read else { return };
            self.server.outage.report(&read);
            // After an error the current workers go on; `known` may be incomplete.
            is_behind |= !matches!(read, Ok(false));
            if is_behind && read.is_ok() {
                self.follow(&known.all);
                is_behind = false;
            }
            if read.is_ok() {
                self.applied.send_replace(round);
            }
            if read.is_ok() && !std::mem::replace(&mut is_clean, true) {
                self.delete_old_rates(&known).await;
            }
            self.divide();
            // A notification or the timeout: both refresh.
            let _ = stop.run_until_cancelled(timeout(LOOK, self.changed.notified())).await;
        }
    }

    /// Begins to stop: consumes nothing more.
    pub fn stop(&self) {
        self.server.tasks.stop();
    }

    /// Completes when push has stopped, every request has ended, and each of their jobs is acked or returned.
    pub async fn ended(&self) {
        self.server.tasks.ended().await;
    }

    /// Cancels the requests still in flight. Their jobs return with their tries.
    pub fn cut(&self) {
        self.server.cut.cancel();
    }

    /// Whether a worker ended that should be running, which is a bug. Removes it.
    fn a_worker_died(&self) -> bool {
        let mut workers = self.workers.lock();
        let before = workers.len();
        workers.retain(|key, running| {
            let died = running.task.is_finished();
            if died {
                tracing::error!(queue = %key, "push: the push worker has died; it is restarted");
            }
            !died
        });
        workers.len() < before
    }

    /// Deletes what is left of the rates of queues that are no longer pushed.
    async fn delete_old_rates(&self, known: &KnownRecords) {
        let queues: HashSet<String> = known.all.keys().map(PushKey::to_string).collect();
        let pool = |name: &str| self.pools.iter().find(|(pool, _)| pool.as_str() == name);
        let now = |name: &str| pool(name).map(|(_, pool)| pool.engine.now());
        let deleted = rates::delete_old(&*self.server.settings, |queue| queues.contains(queue), now).await;
        self.server.outage.report(&deleted);
    }

    /// Returns the locked records, whose workers end: their settings may have changed. Logs newly locked ones.
    fn locked(&self, records: &BTreeMap<PushKey, bytes::Bytes>) -> HashSet<PushKey> {
        let is_locked = |(key, record): &(&PushKey, &bytes::Bytes)| {
            self.pools.contains_key(&key.pool) && encrypted::locked(record).is_some()
        };
        let locked: HashSet<PushKey> = records.iter().filter(is_locked).map(|(key, _)| key.clone()).collect();
        let mut before = self.locked.lock();
        let mut new = locked.difference(&before);
        if let Some(queue) = new.next() {
            let queues = 1 + new.count();
            tracing::error!(queues, %queue, "push: nothing is sent from some queues: {LOCKED}");
        }
        before.clone_from(&locked);
        locked
    }

    fn follow(&self, records: &BTreeMap<PushKey, bytes::Bytes>) {
        let locked = self.locked(records);
        let mut workers = self.workers.lock();
        workers.retain(|key, _| records.contains_key(key) && !locked.contains(key));
        for (key, bytes) in records.iter().filter(|(key, _)| !locked.contains(*key)) {
            // Another server may have more pools.
            let Some(pool) = self.pools.get(&key.pool) else { continue };
            if workers.get(key).is_some_and(|running| running.record == *bytes) {
                continue;
            }
            let record = PushRecord::parse(bytes, &key.queue.name);
            let plan = match record.and_then(|record| Plan::new(&key.queue, &record)) {
                Ok(plan) => Arc::new(plan),
                Err(why) => {
                    tracing::error!(queue = %key, why, "push: the stored push setting is unusable; set it again");
                    continue;
                }
            };
            match workers.get_mut(key) {
                Some(running) => {
                    running.record = bytes.clone();
                    running.plan.send_replace(plan);
                }
                None => {
                    let (plan, plans) = watch::channel(plan);
                    let down_since = Arc::new(AtomicU64::new(0));
                    let queue = PushedQueue::new(self.server.clone(), pool.clone(), key.clone());
                    let run = worker::run(Arc::new(queue), plans, down_since.clone());
                    let task = self.server.tasks.spawn(run);
                    workers.insert(key.clone(), Running { plan, record: bytes.clone(), down_since, task });
                }
            }
        }
    }

    /// Divides the shared resources. Repeated, since queues return their excess only over time.
    fn divide(&self) {
        let queues = self.workers.lock().len();
        self.server.connections.divide(queues);
        self.server.memory.divide(queues);
    }

    /// Returns the state of each pushed queue of a pool.
    pub fn states(&self, pool: &PoolName) -> HashMap<Queue, PushState> {
        let of_pool = |key: &&PushKey| key.pool == *pool;
        let locked = self.locked.lock();
        let locked = locked.iter().filter(of_pool).map(|key| (key.queue.clone(), PushState::Locked));
        let mut states: HashMap<Queue, PushState> = locked.collect();
        for (key, running) in self.workers.lock().iter().filter(|(key, _)| of_pool(key)) {
            let state = match running.plan.borrow().switch {
                Switch::On if running.down_since.load(Ordering::Relaxed) > 0 => PushState::Open,
                Switch::On => PushState::On,
                Switch::Paused => PushState::Paused,
                Switch::Off => PushState::Off,
            };
            states.insert(key.queue.clone(), state);
        }
        states
    }

    /// Returns since when the endpoints of a pool's queues are down, as far as this server knows.
    pub fn failing_since(&self, pool: &PoolName) -> HashMap<Queue, Millis> {
        let workers = self.workers.lock();
        let of_pool = workers.iter().filter(|(key, _)| key.pool == *pool);
        let since =
            of_pool.map(|(key, running)| (key.queue.clone(), running.down_since.load(Ordering::Relaxed)));
        since.filter(|(_, since)| *since > 0).collect()
    }
}
