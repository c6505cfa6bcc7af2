//! Memory of timers: the earliest delayed jobs, and all running ones, which an ack must find by job. Changes memory
//! only: the steps write the same change to the disk.

use std::collections::BTreeMap;

use ahash::HashMap;

use crate::engine::disk::codec::{Entry, TimerKey};
use crate::job::JobRef;
use crate::name::Queue;

/// Timers of both kinds.
#[derive(Debug, Default)]
pub struct Timers {
    /// The delayed jobs below the horizon: all of them that are on disk.
    delayed: BTreeMap<TimerKey, (Queue, Entry)>,
    /// Position of the next read from the disk. Delayed jobs from here on are on disk only; `None` if all are in
    /// memory.
    horizon: Option<TimerKey>,
    /// All delayed jobs, on disk and in memory.
    delayed_count: u64,
    running: BTreeMap<TimerKey, (Queue, Entry)>,
    by_job: HashMap<JobRef, TimerKey>,
}

/// A due timer.
#[derive(Debug)]
pub enum Due {
    Delayed(TimerKey, Queue, Entry),
    Running(TimerKey, Queue, Entry),
}

impl Timers {
    /// Returns the number of delayed and running jobs.
    pub fn len(&self) -> u64 {
        self.delayed_count + self.running.len() as u64
    }

    /// Returns the number of delayed jobs.
    pub fn delayed(&self) -> u64 {
        self.delayed_count
    }

    /// Adds a delayed job.
    pub fn delay(&mut self, key: TimerKey, queue: Queue, entry: Entry, limit: usize) {
        self.delayed_count += 1;
        if self.horizon.is_some_and(|horizon| key >= horizon) {
            return;
        }
        self.delayed.insert(key, (queue, entry));
        if self.delayed.len() > limit {
            // The latest one is on disk only from now on.
            self.horizon = self.delayed.pop_last().map(|(key, _)| key).or(self.horizon);
        }
    }

    /// Removes a delayed job. Returns `false` if it is no longer delayed: the pump takes jobs in order and from
    /// memory only, so a job below the horizon is in memory or gone, and a job above it is still delayed.
    pub fn undelay(&mut self, key: TimerKey) -> bool {
        let was = match self.horizon {
            Some(horizon) if key >= horizon => true,
            _ => self.delayed.remove(&key).is_some(),
        };
        self.delayed_count -= u64::from(was);
        was
    }

    /// Whether a job is still delayed as its record says: see [`undelay`](Timers::undelay).
    pub fn is_delayed(&self, key: TimerKey) -> bool {
        self.horizon.is_some_and(|horizon| key >= horizon) || self.delayed.contains_key(&key)
    }

    /// Returns a lower bound on the timers of delayed jobs; `None` without delayed jobs.
    pub fn delayed_from(&self) -> Option<TimerKey> {
        self.delayed.first_key_value().map(|(key, _)| *key).or(self.horizon)
    }

    /// Returns the earliest timer of a running job.
    pub fn running_from(&self) -> Option<TimerKey> {
        self.running.first_key_value().map(|(key, _)| *key)
    }

    /// Returns the position of the next read, if memory has no delayed jobs and the disk has more.
    pub fn refill_from(&self) -> Option<TimerKey> {
        if self.delayed.is_empty() { self.horizon } else { None }
    }

    /// Adds the jobs read from [`refill_from`](Timers::refill_from) on, and sets the next position.
    pub fn refill(&mut self, read: Vec<(TimerKey, Queue, Entry)>, horizon: Option<TimerKey>) {
        self.delayed = read.into_iter().map(|(key, queue, entry)| (key, (queue, entry))).collect();
        self.horizon = horizon;
    }

    /// Sets the number of delayed jobs on disk, at the start. The first must be read at once.
    pub fn recover(&mut self, delayed: u64) {
        self.delayed_count = delayed;
        self.horizon = (delayed > 0).then_some((0, 0));
    }

    /// Adds a running job.
    pub fn start(&mut self, key: TimerKey, queue: Queue, entry: Entry) {
        self.by_job.insert(JobRef { queue: queue.clone(), id: entry.id }, key);
        self.running.insert(key, (queue, entry));
    }

    /// Returns the timer of a job's current delivery.
    pub fn running(&self, job: &JobRef) -> Option<TimerKey> {
        self.by_job.get(job).copied()
    }

    /// Returns the entry of a running job.
    pub fn running_entry(&self, key: TimerKey) -> Option<Entry> {
        self.running.get(&key).map(|(_, entry)| *entry)
    }

    /// Removes a running job.
    pub fn stop(&mut self, job: &JobRef) -> Option<(TimerKey, Entry)> {
        let key = self.by_job.remove(job)?;
        self.running.remove(&key).map(|(_, entry)| (key, entry))
    }

    /// Returns the earliest timer. Valid only if there is nothing to [read](Timers::refill_from).
    pub fn next(&self) -> Option<TimerKey> {
        let delayed = self.delayed.first_key_value().map(|(key, _)| *key);
        let running = self.running.first_key_value().map(|(key, _)| *key);
        delayed.into_iter().chain(running).min()
    }

    /// Removes and returns the earliest timer.
    pub fn pop(&mut self) -> Option<Due> {
        let key = self.next()?;
        if let Some((queue, entry)) = self.delayed.remove(&key) {
            self.delayed_count -= 1;
            return Some(Due::Delayed(key, queue, entry));
        }
        let (queue, entry) = self.running.remove(&key)?;
        let job = JobRef { queue, id: entry.id };
        self.by_job.remove(&job);
        Some(Due::Running(key, job.queue, entry))
    }
}
