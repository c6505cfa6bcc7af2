//! Reports internal events of an engine to the metrics; everything else is counted from its replies
//! ([`Metered`](super::metered::Metered)). Engines hold their observers in [`Observers`].

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::RwLock;

use crate::name::Queue;

/// Receives internal events of a store. Every method returns at once and may be called from any thread.
pub trait Observer: Send + Sync + fmt::Debug {
    /// One step of the store has this number of jobs to publish.
    fn published_together(&self, jobs: usize);

    /// One step of the store has this number of jobs to ack.
    fn acked_together(&self, jobs: usize);

    /// A sync took this time, for this number of calls.
    fn synced(&self, took: Duration, calls: usize);

    /// A reply was delayed by this time, waiting for replicas.
    fn waited(&self, took: Duration);

    /// Jobs of a queue died in a pump or a consume, which no reply reports.
    fn died(&self, queue: &Queue, jobs: u64);

    /// Jobs of a queue are ready again, since the ttr of their delivery has ended.
    fn redelivered(&self, queue: &Queue, jobs: u64);

    /// Jobs have expired, and the store has deleted them.
    fn expired(&self, jobs: u64);
}

/// The observers of an engine: usually one, its pool's.
#[derive(Debug, Default)]
pub struct Observers(RwLock<Vec<Arc<dyn Observer>>>);

impl Observers {
    /// Adds an observer.
    pub fn attach(&self, observer: Arc<dyn Observer>) {
        self.0.write().push(observer);
    }

    pub fn tell(&self, what: impl Fn(&dyn Observer)) {
        for observer in self.0.read().iter() {
            what(&**observer);
        }
    }
}
