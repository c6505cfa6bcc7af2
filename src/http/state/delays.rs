//! Cached counts of due times. Per pool one count runs at a time; its result also serves concurrent and later
//! requests.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::engine::Engine;
use crate::engine::delays::{DelayCount, Delays};
use crate::error::{Error, Result};
use crate::process::tasks::Tasks;

/// How long a count serves other requests.
const SHOWN: Duration = Duration::from_secs(10);
/// How long a count is kept for pages that have no newer one.
const REMEMBERED: Duration = Duration::from_secs(3600);
/// Maximum number of counts kept.
const KEPT: usize = 16;
/// Maximum number of requests that wait for their turn.
const MAX_WAITING: usize = 64;

/// Counts of one pool.
#[derive(Debug)]
pub struct DelayCounts {
    /// Held by the running count, also after its client has disconnected.
    turn: Arc<Semaphore>,
    waiting: Semaphore,
    done: Arc<Mutex<Vec<Done>>>,
}

#[derive(Debug)]
struct Done {
    count: DelayCount,
    at: Instant,
    delays: Arc<Delays>,
}

impl Default for DelayCounts {
    fn default() -> DelayCounts {
        let (turn, waiting) = (Arc::new(Semaphore::new(1)), Semaphore::new(MAX_WAITING));
        DelayCounts { turn, waiting, done: Arc::default() }
    }
}

impl DelayCounts {
    /// Returns a recent count, or counts now.
    pub async fn count(
        &self,
        engine: &Arc<dyn Engine>,
        count: DelayCount,
        tasks: &Tasks,
    ) -> Result<Arc<Delays>> {
        let _waits = self.waiting.try_acquire().map_err(|_| Error::Overloaded)?;
        // It is never closed.
        let turn = self.turn.clone().acquire_owned().await.map_err(|_| Error::Closed)?;
        if let Some(delays) = self.counted_within(SHOWN, &count) {
            return Ok(delays);
        }
        let (engine, done) = (engine.clone(), self.done.clone());
        let counted = tasks.spawn(async move {
            let _turn = turn;
            let delays = Arc::new(engine.delays(&count).await?);
            let mut done = done.lock();
            done.retain(|of| of.count != count && of.at.elapsed() < REMEMBERED);
            done.truncate(KEPT - 1);
            done.insert(0, Done { count, at: Instant::now(), delays: delays.clone() });
            Ok(delays)
        });
        counted.await.map_err(Error::away)?
    }

    /// Returns the last count, at most an hour old.
    pub fn last(&self, count: &DelayCount) -> Option<Arc<Delays>> {
        self.counted_within(REMEMBERED, count)
    }

    fn counted_within(&self, time: Duration, count: &DelayCount) -> Option<Arc<Delays>> {
        let done = self.done.lock();
        let of = done.iter().find(|of| of.count == *count && of.at.elapsed() < time)?;
        Some(of.delays.clone())
    }
}
