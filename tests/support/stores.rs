//! Empty stores for tests that need no server.

use std::sync::Arc;

use dormouse::admin::redis::RedisAdmin;
use dormouse::clock::Clock;
use dormouse::engine::disk::{DiskEngine, DiskOptions};
use dormouse::engine::redis::RedisEngine;
use dormouse::name::PoolName;
use dormouse::outage::Outage;
use dormouse::process::tasks::{Failure, Tasks};
use tempfile::TempDir;

use super::redis_server::RedisServer;

/// A disk engine that counts by `clock`, and its directory.
pub fn open_disk(clock: Arc<dyn Clock>) -> (Arc<DiskEngine>, TempDir) {
    let dir = TempDir::new().expect("a temporary directory");
    let options = DiskOptions::new(dir.path().join("jobs"), clock);
    (DiskEngine::open(options).expect("an empty directory opens"), dir)
}

/// A Redis engine, and its Redis.
pub async fn open_redis() -> (Arc<RedisEngine>, RedisServer) {
    let redis = RedisServer::start();
    let engine = RedisEngine::connect(redis.address(), &PoolName::default_pool()).await;
    (engine.expect("the Redis answers"), redis)
}

/// An admin store on a Redis.
pub async fn open_admin_redis(redis: &RedisServer) -> Arc<RedisAdmin> {
    let (outage, tasks) = (Outage::new("tokens and limits of a test"), Tasks::new(Failure::default()));
    let admin = RedisAdmin::connect(&redis.address(), outage, &tasks).await;
    Arc::new(admin.expect("the Redis answers"))
}
