//! This server's state for the recorded numbers of delayed and running jobs. Uses no connection.

use std::ops::AddAssign;
use std::sync::atomic::AtomicU64;

use ahash::HashMap;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::name::Queue;
use crate::random;

/// Numbers of a queue's timers, or changes of these numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timers {
    pub delayed: i64,
    pub running: i64,
}

impl Timers {
    /// Returns `count` delayed jobs.
    pub fn delayed(count: i64) -> Timers {
        Timers { delayed: count, running: 0 }
    }

    /// Returns `count` running jobs.
    pub fn running(count: i64) -> Timers {
        Timers { delayed: 0, running: count }
    }
}

impl AddAssign for Timers {
    fn add_assign(&mut self, other: Timers) {
        self.delayed += other.delayed;
        self.running += other.running;
    }
}

/// This server's state for the numbers of one partition.
#[derive(Debug)]
pub struct TimerCounts {
    /// Changes that this process has seen in replies and not recorded yet.
    pending: Mutex<HashMap<Queue, Timers>>,
    pub changed: Notify,
    /// Locked to record changes, and shared by those who read numbers, so that a reader sees each change once.
    pub recording: tokio::sync::RwLock<()>,
    /// Identifies this process as the holder of a recount's turn.
    pub server: String,
    /// When this process began to count, in milliseconds of the partition's clock; 0 before that.
    pub since: AtomicU64,
    /// When this process last saw a partition without timers, likewise.
    pub empty: AtomicU64,
    /// When this process last saw work of an lmstfy server, likewise.
    pub lmstfy: AtomicU64,
}

impl Default for TimerCounts {
    fn default() -> TimerCounts {
        TimerCounts {
            pending: Mutex::default(),
            changed: Notify::new(),
            recording: tokio::sync::RwLock::default(),
            server: random::ulid().to_string(),
            since: AtomicU64::default(),
            empty: AtomicU64::default(),
            lmstfy: AtomicU64::default(),
        }
    }
}

impl TimerCounts {
    /// Adds a change of one queue.
    pub fn add(&self, queue: &Queue, change: Timers) {
        self.add_all([(queue, change)]);
    }

    /// Adds changes.
    pub fn add_all<'a>(&self, changes: impl IntoIterator<Item = (&'a Queue, Timers)>) {
        let mut any = false;
        let mut pending = self.pending.lock();
        for (queue, change) in changes {
            any = true;
            match pending.get_mut(queue) {
                Some(sum) => *sum += change,
                None => _ = pending.insert(queue.clone(), change),
            }
        }
        drop(pending);
        if any {
            self.changed.notify_one();
        }
    }

    /// Returns the pending change of a queue.
    pub fn pending(&self, queue: &Queue) -> Timers {
        self.pending.lock().get(queue).copied().unwrap_or_default()
    }

    /// Takes all pending changes.
    pub fn take(&self) -> Vec<(Queue, Timers)> {
        let pending = std::mem::take(&mut *self.pending.lock());
        pending.into_iter().filter(|(_, change)| *change != Timers::default()).collect()
    }
}
