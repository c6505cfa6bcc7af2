//! What this process remembers to save the Redis work; forgetting any of it is harmless. Bounded.

use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::name::Queue;

/// A map that keeps the newest entries in two generations: when the young one is full the old one goes. At
/// least `limit` and at most twice as many entries are kept.
#[derive(Debug)]
pub struct Generations<K, V> {
    limit: usize,
    state: Mutex<(HashMap<K, V>, HashMap<K, V>)>,
}

impl<K: Hash + Eq, V> Generations<K, V> {
    /// An empty map.
    pub fn new(limit: usize) -> Generations<K, V> {
        Generations { limit, state: Mutex::new((HashMap::new(), HashMap::new())) }
    }

    /// Remembers; the latest word counts.
    pub fn insert(&self, key: K, value: V) {
        let mut state = self.state.lock();
        let (young, old) = &mut *state;
        if young.len() >= self.limit {
            *old = std::mem::take(young);
        }
        young.insert(key, value);
    }

    /// Takes out.
    pub fn remove(&self, key: &K) -> Option<V> {
        let mut state = self.state.lock();
        let (young, old) = &mut *state;
        let stale = old.remove(key);
        young.remove(key).or(stale)
    }
}

/// The most queues remembered as recorded.
const MOST_QUEUES: usize = 65_536;
/// How long they are remembered: afterwards each is recorded once more, in case that somebody deleted it.
const REMEMBERED: Duration = Duration::from_secs(60);

/// Queues whose names this process has recorded in the Redis lately.
#[derive(Debug)]
pub struct Recorded {
    state: Mutex<(Instant, HashSet<Queue>)>,
}

impl Default for Recorded {
    fn default() -> Recorded {
        Recorded { state: Mutex::new((Instant::now(), HashSet::new())) }
    }
}

impl Recorded {
    /// Whether the queue's name need not be recorded.
    pub fn has(&self, queue: &Queue) -> bool {
        let mut state = self.state.lock();
        if state.0.elapsed() > REMEMBERED {
            *state = (Instant::now(), HashSet::new());
        }
        state.1.contains(queue)
    }

    /// The queue's name was recorded.
    pub fn add(&self, queue: Queue) {
        let mut state = self.state.lock();
        if state.1.len() >= MOST_QUEUES {
            state.1.clear();
        }
        state.1.insert(queue);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_are_kept_and_the_rest_is_bounded() {
        let map = Generations::new(10);
        for i in 0..100 {
            map.insert(i, i);
        }
        let kept = (0..100).filter(|i| map.remove(i).is_some()).collect::<Vec<_>>();
        assert!(kept.len() <= 20, "at most twice the limit, kept {}", kept.len());
        assert!((90..100).all(|i| kept.contains(&i)), "the newest ten should be there: {kept:?}");
    }
}
