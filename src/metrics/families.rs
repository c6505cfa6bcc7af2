//! Metric families. Each is declared once: its field, kind, name and labels, with the help text as its doc comment.
//! `infra_lmstfy_*` have the names, labels and buckets that lmstfy's dashboards use; `dormouse_*` are our own.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use prometheus::core::{Collector, Desc, MetricVec, MetricVecBuilder};
use prometheus::{
    GaugeVec, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry,
    exponential_buckets, proto::MetricFamily,
};

use crate::name::PoolName;

pub(super) const POOL: &[&str] = &["pool"];
const QUEUE: &[&str] = &["pool", "namespace", "queue"];
const STEP: &[&str] = &["node", "command", "status"];
const OPERATION: &[&str] = &["pool", "operation"];
const PORT: &[&str] = &["port"];
const NODE: &[&str] = &["pool", "node"];

/// Buckets for the time from due to delivery in seconds: a millisecond is on time, a day is a queue without consumers.
const LATENESS: &[f64] = &[
    0.001, 0.005, 0.025, 0.1, 0.5, 1.0, 5.0, 30.0, 60.0, 300.0, 1800.0, 3600.0, 21_600.0, 86_400.0, 604_800.0,
];
/// Buckets for the lateness of occurrences in seconds.
const SCHEDULE_LATENESS: &[f64] = &[
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0, 60.0, 300.0, 1800.0, 3600.0,
    21_600.0,
];
/// Buckets for steps of a store in seconds.
const STEP_SECONDS: &[f64] = &[
    0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5,
    5.0, 10.0,
];
const BATCH: &[f64] = &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0];
/// Buckets for requests to endpoints in seconds.
const PUSH_SECONDS: &[f64] = &[0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0];

/// Declares a struct of families, one line each: the help text, then `field: Kind = name, labels, kind's options;`.
macro_rules! families {
    ($(#[$doc:meta])* $families:ident {
        $(#[doc = $help:literal] $field:ident: $kind:ty = $name:literal, $labels:expr $(, $options:expr)?;)*
    }) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub(super) struct $families { $(#[doc = $help] pub(super) $field: $kind,)* }

        impl $families {
            pub(super) fn register(registry: &Registry) -> $families {
                $families {
                    $($field: register(registry, <$kind>::declare($name, $help.trim(), $labels, ($($options)?))),)*
                }
            }
        }
    };
}

/// Declares counters by pool, one line each: the help text, then `field = name;`. A pool's counters are looked up once,
/// so that counting is fast.
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
            pub(super) fn of(&self, pool: &PoolName) -> PoolCounters {
                PoolCounters { $($field: self.$field.with_label_values(&[pool.as_str()]),)* }
            }
        }
    };
}

pool_counters! {
    /// Jobs published.
    publish_jobs = "infra_lmstfy_redis_publish_jobs";
    /// Jobs delivered.
    consume_jobs = "infra_lmstfy_redis_consume_jobs";
    /// Jobs delivered to consumers of several queues.
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
    /// Pumps that moved the maximum number of jobs.
    timer_full_batches = "infra_lmstfy_redis_timer_full_batches";
    /// Jobs published without a delay.
    queue_direct_push_jobs = "infra_lmstfy_redis_queue_direct_push_jobs";
    /// Jobs taken from ready queues.
    queue_pop_jobs = "infra_lmstfy_redis_queue_pop_jobs";
    /// Jobs respawned from dead letters.
    deadletter_respawn_jobs = "infra_lmstfy_redis_deadletter_respawn_jobs";
    /// Jobs returned to their queue because the consumer had disconnected.
    given_back_jobs = "dormouse_given_back_jobs_total";
}

families! {
    /// Metrics of requests.
    HttpFamilies {
        /// Duration of requests in milliseconds, including long polls.
        latency: Parted<HistogramVec> =
            "infra_lmstfy_http_latency_milliseconds", &["pool", "namespace", "api", "method"], Buckets::OfLmstfy(2.5, 9);
        /// Replies by status code.
        codes: Parted<IntCounterVec> =
            "infra_lmstfy_http_http_codes", &["pool", "namespace", "api", "method", "code"];
        /// Requests refused by a token's rate limit; the token is shown as a hash.
        rate_limit: IntCounterVec =
            "infra_lmstfy_http_rate_limit", &["pool", "namespace", "token", "action"];
        /// Consumers waiting in long polls; a poll counts once more for every further ten queues and every further 8 KiB of request headers.
        parked_polls: IntGauge = "dormouse_parked_polls", &[];
        /// Maximum number of consumers waiting in long polls.
        parked_polls_limit: IntGauge = "dormouse_parked_polls_limit", &[];
        /// Open connections of a port.
        connections: IntGaugeVec = "dormouse_connections", PORT;
        /// Maximum number of connections of a port; further ones wait.
        connections_limit: IntGaugeVec = "dormouse_connections_limit", PORT;
        /// Connections that could not be accepted, usually because of the open-file limit.
        accept_failures: IntCounterVec = "dormouse_accept_failures_total", PORT;
        /// Requests that are not valid HTTP or whose head or path is too large, refused with 400, 414 or 431 before routing.
        bad_requests: IntCounterVec = "dormouse_bad_requests_total", PORT;
    }
}

families! {
    /// Metrics of the server and of the availability of its stores, updated at each scrape.
    ServerFamilies {
        /// Always 1; the labels identify the build.
        build_info: IntGaugeVec = "dormouse_build_info", &["version", "commit"];
        /// Whether the server is ready, as reported by /ready.
        ready: IntGauge = "dormouse_ready", &[];
        /// Whether the store of tokens and limits is available.
        tokens_up: IntGauge = "dormouse_tokens_up", &[];
        /// Whether the pool's store is available.
        pool_up: IntGaugeVec = "dormouse_pool_up", POOL;
    }
}

families! {
    /// Metrics of queues, sizes, and steps of stores.
    StoreFamilies {
        /// Jobs published, by queue.
        publish_queue_jobs: Parted<IntCounterVec> = "infra_lmstfy_redis_publish_queue_jobs", QUEUE;
        /// Jobs delivered, by queue.
        consume_queue_jobs: Parted<IntCounterVec> = "infra_lmstfy_redis_consume_queue_jobs", QUEUE;
        /// Time from publish to delivery, in milliseconds.
        job_elapsed_ms: Parted<HistogramVec> = "infra_lmstfy_redis_job_elapsed_ms", QUEUE, Buckets::OfLmstfy(3.5, 7);
        /// Time from publish to ack, in milliseconds.
        job_ack_elapsed_ms: Parted<HistogramVec> =
            "infra_lmstfy_redis_job_ack_elapsed_ms", QUEUE, Buckets::OfLmstfy(3.5, 7);
        /// Duration of a step of the store, in milliseconds.
        latency: HistogramVec = "infra_lmstfy_redis_latency", STEP, Buckets::OfLmstfy(3.5, 7);
        /// Steps of the store.
        qps: IntCounterVec = "infra_lmstfy_redis_qps", STEP;
        /// Delayed and running jobs.
        timer_sizes: IntGaugeVec = "infra_lmstfy_redis_timer_sizes", POOL;
        /// Ready jobs.
        queue_sizes: IntGaugeVec = "infra_lmstfy_redis_queue_sizes", QUEUE;
        /// Dead jobs.
        deadletter_sizes: IntGaugeVec = "infra_lmstfy_redis_deadletter_sizes", QUEUE;
        /// Time from due (end of a delay, ttr or release) to delivery, in seconds.
        lateness: Parted<HistogramVec> = "dormouse_lateness_seconds", QUEUE, Buckets::Upto(LATENESS);
        /// Age of the oldest ready job of a queue, in seconds; 0 if there is none.
        oldest_ready: GaugeVec = "dormouse_oldest_ready_seconds", QUEUE;
        /// How long the earliest due job has been overdue without being moved by the pump, in seconds; 0 if none is due.
        timer_overdue: GaugeVec = "dormouse_timer_overdue_seconds", POOL;
        /// Delayed and running jobs of a queue, if the store counts them.
        queue_jobs: IntGaugeVec = "dormouse_queue_jobs", &["pool", "namespace", "queue", "state"];
        /// 1 while the numbers of delayed and running jobs of a pool's queues are estimates.
        queue_jobs_estimated: IntGaugeVec = "dormouse_queue_jobs_estimated", POOL;
        /// 1 while the queue is paused.
        queue_paused: IntGaugeVec = "dormouse_queue_paused", QUEUE;
        /// Jobs that died, because they had no tries left or were buried.
        dead_jobs: Parted<IntCounterVec> = "dormouse_dead_jobs_total", QUEUE;
        /// Jobs that are ready again because the ttr of their delivery has ended.
        redelivered_jobs: Parted<IntCounterVec> = "dormouse_redelivered_jobs_total", QUEUE;
        /// Jobs released by their workers for a retry.
        released_jobs: Parted<IntCounterVec> = "dormouse_released_jobs_total", QUEUE;
        /// Jobs whose ttl ended before they were acked.
        expired_jobs: IntCounterVec = "dormouse_expired_jobs_total", POOL;
        /// Duration of a step of the store, in seconds; sync is the disk's.
        store_seconds: HistogramVec = "dormouse_store_seconds", OPERATION, Buckets::Upto(STEP_SECONDS);
        /// Jobs per step of the store; for a sync, calls made durable by it.
        batch_jobs: HistogramVec = "dormouse_batch_jobs", OPERATION, Buckets::Upto(BATCH);
        /// Duration of calls that wait for replicas, in seconds.
        wait_seconds: HistogramVec = "dormouse_cluster_wait_seconds", POOL, Buckets::Upto(STEP_SECONDS);
        /// Free bytes on disk below which publishes are refused.
        disk_min_free: IntGaugeVec = "dormouse_disk_min_free_bytes", POOL;
    }
}

families! {
    /// Metrics of pools in a Redis Cluster.
    ClusterFamilies {
        /// Partitions of the pool on a node.
        partitions: IntGaugeVec = "dormouse_cluster_partitions", NODE;
        /// Partitions of the pool that are unavailable, by reason.
        unreachable: IntGaugeVec = "dormouse_cluster_partitions_unreachable", &["pool", "state"];
        /// Calls that a node refused before executing them, by reason; they are sent again.
        redirections: IntCounterVec = "dormouse_cluster_redirections_total", &["pool", "kind"];
        /// Difference of a node's clock to the median of all nodes, in seconds.
        clock_difference: GaugeVec = "dormouse_cluster_clock_difference_seconds", NODE;
    }
}

/// A gauge specific to one kind of store. In a cluster each node has its own, with one more label.
#[derive(Clone, Debug)]
pub(super) struct Figure {
    pub(super) of_pool: GaugeVec,
    pub(super) of_node: GaugeVec,
}

impl Figure {
    pub(super) fn declare(name: &str, help: &str) -> prometheus::Result<Figure> {
        let gauge = |labels| GaugeVec::new(Opts::new(name, help), labels);
        Ok(Figure { of_pool: gauge(POOL)?, of_node: gauge(NODE)? })
    }

    pub(super) fn reset(&self) {
        self.of_pool.reset();
        self.of_node.reset();
    }
}

impl Collector for Figure {
    fn desc(&self) -> Vec<&Desc> {
        self.of_pool.desc()
    }

    /// The registry merges families with the same name.
    fn collect(&self) -> Vec<MetricFamily> {
        [self.of_pool.collect(), self.of_node.collect()].concat()
    }
}

/// Gauges specific to one kind of store: the suffix of the name after `infra_lmstfy_redis_`, and the help text.
pub(super) const FIGURES: &[(&str, &str)] = &[
    ("max_mem_bytes", "Memory limit of the Redis in bytes; 0 if unlimited."),
    ("used_mem_bytes", "Memory used by the Redis in bytes."),
    ("connections", "Clients connected to the Redis."),
    ("blocking_connections", "Clients of the Redis waiting in a blocking command; Dormouse uses none."),
    ("total_keys", "Keys in the Redis, including keys of other programs."),
    ("total_ttl_keys", "Keys in the Redis that expire."),
    ("disk_bytes", "Bytes of the pool's files."),
    ("disk_journals", "Files of the store's log; the next start reads them."),
    ("disk_quarantined_jobs", "Unreadable jobs, which are not delivered."),
    ("disk_ready_in_memory", "Ready jobs whose queue entries are kept in memory."),
    ("disk_free_bytes", "Free bytes on the pool's disk."),
    ("disk_full", "Whether the disk is almost full, so that publishes are refused."),
];

families! {
    /// Metrics of pushed queues.
    PushFamilies {
        /// Attempts to push a job, by outcome.
        attempts: Parted<IntCounterVec> =
            "dormouse_push_attempts_total", &["pool", "namespace", "queue", "outcome"];
        /// Duration of attempts to push a job, in seconds.
        seconds: Parted<HistogramVec> = "dormouse_push_seconds", QUEUE, Buckets::Upto(PUSH_SECONDS);
        /// Push requests in flight.
        in_flight: Parted<IntGaugeVec> = "dormouse_push_in_flight", QUEUE;
        /// Whether the breaker of an endpoint is open.
        breaker_open: Parted<IntGaugeVec> = "dormouse_push_breaker_open", QUEUE;
    }
}

families! {
    /// Metrics of schedules.
    ScheduleFamilies {
        /// Schedules, by state.
        schedules: IntGaugeVec = "dormouse_schedules", &["pool", "state"];
        /// Occurrences processed by this server, by outcome.
        occurrences: IntCounterVec = "dormouse_schedule_occurrences_total", &["pool", "outcome"];
        /// Time from when an occurrence was due until it was placed, in seconds, without catch-up.
        lateness: HistogramVec = "dormouse_schedule_lateness_seconds", POOL, Buckets::Upto(SCHEDULE_LATENESS);
        /// Age of the oldest overdue schedule, in seconds.
        oldest_owed: IntGaugeVec = "dormouse_schedule_oldest_owed_seconds", POOL;
        /// 1, with the version of this server's time zone database.
        zones: IntGaugeVec = "dormouse_schedule_zone_database", &["version"];
    }
}

/// A kind of metric family.
pub(super) trait Family: Sized {
    type Options;
    fn declare(name: &str, help: &str, labels: &[&str], options: Self::Options) -> prometheus::Result<Self>;
}

/// The time series of a family that may have very many, in [`PARTS`] parts. A scrape locks one part at a time, and the
/// creation of a series waits for at most one.
#[derive(Clone, Debug)]
pub(super) struct Parted<V>(Arc<[V]>);

const PARTS: usize = 64;

impl<B: MetricVecBuilder> Parted<MetricVec<B>> {
    pub(super) fn with_label_values(&self, labels: &[&str]) -> B::M {
        self.part(labels).with_label_values(labels)
    }

    /// Hides the series. Its holders continue to count without effect.
    pub(super) fn remove_label_values(&self, labels: &[&str]) {
        // It may not be there.
        let _ = self.part(labels).remove_label_values(labels);
    }

    fn part(&self, labels: &[&str]) -> &MetricVec<B> {
        let mut hash = DefaultHasher::new();
        labels.hash(&mut hash);
        &self.0[hash.finish() as usize % PARTS]
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

    /// The registry merges families with the same name.
    fn collect(&self) -> Vec<MetricFamily> {
        self.0.iter().flat_map(Collector::collect).collect()
    }
}

/// Buckets of a histogram.
#[derive(Clone)]
pub(super) enum Buckets {
    /// Exponential buckets from 15 on: growth factor and number.
    OfLmstfy(f64, usize),
    /// Upper bounds.
    Upto(&'static [f64]),
}

impl Family for HistogramVec {
    type Options = Buckets;
    fn declare(name: &str, help: &str, labels: &[&str], buckets: Buckets) -> prometheus::Result<Self> {
        let buckets = match buckets {
            Buckets::OfLmstfy(factor, count) => exponential_buckets(15.0, factor, count)?,
            Buckets::Upto(ends) => ends.to_vec(),
        };
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

impl Family for GaugeVec {
    type Options = ();
    fn declare(name: &str, help: &str, labels: &[&str], (): ()) -> prometheus::Result<Self> {
        GaugeVec::new(Opts::new(name, help), labels)
    }
}

impl Family for IntGauge {
    type Options = ();
    fn declare(name: &str, help: &str, _none: &[&str], (): ()) -> prometheus::Result<Self> {
        IntGauge::new(name, help)
    }
}

pub(super) fn register<C: Collector + Clone + 'static>(
    registry: &Registry,
    family: prometheus::Result<C>,
) -> C {
    // Names are literals in this file and in the engines, and every test that starts a server checks them.
    let family = family.expect("a metric's name and labels are well-formed");
    registry.register(Box::new(family.clone())).expect("a metric is declared once");
    family
}

pub(super) fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}
