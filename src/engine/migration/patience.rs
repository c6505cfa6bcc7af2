//! How long calls wait for the source, and its condition.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::time::{Instant, timeout};

use crate::error::{Error, Result};

/// How long the source may delay a reply that the target could give.
pub const PATIENCE: Duration = Duration::from_millis(250);
/// The same for a source whose last consume was slow. Otherwise a slow source would never drain, because its deliveries
/// would be returned each time. A consume that finds nothing in the target fails after this time too.
pub const MOST_PATIENCE: Duration = Duration::from_secs(1);
/// Interval of a consume's polls of the target while the source hangs, and of a pump's retries of an unavailable
/// store.
pub const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// Condition of the source.
#[derive(Debug)]
pub struct OldState {
    /// How long it may delay a reply, if its last consume was not slow.
    pub least: Duration,
    /// Number of consumes and give-backs that hang in it.
    pub late: AtomicUsize,
    /// Duration of the last consume that it replied to, in milliseconds.
    pub took: AtomicU64,
}

impl OldState {
    /// Returns how long to wait for it.
    pub fn patience(&self) -> Duration {
        let took = Duration::from_millis(self.took.load(Ordering::Relaxed));
        (took * 2).clamp(self.least, MOST_PATIENCE.max(self.least))
    }

    /// Makes a call that may be repeated.
    pub async fn ask<T>(&self, call: impl Future<Output = Result<T>>) -> Result<T> {
        timeout(self.patience(), call).await.unwrap_or_else(|_| Err(late()))
    }

    /// Records a reply to a consume.
    pub fn answered<T>(&self, asked: Instant, answer: &Result<T>) {
        // A failure says nothing about the duration of a reply.
        let took = answer.as_ref().map_or(Duration::ZERO, |_| asked.elapsed());
        self.took.store(took.as_millis().try_into().unwrap_or(u64::MAX), Ordering::Relaxed);
    }
}

/// Returns the error of a source that did not reply in time.
pub fn late() -> Error {
    Error::away("the store that the pool moves from does not answer")
}
