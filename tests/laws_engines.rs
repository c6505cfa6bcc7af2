//! The laws on every engine and every wrapper. The list of laws is in tests/laws/mod.rs.

mod laws;
mod support;

use std::sync::Arc;
use std::time::Duration;

use dormouse::clock::{Clock, ManualClock, SystemClock};
use dormouse::engine::Engine;
use dormouse::engine::disk::{DiskEngine, DiskOptions};
use dormouse::engine::metered::Metered;
use dormouse::engine::migration::Migration;
use dormouse::engine::redis::RedisEngine;
use dormouse::metrics::Metrics;
use dormouse::name::PoolName;
use support::redis_server::RedisServer;
use support::stage::{RealStage, Stage, Traits, VirtualStage, manual_clock};
use tempfile::TempDir;

/// What is different about a Redis: its own clock, sizes that count what is acked or expired, and other
/// servers that write to it.
const REDIS: Traits = Traits {
    virtual_time: false,
    exact_sizes: false,
    horizon: Some(Duration::from_secs(1)),
    slack: Duration::from_millis(10),
    ties_by_arming: true,
};

fn open_disk(clock: Arc<dyn Clock>) -> (Arc<DiskEngine>, TempDir) {
    let dir = TempDir::new().expect("a temporary directory");
    let options = DiskOptions::new(dir.path().join("jobs"), clock);
    (DiskEngine::open(options).expect("an empty directory opens"), dir)
}

async fn open_redis() -> (Arc<RedisEngine>, RedisServer) {
    let server = RedisServer::start();
    let engine = RedisEngine::connect(server.address(), &PoolName::default_pool()).await;
    (engine.expect("the server answers"), server)
}

fn metered(engine: impl Engine) -> Arc<dyn Engine> {
    Arc::new(Metered::new(engine, PoolName::default_pool(), Arc::new(Metrics::default())))
}

fn virtual_disk() -> (Arc<DiskEngine>, Arc<ManualClock>, TempDir) {
    let clock = manual_clock();
    let (engine, dir) = open_disk(clock.clone());
    (engine, clock, dir)
}

/// What is different about a disk: sizes may count what is acked or expired until it is swept.
fn disk_stage(
    engine: Arc<dyn Engine>,
    clock: Arc<ManualClock>,
    keep: impl std::any::Any + Send + Sync,
) -> VirtualStage {
    VirtualStage::new(engine, clock, keep).with_stale_sizes().with_ties_by_arming()
}

async fn disk() -> impl Stage {
    let (engine, clock, dir) = virtual_disk();
    disk_stage(engine, clock, dir)
}

async fn metered_disk() -> impl Stage {
    let (engine, clock, dir) = virtual_disk();
    disk_stage(metered(engine), clock, dir)
}

async fn redis() -> impl Stage {
    let (engine, server) = open_redis().await;
    RealStage::new(engine, REDIS, server)
}

async fn disk_to_disk() -> impl Stage {
    let (old, clock, dir) = virtual_disk();
    let (new, new_dir) = open_disk(clock.clone());
    disk_stage(Arc::new(Migration::new(old, new)), clock, (dir, new_dir))
}

async fn redis_to_redis() -> impl Stage {
    let ((old, server), (new, new_server)) = (open_redis().await, open_redis().await);
    RealStage::new(Arc::new(Migration::new(old, new)), REDIS, (server, new_server))
}

async fn redis_to_disk() -> impl Stage {
    let ((old, server), (new, dir)) = (open_redis().await, open_disk(Arc::new(SystemClock::default())));
    RealStage::new(Arc::new(Migration::new(old, new)), REDIS, (server, dir))
}

async fn disk_to_redis() -> impl Stage {
    let ((old, dir), (new, server)) = (open_disk(Arc::new(SystemClock::default())), open_redis().await);
    RealStage::new(Arc::new(Migration::new(old, new)), REDIS, (server, dir))
}

laws::laws!(on_disk, disk);
laws::laws!(on_disk_metered, metered_disk);
laws::laws!(on_redis, redis);
laws::laws!(migrating_disk_to_disk, disk_to_disk);
laws::laws!(migrating_redis_to_redis, redis_to_redis);
laws::laws!(migrating_redis_to_disk, redis_to_disk);
laws::laws!(migrating_disk_to_redis, disk_to_redis);
