//! One connection that many calls share at the same time: calls are pipelined, and each gets its own reply. It is
//! made again whenever it breaks. A call that was sent is never sent twice.

use std::time::Duration;

use redis::{Cmd, Value};
use tokio::sync::watch;
use tokio::time::timeout;

use super::connector::Link;
use super::fault::{Fault, Outcome};
use super::outage::{Kind, Pause, Place};
use super::worker::Home;
use crate::engine::redis::layout::scripts::Script;

/// How long a call waits for the first attempt to connect again.
const PATIENCE: Duration = Duration::from_secs(1);

/// What calls find.
#[derive(Clone, Debug)]
enum State {
    /// The connection broke, and the first attempt to make it again is under way.
    Connecting,
    Up(Link),
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
    pub fn new(home: Home) -> (SharedConnection, impl Future<Output = ()> + Send) {
        let (tell, state) = watch::channel(State::Connecting);
        let place = Place::new(home.outage.clone(), Kind::default());
        (SharedConnection { state }, keep(home, place, tell))
    }

    /// Runs a script call. Waits up to [`PATIENCE`] while the connection is being made.
    pub async fn run(&self, script: &Script, call: &Cmd) -> Outcome<Value> {
        let mut link = self.link().await?;
        let reply = script.run(&mut link.conn, call).await.map_err(Fault::from);
        reply.inspect_err(|fault| {
            if fault.reconnect {
                link.lost.cancel();
            }
        })
    }

    async fn link(&self) -> Outcome<Link> {
        let mut state = self.state.clone();
        let settled = state.wait_for(|state| !matches!(state, State::Connecting));
        match timeout(PATIENCE, settled).await {
            Ok(Ok(state)) => match &*state {
                State::Up(link) => Ok(link.clone()),
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
async fn keep(home: Home, place: Place, tell: watch::Sender<State>) {
    home.closing.run_until_cancelled(keep_connected(&home, place, &tell)).await;
    // The calling side may live on. It must not hold the connection.
    tell.send_replace(State::Down(Fault::away("the engine is closing")));
}

async fn keep_connected(home: &Home, mut place: Place, tell: &watch::Sender<State>) {
    let mut pause = Pause::new(&home.outage);
    loop {
        pause.pass().await;
        match home.connector.connect().await {
            Ok(link) => {
                tell.send_replace(State::Up(link.clone()));
                place.up();
                link.lost.cancelled().await;
                tracing::debug!(pool = &*home.pool, "a shared connection broke");
                place.down();
                tell.send_replace(State::Connecting);
                pause = Pause::new(&home.outage);
            }
            Err(fault) => {
                home.outage.begins(&fault);
                tell.send_replace(State::Down(fault));
                pause.lengthen();
            }
        }
    }
}
