//! Consume: hands out ready jobs.

use super::state::WriterState;
use super::step::{Outcome, Progress, STEP_ENTRIES, Step};
use super::store::codec::{self, Entry, Record};
use super::store::{Fatal, Space};
use crate::clock::{Micros, micros};
use crate::engine::Want;
use crate::job::Job;
use crate::name::{Queue, QueueList};

/// Hands out jobs to each want in turn.
pub struct Consume {
    pub queues: QueueList,
    pub wants: Vec<Want>,
}

impl Step for Consume {
    type Reply = Progress<Vec<Vec<Job>>>;
    const MUST_LAST: bool = false;

    fn items(&self) -> usize {
        self.wants.iter().map(|want| usize::from(want.count)).sum()
    }

    fn run(self, state: &mut WriterState, now: Micros) -> Outcome<Progress<Vec<Vec<Job>>>> {
        Ok(state.consume(&self.queues, &self.wants, now)?)
    }
}

impl WriterState {
    /// Hands out jobs to each want in turn.
    fn consume(
        &mut self,
        queues: &QueueList,
        wants: &[Want],
        now: Micros,
    ) -> Result<Progress<Vec<Vec<Job>>>, Fatal> {
        let mut lists: Vec<Vec<Job>> = wants.iter().map(|_| Vec::new()).collect();
        let mut open = 0;
        let mut budget = STEP_ENTRIES;
        for queue in self.queues.of_list(queues) {
            while let Some(want) = wants.get(open) {
                if lists[open].len() >= usize::from(want.count) {
                    open += 1;
                    continue;
                }
                let Some((seq, entry)) = self.head(&queue)? else { break };
                match self.read_entry(&queue, &entry)? {
                    Some(Ok(record)) if !record.expired(now) => {
                        let job = self.hand_out(&queue, (seq, entry), record, want, now);
                        lists[open].push(job);
                    }
                    unfit => {
                        self.pass_over(&queue, unfit, now);
                        budget -= 1;
                        if budget == 0 {
                            if lists.iter().all(Vec::is_empty) {
                                return Ok(Progress::Again);
                            }
                            // Less than was asked for, though the queue was not seen empty: whoever still waits
                            // should look again.
                            self.notify(&queue);
                            return Ok(Progress::Done(lists));
                        }
                    }
                }
            }
        }
        Ok(Progress::Done(lists))
    }

    /// The first entry of a queue.
    pub fn head(&mut self, queue: &Queue) -> Result<Option<(u64, Entry)>, Fatal> {
        self.refill_ready(queue)?;
        Ok(self.queues.get(queue).and_then(|state| state.front()))
    }

    fn hand_out(
        &mut self,
        queue: &Queue,
        (seq, mut entry): (u64, Entry),
        record: Record,
        want: &Want,
        now: Micros,
    ) -> Job {
        self.pop(queue);
        debug_assert!(self.queues.get(queue).and_then(|s| s.find(seq)).is_none(), "popped");
        entry.tries = entry.tries.saturating_sub(1);
        let receipt = self.next_seq();
        let due = now.saturating_add(micros(want.ttr));
        self.start_ttr((due, receipt), queue, entry);
        WriterState::show(queue, &entry, record, receipt, now)
    }

    /// Takes the first entry out, on disk too.
    fn pop(&mut self, queue: &Queue) -> Option<Entry> {
        let state = self.queues.get_mut(queue)?;
        let (seq, entry) = state.pop()?;
        self.txn.delete(Space::Ready, codec::list_key(&state.key, seq));
        Some(entry)
    }

    /// Takes the first entry out because what it stands for is gone, has expired, or cannot be read.
    pub fn pass_over(&mut self, queue: &Queue, found: Option<Result<Record, String>>, now: Micros) {
        let Some(entry) = self.pop(queue) else { return };
        match found {
            // The record is this entry's own, and its ttl has ended.
            Some(Ok(_)) => self.txn.delete_job(self.job_key(queue, entry.id)),
            Some(Err(reason)) => WriterState::log_corrupt(queue, entry.id, &reason),
            None => {}
        }
        self.queues.note_idle(queue, now);
    }
}
