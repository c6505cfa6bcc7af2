//! Keeps a connection open: connects, lets it be used until it breaks, and reconnects with back-off. Independent of the
//! purpose of the connection and of how it is opened.

use std::convert::Infallible;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use super::fault::{Fault, Outcome};

/// First pause after a failed attempt. The pause doubles with each further failure.
const FIRST_BACKOFF: Duration = Duration::from_millis(50);
/// The longest pause.
const LAST_BACKOFF: Duration = Duration::from_secs(1);

/// A connection that is reopened whenever it breaks.
pub trait Reconnect: Sync {
    type Connection: Send;

    /// Opens the connection.
    fn connect(&self) -> impl Future<Output = Outcome<Self::Connection>> + Send;

    /// Uses the connection until it ends.
    fn serve(&self, connection: Self::Connection) -> impl Future<Output = ()> + Send;

    /// Reports a failed attempt.
    fn failed(&self, fault: Fault);
}

/// Connects, serves until the connection ends, and starts over. `answered` receives a message when an attempt may
/// succeed. `is_up` is called whenever the connection is opened, and whenever it has ended.
pub async fn stay_connected<R: Reconnect>(
    to: &R,
    answered: watch::Receiver<()>,
    mut is_up: impl FnMut(bool),
) -> Infallible {
    let mut backoff = Backoff::new(answered);
    loop {
        backoff.wait().await;
        match to.connect().await {
            Ok(connection) => {
                backoff.connected();
                is_up(true);
                to.serve(connection).await;
                is_up(false);
                backoff.broke();
            }
            Err(fault) => {
                to.failed(fault);
                backoff.lengthen();
            }
        }
    }
}

/// The back-off of one connection.
#[derive(Debug)]
struct Backoff {
    next: Duration,
    connected: Option<Instant>,
    answered: watch::Receiver<()>,
}

impl Backoff {
    fn new(answered: watch::Receiver<()>) -> Backoff {
        Backoff { next: Duration::ZERO, connected: None, answered }
    }

    /// Lengthens the next pause after a failed attempt.
    fn lengthen(&mut self) {
        self.next = (self.next * 2).clamp(FIRST_BACKOFF, LAST_BACKOFF);
    }

    /// Records a successful attempt.
    fn connected(&mut self) {
        self.connected = Some(Instant::now());
    }

    /// Records that the connection broke. The next attempt follows at once if the connection was up for at least
    /// [`LAST_BACKOFF`]. Otherwise it counts as a failed attempt: a server that refuses writes still accepts
    /// connections.
    fn broke(&mut self) {
        if self.connected.take().is_some_and(|since| since.elapsed() >= LAST_BACKOFF) {
            self.next = Duration::ZERO;
        } else {
            self.lengthen();
        }
    }

    /// Waits until it is time for an attempt: the pause has ended, or Redis has replied to another connection since the
    /// last attempt started. Such a reply shortens a pause to [`FIRST_BACKOFF`] at most, so that a Redis that accepts
    /// some connections and refuses others is not flooded with attempts.
    async fn wait(&mut self) {
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

    #[tokio::test(start_paused = true)]
    async fn pauses_grow_and_an_answer_ends_them_but_not_the_first_one() {
        let answered = watch::Sender::default();
        let mut backoff = Backoff::new(answered.subscribe());
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
        // Sent during the last attempt, which may have started before Redis was ready.
        answered.send_replace(());
        backoff.wait().await;
        assert_eq!((began.elapsed() - before).as_millis(), 50, "milliseconds of a pause after an answer");
        let before = began.elapsed();
        let answer = async {
            sleep(Duration::from_millis(300)).await;
            answered.send_replace(());
        };
        tokio::join!(backoff.wait(), answer);
        assert_eq!((began.elapsed() - before).as_millis(), 300, "milliseconds until there is an answer");
    }

    #[tokio::test(start_paused = true)]
    async fn connections_that_break_at_once_are_not_made_again_without_a_pause() {
        let answered = watch::Sender::default();
        let mut backoff = Backoff::new(answered.subscribe());
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
