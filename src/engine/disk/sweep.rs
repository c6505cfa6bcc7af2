//! Upkeep in small steps: takes out ready entries that stand for nothing and jobs whose life has ended,
//! forgets queues long empty, and says which keyspace has more garbage than life. Also the store's figures.

use std::ops::Bound;

use super::codec;
use super::core::{Core, Step, millis};
use super::op::{Answer, Swept};
use super::store::{Fatal, Space};
use crate::clock::Millis;
use crate::engine::{QueueSize, Stats};
use crate::name::Queue;

/// How many entries a step looks at; each costs one read of a record.
const LOOKS: usize = 256;
/// A keyspace is not compacted for less garbage than this.
const GARBAGE: u64 = 100_000;

impl Core {
    /// One step; the next goes on where this one ended.
    pub(super) fn sweep(&mut self, now: Millis) -> Step {
        let (looked, mut removed) = self.forget_queues(now);
        let more_queues = looked == LOOKS;
        self.txn.flush()?;
        let from = self.sweep.take().map_or(Bound::Unbounded, Bound::Excluded);
        let walk = self.txn.store().range(Space::Ready, (from, Bound::Unbounded)).take(LOOKS);
        let items = walk.collect::<Result<Vec<_>, Fatal>>()?;
        let mut at = None;
        for (key, value) in &items {
            let (prefix, seq) = codec::split_list_key(key)?;
            let entry = codec::read_list_value(value)?;
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
            self.sweep = Some(bytes::Bytes::copy_from_slice(key));
        }
        let compact = if done { self.worst_garbage() } else { None };
        Ok(Ok(Answer::Swept(Swept { done, removed, compact })))
    }

    /// Answers how many it looked at, and how many of them it forgot.
    fn forget_queues(&mut self, now: Millis) -> (usize, usize) {
        let Some(since) = now.checked_sub(millis(self.windows.idle)) else { return (0, 0) };
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

    /// A keyspace from which far more was deleted than is left, if there is one.
    fn worst_garbage(&mut self) -> Option<Space> {
        for (total, new) in self.garbage.iter_mut().zip(self.txn.take_deleted()) {
            *total += new;
        }
        if self.garbage.iter().all(|garbage| *garbage < GARBAGE) {
            return None;
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
        let worst = live.into_iter().find(|(space, live)| {
            let garbage = self.garbage[*space as usize];
            garbage >= GARBAGE && garbage / 2 >= *live
        });
        let (space, _) = worst?;
        self.garbage[space as usize] = 0;
        Some(space)
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
