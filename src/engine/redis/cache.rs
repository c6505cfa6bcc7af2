//! What this process remembers to save the Redis work. Bounded; forgetting any of it is harmless. Knows no
//! connection.

use std::hash::Hash;
use std::time::Duration;

use quick_cache::sync::{Cache, DefaultLifecycle};
use quick_cache::{DefaultHashBuilder, OptionsBuilder, UnitWeighter};
use tokio::time::Instant;

use crate::job::JobId;
use crate::name::Queue;

/// A cache of at most `entries` that keeps what was inserted last: of a full one's entries at most a hundredth
/// stays because it is old and was used again.
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

/// The tries left of the running jobs that this process handed out: what their timer members are made of, so
/// that an ack can remove them.
#[derive(Debug)]
pub struct TriesCache(Cache<JobId, u16>);

impl TriesCache {
    /// An empty cache that keeps the newest `least` jobs, and at most twice as many. (The cache is made of
    /// shards that fill unevenly, so the difference is needed.)
    pub fn new(least: usize) -> TriesCache {
        TriesCache(newest(2 * least))
    }

    /// The job was handed out, and has so many tries left.
    pub fn insert(&self, id: JobId, tries: u16) {
        self.0.insert(id, tries);
    }

    /// The tries of the job, when they are remembered.
    pub fn get(&self, id: &JobId) -> Option<u16> {
        self.0.get(id)
    }

    /// The job ends: its tries, when they are remembered.
    pub fn remove(&self, id: &JobId) -> Option<u16> {
        self.0.remove(id).map(|(_, tries)| tries)
    }
}

/// The most queues remembered as recorded.
const MAX_QUEUES: usize = 65_536;
/// How long they are remembered: afterwards each is recorded once more, in case that somebody deleted it.
const REMEMBERED: Duration = Duration::from_secs(60);

/// The queues whose names this process has recorded in the Redis lately, each with when.
#[derive(Debug)]
pub struct RecordedQueues(Cache<Queue, Instant>);

impl Default for RecordedQueues {
    fn default() -> RecordedQueues {
        RecordedQueues(newest(MAX_QUEUES))
    }
}

impl RecordedQueues {
    /// Whether the queue's name need not be recorded.
    pub fn has(&self, queue: &Queue) -> bool {
        self.0.get(queue).is_some_and(|recorded| recorded.elapsed() <= REMEMBERED)
    }

    /// The queue's name was recorded.
    pub fn add(&self, queue: Queue) {
        self.0.insert(queue, Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::name::{Namespace, QueueName};

    #[test]
    fn the_newest_jobs_are_kept_and_the_rest_is_bounded() {
        let id = |n: u64| JobId::from_parts(n, n, 0, false);
        let cache = TriesCache::new(1000);
        for n in 0..20_000 {
            cache.insert(id(n), n as u16);
        }
        assert!(cache.0.len() <= 2000, "at most twice the least, but {} are kept", cache.0.len());
        let lost: Vec<u64> = (19_000..20_000).filter(|n| cache.remove(&id(*n)) != Some(*n as u16)).collect();
        assert!(lost.is_empty(), "the newest thousand should be there, without: {lost:?}");
        assert_eq!(cache.remove(&id(19_999)), None, "it was taken out");
    }

    #[tokio::test(start_paused = true)]
    async fn a_recorded_queue_is_recorded_again_after_a_minute() {
        let queue = Queue {
            namespace: Namespace::parse("ns").expect("a name"),
            name: QueueName::parse("q").expect("a name"),
        };
        let recorded = RecordedQueues::default();
        assert!(!recorded.has(&queue), "it was never recorded");
        recorded.add(queue.clone());
        tokio::time::advance(REMEMBERED).await;
        assert!(recorded.has(&queue), "it was, a minute ago");
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(!recorded.has(&queue), "somebody may have deleted it");
    }
}
