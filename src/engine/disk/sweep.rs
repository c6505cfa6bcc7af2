//! Upkeep in small steps: takes out ready entries that stand for nothing and jobs whose life has ended,
//! forgets queues long empty, and says which keyspaces have more garbage than life. Also the store's figures.

use std::ops::Bound;

use super::codec;
use super::core::{Core, Step};
use super::op::{Answer, Cursor, Swept, Upkeep};
use super::store::{Fatal, PerSpace, Space};
use crate::clock::{Micros, micros};
use crate::engine::{QueueSize, Stats};
use crate::name::Queue;

/// How many entries a step looks at; each costs one read of a record.
const LOOKS: usize = 256;
/// A keyspace is not compacted for less garbage than this while the store is busy,
const GARBAGE: u64 = 100_000;
/// and for less than this while it rests.
const GARBAGE_AT_REST: u64 = 1000;
/// The store rests when less than this was written since the last look, in bytes: the clock is, all the time.
const REST: u64 = 64 << 10;
/// It is tidied at rest once so much was written since the last time, in bytes.
const UNTIDY: u64 = 4 << 20;
/// How many steps between two looks at the garbage, when a sweep takes longer: some seconds.
const STEPS: u32 = 64;

/// Where the sweep is, and what it knows of the garbage on disk.
#[derive(Debug, Default)]
pub struct Sweep {
    /// The last key it looked at.
    at: Cursor,
    /// Steps since the last look at the garbage.
    steps: u32,
    /// Deletions per keyspace since it was compacted.
    garbage: PerSpace,
    /// What [`Txn::written`](super::store::Txn::written) said at the last look, and at the last tidying.
    looked: u64,
    tidied: u64,
}

impl Core {
    /// One step; the next goes on where this one ended.
    pub(super) fn sweep(&mut self, now: Micros) -> Step {
        let (looked, mut removed) = self.forget_queues(now);
        let more_queues = looked == LOOKS;
        self.txn.flush()?;
        let from = self.sweep.at.take().map_or(Bound::Unbounded, Bound::Excluded);
        let walk = self.txn.store().range(Space::Ready, (from, Bound::Unbounded)).take(LOOKS);
        let items = walk.collect::<Result<Vec<_>, Fatal>>()?;
        let mut at = None;
        for (key, value) in &items {
            let (prefix, seq) = codec::split_list_key(key)?;
            let entry = codec::read_list_value(seq, value)?;
            // Neighbours mostly are of one queue: its name is read once.
            if at.as_ref().is_none_or(|(known, _): &(&[u8], Queue)| *known != prefix) {
                at = Some((prefix, codec::read_queue_key(prefix)?));
            }
            let Some((_, queue)) = &at else { continue };
            match self.read_entry(queue, &entry)? {
                Some(Ok(record)) if record.expired(now) => {
                    self.txn.delete_job(codec::job_key(prefix, entry.id));
                }
                // Consume says what is wrong with it when it gets there.
                Some(_) => continue,
                None => {}
            }
            removed += 1;
            self.txn.delete(Space::Ready, codec::list_key(prefix, seq));
            if let Some(state) = self.queues.get_mut(queue) {
                state.remove(seq);
            }
            self.queues.note_idle(queue, now);
        }
        let walked = items.len() < LOOKS;
        let done = walked && !more_queues;
        if let Some((key, _)) = items.last().filter(|_| !walked) {
            self.sweep.at = Some(bytes::Bytes::copy_from_slice(key));
        }
        self.sweep.steps += 1;
        let upkeep = if done || self.sweep.steps >= STEPS { self.upkeep() } else { Upkeep::default() };
        Ok(Ok(Answer::Swept(Swept { done, removed, upkeep })))
    }

    /// Answers how many it looked at, and how many of them it forgot.
    fn forget_queues(&mut self, now: Micros) -> (usize, usize) {
        let Some(since) = now.checked_sub(micros(self.windows.idle)) else { return (0, 0) };
        let mut forgotten = 0;
        for looked in 0..LOOKS {
            let Some(idle) = self.queues.forget(since) else { return (looked, forgotten) };
            if let Some((_, state)) = idle {
                self.txn.delete(Space::Queues, state.key);
                forgotten += 1;
            }
        }
        (LOOKS, forgotten)
    }

    /// What to do about the garbage on disk.
    fn upkeep(&mut self) -> Upkeep {
        for (total, new) in self.sweep.garbage.iter_mut().zip(self.txn.take_deleted()) {
            *total += new;
        }
        let written = self.txn.written();
        let rests = written - std::mem::replace(&mut self.sweep.looked, written) < REST;
        self.sweep.steps = 0;
        let write_out = rests && self.untidy();
        if write_out {
            self.sweep.tidied = written;
        }
        let least = if rests { GARBAGE_AT_REST } else { GARBAGE };
        if self.sweep.garbage.iter().all(|garbage| *garbage < least) {
            return Upkeep { write_out, compact: Vec::new() };
        }
        let (ready, dead) =
            self.queues.iter().fold((0, 0), |(ready, dead), (_, q)| (ready + q.ready, dead + q.dead));
        let timers = self.timers.len();
        let live = [
            (Space::Jobs, ready + dead + timers),
            (Space::Ready, ready),
            (Space::Running, timers),
            (Space::Delayed, timers),
            (Space::Dead, dead),
            (Space::Queues, self.queues.iter().count() as u64),
        ];
        let mut compact = Vec::new();
        for (space, live) in live {
            let garbage = &mut self.sweep.garbage[space as usize];
            if *garbage >= least && *garbage / 2 >= live {
                *garbage = 0;
                compact.push(space);
            }
        }
        Upkeep { write_out: write_out || !compact.is_empty(), compact }
    }

    /// Whether much was written since the last tidying, or the last one left an older journal behind.
    pub(super) fn untidy(&self) -> bool {
        self.txn.written() - self.sweep.tidied >= UNTIDY || self.txn.store().journals() > 1
    }

    /// Every known queue that a job was published to, sorted.
    pub(super) fn queue_names(&self) -> Vec<Queue> {
        let mut names: Vec<Queue> = self.queues.iter().map(|(queue, _)| queue.clone()).collect();
        names.sort_unstable();
        names
    }

    /// Sizes of all.
    pub(super) fn stats(&mut self) -> Step {
        let mut queues: Vec<QueueSize> = self
            .queues
            .iter()
            .map(|(queue, q)| QueueSize { queue: queue.clone(), ready: q.ready, dead: q.dead })
            .collect();
        queues.sort_unstable_by(|a, b| a.queue.cmp(&b.queue));
        let gauges = vec![("disk_bytes", self.txn.store().disk_bytes()? as f64)];
        Ok(Ok(Answer::Stats(Box::new(Stats { timers: self.timers.len(), queues, gauges }))))
    }
}
