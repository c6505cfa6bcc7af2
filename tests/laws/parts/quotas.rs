//! Quotas under load.

use dormouse::engine::{Engine, Quota, Quotas};
use dormouse::error::Error;
use dormouse::job::JobRef;

use crate::stage::{VirtualStage, job, manual_clock, queue};
use crate::support::disk_store::open_disk;
use crate::support::engine_ext::EngineExt;

/// Guards against exceeding a quota by concurrent publishes that are each checked before the others are stored.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_a_disk_a_quota_is_exact_under_concurrent_publishes_and_acks() {
    let clock = manual_clock();
    let (engine, dir) = open_disk(clock.clone());
    let stage = VirtualStage::new(engine.clone(), clock, dir);
    let q = queue("q");
    // Existing jobs count.
    let before: Vec<_> = (0..30).map(|_| job(&q, "before").make(&stage)).collect();
    engine.publish(before.clone().into()).await.expect("published");
    let quotas = Quotas::from([(q.namespace.clone(), Quota { jobs: 100, bytes: 0, queues: 0 })]);
    engine.set_quotas(&quotas).await.expect("set");
    for room in [70, 30] {
        let tasks: Vec<_> = (0..100)
            .map(|n| {
                let (engine, new) = (engine.clone(), job(&q, n.to_string()).make(&stage));
                tokio::spawn(async move { engine.publish(vec![new].into()).await })
            })
            .collect();
        let mut stored = 0;
        for task in tasks {
            match task.await.expect("it does not panic") {
                Ok(_) => stored += 1,
                Err(Error::OverQuota("jobs")) => {}
                Err(error) => panic!("another error: {error}"),
            }
        }
        assert_eq!(stored, room, "the remaining quota");
        for old in &before {
            engine.ack_job(JobRef { queue: q.clone(), id: old.id }).await.expect("acked");
        }
    }
    engine.close().await;
}
