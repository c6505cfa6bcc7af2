//! What is counted of a pool: the steps of its store, its queues, and those of them that are pushed. Knows no engine.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use ahash::{HashMap, HashSet};
use parking_lot::{Mutex, RwLock};
use prometheus::{Histogram, IntCounter, IntGauge};

use super::families::{PoolCounters, PoolFamilies, PushFamilies, StoreFamilies, ms};
use crate::job::JobId;
use crate::name::{PoolName, Queue};

/// How many queues get time series of their own. Queues beyond it share one, so that a queue per job (fire
/// and wait) cannot fill the memory of the server and of its Prometheus.
pub(super) const MOST_QUEUES: usize = 10_000;
/// The namespace and queue that the queues beyond it share.
pub(super) const OTHER: &str = "(other)";
/// The queue that all queues share whose names are job ids. There is one for each job that its producer waits for
/// (fire and wait), and none of them lives long.
pub(super) const JOB_ID: &str = "(job id)";

/// Whether a queue is named after a job.
pub(super) fn is_job_id(queue: &Queue) -> bool {
    JobId::parse(queue.name.as_str()).is_some()
}

/// What [`Metered`](crate::engine::metered::Metered) records.
#[derive(Debug)]
pub struct EngineMetrics {
    pub(super) pools: PoolFamilies,
    pub(super) stores: Arc<StoreFamilies>,
    pub(super) push: Arc<PushFamilies>,
    /// The queues that have time series of their own.
    pub(super) named: Arc<Mutex<HashSet<Queue>>>,
}

impl EngineMetrics {
    pub fn pool(&self, pool: &PoolName) -> PoolMetrics {
        PoolMetrics {
            counters: self.pools.of(pool),
            pool: pool.clone(),
            stores: self.stores.clone(),
            push: self.push.clone(),
            named: self.named.clone(),
            steps: RwLock::default(),
            queues: RwLock::default(),
            of_jobs: Arc::new(QueueSeries::new(OTHER, JOB_ID)),
            others: Arc::new(QueueSeries::new(OTHER, OTHER)),
        }
    }
}

/// One pool's metrics. A time series is looked up by its labels once, and kept.
#[derive(Debug)]
pub struct PoolMetrics {
    pub counters: PoolCounters,
    pool: PoolName,
    stores: Arc<StoreFamilies>,
    push: Arc<PushFamilies>,
    named: Arc<Mutex<HashSet<Queue>>>,
    /// By command, and whether the step went well.
    steps: RwLock<HashMap<(&'static str, bool), StepSeries>>,
    /// Those of `named` that this pool has met.
    queues: RwLock<HashMap<Queue, Arc<QueueSeries>>>,
    /// Of the queues that are named after jobs.
    of_jobs: Arc<QueueSeries>,
    /// Of the queues that there was no room for.
    others: Arc<QueueSeries>,
}

/// How long steps took, and how many there were.
type StepSeries = (Histogram, IntCounter);

/// The labels of a queue, and its time series as far as they have begun.
#[derive(Debug)]
struct QueueSeries {
    namespace: Box<str>,
    queue: Box<str>,
    published: OnceLock<IntCounter>,
    consumed: OnceLock<(IntCounter, Histogram)>,
    acked: OnceLock<Histogram>,
}

impl QueueSeries {
    fn new(namespace: &str, queue: &str) -> QueueSeries {
        let (published, consumed, acked) = Default::default();
        QueueSeries { namespace: namespace.into(), queue: queue.into(), published, consumed, acked }
    }
}

impl PoolMetrics {
    /// `jobs` were published to a queue.
    pub fn published(&self, queue: &Queue, jobs: usize) {
        let series = self.series(queue);
        let published = || self.stores.publish_queue_jobs.with_label_values(&self.labels(&series));
        series.published.get_or_init(published).inc_by(jobs as u64);
    }

    /// A job of this age was handed out.
    pub fn consumed(&self, queue: &Queue, elapsed: Duration) {
        let series = self.series(queue);
        let (jobs, ages) = series.consumed.get_or_init(|| {
            let labels = self.labels(&series);
            let jobs = self.stores.consume_queue_jobs.with_label_values(&labels);
            (jobs, self.stores.job_elapsed_ms.with_label_values(&labels))
        });
        jobs.inc();
        ages.observe(ms(elapsed));
    }

    /// A job of this age was acked.
    pub fn acked(&self, queue: &Queue, elapsed: Duration) {
        let series = self.series(queue);
        let acked = || self.stores.job_ack_elapsed_ms.with_label_values(&self.labels(&series));
        series.acked.get_or_init(acked).observe(ms(elapsed));
    }

    /// A step of the store, and whether it went well.
    pub fn step(&self, command: &'static str, ok: bool, took: Duration) {
        let count = |(times, steps): &StepSeries| {
            times.observe(ms(took));
            steps.inc();
        };
        if let Some(series) = self.steps.read().get(&(command, ok)) {
            return count(series);
        }
        let labels = [self.pool.as_str(), command, if ok { "ok" } else { "error" }];
        let new = || {
            let times = self.stores.latency.with_label_values(&labels);
            (times, self.stores.qps.with_label_values(&labels))
        };
        count(self.steps.write().entry((command, ok)).or_insert_with(new));
    }

    /// What is told of a queue that is pushed.
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
            milliseconds: self.push.milliseconds.with_label_values(&labels),
        }
    }

    fn labels<'a>(&'a self, series: &'a QueueSeries) -> [&'a str; 3] {
        [self.pool.as_str(), &series.namespace, &series.queue]
    }

    /// The series of a queue: its own while there is room, those of all others after that. Queues that are named
    /// after jobs take no room.
    fn series(&self, queue: &Queue) -> Arc<QueueSeries> {
        if let Some(series) = self.queues.read().get(queue) {
            return series.clone();
        }
        if is_job_id(queue) {
            return self.of_jobs.clone();
        }
        let mut named = self.named.lock();
        if !named.contains(queue) && (named.len() >= MOST_QUEUES || !named.insert(queue.clone())) {
            return self.others.clone();
        }
        let new = || Arc::new(QueueSeries::new(queue.namespace.as_str(), queue.name.as_str()));
        self.queues.write().entry(queue.clone()).or_insert_with(new).clone()
    }
}

/// One pushed queue's metrics. Queues beyond the bound share theirs, so gauges are only added to.
#[derive(Debug)]
pub struct PushSeries {
    pub delivered: IntCounter,
    pub failed: IntCounter,
    /// Failed, and the job has died.
    pub dead: IntCounter,
    /// The endpoint said 410.
    pub gone: IntCounter,
    pub in_flight: IntGauge,
    pub breaker_open: IntGauge,
    milliseconds: Histogram,
}

impl PushSeries {
    /// An attempt has ended with an answer, or without one.
    pub fn took(&self, time: Duration) {
        self.milliseconds.observe(ms(time));
    }
}
