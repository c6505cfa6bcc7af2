//! What the writer keeps in memory of each queue: the first ready entries, and how many there are. The disk
//! holds all of them; this is a window on it. The disk is read onwards from the window's end, so that nobody
//! scans through the remains of what was deleted. Changes memory only: the steps write the same change to the disk.

use std::collections::{HashMap, VecDeque};

use bytes::Bytes;

use crate::clock::Micros;
use crate::engine::disk::store::codec::{Entry, queue_key};
use crate::job::JobId;
use crate::name::{Queue, QueueList};

/// One queue.
#[derive(Debug)]
pub struct QueueState {
    /// The prefix of the queue's keys.
    pub key: Bytes,
    /// The first ready entries with their numbers, ascending: all that are on disk below `from`.
    window: VecDeque<(u64, Entry)>,
    /// Where the disk is read next when the window has run out. Entries at or above are on disk only.
    from: u64,
    /// Whether there are any at or above `from`.
    more: bool,
    /// No entry has this number or a lower one: jobs that are given back go here, and so stand before all
    /// others and behind whatever a destroy in steps has passed.
    low: u64,
    /// Entries in the ready list, on disk and in the window.
    pub ready: u64,
    /// Entries in the dead letter.
    pub dead: u64,
    /// No dead entry has a lower number.
    pub dead_from: u64,
    /// Delayed and running jobs.
    pub timers: u64,
    /// Running jobs.
    pub running: u64,
    /// Until when it is paused, by the pool's clock; [`Micros::MAX`] until it is resumed.
    pub paused: Option<Micros>,
    /// Whether the queue waits in [`Queues::idle`].
    idle: bool,
}

impl QueueState {
    /// An empty queue. `low` is a number never used before.
    pub fn new(queue: &Queue, low: u64) -> QueueState {
        QueueState {
            key: queue_key(queue),
            window: VecDeque::new(),
            from: low + 1,
            more: false,
            low,
            ready: 0,
            dead: 0,
            dead_from: 0,
            timers: 0,
            running: 0,
            paused: None,
            idle: false,
        }
    }

    /// Adds an entry at the end. `seq` is larger than every number used so far.
    pub fn push(&mut self, seq: u64, entry: Entry, limit: usize) {
        self.ready += 1;
        if !self.more && self.window.len() < limit {
            self.window.push_back((seq, entry));
            self.from = seq + 1;
        } else {
            self.more = true;
        }
    }

    /// Adds an entry before all others. Answers its number.
    pub fn push_front(&mut self, entry: Entry, limit: usize) -> u64 {
        let seq = self.low;
        self.low -= 1;
        self.ready += 1;
        self.window.push_front((seq, entry));
        if self.window.len() > 2 * limit
            && let Some((last, _)) = self.window.pop_back()
        {
            self.from = last;
            self.more = true;
        }
        seq
    }

    /// The first entry, if the window has it.
    pub fn front(&self) -> Option<(u64, Entry)> {
        self.window.front().copied()
    }

    /// Takes the first entry out.
    pub fn pop(&mut self) -> Option<(u64, Entry)> {
        let (seq, entry) = self.window.pop_front()?;
        self.low = seq;
        self.ready -= 1;
        Some((seq, entry))
    }

    /// Where to read on, when the window is empty and the disk is not.
    pub fn refill_from(&self) -> Option<u64> {
        (self.window.is_empty() && self.more).then_some(self.from)
    }

    /// Takes what was read from the disk from [`refill_from`](QueueState::refill_from) on. `more` may be there.
    pub fn refill(&mut self, entries: Vec<(u64, Entry)>, more: bool) {
        if let Some((last, _)) = entries.last() {
            self.from = last + 1;
        }
        self.more = more;
        self.window = entries.into();
    }

    /// Says at the start how many entries the disk holds, and the number of the first.
    pub fn recover(&mut self, ready: u64, first: u64) {
        self.ready = ready;
        self.more = ready > 0;
        self.from = first;
        self.low = first - 1;
    }

    /// The entry at this number, if the window has it.
    pub fn find(&self, seq: u64) -> Option<Entry> {
        let at = self.window.binary_search_by_key(&seq, |(s, _)| *s).ok()?;
        Some(self.window[at].1)
    }

    /// Forgets an entry that was deleted on disk.
    pub fn remove(&mut self, seq: u64) {
        self.ready -= 1;
        if let Ok(at) = self.window.binary_search_by_key(&seq, |(s, _)| *s) {
            self.window.remove(at);
        }
    }

    /// Forgets all entries above `after` up to `last`, `count` in all, that were deleted on disk.
    pub fn remove_run(&mut self, after: u64, last: u64, count: u64) {
        self.ready -= count;
        let start = self.window.partition_point(|(s, _)| *s <= after);
        let end = self.window.partition_point(|(s, _)| *s <= last);
        self.window.drain(start..end);
        if self.from <= last {
            self.from = last + 1;
        }
        if start == 0 {
            self.low = self.low.max(last);
        }
    }

    /// The entry of a job, if the window has it, with its number.
    pub fn find_job(&self, id: JobId, generation: u64) -> Option<(u64, Entry)> {
        self.window.iter().find(|(_, entry)| entry.id == id && entry.generation == generation).copied()
    }

    /// No ready entry has a lower number.
    pub fn ready_from(&self) -> u64 {
        self.window.front().map_or(self.from, |(seq, _)| *seq)
    }

    /// Whether it hands out nothing now.
    pub fn is_paused(&self, now: Micros) -> bool {
        self.paused.is_some_and(|until| until > now)
    }

    /// Nothing ready, dead, delayed or running, and no pause to remember.
    pub fn is_empty(&self) -> bool {
        self.ready == 0 && self.dead == 0 && self.timers == 0 && self.paused.is_none()
    }
}

/// All queues that hold jobs, or did not long ago.
#[derive(Debug, Default)]
pub struct Queues {
    all: HashMap<Queue, QueueState>,
    /// Queues that were empty when they were put here, and since when.
    idle: VecDeque<(Micros, Queue)>,
}

impl Queues {
    /// One of them.
    pub fn get(&self, queue: &Queue) -> Option<&QueueState> {
        self.all.get(queue)
    }

    /// One of them, to change.
    pub fn get_mut(&mut self, queue: &Queue) -> Option<&mut QueueState> {
        self.all.get_mut(queue)
    }

    /// The same names, but of the strings that are kept already: saves memory while timers are loaded.
    pub fn shared(&self, queue: Queue) -> Queue {
        self.all.get_key_value(&queue).map_or(queue, |(kept, _)| kept.clone())
    }

    /// Adds one.
    pub fn insert(&mut self, queue: Queue, state: QueueState) -> &mut QueueState {
        self.all.entry(queue).or_insert(state)
    }

    /// Those of the list that are there and not paused.
    pub fn of_list(&self, list: &QueueList, now: Micros) -> Vec<Queue> {
        let hands_out = |queue: &Queue| self.all.get(queue).is_some_and(|state| !state.is_paused(now));
        list.queues().filter(hands_out).collect()
    }

    /// Their names, sorted.
    pub fn names(&self) -> Vec<Queue> {
        let mut names: Vec<Queue> = self.all.keys().cloned().collect();
        names.sort_unstable();
        names
    }

    /// All.
    pub fn iter(&self) -> impl Iterator<Item = (&Queue, &QueueState)> {
        self.all.iter()
    }

    /// Remembers that a queue is empty since `now`, if it is.
    pub fn note_idle(&mut self, queue: &Queue, now: Micros) {
        if let Some(state) = self.all.get_mut(queue)
            && state.is_empty()
            && !state.idle
        {
            state.idle = true;
            state.window = VecDeque::new();
            self.idle.push_back((now, queue.clone()));
        }
    }

    /// Checks one queue that was empty before `since`: forgets and answers it if it still is, and else answers
    /// `Some(None)`. `None` when there is none left to check.
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
        Some(self.all.remove(&queue))
    }
}
