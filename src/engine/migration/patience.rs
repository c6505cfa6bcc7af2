//! How long the old store is waited for, and how it does.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::time::{Instant, timeout};

use crate::error::{Error, Result};

/// How long the old store may hold up what the new one could answer.
pub const PATIENCE: Duration = Duration::from_millis(250);
/// The same for an old store whose last consume took long. Without it a store that is slow all the time would
/// never be drained: what it hands out would be given back each time. A consume that finds nothing in the new store
/// fails after this time too.
pub const MOST_PATIENCE: Duration = Duration::from_secs(1);
/// How often a consume looks into the new store while the old one hangs, and how soon a pump asks a store that was away
/// again.
pub const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// How the old store does.
#[derive(Debug)]
pub struct OldState {
    /// How many consumes hang in it.
    pub late: AtomicUsize,
    /// How long the last consume that it answered took, in milliseconds.
    pub took: AtomicU64,
}

impl OldState {
    /// How long it is waited for now.
    pub fn patience(&self) -> Duration {
        let took = Duration::from_millis(self.took.load(Ordering::Relaxed));
        (took * 2).clamp(PATIENCE, MOST_PATIENCE)
    }

    /// Asks it for what may be asked again.
    pub async fn ask<T>(&self, call: impl Future<Output = Result<T>>) -> Result<T> {
        timeout(self.patience(), call).await.unwrap_or_else(|_| Err(late()))
    }

    /// It has answered a consume.
    pub fn answered<T>(&self, asked: Instant, answer: &Result<T>) {
        // A failure says nothing about how long an answer takes.
        let took = answer.as_ref().map_or(Duration::ZERO, |_| asked.elapsed());
        self.took.store(took.as_millis().try_into().unwrap_or(u64::MAX), Ordering::Relaxed);
    }
}

/// The old store has not answered in time.
pub fn late() -> Error {
    Error::away("the store that the pool moves from does not answer")
}
