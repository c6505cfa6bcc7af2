//! lmstfy's recorded conversations, on every kind of pool.

mod support;

use support::house::House;
use support::recorded::play_all;
use support::redis_server::RedisServer;

#[tokio::test]
async fn on_disk() {
    play_all(House::disk().await).await;
}

#[tokio::test]
async fn on_redis() {
    let redis = RedisServer::start();
    let toml = format!("[Pool.default]\nAddr = {0:?}\n[AdminRedis]\nAddr = {0:?}\n", redis.addr());
    play_all(House::from_toml(&toml, vec![Box::new(redis)]).await).await;
}
