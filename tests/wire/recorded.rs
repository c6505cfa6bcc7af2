//! lmstfy's recorded conversations, on every kind of pool and during every kind of migration.

use std::sync::Arc;

use crate::cluster::pool_on;
use crate::player::{Expected, play_all, play_all_but};
use crate::support::redis_cluster::RedisCluster;
use crate::support::servers::{Store, TestServer};
use crate::support::wait::TIMEOUT;
use dormouse::server::Options;

/// The difference between lmstfy's recording and a server whose default pool migrates: it has two pools.
const TWO_POOLS: Expected = ("admin-pools", 0, r#"["bigger","default"]"#);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_disk() {
    play_all(TestServer::on(Store::disk()).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_redis() {
    play_all(TestServer::on(Store::redis()).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_a_cluster() {
    let cluster = Arc::new(RedisCluster::start_of(3, 0));
    play_all(TestServer::on(pool_on(&cluster, "recorded")).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn from_a_redis_to_a_redis() {
    moving(Store::redis(), Store::redis()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn from_a_redis_to_disk() {
    moving(Store::redis(), Store::disk()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn from_disk_to_a_redis() {
    moving(Store::disk(), Store::redis()).await;
}

/// Replays on a default pool that migrates from `old` to `new`.
async fn moving(old: Store, new: Store) {
    let (from, to, admin) = (old.keys(), new.keys(), old.admin());
    let toml = format!("[Pool.default]\nMigrateTo = \"bigger\"\n{from}[Pool.bigger]\n{to}{admin}");
    // A source that is slow because the machine is must not fail a step.
    let options = Options { source_patience: Some(TIMEOUT), ..Options::default() };
    play_all_but(TestServer::start_with(options, &toml, (old, new)).await, &[TWO_POOLS]).await;
}
