//! The address of a Redis for an engine or an admin store, and such a store.

use std::sync::Arc;

use dormouse::admin::redis::RedisAdmin;
use dormouse::engine::redis::RedisAddress;
use dormouse::outage::Outage;
use dormouse::process::tasks::{Failure, Tasks};

use super::redis_server::RedisServer;

impl RedisServer {
    /// Returns its address for an engine or an admin store.
    pub fn address(&self) -> RedisAddress {
        let addrs = vec![self.addr()];
        RedisAddress { addrs, password: self.password.clone(), ..RedisAddress::default() }
    }
}

/// Opens an admin store on a Redis.
#[allow(dead_code)] // not every test binary opens one
pub async fn open_admin_redis(redis: &RedisServer) -> Arc<RedisAdmin> {
    open_admin(&redis.address(), "").await
}

/// Opens an admin store on a Redis, or in a cluster, where `prefix` is the prefix of its keys.
pub async fn open_admin(address: &RedisAddress, prefix: &str) -> Arc<RedisAdmin> {
    let (outage, tasks) = (Outage::new("tokens and limits of a test"), Tasks::new(Failure::default()));
    let admin = RedisAdmin::connect(address, prefix, outage, &tasks).await;
    Arc::new(admin.expect("the Redis answers"))
}
