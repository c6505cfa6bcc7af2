//! The metric families. Each is declared in one place: its field, kind, name and labels, with the help text as
//! its doc comment. Exceptions are the gauges for figures of a store's own, whose names the stores choose.
//! `infra_lmstfy_*` have the names, labels and buckets that dashboards of lmstfy read; `dormouse_*` are our own.
//! Takes plain values and names, and knows no engine and no HTTP types.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use ahash::{HashMap, HashSet};
use parking_lot::{Mutex, RwLock};
use prometheus::core::{Collector, Desc, MetricVec, MetricVecBuilder};
use prometheus::{
    Encoder, GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge,
    IntGaugeVec, Opts, Registry, TextEncoder, exponential_buckets, proto::MetricFamily,
};

use crate::job::JobId;
use crate::name::{Namespace, PoolName, Queue, Token};

/// How many queues get time series of their own. Queues beyond it share one, so that a queue per job (fire
/// and wait) cannot fill the memory of the server and of its Prometheus.
const MOST_QUEUES: usize = 10_000;
/// The namespace and queue that the queues beyond it share.
const OTHER: &str = "(other)";
/// The queue that all queues share whose names are job ids. There is one for each job that its producer waits for
/// (fire and wait), and none of them lives long.
const JOB_ID: &str = "(job id)";

const POOL: &[&str] = &["pool"];
const QUEUE: &[&str] = &["pool", "namespace", "queue"];
const STEP: &[&str] = &["node", "command", "status"];

/// Declares a struct of families, one line each: the help, then `field: Kind = name, labels, kind's options;`.
macro_rules! families {
    ($(#[$doc:meta])* $families:ident {
        $(#[doc = $help:literal] $field:ident: $kind:ty = $name:literal, $labels:expr $(, $options:expr)?;)*
    }) => {
        $(#[$doc])*
        #[derive(Debug)]
        struct $families { $(#[doc = $help] $field: $kind,)* }

        impl $families {
            fn register(registry: &Registry) -> $families {
                $families {
                    $($field: register(registry, <$kind>::declare($name, $help.trim(), $labels, ($($options)?))),)*
                }
            }
        }
    };
}

/// Declares counters by pool, one line each: the help, then `field = name;`. One pool's counters are looked up
/// once, so that counting is fast.
macro_rules! pool_counters {
    ($(#[doc = $help:literal] $field:ident = $name:literal;)*) => {
        families! {
            /// Counters by pool.
            PoolFamilies { $(#[doc = $help] $field: IntCounterVec = $name, POOL;)* }
        }

        /// One pool's counters.
        #[derive(Debug)]
        pub struct PoolCounters { $(#[doc = $help] pub $field: IntCounter,)* }

        impl PoolFamilies {
            fn of(&self, pool: &PoolName) -> PoolCounters {
                PoolCounters { $($field: self.$field.with_label_values(&[pool.as_str()]),)* }
            }
        }
    };
}

pool_counters! {
    /// Jobs published.
    publish_jobs = "infra_lmstfy_redis_publish_jobs";
    /// Jobs handed out.
    consume_jobs = "infra_lmstfy_redis_consume_jobs";
    /// Jobs handed out to consumers of several queues.
    consume_multi_jobs = "infra_lmstfy_redis_consume_multi_jobs";
    /// Jobs stored.
    pool_add_jobs = "infra_lmstfy_redis_pool_add_jobs";
    /// Jobs read.
    pool_get_jobs = "infra_lmstfy_redis_pool_get_jobs";
    /// Jobs acked.
    pool_delete_jobs = "infra_lmstfy_redis_pool_delete_jobs";
    /// Timers set, for a delay or a ttr.
    timer_add_jobs = "infra_lmstfy_redis_timer_add_jobs";
    /// Timers that came due.
    timer_due_jobs = "infra_lmstfy_redis_timer_due_jobs";
    /// Pumps that moved as much as one may.
    timer_full_batches = "infra_lmstfy_redis_timer_full_batches";
    /// Jobs published without a delay.
    queue_direct_push_jobs = "infra_lmstfy_redis_queue_direct_push_jobs";
    /// Jobs taken from ready queues.
    queue_pop_jobs = "infra_lmstfy_redis_queue_pop_jobs";
    /// Jobs respawned from dead letters.
    deadletter_respawn_jobs = "infra_lmstfy_redis_deadletter_respawn_jobs";
    /// Jobs given back because their consumer had left.
    given_back_jobs = "dormouse_given_back_jobs";
}

families! {
    /// What is told of requests.
    HttpFamilies {
        /// How long requests took, long polls included.
        latency: Parted<HistogramVec> =
            "infra_lmstfy_http_latency_milliseconds", &["pool", "namespace", "api", "method"], Buckets(2.5, 9);
        /// Answers by status code.
        codes: Parted<IntCounterVec> =
            "infra_lmstfy_http_http_codes", &["pool", "namespace", "api", "method", "code"];
        /// Requests refused by a token's limit; the token is shown as a hash.
        rate_limit: IntCounterVec =
            "infra_lmstfy_http_rate_limit", &["pool", "namespace", "token", "action"];
        /// Consumers waiting in long polls.
        parked_polls: IntGauge = "dormouse_parked_polls", &[];
    }
}

families! {
    /// What is told of queues, of sizes, and of the steps of stores.
    StoreFamilies {
        /// Jobs published, by queue.
        publish_queue_jobs: Parted<IntCounterVec> = "infra_lmstfy_redis_publish_queue_jobs", QUEUE;
        /// Jobs handed out, by queue.
        consume_queue_jobs: Parted<IntCounterVec> = "infra_lmstfy_redis_consume_queue_jobs", QUEUE;
        /// From publish to hand-over, milliseconds.
        job_elapsed_ms: Parted<HistogramVec> = "infra_lmstfy_redis_job_elapsed_ms", QUEUE, Buckets(3.5, 7);
        /// From publish to ack, milliseconds.
        job_ack_elapsed_ms: Parted<HistogramVec> =
            "infra_lmstfy_redis_job_ack_elapsed_ms", QUEUE, Buckets(3.5, 7);
        /// How long the store took for one step, milliseconds.
        latency: HistogramVec = "infra_lmstfy_redis_latency", STEP, Buckets(3.5, 7);
        /// Steps that the store was asked for.
        qps: IntCounterVec = "infra_lmstfy_redis_qps", STEP;
        /// Delayed and running jobs.
        timer_sizes: IntGaugeVec = "infra_lmstfy_redis_timer_sizes", POOL;
        /// Ready jobs.
        queue_sizes: IntGaugeVec = "infra_lmstfy_redis_queue_sizes", QUEUE;
        /// Dead jobs.
        deadletter_sizes: IntGaugeVec = "infra_lmstfy_redis_deadletter_sizes", QUEUE;
    }
}

families! {
    /// What is told of pushed queues.
    PushFamilies {
        /// Attempts to push a job, by what came of them.
        attempts: Parted<IntCounterVec> =
            "dormouse_push_attempts", &["pool", "namespace", "queue", "outcome"];
        /// How long attempts to push a job took, milliseconds.
        milliseconds: Parted<HistogramVec> = "dormouse_push_milliseconds", QUEUE, Buckets(3.5, 7);
        /// Requests of push that wait for their answer.
        in_flight: Parted<IntGaugeVec> = "dormouse_push_in_flight", QUEUE;
        /// Whether push waits for an endpoint that is down.
        breaker_open: Parted<IntGaugeVec> = "dormouse_push_breaker_open", QUEUE;
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

/// A kind of family.
trait Family: Sized {
    type Options;
    fn declare(name: &str, help: &str, labels: &[&str], options: Self::Options) -> prometheus::Result<Self>;
}

/// The time series of a family that may have very many, in [`PARTS`]. A scrape locks one part at a time, and whoever begins
/// a new series waits for that.
#[derive(Clone, Debug)]
struct Parted<V>(Arc<[V]>);

const PARTS: usize = 64;

impl<B: MetricVecBuilder> Parted<MetricVec<B>> {
    fn with_label_values(&self, labels: &[&str]) -> B::M {
        let mut hash = DefaultHasher::new();
        labels.hash(&mut hash);
        self.0[hash.finish() as usize % PARTS].with_label_values(labels)
    }
}

impl<V: Family<Options: Clone>> Family for Parted<V> {
    type Options = V::Options;
    fn declare(name: &str, help: &str, labels: &[&str], options: V::Options) -> prometheus::Result<Self> {
        let part = |_| V::declare(name, help, labels, options.clone());
        (0..PARTS).map(part).collect::<prometheus::Result<_>>().map(Parted)
    }
}

impl<V: Collector> Collector for Parted<V> {
    fn desc(&self) -> Vec<&Desc> {
        self.0[0].desc() // all are the same
    }

    /// The registry makes one family of those with one name.
    fn collect(&self) -> Vec<MetricFamily> {
        self.0.iter().flat_map(Collector::collect).collect()
    }
}

/// The buckets of a histogram begin at 15; how much larger each is than the one before, and how many there are.
#[derive(Clone)]
struct Buckets(f64, usize);

impl Family for HistogramVec {
    type Options = Buckets;
    fn declare(name: &str, help: &str, labels: &[&str], buckets: Buckets) -> prometheus::Result<Self> {
        let buckets = exponential_buckets(15.0, buckets.0, buckets.1)?;
        HistogramVec::new(HistogramOpts::new(name, help).buckets(buckets), labels)
    }
}

impl Family for IntCounterVec {
    type Options = ();
    fn declare(name: &str, help: &str, labels: &[&str], (): ()) -> prometheus::Result<Self> {
        IntCounterVec::new(Opts::new(name, help), labels)
    }
}

impl Family for IntGaugeVec {
    type Options = ();
    fn declare(name: &str, help: &str, labels: &[&str], (): ()) -> prometheus::Result<Self> {
        IntGaugeVec::new(Opts::new(name, help), labels)
    }
}

impl Family for IntGauge {
    type Options = ();
    fn declare(name: &str, help: &str, _none: &[&str], (): ()) -> prometheus::Result<Self> {
        IntGauge::new(name, help)
    }
}

fn register<C: Collector + Clone + 'static>(registry: &Registry, family: prometheus::Result<C>) -> C {
    // Names are literals in this file and in the engines. Every test that starts a server checks them.
    let family = family.expect("a metric's name and labels are well-formed");
    registry.register(Box::new(family.clone())).expect("a metric is declared once");
    family
}

fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}

/// All families, and the registry that they are scraped from.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    http: HttpFamilies,
    /// What engines do.
    pub engine: EngineMetrics,
    /// The gauges for figures of a store's own, by their names.
    figures: Mutex<HashMap<&'static str, GaugeVec>>,
}

impl Default for Metrics {
    fn default() -> Metrics {
        let registry = Registry::new();
        let http = HttpFamilies::register(&registry);
        let engine = EngineMetrics {
            pools: PoolFamilies::register(&registry),
            stores: Arc::new(StoreFamilies::register(&registry)),
            push: Arc::new(PushFamilies::register(&registry)),
            named: Arc::default(),
        };
        Metrics { registry, http, engine, figures: Mutex::default() }
    }
}

impl Metrics {
    /// Counts the requests of a route.
    pub fn route(&self, route: &str) -> RouteMetrics {
        let (latency, codes) = (self.http.latency.clone(), self.http.codes.clone());
        RouteMetrics { api: pattern(route), latency, codes, series: RwLock::default() }
    }

    /// A request was refused by its token's limit. Tokens are secrets, so the label is a hash.
    pub fn limited(&self, pool: &PoolName, namespace: &Namespace, token: &Token, action: &str) {
        let token = token.hash();
        self.http.rate_limit.with_label_values(&[pool.as_str(), namespace.as_str(), &token, action]).inc();
    }

    /// How many consumers wait now.
    pub fn parked(&self, polls: usize) {
        self.http.parked_polls.set(polls as i64);
    }

    /// Before a scrape sets the sizes anew: forgets those of queues that are gone.
    pub fn forget_sizes(&self) {
        self.engine.stores.queue_sizes.reset();
        self.engine.stores.deadletter_sizes.reset();
    }

    /// What a pool's store holds now: jobs with a timer, and each queue's ready and dead jobs.
    pub fn sizes<'a>(
        &self,
        pool: &PoolName,
        timers: u64,
        queues: impl IntoIterator<Item = (&'a Queue, u64, u64)>,
    ) {
        let stores = &self.engine.stores;
        stores.timer_sizes.with_label_values(&[pool.as_str()]).set(timers as i64);
        let set = |[namespace, queue]: [&str; 2], ready: u64, dead: u64| {
            let labels = [pool.as_str(), namespace, queue];
            stores.queue_sizes.with_label_values(&labels).set(ready as i64);
            stores.deadletter_sizes.with_label_values(&labels).set(dead as i64);
        };
        let (mut named, mut of_jobs, mut others) = (0, None, None);
        for (queue, ready, dead) in queues {
            let shared = if is_job_id(queue) {
                &mut of_jobs
            } else if named == MOST_QUEUES {
                &mut others
            } else {
                named += 1;
                set([queue.namespace.as_str(), queue.name.as_str()], ready, dead);
                continue;
            };
            let (ready_before, dead_before) = shared.unwrap_or((0, 0));
            *shared = Some((ready_before + ready, dead_before + dead));
        }
        for (name, sizes) in [(JOB_ID, of_jobs), (OTHER, others)] {
            if let Some((ready, dead)) = sizes {
                set([OTHER, name], ready, dead);
            }
        }
    }

    /// A figure that only one kind of store has. Its gauge is declared when it first comes.
    pub fn store_figure(&self, pool: &PoolName, name: &'static str, value: f64) {
        let mut figures = self.figures.lock();
        let gauge = figures.entry(name).or_insert_with(|| {
            let opts = Opts::new(format!("infra_lmstfy_redis_{name}"), "A figure of the store itself.");
            register(&self.registry, GaugeVec::new(opts, POOL))
        });
        gauge.with_label_values(&[pool.as_str()]).set(value);
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

/// Whether a queue is named after a job.
fn is_job_id(queue: &Queue) -> bool {
    JobId::parse(queue.name.as_str()).is_some()
}

/// `/api/{namespace}/{queue}` as lmstfy's dashboards know it: `/api/:namespace/:queue`.
pub fn pattern(route: &str) -> String {
    route.replace('{', ":").replace('}', "")
}

/// The requests of one route. A time series is looked up by its labels once, and kept.
#[derive(Debug)]
pub struct RouteMetrics {
    api: String,
    latency: Parted<HistogramVec>,
    codes: Parted<IntCounterVec>,
    /// Of the namespaces that requests with an accepted token have named.
    series: RwLock<HashMap<(PoolName, Namespace), Vec<RouteSeries>>>,
}

/// Those of one method and status.
#[derive(Debug)]
struct RouteSeries {
    method: &'static str,
    status: u16,
    latency: Histogram,
    codes: IntCounter,
}

impl RouteMetrics {
    /// A request was answered. `accepted` are its pool and namespace if its token was accepted.
    pub fn request(
        &self,
        accepted: Option<&(PoolName, Namespace)>,
        method: &'static str,
        status: u16,
        took: Duration,
    ) {
        let count = |series: &RouteSeries| {
            series.latency.observe(ms(took));
            series.codes.inc();
        };
        let Some(accepted) = accepted else { return count(&self.of("", "", method, status)) };
        let is_it = |series: &&RouteSeries| series.method == method && series.status == status;
        if let Some(series) = self.series.read().get(accepted).and_then(|all| all.iter().find(is_it)) {
            return count(series);
        }
        let series = self.of(accepted.0.as_str(), accepted.1.as_str(), method, status);
        count(&series);
        let mut all = self.series.write();
        let all = all.entry(accepted.clone()).or_default();
        if !all.iter().any(|series| is_it(&series)) {
            all.push(series);
        }
    }

    fn of(&self, pool: &str, namespace: &str, method: &'static str, status: u16) -> RouteSeries {
        let (labels, code) = ([pool, namespace, &self.api, method], status.to_string());
        let codes = self.codes.with_label_values(&[pool, namespace, &self.api, method, &code]);
        RouteSeries { method, status, latency: self.latency.with_label_values(&labels), codes }
    }
}

/// What [`Metered`](crate::engine::metered::Metered) records.
#[derive(Debug)]
pub struct EngineMetrics {
    pools: PoolFamilies,
    stores: Arc<StoreFamilies>,
    push: Arc<PushFamilies>,
    /// The queues that have time series of their own.
    named: Arc<Mutex<HashSet<Queue>>>,
}

impl EngineMetrics {
    /// One pool's metrics.
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

#[cfg(test)]
mod tests {
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
        metrics.sizes(&pool, 3, [(&queue("q"), 4, 5)]);
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
