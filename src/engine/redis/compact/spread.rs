//! Which queues are spread over all partitions, as far as this process knows, and whose turn it is to take the next batch of
//! publishes. A queue is spread in one step at home, and for good; who does not know it asks home first, and is told. Sends
//! nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use ahash::HashMap;
use parking_lot::{Mutex, RwLock};

use super::heads::Heads;
use super::partitions::{Partition, Partitions};
use crate::clock::Millis;
use crate::engine::MAX_PUBLISH;
use crate::name::Queue;
use crate::random;

/// What a script is told of a queue that its caller knows to be spread: at home, and elsewhere.
const SPREAD_HOME: u32 = u32::MAX - 1;
const SPREAD: u32 = u32::MAX;

/// How long a partition takes what is published, from its first batch on, while others are under way; and how many jobs: the
/// batch with which it has so many is taken whole, as is what waits for it by then.
/// So who publishes one after the other publishes to a partition each, and under load batches stay as large as those of a
/// gathered queue, as do those of the consumes and acks that come behind: with a partition for each batch masters took
/// half as much again for them.
const SLICE: Duration = Duration::from_millis(3);
const SLICE_JOBS: usize = MAX_PUBLISH;

/// Which queues are to be spread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpreadRules {
    /// A queue is spread once its home has so many of its jobs, or has taken so many in ten seconds; 0: never by itself.
    pub at: u32,
    /// `namespace/queue`, in which `*` is any text: spread from the first job.
    pub spread: Vec<String>,
    /// Never spread by this server. It wins.
    pub ordered: Vec<String>,
    /// How much longer a job may have been ready than one of another partition that is handed out.
    pub ahead: Duration,
}

impl Default for SpreadRules {
    /// None is spread.
    fn default() -> SpreadRules {
        SpreadRules { at: 0, spread: Vec::new(), ordered: Vec::new(), ahead: Duration::from_secs(1) }
    }
}

impl SpreadRules {
    fn is_among(patterns: &[String], queue: &Queue) -> bool {
        patterns.iter().any(|pattern| {
            pattern.split_once('/').is_some_and(|(namespace, name)| {
                fits(namespace, queue.namespace.as_str()) && fits(name, queue.name.as_str())
            })
        })
    }

    fn wants(&self, queue: &Queue) -> bool {
        SpreadRules::is_among(&self.spread, queue) && !SpreadRules::is_among(&self.ordered, queue)
    }
}

/// Whether a text is one that a pattern means, in which `*` is any text.
fn fits(pattern: &str, text: &str) -> bool {
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

/// A queue that is spread.
#[derive(Debug)]
pub struct SpreadQueue {
    /// Since when; what was published before is at home.
    pub since: Millis,
    /// Its ready jobs, as far as this process knows.
    pub heads: Mutex<Heads>,
}

/// All of them.
#[derive(Debug)]
pub struct Spreading {
    pub rules: SpreadRules,
    partitions: Arc<Partitions>,
    known: RwLock<HashMap<Queue, Arc<SpreadQueue>>>,
    /// How many queues were known when a partition was asked last which of those that are at home there are spread.
    counts: Mutex<Vec<u64>>,
    turn: Mutex<Turn>,
    /// How many batches are under way that any partition could have taken.
    under_way: AtomicUsize,
}

/// The partition that takes what is published now.
#[derive(Debug)]
struct Turn {
    partition: Partition,
    /// When it took its first batch.
    begun: Option<Instant>,
    /// How many jobs it has taken.
    jobs: usize,
}

impl Spreading {
    pub fn new(rules: SpreadRules, partitions: Arc<Partitions>) -> Spreading {
        let first = u16::from_be_bytes(random::bytes()) % partitions.count();
        Spreading {
            rules,
            known: RwLock::default(),
            counts: Mutex::new(vec![0; partitions.count().into()]),
            turn: Mutex::new(Turn { partition: first, begun: None, jobs: 0 }),
            under_way: AtomicUsize::new(0),
            partitions,
        }
    }

    /// A queue that is known to be spread.
    pub fn get(&self, queue: &Queue) -> Option<Arc<SpreadQueue>> {
        let known = self.known.read();
        if known.is_empty() { None } else { known.get(queue).cloned() }
    }

    /// Any partition may have jobs of any queue that this process was not told of.
    pub fn told_everywhere(&self) {
        self.known.read().values().for_each(|spread| spread.heads.lock().told_everywhere());
    }

    /// Whether a queue is to be spread, and is not known to be.
    pub fn wants(&self, queue: &Queue) -> bool {
        self.partitions.count() > 1
            && !self.rules.spread.is_empty()
            && self.get(queue).is_none()
            && self.rules.wants(queue)
    }

    /// Whether its jobs are made for all partitions.
    pub fn is_for_all(&self, queue: &Queue) -> bool {
        self.get(queue).is_some() || self.wants(queue)
    }

    /// It is spread since then. Answers whether that is news.
    pub fn learn(&self, queue: &Queue, since: Millis) -> bool {
        let mut known = self.known.write();
        let is_new = !known.contains_key(queue);
        if is_new {
            let heads = Mutex::new(Heads::new(self.partitions.count()));
            known.insert(queue.clone(), Arc::new(SpreadQueue { since, heads }));
        }
        is_new
    }

    /// A partition says how many queues are spread that are at home there. Whether it is to be asked which.
    pub fn is_news(&self, partition: Partition, count: u64) -> bool {
        self.counts.lock()[usize::from(partition)] != count
    }

    /// It was asked when there were so many.
    pub fn was_asked(&self, partition: Partition, count: u64) {
        self.counts.lock()[usize::from(partition)] = count;
    }

    /// What a script that publishes to this partition is told of a queue.
    pub fn mode(&self, queue: &Queue, partition: Partition) -> u32 {
        let home = self.partitions.home(queue);
        match self.get(queue) {
            Some(_) if home == partition => SPREAD_HOME,
            Some(_) => SPREAD,
            None if self.partitions.count() == 1 || self.rules.at == 0 => 0,
            None if SpreadRules::is_among(&self.rules.ordered, queue) => 0,
            None => self.rules.at.min(SPREAD_HOME - 1),
        }
    }

    /// Whose turn it is. When its slice is over, the next one's that can take a batch.
    pub fn turn(&self, can_take: impl Fn(Partition) -> bool) -> Partition {
        let mut turn = self.turn.lock();
        let alone = self.under_way.load(Ordering::Relaxed) == 0;
        if turn.begun.is_some_and(|begun| alone || begun.elapsed() >= SLICE) {
            self.pass_on(&mut turn, can_take);
        }
        turn.partition
    }

    /// This partition takes a batch of so many jobs, which is under way until the answer is dropped.
    pub fn taken(
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

    /// It is the next one's turn that can take a batch, which is answered; if none can, the next one's.
    pub fn pass(&self, can_take: impl Fn(Partition) -> bool) -> Option<Partition> {
        self.pass_on(&mut self.turn.lock(), can_take)
    }

    fn pass_on(&self, turn: &mut Turn, can_take: impl Fn(Partition) -> bool) -> Option<Partition> {
        let count = u32::from(self.partitions.count());
        // An odd step comes by every one of a power of two, and this one is to another master each time.
        let step = (count * 3 / 8) | 1;
        let nth = |n: u32| ((u32::from(turn.partition) + n * step) % count) as Partition;
        // Last of all the one whose turn it was.
        let next = (1..=count).map(nth).find(|next| can_take(*next));
        *turn = Turn { partition: next.unwrap_or_else(|| nth(1)), begun: None, jobs: 0 };
        next
    }
}

/// A batch.
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

    #[test]
    fn a_star_is_any_text() {
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
            assert_eq!(fits(pattern, text), is, "{pattern} of {text}");
        }
    }

    #[test]
    fn ordered_wins() {
        let text = |all: &[&str]| all.iter().map(|text| (*text).to_owned()).collect();
        let rules = SpreadRules {
            at: 9,
            spread: text(&["mail/*", "*/bulk-*"]),
            ordered: text(&["mail/in"]),
            ..SpreadRules::default()
        };
        let queue = |namespace, name| Queue {
            namespace: Namespace::parse(namespace).expect("a name"),
            name: QueueName::parse(name).expect("a name"),
        };
        let spreading = Spreading::new(rules, Arc::new(Partitions::new("p", 8)));
        for (namespace, name, is) in [
            ("mail", "out", true),
            ("mail", "in", false),
            ("shop", "bulk-1", true),
            ("shop", "orders", false),
        ] {
            assert_eq!(spreading.wants(&queue(namespace, name)), is, "{namespace}/{name}");
        }
        let home = Partitions::new("p", 8).home(&queue("mail", "in"));
        assert_eq!(spreading.mode(&queue("mail", "in"), home), 0, "never by itself");
        assert_eq!(spreading.mode(&queue("shop", "orders"), home), 9);
    }

    /// Publishes a batch, after the one before it.
    fn batch(spreading: &Spreading, jobs: usize, can_take: impl Fn(Partition) -> bool) -> Partition {
        let turn = spreading.turn(&can_take);
        drop(spreading.taken(turn, jobs, &can_take));
        turn
    }

    #[test]
    fn each_partition_has_its_turn_unless_it_cannot_take_any() {
        for count in [1, 2, 4, 8, 64, 4096] {
            let spreading = Spreading::new(SpreadRules::default(), Arc::new(Partitions::new("p", count)));
            let mut turns: Vec<Partition> = (0..count).map(|_| batch(&spreading, 1, |_| true)).collect();
            turns.sort_unstable();
            assert_eq!(turns, (0..count).collect::<Vec<_>>());
        }
        let spreading = Spreading::new(SpreadRules::default(), Arc::new(Partitions::new("p", 4)));
        let can_take = |partition| partition != 2;
        spreading.pass(can_take);
        let turns: Vec<Partition> = (0..6).map(|_| batch(&spreading, 1, can_take)).collect();
        assert!(!turns.contains(&2), "{turns:?}");
        assert!([0, 1, 3].iter().all(|n| turns.contains(n)), "{turns:?}");
        let turn = spreading.turn(can_take);
        drop(spreading.taken((turn + 1) % 4, SLICE_JOBS, can_take));
        assert_eq!(spreading.turn(can_take), turn, "it was not that one's turn");
    }

    /// Guards against a publish that looks at every partition once for each of them, while the others wait for their turn.
    #[test]
    fn who_finds_none_that_can_take_a_batch_is_told_so_after_one_look_at_each() {
        let spreading = Spreading::new(SpreadRules::default(), Arc::new(Partitions::new("p", 64)));
        let (before, looks) = (spreading.turn(|_| true), AtomicUsize::new(0));
        let none = |_: Partition| {
            looks.fetch_add(1, Ordering::Relaxed);
            false
        };
        assert_eq!(spreading.pass(none), None);
        assert_eq!(looks.into_inner(), 64, "each is looked at once");
        assert_ne!(spreading.turn(|_| true), before, "the next publish begins with another one");
        for _ in 0..2 {
            assert_eq!(
                spreading.pass(|partition| partition == before),
                Some(before),
                "it alone can, and goes on"
            );
        }
    }

    /// Guards against batches of a job or two, each to a partition of its own, while many publish; and against a partition
    /// that takes all of who publishes one after the other.
    #[test]
    fn a_partition_takes_small_batches_for_a_moment() {
        let spreading = Spreading::new(SpreadRules::default(), Arc::new(Partitions::new("p", 64)));
        let (first, mut under_way) = (spreading.turn(|_| true), Vec::new());
        let began = Instant::now();
        while spreading.turn(|_| true) == first {
            under_way.push(spreading.taken(first, 1, |_| true));
        }
        assert!(under_way.len() == SLICE_JOBS || began.elapsed() >= SLICE, "{} batches", under_way.len());
        let next = batch(&spreading, 1, |_| true);
        std::thread::sleep(SLICE);
        assert_ne!(spreading.turn(|_| true), next, "its slice is over, although others are under way");
    }

    /// Partitions lie on the masters in ranges.
    #[test]
    fn turns_go_from_one_master_to_another() {
        let spreading = Spreading::new(SpreadRules::default(), Arc::new(Partitions::new("p", 64)));
        for masters in 3..=8 {
            let turns: Vec<Partition> = (0..64).map(|_| batch(&spreading, 1, |_| true)).collect();
            let stay = turns.windows(2).filter(|two| two[0] * masters / 64 == two[1] * masters / 64).count();
            assert_eq!(stay, 0, "{masters} masters: turns that stay at one: {turns:?}");
        }
    }
}
