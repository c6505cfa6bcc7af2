//! The laws of admin stores: on disk, on Redis, and on the one in memory, which other tests stand on.

#[path = "laws/admin.rs"]
mod admin_laws;
mod support;

use std::sync::Arc;

use dormouse::admin::disk::DiskAdmin;
use dormouse::admin::redis::RedisAdmin;
use dormouse::engine::disk::{DiskEngine, DiskOptions};
use support::admin::{AdminStage, AnyAdminStage, MemoryAdmin};
use support::redis_server::RedisServer;
use support::stage::manual_clock;
use tempfile::TempDir;

async fn memory() -> impl AdminStage {
    let clock = manual_clock();
    AnyAdminStage::new(MemoryAdmin::new(clock.clone()), Some(clock), ())
}

async fn disk() -> impl AdminStage {
    let (clock, dir) = (manual_clock(), TempDir::new().expect("a temporary directory"));
    let options = DiskOptions::new(dir.path().join("jobs"), clock.clone());
    let engine = DiskEngine::open(options).expect("an empty directory opens");
    let store = DiskAdmin::new(&engine).expect("an empty store is read");
    AnyAdminStage::new(Arc::new(store), Some(clock), (engine, dir))
}

async fn redis() -> impl AdminStage {
    let server = RedisServer::start();
    let store = RedisAdmin::connect(&server.address()).await.expect("the server answers");
    AnyAdminStage::new(Arc::new(store), None, server)
}

admin_laws::admin_laws!(in_memory, memory);
admin_laws::admin_laws!(on_disk, disk);
admin_laws::admin_laws!(on_redis, redis);
