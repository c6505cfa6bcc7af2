//! Reports internal events of an engine to the metrics; everything else is counted from its replies
//! ([`Metered`](super::metered::Metered)).

use std::fmt;
use std::time::Duration;

use crate::name::Queue;

/// Receives internal events of a store, which gets its observer when it is opened. Every method returns at once and may
/// be called from any thread.
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

/// Ignores all events.
impl Observer for () {
    fn published_together(&self, _: usize) {}
    fn acked_together(&self, _: usize) {}
    fn synced(&self, _: Duration, _: usize) {}
    fn waited(&self, _: Duration) {}
    fn died(&self, _: &Queue, _: u64) {}
    fn redelivered(&self, _: &Queue, _: u64) {}
    fn expired(&self, _: u64) {}
}
