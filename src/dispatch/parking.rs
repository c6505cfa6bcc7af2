//! How many consumers wait, whatever for: the one bound that all pools' dispatchers share.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::ConsumeError;

/// How many consumers may be parked, over all pools.
#[derive(Debug)]
pub struct Parking {
    most: usize,
    parked: AtomicUsize,
}

impl Parking {
    /// Room for `most`.
    pub fn new(most: usize) -> Parking {
        Parking { most, parked: AtomicUsize::new(0) }
    }

    /// How many are parked.
    pub fn parked(&self) -> usize {
        self.parked.load(Ordering::Relaxed)
    }

    /// One more parks, if there is room.
    pub(super) fn enter(&self) -> Result<(), ConsumeError> {
        if self.parked.fetch_add(1, Ordering::Relaxed) >= self.most {
            self.leave();
            return Err(ConsumeError::Crowded(self.most));
        }
        Ok(())
    }

    /// One who entered parks no more.
    pub(super) fn leave(&self) {
        self.parked.fetch_sub(1, Ordering::Relaxed);
    }
}
