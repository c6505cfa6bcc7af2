//! Respawn by id: makes dead jobs ready or delayed again.

use crate::clock::{Micros, micros};
use crate::engine::disk::codec::{self, Entry, Location};
use crate::engine::disk::state::WriterState;
use crate::engine::disk::step::{STEP_BYTES, Step, StepError, StepResult};
use crate::engine::disk::store::{Fatal, Found, Space};
use crate::engine::{Revival, Revived};
use crate::job::JobId;
use crate::name::Queue;

/// Respawns these jobs, or only the first of them if they are large.
pub struct RespawnJobs {
    pub queue: Queue,
    pub jobs: Vec<JobId>,
    pub revival: Revival,
}

impl Step for RespawnJobs {
    /// Results of the jobs processed: at least one.
    type Reply = Vec<Revived>;
    const MUST_LAST: bool = true;

    fn items(&self) -> usize {
        self.jobs.len()
    }

    fn run(self, state: &mut WriterState, now: Micros) -> StepResult<Vec<Revived>> {
        let (mut answers, mut written) = (Vec::with_capacity(self.jobs.len()), 0);
        for id in self.jobs {
            if written >= STEP_BYTES {
                break;
            }
            match state.revive(&self.queue, id, self.revival, now) {
                Ok((answer, bytes)) => {
                    answers.push(answer);
                    written += bytes;
                }
                // A refused step has changed nothing: reports the jobs before it first.
                Err(StepError::Refused(_)) if !answers.is_empty() => break,
                Err(e) => return Err(e),
            }
        }
        state.queues.note_idle(&self.queue, now);
        Ok(answers)
    }
}

impl WriterState {
    /// Respawns one job. Also returns the number of bytes written.
    fn revive(
        &mut self,
        queue: &Queue,
        id: JobId,
        revival: Revival,
        now: Micros,
    ) -> StepResult<(Revived, usize)> {
        let key = self.job_key(queue, id);
        let found: Result<Found, Fatal> = self.txn.job(&key);
        let mut record = match found? {
            Found::Nothing => return Ok((Revived::NotFound, 0)),
            Found::Record(mut record) => {
                self.set_end_of_dead(queue, &mut record)?;
                if record.expired(now) {
                    return Ok((Revived::NotFound, 0));
                }
                record
            }
            Found::Corrupt(reason) => return Err(WriterState::corrupt(queue, id, &reason).into()),
        };
        let Location::Dead(dead) = record.location else { return Ok((Revived::NotDead, 0)) };
        let state = self.queue(queue);
        state.dead = state.dead.saturating_sub(1);
        let entry_key = codec::list_key(&state.key, dead);
        self.txn.delete(Space::Dead, entry_key);
        let (due, seq) = (now.saturating_add(micros(revival.delay)), self.next_seq());
        let entry = Entry { id, tries: revival.tries.get(), generation: record.generation, keyed: false };
        record.expires = revival.ttl.map(|ttl| now.saturating_add(micros(ttl)));
        self.will_expire(queue, record.expires);
        record.location = if due > now { Location::Delayed((due, seq)) } else { Location::Ready(seq) };
        let bytes = record.body.len();
        self.txn.put_job(key, &record);
        if due > now {
            self.start_delay((due, seq), queue, entry);
        } else {
            self.push_ready(queue, seq, entry, Some(now));
        }
        Ok((Revived::Done { due_at: self.clock.to_day(due) }, bytes))
    }
}
