//! Metrics of a pool: the steps of its store, its queues, and push.

use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use ahash::{HashMap, HashSet};
use parking_lot::{Mutex, RwLock};
use prometheus::{Histogram, IntCounter, IntGauge};

use super::families::{PoolCounters, PoolFamilies, PushFamilies, StoreFamilies, ms};
use crate::job::JobId;
use crate::name::{PoolName, Queue};

/// Maximum number of queues with time series of their own. Further queues share one, so that a queue per job (fire and
/// wait) cannot fill the memory of the server and of Prometheus.
pub(super) const MOST_QUEUES: usize = 10_000;
/// Namespace and queue shared by the queues beyond the limit.
pub(super) const OTHER: &str = "(other)";
/// Queue shared by all queues named after a job. There is one for each job that a producer waits for (fire and wait),
/// and they are short-lived.
pub(super) const JOB_ID: &str = "(job id)";

/// Maximum number of changed queues to record. Further changes appear in the next sample.
const MOST_CHANGED: usize = 64;

/// Returns whether a queue is named after a job.
pub(super) fn is_job_id(queue: &Queue) -> bool {
    JobId::parse(queue.name.as_str()).is_some()
}

/// Declares the operations of a store with their label values.
macro_rules! operations {
    ($($operation:ident = $name:literal,)*) => {
        /// Operations of a store.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Operation { $($operation,)* }

        impl Operation {
            const ALL: &[Operation] = &[$(Operation::$operation,)*];

            fn name(self) -> &'static str {
                match self { $(Operation::$operation => $name,)* }
            }
        }
    };
}

operations! {
    Publish = "publish",
    Recall = "recall",
    CancelKey = "cancel_key",
    Consume = "consume",
    GiveBack = "give_back",
    Ack = "ack",
    Touch = "touch",
    Release = "release",
    Peek = "peek",
    Inspect = "inspect",
    Promote = "promote",
    ListJobs = "list_jobs",
    Size = "size",
    Destroy = "destroy",
    Respawn = "respawn",
    DeleteDead = "delete_dead",
    Pump = "pump",
    ListQueues = "list_queues",
    Stats = "stats",
    Delays = "delays",
    SetQuotas = "set_quotas",
}

/// Label of the operation that a disk does by itself.
pub(super) const SYNC: &str = "sync";

/// Metrics recorded by [`Metered`](crate::engine::metered::Metered).
#[derive(Debug)]
pub struct EngineMetrics {
    pub(super) pools: PoolFamilies,
    pub(super) stores: Arc<StoreFamilies>,
    pub(super) push: Arc<PushFamilies>,
    /// Queues with time series of their own.
    pub(super) named: Arc<Mutex<HashSet<Queue>>>,
    /// Metrics by pool, created on first use.
    pub(super) of_pools: Mutex<HashMap<PoolName, Arc<PoolMetrics>>>,
}

impl EngineMetrics {
    /// Returns the metrics of a pool, creating its series.
    pub fn pool(&self, pool: &PoolName) -> Arc<PoolMetrics> {
        let new = || Arc::new(PoolMetrics::new(self, pool));
        self.of_pools.lock().entry(pool.clone()).or_insert_with(new).clone()
    }
}

/// Metrics of one pool. A time series is looked up by its labels once, then cached.
#[derive(Debug)]
pub struct PoolMetrics {
    pub counters: PoolCounters,
    pool: PoolName,
    stores: Arc<StoreFamilies>,
    push: Arc<PushFamilies>,
    named: Arc<Mutex<HashSet<Queue>>>,
    /// By [`Operation`].
    steps: Box<[StepSeries]>,
    /// For a disk pool.
    disk: OnceLock<DiskSeries>,
    /// The series of `named` that belong to this pool.
    queues: RwLock<HashMap<Queue, Arc<QueueSeries>>>,
    /// Shared by the queues named after jobs.
    of_jobs: OnceLock<Arc<QueueSeries>>,
    /// Shared by the queues beyond the limit.
    others: OnceLock<Arc<QueueSeries>>,
    /// Queues whose statistics changed abruptly since the last sample: paused, respawned, destroyed, or jobs died.
    changed: Mutex<BTreeSet<Queue>>,
}

/// Series of one operation. lmstfy's two are split by success.
#[derive(Debug)]
struct StepSeries {
    seconds: Histogram,
    jobs: Histogram,
    ok: (Histogram, IntCounter),
    failed: (Histogram, IntCounter),
}

#[derive(Debug)]
struct DiskSeries {
    sync_seconds: Histogram,
    sync_calls: Histogram,
    expired: IntCounter,
}

/// Series of one queue. lmstfy's are created with their first observation.
#[derive(Debug)]
struct QueueSeries {
    namespace: Box<str>,
    queue: Box<str>,
    published: IntCounter,
    consumed: IntCounter,
    lateness: Histogram,
    dead: IntCounter,
    redelivered: IntCounter,
    released: IntCounter,
    elapsed: OnceLock<Histogram>,
    acked: OnceLock<Histogram>,
}

impl QueueSeries {
    fn counts(&self) -> [u64; 4] {
        let acked = self.acked.get().map_or(0, Histogram::get_sample_count);
        [self.published.get(), self.consumed.get(), acked, self.dead.get()]
    }
}

impl PoolMetrics {
    fn new(metrics: &EngineMetrics, pool: &PoolName) -> PoolMetrics {
        let stores = metrics.stores.clone();
        let steps = Operation::ALL.iter().map(|operation| {
            let name = operation.name();
            let of = |status| {
                let labels = [pool.as_str(), name, status];
                (stores.latency.with_label_values(&labels), stores.qps.with_label_values(&labels))
            };
            let labels = [pool.as_str(), name];
            let seconds = stores.store_seconds.with_label_values(&labels);
            let jobs = stores.batch_jobs.with_label_values(&labels);
            StepSeries { seconds, jobs, ok: of("ok"), failed: of("error") }
        });
        PoolMetrics {
            counters: metrics.pools.of(pool),
            pool: pool.clone(),
            steps: steps.collect(),
            stores,
            push: metrics.push.clone(),
            named: metrics.named.clone(),
            disk: OnceLock::new(),
            queues: RwLock::default(),
            of_jobs: OnceLock::new(),
            others: OnceLock::new(),
            changed: Mutex::default(),
        }
    }

    /// Records that the statistics of a queue in the last sample are outdated.
    pub fn changed(&self, queue: &Queue) {
        let mut changed = self.changed.lock();
        if changed.len() < MOST_CHANGED && !is_job_id(queue) {
            changed.insert(queue.clone());
        }
    }

    /// Removes and returns the queues that have changed.
    pub fn take_changed(&self) -> BTreeSet<Queue> {
        std::mem::take(&mut self.changed.lock())
    }

    /// Marks the pool as a disk pool that refuses publishes below `min_free` free bytes.
    pub fn on_disk(&self, min_free: u64) {
        self.stores.disk_min_free.with_label_values(&[self.pool.as_str()]).set(min_free as i64);
        self.disk();
    }

    fn disk(&self) -> &DiskSeries {
        self.disk.get_or_init(|| DiskSeries {
            sync_seconds: self.stores.store_seconds.with_label_values(&[self.pool.as_str(), SYNC]),
            sync_calls: self.stores.batch_jobs.with_label_values(&[self.pool.as_str(), SYNC]),
            expired: self.stores.expired_jobs.with_label_values(&[self.pool.as_str()]),
        })
    }

    /// Counts jobs published to a queue.
    pub fn published(&self, queue: &Queue, jobs: usize) {
        self.series(queue).published.inc_by(jobs as u64);
    }

    /// Records a delivery of a job of age `elapsed`, `late` after it was due.
    pub fn consumed(&self, queue: &Queue, elapsed: Duration, late: Duration) {
        let series = self.series(queue);
        series.consumed.inc();
        series.lateness.observe(late.as_secs_f64());
        let elapsed_ms = || self.stores.job_elapsed_ms.with_label_values(&self.labels(&series));
        series.elapsed.get_or_init(elapsed_ms).observe(ms(elapsed));
    }

    /// Records an ack of a job of age `elapsed`.
    pub fn acked(&self, queue: &Queue, elapsed: Duration) {
        let series = self.series(queue);
        let acked = || self.stores.job_ack_elapsed_ms.with_label_values(&self.labels(&series));
        series.acked.get_or_init(acked).observe(ms(elapsed));
    }

    /// Counts jobs that died.
    pub fn died(&self, queue: &Queue, jobs: u64) {
        self.series(queue).dead.inc_by(jobs);
        self.changed(queue);
    }

    /// Counts jobs that are ready again because the ttr of their delivery has ended.
    pub fn redelivered(&self, queue: &Queue, jobs: u64) {
        self.series(queue).redelivered.inc_by(jobs);
    }

    /// Counts a released job.
    pub fn released(&self, queue: &Queue) {
        self.series(queue).released.inc();
    }

    /// Counts jobs whose ttl has ended.
    pub fn expired(&self, jobs: u64) {
        self.disk().expired.inc_by(jobs);
    }

    /// Records a step of the store.
    pub fn step(&self, operation: Operation, ok: bool, took: Duration) {
        let series = &self.steps[operation as usize];
        series.seconds.observe(took.as_secs_f64());
        let (times, steps) = if ok { &series.ok } else { &series.failed };
        times.observe(ms(took));
        steps.inc();
    }

    /// Records the number of jobs of a step.
    pub fn batch(&self, operation: Operation, jobs: usize) {
        self.steps[operation as usize].jobs.observe(jobs as f64);
    }

    /// Records a sync that made `calls` calls durable.
    pub fn synced(&self, took: Duration, calls: usize) {
        let disk = self.disk();
        disk.sync_seconds.observe(took.as_secs_f64());
        disk.sync_calls.observe(calls as f64);
    }

    /// Creates the series of calls that wait for replicas.
    pub fn waits_for_replicas(&self) {
        let _ = self.stores.wait_seconds.with_label_values(&[self.pool.as_str()]);
    }

    /// Records the duration of a call that waited for replicas.
    pub fn waited(&self, took: Duration) {
        self.stores.wait_seconds.with_label_values(&[self.pool.as_str()]).observe(took.as_secs_f64());
    }

    /// Returns the metrics of a pushed queue.
    pub fn pushed(&self, queue: &Queue) -> PushSeries {
        let series = self.series(queue);
        let labels = self.labels(&series);
        let [pool, namespace, queue] = labels;
        let attempts = |outcome| self.push.attempts.with_label_values(&[pool, namespace, queue, outcome]);
        PushSeries {
            delivered: attempts("delivered"),
            failed: attempts("failed"),
            dead: attempts("dead"),
            gone: attempts("gone"),
            in_flight: self.push.in_flight.with_label_values(&labels),
            breaker_open: self.push.breaker_open.with_label_values(&labels),
            seconds: self.push.seconds.with_label_values(&labels),
        }
    }

    /// Returns the numbers of jobs of a queue published, delivered, acked, and died since the start. `None` if the
    /// queue has no series of its own.
    pub fn counts(&self, queue: &Queue) -> Option<[u64; 4]> {
        self.queues.read().get(queue).map(|series| series.counts())
    }

    /// Like [`counts`](PoolMetrics::counts), for all queues without series of their own.
    pub fn counts_of_others(&self) -> [u64; 4] {
        let others = [self.of_jobs.get(), self.others.get()].into_iter().flatten();
        others.fold([0; 4], |mut sum, series| {
            sum.iter_mut().zip(series.counts()).for_each(|(sum, count)| *sum += count);
            sum
        })
    }

    /// Creates the series of a queue.
    pub fn knows(&self, queue: &Queue) {
        self.series(queue);
    }

    /// Removes the series of a deleted queue, except for those of push.
    pub fn forget(&self, queue: &Queue) {
        if self.queues.write().remove(queue).is_none() {
            return;
        }
        self.named.lock().remove(queue);
        let labels = [self.pool.as_str(), queue.namespace.as_str(), queue.name.as_str()];
        let stores = &self.stores;
        for counters in [
            &stores.publish_queue_jobs,
            &stores.consume_queue_jobs,
            &stores.dead_jobs,
            &stores.redelivered_jobs,
            &stores.released_jobs,
        ] {
            counters.remove_label_values(&labels);
        }
        for histograms in [&stores.lateness, &stores.job_elapsed_ms, &stores.job_ack_elapsed_ms] {
            histograms.remove_label_values(&labels);
        }
    }

    fn labels<'a>(&'a self, series: &'a QueueSeries) -> [&'a str; 3] {
        [self.pool.as_str(), &series.namespace, &series.queue]
    }

    /// Returns the series of a queue: its own while there is room, otherwise the shared one. Queues named after jobs
    /// share another.
    fn series(&self, queue: &Queue) -> Arc<QueueSeries> {
        if let Some(series) = self.queues.read().get(queue) {
            return series.clone();
        }
        if is_job_id(queue) {
            return self.of_jobs.get_or_init(|| self.new_series(OTHER, JOB_ID)).clone();
        }
        let mut named = self.named.lock();
        if !named.contains(queue) && (named.len() >= MOST_QUEUES || !named.insert(queue.clone())) {
            return self.others.get_or_init(|| self.new_series(OTHER, OTHER)).clone();
        }
        let new = || self.new_series(queue.namespace.as_str(), queue.name.as_str());
        self.queues.write().entry(queue.clone()).or_insert_with(new).clone()
    }

    fn new_series(&self, namespace: &str, queue: &str) -> Arc<QueueSeries> {
        let labels = [self.pool.as_str(), namespace, queue];
        let stores = &self.stores;
        Arc::new(QueueSeries {
            namespace: namespace.into(),
            queue: queue.into(),
            published: stores.publish_queue_jobs.with_label_values(&labels),
            consumed: stores.consume_queue_jobs.with_label_values(&labels),
            lateness: stores.lateness.with_label_values(&labels),
            dead: stores.dead_jobs.with_label_values(&labels),
            redelivered: stores.redelivered_jobs.with_label_values(&labels),
            released: stores.released_jobs.with_label_values(&labels),
            elapsed: OnceLock::new(),
            acked: OnceLock::new(),
        })
    }
}

/// Metrics of one pushed queue. Queues beyond the limit share them, so gauges are only added to.
#[derive(Debug)]
pub struct PushSeries {
    pub delivered: IntCounter,
    pub failed: IntCounter,
    /// Failed, and the job died.
    pub dead: IntCounter,
    /// The endpoint replied 410.
    pub gone: IntCounter,
    pub in_flight: IntGauge,
    pub breaker_open: IntGauge,
    seconds: Histogram,
}

impl PushSeries {
    /// Records the duration of an attempt, with or without a reply.
    pub fn took(&self, time: Duration) {
        self.seconds.observe(time.as_secs_f64());
    }
}
