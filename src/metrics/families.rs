//! The families. Each is declared in one place: its field, kind, name and labels, with the help text as its doc comment.
//! `infra_lmstfy_*` have the names, labels and buckets that dashboards of lmstfy read; `dormouse_*` are our own. Knows
//! no pool and no queue.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use prometheus::core::{Collector, Desc, MetricVec, MetricVecBuilder};
use prometheus::{
    HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry,
    exponential_buckets, proto::MetricFamily,
};

use crate::name::PoolName;

pub(super) const POOL: &[&str] = &["pool"];
const QUEUE: &[&str] = &["pool", "namespace", "queue"];
const STEP: &[&str] = &["node", "command", "status"];

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
    given_back_jobs = "dormouse_given_back_jobs";
}

families! {
    /// What is told of requests.
    HttpFamilies {
        /// How long requests took, long polls included.
        latency: Parted<HistogramVec> =
            "infra_lmstfy_http_latency_milliseconds", &["pool", "namespace", "api", "method"], Buckets(15.0, 2.5, 9);
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
        job_elapsed_ms: Parted<HistogramVec> = "infra_lmstfy_redis_job_elapsed_ms", QUEUE, Buckets(15.0, 3.5, 7);
        /// From publish to ack, milliseconds.
        job_ack_elapsed_ms: Parted<HistogramVec> =
            "infra_lmstfy_redis_job_ack_elapsed_ms", QUEUE, Buckets(15.0, 3.5, 7);
        /// How long the store took for one step, milliseconds.
        latency: HistogramVec = "infra_lmstfy_redis_latency", STEP, Buckets(15.0, 3.5, 7);
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
        milliseconds: Parted<HistogramVec> = "dormouse_push_milliseconds", QUEUE, Buckets(15.0, 3.5, 7);
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
        occurrences: IntCounterVec = "dormouse_schedule_occurrences", &["pool", "outcome"];
        /// From when an occurrence was to be placed until it was, milliseconds. Without those that were caught up.
        lateness: HistogramVec = "dormouse_schedule_lateness_milliseconds", POOL, Buckets(1.0, 2.5, 13);
        /// For how long the schedule is due that waits longest, seconds.
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

/// Where the buckets of a histogram begin, how much larger each is than the one before, and how many there are.
#[derive(Clone)]
pub(super) struct Buckets(f64, f64, usize);

impl Family for HistogramVec {
    type Options = Buckets;
    fn declare(name: &str, help: &str, labels: &[&str], buckets: Buckets) -> prometheus::Result<Self> {
        let buckets = exponential_buckets(buckets.0, buckets.1, buckets.2)?;
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
