//! One connection that many calls share at the same time: calls are pipelined, and each gets its own reply. It is
//! made again whenever it breaks. A call that was sent is never sent twice.

use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{Cmd, FromRedisValue, Pipeline, Value};
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use super::connector::Connection;
use super::fault::{Fault, Outcome};
use super::reconnect::{Reconnect, stay_connected};
use super::status::{ConnectionStatus, Connections};
use crate::engine::redis::layout::scripts::Script;

/// How long calls wait for the first attempt to connect again. A server that is gone refuses at once, and one that is
/// there takes a millisecond; but more when the machine is busy or another Redis becomes the master.
const FIRST_ATTEMPT: Duration = Duration::from_secs(1);
/// About how many fields one step of a scan reads: a quarter of a millisecond of the Redis.
const SCAN_STEP: usize = 500;

/// A field of a hash, and its value.
pub type Field = (Vec<u8>, Vec<u8>);

/// What calls find.
#[derive(Clone, Debug)]
enum ConnectionState {
    /// There was none at first, or it broke then, and the first attempt to make it again is under way.
    Connecting(Instant),
    Up(Connection),
    /// The last attempt failed, or the engine closes.
    Down(Fault),
}

impl ConnectionState {
    /// Whether nobody needs to wait for what comes next.
    fn is_settled(&self) -> bool {
        match self {
            ConnectionState::Connecting(_) => false,
            ConnectionState::Up(connection) => !connection.lost.is_cancelled(),
            ConnectionState::Down(_) => true,
        }
    }

    fn connection(&self) -> Outcome<Connection> {
        match self {
            ConnectionState::Up(connection) if self.is_settled() => Ok(connection.clone()),
            ConnectionState::Down(fault) => Err(fault.clone().unsent()),
            _ => Err(Fault::not_sent("no connection")),
        }
    }
}

/// The calling side.
#[derive(Clone, Debug)]
pub struct SharedConnection {
    state: watch::Receiver<ConnectionState>,
    connections: Arc<Connections>,
}

impl SharedConnection {
    /// The calling side, and the task that makes the connection and makes it again. The connection counts as
    /// down from the call on.
    pub fn new(connections: Arc<Connections>) -> (SharedConnection, impl Future<Output = ()> + Send) {
        let (tell, state) = watch::channel(ConnectionState::Connecting(Instant::now()));
        let status = ConnectionStatus::new(connections.clone());
        (
            SharedConnection { state, connections: connections.clone() },
            SharedTask { connections, tell }.run(status),
        )
    }

    pub async fn query<T: FromRedisValue>(&self, cmd: &Cmd) -> Outcome<T> {
        self.with(async |conn| Ok(cmd.query_async(conn).await?)).await
    }

    /// Several commands in one round trip.
    pub async fn query_all<T: FromRedisValue>(&self, pipeline: &Pipeline) -> Outcome<T> {
        self.with(async |conn| Ok(pipeline.query_async(conn).await?)).await
    }

    pub async fn run<T: FromRedisValue>(&self, script: &Script, call: &Cmd) -> Outcome<T> {
        let reply: Value = self.with(async |conn| Ok(script.run(conn, call).await?)).await?;
        Ok(redis::from_redis_value(reply)?)
    }

    /// Reads a whole hash in steps: the Redis serves others in between. A field that changes meanwhile may be met twice.
    pub async fn scan(&self, key: &str, mut each: impl FnMut(Vec<u8>, Vec<u8>) + Send) -> Outcome<()> {
        let mut cursor = 0;
        loop {
            let (next, fields) = self.scan_step(key, cursor).await?;
            fields.into_iter().for_each(|(field, value)| each(field, value));
            if next == 0 {
                return Ok(());
            }
            cursor = next;
        }
    }

    /// One step of it, and where the next one goes on. It begins and ends with 0.
    pub async fn scan_step(&self, key: &str, cursor: u64) -> Outcome<(u64, Vec<Field>)> {
        self.query(redis::cmd("HSCAN").arg(key).arg(cursor).arg("COUNT").arg(SCAN_STEP)).await
    }

    /// Has the connection do something. It is made anew when the fault says that it is of no more use.
    pub async fn with<T>(
        &self,
        ask: impl AsyncFnOnce(&mut MultiplexedConnection) -> Outcome<T>,
    ) -> Outcome<T> {
        let mut connection = self.connection().await?;
        let answer = ask(&mut connection.redis).await;
        answer.inspect_err(|fault| self.connections.report(&connection, fault))
    }

    /// Whether a call could be sent now.
    pub fn is_up(&self) -> bool {
        self.state.borrow().connection().is_ok()
    }

    /// The connection, for who tells [`Connections::report`] of a fault. Waits while it is being made: until
    /// [`FIRST_ATTEMPT`] after it broke, however many calls wait one behind the other.
    pub async fn connection(&self) -> Outcome<Connection> {
        let mut state = self.state.clone();
        let since = match &*state.borrow_and_update() {
            ConnectionState::Up(connection) if connection.lost.is_cancelled() => Instant::now(), // its task is about to say so
            ConnectionState::Connecting(since) => *since,
            settled => return settled.connection(),
        };
        match timeout_at(since + FIRST_ATTEMPT, state.wait_for(ConnectionState::is_settled)).await {
            Ok(Ok(state)) => state.connection(),
            // The task has ended: it died.
            Ok(Err(_)) => Err(Fault::not_sent("the task of the connection has ended")),
            Err(_) => Err(Fault::not_sent("timeout while connecting")),
        }
    }
}

/// The first of these connections that is up: the task's own, or the other one. Waits for its own when none is.
pub async fn first_up([own, other]: [&SharedConnection; 2]) -> Outcome<Connection> {
    let up = |shared: &SharedConnection| shared.state.borrow().connection().ok();
    match up(own).or_else(|| up(other)) {
        Some(connection) => Ok(connection),
        None => own.connection().await,
    }
}

/// The side that makes the connection.
struct SharedTask {
    connections: Arc<Connections>,
    tell: watch::Sender<ConnectionState>,
}

impl SharedTask {
    /// Until the engine is closed.
    async fn run(self, mut status: ConnectionStatus) {
        let connected = stay_connected(&self, self.connections.answered(), |up| status.set(up));
        self.connections.closed.run_until_cancelled(connected).await;
        // The calling side may live on. It must not hold the connection.
        self.tell.send_replace(ConnectionState::Down(Fault::closed()));
    }
}

impl Reconnect for SharedTask {
    type Connection = Connection;

    async fn connect(&self) -> Outcome<Connection> {
        self.connections.connect().await
    }

    async fn serve(&self, connection: Connection) {
        self.tell.send_replace(ConnectionState::Up(connection.clone()));
        connection.lost.cancelled().await;
        tracing::debug!(pool = &*self.connections.pool, "a shared connection broke");
        self.tell.send_replace(ConnectionState::Connecting(Instant::now()));
    }

    fn failed(&self, fault: Fault) {
        self.connections.failed(&fault);
        self.tell.send_replace(ConnectionState::Down(fault));
    }
}

#[cfg(test)]
mod tests {
    use tokio_util::sync::CancellationToken;

    use super::super::connector::{Connector, RedisAddress};
    use super::*;

    /// Guards against batches that wait a second each, one behind the other, while a connection hangs that is being
    /// made.
    #[tokio::test(start_paused = true)]
    async fn calls_wait_for_the_first_attempt_all_together() {
        let address = RedisAddress { addrs: vec!["127.0.0.1:1".into()], ..RedisAddress::default() };
        let connector = Arc::new(Connector::new(&address).expect("a good address"));
        let connections = Connections::new("p".into(), connector, None, CancellationToken::new());
        // Never polled: the attempt hangs.
        let (shared, _task) = SharedConnection::new(connections);
        let began = Instant::now();
        for _ in 0..3 {
            shared.connection().await.expect_err("no connection");
        }
        assert_eq!(began.elapsed().as_secs(), 1, "seconds until the third call was answered");
        first_up([&shared, &shared]).await.expect_err("no connection");
        assert_eq!(began.elapsed().as_secs(), 1, "seconds until a batch was answered after that");
    }
}
