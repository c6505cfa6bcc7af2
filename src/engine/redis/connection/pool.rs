//! A few pooled connections for everything off the hot path, by deadpool with a manager of ours (Cargo.toml
//! says why not deadpool-redis's): a connection that is known to be broken is not handed out again, and a
//! checkout costs no round trip. Knows no key.

use std::sync::Arc;
use std::time::Duration;

use deadpool::managed::{self, Metrics, Object, PoolError, RecycleError, RecycleResult};
use redis::aio::MultiplexedConnection;
use redis::{Cmd, FromRedisValue, Pipeline, RedisResult};
use tokio::time::{Instant, timeout_at};

use super::connector::{Connection, Connector};
use super::fault::{Fault, Outcome};
use crate::engine::redis::layout::scripts::Script;

/// How long a caller waits for everything together: one of the connections, making it, and the answer. A server
/// that hangs must not cost a multiple of it.
const TIMEOUT: Duration = Duration::from_secs(6);

#[derive(Debug)]
struct Manager(Arc<Connector>);

impl managed::Manager for Manager {
    type Type = Connection;
    type Error = Fault;

    async fn create(&self) -> Result<Connection, Fault> {
        self.0.connect().await
    }

    async fn recycle(&self, connection: &mut Connection, _: &Metrics) -> RecycleResult<Fault> {
        if connection.lost.is_cancelled() { Err(RecycleError::message("broken")) } else { Ok(()) }
    }
}

/// The pool.
#[derive(Clone, Debug)]
pub struct ConnectionPool {
    connections: managed::Pool<Manager>,
}

impl ConnectionPool {
    /// A pool of at most `size` connections, made when they are needed.
    pub fn new(connector: Arc<Connector>, size: usize) -> Outcome<ConnectionPool> {
        managed::Pool::builder(Manager(connector))
            .max_size(size.max(1))
            .build()
            .map(|connections| ConnectionPool { connections })
            .map_err(|e| Fault::refused(e.to_string()))
    }

    async fn get(&self) -> Outcome<Object<Manager>> {
        self.connections.get().await.map_err(|e| match e {
            PoolError::Backend(fault) => fault,
            other => Fault::away(other.to_string()),
        })
    }

    /// Has a connection do something. It is dropped instead of given back when it is of no more use.
    async fn with<T>(
        &self,
        ask: impl AsyncFnOnce(&mut MultiplexedConnection) -> RedisResult<T>,
    ) -> Outcome<T> {
        let end = Instant::now() + TIMEOUT;
        let late = |_| Fault::away("no answer in time");
        let mut connection = timeout_at(end, self.get()).await.map_err(late)??;
        let answer = timeout_at(end, ask(&mut connection.redis)).await.map_err(late);
        answer.and_then(|answer| answer.map_err(Fault::from)).inspect_err(|fault| {
            if fault.reconnect {
                drop(Object::take(connection));
            }
        })
    }

    /// One command.
    pub async fn query<T: FromRedisValue>(&self, cmd: &Cmd) -> Outcome<T> {
        self.with(async |conn| cmd.query_async(conn).await).await
    }

    /// Several commands in one round trip.
    pub async fn query_all<T: FromRedisValue>(&self, pipeline: &Pipeline) -> Outcome<T> {
        self.with(async |conn| pipeline.query_async(conn).await).await
    }

    /// A call of a script.
    pub async fn run<T: FromRedisValue>(&self, script: &Script, call: &Cmd) -> Outcome<T> {
        Ok(redis::from_redis_value(self.with(async |conn| script.run(conn, call).await).await?)?)
    }

    /// Closes the connections; later calls fail.
    pub fn close(&self) {
        self.connections.close();
    }
}
