//! The state that the writer thread owns, and the moves that several steps share: numbers, ready lists,
//! records. Memory changes at once, the disk when the transaction is settled; if that fails the store is
//! poisoned and memory no longer matters. No thread and no channel here.

pub mod clock;
pub mod queues;
pub mod timers;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::clock::{Micros, Millis};
use crate::engine::disk::op::{Answer, Op};
use crate::engine::disk::store::codec::{self, Entry, Place, Record, TimerKey};
use crate::engine::disk::store::{Fatal, Found, Space, Txn};
use crate::engine::disk::sweep::Sweep;
use crate::engine::disk::tokens::Tokens;
use crate::engine::next_due::NextDue;
use crate::error::{Error, Result};
use crate::job::{Job, JobId, JobRef};
use crate::name::Queue;
use clock::PoolClock;
use queues::{QueueState, Queues};
use timers::Timers;

/// The name of the number in `meta` below which all numbers may be in use.
pub const META_SEQ: &[u8] = b"seq";
/// The name of the latest time in `meta` that the store is known to have seen.
pub const META_CLOCK: &[u8] = b"clock";
/// The name of the id in `meta` above which no stored job's is.
pub const META_NEWEST: &[u8] = b"newest";
/// The name of the number in `meta` that the last orderly close took.
pub const META_CLOSED: &[u8] = b"closed";
/// Numbers begin here: far above what giving back counts down from it.
pub const FIRST_SEQ: u64 = 1 << 48;
/// How many numbers are reserved at once: one write of `meta` for so many.
const SEQ_BLOCK: u64 = 1 << 20;
/// How far ahead of the newest id the one in `meta` is written, in milliseconds.
const NEWEST_AHEAD: Millis = 1000;
/// How often the time is written, in microseconds of the pool's clock.
const CLOCK_EVERY: Micros = 1_000_000;

/// What a step did, or why the store must be poisoned.
pub type Step = std::result::Result<Result<Answer>, Fatal>;

/// Bounds of what is kept in memory. Tests make them small.
#[derive(Clone, Copy, Debug)]
pub struct Windows {
    /// Ready entries per queue.
    pub ready: usize,
    /// Delayed jobs in all.
    pub delayed: usize,
    /// How long an empty queue is remembered.
    pub idle: Duration,
}

/// Everything.
#[derive(Debug)]
pub struct Core {
    pub(in crate::engine::disk) txn: Txn,
    pub(in crate::engine::disk) clock: PoolClock,
    pub(in crate::engine::disk) windows: Windows,
    pub(in crate::engine::disk) queues: Queues,
    pub(in crate::engine::disk) timers: Timers,
    pub(in crate::engine::disk) tokens: Arc<Mutex<Tokens>>,
    /// The next number, and the first that is not reserved.
    pub(in crate::engine::disk) seq: (u64, u64),
    /// The time in `meta`.
    pub(in crate::engine::disk) clock_mark: Micros,
    /// No stored job has a larger id, neither by what this process has stored nor by what `meta` says.
    pub(in crate::engine::disk) newest: JobId,
    /// The id in `meta`, ahead of the former: one write of `meta` for all ids of a second.
    pub(in crate::engine::disk) newest_mark: JobId,
    /// Who tells the pump that a timer was set earlier than it knows.
    pub(in crate::engine::disk) next_due: Arc<NextDue>,
    pub(in crate::engine::disk) sweep: Sweep,
    /// Queues that got ready jobs, for the bells.
    pub ring: HashSet<Queue>,
    /// Whether this group must be synced in any case.
    pub must_sync: bool,
}

impl Core {
    /// Does one step.
    pub fn apply(&mut self, op: Op) -> Step {
        self.txn.relieve()?;
        let now = self.clock.now_micros();
        self.mark_clock(now, CLOCK_EVERY);
        match op {
            Op::Publish(jobs) => self.publish(jobs, now),
            Op::Republish(old, new) => self.republish(&old, *new, now),
            Op::Consume(queues, wants) => self.consume(&queues, &wants, now),
            Op::GiveBack(jobs) => self.give_back(&jobs),
            Op::Ack(job) => self.ack(&job, now).map(|()| Ok(Answer::Done)),
            Op::Peek(queue) => self.peek(&queue, now),
            Op::PeekJob(job) => self.peek_job(&job, now),
            Op::Size(queue) => Ok(Ok(Answer::Count(self.queues.get(&queue).map_or(0, |q| q.ready)))),
            Op::Destroy(queue, at) => self.destroy(&queue, at, now),
            Op::DeadLetter(queue) => self.dead_letter(&queue),
            Op::Respawn(queue, limit, ttl) => self.respawn(&queue, limit, ttl, now),
            Op::DeleteDead(queue, limit) => self.delete_dead(&queue, limit, now),
            Op::Pump(limit) => self.pump(limit, now),
            Op::Queues => Ok(Ok(Answer::Queues(self.queue_names()))),
            Op::Stats => self.stats(),
            Op::Check | Op::Close => Ok(Ok(Answer::Done)),
            Op::Sweep(report) => self.sweep(&report, now),
            Op::Admin(op) => Ok(Ok(Answer::Changed(self.admin(op)))),
        }
    }

    /// A number never used before.
    pub(in crate::engine::disk) fn next_seq(&mut self) -> u64 {
        if self.seq.0 == self.seq.1 {
            self.seq.1 += SEQ_BLOCK;
            self.txn.put(Space::Meta, META_SEQ, self.seq.1.to_be_bytes());
        }
        self.seq.0 += 1;
        self.seq.0 - 1
    }

    /// Notes that a job of this id is stored by this transaction.
    pub(in crate::engine::disk) fn note_id(&mut self, id: JobId) {
        self.newest = self.newest.max(id);
        if id > self.newest_mark {
            self.newest_mark = codec::id_after(id, NEWEST_AHEAD);
            self.txn.put(Space::Meta, META_NEWEST, self.newest_mark.to_bytes());
        }
    }

    /// Keeps the time in `meta` at most so far behind, so that a reopened store does not fall back.
    pub(in crate::engine::disk) fn mark_clock(&mut self, now: Micros, every: Micros) {
        if now >= self.clock_mark.saturating_add(every) {
            self.clock_mark = now;
            self.txn.put(Space::Meta, META_CLOCK, now.to_be_bytes());
        }
    }

    /// The queue, made and written down if it is new.
    pub(in crate::engine::disk) fn queue(&mut self, queue: &Queue) -> &mut QueueState {
        if self.queues.get(queue).is_none() {
            let low = self.next_seq();
            let state = QueueState::new(queue, low);
            self.txn.put(Space::Queues, &state.key, []);
            self.queues.insert(queue.clone(), state);
        }
        // Just made, if it was not there.
        self.queues.get_mut(queue).expect("the queue is known")
    }

    /// The key of a job's record.
    pub(in crate::engine::disk) fn job_key(&self, queue: &Queue, id: JobId) -> Vec<u8> {
        match self.queues.get(queue) {
            Some(state) => codec::job_key(&state.key, id),
            None => codec::job_key(&codec::queue_key(queue), id),
        }
    }

    /// Adds a job at the end of its queue's ready list, under a number never used before.
    pub(in crate::engine::disk) fn push_ready(&mut self, queue: &Queue, seq: u64, entry: Entry) {
        let limit = self.windows.ready;
        let state = self.queue(queue);
        state.push(seq, entry, limit);
        let key = codec::list_key(&state.key, seq);
        self.txn.put(Space::Ready, key, codec::list_value(seq, &entry));
        self.rings(queue);
    }

    /// Once this is committed, the bells tell of the queue.
    pub(in crate::engine::disk) fn rings(&mut self, queue: &Queue) {
        if !self.ring.contains(queue) {
            self.ring.insert(queue.clone());
        }
    }

    /// Reads the window of a queue from the disk, if it has run out and there is more.
    pub(in crate::engine::disk) fn refill_ready(&mut self, queue: &Queue) -> Result<(), Fatal> {
        let Some((key, from)) = self.queues.get(queue).and_then(|s| Some((s.key.clone(), s.wants()?))) else {
            return Ok(());
        };
        self.txn.flush()?;
        let limit = self.windows.ready;
        let read = self.read_list(Space::Ready, &key, from, u64::MAX, limit)?;
        let more = read.len() == limit;
        if let Some(state) = self.queues.get_mut(queue) {
            state.refill(read, more);
        }
        Ok(())
    }

    /// Up to `limit` entries of a list, numbered `from` to `to`. What is not committed is not seen.
    pub(in crate::engine::disk) fn read_list(
        &self,
        space: Space,
        queue: &[u8],
        from: u64,
        to: u64,
        limit: usize,
    ) -> Result<Vec<(u64, Entry)>, Fatal> {
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
                Ok((seq, codec::read_list_value(seq, &value)?))
            })
            .collect()
    }

    /// The record that an entry stands for. `None` when the entry stands for nothing any more.
    pub(in crate::engine::disk) fn read_entry(
        &self,
        queue: &Queue,
        entry: &Entry,
    ) -> Result<Option<std::result::Result<Record, String>>, Fatal> {
        Ok(match self.txn.job(&self.job_key(queue, entry.id))? {
            Found::Record(record) if record.birth == entry.birth => Some(Ok(record)),
            Found::Record(_) | Found::Nothing => None,
            Found::Corrupt(reason) => Some(Err(reason)),
        })
    }

    /// Deletes a job in whatever state; an unknown one is fine.
    pub(in crate::engine::disk) fn ack(&mut self, job: &JobRef, now: Micros) -> Result<(), Fatal> {
        let key = self.job_key(&job.queue, job.id);
        if let Some((timer, _)) = self.timers.stop(job) {
            self.txn.delete(Space::Running, codec::timer_key(timer));
            self.txn.delete_job(key);
            self.timer_gone(&job.queue, now);
            return Ok(());
        }
        match self.txn.job(&key)? {
            Found::Nothing => return Ok(()),
            // Where it is cannot be told; whatever entry it has stands for nothing from now on.
            Found::Corrupt(_) => {}
            Found::Record(record) => self.leave(&job.queue, &record, now),
        }
        self.txn.delete_job(key);
        Ok(())
    }

    /// Deletes the entry of a job that is not running, where it can be told from the record. An entry left in
    /// the ready list stands for nothing; consume passes it over, and the sweep deletes it.
    fn leave(&mut self, queue: &Queue, record: &Record, now: Micros) {
        match record.place {
            Place::Delayed(timer) => {
                if self.timers.undelay(timer) {
                    self.txn.delete(Space::Delayed, codec::timer_key(timer));
                    self.timer_gone(queue, now);
                }
            }
            Place::Dead(seq) => {
                let Some(state) = self.queues.get_mut(queue) else { return };
                state.dead = state.dead.saturating_sub(1);
                self.txn.delete(Space::Dead, codec::list_key(&state.key, seq));
            }
            Place::Ready(seq) => {
                let Some(state) = self.queues.get_mut(queue) else { return };
                if state.find(seq).is_some_and(|entry| entry.birth == record.birth) {
                    state.remove(seq);
                    self.txn.delete(Space::Ready, codec::list_key(&state.key, seq));
                }
            }
        }
        self.queues.note_idle(queue, now);
    }

    /// A timer of this queue was taken out.
    pub(in crate::engine::disk) fn timer_gone(&mut self, queue: &Queue, now: Micros) {
        if let Some(state) = self.queues.get_mut(queue) {
            state.timers = state.timers.saturating_sub(1);
        }
        self.queues.note_idle(queue, now);
    }

    /// Sets the timer of a job that was handed out.
    pub(in crate::engine::disk) fn run(&mut self, timer: TimerKey, queue: &Queue, entry: Entry) {
        let state = self.queue(queue);
        state.timers += 1;
        let value = codec::timer_value(&state.key, &entry);
        self.txn.put(Space::Running, codec::timer_key(timer), value);
        self.timers.run(timer, queue.clone(), entry);
        self.next_due.stored(timer.0);
    }

    /// What a reader gets to see.
    pub(in crate::engine::disk) fn show(
        queue: &Queue,
        entry: &Entry,
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
            tries_left: entry.tries,
            receipt,
        }
    }

    /// Logs a job that cannot be read. Its record stays, so that peeking at it says what is wrong.
    pub(in crate::engine::disk) fn log_corrupt(queue: &Queue, id: JobId, reason: &str) {
        tracing::error!(%queue, job = %id, reason, "a stored job cannot be read and is passed over");
    }

    /// The same as an error.
    pub(in crate::engine::disk) fn corrupt(queue: &Queue, id: JobId, reason: &str) -> Error {
        Error::corrupt(format!("job {id} of {queue}: {reason}"))
    }
}
