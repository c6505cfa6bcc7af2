//! Stays connected: makes a connection, has it used until it breaks, and makes it again after a pause. Knows neither
//! what the connection is for nor how it is made.

use std::convert::Infallible;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use super::fault::{Fault, Outcome};

/// The pause after the first failed attempt to connect. It doubles with each further one.
const FIRST_BACKOFF: Duration = Duration::from_millis(50);
/// The longest pause.
const LAST_BACKOFF: Duration = Duration::from_secs(1);

/// A connection that is made again whenever it breaks.
pub trait Reconnect: Sync {
    type Connection: Send;

    /// Makes it.
    fn connect(&self) -> impl Future<Output = Outcome<Self::Connection>> + Send;

    /// Uses it until it ends.
    fn serve(&self, connection: Self::Connection) -> impl Future<Output = ()> + Send;

    /// It could not be made.
    fn failed(&self, fault: Fault);
}

/// Makes a connection, has it serve until it ends, and begins again. What is `answered` is sent when an attempt may
/// succeed. `is_up` hears whenever the connection is made, and whenever it has ended.
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

/// The pauses between one connection's attempts.
#[derive(Debug)]
struct Backoff {
    next: Duration,
    connected: Option<Instant>,
    answered: watch::Receiver<()>,
}

impl Backoff {
    /// The first attempt is made at once.
    fn new(answered: watch::Receiver<()>) -> Backoff {
        Backoff { next: Duration::ZERO, connected: None, answered }
    }

    /// An attempt failed: the next pause is longer.
    fn lengthen(&mut self) {
        self.next = (self.next * 2).clamp(FIRST_BACKOFF, LAST_BACKOFF);
    }

    /// An attempt succeeded.
    fn connected(&mut self) {
        self.connected = Some(Instant::now());
    }

    /// The connection broke. The next attempt is made at once if the connection has lasted. One that breaks soon is
    /// like an attempt that failed: a server that takes no writes accepts any number of connections.
    fn broke(&mut self) {
        if self.connected.take().is_some_and(|since| since.elapsed() >= LAST_BACKOFF) {
            self.next = Duration::ZERO;
        } else {
            self.lengthen();
        }
    }

    /// Waits until it is time for an attempt: the pause is over, or the Redis has answered somebody since the
    /// last attempt began. An answer shortens a pause to [`FIRST_BACKOFF`] and no further, so that a Redis that
    /// answers some and refuses others is not flooded with attempts.
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
        // While its last attempt was under way: that attempt may have begun too early.
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
