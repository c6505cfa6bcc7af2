//! Which queues are spread over all partitions, as far as this process knows, and whose turn it is to take the next batch of
//! publishes. A queue is spread in one step at home, and for good; who does not know it asks home first, and is told. Sends
//! nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use ahash::HashMap;
use parking_lot::{Mutex, RwLock};

use super::heads::Heads;
use super::partitions::{Partition, Partitions};
use crate::clock::Millis;
use crate::name::Queue;
use crate::random;

/// What a script is told of a queue that its caller knows to be spread: at home, and elsewhere.
const SPREAD_HOME: u32 = u32::MAX - 1;
const SPREAD: u32 = u32::MAX;

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
    /// The partition that takes what is published now.
    turn: AtomicU16,
}

impl Spreading {
    pub fn new(rules: SpreadRules, partitions: Arc<Partitions>) -> Spreading {
        let first = u16::from_be_bytes(random::bytes()) % partitions.count();
        Spreading {
            rules,
            known: RwLock::default(),
            counts: Mutex::new(vec![0; partitions.count().into()]),
            turn: AtomicU16::new(first),
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
            && self.rules.wants(queue)
            && self.get(queue).is_none()
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

    /// Whose turn it is.
    pub fn turn(&self) -> Partition {
        self.turn.load(Ordering::Relaxed)
    }

    /// This partition takes a batch: it is the next one's turn that can take one.
    pub fn taken(&self, partition: Partition, can_take: impl Fn(Partition) -> bool) {
        if self.turn() == partition {
            self.pass(can_take);
        }
    }

    /// It is the next one's turn that can take a batch; if none can, the next one's.
    pub fn pass(&self, can_take: impl Fn(Partition) -> bool) {
        let (count, turn) = (self.partitions.count(), self.turn());
        let next = (1..count).map(|n| (turn + n) % count).find(|next| can_take(*next));
        self.turn.store(next.unwrap_or((turn + 1) % count), Ordering::Relaxed);
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

    #[test]
    fn each_partition_has_its_turn_unless_it_cannot_take_any() {
        let spreading = Spreading::new(SpreadRules::default(), Arc::new(Partitions::new("p", 4)));
        let mut turns = Vec::new();
        for _ in 0..6 {
            turns.push(spreading.turn());
            spreading.taken(spreading.turn(), |partition| partition != 2);
        }
        let after: Vec<Partition> = turns[1..].to_vec();
        assert!(!after.contains(&2), "{turns:?}");
        assert!([0, 1, 3].iter().all(|n| after.contains(n)), "{turns:?}");
        let turn = spreading.turn();
        spreading.taken((turn + 1) % 4, |_| true);
        assert_eq!(spreading.turn(), turn, "it was not that one's turn");
    }
}
