//! Handing jobs out and taking them back.

use std::time::Duration;

use super::op::{Answer, STEP};
use super::state::{Core, Step};
use super::store::codec::{self, Entry, Record};
use super::store::{Fatal, Space};
use crate::clock::{Micros, micros};
use crate::engine::Consumed;
use crate::job::{Job, JobRef};
use crate::name::{Queue, QueueList};

impl Core {
    /// Hands out jobs, one for each ttr.
    pub(super) fn consume(&mut self, queues: &QueueList, ttrs: &[Duration], now: Micros) -> Step {
        let mut consumed = Consumed::default();
        let mut skipped = 0;
        'queues: for queue in self.queues.known(queues) {
            while let Some(ttr) = ttrs.get(consumed.jobs.len()) {
                let Some((seq, entry)) = self.head(&queue)? else { break };
                match self.read_entry(&queue, &entry)? {
                    Some(Ok(record)) if !record.expired(now) => {
                        let job = self.hand_out(&queue, (seq, entry), record, *ttr, now);
                        consumed.jobs.push(job);
                    }
                    unfit => {
                        self.pass_over(&queue, unfit, now);
                        skipped += 1;
                        if skipped == STEP {
                            consumed.more = true;
                            break 'queues;
                        }
                    }
                }
            }
        }
        Ok(Ok(Answer::Consumed(consumed)))
    }

    /// The first entry of a queue.
    fn head(&mut self, queue: &Queue) -> Result<Option<(u64, Entry)>, Fatal> {
        self.refill_ready(queue)?;
        Ok(self.queues.get(queue).and_then(|state| state.front()))
    }

    fn hand_out(
        &mut self,
        queue: &Queue,
        (seq, mut entry): (u64, Entry),
        record: Record,
        ttr: Duration,
        now: Micros,
    ) -> Job {
        self.pop(queue);
        debug_assert!(self.queues.get(queue).and_then(|s| s.find(seq)).is_none(), "popped");
        entry.tries = entry.tries.saturating_sub(1);
        let receipt = self.next_seq();
        let due = now.saturating_add(micros(ttr));
        self.run((due, receipt), queue, entry);
        Core::show(queue, &entry, record, receipt, now)
    }

    /// Takes the first entry out, on disk too.
    fn pop(&mut self, queue: &Queue) -> Option<Entry> {
        let state = self.queues.get_mut(queue)?;
        let (seq, entry) = state.pop()?;
        self.txn.delete(Space::Ready, codec::list_key(&state.key, seq));
        Some(entry)
    }

    /// Takes the first entry out because what it stands for is gone, has expired, or cannot be read.
    pub(super) fn pass_over(&mut self, queue: &Queue, found: Option<Result<Record, String>>, now: Micros) {
        let Some(entry) = self.pop(queue) else { return };
        match found {
            // The record is this entry's own, and its life has ended.
            Some(Ok(_)) => self.txn.delete_job(self.job_key(queue, entry.id)),
            Some(Err(reason)) => Core::log_corrupt(queue, entry.id, &reason),
            None => {}
        }
        self.queues.note_idle(queue, now);
    }

    /// Takes back jobs of hand-overs that still stand.
    pub(super) fn give_back(&mut self, jobs: &[(JobRef, u64)]) -> Step {
        let limit = self.windows.ready;
        // Each goes before all others, so the last goes first.
        for (job, receipt) in jobs.iter().rev() {
            if self.timers.running(job).is_none_or(|(_, seq)| seq != *receipt) {
                continue;
            }
            let Some((timer, mut entry)) = self.timers.stop(job) else { continue };
            self.txn.delete(Space::Running, codec::timer_key(timer));
            entry.tries = entry.tries.saturating_add(1);
            let state = self.queue(&job.queue);
            state.timers = state.timers.saturating_sub(1);
            let seq = state.push_front(entry, limit);
            let key = codec::list_key(&state.key, seq);
            self.txn.put(Space::Ready, key, codec::list_value(seq, &entry));
            self.ring.insert(job.queue.clone());
        }
        Ok(Ok(Answer::Done))
    }
}
