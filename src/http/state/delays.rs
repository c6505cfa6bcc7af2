//! Counts of what falls due when: one at a time of each pool, for whoever asks the same meanwhile and for a while after.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::engine::Engine;
use crate::engine::delays::{DelayCount, Delays};
use crate::error::{Error, Result};
use crate::process::tasks::Tasks;

/// How long a count is shown to others.
const SHOWN: Duration = Duration::from_secs(10);
/// How long a page shows it that has no newer one.
const REMEMBERED: Duration = Duration::from_secs(3600);
/// How many different counts are kept meanwhile.
const KEPT: usize = 16;
/// How many may wait for their turn.
const MAX_WAITING: usize = 64;

/// The counts of one pool.
#[derive(Debug)]
pub struct DelayCounts {
    /// Held by the count that is under way, also when who asked has left.
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
    /// What was counted a moment ago, or what is counted now.
    pub async fn count(
        &self,
        engine: &Arc<dyn Engine>,
        count: DelayCount,
        tasks: &Tasks,
    ) -> Result<Arc<Delays>> {
        let _waits = self.waiting.try_acquire().map_err(|_| Error::Overloaded)?;
        // Nobody closes it.
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

    /// What was counted last, within the hour.
    pub fn last(&self, count: &DelayCount) -> Option<Arc<Delays>> {
        self.counted_within(REMEMBERED, count)
    }

    fn counted_within(&self, time: Duration, count: &DelayCount) -> Option<Arc<Delays>> {
        let done = self.done.lock();
        let of = done.iter().find(|of| of.count == *count && of.at.elapsed() < time)?;
        Some(of.delays.clone())
    }
}
