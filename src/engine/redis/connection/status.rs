//! What the long-lived connections of one engine share: how they are made, how many of them are down, and when
//! one that is down tries again. Makes no connection and carries no call. The connections of
//! [`ConnectionPool`](super::pool::ConnectionPool) are not counted here.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::connector::Connector;
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
    /// Hears of every attempt to connect that failed.
    pub outage: Arc<Outage>,
    /// Cancelled when the engine closes.
    pub closing: CancellationToken,
    /// How many are down.
    down: watch::Sender<usize>,
    /// Sent to when the Redis has answered somebody, so that those in a pause try again.
    answered: watch::Sender<()>,
}

impl Connections {
    /// No connections yet.
    pub fn new(
        pool: Arc<str>,
        connector: Arc<Connector>,
        outage: Arc<Outage>,
        closing: CancellationToken,
    ) -> Arc<Connections> {
        // A Redis that has become the master is tried at once too.
        let (down, answered) = (watch::Sender::default(), connector.retry().clone());
        Arc::new(Connections { pool, connector, outage, closing, down, answered })
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
    answered: watch::Receiver<()>,
}

impl Backoff {
    /// The first attempt is made at once.
    pub fn new(connections: &Connections) -> Backoff {
        Backoff { next: Duration::ZERO, answered: connections.answered.subscribe() }
    }

    /// An attempt failed: the next pause is longer.
    pub fn lengthen(&mut self) {
        self.next = (self.next * 2).clamp(FIRST_BACKOFF, LAST_BACKOFF);
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
    use tokio::time::Instant;

    use super::*;
    use crate::engine::redis::RedisAddress;

    fn connections() -> Arc<Connections> {
        let address = RedisAddress { addrs: vec!["127.0.0.1:1".into()], ..RedisAddress::default() };
        let connector = Connector::new(&address).expect("a good address");
        Connections::new("p".into(), connector.into(), Outage::new("pool p"), CancellationToken::new())
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
}
