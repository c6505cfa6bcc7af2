//! Statistics for pages, derived from metrics: latencies, connections, and resource usage of the process. Read on
//! request.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use prometheus::core::Collector;
use prometheus::process_collector::ProcessCollector;
use prometheus::proto::{Metric, MetricFamily};
use serde::Serialize;

use super::families::HttpFamilies;
use super::stores::{EngineMetrics, SYNC};
use crate::name::PoolName;

/// Latency percentiles since the start, in seconds. Each value is the upper bound of a histogram bucket; `None` if it
/// exceeds all buckets.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Took {
    pub count: u64,
    pub p50: Option<f64>,
    pub p99: Option<f64>,
    pub worst: Option<f64>,
}

/// Latencies of a pool; `None` without observations.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Times {
    /// From due to delivery.
    pub lateness: Option<Took>,
    /// Syncs of a disk.
    pub sync: Option<Took>,
}

/// How long latencies are cached.
const KEPT: Duration = Duration::from_secs(10);

type TimesOfPools = Arc<BTreeMap<PoolName, Times>>;

/// Cached latencies, so that many readers do not recompute them.
#[derive(Debug, Default)]
pub struct KeptTimes(Mutex<Option<(Instant, TimesOfPools)>>);

impl KeptTimes {
    /// Returns the latencies as of `now`, to within ten seconds. Blocks while another thread computes them.
    pub fn of(&self, metrics: &EngineMetrics, now: Instant) -> TimesOfPools {
        let mut kept = self.0.lock();
        if let Some((_, times)) = kept.as_ref().filter(|(at, _)| now.duration_since(*at) < KEPT) {
            return times.clone();
        }
        let times = Arc::new(metrics.times());
        *kept = Some((now, times.clone()));
        times
    }
}

/// Resource usage of the process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Process {
    pub memory_bytes: u64,
    /// Since the start.
    pub cpu_seconds: u64,
    pub open_files: u64,
    pub most_files: u64,
}

impl EngineMetrics {
    /// Computes the latencies by pool. With ten thousand queues this takes some tens of milliseconds.
    pub fn times(&self) -> BTreeMap<PoolName, Times> {
        let (lateness, steps) = (self.stores.lateness.collect(), self.stores.store_seconds.collect());
        let pools = self.of_pools.lock();
        let of = |pool: &PoolName| Times {
            lateness: took(&lateness, &[("pool", pool.as_str())]),
            sync: took(&steps, &[("pool", pool.as_str()), ("operation", SYNC)]),
        };
        pools.keys().map(|pool| (pool.clone(), of(pool))).collect()
    }
}

/// Returns the number of connections of each port, and the maximum.
pub(super) fn connections(http: &HttpFamilies) -> BTreeMap<String, (u64, u64)> {
    let now = http.connections.collect();
    let port = |metric: &Metric| {
        let name = metric.get_label().first()?.value().to_owned();
        let most = http.connections_limit.with_label_values(&[&*name]).get() as u64;
        Some((name, (metric.get_gauge().get_value() as u64, most)))
    };
    now.iter().flat_map(MetricFamily::get_metric).filter_map(port).collect()
}

impl Process {
    /// Returns the current usage.
    pub fn now() -> Process {
        let all = ProcessCollector::for_self().collect();
        let of = |name: &str| {
            let family = all.iter().find(|family| family.name() == name);
            let metric = family.and_then(|family| family.get_metric().first());
            // It is either a counter or a gauge; the other reads as 0.
            metric.map_or(0.0, |of| of.get_gauge().get_value() + of.get_counter().get_value()) as u64
        };
        Process {
            memory_bytes: of("process_resident_memory_bytes"),
            cpu_seconds: of("process_cpu_seconds_total"),
            open_files: of("process_open_fds"),
            most_files: of("process_max_fds"),
        }
    }
}

/// Computes the latency over all histograms with these labels.
fn took(families: &[MetricFamily], labels: &[(&str, &str)]) -> Option<Took> {
    let has = |metric: &&Metric, (name, value): &(&str, &str)| {
        metric.get_label().iter().any(|label| label.name() == *name && label.value() == *value)
    };
    let all = families.iter().flat_map(MetricFamily::get_metric);
    let (mut count, mut buckets) = (0, Vec::<(f64, u64)>::new());
    for metric in all.filter(|metric| labels.iter().all(|label| has(metric, label))) {
        let histogram = metric.get_histogram();
        count += histogram.get_sample_count();
        buckets.resize(histogram.get_bucket().len(), (0.0, 0));
        for (sum, bucket) in buckets.iter_mut().zip(histogram.get_bucket()) {
            *sum = (bucket.upper_bound(), sum.1 + bucket.cumulative_count());
        }
    }
    // Returns the upper bound of the bucket that contains the `least`-th observation.
    let end = |least: u64| {
        let found = buckets.iter().find(|(_, upto)| *upto >= least).map(|(end, _)| *end);
        found.filter(|end| end.is_finite())
    };
    let part = |percent: u64| end((count * percent).div_ceil(100));
    (count > 0).then(|| Took { count, p50: part(50), p99: part(99), worst: end(count) })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::metrics::Metrics;
    use crate::name::{Namespace, Queue, QueueName};

    /// Guards against showing one queue's latency as that of all.
    #[test]
    fn times_are_those_of_all_queues_of_a_pool() {
        let metrics = Metrics::default();
        let (pool, other) = (PoolName::default_pool(), PoolName::parse("other").expect("a name"));
        let queue = |name: &str| Queue {
            namespace: Namespace::parse("ns").expect("a literal"),
            name: QueueName::parse(name).expect("a literal"),
        };
        let of = metrics.engine.pool(&pool);
        metrics.engine.pool(&other);
        assert_eq!(metrics.engine.times()[&pool], Times::default(), "nothing took anything");
        for n in 0..99 {
            of.consumed(&queue(["a", "b"][n % 2]), Duration::ZERO, Duration::from_millis(4));
        }
        of.consumed(&queue("c"), Duration::ZERO, Duration::from_secs(20));
        of.on_disk(0);
        of.synced(Duration::from_secs(60), 1);
        let times = metrics.engine.times();
        let lateness = Took { count: 100, p50: Some(0.005), p99: Some(0.005), worst: Some(30.0) };
        assert_eq!(times[&pool].lateness, Some(lateness));
        assert_eq!(times[&pool].sync, Some(Took { count: 1, p50: None, p99: None, worst: None }), "a minute");
        assert_eq!(times[&other], Times::default());
    }

    /// Guards against recomputing all histograms for each open page, and against stale values.
    #[test]
    fn times_are_read_once_in_ten_seconds() {
        let (metrics, kept, pool) = (Metrics::default(), KeptTimes::default(), PoolName::default_pool());
        let (of, began) = (metrics.engine.pool(&pool), Instant::now());
        let synced = |after: u64| {
            let times = kept.of(&metrics.engine, began + Duration::from_secs(after));
            times[&pool].sync.map(|took| took.count)
        };
        assert_eq!(synced(0), None);
        of.on_disk(0);
        of.synced(Duration::from_millis(1), 1);
        assert_eq!((synced(9), synced(10)), (None, Some(1)));
        of.synced(Duration::from_millis(1), 1);
        assert_eq!((synced(19), synced(20)), (Some(1), Some(2)));
    }

    #[test]
    fn the_process_is_there() {
        let Process { memory_bytes, open_files, most_files, .. } = Process::now();
        assert!(memory_bytes > 1 << 20 && open_files > 0 && most_files >= open_files);
    }
}
