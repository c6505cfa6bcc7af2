//! Consume: delivers ready jobs.

use std::time::Duration;

use crate::clock::{Micros, micros};
use crate::engine::disk::codec::{self, Entry, Record};
use crate::engine::disk::state::WriterState;
use crate::engine::disk::state::queue::Waiting;
use crate::engine::disk::step::{STEP_ENTRIES, Step, StepResult};
use crate::engine::disk::store::{Fatal, Space};
use crate::engine::{Consumed, MAX_CONSUME_BYTES};
use crate::job::Job;
use crate::name::{Queue, QueueList};

/// Delivers jobs, one for each ttr.
pub struct Consume {
    pub queues: QueueList,
    pub ttrs: Vec<Duration>,
}

impl Step for Consume {
    type Reply = Consumed;
    const MUST_LAST: bool = false;

    fn items(&self) -> usize {
        self.ttrs.len()
    }

    fn run(self, state: &mut WriterState, now: Micros) -> StepResult<Consumed> {
        Ok(state.consume(&self.queues, &self.ttrs, now)?)
    }
}

impl WriterState {
    fn consume(&mut self, queues: &QueueList, ttrs: &[Duration], now: Micros) -> Result<Consumed, Fatal> {
        let mut consumed = Consumed::default();
        let (mut skipped, mut bytes) = (0, 0);
        for queue in self.queues.of_list(queues) {
            while let Some(ttr) = ttrs.get(consumed.jobs.len()) {
                let Some(waiting) = self.head(&queue)? else { break };
                match self.read_entry(&queue, &waiting.1)? {
                    Some(Ok(record)) if !record.expired(now) => {
                        let job = self.hand_out(&queue, waiting, record, *ttr, now);
                        bytes += job.body.len();
                        consumed.jobs.push(job);
                        if bytes >= MAX_CONSUME_BYTES && consumed.jobs.len() < ttrs.len() {
                            return Ok(Consumed { more: true, ..consumed });
                        }
                    }
                    unfit => {
                        self.pass_over(&queue, unfit, now)?;
                        skipped += 1;
                        if skipped == STEP_ENTRIES {
                            return Ok(Consumed { more: true, ..consumed });
                        }
                    }
                }
            }
        }
        Ok(consumed)
    }

    /// Returns the first entry of a queue.
    pub fn head(&mut self, queue: &Queue) -> Result<Option<Waiting>, Fatal> {
        self.refill_ready(queue)?;
        Ok(self.queues.get(queue).and_then(|state| state.front()))
    }

    fn hand_out(
        &mut self,
        queue: &Queue,
        (seq, mut entry, since): Waiting,
        record: Record,
        ttr: Duration,
        now: Micros,
    ) -> Job {
        self.pop(queue);
        debug_assert!(self.queues.get(queue).and_then(|s| s.find(seq)).is_none(), "popped");
        entry.tries = entry.tries.saturating_sub(1);
        let receipt = self.next_seq();
        let due = now.saturating_add(micros(ttr));
        self.start_ttr((due, receipt), queue, entry);
        WriterState::show(queue, (&entry, since), record, receipt, now)
    }

    /// Removes the first entry, on disk too.
    fn pop(&mut self, queue: &Queue) -> Option<Entry> {
        let state = self.queues.get_mut(queue)?;
        let (seq, entry, _) = state.pop()?;
        self.txn.delete(Space::Ready, codec::list_key(&state.key, seq));
        Some(entry)
    }

    /// Removes the first entry because it is stale, or its job has expired or cannot be read.
    pub fn pass_over(
        &mut self,
        queue: &Queue,
        found: Option<Result<Record, String>>,
        now: Micros,
    ) -> Result<(), Fatal> {
        let Some(entry) = self.pop(queue) else { return Ok(()) };
        match found {
            // The record belongs to this entry, and its ttl has ended.
            Some(Ok(record)) => {
                self.observer.expired(1);
                self.forget(queue, entry.id, &record)?;
            }
            Some(Err(reason)) => self.quarantine(queue, &entry, &reason),
            None => {}
        }
        self.queues.note_idle(queue, now);
        Ok(())
    }
}
