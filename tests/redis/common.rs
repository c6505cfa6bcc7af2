//! Helpers shared by the tests of the Redis engine: a server, an engine on it, names and jobs.

use std::future::Future;
use std::num::NonZeroU16;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use dormouse::engine::redis::RedisEngine;
use dormouse::error::Result;
use dormouse::job::{Attributes, Job, JobId, NewJob};
use dormouse::name::{Namespace, PoolName, Queue, QueueName};
use redis::Connection;

use crate::support::consume;
use crate::support::redis_cluster::RedisCluster;
use crate::support::redis_server::RedisServer;

/// Timeout of every wait in these tests.
pub const BOUND: Duration = Duration::from_secs(20);
/// A ttr longer than any test.
pub const TTR: Duration = Duration::from_secs(60);

pub async fn engine(server: &RedisServer) -> Arc<RedisEngine> {
    RedisEngine::connect(server.address(), &PoolName::default_pool()).await.expect("the server is there")
}

/// Returns a queue of namespace `shop`.
pub fn queue(name: &str) -> Queue {
    Queue {
        namespace: Namespace::parse("shop").expect("a name"),
        name: QueueName::parse(name).expect("a name"),
    }
}

/// Returns the id with number `n`.
pub fn id(n: u64) -> JobId {
    JobId::from_parts(1_700_000_000_000, n, 0, false)
}

/// Returns a job with one try that is ready at once and has a ttl of 100 seconds.
pub fn job(queue: &Queue, id: JobId, body: impl Into<Bytes>) -> NewJob {
    NewJob {
        queue: queue.clone(),
        id,
        body: body.into(),
        attributes: Attributes::new(),
        ttl: Some(Duration::from_secs(100)),
        delay: Duration::ZERO,
        tries: NonZeroU16::MIN,
    }
}

/// Consumes up to `count` jobs of one queue, each for `ttr`.
pub async fn consume(engine: &RedisEngine, queue: &Queue, count: u16, ttr: Duration) -> Result<Vec<Job>> {
    consume::consume(engine, &queue.clone().into(), &vec![ttr; count.into()]).await
}

/// Returns the future's output. Fails the test if it takes longer than [`BOUND`].
pub async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(BOUND, future).await {
        Ok(answer) => answer,
        Err(_) => panic!("{what}: not within {BOUND:?}"),
    }
}

/// `struct.pack("<HHc0", tries, #id, id)`, deliberately written a second time.
pub fn element(tries: u16, id: &str) -> Vec<u8> {
    [&tries.to_le_bytes()[..], &(id.len() as u16).to_le_bytes(), id.as_bytes()].concat()
}

/// Returns the timer member of a job of namespace `shop`, as lmstfy packs it.
pub fn member(queue: &str, tries: u16, id: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    for name in ["shop", queue] {
        bytes.extend((name.len() as u16).to_le_bytes());
        bytes.extend(name.as_bytes());
    }
    [bytes, element(tries, id)].concat()
}

/// Returns how often Redis has executed a command since the last call.
pub fn calls_of(conn: &mut Connection, command: &str) -> u64 {
    let stats: String = redis::cmd("INFO").arg("commandstats").query(conn).expect("INFO");
    let _: () = redis::cmd("CONFIG").arg("RESETSTAT").query(conn).expect("RESETSTAT");
    let line = stats.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:calls=")));
    line.and_then(|line| line.split(',').next()?.parse().ok()).unwrap_or(0)
}

/// Returns how often the nodes of a cluster have executed a command since the last call.
pub fn calls_of_nodes(cluster: &RedisCluster, command: &str) -> u64 {
    cluster.servers.iter().map(|node| calls_of(&mut node.connection(), command)).sum()
}
