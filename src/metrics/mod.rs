//! The metric families ([`families`]), and who counts what in them: requests, and the pools' stores. Exceptions are the
//! gauges for figures of a store's own, whose names the stores choose.
//! Takes plain values and names, and knows no engine and no HTTP types.

mod families;
mod requests;
mod schedules;
mod stores;

use std::sync::Arc;

use ahash::HashMap;
use parking_lot::{Mutex, RwLock};
use prometheus::{Encoder, GaugeVec, Opts, Registry, TextEncoder};

use self::families::{
    HttpFamilies, POOL, PoolFamilies, PushFamilies, ScheduleFamilies, StoreFamilies, register,
};
pub use self::requests::{RouteMetrics, pattern};
pub use self::schedules::ScheduleMetrics;
pub use self::stores::{EngineMetrics, PoolMetrics, PushSeries};
use self::stores::{JOB_ID, MOST_QUEUES, OTHER, is_job_id};
use crate::name::{Namespace, PoolName, Queue, Token};

/// All families, and the registry that they are scraped from.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    http: HttpFamilies,
    /// What engines do.
    pub engine: EngineMetrics,
    schedules: Arc<ScheduleFamilies>,
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
        let schedules = Arc::new(ScheduleFamilies::register(&registry));
        Metrics { registry, http, engine, schedules, figures: Mutex::default() }
    }
}

impl Metrics {
    /// Counts the requests of a route.
    pub fn route(&self, route: &str) -> RouteMetrics {
        let (latency, codes) = (self.http.latency.clone(), self.http.codes.clone());
        RouteMetrics { api: pattern(route), latency, codes, series: RwLock::default() }
    }

    /// Counts what becomes of a pool's schedules.
    pub fn of_schedules(&self, pool: &PoolName) -> ScheduleMetrics {
        ScheduleMetrics { pool: pool.clone(), families: self.schedules.clone() }
    }

    /// The time zone database that schedules are read by.
    pub fn zone_database(&self, version: &str) {
        self.schedules.zones.with_label_values(&[version]).set(1);
    }

    /// A request was refused by its token's limit. Tokens are secrets, so the label is a hash.
    pub fn limited(&self, pool: &PoolName, namespace: &Namespace, token: &Token, action: &str) {
        let token = token.hash();
        self.http.rate_limit.with_label_values(&[pool.as_str(), namespace.as_str(), &token, action]).inc();
    }

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
