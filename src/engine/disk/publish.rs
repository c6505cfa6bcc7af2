//! Publish, republish, and reads of one job.

use super::op::{Answer, STEP};
use super::state::{Core, Step};
use super::store::codec::{self, Entry, Place, Record};
use super::store::{Fatal, Found, Space};
use crate::clock::{Micros, micros};
use crate::error::Error;
use crate::job::{JobRef, NewJob};
use crate::name::Queue;

/// Who has an id that is to be published.
enum Holder {
    Nobody,
    /// A job whose life has ended: as good as gone, but not swept yet.
    Over,
    Lives,
}

impl Core {
    /// Stores all jobs or none.
    pub(super) fn publish(&mut self, jobs: Vec<NewJob>, now: Micros) -> Step {
        let mut over = Vec::new();
        let mut newest = self.newest;
        for (at, job) in jobs.iter().enumerate() {
            if job.id > newest {
                // Larger than all that are stored and all before it in this call: nobody has it.
                newest = job.id;
                continue;
            }
            let twice = jobs[..at].iter().any(|other| other.id == job.id && other.queue == job.queue);
            match self.holder(job, now)? {
                Holder::Nobody if !twice => {}
                Holder::Over if !twice => over.push(JobRef { queue: job.queue.clone(), id: job.id }),
                _ => return Ok(Err(taken(job))),
            }
        }
        for job in over {
            self.ack(&job, now)?;
        }
        for job in jobs {
            self.insert(job, now);
        }
        Ok(Ok(Answer::Done))
    }

    /// Deletes the old job and stores the new one, or does neither.
    pub(super) fn republish(&mut self, old: &JobRef, new: NewJob, now: Micros) -> Step {
        if new.id <= self.newest && (old.id != new.id || old.queue != new.queue) {
            match self.holder(&new, now)? {
                Holder::Nobody => {}
                Holder::Over => self.ack(&JobRef { queue: new.queue.clone(), id: new.id }, now)?,
                Holder::Lives => return Ok(Err(taken(&new))),
            }
        }
        self.ack(old, now)?;
        self.insert(new, now);
        Ok(Ok(Answer::Done))
    }

    /// Who has this id.
    fn holder(&self, job: &NewJob, now: Micros) -> Result<Holder, Fatal> {
        Ok(match self.txn.job(&self.job_key(&job.queue, job.id))? {
            Found::Nothing => Holder::Nobody,
            Found::Record(record) if record.expired(now) => Holder::Over,
            Found::Record(_) | Found::Corrupt(_) => Holder::Lives,
        })
    }

    /// Stores a job whose id nobody has.
    fn insert(&mut self, job: NewJob, now: Micros) {
        let NewJob { queue, id, body, attributes, ttl, delay, tries } = job;
        let birth = self.next_seq();
        self.note_id(id);
        let key = self.job_key(&queue, id);
        let due = now.saturating_add(micros(delay));
        let place = if delay.is_zero() { Place::Ready(birth) } else { Place::Delayed((due, birth)) };
        let expires = ttl.map(|ttl| now.saturating_add(micros(ttl)));
        let attributes = if id.is_versioned() { attributes } else { Default::default() };
        let entry = Entry { id, tries: tries.get(), birth };
        self.txn.put_job(key, &Record { place, birth, expires, attributes, body });
        match place {
            Place::Delayed(timer) => {
                let limit = self.windows.delayed;
                let state = self.queue(&queue);
                state.timers += 1;
                let value = codec::timer_value(&state.key, &entry);
                self.txn.put(Space::Delayed, codec::timer_key(timer), value);
                self.timers.delay(timer, queue, entry, limit);
                self.next_due.stored(due);
            }
            Place::Ready(_) | Place::Dead(_) => self.push_ready(&queue, birth, entry),
        }
    }

    /// The first ready job that a consume would hand out. Deletes what it would pass over.
    pub(super) fn peek(&mut self, queue: &Queue, now: Micros) -> Step {
        for _ in 0..STEP {
            self.refill_ready(queue)?;
            let Some((_, entry)) = self.queues.get(queue).and_then(|state| state.front()) else {
                return Ok(Ok(Answer::Job(None)));
            };
            match self.read_entry(queue, &entry)? {
                Some(Ok(record)) if !record.expired(now) => {
                    return Ok(Ok(Answer::Job(Some(Core::show(queue, &entry, record, 0, now)))));
                }
                unfit => self.pass_over(queue, unfit, now),
            }
        }
        Ok(Ok(Answer::Again))
    }

    /// A job by id.
    pub(super) fn peek_job(&mut self, job: &JobRef, now: Micros) -> Step {
        Ok(match self.txn.job(&self.job_key(&job.queue, job.id))? {
            Found::Record(record) if !record.expired(now) => {
                let entry = Entry { id: job.id, tries: 0, birth: record.birth };
                Ok(Answer::Job(Some(Core::show(&job.queue, &entry, record, 0, now))))
            }
            Found::Record(_) | Found::Nothing => Ok(Answer::Job(None)),
            Found::Corrupt(reason) => Err(Core::corrupt(&job.queue, job.id, &reason)),
        })
    }
}

fn taken(job: &NewJob) -> Error {
    Error::refused(format!("job {} of {} is stored already", job.id, job.queue))
}
