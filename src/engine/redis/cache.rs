//! Caches of this process that reduce Redis's work. Bounded; losing any entry is harmless. Uses no connection.

use std::hash::Hash;
use std::time::Duration;

use quick_cache::sync::{Cache, DefaultLifecycle};
use quick_cache::{DefaultHashBuilder, Equivalent, OptionsBuilder, UnitWeighter};
use tokio::time::Instant;

use super::cluster::map::Partition;
use crate::clock::{Micros, Millis};
use crate::job::JobId;
use crate::name::Queue;

/// Returns a cache of at most `entries` that keeps the newest: at most a hundredth of a full cache are old entries kept
/// because they were used again.
fn newest<K: Hash + Eq, V: Clone>(entries: usize) -> Cache<K, V> {
    let options = OptionsBuilder::new()
        .estimated_items_capacity(entries)
        .weight_capacity(entries as u64)
        .hot_allocation(0.01)
        .ghost_allocation(0.0)
        .build()
        .expect("both capacities are set");
    Cache::with_options(options, UnitWeighter, DefaultHashBuilder::default(), DefaultLifecycle::default())
}

/// This process's latest deliveries: the tries left of running jobs, which determine the timer member that an ack
/// removes; and the end of a delivery or release, used to measure the lateness of the redelivery.
#[derive(Debug)]
pub struct Deliveries(Cache<JobId, Delivered>);

#[derive(Clone, Copy, Debug)]
struct Delivered {
    /// `None`: the delivery has ended, and the job's timer is unknown.
    tries: Option<u16>,
    /// Next due time of the job.
    ends: Millis,
}

impl Deliveries {
    /// Returns an empty cache that keeps the newest `least` jobs, and at most twice that number. (Its shards fill
    /// unevenly, so the difference is needed.)
    pub fn new(least: usize) -> Deliveries {
        Deliveries(newest(2 * least))
    }

    /// Records a delivery, with `tries` left, whose ttr ends at `ends`. Returns when the job was due this time: by its
    /// id, or at the recorded end of its previous delivery.
    pub fn begin(&self, id: JobId, tries: u16, ends: Micros) -> Millis {
        let before = self.0.get(&id).map(|before| before.ends);
        self.0.insert(id, Delivered { tries: Some(tries), ends: ends / 1000 });
        before.unwrap_or(0).max(id.first_due())
    }

    /// Records the new end of a delivery.
    pub fn touch(&self, id: JobId, tries: u16, ends: Micros) {
        self.0.insert(id, Delivered { tries: Some(tries), ends: ends / 1000 });
    }

    /// Records that a delivery has ended, and the job's due time.
    pub fn release(&self, id: JobId, due: Micros) {
        self.0.insert(id, Delivered { tries: None, ends: due / 1000 });
    }

    /// Returns the job's tries, if recorded.
    pub fn tries(&self, id: &JobId) -> Option<u16> {
        self.0.get(id)?.tries
    }

    /// Returns the job's due time, if recorded.
    pub fn ends(&self, id: &JobId) -> Option<Millis> {
        Some(self.0.get(id)?.ends)
    }

    /// Removes a deleted or returned job. Returns its tries, if recorded.
    pub fn remove(&self, id: &JobId) -> Option<u16> {
        self.0.remove(id)?.1.tries
    }
}

/// Maximum number of queues remembered as recorded.
const MAX_QUEUES: usize = 65_536;
/// Time until a queue is recorded again, in case its name was deleted meanwhile.
const REMEMBERED: Duration = Duration::from_secs(60);

/// The queues whose names this process has recently recorded in a partition, with the time.
#[derive(Debug)]
pub struct RecordedQueues(Cache<(Partition, Queue), Instant>);

/// A borrowed key of that cache, without a copy of the queue's name.
#[derive(Hash)]
struct Place<'a>(Partition, &'a Queue);

impl Equivalent<(Partition, Queue)> for Place<'_> {
    fn equivalent(&self, (partition, queue): &(Partition, Queue)) -> bool {
        self.0 == *partition && self.1 == queue
    }
}

impl Default for RecordedQueues {
    fn default() -> RecordedQueues {
        RecordedQueues(newest(MAX_QUEUES))
    }
}

impl RecordedQueues {
    /// Whether the queue's name was recorded recently.
    pub fn has(&self, partition: Partition, queue: &Queue) -> bool {
        self.0.get(&Place(partition, queue)).is_some_and(|recorded| recorded.elapsed() <= REMEMBERED)
    }

    /// Removes a queue whose name was deleted.
    pub fn remove(&self, partition: Partition, queue: &Queue) {
        self.0.remove(&Place(partition, queue));
    }

    /// Adds a queue whose name was recorded.
    pub fn add(&self, partition: Partition, queue: Queue) {
        self.0.insert((partition, queue), Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::name::{Namespace, QueueName};

    #[test]
    fn the_newest_jobs_are_kept_and_the_rest_is_bounded() {
        let id = |n: u64| JobId::from_parts(n, n, 0, false);
        let cache = Deliveries::new(1000);
        for n in 0..20_000 {
            cache.begin(id(n), n as u16, 0);
        }
        assert!(cache.0.len() <= 2000, "at most twice the least, but {} are kept", cache.0.len());
        let lost: Vec<u64> = (19_000..20_000).filter(|n| cache.remove(&id(*n)) != Some(*n as u16)).collect();
        assert!(lost.is_empty(), "the newest thousand should be there, without: {lost:?}");
        assert_eq!(cache.remove(&id(19_999)), None, "it was taken out");
    }

    #[test]
    fn a_redelivered_job_was_due_at_the_end_of_its_last_delivery() {
        let (id, cache) = (JobId::from_parts(5_000, 1, 10, false), Deliveries::new(10));
        assert_eq!(cache.begin(id, 2, 20_000_000), 15_000, "published at 5 s with a delay of 10 s");
        assert_eq!(cache.begin(id, 1, 30_000_000), 20_000, "the end of its ttr");
        cache.touch(id, 1, 40_000_000);
        assert_eq!(cache.tries(&id), Some(1), "tries left while it runs");
        cache.release(id, 50_000_000);
        assert_eq!(cache.tries(&id), None, "it has a new timer");
        assert_eq!(cache.begin(id, 0, 60_000_000), 50_000, "the end of its release");
        assert_eq!(cache.remove(&id), Some(0), "given back");
        assert_eq!(cache.begin(id, 0, 60_000_000), 15_000, "as if it had not been handed out");
    }

    #[tokio::test(start_paused = true)]
    async fn a_recorded_queue_is_recorded_again_after_a_minute() {
        let queue = Queue {
            namespace: Namespace::parse("ns").expect("a name"),
            name: QueueName::parse("q").expect("a name"),
        };
        let recorded = RecordedQueues::default();
        assert!(!recorded.has(0, &queue), "it was never recorded");
        recorded.add(0, queue.clone());
        assert!(!recorded.has(1, &queue), "only there");
        tokio::time::advance(REMEMBERED).await;
        assert!(recorded.has(0, &queue), "it was, a minute ago");
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(!recorded.has(0, &queue), "the record may have been deleted");
    }
}
