//! What the tests of the Redis engine share: a server, an engine on it, names and jobs.

use std::future::Future;
use std::num::NonZeroU16;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use dormouse::engine::redis::RedisEngine;
use dormouse::error::Result;
use dormouse::job::{Attributes, Job, JobId, NewJob};
use dormouse::name::{Namespace, PoolName, Queue, QueueName};

use crate::support::consume;
use crate::support::redis_server::RedisServer;

/// No wait in these tests is longer.
pub const BOUND: Duration = Duration::from_secs(20);
/// Jobs are consumed for longer than a test lasts.
pub const TTR: Duration = Duration::from_secs(60);

pub async fn engine(server: &RedisServer) -> Arc<RedisEngine> {
    RedisEngine::connect(server.address(), &PoolName::default_pool()).await.expect("the server is there")
}

/// A queue of namespace `shop`.
pub fn queue(name: &str) -> Queue {
    Queue {
        namespace: Namespace::parse("shop").expect("a name"),
        name: QueueName::parse(name).expect("a name"),
    }
}

/// Id number `n`.
pub fn id(n: u64) -> JobId {
    JobId::from_parts(1_700_000_000_000, n, 0, false)
}

/// A job with one try that is ready at once and lives for 100 seconds.
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

/// The future's output, which must come in time.
pub async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(BOUND, future).await {
        Ok(answer) => answer,
        Err(_) => panic!("{what}: not within {BOUND:?}"),
    }
}
