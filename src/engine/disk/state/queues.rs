//! Queues in memory: which there are, which of them lists show, and when each is swept. Changes memory only: the steps
//! write the same change to the disk.

use std::collections::{BTreeSet, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

use ahash::HashMap;
use bytes::Bytes;

use super::names::Names;
use super::queue::{EntriesInWindows, NEVER, QueueState, Sweeps, TAIL_AFTER};
use crate::clock::Micros;
use crate::name::{Namespace, Queue, QueueList};

/// Entries that are read at once with any budget, since they are delivered soon.
const LEAST_READ: usize = 128;
/// A queue to sweep.
#[derive(Clone, Debug)]
pub struct ToSweep {
    pub queue: Queue,
    pub key: Bytes,
    /// The last number that need not be read.
    pub after: u64,
}

/// Schedules the sweep of a queue, unless an earlier one is scheduled.
fn list(sweeps: &mut BTreeSet<(Micros, Queue)>, queue: &Queue, state: &mut QueueState, at: Micros) {
    if at < state.sweep.listed {
        sweeps.remove(&(state.sweep.listed, queue.clone()));
        state.sweep.listed = at;
        sweeps.insert((at, queue.clone()));
    }
}

/// All queues with jobs, and recently emptied ones.
#[derive(Debug)]
pub struct Queues {
    all: HashMap<Queue, QueueState>,
    /// Names of the queues that lists show.
    names: Names,
    held: Arc<EntriesInWindows>,
    /// When to sweep which queues, each at most once.
    sweeps: BTreeSet<(Micros, Queue)>,
    /// Queues that were empty when added, and since when.
    idle: VecDeque<(Micros, Queue)>,
}

impl Queues {
    /// Creates an empty collection. All windows together may hold `budget` entries, and a few more per queue.
    pub fn new(budget: usize) -> Queues {
        let held = Arc::new(EntriesInWindows::new(budget));
        Queues {
            all: HashMap::default(),
            names: Names::default(),
            held,
            sweeps: BTreeSet::new(),
            idle: VecDeque::new(),
        }
    }

    /// Returns the state of a queue that is not in the collection yet. `low` is a number never used before.
    pub fn new_state(&self, queue: &Queue, low: u64) -> QueueState {
        QueueState::new(queue, low, self.held.clone())
    }

    /// Returns how many entries a window may be refilled with, at most `limit`.
    pub fn refill_size(&self, limit: usize) -> usize {
        self.held.left().clamp(LEAST_READ.min(limit), limit)
    }

    /// Returns the number of entries in all windows.
    pub fn held(&self) -> usize {
        self.held.len()
    }

    /// Schedules a sweep at the expiry of a ready job; 0 if there may be stale entries.
    pub fn sweep_at(&mut self, queue: &Queue, at: Micros) {
        let Some(state) = self.all.get_mut(queue) else { return };
        state.sweep.expiring |= at > 0;
        state.sweep.at = state.sweep.at.min(at);
        list(&mut self.sweeps, queue, state, at);
    }

    /// Schedules a sweep for a job that became ready by `now`.
    pub fn pushed(&mut self, queue: &Queue, now: Micros) {
        if let Some(state) = self.all.get_mut(queue)
            && !state.is_looked_at(now)
        {
            list(&mut self.sweeps, queue, state, now.saturating_add(TAIL_AFTER));
        }
    }

    /// Restores the sweep state of the last shutdown.
    pub fn recover_sweep(&mut self, queue: &Queue, (at, swept, expiring): (Micros, u64, bool), now: Micros) {
        if let Some(state) = self.all.get_mut(queue) {
            state.sweep = Sweeps { at, swept, expiring, listed: NEVER };
            list(&mut self.sweeps, queue, state, at);
        }
        self.pushed(queue, now);
    }

    /// Removes and returns a queue whose sweep is due.
    pub fn take_sweep(&mut self, now: Micros) -> Option<ToSweep> {
        if self.sweeps.first()?.0 > now {
            return None;
        }
        let (_, queue) = self.sweeps.pop_first()?;
        let state = self.all.get_mut(&queue)?;
        state.sweep.listed = NEVER;
        let whole = state.sweep.at <= now;
        let after = if whole { 0 } else { state.sweep.swept };
        if whole {
            state.sweep.at = NEVER;
        } else {
            // The sweep of the whole list comes later.
            let at = state.sweep.at;
            list(&mut self.sweeps, &queue, state, at);
        }
        Some(ToSweep { key: state.key.clone(), queue, after })
    }

    /// Records that the entries up to number `last` were swept, and that the first of their jobs expires at `next`.
    pub fn swept(&mut self, queue: &Queue, last: u64, next: Micros) {
        let Some(state) = self.all.get_mut(queue) else { return };
        state.sweep.swept = last;
        state.sweep.at = state.sweep.at.min(next);
        list(&mut self.sweeps, queue, state, next);
    }

    /// Returns up to `limit` visible queues from `from` on, sorted.
    pub fn page(&self, from: Bound<&Queue>, limit: usize) -> impl Iterator<Item = (&Queue, &QueueState)> {
        let names = self.names.from(from).take(limit);
        names.filter_map(|queue| Some((queue, self.all.get(queue)?)))
    }

    /// Returns a queue.
    pub fn get(&self, queue: &Queue) -> Option<&QueueState> {
        self.all.get(queue)
    }

    /// Returns a queue, to be changed.
    pub fn get_mut(&mut self, queue: &Queue) -> Option<&mut QueueState> {
        self.all.get_mut(queue)
    }

    /// Returns an equal name that shares the stored strings, which saves memory while timers are loaded.
    pub fn shared(&self, queue: Queue) -> Queue {
        self.all.get_key_value(&queue).map_or(queue, |(kept, _)| kept.clone())
    }

    /// Hides an existing queue from lists.
    pub fn unlist(&mut self, queue: &Queue) {
        if let Some(state) = self.all.get_mut(queue) {
            state.listed = false;
        }
        self.names.remove(queue);
    }

    /// Shows it in lists again.
    pub fn relist(&mut self, queue: &Queue) {
        if let Some(state) = self.all.get_mut(queue) {
            state.listed = true;
            self.names.add(queue);
        }
    }

    /// Adds a queue.
    pub fn insert(&mut self, queue: Queue, state: QueueState) -> &mut QueueState {
        self.names.add(&queue);
        self.all.entry(queue).or_insert(state)
    }

    /// Returns the number of visible queues of the namespace.
    pub fn of_namespace(&self, namespace: &Namespace) -> u64 {
        self.names.of_namespace(namespace)
    }

    /// Returns the queues of the list that exist.
    pub fn of_list(&self, list: &QueueList) -> Vec<Queue> {
        list.queues().filter(|queue| self.all.contains_key(queue)).collect()
    }

    /// Returns all visible names, sorted.
    pub fn names(&self) -> Vec<Queue> {
        self.names.from(Bound::Unbounded).cloned().collect()
    }

    /// Returns all queues.
    pub fn iter(&self) -> impl Iterator<Item = (&Queue, &QueueState)> {
        self.all.iter()
    }

    /// Records that a queue is empty since `now`, if it is.
    pub fn note_idle(&mut self, queue: &Queue, now: Micros) {
        if let Some(state) = self.all.get_mut(queue)
            && state.is_empty()
            && !state.idle
        {
            state.idle = true;
            state.free_window();
            self.idle.push_back((now, queue.clone()));
        }
    }

    /// Checks one queue that was empty before `since`: removes and returns it if it is still empty, otherwise returns
    /// `Some(None)`. `None` if none is left to check.
    pub fn forget(&mut self, since: Micros) -> Option<Option<QueueState>> {
        if self.idle.front()?.0 > since {
            return None;
        }
        let (_, queue) = self.idle.pop_front()?;
        let state = self.all.get_mut(&queue)?;
        state.idle = false;
        if !state.is_empty() {
            return Some(None);
        }
        self.sweeps.remove(&(state.sweep.listed, queue.clone()));
        self.names.remove(&queue);
        Some(self.all.remove(&queue))
    }
}
