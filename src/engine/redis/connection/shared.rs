//! One connection shared by many calls at the same time: calls are pipelined, and each receives its own reply. It is
//! reopened whenever it breaks. A call that was sent is never sent again.

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

/// How long calls wait for the first attempt to reconnect. A stopped server refuses at once, and a running one accepts
/// within a millisecond, but later if the machine is busy or another Redis is becoming the master.
const FIRST_ATTEMPT: Duration = Duration::from_secs(1);
/// Approximate number of fields read by one step of a scan: a quarter of a millisecond of Redis's time.
const SCAN_STEP: usize = 500;

/// A field of a hash, and its value.
pub type Field = (Vec<u8>, Vec<u8>);

/// The state of the connection as calls see it.
#[derive(Clone, Debug)]
enum ConnectionState {
    /// Not connected since this instant, and the first attempt to connect is in progress.
    Connecting(Instant),
    Up(Connection),
    /// The last attempt failed, or the engine is closing.
    Down(Fault),
}

impl ConnectionState {
    /// Whether a call need not wait for the next state.
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

/// The handle through which calls use the connection.
#[derive(Clone, Debug)]
pub struct SharedConnection {
    state: watch::Receiver<ConnectionState>,
    connections: Arc<Connections>,
}

impl SharedConnection {
    /// Returns the handle, and the task that opens and reopens the connection. The connection counts as down from now
    /// on.
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

    /// Sends several commands in one round trip.
    pub async fn query_all<T: FromRedisValue>(&self, pipeline: &Pipeline) -> Outcome<T> {
        self.with(async |conn| Ok(pipeline.query_async(conn).await?)).await
    }

    pub async fn run<T: FromRedisValue>(&self, script: &Script, call: &Cmd) -> Outcome<T> {
        let reply: Value = self.with(async |conn| Ok(script.run(conn, call).await?)).await?;
        Ok(redis::from_redis_value(reply)?)
    }

    /// Reads a whole hash in steps, so that Redis can serve other calls in between. A field that changes meanwhile may
    /// be visited twice.
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

    /// Reads one step of a scan. Returns the cursor of the next step with the fields. Cursor 0 starts the scan, and
    /// ends it.
    pub async fn scan_step(&self, key: &str, cursor: u64) -> Outcome<(u64, Vec<Field>)> {
        self.query(redis::cmd("HSCAN").arg(key).arg(cursor).arg("COUNT").arg(SCAN_STEP)).await
    }

    /// Runs `ask` on the connection. Closes the connection if the error requires reconnecting.
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

    /// Returns the connection, for callers that pass errors to [`Connections::report`]. While it is being opened, waits
    /// until [`FIRST_ATTEMPT`] after it broke. Consecutive calls share that limit instead of each waiting as long.
    pub async fn connection(&self) -> Outcome<Connection> {
        let mut state = self.state.clone();
        let since = match &*state.borrow_and_update() {
            ConnectionState::Up(connection) if connection.lost.is_cancelled() => Instant::now(), // its task will update the state
            ConnectionState::Connecting(since) => *since,
            settled => return settled.connection(),
        };
        match timeout_at(since + FIRST_ATTEMPT, state.wait_for(ConnectionState::is_settled)).await {
            Ok(Ok(state)) => state.connection(),
            // The task has ended, by a panic.
            Ok(Err(_)) => Err(Fault::not_sent("the task of the connection has ended")),
            Err(_) => Err(Fault::not_sent("timeout while connecting")),
        }
    }
}

/// Returns the first of these connections that is up, or waits for the task's own if neither is.
pub async fn first_up([own, other]: [&SharedConnection; 2]) -> Outcome<Connection> {
    let up = |shared: &SharedConnection| shared.state.borrow().connection().ok();
    match up(own).or_else(|| up(other)) {
        Some(connection) => Ok(connection),
        None => own.connection().await,
    }
}

/// The task that opens the connection.
struct SharedTask {
    connections: Arc<Connections>,
    tell: watch::Sender<ConnectionState>,
}

impl SharedTask {
    /// Runs until the engine is closed.
    async fn run(self, mut status: ConnectionStatus) {
        let connected = stay_connected(&self, self.connections.answered(), |up| status.set(up));
        self.connections.closed.run_until_cancelled(connected).await;
        // The handle may outlive the task, and must not keep the connection open.
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

    /// Guards against consecutive batches that wait a second each while an attempt to connect hangs.
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
