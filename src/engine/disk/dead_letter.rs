//! The dead letter, and destroying a queue: walks over many jobs, in steps.

use std::time::Duration;

use super::op::{Answer, Destroying, STEP, STEP_BYTES};
use super::state::{Core, Step};
use super::store::codec::{self, Entry, Place};
use super::store::{Fatal, Found, Space};
use crate::clock::{Micros, micros};
use crate::engine::DeadLetter;
use crate::name::Queue;

impl Core {
    /// How many dead jobs, and the oldest.
    pub(super) fn dead_letter(&mut self, queue: &Queue) -> Step {
        let head = self.oldest_dead(queue, 1)?.first().map(|(_, entry)| entry.id);
        let size = self.queues.get(queue).map_or(0, |state| state.dead);
        Ok(Ok(Answer::DeadLetter(DeadLetter { size, head })))
    }

    fn oldest_dead(&mut self, queue: &Queue, limit: usize) -> Result<Vec<(u64, Entry)>, Fatal> {
        let Some((key, from)) =
            self.queues.get(queue).filter(|s| s.dead > 0).map(|s| (s.key.clone(), s.dead_from))
        else {
            return Ok(Vec::new());
        };
        self.txn.flush()?;
        let read = self.read_list(Space::Dead, &key, from, u64::MAX, limit)?;
        if let (Some((first, _)), Some(state)) = (read.first(), self.queues.get_mut(queue)) {
            state.dead_from = *first;
        }
        Ok(read)
    }

    /// Makes dead jobs ready again.
    pub(super) fn respawn(&mut self, queue: &Queue, limit: u64, ttl: Option<Duration>, now: Micros) -> Step {
        let expires = ttl.map(|ttl| now.saturating_add(micros(ttl)));
        self.take_dead(queue, limit, now, |core, entry| {
            let Some(found) = core.read_entry(queue, &entry)? else { return Ok((0, 0)) };
            let mut record = match found {
                Ok(record) => record,
                Err(reason) => {
                    Core::log_corrupt(queue, entry.id, &reason);
                    return Ok((0, 0));
                }
            };
            let seq = core.next_seq();
            record.place = Place::Ready(seq);
            record.expires = expires;
            let bytes = record.body.len();
            let key = core.job_key(queue, entry.id);
            core.txn.put_job(key, &record);
            core.push_ready(queue, seq, Entry { tries: 1, ..entry });
            Ok((1, bytes))
        })
    }

    /// Deletes dead jobs.
    pub(super) fn delete_dead(&mut self, queue: &Queue, limit: u64, now: Micros) -> Step {
        self.take_dead(queue, limit, now, |core, entry| {
            let found = core.read_entry(queue, &entry)?;
            if found.is_some() {
                core.txn.delete_job(core.job_key(queue, entry.id));
            }
            Ok((u64::from(found.is_some()), 0))
        })
    }

    /// Takes dead jobs out, oldest first, and gives each to `each`, which answers how many it counts for and
    /// how many bytes it wrote.
    fn take_dead(
        &mut self,
        queue: &Queue,
        limit: u64,
        now: Micros,
        mut each: impl FnMut(&mut Core, Entry) -> Result<(u64, usize), Fatal>,
    ) -> Step {
        let limit = usize::try_from(limit).unwrap_or(STEP).min(STEP);
        let oldest = self.oldest_dead(queue, limit)?;
        let (mut taken, mut written, mut looked) = (0, 0, 0);
        for (seq, entry) in &oldest {
            if written >= STEP_BYTES {
                break;
            }
            let (count, bytes) = each(self, *entry)?;
            taken += count;
            written += bytes;
            looked += 1;
            let Some(state) = self.queues.get_mut(queue) else { break };
            state.dead = state.dead.saturating_sub(1);
            state.dead_from = seq + 1;
            self.txn.delete(Space::Dead, codec::list_key(&state.key, *seq));
        }
        self.queues.note_idle(queue, now);
        // A full step may have left more, and so may one that was cut short.
        Ok(Ok(Answer::Some(taken, looked > 0 && (looked == limit || looked < oldest.len()))))
    }

    /// Deletes the ready jobs of a queue: those that were ready at the first step.
    pub(super) fn destroy(&mut self, queue: &Queue, at: Option<Destroying>, now: Micros) -> Step {
        let Some(key) = self.queues.get(queue).map(|state| state.key.clone()) else {
            return Ok(Ok(Answer::Destroying(None)));
        };
        let at = at.unwrap_or(Destroying { after: 0, last: self.seq.0 - 1 });
        self.txn.flush()?;
        let run = self.read_list(Space::Ready, &key, at.after + 1, at.last, STEP)?;
        let Some((after, _)) = run.last().copied() else {
            return Ok(Ok(Answer::Destroying(None)));
        };
        for (seq, entry) in &run {
            self.txn.delete(Space::Ready, codec::list_key(&key, *seq));
            let job = codec::job_key(&key, entry.id);
            if matches!(self.txn.job(&job)?, Found::Record(record) if record.birth == entry.birth) {
                self.txn.delete_job(job);
            }
        }
        if let Some(state) = self.queues.get_mut(queue) {
            state.remove_run(at.after, after, run.len() as u64);
        }
        self.queues.note_idle(queue, now);
        let rest = (run.len() == STEP).then_some(Destroying { after, ..at });
        Ok(Ok(Answer::Destroying(rest)))
    }
}
