//! lmstfy's recorded conversations, on every kind of pool and on every way from one pool to another.

mod support;

use std::path::Path;

use support::recorded::{Expected, play_all, play_all_but};
use support::redis_server::RedisServer;
use support::server::{Keep, TestServer};
use tempfile::TempDir;

/// Where a server whose default pool moves answers otherwise than lmstfy did with its one pool: it has two.
const TWO_POOLS: Expected = ("admin-pools", 0, r#"["bigger","default"]"#);

#[tokio::test]
async fn on_disk() {
    play_all(TestServer::disk().await).await;
}

#[tokio::test]
async fn on_redis() {
    let redis = RedisServer::start();
    let toml = format!("[Pool.default]\nAddr = {0:?}\n[AdminRedis]\nAddr = {0:?}\n", redis.addr());
    play_all(TestServer::from_toml(&toml, vec![Box::new(redis)]).await).await;
}

#[tokio::test]
async fn from_a_redis_to_a_redis() {
    let (old, new) = (RedisServer::start(), RedisServer::start());
    let pools = [on(&old), on(&new)];
    moving(pools, &format!("[AdminRedis]\n{}", on(&old)), vec![Box::new(old), Box::new(new)]).await;
}

#[tokio::test]
async fn from_a_redis_to_disk() {
    let (old, dir) = (RedisServer::start(), dir());
    let pools = [on(&old), within(dir.path(), "new")];
    moving(pools, &format!("[AdminRedis]\n{}", on(&old)), vec![Box::new(old), Box::new(dir)]).await;
}

#[tokio::test]
async fn from_disk_to_a_redis() {
    let (dir, new) = (dir(), RedisServer::start());
    moving([within(dir.path(), "old"), on(&new)], "", vec![Box::new(dir), Box::new(new)]).await;
}

/// Plays on a default pool that migrates to the other one.
async fn moving([old, new]: [String; 2], admin: &str, keep: Keep) {
    let toml = format!("[Pool.default]\nMigrateTo = \"bigger\"\n{old}[Pool.bigger]\n{new}{admin}");
    play_all_but(TestServer::from_toml(&toml, keep).await, &[TWO_POOLS]).await;
}

fn dir() -> TempDir {
    TempDir::new().expect("a temporary directory")
}

fn on(redis: &RedisServer) -> String {
    format!("Addr = {:?}\n", redis.addr())
}

fn within(dir: &Path, name: &str) -> String {
    format!("Path = {:?}\n", dir.join(name))
}
