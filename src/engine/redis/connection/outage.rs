//! What the connections of one pool know of each other: how many are down, whether that is an outage (one log
//! line when it begins and one when it is over, whoever finds out), and when it is worth trying again. Makes
//! no connection and carries no call.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::fault::Fault;
use crate::error::{Error, Result};

/// How soon after a failed attempt the next begins, whatever hope there is; doubled each time.
const FIRST_BACKOFF: Duration = Duration::from_millis(50);
/// And at most this.
const LAST_BACKOFF: Duration = Duration::from_secs(1);

/// The connections of one pool, all but those of its [`Pool`](super::pool::Pool).
#[derive(Debug)]
pub struct Outage {
    pool: Arc<str>,
    away: AtomicBool,
    down: watch::Sender<usize>,
    hope: watch::Sender<()>,
}

impl Outage {
    /// No connections yet.
    pub fn new(pool: Arc<str>) -> Arc<Outage> {
        let (down, hope) = (watch::Sender::default(), watch::Sender::default());
        Arc::new(Outage { pool, away: AtomicBool::new(false), down, hope })
    }

    /// A connection could not be kept or made.
    pub fn begins(&self, fault: &Fault) {
        if !self.away.swap(true, Ordering::Relaxed) {
            tracing::warn!(pool = &*self.pool, "the Redis is away: {}", fault.text());
        }
    }

    /// The Redis was heard of just now: connections that are down need not wait to try again.
    pub fn hope(&self) {
        self.hope.send_replace(());
    }

    /// Waits until every connection is up. `Away` when some are not within `patience`.
    pub async fn over(&self, patience: Duration) -> Result<()> {
        let mut down = self.down.subscribe();
        // The sender is ours, so there is no other error.
        let over = async { down.wait_for(|down| *down == 0).await.is_ok() };
        if timeout(patience, over).await.is_ok() {
            return Ok(());
        }
        let down = *self.down.borrow();
        Err(Error::away(format!("{down} of its connections are not back yet")))
    }
}

/// The connections that do the same work: how many of them are up.
pub type Kind = Arc<watch::Sender<usize>>;

/// One connection's place among the others. It begins down; one that is gone stays down, for nobody does its
/// work any more.
#[derive(Debug)]
pub struct Place {
    outage: Arc<Outage>,
    kind: Kind,
    up: bool,
}

impl Place {
    /// One more connection.
    pub fn new(outage: Arc<Outage>, kind: Kind) -> Place {
        outage.down.send_modify(|down| *down += 1);
        Place { outage, kind, up: false }
    }

    /// It was made. The others may have luck now too.
    pub fn up(&mut self) {
        if std::mem::replace(&mut self.up, true) {
            return;
        }
        self.kind.send_modify(|up| *up += 1);
        let mut all = false;
        self.outage.down.send_modify(|down| {
            *down -= 1; // a place that was down is counted
            all = *down == 0;
        });
        self.outage.hope();
        // Not with the first one: an attempt that began before the Redis was back may still fail.
        if all && self.outage.away.swap(false, Ordering::Relaxed) {
            tracing::info!(pool = &*self.outage.pool, "the Redis is back");
        }
    }

    /// It broke.
    pub fn down(&mut self) {
        if std::mem::replace(&mut self.up, false) {
            self.outage.down.send_modify(|down| *down += 1);
            self.kind.send_modify(|up| *up -= 1); // a place that was up is counted
        }
    }

    /// Whether it was made and has not broken since.
    pub fn is_up(&self) -> bool {
        self.up
    }

    /// Resolves while none of its kind is up.
    pub async fn none_up(&self) {
        // The sender is ours, so there is no error.
        let _ = self.kind.subscribe().wait_for(|up| *up == 0).await;
    }

    /// Resolves while one of its kind is up.
    pub async fn some_up(&self) {
        // The same.
        let _ = self.kind.subscribe().wait_for(|up| *up > 0).await;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.down();
    }
}

/// The pauses between one connection's attempts.
#[derive(Debug)]
pub struct Pause {
    next: Duration,
    hope: watch::Receiver<()>,
}

impl Pause {
    /// The first attempt is made at once.
    pub fn new(outage: &Outage) -> Pause {
        Pause { next: Duration::ZERO, hope: outage.hope.subscribe() }
    }

    /// An attempt failed: the next pause is longer.
    pub fn lengthen(&mut self) {
        self.next = (self.next * 2).clamp(FIRST_BACKOFF, LAST_BACKOFF);
    }

    /// Waits until it is time for an attempt: the pause is over, or there is hope that was not there when the
    /// last attempt began. Hope shortens a pause to the first one and no further, so that a Redis that answers
    /// some and refuses others is not stormed.
    pub async fn pass(&mut self) {
        sleep(self.next.min(FIRST_BACKOFF)).await;
        let rest = self.next.saturating_sub(FIRST_BACKOFF);
        if !rest.is_zero() {
            let _ = timeout(rest, self.hope.changed()).await;
        }
        self.hope.mark_unchanged();
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    fn places(outage: &Arc<Outage>, kind: &Kind) -> [Place; 2] {
        std::array::from_fn(|_| Place::new(outage.clone(), kind.clone()))
    }

    #[tokio::test(start_paused = true)]
    async fn it_is_over_when_the_last_connection_is_up() {
        let outage = Outage::new("p".into());
        let [mut a, mut b] = places(&outage, &Kind::default());
        a.up();
        let error = outage.over(Duration::from_secs(1)).await.expect_err("one is down");
        assert!(error.to_string().contains("1 of its connections"), "it says how many: {error}");
        let waiting = tokio::spawn({
            let outage = outage.clone();
            async move { outage.over(Duration::from_secs(1)).await }
        });
        tokio::task::yield_now().await;
        b.up();
        waiting.await.expect("no panic").expect("both are up");
        b.down();
        a.down();
        a.down();
        let error = outage.over(Duration::ZERO).await.expect_err("both are down");
        assert!(error.to_string().contains("2 of its connections"), "each is counted once: {error}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_is_gone_is_down_for_good() {
        let outage = Outage::new("p".into());
        let kind = Kind::default();
        let [mut a, mut b] = places(&outage, &kind);
        a.up();
        b.up();
        drop(b);
        assert!(outage.over(Duration::ZERO).await.is_err(), "nobody does its work");
        assert_eq!(*kind.borrow(), 1, "its sibling is up");
    }

    #[tokio::test(start_paused = true)]
    async fn pauses_grow_and_hope_ends_them_but_not_the_first_one() {
        let outage = Outage::new("p".into());
        let mut pause = Pause::new(&outage);
        let began = Instant::now();
        let mut took = Vec::new();
        for _ in 0..8 {
            let before = began.elapsed();
            pause.pass().await;
            took.push((began.elapsed() - before).as_millis());
            pause.lengthen();
        }
        assert_eq!(took, [0, 50, 100, 200, 400, 800, 1000, 1000], "milliseconds of each pause");
        let before = began.elapsed();
        // While its last attempt was under way: that attempt may have begun too early.
        outage.hope();
        pause.pass().await;
        assert_eq!((began.elapsed() - before).as_millis(), 50, "milliseconds of a pause with hope");
        let before = began.elapsed();
        let hoping = async {
            sleep(Duration::from_millis(300)).await;
            outage.hope();
        };
        tokio::join!(pause.pass(), hoping);
        assert_eq!((began.elapsed() - before).as_millis(), 300, "milliseconds until there is hope");
    }
}
