//! What the writer keeps in memory of each queue: the first ready entries, and how many there are. The disk
//! holds all of them; this is a window on it. The disk is read onwards from the window's end, so that nobody
//! scans through the remains of what was deleted. Changes memory only: the steps write the same change to the disk.

use std::collections::{BTreeSet, VecDeque};
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use ahash::HashMap;
use bytes::Bytes;

use super::names::Names;
use crate::clock::{Micros, Millis};
use crate::engine::disk::codec::{Entry, queue_key};
use crate::job::JobId;
use crate::name::{Namespace, Queue, QueueList};

/// So many ready entries of a queue are kept in memory whatever the budget: a queue that is short is never read from the
/// disk.
const LEAST: usize = 16;
/// So many are read at a time whatever the budget: they are handed out soon.
const LEAST_READ: usize = 128;
/// There is nothing to sweep.
const NEVER: Micros = Micros::MAX;
/// Jobs that became ready are looked at so long afterwards, in microseconds, if they are still there: only their records
/// say when they expire.
const TAIL_AFTER: Micros = 60_000_000;

/// A ready entry: its number, and since when it is ready.
pub type Waiting = (u64, Entry, Millis);

/// How many entries the windows of all queues hold together. Only the writer changes it.
#[derive(Debug)]
struct EntriesInWindows {
    entries: AtomicUsize,
    budget: usize,
}

impl EntriesInWindows {
    fn left(&self) -> usize {
        self.budget.saturating_sub(self.entries.load(Ordering::Relaxed))
    }
}

/// What is known of one queue for the sweep.
#[derive(Clone, Copy, Debug)]
pub struct Sweeps {
    /// No ready job up to `swept` expires earlier; 0 when an entry may stand for nothing.
    pub at: Micros,
    /// Entries with larger numbers were not looked at.
    pub swept: u64,
    /// Whether a job with a ttl was ever stored here.
    pub expiring: bool,
    /// When the queue stands in [`Queues::sweeps`].
    listed: Micros,
}

impl Default for Sweeps {
    fn default() -> Sweeps {
        Sweeps { at: NEVER, swept: 0, expiring: false, listed: NEVER }
    }
}

/// A queue that the sweep should look at.
#[derive(Clone, Debug)]
pub struct ToSweep {
    pub queue: Queue,
    pub key: Bytes,
    /// The last number that need not be read.
    pub after: u64,
}

/// One queue.
#[derive(Debug)]
pub struct QueueState {
    /// The prefix of the queue's keys.
    pub key: Bytes,
    /// The first ready entries with their numbers, ascending: all that are on disk below `from`.
    window: VecDeque<Waiting>,
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
    /// Whether the queue stands in [`WriterState::dead_ends`](super::WriterState::dead_ends).
    pub ages: bool,
    /// Delayed and running jobs.
    pub timers: u64,
    /// Running jobs.
    pub running: u64,
    /// Until when it is paused, by the pool's clock; [`Micros::MAX`] until it is resumed.
    pub paused: Option<Micros>,
    /// Whether the queue waits in [`Queues::idle`].
    idle: bool,
    /// Whether lists show it. One that was forgotten while jobs of it run is not shown.
    pub listed: bool,
    sweep: Sweeps,
    held: Arc<EntriesInWindows>,
    /// Entries of the window that are counted in `held`.
    counted: usize,
}

impl Drop for QueueState {
    fn drop(&mut self) {
        self.held.entries.fetch_sub(self.counted, Ordering::Relaxed);
    }
}

impl QueueState {
    fn new(queue: &Queue, low: u64, held: Arc<EntriesInWindows>) -> QueueState {
        QueueState {
            key: queue_key(queue),
            window: VecDeque::new(),
            from: low + 1,
            more: false,
            low,
            ready: 0,
            dead: 0,
            dead_from: 0,
            ages: false,
            timers: 0,
            running: 0,
            paused: None,
            idle: false,
            listed: true,
            sweep: Sweeps::default(),
            held,
            counted: 0,
        }
    }

    /// After each change of the window.
    fn count(&mut self) {
        let entries = &self.held.entries;
        let now = self.window.len();
        if now >= self.counted {
            entries.fetch_add(now - self.counted, Ordering::Relaxed);
        } else {
            entries.fetch_sub(self.counted - now, Ordering::Relaxed);
        }
        self.counted = now;
    }

    /// Adds an entry at the end. `seq` is larger than every number used so far.
    pub fn push(&mut self, (seq, entry, since): Waiting, limit: usize) {
        self.ready += 1;
        let has_room = self.window.len() < LEAST || self.held.left() > 0;
        if !self.more && self.window.len() < limit && has_room {
            self.window.push_back((seq, entry, since));
            self.from = seq + 1;
            self.count();
        } else {
            self.more = true;
        }
    }

    /// Adds an entry before all others. Answers its number.
    pub fn push_front(&mut self, entry: Entry, since: Millis, limit: usize) -> u64 {
        let seq = self.low;
        self.low -= 1;
        self.ready += 1;
        self.window.push_front((seq, entry, since));
        let too_many = self.window.len() > 2 * limit || (self.window.len() > LEAST && self.held.left() == 0);
        if too_many && let Some((last, ..)) = self.window.pop_back() {
            self.from = last;
            self.more = true;
        }
        self.count();
        seq
    }

    /// The first entry, if the window has it.
    pub fn front(&self) -> Option<Waiting> {
        self.window.front().copied()
    }

    /// Takes the first entry out.
    pub fn pop(&mut self) -> Option<Waiting> {
        let waiting = self.window.pop_front()?;
        self.low = waiting.0;
        self.ready -= 1;
        if self.window.is_empty() && self.window.capacity() > 2 * LEAST {
            self.window = VecDeque::new();
        }
        self.count();
        Some(waiting)
    }

    /// Where to read on, when the window is empty and the disk is not.
    pub fn refill_from(&self) -> Option<u64> {
        (self.window.is_empty() && self.more).then_some(self.from)
    }

    /// Takes what was read from the disk from [`refill_from`](QueueState::refill_from) on. `more` may be there.
    pub fn refill(&mut self, entries: Vec<Waiting>, more: bool) {
        if let Some((last, ..)) = entries.last() {
            self.from = last + 1;
        }
        self.more = more;
        self.window = entries.into();
        self.count();
    }

    /// Whether the sweep knows already of a ready job that expires at `at` or earlier.
    pub fn is_swept_by(&self, at: Micros) -> bool {
        self.sweep.expiring && self.sweep.at <= at
    }

    /// Whether the sweep need not be told of a job that became ready by `now`.
    pub fn is_looked_at(&self, now: Micros) -> bool {
        !self.sweep.expiring || self.sweep.listed <= now.saturating_add(TAIL_AFTER)
    }

    /// What is known for the sweep.
    pub fn sweeps(&self) -> Sweeps {
        self.sweep
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
        let at = self.window.binary_search_by_key(&seq, |(s, ..)| *s).ok()?;
        Some(self.window[at].1)
    }

    /// Forgets an entry that was deleted on disk.
    pub fn remove(&mut self, seq: u64) {
        self.ready -= 1;
        if let Ok(at) = self.window.binary_search_by_key(&seq, |(s, ..)| *s) {
            self.window.remove(at);
        }
        self.count();
    }

    /// Forgets all entries above `after` up to `last`, `count` in all, that were deleted on disk.
    pub fn remove_run(&mut self, after: u64, last: u64, count: u64) {
        self.ready -= count;
        let start = self.window.partition_point(|(s, ..)| *s <= after);
        let end = self.window.partition_point(|(s, ..)| *s <= last);
        self.window.drain(start..end);
        self.count();
        if self.from <= last {
            self.from = last + 1;
        }
        if start == 0 {
            self.low = self.low.max(last);
        }
    }

    /// The entry of a job, if the window has it, with its number.
    pub fn find_job(&self, id: JobId, generation: u64) -> Option<(u64, Entry)> {
        let of = self.window.iter().find(|(_, entry, _)| entry.id == id && entry.generation == generation);
        of.map(|(seq, entry, _)| (*seq, *entry))
    }

    /// No ready entry has a lower number.
    pub fn ready_from(&self) -> u64 {
        self.window.front().map_or(self.from, |(seq, ..)| *seq)
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

/// Notes that a queue is to be swept, unless it is to be swept earlier.
fn list(sweeps: &mut BTreeSet<(Micros, Queue)>, queue: &Queue, state: &mut QueueState, at: Micros) {
    if at < state.sweep.listed {
        sweeps.remove(&(state.sweep.listed, queue.clone()));
        state.sweep.listed = at;
        sweeps.insert((at, queue.clone()));
    }
}

/// All queues that hold jobs, or did not long ago.
#[derive(Debug)]
pub struct Queues {
    all: HashMap<Queue, QueueState>,
    /// Those of them that lists show.
    names: Names,
    held: Arc<EntriesInWindows>,
    /// Those of them to be swept, and when: each once.
    sweeps: BTreeSet<(Micros, Queue)>,
    /// Queues that were empty when they were put here, and since when.
    idle: VecDeque<(Micros, Queue)>,
}

impl Queues {
    /// None yet. Their windows may hold `budget` entries together, and a few of each queue beside them.
    pub fn new(budget: usize) -> Queues {
        let held = Arc::new(EntriesInWindows { entries: AtomicUsize::new(0), budget });
        Queues {
            all: HashMap::default(),
            names: Names::default(),
            held,
            sweeps: BTreeSet::new(),
            idle: VecDeque::new(),
        }
    }

    /// An empty queue, which is not one of them yet. `low` is a number never used before.
    pub fn new_state(&self, queue: &Queue, low: u64) -> QueueState {
        QueueState::new(queue, low, self.held.clone())
    }

    /// How many entries a window may be refilled with, `limit` at most.
    pub fn refill_size(&self, limit: usize) -> usize {
        self.held.left().clamp(LEAST_READ.min(limit), limit)
    }

    /// How many entries all windows hold.
    pub fn held(&self) -> usize {
        self.held.entries.load(Ordering::Relaxed)
    }

    /// A ready job of the queue expires at this time, or an entry may stand for nothing: 0.
    pub fn sweep_at(&mut self, queue: &Queue, at: Micros) {
        let Some(state) = self.all.get_mut(queue) else { return };
        state.sweep.expiring |= at > 0;
        state.sweep.at = state.sweep.at.min(at);
        list(&mut self.sweeps, queue, state, at);
    }

    /// A job became ready by `now`.
    pub fn pushed(&mut self, queue: &Queue, now: Micros) {
        if let Some(state) = self.all.get_mut(queue)
            && !state.is_looked_at(now)
        {
            list(&mut self.sweeps, queue, state, now.saturating_add(TAIL_AFTER));
        }
    }

    /// Goes on with what was known at the close.
    pub fn recover_sweep(&mut self, queue: &Queue, (at, swept, expiring): (Micros, u64, bool), now: Micros) {
        if let Some(state) = self.all.get_mut(queue) {
            state.sweep = Sweeps { at, swept, expiring, listed: NEVER };
            list(&mut self.sweeps, queue, state, at);
        }
        self.pushed(queue, now);
    }

    /// Takes a queue out that the sweep should look at by now.
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
            // For the whole of it, later.
            let at = state.sweep.at;
            list(&mut self.sweeps, &queue, state, at);
        }
        Some(ToSweep { key: state.key.clone(), queue, after })
    }

    /// The entries up to number `last` were looked at. The first of their jobs expires at `next`.
    pub fn swept(&mut self, queue: &Queue, last: u64, next: Micros) {
        let Some(state) = self.all.get_mut(queue) else { return };
        state.sweep.swept = last;
        state.sweep.at = state.sweep.at.min(next);
        list(&mut self.sweeps, queue, state, next);
    }

    /// Up to `limit` of them from there on, sorted.
    pub fn page(&self, from: Bound<&Queue>, limit: usize) -> impl Iterator<Item = (&Queue, &QueueState)> {
        let names = self.names.from(from).take(limit);
        names.filter_map(|queue| Some((queue, self.all.get(queue)?)))
    }

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

    /// From now on lists do not show this one. It is there still.
    pub fn unlist(&mut self, queue: &Queue) {
        if let Some(state) = self.all.get_mut(queue) {
            state.listed = false;
        }
        self.names.remove(queue);
    }

    /// The opposite of [`unlist`](Queues::unlist).
    pub fn relist(&mut self, queue: &Queue) {
        if let Some(state) = self.all.get_mut(queue) {
            state.listed = true;
            self.names.add(queue);
        }
    }

    /// Adds one.
    pub fn insert(&mut self, queue: Queue, state: QueueState) -> &mut QueueState {
        self.names.add(&queue);
        self.all.entry(queue).or_insert(state)
    }

    /// How many of them are in the namespace.
    pub fn of_namespace(&self, namespace: &Namespace) -> u64 {
        self.names.of_namespace(namespace)
    }

    /// Those of the list that are there and not paused.
    pub fn of_list(&self, list: &QueueList, now: Micros) -> Vec<Queue> {
        let hands_out = |queue: &Queue| self.all.get(queue).is_some_and(|state| !state.is_paused(now));
        list.queues().filter(hands_out).collect()
    }

    /// Their names, sorted.
    pub fn names(&self) -> Vec<Queue> {
        self.names.from(Bound::Unbounded).cloned().collect()
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
            state.count();
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
        self.sweeps.remove(&(state.sweep.listed, queue.clone()));
        self.names.remove(&queue);
        Some(self.all.remove(&queue))
    }
}
