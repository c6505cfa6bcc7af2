//! One connection that many calls share at the same time: calls are pipelined, and each gets its own reply. It is
//! made again whenever it breaks. A call that was sent is never sent twice.

use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, Value};
use tokio::sync::watch;
use tokio::time::timeout;

use super::connector::Connection;
use super::fault::{Fault, Outcome};
use super::status::{Backoff, ConnectionStatus, Connections, Group};
use crate::engine::redis::layout::scripts::Script;

/// How long a call waits for the first attempt to connect again.
const FIRST_ATTEMPT: Duration = Duration::from_secs(1);

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
}

impl SharedConnection {
    /// The calling side, and the task that makes the connection and makes it again. The connection counts as
    /// down from the call on.
    pub fn new(connections: Arc<Connections>) -> (SharedConnection, impl Future<Output = ()> + Send) {
        let (tell, state) = watch::channel(State::Connecting);
        let status = ConnectionStatus::new(connections.clone(), Group::default());
        (SharedConnection { state }, keep(connections, status, tell))
    }

    /// Runs a script call. Waits up to [`FIRST_ATTEMPT`] while the connection is being made.
    pub async fn run(&self, script: &Script, call: &Cmd) -> Outcome<Value> {
        let mut connection = self.connection().await?;
        let reply = script.run(&mut connection.redis, call).await.map_err(Fault::from);
        reply.inspect_err(|fault| {
            if fault.reconnect {
                connection.lost.cancel();
            }
        })
    }

    async fn connection(&self) -> Outcome<Connection> {
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

/// Keeps one connection until the engine closes.
async fn keep(connections: Arc<Connections>, status: ConnectionStatus, tell: watch::Sender<State>) {
    connections.closing.run_until_cancelled(keep_connected(&connections, status, &tell)).await;
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
        match connections.connector.connect().await {
            Ok(connection) => {
                tell.send_replace(State::Up(connection.clone()));
                status.up();
                connection.lost.cancelled().await;
                tracing::debug!(pool = &*connections.pool, "a shared connection broke");
                status.down();
                tell.send_replace(State::Connecting);
                backoff = Backoff::new(connections);
            }
            Err(fault) => {
                connections.outage.failed(&fault);
                tell.send_replace(State::Down(fault));
                backoff.lengthen();
            }
        }
    }
}
