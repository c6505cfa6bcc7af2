//! Changes of the numbers of delayed and running jobs that this process knows of and has not written down yet. Asks nobody.

use std::collections::HashMap;

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::name::Queue;
use crate::random;

/// By how much the numbers of a queue change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Change {
    pub delayed: i64,
    pub running: i64,
}

/// What is not written down yet.
#[derive(Debug)]
pub struct TimerCounts {
    pending: Mutex<HashMap<Queue, Change>>,
    /// Notified when there is something to write down.
    pub changed: Notify,
    /// Held while changes are written down, and while the numbers are read: a reader sees each change once.
    pub writing: tokio::sync::Mutex<()>,
    /// The name of this process, of which it has its turn to count.
    pub server: String,
}

impl Default for TimerCounts {
    fn default() -> TimerCounts {
        TimerCounts {
            pending: Mutex::default(),
            changed: Notify::new(),
            writing: tokio::sync::Mutex::default(),
            server: random::ulid().to_string(),
        }
    }
}

impl TimerCounts {
    /// So many more delayed jobs, or fewer.
    pub fn delayed(&self, queue: &Queue, by: i64) {
        self.add(queue, Change { delayed: by, running: 0 });
    }

    /// So many more running jobs, or fewer.
    pub fn running(&self, queue: &Queue, by: i64) {
        self.add(queue, Change { delayed: 0, running: by });
    }

    pub fn add(&self, queue: &Queue, by: Change) {
        if by == Change::default() {
            return;
        }
        let mut pending = self.pending.lock();
        let first = pending.is_empty();
        match pending.get_mut(queue) {
            Some(change) => {
                change.delayed += by.delayed;
                change.running += by.running;
            }
            None => _ = pending.insert(queue.clone(), by),
        }
        if first {
            self.changed.notify_one();
        }
    }

    /// Takes everything.
    pub fn take(&self) -> HashMap<Queue, Change> {
        std::mem::take(&mut *self.pending.lock())
    }

    /// What is not written down of a queue.
    pub fn of(&self, queue: &Queue) -> Change {
        self.pending.lock().get(queue).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::name::{Namespace, QueueName};

    #[test]
    fn changes_add_up_until_they_are_taken() {
        let queue = Queue {
            namespace: Namespace::parse("ns").expect("a name"),
            name: QueueName::parse_for_consume("q").expect("a name"),
        };
        let counts = TimerCounts::default();
        counts.delayed(&queue, 2);
        counts.running(&queue, 0);
        counts.add(&queue, Change { delayed: -1, running: 1 });
        let expected = Change { delayed: 1, running: 1 };
        assert_eq!(counts.of(&queue), expected);
        assert_eq!(counts.take().into_iter().collect::<Vec<_>>(), [(queue.clone(), expected)]);
        assert_eq!(counts.of(&queue), Change::default());
    }
}
