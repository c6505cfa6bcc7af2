//! Tells a dispatcher that a queue may have jobs. Whoever makes a job ready rings; only queues that somebody
//! watches are kept, so a bell holds at most one entry per watched queue, whatever the load.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::name::Queue;

/// One dispatcher's bell. Engines that it is attached to ring it.
#[derive(Debug, Default)]
pub struct Bell {
    state: Mutex<State>,
    /// How many queues are watched: lets `ring` return without the lock while nobody waits.
    watching: AtomicUsize,
    /// Wakes the dispatcher after a ring.
    rung: Notify,
    /// Wakes whoever arms wake-ups from other servers, after a queue was watched that was not before.
    armed: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// Queues with parked consumers, and how many lines of consumers watch each.
    watched: HashMap<Queue, usize>,
    /// Watched queues that rang and were not yet taken.
    ringing: HashSet<Queue>,
    /// Queues watched since the last `newly_watched`.
    fresh: Vec<Queue>,
}

impl Bell {
    /// Begins to watch. Jobs that became ready before are not announced: look after watching.
    pub fn watch(&self, queue: &Queue) {
        let mut state = self.state.lock();
        let count = state.watched.entry(queue.clone()).or_insert(0);
        *count += 1;
        if *count == 1 {
            state.fresh.push(queue.clone());
            self.watching.store(state.watched.len(), Ordering::SeqCst);
            drop(state);
            self.armed.notify_one();
        }
    }

    /// Ends one `watch` of this queue.
    pub fn unwatch(&self, queue: &Queue) {
        let mut state = self.state.lock();
        if let Some(count) = state.watched.get_mut(queue) {
            *count -= 1;
            if *count == 0 {
                state.watched.remove(queue);
                state.ringing.remove(queue);
                self.watching.store(state.watched.len(), Ordering::SeqCst);
            }
        }
    }

    /// A job of this queue may be ready. Ringing for nothing is allowed, and costs one look.
    pub fn ring(&self, queue: &Queue) {
        if self.watching.load(Ordering::SeqCst) == 0 {
            return;
        }
        let mut state = self.state.lock();
        if state.watched.contains_key(queue) && state.ringing.insert(queue.clone()) {
            drop(state);
            self.rung.notify_one();
        }
    }

    /// Any watched queue may have jobs: after a reconnect, when rings may have been lost.
    pub fn ring_all(&self) {
        let mut state = self.state.lock();
        let State { watched, ringing, .. } = &mut *state;
        ringing.extend(watched.keys().cloned());
        drop(state);
        self.rung.notify_one();
    }

    /// Waits for a ring; answers each queue that rang since the last call, once. For one caller at a time.
    pub async fn rung(&self) -> Vec<Queue> {
        loop {
            let ringing = std::mem::take(&mut self.state.lock().ringing);
            if !ringing.is_empty() {
                return ringing.into_iter().collect();
            }
            self.rung.notified().await;
        }
    }

    /// Every queue that is watched now.
    pub fn watched(&self) -> Vec<Queue> {
        self.state.lock().watched.keys().cloned().collect()
    }

    /// Whether this queue is watched now.
    pub fn watches(&self, queue: &Queue) -> bool {
        self.state.lock().watched.contains_key(queue)
    }

    /// Waits until queues are watched that were not at the last call, and answers them. One caller at a time.
    pub async fn newly_watched(&self) -> Vec<Queue> {
        loop {
            let fresh = std::mem::take(&mut self.state.lock().fresh);
            if !fresh.is_empty() {
                return fresh;
            }
            self.armed.notified().await;
        }
    }
}

/// The bells of every dispatcher that serves an engine: usually one, two while a pool is migrated to.
#[derive(Debug, Default)]
pub struct Bells {
    all: Mutex<Vec<std::sync::Arc<Bell>>>,
}

impl Bells {
    /// From now on this bell is rung too.
    pub fn attach(&self, bell: std::sync::Arc<Bell>) {
        self.all.lock().push(bell);
    }

    /// Rings each.
    pub fn ring(&self, queue: &Queue) {
        for bell in self.all.lock().iter() {
            bell.ring(queue);
        }
    }

    /// The bells.
    pub fn all(&self) -> Vec<std::sync::Arc<Bell>> {
        self.all.lock().clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::name::{Namespace, QueueName};

    fn queue(name: &str) -> Queue {
        Queue { namespace: Namespace::parse("ns").unwrap(), name: QueueName::parse(name).unwrap() } // literals
    }

    #[tokio::test]
    async fn only_watched_queues_ring_and_each_once() {
        let bell = Bell::default();
        bell.ring(&queue("a"));
        bell.watch(&queue("a"));
        bell.watch(&queue("b"));
        bell.ring(&queue("b"));
        bell.ring(&queue("b"));
        bell.ring(&queue("c"));
        assert_eq!(bell.rung().await, [queue("b")], "a rang before it was watched, c is not watched");
    }

    #[tokio::test]
    async fn a_queue_watched_twice_rings_until_both_have_left() {
        let bell = Bell::default();
        bell.watch(&queue("a"));
        bell.watch(&queue("a"));
        assert_eq!(bell.newly_watched().await, [queue("a")], "announced once");
        bell.unwatch(&queue("a"));
        bell.ring(&queue("a"));
        assert_eq!(bell.rung().await, [queue("a")], "one watcher is left");
        bell.unwatch(&queue("a"));
        bell.ring(&queue("a"));
        assert!(bell.state.lock().ringing.is_empty(), "nobody watches a any more");
    }
}
