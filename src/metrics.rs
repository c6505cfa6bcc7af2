//! Every metric family, declared once; its help text is its documentation. The names, labels and buckets that
//! dashboards of lmstfy read are kept; `dormouse_*` are our own. Nobody else names a metric.

use std::collections::HashSet;
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use prometheus::core::Collector;
use prometheus::{
    Encoder, GaugeVec, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts,
    Registry, TextEncoder, exponential_buckets,
};

use crate::admin::Scope;
use crate::engine::Stats;
use crate::name::{Namespace, PoolName, Queue};

/// How many queues get time series of their own. Queues beyond it share one, so that a queue per job (fire
/// and wait) cannot fill the memory of the server and of its Prometheus.
const MOST_QUEUES: usize = 10_000;
/// The namespace and queue that the queues beyond it share.
const OTHER: &str = "(other)";

const POOL: &[&str] = &["pool"];
const QUEUE: &[&str] = &["pool", "namespace", "queue"];

/// All families, and the registry that they are scraped from.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    http_latency: HistogramVec,
    http_codes: IntCounterVec,
    rate_limit: IntCounterVec,
    parked_polls: IntGauge,
    /// The engines' families.
    pub engine: EngineMetrics,
}

/// What [`Metered`](crate::engine::metered::Metered) records, and the sizes that a scrape asks for.
#[derive(Debug)]
pub struct EngineMetrics {
    publish_jobs: IntCounterVec,
    consume_jobs: IntCounterVec,
    consume_multi_jobs: IntCounterVec,
    pool_add_jobs: IntCounterVec,
    pool_get_jobs: IntCounterVec,
    pool_delete_jobs: IntCounterVec,
    timer_add_jobs: IntCounterVec,
    timer_due_jobs: IntCounterVec,
    timer_full_batches: IntCounterVec,
    queue_direct_push_jobs: IntCounterVec,
    queue_pop_jobs: IntCounterVec,
    deadletter_respawn_jobs: IntCounterVec,
    given_back_jobs: IntCounterVec,
    publish_queue_jobs: IntCounterVec,
    consume_queue_jobs: IntCounterVec,
    job_elapsed_ms: HistogramVec,
    job_ack_elapsed_ms: HistogramVec,
    latency: HistogramVec,
    qps: IntCounterVec,
    timer_sizes: IntGaugeVec,
    queue_sizes: IntGaugeVec,
    deadletter_sizes: IntGaugeVec,
    store: RwLock<Vec<(&'static str, GaugeVec)>>,
    registry: Registry,
    named: Mutex<HashSet<Queue>>,
}

/// One pool's counters: looked up once, counted often.
#[derive(Debug)]
pub struct PoolMetrics {
    pub publish_jobs: IntCounter,
    pub consume_jobs: IntCounter,
    pub consume_multi_jobs: IntCounter,
    pub pool_add_jobs: IntCounter,
    pub pool_get_jobs: IntCounter,
    pub pool_delete_jobs: IntCounter,
    pub timer_add_jobs: IntCounter,
    pub timer_due_jobs: IntCounter,
    pub timer_full_batches: IntCounter,
    pub queue_direct_push_jobs: IntCounter,
    pub queue_pop_jobs: IntCounter,
    pub deadletter_respawn_jobs: IntCounter,
    pub given_back_jobs: IntCounter,
}

fn register<C: Collector + Clone + 'static>(registry: &Registry, family: prometheus::Result<C>) -> C {
    // Names are literals in this file, each declared once, which the test below holds.
    let family = family.expect("a metric's name and labels are well-formed");
    registry.register(Box::new(family.clone())).expect("a metric is declared once");
    family
}

fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}

impl Default for Metrics {
    fn default() -> Metrics {
        let registry = Registry::new();
        let r = &registry;
        let opts = |name: &str, help: &str| Opts::new(name, help).namespace("infra").subsystem("lmstfy_http");
        let latency = HistogramOpts {
            common_opts: opts("latency_milliseconds", "How long requests took, long polls included."),
            buckets: exponential_buckets(15.0, 2.5, 9).expect("15 and 2.5 make buckets"),
        };
        Metrics {
            http_latency: register(r, HistogramVec::new(latency, &["pool", "namespace", "api", "method"])),
            http_codes: register(
                r,
                IntCounterVec::new(
                    opts("http_codes", "Answers by status code."),
                    &["pool", "namespace", "api", "method", "code"],
                ),
            ),
            rate_limit: register(
                r,
                IntCounterVec::new(
                    opts("rate_limit", "Requests refused by a token's limit; the token is shown as a hash."),
                    &["pool", "namespace", "token", "action"],
                ),
            ),
            parked_polls: register(
                r,
                IntGauge::new("dormouse_parked_polls", "Consumers waiting in long polls."),
            ),
            engine: EngineMetrics::new(&registry),
            registry,
        }
    }
}

impl Metrics {
    /// A request was answered. `known` are its pool and namespace, once they are known to be real.
    pub fn request(
        &self,
        known: Option<&(PoolName, Namespace)>,
        method: &str,
        route: &str,
        status: u16,
        took: Duration,
    ) {
        let (pool, namespace) = known.map_or(("", ""), |(pool, ns)| (pool.as_str(), ns.as_str()));
        let api = pattern(route);
        self.http_latency.with_label_values(&[pool, namespace, &api, method]).observe(ms(took));
        let code = status.to_string();
        self.http_codes.with_label_values(&[pool, namespace, &api, method, &code]).inc();
    }

    /// A request was refused by its token's limit. Tokens are secrets, so the label is a hash.
    pub fn limited(&self, scope: &Scope, token: &str, action: &str) {
        use std::hash::{DefaultHasher, Hash, Hasher};
        let mut hasher = DefaultHasher::new();
        token.hash(&mut hasher);
        let token = format!("{:08x}", hasher.finish() as u32);
        let labels = [scope.pool.as_str(), scope.namespace.as_str(), &token, action];
        self.rate_limit.with_label_values(&labels).inc();
    }

    /// How many consumers wait now.
    pub fn parked(&self, polls: usize) {
        self.parked_polls.set(polls as i64);
    }

    /// What a pool's store holds now. Queues that are gone are no longer shown.
    pub fn sizes(&self, pool: &PoolName, stats: &Stats) {
        self.engine.sizes(pool.as_str(), stats);
    }

    /// Before a scrape sets the sizes anew: forgets those of queues that are gone.
    pub fn forget_sizes(&self) {
        self.engine.queue_sizes.reset();
        self.engine.deadletter_sizes.reset();
    }

    /// Everything, in Prometheus's text format.
    pub fn text(&self) -> Vec<u8> {
        let mut text = Vec::new();
        // Writing to memory does not fail; a family that cannot be encoded would be a bug in the library.
        if let Err(error) = TextEncoder::new().encode(&self.registry.gather(), &mut text) {
            tracing::error!(%error, "the metrics could not be written");
        }
        text
    }
}

/// `/api/{namespace}/{queue}` as lmstfy's dashboards know it: `/api/:namespace/:queue`.
fn pattern(route: &str) -> String {
    route.replace('{', ":").replace('}', "")
}

impl EngineMetrics {
    fn new(r: &Registry) -> EngineMetrics {
        let opts =
            |name: &str, help: &str| Opts::new(name, help).namespace("infra").subsystem("lmstfy_redis");
        let counter = |name: &str, help: &str, labels: &[&str]| {
            register(r, IntCounterVec::new(opts(name, help), labels))
        };
        let gauge =
            |name: &str, help: &str, labels: &[&str]| register(r, IntGaugeVec::new(opts(name, help), labels));
        let histogram = |name: &str, help: &str, labels: &[&str]| {
            let buckets = exponential_buckets(15.0, 3.5, 7).expect("15 and 3.5 make buckets");
            register(r, HistogramVec::new(HistogramOpts { common_opts: opts(name, help), buckets }, labels))
        };
        EngineMetrics {
            publish_jobs: counter("publish_jobs", "Jobs published.", POOL),
            consume_jobs: counter("consume_jobs", "Jobs handed out.", POOL),
            consume_multi_jobs: counter(
                "consume_multi_jobs",
                "Jobs handed out to consumers of several queues.",
                POOL,
            ),
            pool_add_jobs: counter("pool_add_jobs", "Jobs stored.", POOL),
            pool_get_jobs: counter("pool_get_jobs", "Jobs read.", POOL),
            pool_delete_jobs: counter("pool_delete_jobs", "Jobs acked.", POOL),
            timer_add_jobs: counter("timer_add_jobs", "Timers set, for a delay or a ttr.", POOL),
            timer_due_jobs: counter("timer_due_jobs", "Timers that came due.", POOL),
            timer_full_batches: counter("timer_full_batches", "Pumps that moved as much as one may.", POOL),
            queue_direct_push_jobs: counter(
                "queue_direct_push_jobs",
                "Jobs published without a delay.",
                POOL,
            ),
            queue_pop_jobs: counter("queue_pop_jobs", "Jobs taken from ready queues.", POOL),
            deadletter_respawn_jobs: counter(
                "deadletter_respawn_jobs",
                "Jobs respawned from dead letters.",
                POOL,
            ),
            given_back_jobs: register(
                r,
                IntCounterVec::new(
                    Opts::new("dormouse_given_back_jobs", "Jobs given back because their consumer had left."),
                    POOL,
                ),
            ),
            publish_queue_jobs: counter("publish_queue_jobs", "Jobs published, by queue.", QUEUE),
            consume_queue_jobs: counter("consume_queue_jobs", "Jobs handed out, by queue.", QUEUE),
            job_elapsed_ms: histogram("job_elapsed_ms", "From publish to hand-over, milliseconds.", QUEUE),
            job_ack_elapsed_ms: histogram("job_ack_elapsed_ms", "From publish to ack, milliseconds.", QUEUE),
            latency: histogram(
                "latency",
                "How long the store took for one step, milliseconds.",
                &["node", "command", "status"],
            ),
            qps: counter("qps", "Steps that the store was asked for.", &["node", "command", "status"]),
            timer_sizes: gauge("timer_sizes", "Delayed and running jobs.", POOL),
            queue_sizes: gauge("queue_sizes", "Ready jobs.", QUEUE),
            deadletter_sizes: gauge("deadletter_sizes", "Dead jobs.", QUEUE),
            store: RwLock::default(),
            registry: r.clone(),
            named: Mutex::default(),
        }
    }

    /// A pool's counters.
    pub fn pool(&self, pool: &PoolName) -> PoolMetrics {
        let of = |family: &IntCounterVec| family.with_label_values(&[pool.as_str()]);
        PoolMetrics {
            publish_jobs: of(&self.publish_jobs),
            consume_jobs: of(&self.consume_jobs),
            consume_multi_jobs: of(&self.consume_multi_jobs),
            pool_add_jobs: of(&self.pool_add_jobs),
            pool_get_jobs: of(&self.pool_get_jobs),
            pool_delete_jobs: of(&self.pool_delete_jobs),
            timer_add_jobs: of(&self.timer_add_jobs),
            timer_due_jobs: of(&self.timer_due_jobs),
            timer_full_batches: of(&self.timer_full_batches),
            queue_direct_push_jobs: of(&self.queue_direct_push_jobs),
            queue_pop_jobs: of(&self.queue_pop_jobs),
            deadletter_respawn_jobs: of(&self.deadletter_respawn_jobs),
            given_back_jobs: of(&self.given_back_jobs),
        }
    }

    /// `jobs` were published to a queue.
    pub fn published(&self, pool: &str, queue: &Queue, jobs: usize) {
        let (namespace, name) = self.labels(queue);
        self.publish_queue_jobs.with_label_values(&[pool, namespace, name]).inc_by(jobs as u64);
    }

    /// A job of this age was handed out.
    pub fn consumed(&self, pool: &str, queue: &Queue, elapsed: Duration) {
        let (namespace, name) = self.labels(queue);
        self.consume_queue_jobs.with_label_values(&[pool, namespace, name]).inc();
        self.job_elapsed_ms.with_label_values(&[pool, namespace, name]).observe(ms(elapsed));
    }

    /// A job of this age was acked.
    pub fn acked(&self, pool: &str, queue: &Queue, elapsed: Duration) {
        let (namespace, name) = self.labels(queue);
        self.job_ack_elapsed_ms.with_label_values(&[pool, namespace, name]).observe(ms(elapsed));
    }

    /// A step of the store, and whether it went well.
    pub fn step(&self, pool: &str, command: &str, ok: bool, took: Duration) {
        let status = if ok { "ok" } else { "error" };
        self.latency.with_label_values(&[pool, command, status]).observe(ms(took));
        self.qps.with_label_values(&[pool, command, status]).inc();
    }

    fn labels<'a>(&self, queue: &'a Queue) -> (&'a str, &'a str) {
        let mut named = self.named.lock();
        if named.contains(queue) || (named.len() < MOST_QUEUES && named.insert(queue.clone())) {
            (queue.namespace.as_str(), queue.name.as_str())
        } else {
            (OTHER, OTHER)
        }
    }

    fn sizes(&self, pool: &str, stats: &Stats) {
        self.timer_sizes.with_label_values(&[pool]).set(stats.timers as i64);
        for size in stats.queues.iter().take(MOST_QUEUES) {
            let labels = [pool, size.queue.namespace.as_str(), size.queue.name.as_str()];
            self.queue_sizes.with_label_values(&labels).set(size.ready as i64);
            self.deadletter_sizes.with_label_values(&labels).set(size.dead as i64);
        }
        for (name, value) in &stats.gauges {
            self.store_gauge(name).with_label_values(&[pool]).set(*value);
        }
    }

    /// The gauge of one of the store's own figures, declared when a store first has it.
    fn store_gauge(&self, name: &'static str) -> GaugeVec {
        if let Some((_, gauge)) = self.store.read().iter().find(|(known, _)| *known == name) {
            return gauge.clone();
        }
        let mut store = self.store.write();
        if let Some((_, gauge)) = store.iter().find(|(known, _)| *known == name) {
            return gauge.clone();
        }
        let opts =
            Opts::new(name, "A figure of the store itself.").namespace("infra").subsystem("lmstfy_redis");
        let gauge = register(&self.registry, GaugeVec::new(opts, POOL));
        store.push((name, gauge.clone()));
        gauge
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::QueueSize;
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
        metrics.request(None, "GET", "/api/{namespace}/{queue}/job/{job_id}", 200, Duration::from_millis(3));
        metrics.engine.pool(&pool).publish_jobs.inc();
        metrics.engine.published("default", &queue("q"), 2);
        let queues = vec![QueueSize { queue: queue("q"), ready: 4, dead: 5 }];
        metrics.sizes(&pool, &Stats { timers: 3, queues, gauges: vec![("used_mem_bytes", 6.0)] });
        let text = String::from_utf8(metrics.text()).expect("it is text");
        for line in [
            r#"infra_lmstfy_http_http_codes{api="/api/:namespace/:queue/job/:job_id",code="200",method="GET",namespace="",pool=""} 1"#,
            r#"infra_lmstfy_redis_publish_jobs{pool="default"} 1"#,
            r#"infra_lmstfy_redis_publish_queue_jobs{namespace="ns",pool="default",queue="q"} 2"#,
            r#"infra_lmstfy_redis_timer_sizes{pool="default"} 3"#,
            r#"infra_lmstfy_redis_queue_sizes{namespace="ns",pool="default",queue="q"} 4"#,
            r#"infra_lmstfy_redis_deadletter_sizes{namespace="ns",pool="default",queue="q"} 5"#,
            r#"infra_lmstfy_redis_used_mem_bytes{pool="default"} 6"#,
            r#"le="15""#,
            r#"le="37.5""#,
        ] {
            assert!(text.contains(line), "missing {line} in\n{text}");
        }
    }

    #[test]
    fn a_queue_per_job_does_not_fill_the_metrics() {
        let metrics = Metrics::default();
        for i in 0..MOST_QUEUES + 5 {
            metrics.engine.published("p", &queue(&format!("q{i}")), 1);
        }
        let text = String::from_utf8(metrics.text()).expect("it is text");
        let series = text.lines().filter(|l| l.starts_with("infra_lmstfy_redis_publish_queue_jobs")).count();
        assert_eq!(series, MOST_QUEUES + 1, "the rest share one series");
    }

    #[test]
    fn a_refused_token_is_not_shown() {
        let metrics = Metrics::default();
        let scope =
            Scope { pool: PoolName::default_pool(), namespace: Namespace::parse("ns").expect("a literal") };
        metrics.limited(&scope, "01SECRETSECRET", "produce");
        let text = String::from_utf8(metrics.text()).expect("it is text");
        assert!(text.contains("infra_lmstfy_http_rate_limit") && !text.contains("SECRET"), "{text}");
    }
}
