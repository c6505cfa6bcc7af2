//! The metric families ([`families`]) and their updates: requests, and the pools' stores. Takes plain values and names;
//! independent of engines and HTTP types.

mod families;
mod requests;
mod schedules;
mod statistics;
mod stores;

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::RwLock;
use prometheus::process_collector::ProcessCollector;
use prometheus::{Encoder, Registry, TextEncoder};

use self::families::{
    ClusterFamilies, FIGURES, Figure, HttpFamilies, PoolFamilies, PushFamilies, ScheduleFamilies,
    ServerFamilies, StoreFamilies, register,
};
pub use self::requests::{Connected, PortMetrics, RouteMetrics, pattern};
pub use self::schedules::ScheduleMetrics;
pub use self::statistics::{KeptTimes, Process, Times, Took};
pub use self::stores::{EngineMetrics, Operation, PoolMetrics, PushSeries};
use self::stores::{JOB_ID, MOST_QUEUES, OTHER, is_job_id};
use crate::name::{Namespace, PoolName, Queue, Token};

/// All families, and their registry.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    http: HttpFamilies,
    server: ServerFamilies,
    /// Metrics of engines.
    pub engine: EngineMetrics,
    schedules: Arc<ScheduleFamilies>,
    /// Gauges specific to one kind of store, by name.
    figures: Vec<(&'static str, Figure)>,
    clusters: ClusterFamilies,
}

/// Statistics of a pool in a cluster, for a scrape.
#[derive(Clone, Debug)]
pub struct ClusterStatistics<'a> {
    pub nodes: Vec<NodeStatistics<'a>>,
    /// Number of unavailable partitions, by reason.
    pub unusable: [(&'static str, usize); 3],
    /// Number of calls refused before execution, by reason, since the start of the process.
    pub redirections: &'a [(&'static str, u64)],
}

/// Statistics of a node, for a scrape.
#[derive(Clone, Debug)]
pub struct NodeStatistics<'a> {
    pub addr: &'a str,
    pub partitions: u16,
    /// Difference of its clock to the median, in microseconds.
    pub clock: Option<i64>,
    pub gauges: &'a [(&'static str, f64)],
}

/// Statistics of one queue, for a scrape.
#[derive(Clone, Debug)]
pub struct QueueStatistics<'a> {
    pub queue: &'a Queue,
    pub ready: u64,
    pub dead: u64,
    /// If the store counts them.
    pub delayed: Option<u64>,
    pub running: Option<u64>,
    /// Age of the oldest ready job.
    pub oldest_ready: Option<Duration>,
    /// Whether `delayed` and `running` are estimates.
    pub estimated: bool,
}

/// Availability of the stores, and readiness of the server, at the time of a scrape.
#[derive(Clone, Debug, Default)]
pub struct Health {
    pub ready: bool,
    pub tokens: bool,
    pub pools: Vec<(PoolName, bool)>,
}

impl Default for Metrics {
    fn default() -> Metrics {
        let registry = Registry::new();
        let http = HttpFamilies::register(&registry);
        let server = ServerFamilies::register(&registry);
        let engine = EngineMetrics {
            pools: PoolFamilies::register(&registry),
            stores: Arc::new(StoreFamilies::register(&registry)),
            push: Arc::new(PushFamilies::register(&registry)),
            named: Arc::default(),
            of_pools: Default::default(),
        };
        let figure = |(name, help): &(&'static str, &str)| {
            (*name, register(&registry, Figure::declare(&format!("infra_lmstfy_redis_{name}"), help)))
        };
        let figures = FIGURES.iter().map(figure).collect();
        // Fails only if it is registered twice.
        let _ = registry.register(Box::new(ProcessCollector::for_self()));
        let schedules = Arc::new(ScheduleFamilies::register(&registry));
        let clusters = ClusterFamilies::register(&registry);
        Metrics { registry, http, server, engine, schedules, figures, clusters }
    }
}

impl Metrics {
    /// Returns the metrics of a route.
    pub fn route(&self, route: &str) -> RouteMetrics {
        let (latency, codes) = (self.http.latency.clone(), self.http.codes.clone());
        RouteMetrics { api: pattern(route), latency, codes, series: RwLock::default() }
    }

    /// Returns the metrics of a port with at most `most` connections.
    pub fn port(&self, port: &str, most: usize) -> PortMetrics {
        self.http.connections_limit.with_label_values(&[port]).set(most as i64);
        PortMetrics {
            connections: self.http.connections.with_label_values(&[port]),
            accept_failures: self.http.accept_failures.with_label_values(&[port]),
            bad_requests: self.http.bad_requests.with_label_values(&[port]),
        }
    }

    /// Sets the build, and the limit on parked polls.
    pub fn began(&self, version: &str, commit: &str, most_polls: usize) {
        self.server.build_info.with_label_values(&[version, commit]).set(1);
        self.http.parked_polls_limit.set(i64::try_from(most_polls).unwrap_or(i64::MAX));
    }

    /// Returns the metrics of a pool's schedules.
    pub fn of_schedules(&self, pool: &PoolName) -> ScheduleMetrics {
        // Creates the series with value 0.
        let _ = self.schedules.lateness.with_label_values(&[pool.as_str()]);
        let _ = self.schedules.oldest_owed.with_label_values(&[pool.as_str()]);
        ScheduleMetrics { pool: pool.clone(), families: self.schedules.clone() }
    }

    /// Sets the time zone database used for schedules.
    pub fn zone_database(&self, version: &str) {
        self.schedules.zones.with_label_values(&[version]).set(1);
    }

    /// Counts a request refused by its token's limit. Tokens are secrets, so the label is a hash.
    pub fn limited(&self, pool: &PoolName, namespace: &Namespace, token: &Token, action: &str) {
        let token = token.hash();
        self.http.rate_limit.with_label_values(&[pool.as_str(), namespace.as_str(), &token, action]).inc();
    }

    /// Returns the number of connections of each port, and the maximum.
    pub fn connections(&self) -> BTreeMap<String, (u64, u64)> {
        statistics::connections(&self.http)
    }

    /// Sets the number of slots used by parked polls.
    pub fn parked(&self, places: usize) {
        self.http.parked_polls.set(places as i64);
    }

    /// Sets the availability of the stores.
    pub fn health(&self, health: &Health) {
        self.server.ready.set(health.ready.into());
        self.server.tokens_up.set(health.tokens.into());
        for (pool, up) in &health.pools {
            self.server.pool_up.with_label_values(&[pool.as_str()]).set((*up).into());
        }
    }

    /// Clears the stores' statistics after a scrape. Otherwise deleted queues and unavailable stores would show their
    /// last values forever. For ten thousand queues the statistics take the same amount of memory as all counters.
    pub fn clear_store_statistics(&self) {
        let stores = &self.engine.stores;
        let sizes = [&stores.queue_sizes, &stores.deadletter_sizes, &stores.timer_sizes];
        sizes
            .into_iter()
            .chain([&stores.queue_jobs, &stores.queue_jobs_estimated, &stores.queue_paused])
            .for_each(|family| family.reset());
        stores.oldest_ready.reset();
        stores.timer_overdue.reset();
        self.figures.iter().for_each(|(_, gauge)| gauge.reset());
        self.clusters.partitions.reset();
        self.clusters.clock_difference.reset();
    }

    /// Sets the sizes of a pool: jobs with a timer, how long the earliest is overdue, and the sizes of each queue. If
    /// there are more queues than series, the queues with the most ready and dead jobs keep their names.
    pub fn sizes<'a>(
        &self,
        pool: &PoolName,
        timers: u64,
        overdue: Option<Duration>,
        queues: impl IntoIterator<Item = QueueStatistics<'a>>,
    ) {
        let stores = &self.engine.stores;
        stores.timer_sizes.with_label_values(&[pool.as_str()]).set(timers as i64);
        stores.timer_overdue.with_label_values(&[pool.as_str()]).set(seconds(overdue));
        let (mut of_jobs, mut named): (Vec<_>, Vec<_>) =
            queues.into_iter().partition(|figures| is_job_id(figures.queue));
        let mut others = Vec::new();
        if named.len() > MOST_QUEUES {
            named.sort_unstable_by_key(|of| (Reverse(of.ready + of.dead), of.queue));
            others = named.split_off(MOST_QUEUES);
        }
        let counts = self.engine.pool(pool);
        for figures in &named {
            counts.knows(figures.queue);
            let labels = [pool.as_str(), figures.queue.namespace.as_str(), figures.queue.name.as_str()];
            self.queue(labels, std::slice::from_ref(figures));
        }
        for (name, figures) in [(JOB_ID, &mut of_jobs), (OTHER, &mut others)] {
            if let Some(first) = figures.first() {
                counts.knows(first.queue);
                self.queue([pool.as_str(), OTHER, name], figures);
            }
        }
    }

    /// Sets the gauges of queues that share their labels.
    fn queue(&self, labels @ [pool, namespace, queue]: [&str; 3], figures: &[QueueStatistics<'_>]) {
        let stores = &self.engine.stores;
        let sum = |of: fn(&QueueStatistics<'_>) -> u64| figures.iter().map(of).sum::<u64>() as i64;
        stores.queue_sizes.with_label_values(&labels).set(sum(|figures| figures.ready));
        stores.deadletter_sizes.with_label_values(&labels).set(sum(|figures| figures.dead));
        if figures.iter().any(|figures| figures.estimated) {
            stores.queue_jobs_estimated.with_label_values(&[pool]).set(1);
        }
        let oldest = figures.iter().filter_map(|figures| figures.oldest_ready).max();
        stores.oldest_ready.with_label_values(&labels).set(seconds(oldest));
        let known = |of: fn(&QueueStatistics<'_>) -> Option<u64>| figures.iter().map(of).sum::<Option<u64>>();
        for (state, jobs) in
            [("delayed", known(|figures| figures.delayed)), ("running", known(|figures| figures.running))]
        {
            if let Some(jobs) = jobs {
                stores.queue_jobs.with_label_values(&[pool, namespace, queue, state]).set(jobs as i64);
            }
        }
    }

    /// Marks queues as paused, except those named after jobs.
    pub fn paused<'a>(&self, pool: &PoolName, queues: impl IntoIterator<Item = &'a Queue>) {
        for queue in queues.into_iter().filter(|queue| !is_job_id(queue)).take(MOST_QUEUES) {
            let labels = [pool.as_str(), queue.namespace.as_str(), queue.name.as_str()];
            self.engine.stores.queue_paused.with_label_values(&labels).set(1);
        }
    }

    /// Sets a gauge specific to one kind of store, if it is in [`FIGURES`].
    pub fn store_figure(&self, pool: &PoolName, name: &str, value: f64) {
        if let Some((_, gauge)) = self.figures.iter().find(|(figure, _)| *figure == name) {
            gauge.of_pool.with_label_values(&[pool.as_str()]).set(value);
        }
    }

    /// Sets the statistics of the nodes of a cluster.
    pub fn nodes(&self, pool: &PoolName, cluster: &ClusterStatistics<'_>) {
        let (families, pool) = (&self.clusters, pool.as_str());
        for node in &cluster.nodes {
            let labels = [pool, node.addr];
            families.partitions.with_label_values(&labels).set(node.partitions.into());
            if let Some(micros) = node.clock {
                families.clock_difference.with_label_values(&labels).set(micros as f64 / 1e6);
            }
            for (name, value) in node.gauges {
                if let Some((_, gauge)) = self.figures.iter().find(|(figure, _)| figure == name) {
                    gauge.of_node.with_label_values(&labels).set(*value);
                }
            }
        }
        for (state, partitions) in cluster.unusable {
            families.unreachable.with_label_values(&[pool, state]).set(partitions as i64);
        }
        for (kind, count) in cluster.redirections {
            // Scrapes are written one at a time, so there is no concurrent update.
            let counter = families.redirections.with_label_values(&[pool, kind]);
            counter.inc_by(count.saturating_sub(counter.get()));
        }
    }

    /// Returns everything in Prometheus's text format.
    pub fn text(&self) -> Vec<u8> {
        let mut text = Vec::new();
        // Writing to memory does not fail; a family that cannot be encoded would be a bug in the library.
        if let Err(error) = TextEncoder::new().encode(&self.registry.gather(), &mut text) {
            tracing::error!(%error, "the metrics could not be written");
        }
        text
    }
}

/// Returns the seconds; 0 for `None`.
fn seconds(time: Option<Duration>) -> f64 {
    time.unwrap_or_default().as_secs_f64()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::name::QueueName;

    fn queue(name: &str) -> Queue {
        Queue {
            namespace: Namespace::parse("ns").expect("a literal"),
            name: QueueName::parse(name).expect("a literal"),
        }
    }

    #[test]
    fn families_keep_the_names_that_dashboards_read() {
        let metrics = Metrics::default();
        let pool = PoolName::default_pool();
        let route = metrics.route("/api/{namespace}/{queue}/job/{job_id}");
        let accepted = (pool.clone(), queue("q").namespace);
        for (accepted, method, status) in [
            (None, "GET", 200),
            (Some(&accepted), "GET", 200),
            (Some(&accepted), "GET", 404),
            (Some(&accepted), "PUT", 200),
            (Some(&accepted), "GET", 200),
        ] {
            route.request(accepted, method, status, Duration::from_millis(3));
        }
        let engine = metrics.engine.pool(&pool);
        engine.counters.publish_jobs.inc();
        engine.published(&queue("q"), 2);
        engine.waits_for_replicas();
        let of = QueueStatistics {
            queue: &queue("q"),
            ready: 4,
            dead: 5,
            delayed: Some(6),
            running: None,
            oldest_ready: Some(Duration::from_millis(2500)),
            estimated: true,
        };
        metrics.sizes(&pool, 3, None, [of]);
        metrics.store_figure(&pool, "used_mem_bytes", 6.0);
        let text = String::from_utf8(metrics.text()).expect("it is text");
        for line in [
            r#"infra_lmstfy_http_http_codes{api="/api/:namespace/:queue/job/:job_id",code="200",method="GET",namespace="",pool=""} 1"#,
            r#"infra_lmstfy_http_http_codes{api="/api/:namespace/:queue/job/:job_id",code="200",method="GET",namespace="ns",pool="default"} 2"#,
            r#"infra_lmstfy_http_http_codes{api="/api/:namespace/:queue/job/:job_id",code="404",method="GET",namespace="ns",pool="default"} 1"#,
            r#"infra_lmstfy_http_http_codes{api="/api/:namespace/:queue/job/:job_id",code="200",method="PUT",namespace="ns",pool="default"} 1"#,
            r#"infra_lmstfy_http_latency_milliseconds_count{api="/api/:namespace/:queue/job/:job_id",method="GET",namespace="ns",pool="default"} 3"#,
            r#"infra_lmstfy_redis_publish_jobs{pool="default"} 1"#,
            r#"infra_lmstfy_redis_publish_queue_jobs{namespace="ns",pool="default",queue="q"} 2"#,
            r#"infra_lmstfy_redis_timer_sizes{pool="default"} 3"#,
            r#"infra_lmstfy_redis_queue_sizes{namespace="ns",pool="default",queue="q"} 4"#,
            r#"infra_lmstfy_redis_deadletter_sizes{namespace="ns",pool="default",queue="q"} 5"#,
            r#"infra_lmstfy_redis_used_mem_bytes{pool="default"} 6"#,
            r#"dormouse_queue_jobs_estimated{pool="default"} 1"#,
            r#"dormouse_cluster_wait_seconds_count{pool="default"} 0"#,
            r#"le="15""#,
            r#"le="37.5""#,
        ] {
            assert!(text.contains(line), "missing {line} in\n{text}");
        }
    }

    #[test]
    fn a_queue_per_job_does_not_fill_the_metrics() {
        let metrics = Metrics::default();
        let engine = metrics.engine.pool(&PoolName::default_pool());
        for i in 0..MOST_QUEUES + 5 {
            engine.published(&queue(&format!("q{i}")), 1);
        }
        let text = String::from_utf8(metrics.text()).expect("it is text");
        assert_eq!(text.matches("# TYPE infra_lmstfy_redis_publish_queue_jobs ").count(), 1, "one family");
        let series = text.lines().filter(|l| l.starts_with("infra_lmstfy_redis_publish_queue_jobs")).count();
        assert_eq!(series, MOST_QUEUES + 1, "the rest share one series");
    }

    /// Guards against a large queue that is hidden by ten thousand small ones.
    #[test]
    fn the_largest_queues_keep_their_names() {
        let (metrics, pool) = (Metrics::default(), PoolName::default_pool());
        let names: Vec<Queue> = (0..MOST_QUEUES + 100).map(|i| queue(&format!("q{i}"))).collect();
        let of = |(i, queue)| {
            let (ready, dead) = if i < 100 { (0, 0) } else { (1, 2) };
            let (delayed, running, oldest_ready) = (Some(1), None, None);
            QueueStatistics { queue, ready, dead, delayed, running, oldest_ready, estimated: false }
        };
        let largest = queue("z-the-largest");
        let large = QueueStatistics {
            queue: &largest,
            ready: 1_000_000,
            dead: 0,
            delayed: Some(1),
            running: None,
            oldest_ready: Some(Duration::from_secs(9)),
            estimated: false,
        };
        metrics.sizes(&pool, 0, None, names.iter().enumerate().map(of).chain([large]));
        let text = String::from_utf8(metrics.text()).expect("it is text");
        let sizes = |name: &str| {
            let start = format!(r#"infra_lmstfy_redis_queue_sizes{{namespace="{name}""#);
            text.lines().filter(|line| line.starts_with(&start)).count()
        };
        assert_eq!((sizes("ns"), sizes("(other)")), (MOST_QUEUES, 1), "series of sizes");
        for line in [
            r#"infra_lmstfy_redis_queue_sizes{namespace="ns",pool="default",queue="z-the-largest"} 1000000"#,
            r#"dormouse_oldest_ready_seconds{namespace="ns",pool="default",queue="z-the-largest"} 9"#,
            r#"dormouse_queue_jobs{namespace="(other)",pool="default",queue="(other)",state="delayed"} 101"#,
        ] {
            assert!(text.contains(line), "missing {line}");
        }
        metrics.clear_store_statistics();
        let text = String::from_utf8(metrics.text()).expect("it is text");
        assert!(!text.contains("queue_sizes{"), "cleared statistics are absent");
    }

    #[test]
    fn a_refused_token_is_not_shown() {
        let metrics = Metrics::default();
        let namespace = Namespace::parse("ns").expect("a literal");
        let token = Token::new("01SECRETSECRET").expect("not empty");
        metrics.limited(&PoolName::default_pool(), &namespace, &token, "produce");
        let text = String::from_utf8(metrics.text()).expect("it is text");
        assert!(text.contains("infra_lmstfy_http_rate_limit") && !text.contains("SECRET"), "{text}");
    }
}
