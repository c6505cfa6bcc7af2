//! Bounds the number of connections. Each holds a place until it is closed; if none is free, an idle
//! connection is closed.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use hyper::http::Extensions;
use hyper_util::client::legacy::connect::Connected;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

/// How often a request that waits for a place looks for an idle connection to close.
const CLOSE_AGAIN: Duration = Duration::from_millis(100);

/// Usage of a connection. Travels with it.
#[derive(Debug, Default)]
pub(super) struct Used {
    /// A response has arrived over it.
    answered: AtomicBool,
    /// Number of writes so far, and since when the connection is idle.
    idle: Mutex<(u64, Option<Instant>)>,
    /// Cancelled to close the connection.
    close: CancellationToken,
}

impl Used {
    /// Records that a response has begun to arrive. Returns the number of writes so far.
    pub(super) fn answered(&self) -> u64 {
        self.answered.store(true, Ordering::Relaxed);
        self.idle.lock().0
    }

    /// Whether a response has arrived over the connection before.
    pub(super) fn before(connected: &Connected) -> bool {
        let mut extensions = Extensions::new();
        connected.get_extras(&mut extensions);
        extensions.get().is_some_and(|used: &Arc<Used>| used.answered.load(Ordering::Relaxed))
    }

    /// Records that a response was read. The connection is idle now, unless something was written since: the
    /// pool may have reused it.
    pub(super) fn read(&self, written: u64) {
        let mut idle = self.idle.lock();
        if idle.0 == written {
            idle.1 = Some(Instant::now());
        }
    }

    /// Completes when the connection should close to free its place.
    pub(super) fn closed(&self) -> WaitForCancellationFutureOwned {
        self.close.clone().cancelled_owned()
    }

    /// Records a write: the connection is in use.
    pub(super) fn written(&self) {
        let mut idle = self.idle.lock();
        *idle = (idle.0 + 1, None);
    }
}

/// The places of all connections. Each connection holds one until it is closed.
#[derive(Debug)]
pub(super) struct Places {
    free: Arc<Semaphore>,
    taken: Mutex<HashMap<u64, Arc<Used>>>,
    next: AtomicU64,
}

impl Places {
    pub(super) fn new(most: usize) -> Places {
        Places { free: Arc::new(Semaphore::new(most)), taken: Mutex::default(), next: AtomicU64::new(0) }
    }

    /// Waits for a place. If none is free, closes the connection that has been idle longest.
    pub(super) async fn take(self: &Arc<Self>) -> ConnectionPlace {
        let free = self.free.clone().acquire_owned();
        tokio::pin!(free);
        let permit = loop {
            if self.free.available_permits() == 0 {
                self.close_one();
            }
            if let Ok(permit) = timeout(CLOSE_AGAIN, &mut free).await {
                break permit.expect("the semaphore is never closed");
            }
        };
        let (number, used) = (self.next.fetch_add(1, Ordering::Relaxed), Arc::<Used>::default());
        self.taken.lock().insert(number, used.clone());
        ConnectionPlace { places: self.clone(), number, used, _permit: permit }
    }

    fn close_one(&self) {
        let taken = self.taken.lock();
        let idle = taken.values().filter_map(|used| Some((used.idle.lock().1?, used)));
        if let Some((_, used)) = idle.min_by_key(|(since, _)| *since) {
            // It may be in use by now.
            if used.idle.lock().1.take().is_some() {
                used.close.cancel();
            }
        }
    }
}

pub(super) struct ConnectionPlace {
    places: Arc<Places>,
    number: u64,
    pub(super) used: Arc<Used>,
    _permit: OwnedSemaphorePermit,
}

impl Drop for ConnectionPlace {
    fn drop(&mut self) {
        self.places.taken.lock().remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Guards against a request that waits until an idle connection is closed for its age.
    #[tokio::test(start_paused = true)]
    async fn a_connection_that_nobody_uses_makes_room_at_once() {
        let places = Arc::new(Places::new(2));
        let (in_use, kept) = (places.take().await, places.take().await);
        in_use.used.written();
        kept.used.written();
        kept.used.read(kept.used.answered());
        let mut next = Box::pin(places.take());
        assert!(timeout(CLOSE_AGAIN / 2, &mut next).await.is_err(), "both are open");
        timeout(CLOSE_AGAIN, kept.used.closed()).await.expect("the unused connection is closed");
        drop(kept);
        timeout(CLOSE_AGAIN, next).await.expect("there is room");
        assert!(!in_use.used.close.is_cancelled(), "the other connection is in use");
    }
}
