//! Memory of one queue: the first ready entries, and counts. The disk holds all entries; memory is a window on them.
//! Reads continue at the window's end, so they never scan deleted entries. Changes memory only.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;

use crate::clock::{Micros, Millis};
use crate::engine::disk::codec::{Entry, queue_key};
use crate::job::JobId;
use crate::name::Queue;

/// Entries of a queue that are kept in memory with any budget, so that short queues are never read from the disk.
const LEAST: usize = 16;
/// Nothing to sweep.
pub const NEVER: Micros = Micros::MAX;
/// Delay in microseconds after which new ready jobs are swept if they are still there: only their records have their
/// expiry.
pub const TAIL_AFTER: Micros = 60_000_000;

/// A ready entry: its number, and when it became ready.
pub type Waiting = (u64, Entry, Millis);

/// Number of entries in the windows of all queues. Changed only by the writer.
#[derive(Debug)]
pub struct EntriesInWindows {
    entries: AtomicUsize,
    budget: usize,
}

impl EntriesInWindows {
    pub fn new(budget: usize) -> EntriesInWindows {
        EntriesInWindows { entries: AtomicUsize::new(0), budget }
    }

    pub fn len(&self) -> usize {
        self.entries.load(Ordering::Relaxed)
    }

    pub fn left(&self) -> usize {
        self.budget.saturating_sub(self.len())
    }
}

/// Sweep state of one queue.
#[derive(Clone, Copy, Debug)]
pub struct Sweeps {
    /// No ready job up to `swept` expires earlier; 0 if there may be stale entries.
    pub at: Micros,
    /// Entries with larger numbers were not swept.
    pub swept: u64,
    /// Whether a job with a ttl was ever stored here.
    pub expiring: bool,
    /// The queue's time in [`Queues`](super::queues::Queues).
    pub listed: Micros,
}

impl Default for Sweeps {
    fn default() -> Sweeps {
        Sweeps { at: NEVER, swept: 0, expiring: false, listed: NEVER }
    }
}

/// State of one queue.
#[derive(Debug)]
pub struct QueueState {
    /// The prefix of the queue's keys.
    pub key: Bytes,
    /// The first ready entries with their numbers, ascending: all that are on disk below `from`.
    window: VecDeque<Waiting>,
    /// Position of the next read when the window is empty. Entries from here on are on disk only.
    from: u64,
    /// Whether there are entries from `from` on.
    more: bool,
    /// No entry has this number or a lower one: returned jobs go here, and so precede all others and follow anything
    /// that a destroy in steps has passed.
    low: u64,
    /// Entries in the ready list, on disk and in the window.
    pub ready: u64,
    /// Entries in the dead letter.
    pub dead: u64,
    /// No dead entry has a lower number.
    pub dead_from: u64,
    /// Whether the queue is in [`WriterState::dead_ends`](super::WriterState::dead_ends).
    pub ages: bool,
    /// Delayed and running jobs.
    pub timers: u64,
    /// Running jobs.
    pub running: u64,
    /// Whether the queue is in [`Queues`](super::queues::Queues).
    pub idle: bool,
    /// Whether lists show it. A queue that was forgotten while its jobs run is hidden.
    pub listed: bool,
    pub sweep: Sweeps,
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
    pub fn new(queue: &Queue, low: u64, held: Arc<EntriesInWindows>) -> QueueState {
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
            idle: false,
            listed: true,
            sweep: Sweeps::default(),
            held,
            counted: 0,
        }
    }

    /// Updates `held` after a change of the window.
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

    /// Frees the memory of an empty window.
    pub fn free_window(&mut self) {
        self.window = VecDeque::new();
        self.count();
    }

    /// Appends an entry. `seq` is larger than every number used so far.
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

    /// Inserts an entry at the head. Returns its number.
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

    /// Returns the first entry, if the window has it.
    pub fn front(&self) -> Option<Waiting> {
        self.window.front().copied()
    }

    /// Removes the first entry.
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

    /// Returns the position of the next read, if the window is empty and the disk has more.
    pub fn refill_from(&self) -> Option<u64> {
        (self.window.is_empty() && self.more).then_some(self.from)
    }

    /// Adds the entries read from [`refill_from`](QueueState::refill_from) on. `more`: there may be more.
    pub fn refill(&mut self, entries: Vec<Waiting>, more: bool) {
        if let Some((last, ..)) = entries.last() {
            self.from = last + 1;
        }
        self.more = more;
        self.window = entries.into();
        self.count();
    }

    /// Whether the sweep already covers a ready job that expires at `at` or earlier.
    pub fn is_swept_by(&self, at: Micros) -> bool {
        self.sweep.expiring && self.sweep.at <= at
    }

    /// Whether a sweep is already scheduled for a job that became ready by `now`.
    pub fn is_looked_at(&self, now: Micros) -> bool {
        !self.sweep.expiring || self.sweep.listed <= now.saturating_add(TAIL_AFTER)
    }

    /// Returns the sweep state.
    pub fn sweeps(&self) -> Sweeps {
        self.sweep
    }

    /// Sets the number of entries on disk and the number of the first, at the start.
    pub fn recover(&mut self, ready: u64, first: u64) {
        self.ready = ready;
        self.more = ready > 0;
        self.from = first;
        self.low = first - 1;
    }

    /// Returns the entry with this number, if the window has it.
    pub fn find(&self, seq: u64) -> Option<Entry> {
        let at = self.window.binary_search_by_key(&seq, |(s, ..)| *s).ok()?;
        Some(self.window[at].1)
    }

    /// Removes an entry that was deleted on disk.
    pub fn remove(&mut self, seq: u64) {
        self.ready -= 1;
        if let Ok(at) = self.window.binary_search_by_key(&seq, |(s, ..)| *s) {
            self.window.remove(at);
        }
        self.count();
    }

    /// Removes the `count` entries above `after` up to `last`, which were deleted on disk.
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

    /// Returns the entry of a job with its number, if the window has it.
    pub fn find_job(&self, id: JobId, generation: u64) -> Option<(u64, Entry)> {
        let of = self.window.iter().find(|(_, entry, _)| entry.id == id && entry.generation == generation);
        of.map(|(seq, entry, _)| (*seq, *entry))
    }

    /// Returns a lower bound on the numbers of ready entries.
    pub fn ready_from(&self) -> u64 {
        self.window.front().map_or(self.from, |(seq, ..)| *seq)
    }

    /// Whether it has no ready, dead, delayed or running jobs.
    pub fn is_empty(&self) -> bool {
        self.ready == 0 && self.dead == 0 && self.timers == 0
    }
}
