//! Metrics of a store's work.

use std::sync::Arc;

use crate::jobs::Named;
use crate::stage::{VirtualStage, job, job_key, manual_clock, ok, queue};
use crate::support::engine_ext::EngineExt;
use crate::support::model::ModelEngine;
use dormouse::engine::metered::Metered;
use dormouse::engine::{Engine, OnConflict, Publication};
use dormouse::metrics::Metrics;
use dormouse::name::PoolName;

/// Guards against dashboards that count lookups by key as fetched jobs.
#[tokio::test]
async fn a_look_by_id_counts_as_a_job_that_was_fetched_and_one_by_key_does_not() {
    let metrics = Metrics::default();
    let clock = manual_clock();
    let model = Arc::new(ModelEngine::new(clock.clone()));
    let engine = Arc::new(Metered::new(model, metrics.engine.pool(&PoolName::default_pool())));
    let stage = VirtualStage::new(engine.clone(), clock, ());
    let placing = job(&queue("a"), "x").key_or("k", OnConflict::Fail).placing(&stage);
    let name = placing.job.name();
    ok("publish", engine.publish(Publication { jobs: vec![placing], replaces: None, once: None }).await);
    let fetched = || {
        let text = String::from_utf8(metrics.text()).expect("UTF-8");
        let line = text.lines().find_map(|line| line.strip_prefix("infra_lmstfy_redis_pool_get_jobs{"));
        line.and_then(|line| line.split_once("} ")).map_or("0".to_owned(), |(_, count)| count.to_owned())
    };
    assert!(ok("inspect", engine.inspect_by_key(&queue("a"), &job_key("k")).await).is_some(), "by key");
    assert_eq!(fetched(), "0", "after a look by key");
    assert!(ok("inspect", engine.inspect_stored(&name).await).is_some(), "by id");
    assert_eq!(fetched(), "1", "after a look by id");
}
