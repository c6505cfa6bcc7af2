//! State of the writer thread, and operations shared by several verbs: numbers, ready lists, records. Memory changes
//! at once, the disk when the transaction is settled; if that fails the store is poisoned and memory no longer
//! matters. Knows no verb, no thread and no channel.

pub mod clock;
mod count;
pub mod garbage;
pub mod keys;
pub mod load;
mod names;
pub mod queue;
pub mod queues;
pub mod quotas;
pub mod settings;
pub mod summary;
pub mod timers;
mod usage;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use ahash::{HashMap, HashSet};
use bytes::Bytes;

use self::clock::PoolClock;
use self::garbage::{Garbage, Live, Upkeep};
use self::queue::{QueueState, Waiting};
use self::queues::Queues;
use self::quotas::QuotaUse;
use self::settings::Settings;
use self::timers::Timers;
use crate::clock::{Micros, Millis};
use crate::engine::disk::codec::{self, Entry, META_CLOCK, META_NEWEST, META_SEQ, Record, TimerKey};
use crate::engine::disk::store::txn::Txn;
use crate::engine::disk::store::{Fatal, Found, Space};
use crate::engine::next_due::NextDue;
use crate::engine::notifier::Notifiers;
use crate::engine::observer::Observer;
use crate::error::Error;
use crate::job::{Job, JobId, JobRef};
use crate::name::{Namespace, Queue};

/// Numbers reserved by one write of `meta`.
const SEQ_BLOCK: u64 = 1 << 20;
/// Lead of the id in `meta` over the newest id, in milliseconds.
const NEWEST_AHEAD: Millis = 1000;
/// How often the time is written, in microseconds of the pool's clock.
const CLOCK_EVERY: Micros = 1_000_000;
/// Maximum delayed jobs read from the disk at once, for any window: a millisecond or two during which all other
/// calls wait.
const READ_DELAYED: usize = 2048;

/// Bounds of memory. Tests make them small.
#[derive(Clone, Copy, Debug)]
pub struct Windows {
    /// Ready entries per queue.
    pub ready: usize,
    /// Ready entries of all queues together, except a few of each.
    pub ready_budget: usize,
    /// Delayed jobs in total.
    pub delayed: usize,
    /// How long an empty queue is kept.
    pub idle: Duration,
    /// How long dead jobs are kept; zero: forever.
    pub dead: Duration,
}

/// Everything that the writer thread reads and changes.
#[derive(Debug)]
pub struct WriterState {
    pub txn: Txn,
    pub clock: PoolClock,
    pub windows: Windows,
    pub queues: Queues,
    pub timers: Timers,
    /// The next number, and the first that is not reserved.
    pub seq: (u64, u64),
    /// The time in `meta`.
    pub clock_mark: Micros,
    /// Upper bound of all ids stored by this process or found in `meta`.
    pub newest: JobId,
    /// The id in `meta`, ahead of `newest`: one write of `meta` for all ids of a second.
    pub newest_mark: JobId,
    /// Tells the pump about a timer that is earlier than the earliest it knows.
    pub next_due: NextDue,
    pub notifiers: Arc<Notifiers>,
    pub garbage: Garbage,
    /// When the oldest dead job of each queue expires, if dead jobs expire; earliest first. Too early if that job has
    /// left.
    pub dead_ends: BTreeSet<(Micros, Queue)>,
    /// Number of job keys, and of idempotency keys. Approximate if records could not be read.
    pub keys: u64,
    pub once: u64,
    /// No idempotency key expires earlier.
    pub once_from: Micros,
    /// Namespaces with a quota.
    pub quotas: HashMap<Namespace, QuotaUse>,
    pub settings: Settings,
    /// Keys of the jobs in quarantine.
    pub quarantine: HashSet<Vec<u8>>,
    /// Queues that got ready jobs in this group: their consumers are notified after the commit.
    pub to_notify: HashSet<Queue>,
    /// Receives internal events of the store.
    pub observer: Arc<dyn Observer>,
    /// Whether this group must be synced in either mode.
    pub must_sync: bool,
}

impl WriterState {
    /// Prepares for a step: bounds the batch and records the time. Returns the time of the step.
    pub fn begin_step(&mut self) -> Result<Micros, Fatal> {
        self.txn.relieve()?;
        let now = self.clock.now_micros();
        self.mark_clock(now, CLOCK_EVERY);
        Ok(now)
    }

    /// Returns a number never used before.
    pub fn next_seq(&mut self) -> u64 {
        if self.seq.0 == self.seq.1 {
            self.seq.1 += SEQ_BLOCK;
            // A delivery need not survive a power cut, but its receipt must not be reused after it.
            self.must_sync = true;
            self.txn.put(Space::Meta, META_SEQ, self.seq.1.to_be_bytes());
        }
        self.seq.0 += 1;
        self.seq.0 - 1
    }

    /// Records the id of a job that this transaction stores.
    pub fn note_id(&mut self, id: JobId) {
        self.newest = self.newest.max(id);
        if id > self.newest_mark {
            self.newest_mark = codec::id_after(id, NEWEST_AHEAD);
            self.txn.put(Space::Meta, META_NEWEST, self.newest_mark.to_bytes());
        }
    }

    /// Writes the time to `meta` if it is older than `every`, so that a reopened store does not fall back.
    pub fn mark_clock(&mut self, now: Micros, every: Micros) {
        if now >= self.clock_mark.saturating_add(every) {
            self.clock.log_step();
            self.clock_mark = now;
            self.txn.put(Space::Meta, META_CLOCK, now.to_be_bytes());
        }
    }

    /// Returns the queue, and stores it if it is new or was forgotten.
    pub fn queue(&mut self, queue: &Queue) -> &mut QueueState {
        match self.queues.get(queue) {
            Some(state) if state.listed => {}
            Some(state) => {
                self.txn.put(Space::Queues, &state.key, []);
                self.queues.relist(queue);
            }
            None => {
                let low = self.next_seq();
                let state = self.queues.new_state(queue, low);
                self.txn.put(Space::Queues, &state.key, []);
                self.queues.insert(queue.clone(), state);
            }
        }
        self.queues.get_mut(queue).expect("inserted above if absent")
    }

    /// Returns the key of a job's record.
    pub fn job_key(&self, queue: &Queue, id: JobId) -> Vec<u8> {
        match self.queues.get(queue) {
            Some(state) => codec::job_key(&state.key, id),
            None => codec::job_key(&codec::queue_key(queue), id),
        }
    }

    /// Appends a job to its queue's ready list, under a number never used before. `since` is when it became ready;
    /// `None` for a job that is published now, whose number is its generation.
    pub fn push_ready(&mut self, queue: &Queue, seq: u64, entry: Entry, since: Option<Micros>) {
        let (limit, now) = (self.windows.ready, self.clock_mark);
        let state = self.queue(queue);
        let at = since.map_or_else(|| entry.id.published_at(), |since| since / 1000);
        state.push((seq, entry, at), limit);
        let (key, is_looked_at) = (codec::list_key(&state.key, seq), state.is_looked_at(now));
        self.txn.put(Space::Ready, key, codec::list_value(&entry, since));
        if !is_looked_at {
            self.queues.pushed(queue, now);
        }
        self.notify(queue);
    }

    /// Inserts a job at the head of its queue's ready list. The sweep continues at its last position and would miss
    /// it, so its expiry is recorded.
    pub fn push_ready_first(&mut self, queue: &Queue, entry: Entry, expires: Option<Micros>, now: Micros) {
        let limit = self.windows.ready;
        let state = self.queue(queue);
        let seq = state.push_front(entry, now / 1000, limit);
        let key = codec::list_key(&state.key, seq);
        self.txn.put(Space::Ready, key, codec::list_value(&entry, Some(now)));
        self.will_expire(queue, expires);
        self.notify(queue);
    }

    /// Starts the timer of a delayed job.
    pub fn start_delay(&mut self, timer: TimerKey, queue: &Queue, entry: Entry) {
        let limit = self.windows.delayed;
        let state = self.queue(queue);
        state.timers += 1;
        let value = codec::timer_value(&state.key, &entry);
        self.txn.put(Space::Delayed, codec::timer_key(timer), value);
        self.timers.delay(timer, queue.clone(), entry, limit);
        self.next_due.stored(timer.0);
    }

    /// Schedules a sweep of the queue for the expiry of a job.
    pub fn will_expire(&mut self, queue: &Queue, expires: Option<Micros>) {
        if let Some(expires) = expires
            && !self.queue(queue).is_swept_by(expires)
        {
            self.queues.sweep_at(queue, expires);
        }
    }

    /// Notifies the consumers of the queue after the commit.
    pub fn notify(&mut self, queue: &Queue) {
        if !self.to_notify.contains(queue) {
            self.to_notify.insert(queue.clone());
        }
    }

    /// Reads the window of a queue from the disk, if it is empty and there is more.
    pub fn refill_ready(&mut self, queue: &Queue) -> Result<(), Fatal> {
        let Some((key, from)) = self.queues.get(queue).and_then(|s| Some((s.key.clone(), s.refill_from()?)))
        else {
            return Ok(());
        };
        self.txn.flush()?;
        let limit = self.queues.refill_size(self.windows.ready);
        let read = self.read_list(Space::Ready, &key, from, u64::MAX, limit)?;
        let more = read.len() == limit;
        if let Some(state) = self.queues.get_mut(queue) {
            state.refill(read, more);
        }
        Ok(())
    }

    /// Reads the earliest delayed jobs from the disk, if memory has none and there are more.
    pub fn refill_delayed(&mut self) -> Result<(), Fatal> {
        let Some(from) = self.timers.refill_from() else { return Ok(()) };
        self.txn.flush()?;
        let limit = self.windows.delayed.min(READ_DELAYED);
        let mut read = Vec::new();
        let mut horizon = None;
        for item in self.txn.store().range(Space::Delayed, codec::timer_key(from)..) {
            let (key, value) = item?;
            let key = codec::read_timer_key(&key)?;
            if read.len() == limit {
                horizon = Some(key);
                break;
            }
            let (queue, entry) = codec::split_timer_value(&value)?;
            read.push((key, self.queues.shared(codec::read_queue_key(queue)?), entry));
        }
        self.timers.refill(read, horizon);
        Ok(())
    }

    /// Reads up to `limit` entries of a list, numbered `from` to `to`, each with the time of its insertion. Sees only
    /// committed entries.
    pub fn read_list(
        &self,
        space: Space,
        queue: &[u8],
        from: u64,
        to: u64,
        limit: usize,
    ) -> Result<Vec<Waiting>, Fatal> {
        if from > to {
            return Ok(Vec::new());
        }
        let range = codec::list_key(queue, from)..=codec::list_key(queue, to);
        self.txn
            .store()
            .range(space, range)
            .take(limit)
            .map(|item| {
                let (key, value) = item?;
                let seq = codec::split_list_key(&key)?.1;
                let (entry, since) = codec::read_list_value(seq, &value)?;
                Ok((seq, entry, since))
            })
            .collect()
    }

    /// Reads the record of an entry. `None` if the entry is stale.
    pub fn read_entry(&self, queue: &Queue, entry: &Entry) -> Result<Option<Result<Record, String>>, Fatal> {
        Ok(match self.txn.job(&self.job_key(queue, entry.id))? {
            Found::Record(record) if record.generation == entry.generation => Some(Ok(record)),
            Found::Record(_) | Found::Nothing => None,
            Found::Corrupt(reason) => Some(Err(reason)),
        })
    }

    /// Returns the number of live entries, for each keyspace that is worth compacting.
    pub fn live(&self) -> Live {
        let (ready, dead) =
            self.queues.iter().fold((0, 0), |(ready, dead), (_, q)| (ready + q.ready, dead + q.dead));
        let timers = self.timers.len();
        [
            (Space::Jobs, ready + dead + timers),
            (Space::Ready, ready),
            (Space::Running, timers),
            (Space::Delayed, timers),
            (Space::Dead, dead),
            (Space::Queues, self.queues.iter().count() as u64),
            (Space::Keys, self.keys),
            (Space::Once, 2 * self.once),
        ]
    }

    /// Decides what upkeep should do now: see [`Garbage::upkeep`].
    pub fn upkeep(&mut self, too_soon: bool, is_low: bool) -> Upkeep {
        let live = self.live();
        self.garbage.upkeep(&live, &mut self.txn, too_soon, is_low)
    }

    /// Counts a timer of this queue that has ended. Its job moves to a list, so the queue does not become empty.
    pub fn timer_passed(&mut self, queue: &Queue) {
        if let Some(state) = self.queues.get_mut(queue) {
            state.timers = state.timers.saturating_sub(1);
        }
    }

    /// Counts a timer of this queue that was deleted together with its job.
    pub fn timer_gone(&mut self, queue: &Queue, now: Micros) {
        self.timer_passed(queue);
        self.queues.note_idle(queue, now);
    }

    /// Counts the end of the ttr of a job of this queue.
    pub fn run_passed(&mut self, queue: &Queue) {
        if let Some(state) = self.queues.get_mut(queue) {
            state.timers = state.timers.saturating_sub(1);
            state.running = state.running.saturating_sub(1);
        }
    }

    /// Ends a delivery: the job stops running, and is in no list.
    pub fn stop_running(&mut self, job: &JobRef) -> Option<Entry> {
        let (timer, entry) = self.timers.stop(job)?;
        self.txn.delete(Space::Running, codec::timer_key(timer));
        self.run_passed(&job.queue);
        Some(entry)
    }

    /// Returns the prefix of a queue's keys.
    pub fn prefix(&self, queue: &Queue) -> Bytes {
        self.queues.get(queue).map_or_else(|| codec::queue_key(queue), |state| state.key.clone())
    }

    /// Starts the ttr of a delivered job.
    pub fn start_ttr(&mut self, timer: TimerKey, queue: &Queue, entry: Entry) {
        // The queue of its job exists. A touch does not bring back a queue that was forgotten.
        let state = self.queues.get_mut(queue).expect("the queue of a job exists");
        state.timers += 1;
        state.running += 1;
        let value = codec::timer_value(&state.key, &entry);
        self.txn.put(Space::Running, codec::timer_key(timer), value);
        self.timers.start(timer, queue.clone(), entry);
        self.next_due.stored(timer.0);
    }

    /// Returns the job for a reader. `since` is when it became ready.
    pub fn show(
        queue: &Queue,
        (entry, since): (&Entry, Millis),
        record: Record,
        receipt: u64,
        now: Micros,
    ) -> Job {
        Job {
            queue: queue.clone(),
            id: entry.id,
            body: record.body,
            attributes: record.attributes,
            ttl: record.expires.map(|at| Duration::from_micros(at.saturating_sub(now))),
            elapsed: Duration::from_millis((now / 1000).saturating_sub(entry.id.published_at())),
            due: since,
            tries_left: entry.tries,
            receipt,
        }
    }

    /// Returns the error for a job that cannot be read.
    pub fn corrupt(queue: &Queue, id: JobId, reason: &str) -> Error {
        Error::corrupt(format!("job {id} of {queue}: {reason}"))
    }
}
