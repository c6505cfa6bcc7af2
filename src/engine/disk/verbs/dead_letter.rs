//! The dead letter: removing jobs from it in steps.

use std::time::Duration;

use crate::clock::{Micros, micros};
use crate::engine::disk::codec::{self, Entry, Location};
use crate::engine::disk::state::WriterState;
use crate::engine::disk::state::queue::Waiting;
use crate::engine::disk::step::{STEP_BYTES, STEP_ENTRIES, Step, StepResult};
use crate::engine::disk::store::{Fatal, Space};
use crate::name::Queue;

/// Makes the oldest dead jobs ready again.
pub struct RespawnOldest {
    pub queue: Queue,
    pub limit: u64,
    pub ttl: Option<Duration>,
}

/// Deletes the oldest dead jobs.
pub struct DeleteDead {
    pub queue: Queue,
    pub limit: u64,
}

/// The jobs removed from a dead letter by one step.
#[derive(Clone, Copy, Debug)]
pub struct TakenDead {
    pub jobs: u64,
    /// Whether there may be more.
    pub more: bool,
}

impl Step for RespawnOldest {
    type Reply = TakenDead;
    const MUST_LAST: bool = true;

    fn items(&self) -> usize {
        STEP_ENTRIES
    }

    fn run(self, state: &mut WriterState, now: Micros) -> StepResult<TakenDead> {
        let queue = &self.queue;
        let expires = self.ttl.map(|ttl| now.saturating_add(micros(ttl)));
        Ok(state.take_dead(queue, self.limit, now, |state, entry| {
            let Some(found) = state.read_entry(queue, &entry)? else { return Ok((0, 0)) };
            let mut record = match found {
                Ok(record) => record,
                Err(reason) => {
                    state.quarantine(queue, &entry, &reason);
                    return Ok((0, 0));
                }
            };
            let seq = state.next_seq();
            record.location = Location::Ready(seq);
            record.expires = expires;
            state.will_expire(queue, expires);
            let bytes = record.body.len();
            let key = state.job_key(queue, entry.id);
            state.txn.put_job(key, &record);
            state.push_ready(queue, seq, Entry { tries: 1, ..entry }, Some(now));
            Ok((1, bytes))
        })?)
    }
}

impl Step for DeleteDead {
    type Reply = TakenDead;
    const MUST_LAST: bool = true;

    fn items(&self) -> usize {
        STEP_ENTRIES
    }

    fn run(self, state: &mut WriterState, now: Micros) -> StepResult<TakenDead> {
        let queue = &self.queue;
        Ok(state.take_dead(queue, self.limit, now, |state, entry| {
            let found = state.read_entry(queue, &entry)?;
            if found.is_some() {
                state.delete_job(queue, state.job_key(queue, entry.id))?;
            }
            Ok((u64::from(found.is_some()), 0))
        })?)
    }
}

impl WriterState {
    /// Returns the first entries of a dead letter.
    pub fn oldest_dead(&mut self, queue: &Queue, limit: usize) -> Result<Vec<Waiting>, Fatal> {
        let Some((key, from)) =
            self.queues.get(queue).filter(|q| q.dead > 0).map(|q| (q.key.clone(), q.dead_from))
        else {
            return Ok(Vec::new());
        };
        self.txn.flush()?;
        let read = self.read_list(Space::Dead, &key, from, u64::MAX, limit)?;
        if let (Some((first, ..)), Some(state)) = (read.first(), self.queues.get_mut(queue)) {
            state.dead_from = *first;
        }
        Ok(read)
    }

    /// Removes dead jobs, oldest first, and passes each to `each`, which returns how many it counts for and how many
    /// bytes it wrote.
    fn take_dead(
        &mut self,
        queue: &Queue,
        limit: u64,
        now: Micros,
        mut each: impl FnMut(&mut WriterState, Entry) -> Result<(u64, usize), Fatal>,
    ) -> Result<TakenDead, Fatal> {
        let limit = usize::try_from(limit).unwrap_or(STEP_ENTRIES).min(STEP_ENTRIES);
        self.end_dead_of(queue, STEP_ENTRIES, now)?;
        let oldest = self.oldest_dead(queue, limit)?;
        let (mut jobs, mut written, mut passed) = (0, 0, 0);
        for (seq, entry, _) in &oldest {
            if written >= STEP_BYTES {
                break;
            }
            let (count, bytes) = each(self, *entry)?;
            jobs += count;
            written += bytes;
            passed += 1;
            let Some(state) = self.queues.get_mut(queue) else { break };
            state.dead = state.dead.saturating_sub(1);
            state.dead_from = seq + 1;
            self.txn.delete(Space::Dead, codec::list_key(&state.key, *seq));
        }
        self.queues.note_idle(queue, now);
        // A full step may have left more, and so may a step that stopped early.
        Ok(TakenDead { jobs, more: passed > 0 && (passed == limit || passed < oldest.len()) })
    }
}
