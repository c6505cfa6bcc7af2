//! Expiry of dead jobs, if configured for the pool: jobs are deleted some time after their death. Their entries have
//! the time of death, so a later change of the setting applies to all. The pump deletes them; until then they are
//! hidden.

use crate::clock::{Micros, micros};
use crate::engine::disk::codec::{self, Location, Record};
use crate::engine::disk::state::WriterState;
use crate::engine::disk::step::STEP_ENTRIES;
use crate::engine::disk::store::{Fatal, Space};
use crate::name::Queue;

/// Maximum queues per step.
const QUEUES: usize = 64;

impl WriterState {
    /// Returns when a job that died at `since` expires; `None` if dead jobs are kept.
    pub fn end_of_dead(&self, since: Micros) -> Option<Micros> {
        (!self.windows.dead.is_zero()).then(|| since.saturating_add(micros(self.windows.dead)))
    }

    /// Records the death of a job, which is the queue's latest.
    pub fn watch_dead(&mut self, queue: &Queue, since: Micros) {
        if let Some(ends) = self.end_of_dead(since)
            && !std::mem::replace(&mut self.queue(queue).ages, true)
        {
            self.dead_ends.insert((ends, queue.clone()));
            self.next_due.stored(ends);
        }
    }

    /// Schedules a check of all dead letters, at the start.
    pub fn load_dead_ends(&mut self) {
        if self.windows.dead.is_zero() {
            return;
        }
        for queue in self.queues.names() {
            if let Some(state) = self.queues.get_mut(&queue).filter(|state| state.dead > 0) {
                state.ages = true;
                self.dead_ends.insert((0, queue));
            }
        }
    }

    /// Sets the expiry of a dead job's record.
    pub fn set_end_of_dead(&mut self, queue: &Queue, record: &mut Record) -> Result<(), Fatal> {
        if let Location::Dead(seq) = record.location
            && !self.windows.dead.is_zero()
        {
            self.txn.flush()?;
            let since = self.list_row(Space::Dead, queue, seq)?.map(|(_, since)| since.saturating_mul(1000));
            record.expires = since.and_then(|since| self.end_of_dead(since));
        }
        Ok(())
    }

    /// Deletes expired dead jobs: a bounded number, earliest first.
    pub fn end_dead(&mut self, now: Micros) -> Result<(), Fatal> {
        let mut left = STEP_ENTRIES;
        for _ in 0..QUEUES {
            if left == 0 || self.dead_ends.first().is_none_or(|(at, _)| *at > now) {
                return Ok(());
            }
            let Some((_, queue)) = self.dead_ends.pop_first() else { return Ok(()) };
            if let Some(state) = self.queues.get_mut(&queue) {
                state.ages = false;
            }
            left -= self.end_dead_of(&queue, left, now)?;
            if let Some((_, _, since)) = self.oldest_dead(&queue, 1)?.first() {
                self.watch_dead(&queue, since.saturating_mul(1000));
            }
            self.queues.note_idle(&queue, now);
        }
        Ok(())
    }

    /// Deletes expired dead jobs of one queue. Returns their number.
    pub fn end_dead_of(&mut self, queue: &Queue, limit: usize, now: Micros) -> Result<usize, Fatal> {
        let mut ended = 0;
        if self.windows.dead.is_zero() {
            return Ok(0);
        }
        for (seq, entry, since) in self.oldest_dead(queue, limit)? {
            if self.end_of_dead(since.saturating_mul(1000)).is_none_or(|ends| ends > now) {
                break;
            }
            if self.read_entry(queue, &entry)?.is_some() {
                self.delete_job(queue, self.job_key(queue, entry.id))?;
            }
            let Some(state) = self.queues.get_mut(queue) else { break };
            state.dead = state.dead.saturating_sub(1);
            state.dead_from = seq + 1;
            let key = codec::list_key(&state.key, seq);
            self.txn.delete(Space::Dead, key);
            self.observer.expired(1);
            ended += 1;
        }
        Ok(ended)
    }
}
