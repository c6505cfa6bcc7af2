//! The paused queues of a dispatcher, as plain data. [`pausing`](super::pausing) changes them.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::request::{Wanted, Weights};
use crate::clock::Millis;
use crate::name::{Queue, QueueList};
use parking_lot::RwLock;

/// The pause of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pause {
    /// When it ends, by the pool's clock. `None`: when it is resumed.
    pub until: Option<Millis>,
}

impl Pause {
    /// Returns whether it has not ended by `now`.
    pub fn lasts(&self, now: Millis) -> bool {
        self.until.is_none_or(|until| until > now)
    }
}

/// The paused queues. One whose pause has ended keeps its entry until it is resumed.
#[derive(Debug, Default)]
pub struct PausedQueues {
    /// Number of entries. While it is 0, readers do not take the lock.
    count: AtomicUsize,
    pub by_queue: RwLock<BTreeMap<Queue, Pause>>,
}

impl PausedQueues {
    pub fn set(&self, queue: &Queue, pause: Option<Pause>) -> Option<Pause> {
        let mut by_queue = self.by_queue.write();
        let before = match pause {
            Some(pause) => by_queue.insert(queue.clone(), pause),
            None => by_queue.remove(queue),
        };
        self.count.store(by_queue.len(), Ordering::SeqCst);
        before
    }

    /// Removes the pauses that have ended. Returns their queues, and when the next pause ends.
    pub fn end(&self, now: Millis) -> (Vec<Queue>, Option<Millis>) {
        let mut by_queue = self.by_queue.write();
        let ended = by_queue.extract_if(.., |_, pause| !pause.lasts(now)).map(|(queue, _)| queue).collect();
        self.count.store(by_queue.len(), Ordering::SeqCst);
        (ended, by_queue.values().filter_map(|pause| pause.until).min())
    }

    pub fn is_empty(&self) -> bool {
        self.count.load(Ordering::SeqCst) == 0
    }

    pub fn get(&self, queue: &Queue, now: Millis) -> Option<Pause> {
        self.by_queue.read().get(queue).filter(|pause| pause.lasts(now)).copied()
    }

    /// Returns a list without its paused queues, or `None` if no queue is left.
    pub fn without(&self, wanted: &Wanted, now: Millis) -> Option<Wanted> {
        let is_paused: Vec<bool> = {
            let by_queue = self.by_queue.read();
            let is_paused = |queue| by_queue.get(&queue).is_some_and(|pause| pause.lasts(now));
            wanted.queues().map(is_paused).collect()
        };
        if !is_paused.contains(&true) {
            return Some(wanted.clone());
        }
        let open = || (0..is_paused.len()).filter(|n| !is_paused[*n]);
        let names = open().map(|n| wanted.queues.names()[n].clone());
        let queues = QueueList::new(wanted.queues.namespace().clone(), names)?;
        let weights = wanted.weights.as_ref();
        let weights = weights.map(|all| Weights::new(open().map(|n| all.as_slice()[n]).collect()));
        Some(Wanted::new(queues, weights))
    }
}

/// The part of a list that a fetch reads: the queues that are not paused.
#[derive(Debug)]
pub enum Open {
    All,
    /// These queues; the rest is paused.
    Some(Wanted),
    /// All of it is paused.
    None,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::name::{Namespace, QueueName};

    /// Guards against ending a pause that has replaced an ended one.
    #[test]
    fn only_pauses_that_have_ended_are_removed() {
        let queue = |name| Queue {
            namespace: Namespace::parse("ns").unwrap(),
            name: QueueName::parse(name).unwrap(),
        };
        let paused = PausedQueues::default();
        for (name, until) in [("a", Some(10)), ("b", Some(20)), ("c", None), ("d", Some(10))] {
            paused.set(&queue(name), Some(Pause { until }));
        }
        paused.set(&queue("d"), Some(Pause { until: Some(30) }));
        assert_eq!(paused.end(10), (vec![queue("a")], Some(20)));
        assert_eq!(paused.end(30), (vec![queue("b"), queue("d")], None));
        assert_eq!(paused.get(&queue("c"), u64::MAX), Some(Pause { until: None }));
    }
}
