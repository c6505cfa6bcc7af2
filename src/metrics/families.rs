//! The families. Each is declared in one place: its field, kind, name and labels, with the help text as its doc comment.
//! `infra_lmstfy_*` have the names, labels and buckets that dashboards of lmstfy read; `dormouse_*` are our own. Knows
//! no pool and no queue.

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

/// Seconds from due to handed over: a millisecond is on time, a day is a queue that nobody consumes.
const LATENESS: &[f64] = &[
    0.001, 0.005, 0.025, 0.1, 0.5, 1.0, 5.0, 30.0, 60.0, 300.0, 1800.0, 3600.0, 21_600.0, 86_400.0, 604_800.0,
];
/// Seconds from when an occurrence was to be placed until it was.
const SCHEDULE_LATENESS: &[f64] = &[
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0, 60.0, 300.0, 1800.0, 3600.0,
    21_600.0,
];
/// Seconds of a step of a store.
const STEP_SECONDS: &[f64] = &[
    0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5,
    5.0, 10.0,
];
const BATCH: &[f64] = &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0];
/// Seconds of a request to an endpoint.
const PUSH_SECONDS: &[f64] = &[0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0];

/// Declares a struct of families, one line each: the help, then `field: Kind = name, labels, kind's options;`.
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
            pub(super) fn of(&self, pool: &PoolName) -> PoolCounters {
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
    given_back_jobs = "dormouse_given_back_jobs_total";
}

families! {
    /// What is told of requests.
    HttpFamilies {
        /// How long requests took, long polls included.
        latency: Parted<HistogramVec> =
            "infra_lmstfy_http_latency_milliseconds", &["pool", "namespace", "api", "method"], Buckets::OfLmstfy(2.5, 9);
        /// Answers by status code.
        codes: Parted<IntCounterVec> =
            "infra_lmstfy_http_http_codes", &["pool", "namespace", "api", "method", "code"];
        /// Requests refused by a token's limit; the token is shown as a hash.
        rate_limit: IntCounterVec =
            "infra_lmstfy_http_rate_limit", &["pool", "namespace", "token", "action"];
        /// Consumers waiting in long polls. One that waits for many queues counts once for each ten, one with a long head once more for each 8 KiB.
        parked_polls: IntGauge = "dormouse_parked_polls", &[];
        /// The most consumers that may wait in long polls.
        parked_polls_limit: IntGauge = "dormouse_parked_polls_limit", &[];
        /// Open connections of a port.
        connections: IntGaugeVec = "dormouse_connections", PORT;
        /// The most connections that a port takes; further ones wait.
        connections_limit: IntGaugeVec = "dormouse_connections_limit", PORT;
        /// Connections that could not be accepted, most likely for want of open files.
        accept_failures: IntCounterVec = "dormouse_accept_failures_total", PORT;
        /// Requests that are no HTTP, or whose head or path is too large: refused with 400, 431 or 414 before a route was looked for.
        bad_requests: IntCounterVec = "dormouse_bad_requests_total", PORT;
    }
}

families! {
    /// What is told of the server as a whole, and of whether its stores can be used. Asked for at each scrape.
    ServerFamilies {
        /// Always 1; the labels say what runs.
        build_info: IntGaugeVec = "dormouse_build_info", &["version", "commit"];
        /// Whether the server is ready, as /ready says.
        ready: IntGauge = "dormouse_ready", &[];
        /// Whether the store of tokens and limits can be used.
        tokens_up: IntGauge = "dormouse_tokens_up", &[];
        /// Whether the pool's store can be used.
        pool_up: IntGaugeVec = "dormouse_pool_up", POOL;
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
        job_elapsed_ms: Parted<HistogramVec> = "infra_lmstfy_redis_job_elapsed_ms", QUEUE, Buckets::OfLmstfy(3.5, 7);
        /// From publish to ack, milliseconds.
        job_ack_elapsed_ms: Parted<HistogramVec> =
            "infra_lmstfy_redis_job_ack_elapsed_ms", QUEUE, Buckets::OfLmstfy(3.5, 7);
        /// How long the store took for one step, milliseconds.
        latency: HistogramVec = "infra_lmstfy_redis_latency", STEP, Buckets::OfLmstfy(3.5, 7);
        /// Steps that the store was asked for.
        qps: IntCounterVec = "infra_lmstfy_redis_qps", STEP;
        /// Delayed and running jobs.
        timer_sizes: IntGaugeVec = "infra_lmstfy_redis_timer_sizes", POOL;
        /// Ready jobs.
        queue_sizes: IntGaugeVec = "infra_lmstfy_redis_queue_sizes", QUEUE;
        /// Dead jobs.
        deadletter_sizes: IntGaugeVec = "infra_lmstfy_redis_deadletter_sizes", QUEUE;
        /// From due (the end of the delay, of the ttr, of a release) to handed over, in seconds.
        lateness: Parted<HistogramVec> = "dormouse_lateness_seconds", QUEUE, Buckets::Upto(LATENESS);
        /// For how long the first ready job of a queue has been ready; 0 when none is.
        oldest_ready: GaugeVec = "dormouse_oldest_ready_seconds", QUEUE;
        /// How long ago the earliest job was due that the pump has not moved yet; 0 when none is due.
        timer_overdue: GaugeVec = "dormouse_timer_overdue_seconds", POOL;
        /// Delayed and running jobs of a queue, where the store knows them.
        queue_jobs: IntGaugeVec = "dormouse_queue_jobs", &["pool", "namespace", "queue", "state"];
        /// 1 while the queue is paused.
        queue_paused: IntGaugeVec = "dormouse_queue_paused", QUEUE;
        /// Jobs that died, by whatever: no tries left, or buried.
        dead_jobs: Parted<IntCounterVec> = "dormouse_dead_jobs_total", QUEUE;
        /// Jobs that are ready again because the ttr of their hand-over has ended.
        redelivered_jobs: Parted<IntCounterVec> = "dormouse_redelivered_jobs_total", QUEUE;
        /// Jobs that their workers gave up for now.
        released_jobs: Parted<IntCounterVec> = "dormouse_released_jobs_total", QUEUE;
        /// Jobs whose ttl has ended before they were acked.
        expired_jobs: IntCounterVec = "dormouse_expired_jobs_total", POOL;
        /// How long one step of the store took, in seconds; sync is the disk's.
        store_seconds: HistogramVec = "dormouse_store_seconds", OPERATION, Buckets::Upto(STEP_SECONDS);
        /// How many jobs one step of the store was for; of a sync, how many calls it made last.
        batch_jobs: HistogramVec = "dormouse_batch_jobs", OPERATION, Buckets::Upto(BATCH);
        /// How long calls took for which replicas were waited for, in seconds.
        wait_seconds: HistogramVec = "dormouse_cluster_wait_seconds", POOL, Buckets::Upto(STEP_SECONDS);
        /// Free bytes on the disk below which publishes are refused.
        disk_min_free: IntGaugeVec = "dormouse_disk_min_free_bytes", POOL;
    }
}

families! {
    /// What is told of pools in a Redis Cluster.
    ClusterFamilies {
        /// Partitions of the pool that a node has.
        partitions: IntGaugeVec = "dormouse_cluster_partitions", NODE;
        /// Partitions of the pool that cannot be used now, by why.
        unreachable: IntGaugeVec = "dormouse_cluster_partitions_unreachable", &["pool", "state"];
        /// Calls that a node refused before it began them, by why; they are sent again.
        redirections: IntCounterVec = "dormouse_cluster_redirections_total", &["pool", "kind"];
        /// How far a node's clock is ahead of the median of all nodes, in seconds.
        clock_difference: GaugeVec = "dormouse_cluster_clock_difference_seconds", NODE;
    }
}

/// A gauge of the figures that only one kind of store has. In a cluster each node has its own, with one label more.
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

    /// The registry makes one family of those with one name.
    fn collect(&self) -> Vec<MetricFamily> {
        [self.of_pool.collect(), self.of_node.collect()].concat()
    }
}

/// The figures that only one kind of store has: what stands behind `infra_lmstfy_redis_` in the name, and the help.
pub(super) const FIGURES: &[(&str, &str)] = &[
    ("max_mem_bytes", "The most memory that the Redis may use; 0 when it has no bound."),
    ("used_mem_bytes", "Memory that the Redis uses."),
    ("connections", "Clients that are connected to the Redis."),
    ("blocking_connections", "Clients of the Redis that wait in a blocking command; Dormouse uses none."),
    ("total_keys", "Keys in the Redis, those of other programs included."),
    ("total_ttl_keys", "Keys in the Redis that expire."),
    ("disk_bytes", "Bytes of the pool's files."),
    ("disk_journals", "Files of the store's log; the next start reads them."),
    ("disk_quarantined_jobs", "Jobs that cannot be read and are handed out to nobody."),
    ("disk_ready_in_memory", "Ready jobs whose places in their queues are kept in memory."),
    ("disk_free_bytes", "Free bytes on the pool's disk."),
    ("disk_full", "Whether the disk is almost full: publishes are refused."),
];

families! {
    /// What is told of pushed queues.
    PushFamilies {
        /// Attempts to push a job, by what came of them.
        attempts: Parted<IntCounterVec> =
            "dormouse_push_attempts_total", &["pool", "namespace", "queue", "outcome"];
        /// How long attempts to push a job took, in seconds.
        seconds: Parted<HistogramVec> = "dormouse_push_seconds", QUEUE, Buckets::Upto(PUSH_SECONDS);
        /// Requests of push that wait for their answer.
        in_flight: Parted<IntGaugeVec> = "dormouse_push_in_flight", QUEUE;
        /// Whether push waits for an endpoint that is down.
        breaker_open: Parted<IntGaugeVec> = "dormouse_push_breaker_open", QUEUE;
    }
}

families! {
    /// What is told of schedules.
    ScheduleFamilies {
        /// Schedules, by what they do.
        schedules: IntGaugeVec = "dormouse_schedules", &["pool", "state"];
        /// What this server has decided about occurrences, by what became of them.
        occurrences: IntCounterVec = "dormouse_schedule_occurrences_total", &["pool", "outcome"];
        /// From when an occurrence was to be placed until it was, in seconds. Without those that were caught up.
        lateness: HistogramVec = "dormouse_schedule_lateness_seconds", POOL, Buckets::Upto(SCHEDULE_LATENESS);
        /// For how long the schedule is due that waits longest, in seconds.
        oldest_owed: IntGaugeVec = "dormouse_schedule_oldest_owed_seconds", POOL;
        /// 1, with the version of the time zone database that this server reads.
        zones: IntGaugeVec = "dormouse_schedule_zone_database", &["version"];
    }
}

/// A kind of family.
pub(super) trait Family: Sized {
    type Options;
    fn declare(name: &str, help: &str, labels: &[&str], options: Self::Options) -> prometheus::Result<Self>;
}

/// The time series of a family that may have very many, in [`PARTS`]. A scrape locks one part at a time, and whoever
/// begins a new series waits for that.
#[derive(Clone, Debug)]
pub(super) struct Parted<V>(Arc<[V]>);

const PARTS: usize = 64;

impl<B: MetricVecBuilder> Parted<MetricVec<B>> {
    pub(super) fn with_label_values(&self, labels: &[&str]) -> B::M {
        self.part(labels).with_label_values(labels)
    }

    /// The series is not shown any more. Whoever holds it counts on for nobody.
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

    /// The registry makes one family of those with one name.
    fn collect(&self) -> Vec<MetricFamily> {
        self.0.iter().flat_map(Collector::collect).collect()
    }
}

/// The buckets of a histogram.
#[derive(Clone)]
pub(super) enum Buckets {
    /// From 15 on; how much larger each is than the one before, and how many there are.
    OfLmstfy(f64, usize),
    /// Where each ends.
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
    // Names are literals in this file and in the engines. Every test that starts a server checks them.
    let family = family.expect("a metric's name and labels are well-formed");
    registry.register(Box::new(family.clone())).expect("a metric is declared once");
    family
}

pub(super) fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}
