//! How an engine tells what it does by itself, for the metrics: what its answers say is counted from them
//! ([`Metered`](super::metered::Metered)). Engines hold their observers in [`Observers`].

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::RwLock;

use crate::name::Queue;

/// Hears what a store does. Every method returns at once and may be called from any thread.
pub trait Observer: Send + Sync + fmt::Debug {
    /// One step of the store has so many jobs to publish.
    fn published_together(&self, jobs: usize);

    /// One step of the store has so many jobs to ack.
    fn acked_together(&self, jobs: usize);

    /// The disk took so long to make what so many calls have done last.
    fn synced(&self, took: Duration, calls: usize);

    /// A call was answered so long after it was sent, since replicas had to have it too.
    fn waited(&self, took: Duration);

    /// Jobs of a queue died while they were pumped or consumed: nobody's answer says so.
    fn died(&self, queue: &Queue, jobs: u64);

    /// Jobs of a queue are ready again, since the ttr of their hand-over has ended.
    fn redelivered(&self, queue: &Queue, jobs: u64);

    /// The ttl of jobs has ended, and the store has forgotten them.
    fn expired(&self, jobs: u64);
}

/// The observers of an engine: usually one, that of its pool.
#[derive(Debug, Default)]
pub struct Observers(RwLock<Vec<Arc<dyn Observer>>>);

impl Observers {
    /// From now on this one is told too.
    pub fn attach(&self, observer: Arc<dyn Observer>) {
        self.0.write().push(observer);
    }

    pub fn tell(&self, what: impl Fn(&dyn Observer)) {
        for observer in self.0.read().iter() {
            what(&**observer);
        }
    }
}
