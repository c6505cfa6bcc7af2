//! Which queues use all partitions, hints about their ready jobs, and which partition takes the next publishes.
//! Configuration decides which queues are spread; a queue that no longer is stays *scattered* until the partitions
//! other than its home are empty. Sends nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use ahash::{HashMap, HashSet};
use parking_lot::{Mutex, RwLock};

use super::cluster::map::Partition;
use super::hints::{Hints, nth};
use crate::engine::MAX_PUBLISH;
use crate::name::Queue;
use crate::random;

/// How long, and for how many jobs, a partition receives publishes after its first batch, while other batches are in
/// flight. So a sequential publisher uses another partition for each job, and under load batches are no smaller than
/// for a queue in one partition. With a new partition for each batch, masters needed 1.5 times the processor time.
const SLICE: Duration = Duration::from_millis(3);
const SLICE_JOBS: usize = MAX_PUBLISH;

/// `namespace/queue` patterns; `*` matches any text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SpreadRules(pub Vec<String>);

impl SpreadRules {
    /// Whether the configuration spreads this queue.
    pub fn matches(&self, queue: &Queue) -> bool {
        self.0.iter().any(|pattern| {
            pattern.split_once('/').is_some_and(|(namespace, name)| {
                matches(namespace, queue.namespace.as_str()) && matches(name, queue.name.as_str())
            })
        })
    }
}

fn matches(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(mut rest) = parts.next().and_then(|first| text.strip_prefix(first)) else { return false };
    let mut parts: Vec<&str> = parts.collect();
    let Some(last) = parts.pop() else { return rest.is_empty() };
    for part in parts {
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}

/// The spread queues of a pool.
#[derive(Debug)]
pub struct Spreading {
    rules: SpreadRules,
    partitions: u16,
    /// Queues that are no longer spread, and have jobs outside their home.
    scattered: RwLock<HashSet<Queue>>,
    hints: RwLock<HashMap<Queue, Arc<Mutex<Hints>>>>,
    turn: Mutex<Turn>,
    /// Number of batches in flight that any partition could have taken.
    under_way: AtomicUsize,
}

/// The partition that currently takes publishes.
#[derive(Debug)]
struct Turn {
    partition: Partition,
    /// When it took its first batch.
    begun: Option<Instant>,
    /// Number of jobs it has taken.
    jobs: usize,
}

impl Spreading {
    pub fn new(rules: SpreadRules, partitions: u16) -> Spreading {
        let first = u16::from_be_bytes(random::bytes()) % partitions;
        Spreading {
            rules,
            partitions,
            scattered: RwLock::default(),
            hints: RwLock::default(),
            turn: Mutex::new(Turn { partition: first, begun: None, jobs: 0 }),
            under_way: AtomicUsize::new(0),
        }
    }

    /// Whether new jobs of a queue go to all partitions.
    pub fn is_spread(&self, queue: &Queue) -> bool {
        self.partitions > 1 && !self.rules.0.is_empty() && self.rules.matches(queue)
    }

    /// Whether jobs of a queue may be in any partition.
    pub fn is_everywhere(&self, queue: &Queue) -> bool {
        self.is_spread(queue) || self.partitions > 1 && self.scattered.read().contains(queue)
    }

    /// Returns the queues that are no longer spread, and have jobs outside their home.
    pub fn scattered(&self) -> HashSet<Queue> {
        self.scattered.read().clone()
    }

    /// Replaces the scattered queues. Returns the new ones.
    pub fn set_scattered(&self, queues: HashSet<Queue>) -> Vec<Queue> {
        let before = std::mem::replace(&mut *self.scattered.write(), queues.clone());
        queues.into_iter().filter(|queue| !before.contains(queue)).collect()
    }

    /// Returns the hints about the ready jobs of a queue.
    pub fn hints(&self, queue: &Queue) -> Arc<Mutex<Hints>> {
        if let Some(hints) = self.hints.read().get(queue) {
            return hints.clone();
        }
        let new = || Arc::new(Mutex::new(Hints::new(self.partitions)));
        self.hints.write().entry(queue.clone()).or_insert_with(new).clone()
    }

    /// Records that a partition may have ready jobs of this queue.
    pub fn notify(&self, queue: &Queue, partition: Partition) {
        if let Some(hints) = self.hints.read().get(queue) {
            hints.lock().notify(partition);
        }
    }

    /// Records that any partition may have ready jobs of any queue.
    pub fn notify_all(&self) {
        self.hints.read().values().for_each(|hints| hints.lock().notify_all());
    }

    /// Returns the partition that takes the next publish. When its slice ends, the next available partition takes over.
    pub fn turn(&self, can_take: impl Fn(Partition) -> bool) -> Partition {
        let mut turn = self.turn.lock();
        let alone = self.under_way.load(Ordering::Relaxed) == 0;
        if turn.begun.is_some_and(|begun| alone || begun.elapsed() >= SLICE) {
            self.pass_on(&mut turn, can_take);
        }
        turn.partition
    }

    /// Records a batch of `jobs` that is in flight until the guard is dropped.
    pub fn takes(
        &self,
        partition: Partition,
        jobs: usize,
        can_take: impl Fn(Partition) -> bool,
    ) -> UnderWay<'_> {
        let mut turn = self.turn.lock();
        if turn.partition == partition {
            turn.begun.get_or_insert_with(Instant::now);
            turn.jobs += jobs;
            if turn.jobs >= SLICE_JOBS {
                self.pass_on(&mut turn, can_take);
            }
        }
        self.under_way.fetch_add(1, Ordering::Relaxed);
        UnderWay(self)
    }

    /// Passes the turn to the next partition that can take a batch, and returns it; to the next one if none can.
    pub fn pass(&self, can_take: impl Fn(Partition) -> bool) -> Option<Partition> {
        self.pass_on(&mut self.turn.lock(), can_take)
    }

    fn pass_on(&self, turn: &mut Turn, can_take: impl Fn(Partition) -> bool) -> Option<Partition> {
        // The current partition is tried last.
        let next = (1..=self.partitions).map(|n| nth(turn.partition, n, self.partitions));
        let next = next.into_iter().find(|next| can_take(*next));
        let partition = next.unwrap_or_else(|| nth(turn.partition, 1, self.partitions));
        *turn = Turn { partition, begun: None, jobs: 0 };
        next
    }
}

/// A batch in flight.
pub struct UnderWay<'a>(&'a Spreading);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::name::{Namespace, QueueName};

    fn queue(namespace: &str, name: &str) -> Queue {
        Queue {
            namespace: Namespace::parse(namespace).expect("a name"),
            name: QueueName::parse(name).expect("a name"),
        }
    }

    #[test]
    fn a_star_matches_any_text() {
        for (pattern, text, is) in [
            ("*", "", true),
            ("*", "abc", true),
            ("abc", "abc", true),
            ("abc", "abcd", false),
            ("bulk-*", "bulk-", true),
            ("bulk-*", "bulk-x", true),
            ("bulk-*", "a-bulk-x", false),
            ("*-b", "a-b-b", true),
            ("a*b*c", "a-b-b-c", true),
            ("a*b*c", "a-c-b", false),
            ("aa*aa", "aaa", false),
        ] {
            assert_eq!(matches(pattern, text), is, "{pattern} of {text}");
        }
        let rules = SpreadRules(["mail/*", "*/bulk-*"].map(String::from).into());
        for (namespace, name, is) in
            [("mail", "out", true), ("shop", "bulk-1", true), ("shop", "orders", false)]
        {
            assert_eq!(rules.matches(&queue(namespace, name)), is, "{namespace}/{name}");
        }
    }

    #[test]
    fn a_queue_that_is_no_longer_spread_is_everywhere_until_it_is_empty() {
        let spreading = Spreading::new(SpreadRules(vec!["mail/*".into()]), 8);
        let (spread, other) = (queue("mail", "out"), queue("shop", "orders"));
        assert!(spreading.is_spread(&spread) && spreading.is_everywhere(&spread));
        assert!(!spreading.is_everywhere(&other));
        let scattered: HashSet<Queue> = [other.clone()].into_iter().collect();
        assert_eq!(spreading.set_scattered(scattered.clone()), std::slice::from_ref(&other));
        assert!(spreading.is_everywhere(&other) && !spreading.is_spread(&other), "new jobs go home");
        assert_eq!(spreading.set_scattered(scattered), [], "it was known");
        spreading.set_scattered(HashSet::default());
        assert!(!spreading.is_everywhere(&other), "the other partitions are empty");
        let single = Spreading::new(SpreadRules(vec!["*/*".into()]), 1);
        assert!(!single.is_everywhere(&spread), "there is only one partition");
    }

    /// Publishes a batch after the previous one has ended.
    fn batch(spreading: &Spreading, jobs: usize, can_take: impl Fn(Partition) -> bool) -> Partition {
        let turn = spreading.turn(&can_take);
        drop(spreading.takes(turn, jobs, &can_take));
        turn
    }

    #[test]
    fn each_partition_has_its_turn_unless_it_cannot_take_any() {
        for count in [1, 2, 4, 8, 64, 4096] {
            let spreading = Spreading::new(SpreadRules::default(), count);
            let mut turns: Vec<Partition> = (0..count).map(|_| batch(&spreading, 1, |_| true)).collect();
            turns.sort_unstable();
            assert_eq!(turns, (0..count).collect::<Vec<_>>());
        }
        let spreading = Spreading::new(SpreadRules::default(), 4);
        let can_take = |partition| partition != 2;
        spreading.pass(can_take);
        let turns: Vec<Partition> = (0..6).map(|_| batch(&spreading, 1, can_take)).collect();
        assert!(!turns.contains(&2), "{turns:?}");
        assert!([0, 1, 3].iter().all(|n| turns.contains(n)), "{turns:?}");
        let turn = spreading.turn(can_take);
        drop(spreading.takes((turn + 1) % 4, SLICE_JOBS, can_take));
        assert_eq!(spreading.turn(can_take), turn, "a batch of a partition out of turn changes nothing");
    }

    /// Guards against a publish that checks every partition once for each of them, while others wait.
    #[test]
    fn a_publish_that_finds_no_partition_has_looked_at_each_once() {
        let (spreading, looks) = (Spreading::new(SpreadRules::default(), 64), AtomicUsize::new(0));
        let before = spreading.turn(|_| true);
        let none = |_: Partition| {
            looks.fetch_add(1, Ordering::Relaxed);
            false
        };
        assert_eq!(spreading.pass(none), None);
        assert_eq!(looks.into_inner(), 64, "each is looked at once");
        assert_ne!(spreading.turn(|_| true), before, "the next publish begins with another partition");
        assert_eq!(spreading.pass(|partition| partition == before), Some(before), "it alone can");
    }

    /// Guards against tiny batches, each to a partition of its own, while many publish; and against a partition that
    /// takes all jobs of a sequential publisher.
    #[test]
    fn a_partition_takes_small_batches_for_a_moment() {
        let spreading = Spreading::new(SpreadRules::default(), 64);
        let (first, mut under_way) = (spreading.turn(|_| true), Vec::new());
        let began = Instant::now();
        while spreading.turn(|_| true) == first {
            under_way.push(spreading.takes(first, 1, |_| true));
        }
        assert!(under_way.len() == SLICE_JOBS || began.elapsed() >= SLICE, "{} batches", under_way.len());
        let next = batch(&spreading, 1, |_| true);
        std::thread::sleep(SLICE);
        assert_ne!(
            spreading.turn(|_| true),
            next,
            "its slice has ended, although other batches are in flight"
        );
    }

    /// Masters hold ranges of partitions.
    #[test]
    fn turns_go_from_one_master_to_another() {
        let spreading = Spreading::new(SpreadRules::default(), 64);
        for masters in 3..=8 {
            let turns: Vec<Partition> = (0..64).map(|_| batch(&spreading, 1, |_| true)).collect();
            let stay = turns.windows(2).filter(|two| two[0] * masters / 64 == two[1] * masters / 64).count();
            assert_eq!(stay, 0, "{masters} masters: turns that stay at one: {turns:?}");
        }
    }
}
