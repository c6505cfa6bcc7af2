//! What this process remembers to save the Redis work. Bounded; forgetting any of it is harmless. Knows no
//! connection.

use std::hash::Hash;
use std::time::Duration;

use quick_cache::sync::{Cache, DefaultLifecycle};
use quick_cache::{DefaultHashBuilder, Equivalent, OptionsBuilder, UnitWeighter};
use tokio::time::Instant;

use super::cluster::map::Partition;
use crate::clock::{Micros, Millis};
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

/// The last hand-overs of this process: the tries left of running jobs, of which their timer members are made, so that
/// an ack can remove them; and when a hand-over ends or a release is over, from which a job is late that comes again.
#[derive(Debug)]
pub struct HandOvers(Cache<JobId, HandOver>);

#[derive(Clone, Copy, Debug)]
struct HandOver {
    /// `None`: it is over, and the job's timer is not known.
    tries: Option<u16>,
    /// When the job is due next.
    ends: Millis,
}

impl HandOvers {
    /// An empty cache that keeps the newest `least` jobs, and at most twice as many. (The cache is made of
    /// shards that fill unevenly, so the difference is needed.)
    pub fn new(least: usize) -> HandOvers {
        HandOvers(newest(2 * least))
    }

    /// The job was handed out, has so many tries left, and comes again at the end of its ttr. Answers when it was due
    /// this time: by its id, or when what is remembered of it ended.
    pub fn begin(&self, id: JobId, tries: u16, ends: Micros) -> Millis {
        let before = self.0.get(&id).map(|before| before.ends);
        self.0.insert(id, HandOver { tries: Some(tries), ends: ends / 1000 });
        before.unwrap_or(0).max(id.first_due())
    }

    /// The hand-over goes on until then.
    pub fn touch(&self, id: JobId, tries: u16, ends: Micros) {
        self.0.insert(id, HandOver { tries: Some(tries), ends: ends / 1000 });
    }

    /// The hand-over is over, and the job is due then.
    pub fn release(&self, id: JobId, due: Micros) {
        self.0.insert(id, HandOver { tries: None, ends: due / 1000 });
    }

    /// The tries of the job, when they are remembered.
    pub fn tries(&self, id: &JobId) -> Option<u16> {
        self.0.get(id)?.tries
    }

    /// The job ends, or its hand-over is undone: its tries, when they are remembered.
    pub fn remove(&self, id: &JobId) -> Option<u16> {
        self.0.remove(id)?.1.tries
    }
}

/// The most queues remembered as recorded.
const MAX_QUEUES: usize = 65_536;
/// How long they are remembered: afterwards each is recorded once more, in case that somebody deleted it.
const REMEMBERED: Duration = Duration::from_secs(60);

/// The queues whose names this process has recorded in a partition lately, each with when.
#[derive(Debug)]
pub struct RecordedQueues(Cache<(Partition, Queue), Instant>);

/// Such a key, without a copy of the queue's name.
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
    /// Whether the queue's name need not be recorded.
    pub fn has(&self, partition: Partition, queue: &Queue) -> bool {
        self.0.get(&Place(partition, queue)).is_some_and(|recorded| recorded.elapsed() <= REMEMBERED)
    }

    /// The queue's name was deleted.
    pub fn remove(&self, partition: Partition, queue: &Queue) {
        self.0.remove(&Place(partition, queue));
    }

    /// The queue's name was recorded.
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
        let cache = HandOvers::new(1000);
        for n in 0..20_000 {
            cache.begin(id(n), n as u16, 0);
        }
        assert!(cache.0.len() <= 2000, "at most twice the least, but {} are kept", cache.0.len());
        let lost: Vec<u64> = (19_000..20_000).filter(|n| cache.remove(&id(*n)) != Some(*n as u16)).collect();
        assert!(lost.is_empty(), "the newest thousand should be there, without: {lost:?}");
        assert_eq!(cache.remove(&id(19_999)), None, "it was taken out");
    }

    #[test]
    fn a_job_that_comes_again_is_due_at_the_end_of_its_last_hand_over() {
        let (id, cache) = (JobId::from_parts(5_000, 1, 10, false), HandOvers::new(10));
        assert_eq!(cache.begin(id, 2, 20_000_000), 15_000, "published at 5 s with a delay of 10 s");
        assert_eq!(cache.begin(id, 1, 30_000_000), 20_000, "the end of its ttr");
        cache.touch(id, 1, 40_000_000);
        assert_eq!(cache.tries(&id), Some(1), "tries left while it runs");
        cache.release(id, 50_000_000);
        assert_eq!(cache.tries(&id), None, "its timer is another one now");
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
        assert!(!recorded.has(0, &queue), "somebody may have deleted it");
    }
}
