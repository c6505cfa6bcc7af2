//! Several servers on one pool in a cluster: one of them pumps each partition.

use std::num::NonZeroU16;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dormouse::engine::Engine;
use dormouse::engine::redis::{RedisEngine, RedisOptions};
use dormouse::job::{Attributes, JobIds, NewJob};
use dormouse::name::PoolName;
use tokio::time::sleep;

use crate::common::queue;
use crate::support::engine_ext::EngineExt;
use crate::support::redis_cluster::RedisCluster;
use crate::support::wait::TIMEOUT;

/// The time that a lease lasts at least after a pump. lua/pump.lua renews a shorter rest.
const LEASE: Duration = Duration::from_millis(1100);

async fn open(cluster: &RedisCluster) -> Arc<RedisEngine> {
    let options = RedisOptions { prefix: "p".into(), ..RedisOptions::default() };
    let engine = RedisEngine::connect_with(cluster.address(), &PoolName::default_pool(), &options).await;
    engine.expect("the cluster is there")
}

async fn put(engine: &RedisEngine, delay: Duration) {
    let queue = queue("q");
    let id = engine.make_id(&JobIds::default(), &queue, delay, false);
    let (body, tries) = ("x".into(), NonZeroU16::MIN);
    let job = NewJob { queue, id, body, attributes: Attributes::new(), ttl: None, delay, tries };
    engine.publish(vec![job].into()).await.expect("published");
}

async fn pump(engine: &RedisEngine) -> usize {
    engine.pump().await.expect("pumped").moved
}

/// Pumps until this many jobs are ready, and returns how long it took. A pump does not count what a slow node has moved.
async fn pump_until(engine: &RedisEngine, ready: u64) -> Duration {
    let began = Instant::now();
    while engine.ready(&queue("q")).await.expect("size") < ready {
        assert!(began.elapsed() < Duration::from_secs(10), "nobody pumps any more");
        pump(engine).await;
        sleep(Duration::from_millis(5)).await;
    }
    began.elapsed()
}

/// Guards against N servers that all pump each partition, and against jobs that are late because the pumping server
/// died.
#[tokio::test]
async fn one_server_pumps_and_another_takes_over_when_it_dies() {
    let redis = RedisCluster::start();
    let (first, second) = (open(&redis).await, open(&redis).await);
    let (began, mut stored) = (Instant::now(), 0);
    loop {
        let leased = Instant::now();
        assert_eq!((pump(&first).await, pump(&second).await), (0, 0), "nothing is due");
        put(&first, Duration::from_millis(50)).await;
        stored += 1;
        sleep(Duration::from_millis(80)).await;
        let moved = pump(&second).await;
        // If the machine stalled for longer, the lease may have ended.
        let is_leased = leased.elapsed() < LEASE;
        assert!(!is_leased || moved == 0, "the first one has the lease");
        pump_until(&first, stored).await;
        if is_leased {
            break;
        }
        assert!(began.elapsed() < TIMEOUT, "every lease ended before the second server pumped");
        sleep(2 * LEASE).await; // until nobody has one
    }

    put(&first, Duration::from_millis(50)).await;
    let took = pump_until(&second, stored + 1).await;
    assert!(took < Duration::from_secs(5), "the lease of a server that is gone delayed a job by {took:?}");
}

/// Guards against a late job that its server left to the lease holder, which does not know of it yet.
#[tokio::test]
async fn a_server_without_the_lease_is_not_late_with_what_it_has_stored() {
    let redis = RedisCluster::start();
    let (first, second) = (open(&redis).await, open(&redis).await);
    let leased = Instant::now();
    assert_eq!((pump(&first).await, pump(&second).await), (0, 0), "nothing is stored yet");
    put(&second, Duration::from_millis(50)).await;
    sleep(Duration::from_millis(70)).await;
    pump_until(&second, 1).await;
    let took = leased.elapsed();
    assert!(took < LEASE, "its server sees to it, and not the next lease: {took:?}");
}
