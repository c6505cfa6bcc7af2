//! State shared by the long-lived connections of one engine: how they are opened, how many are down, and where failures
//! are reported. Holds no connection and makes no call.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::connector::{Connection, Connector, OnPush};
use super::fault::{Fault, Outcome};
use crate::error::{Error, Result};
use crate::outage::Outage;

/// The long-lived connections of one engine.
#[derive(Debug)]
pub struct Connections {
    /// Name of the pool, for messages.
    pub pool: Arc<str>,
    pub connector: Arc<Connector>,
    /// Receives every failed attempt to connect. `None` if callers report failures themselves.
    outage: Option<Arc<Outage>>,
    /// Receives every connection made.
    made: Option<Arc<Outage>>,
    /// Cancelled when the engine closes.
    pub closing: CancellationToken,
    /// Cancelled when the last task of a closing engine has ended. Until then shared connections stay open.
    pub closed: CancellationToken,
    open: Mutex<Open>,
    /// Number of connections that are down.
    down: watch::Sender<usize>,
    /// Notified when Redis has replied on any connection, so that connections in back-off retry.
    answered: watch::Sender<()>,
}

/// State for closing every connection.
#[derive(Debug, Default)]
struct Open {
    /// Tokens of the open connections.
    lost: Vec<CancellationToken>,
    /// Number of times that all connections were closed. An attempt in progress at such a time may have reached the
    /// wrong server.
    given_up: u64,
}

impl Connections {
    pub fn new(
        pool: Arc<str>,
        connector: Arc<Connector>,
        outage: impl Into<Option<Arc<Outage>>>,
        closing: CancellationToken,
    ) -> Arc<Connections> {
        let (outage, closed) = (outage.into(), closing.clone());
        Connections::with_end(pool, connector, (outage.clone(), outage), closing, closed)
    }

    /// Like `new`, for engines that still use shared connections while closing: they stay open until `closed` is
    /// cancelled.
    pub fn with_end(
        pool: Arc<str>,
        connector: Arc<Connector>,
        (outage, made): (Option<Arc<Outage>>, Option<Arc<Outage>>),
        closing: CancellationToken,
        closed: CancellationToken,
    ) -> Arc<Connections> {
        // Another Redis that becomes the master also ends the back-off.
        let (down, answered) = (watch::Sender::default(), connector.retry().clone());
        let open = Mutex::default();
        Arc::new(Connections { pool, connector, outage, made, closing, closed, open, down, answered })
    }

    /// Reports that an attempt to connect failed, or that a connection broke.
    pub fn failed(&self, fault: &Fault) {
        if let Some(outage) = &self.outage {
            outage.failed(fault);
        }
    }

    /// Reports a failed call on this connection. Closes the connection if the error requires reconnecting, and all
    /// connections if the server is no longer the master: such a server may still answer reads, so connections used
    /// only for reads would never notice.
    pub fn report(&self, connection: &Connection, fault: &Fault) {
        if fault.not_master && !connection.lost.is_cancelled() {
            let mut open = self.open.lock();
            open.given_up += 1;
            open.lost.drain(..).for_each(|lost| lost.cancel());
        }
        if fault.reconnect {
            connection.lost.cancel();
        }
    }

    pub async fn connect(&self) -> Outcome<Connection> {
        self.connect_with(Arc::new(|_| ())).await
    }

    /// Opens a connection whose push messages go to `on_push`, which must not block.
    pub async fn connect_with(&self, on_push: OnPush) -> Outcome<Connection> {
        let given_up = self.open.lock().given_up;
        let connection = self.connector.connect_with(on_push).await?;
        let mut open = self.open.lock();
        if open.given_up != given_up {
            return Err(Fault::away("the Redis is now a replica").at(self.connector.label()));
        }
        open.lost.retain(|lost| !lost.is_cancelled());
        open.lost.push(connection.lost.clone());
        drop(open);
        self.made.iter().for_each(|outage| outage.connected());
        Ok(connection)
    }

    /// Returns a receiver notified whenever Redis has replied to any connection.
    pub fn answered(&self) -> watch::Receiver<()> {
        self.answered.subscribe()
    }

    /// Whether all connections are up now.
    pub fn are_up(&self) -> bool {
        *self.down.borrow() == 0
    }

    /// Ends the back-off of connections that are down, since Redis has just replied.
    pub fn retry_now(&self) {
        self.answered.send_replace(());
    }

    /// Waits until every connection is up. Fails with `Away` after `within`.
    pub async fn all_up(&self, within: Duration) -> Result<()> {
        let mut down = self.down.subscribe();
        // The sender is a field of `self`, so `wait_for` cannot fail.
        let up = async { down.wait_for(|down| *down == 0).await.is_ok() };
        if timeout(within, up).await.is_ok() {
            return Ok(());
        }
        let down = *self.down.borrow();
        Err(Error::away(format!("{down} of its connections are still down")))
    }
}

/// Whether one connection is up. Starts down. When dropped, the connection counts as down forever, since its task has
/// ended.
#[derive(Debug)]
pub struct ConnectionStatus {
    connections: Arc<Connections>,
    up: bool,
}

impl ConnectionStatus {
    /// Adds a connection, which is down.
    pub fn new(connections: Arc<Connections>) -> ConnectionStatus {
        connections.down.send_modify(|down| *down += 1);
        ConnectionStatus { connections, up: false }
    }

    /// Sets whether the connection is up. If it comes up, other connections retry at once, since they may succeed too.
    pub fn set(&mut self, up: bool) {
        match (std::mem::replace(&mut self.up, up), up) {
            (false, true) => {
                self.connections.down.send_modify(|down| *down -= 1); // it was counted as down
                self.connections.retry_now();
            }
            (true, false) => self.connections.down.send_modify(|down| *down += 1),
            _ => {}
        }
    }
}

impl Drop for ConnectionStatus {
    fn drop(&mut self) {
        self.set(false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::redis::RedisAddress;

    fn connections() -> Arc<Connections> {
        let address = RedisAddress { addrs: vec!["127.0.0.1:1".into()], ..RedisAddress::default() };
        let connector = Connector::new(&address).expect("a good address");
        Connections::new("p".into(), connector.into(), None, CancellationToken::new())
    }

    fn two(connections: &Arc<Connections>) -> [ConnectionStatus; 2] {
        std::array::from_fn(|_| ConnectionStatus::new(connections.clone()))
    }

    #[tokio::test(start_paused = true)]
    async fn all_are_up_when_the_last_one_is() {
        let connections = connections();
        let [mut a, mut b] = two(&connections);
        a.set(true);
        let error = connections.all_up(Duration::from_secs(1)).await.expect_err("one is down");
        assert!(error.to_string().contains("1 of its connections"), "it says how many: {error}");
        let waiting = tokio::spawn({
            let connections = connections.clone();
            async move { connections.all_up(Duration::from_secs(1)).await }
        });
        tokio::task::yield_now().await;
        b.set(true);
        waiting.await.expect("no panic").expect("both are up");
        b.set(false);
        a.set(false);
        a.set(false);
        let error = connections.all_up(Duration::ZERO).await.expect_err("both are down");
        assert!(error.to_string().contains("2 of its connections"), "each is counted once: {error}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_is_gone_is_down_for_ever() {
        let connections = connections();
        let [mut a, mut b] = two(&connections);
        a.set(true);
        b.set(true);
        drop(b);
        assert!(connections.all_up(Duration::ZERO).await.is_err(), "an abandoned connection counts as down");
    }
}
