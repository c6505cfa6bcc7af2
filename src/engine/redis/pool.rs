//! A few pooled connections for everything off the hot path. deadpool-redis' own managers ask PING at every
//! checkout and cannot set Sentinel connections' timeouts, so the pool has a manager over our connector: one
//! that is known to be broken is not handed out again, and the rest costs no round trip.

use std::sync::Arc;
use std::time::Duration;

use deadpool::Runtime;
use deadpool::managed::{self, Metrics, Object, PoolError, RecycleError, RecycleResult, Timeouts};
use redis::{Cmd, FromRedisValue, Pipeline, RedisResult, Value};

use super::connect::{Connector, Link};
use super::fault::{Fault, Outcome};
use super::scripts::Script;

/// How long a caller waits for one of the connections.
const WAIT: Duration = Duration::from_secs(5);

#[derive(Debug)]
struct Manager(Arc<Connector>);

impl managed::Manager for Manager {
    type Type = Link;
    type Error = Fault;

    async fn create(&self) -> Result<Link, Fault> {
        self.0.connect().await
    }

    async fn recycle(&self, link: &mut Link, _: &Metrics) -> RecycleResult<Fault> {
        if link.lost.is_cancelled() { Err(RecycleError::message("broken")) } else { Ok(()) }
    }
}

/// The pool.
#[derive(Clone, Debug)]
pub struct Pool {
    links: managed::Pool<Manager>,
}

impl Pool {
    /// A pool of at most `size` connections, made when they are needed.
    pub fn new(connector: Arc<Connector>, size: usize) -> Outcome<Pool> {
        let timeouts = Timeouts { wait: Some(WAIT), create: None, recycle: None };
        managed::Pool::builder(Manager(connector))
            .max_size(size.max(1))
            .timeouts(timeouts)
            .runtime(Runtime::Tokio1)
            .build()
            .map(|links| Pool { links })
            .map_err(|e| Fault::refused(e.to_string()))
    }

    async fn get(&self) -> Outcome<Object<Manager>> {
        self.links.get().await.map_err(|e| match e {
            PoolError::Backend(fault) => fault,
            other => Fault::away(other.to_string()),
        })
    }

    /// One command.
    pub async fn ask<T: FromRedisValue>(&self, cmd: &Cmd) -> Outcome<T> {
        let mut link = self.get().await?;
        let answer = cmd.query_async(&mut link.conn).await;
        settle(link, answer)
    }

    /// Several commands in one round trip.
    pub async fn ask_all<T: FromRedisValue>(&self, pipeline: &Pipeline) -> Outcome<T> {
        let mut link = self.get().await?;
        let answer = pipeline.query_async(&mut link.conn).await;
        settle(link, answer)
    }

    /// A call of a script.
    pub async fn run<T: FromRedisValue>(&self, script: &Script, call: &Cmd) -> Outcome<T> {
        let mut link = self.get().await?;
        let answer: RedisResult<Value> = script.run(&mut link.conn, call).await;
        Ok(redis::from_redis_value(settle(link, answer)?)?)
    }

    /// Closes the connections; later calls fail.
    pub fn close(&self) {
        self.links.close();
    }
}

/// Drops the connection instead of giving it back when the error says so.
fn settle<T>(link: Object<Manager>, answer: RedisResult<T>) -> Outcome<T> {
    answer.map_err(|e| {
        let fault = Fault::from(e);
        if fault.reconnect {
            drop(Object::take(link));
        }
        fault
    })
}
