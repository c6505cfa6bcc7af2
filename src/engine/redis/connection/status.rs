//! What the long-lived connections of one engine share: how they are made, how many of them are down, and when
//! one that is down tries again. Makes no connection and carries no call.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::connector::{Connection, Connector, OnPush};
use super::fault::{Fault, Outcome};
use crate::error::{Error, Result};
use crate::outage::Outage;

/// The pause after the first failed attempt to connect. It doubles with each further one.
const FIRST_BACKOFF: Duration = Duration::from_millis(50);
/// The longest pause.
const LAST_BACKOFF: Duration = Duration::from_secs(1);

/// The long-lived connections of one engine.
#[derive(Debug)]
pub struct Connections {
    /// The name of the pool of jobs, for messages.
    pub pool: Arc<str>,
    pub connector: Arc<Connector>,
    /// Hears of every attempt to connect that failed; `None` when who calls reports what comes of it.
    outage: Option<Arc<Outage>>,
    /// Cancelled when the engine closes.
    pub closing: CancellationToken,
    /// Cancelled when the last task of a closing engine has ended: until then shared connections are kept.
    pub closed: CancellationToken,
    open: Mutex<Open>,
    /// How many are down.
    down: watch::Sender<usize>,
    /// Sent to when the Redis has answered somebody, so that those in a pause try again.
    answered: watch::Sender<()>,
}

/// What is needed to give up every connection.
#[derive(Debug, Default)]
struct Open {
    /// Of each connection that is open.
    lost: Vec<CancellationToken>,
    /// How often all were given up. One that is being made meanwhile may lead to the wrong server too.
    given_up: u64,
}

impl Connections {
    /// No connections yet.
    pub fn new(
        pool: Arc<str>,
        connector: Arc<Connector>,
        outage: impl Into<Option<Arc<Outage>>>,
        closing: CancellationToken,
    ) -> Arc<Connections> {
        let closed = closing.clone();
        Connections::with_end(pool, connector, outage, closing, closed)
    }

    /// The same, for who still needs shared connections while it closes.
    pub fn with_end(
        pool: Arc<str>,
        connector: Arc<Connector>,
        outage: impl Into<Option<Arc<Outage>>>,
        closing: CancellationToken,
        closed: CancellationToken,
    ) -> Arc<Connections> {
        let (down, answered) = (watch::Sender::default(), watch::Sender::default());
        let (outage, open) = (outage.into(), Mutex::default());
        Arc::new(Connections { pool, connector, outage, closing, closed, open, down, answered })
    }

    /// An attempt to connect failed, or a connection broke.
    pub fn failed(&self, fault: &Fault) {
        if let Some(outage) = &self.outage {
            outage.failed(fault);
        }
    }

    /// A call on this connection failed: if the fault says so, the connection is given up, and every other one
    /// with it when another server is the master now. A server that takes no writes may still answer reads, so
    /// those who only read would not notice.
    pub fn note(&self, connection: &Connection, fault: &Fault) {
        if fault.not_master && !connection.lost.is_cancelled() {
            let mut open = self.open.lock();
            open.given_up += 1;
            open.lost.drain(..).for_each(|lost| lost.cancel());
        }
        if fault.reconnect {
            connection.lost.cancel();
        }
    }

    /// A new connection.
    pub async fn connect(&self) -> Outcome<Connection> {
        self.connect_with(Arc::new(|_| ())).await
    }

    /// A new connection whose pushes go to `on_push`, which must not block.
    pub async fn connect_with(&self, on_push: OnPush) -> Outcome<Connection> {
        let given_up = self.open.lock().given_up;
        let connection = self.connector.connect_with(on_push).await?;
        let mut open = self.open.lock();
        if open.given_up != given_up {
            return Err(Fault::away("the Redis has become a replica").at(self.connector.label()));
        }
        open.lost.retain(|lost| !lost.is_cancelled());
        open.lost.push(connection.lost.clone());
        Ok(connection)
    }

    /// The Redis has just answered: connections that are down need not wait to try again.
    pub fn retry_now(&self) {
        self.answered.send_replace(());
    }

    /// Waits until every connection is up. `Away` when some are not `within` this time.
    pub async fn all_up(&self, within: Duration) -> Result<()> {
        let mut down = self.down.subscribe();
        // The sender is ours, so there is no other error.
        let up = async { down.wait_for(|down| *down == 0).await.is_ok() };
        if timeout(within, up).await.is_ok() {
            return Ok(());
        }
        let down = *self.down.borrow();
        Err(Error::away(format!("{down} of its connections are not back yet")))
    }
}

/// The connections that do the same work: how many of them are up.
pub type Group = Arc<watch::Sender<usize>>;

/// Whether one connection is up. It begins down. When it is dropped the connection counts as down for ever,
/// since nobody does its work any more.
#[derive(Debug)]
pub struct ConnectionStatus {
    connections: Arc<Connections>,
    group: Group,
    up: bool,
}

impl ConnectionStatus {
    /// One more connection.
    pub fn new(connections: Arc<Connections>, group: Group) -> ConnectionStatus {
        connections.down.send_modify(|down| *down += 1);
        ConnectionStatus { connections, group, up: false }
    }

    /// It was made. The others try again now, since they may succeed too.
    pub fn up(&mut self) {
        if !std::mem::replace(&mut self.up, true) {
            self.group.send_modify(|up| *up += 1);
            self.connections.down.send_modify(|down| *down -= 1); // one that was down is counted
            self.connections.retry_now();
        }
    }

    /// It broke.
    pub fn down(&mut self) {
        if std::mem::replace(&mut self.up, false) {
            self.connections.down.send_modify(|down| *down += 1);
            self.group.send_modify(|up| *up -= 1); // one that was up is counted
        }
    }

    /// Whether it was made and has not broken since.
    pub fn is_up(&self) -> bool {
        self.up
    }

    /// Waits until none of its group is up.
    pub async fn none_up(&self) {
        // The sender is ours, so there is no error.
        let _ = self.group.subscribe().wait_for(|up| *up == 0).await;
    }

    /// Waits until one of its group is up.
    pub async fn some_up(&self) {
        // The same.
        let _ = self.group.subscribe().wait_for(|up| *up > 0).await;
    }
}

impl Drop for ConnectionStatus {
    fn drop(&mut self) {
        self.down();
    }
}

/// The pauses between one connection's attempts.
#[derive(Debug)]
pub struct Backoff {
    next: Duration,
    connected: Option<Instant>,
    answered: watch::Receiver<()>,
}

impl Backoff {
    /// The first attempt is made at once.
    pub fn new(connections: &Connections) -> Backoff {
        Backoff { next: Duration::ZERO, connected: None, answered: connections.answered.subscribe() }
    }

    /// An attempt failed: the next pause is longer.
    pub fn lengthen(&mut self) {
        self.next = (self.next * 2).clamp(FIRST_BACKOFF, LAST_BACKOFF);
    }

    /// An attempt succeeded.
    pub fn connected(&mut self) {
        self.connected = Some(Instant::now());
    }

    /// The connection broke. The next attempt is made at once if the connection has lasted. One that breaks soon is
    /// like an attempt that failed: a server that takes no writes accepts any number of connections.
    pub fn broke(&mut self) {
        if self.connected.take().is_some_and(|since| since.elapsed() >= LAST_BACKOFF) {
            self.next = Duration::ZERO;
        } else {
            self.lengthen();
        }
    }

    /// Waits until it is time for an attempt: the pause is over, or the Redis has answered somebody since the
    /// last attempt began. An answer shortens a pause to [`FIRST_BACKOFF`] and no further, so that a Redis that
    /// answers some and refuses others is not flooded with attempts.
    pub async fn wait(&mut self) {
        sleep(self.next.min(FIRST_BACKOFF)).await;
        let rest = self.next.saturating_sub(FIRST_BACKOFF);
        if !rest.is_zero() {
            let _ = timeout(rest, self.answered.changed()).await;
        }
        self.answered.mark_unchanged();
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

    fn two(connections: &Arc<Connections>, group: &Group) -> [ConnectionStatus; 2] {
        std::array::from_fn(|_| ConnectionStatus::new(connections.clone(), group.clone()))
    }

    #[tokio::test(start_paused = true)]
    async fn all_are_up_when_the_last_one_is() {
        let connections = connections();
        let [mut a, mut b] = two(&connections, &Group::default());
        a.up();
        let error = connections.all_up(Duration::from_secs(1)).await.expect_err("one is down");
        assert!(error.to_string().contains("1 of its connections"), "it says how many: {error}");
        let waiting = tokio::spawn({
            let connections = connections.clone();
            async move { connections.all_up(Duration::from_secs(1)).await }
        });
        tokio::task::yield_now().await;
        b.up();
        waiting.await.expect("no panic").expect("both are up");
        b.down();
        a.down();
        a.down();
        let error = connections.all_up(Duration::ZERO).await.expect_err("both are down");
        assert!(error.to_string().contains("2 of its connections"), "each is counted once: {error}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_is_gone_is_down_for_ever() {
        let connections = connections();
        let group = Group::default();
        let [mut a, mut b] = two(&connections, &group);
        a.up();
        b.up();
        drop(b);
        assert!(connections.all_up(Duration::ZERO).await.is_err(), "nobody does its work");
        assert_eq!(*group.borrow(), 1, "the other one of its group is up");
    }

    #[tokio::test(start_paused = true)]
    async fn pauses_grow_and_an_answer_ends_them_but_not_the_first_one() {
        let connections = connections();
        let mut backoff = Backoff::new(&connections);
        let began = Instant::now();
        let mut took = Vec::new();
        for _ in 0..8 {
            let before = began.elapsed();
            backoff.wait().await;
            took.push((began.elapsed() - before).as_millis());
            backoff.lengthen();
        }
        assert_eq!(took, [0, 50, 100, 200, 400, 800, 1000, 1000], "milliseconds of each pause");
        let before = began.elapsed();
        // While its last attempt was under way: that attempt may have begun too early.
        connections.retry_now();
        backoff.wait().await;
        assert_eq!((began.elapsed() - before).as_millis(), 50, "milliseconds of a pause after an answer");
        let before = began.elapsed();
        let answer = async {
            sleep(Duration::from_millis(300)).await;
            connections.retry_now();
        };
        tokio::join!(backoff.wait(), answer);
        assert_eq!((began.elapsed() - before).as_millis(), 300, "milliseconds until there is an answer");
    }

    #[tokio::test(start_paused = true)]
    async fn connections_that_break_at_once_are_not_made_again_without_a_pause() {
        let connections = connections();
        let mut backoff = Backoff::new(&connections);
        let began = Instant::now();
        let mut took = Vec::new();
        // The paused clock counts in whole milliseconds.
        for lasted in [0, 1, 990, 1001, 0] {
            let before = began.elapsed();
            backoff.wait().await;
            took.push((began.elapsed() - before).as_millis());
            backoff.connected();
            sleep(Duration::from_millis(lasted)).await;
            backoff.broke();
        }
        assert_eq!(took, [0, 50, 100, 200, 0], "milliseconds before each attempt");
    }
}
