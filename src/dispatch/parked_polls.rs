//! How many consumers wait in long polls: the one bound that all pools' dispatchers share.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::ConsumeError;

/// Counts parked polls, over all pools.
#[derive(Debug)]
pub struct ParkedPolls {
    most: usize,
    count: AtomicUsize,
}

impl ParkedPolls {
    /// Lets `most` polls be parked at a time.
    pub fn new(most: usize) -> ParkedPolls {
        ParkedPolls { most, count: AtomicUsize::new(0) }
    }

    /// How many are parked.
    pub fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Counts one more, or refuses it.
    pub(super) fn enter(&self) -> Result<(), ConsumeError> {
        if self.count.fetch_add(1, Ordering::Relaxed) >= self.most {
            self.leave();
            return Err(ConsumeError::TooMany(self.most));
        }
        Ok(())
    }

    /// One that entered is parked no more.
    pub(super) fn leave(&self) {
        self.count.fetch_sub(1, Ordering::Relaxed);
    }
}
