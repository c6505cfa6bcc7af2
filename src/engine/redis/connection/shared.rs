//! One connection that many calls share at the same time: calls are pipelined, and each gets its own reply. It is
//! made again whenever it breaks. A call that was sent is never sent twice.

use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{Cmd, FromRedisValue, Pipeline, Value};
use tokio::sync::watch;
use tokio::time::timeout;

use super::connector::Connection;
use super::fault::{Fault, Outcome};
use super::status::{Backoff, ConnectionStatus, Connections, Group};
use crate::engine::redis::layout::scripts::Script;

/// How long a call waits for the first attempt to connect again.
const FIRST_ATTEMPT: Duration = Duration::from_secs(1);

/// A field of a hash, and its value.
type Field = (Vec<u8>, Vec<u8>);

/// What calls find.
#[derive(Clone, Debug)]
enum State {
    /// The connection broke, and the first attempt to make it again is under way.
    Connecting,
    Up(Connection),
    /// The last attempt failed, or the engine closes.
    Down(Fault),
}

/// The calling side.
#[derive(Clone, Debug)]
pub struct SharedConnection {
    state: watch::Receiver<State>,
    connections: Arc<Connections>,
}

impl SharedConnection {
    /// The calling side, and the task that makes the connection and makes it again. The connection counts as
    /// down from the call on.
    pub fn new(connections: Arc<Connections>) -> (SharedConnection, impl Future<Output = ()> + Send) {
        let (tell, state) = watch::channel(State::Connecting);
        let status = ConnectionStatus::new(connections.clone(), Group::default());
        (SharedConnection { state, connections: connections.clone() }, keep(connections, status, tell))
    }

    /// One command.
    pub async fn query<T: FromRedisValue>(&self, cmd: &Cmd) -> Outcome<T> {
        self.with(async |conn| Ok(cmd.query_async(conn).await?)).await
    }

    /// Several commands in one round trip.
    pub async fn query_all<T: FromRedisValue>(&self, pipeline: &Pipeline) -> Outcome<T> {
        self.with(async |conn| Ok(pipeline.query_async(conn).await?)).await
    }

    /// A call of a script.
    pub async fn run<T: FromRedisValue>(&self, script: &Script, call: &Cmd) -> Outcome<T> {
        let reply: Value = self.with(async |conn| Ok(script.run(conn, call).await?)).await?;
        Ok(redis::from_redis_value(reply)?)
    }

    /// Reads a whole hash, about `step` fields at a time: the Redis serves others in between. A field that changes
    /// meanwhile may be met twice.
    pub async fn scan(
        &self,
        key: &str,
        step: usize,
        mut each: impl FnMut(Vec<u8>, Vec<u8>) + Send,
    ) -> Outcome<()> {
        let mut cursor = 0;
        loop {
            let (next, fields) = self.scan_step(key, cursor, step).await?;
            fields.into_iter().for_each(|(field, value)| each(field, value));
            if next == 0 {
                return Ok(());
            }
            cursor = next;
        }
    }

    /// One step of it, and where the next one goes on. It begins and ends with 0.
    pub async fn scan_step(&self, key: &str, cursor: u64, step: usize) -> Outcome<(u64, Vec<Field>)> {
        self.query(redis::cmd("HSCAN").arg(key).arg(cursor).arg("COUNT").arg(step)).await
    }

    /// Has the connection do something. It is made anew when the fault says that it is of no more use.
    pub async fn with<T>(
        &self,
        ask: impl AsyncFnOnce(&mut MultiplexedConnection) -> Outcome<T>,
    ) -> Outcome<T> {
        let mut connection = self.connection().await?;
        let answer = ask(&mut connection.redis).await;
        answer.inspect_err(|fault| self.connections.note(&connection, fault))
    }

    /// The connection, for who tells [`Connections::note`] of a fault. Waits up to [`FIRST_ATTEMPT`] while it is
    /// being made.
    pub async fn connection(&self) -> Outcome<Connection> {
        let mut state = self.state.clone();
        let settled = state.wait_for(|state| !matches!(state, State::Connecting));
        match timeout(FIRST_ATTEMPT, settled).await {
            Ok(Ok(state)) => match &*state {
                State::Up(connection) => Ok(connection.clone()),
                State::Down(fault) => Err(fault.clone()),
                State::Connecting => Err(Fault::away("no connection")), // not what was waited for
            },
            // The task has ended: it died.
            Ok(Err(_)) => Err(Fault::away("the task that keeps the connection is gone")),
            Err(_) => Err(Fault::away("no connection in time")),
        }
    }
}

/// Keeps one connection until the engine is closed.
async fn keep(connections: Arc<Connections>, status: ConnectionStatus, tell: watch::Sender<State>) {
    connections.closed.run_until_cancelled(keep_connected(&connections, status, &tell)).await;
    // The calling side may live on. It must not hold the connection.
    tell.send_replace(State::Down(Fault::away("the engine is closing")));
}

async fn keep_connected(
    connections: &Connections,
    mut status: ConnectionStatus,
    tell: &watch::Sender<State>,
) {
    let mut backoff = Backoff::new(connections);
    loop {
        backoff.wait().await;
        match connections.connect().await {
            Ok(connection) => {
                backoff.connected();
                tell.send_replace(State::Up(connection.clone()));
                status.up();
                connection.lost.cancelled().await;
                tracing::debug!(pool = &*connections.pool, "a shared connection broke");
                status.down();
                tell.send_replace(State::Connecting);
                backoff.broke();
            }
            Err(fault) => {
                connections.failed(&fault);
                tell.send_replace(State::Down(fault));
                backoff.lengthen();
            }
        }
    }
}
