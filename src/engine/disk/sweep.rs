//! Upkeep in small steps: takes out ready entries that stand for nothing and jobs whose life has ended,
//! forgets queues long empty, and says which keyspaces have more garbage than life. Also the store's figures.

use std::ops::Bound;

use super::op::{Answer, Cursor, Report, Swept, Upkeep};
use super::state::{Core, Step};
use super::store::codec;
use super::store::{Fatal, PerSpace, Space};
use crate::clock::{Micros, micros};
use crate::engine::{QueueSize, Stats};
use crate::name::Queue;

/// How many entries a step looks at; each costs one read of a record.
const LOOKS: usize = 256;
/// A keyspace is not compacted for fewer bytes of garbage than this while the store is busy,
const GARBAGE: u64 = 64 << 20;
/// and for fewer than this while it rests.
const GARBAGE_AT_REST: u64 = 2 << 20;
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
    /// Deletions per keyspace since it was compacted; at the start what they left behind.
    garbage: PerSpace,
    /// What `garbage` was when a compaction was last asked for: what came later may not be seen by it.
    asked: PerSpace,
    /// What [`Txn::written`](super::store::Txn::written) said at the last look, and at the last tidying.
    looked: u64,
    tidied: u64,
}

impl Core {
    /// One step; the next goes on where this one ended.
    pub(super) fn sweep(&mut self, report: &Report, now: Micros) -> Step {
        for space in &report.compacted {
            let asked = std::mem::take(&mut self.sweep.asked[*space as usize]);
            self.sweep.garbage[*space as usize] -= asked.min(self.sweep.garbage[*space as usize]);
        }
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
        let upkeep =
            if done || self.sweep.steps >= STEPS { self.upkeep(report.too_soon) } else { Upkeep::default() };
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
    fn upkeep(&mut self, too_soon: bool) -> Upkeep {
        for (total, new) in self.sweep.garbage.iter_mut().zip(self.txn.take_deleted()) {
            *total += new;
        }
        let written = self.txn.written();
        let rests = written - std::mem::replace(&mut self.sweep.looked, written) < REST;
        self.sweep.steps = 0;
        let least = if rests { GARBAGE_AT_REST } else { GARBAGE };
        let mut compact = Vec::new();
        for (space, live) in self.live() {
            let garbage = self.sweep.garbage[space as usize];
            // Where nothing lives nothing is rewritten, and it is never too soon.
            if garbage == 0 || garbage / 2 < live || (too_soon && live > 0) {
                continue;
            }
            // Bytes, for a thousand entries may be nothing or a gigabyte; those that were never written out are
            // none. What is deleted and what lives are taken to be of one size.
            let share = garbage as f64 / (garbage + live) as f64;
            if self.txn.store().table_bytes(space) as f64 * share >= least as f64 {
                self.sweep.asked[space as usize] = garbage;
                compact.push(space);
            }
        }
        let write_out = !compact.is_empty() || (rests && self.untidy());
        if write_out {
            self.sweep.tidied = written;
        }
        Upkeep { write_out, compact, rests }
    }

    /// How many entries live, in each keyspace that is worth a compaction.
    fn live(&self) -> [(Space, u64); 6] {
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
        ]
    }

    /// At the start: everything stored that does not live is garbage, whoever left it behind.
    pub(super) fn count_garbage(&mut self) {
        for (space, live) in self.live() {
            self.sweep.garbage[space as usize] = self.txn.store().items(space).saturating_sub(live);
        }
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
