//! Publish and republish.

use super::state::WriterState;
use super::step::{Outcome, Step};
use super::store::codec::{self, Entry, Location, Record};
use super::store::{Fatal, Found, Space};
use crate::clock::{Micros, micros};
use crate::error::Error;
use crate::job::{JobRef, NewJob};

/// Stores all jobs or none.
pub struct Publish(pub Vec<NewJob>);

/// Deletes the old job and stores the new one, or does neither.
pub struct Republish {
    pub old: JobRef,
    pub new: NewJob,
}

impl Step for Publish {
    type Reply = ();
    const MUST_LAST: bool = true;

    fn items(&self) -> usize {
        self.0.len()
    }

    fn bytes(&self) -> usize {
        self.0.iter().map(|job| job.body.len()).sum()
    }

    fn run(self, state: &mut WriterState, now: Micros) -> Outcome<()> {
        let jobs = self.0;
        let mut expired = Vec::new();
        let mut newest = state.newest;
        for (at, job) in jobs.iter().enumerate() {
            if job.id > newest {
                // Larger than all that are stored and all before it in this call: nobody has it.
                newest = job.id;
                continue;
            }
            let twice = jobs[..at].iter().any(|other| other.id == job.id && other.queue == job.queue);
            match state.holder(job, now)? {
                Holder::Nobody if !twice => {}
                Holder::Expired if !twice => expired.push(JobRef { queue: job.queue.clone(), id: job.id }),
                _ => return Err(taken(job).into()),
            }
        }
        for job in expired {
            state.ack(&job, now)?;
        }
        for job in jobs {
            state.insert(job, now);
        }
        Ok(())
    }
}

impl Step for Republish {
    type Reply = ();
    const MUST_LAST: bool = true;

    fn bytes(&self) -> usize {
        self.new.body.len()
    }

    fn run(self, state: &mut WriterState, now: Micros) -> Outcome<()> {
        let Republish { old, new } = self;
        if new.id <= state.newest && (old.id != new.id || old.queue != new.queue) {
            match state.holder(&new, now)? {
                Holder::Nobody => {}
                Holder::Expired => state.ack(&JobRef { queue: new.queue.clone(), id: new.id }, now)?,
                Holder::Lives => return Err(taken(&new).into()),
            }
        }
        state.ack(&old, now)?;
        state.insert(new, now);
        Ok(())
    }
}

/// Who has an id that is to be published.
enum Holder {
    Nobody,
    /// A job whose ttl has ended: as good as gone, but not swept yet.
    Expired,
    Lives,
}

impl WriterState {
    /// Who has this id.
    fn holder(&self, job: &NewJob, now: Micros) -> Result<Holder, Fatal> {
        Ok(match self.txn.job(&self.job_key(&job.queue, job.id))? {
            Found::Nothing => Holder::Nobody,
            Found::Record(record) if record.expired(now) => Holder::Expired,
            Found::Record(_) | Found::Corrupt(_) => Holder::Lives,
        })
    }

    /// Stores a job whose id nobody has.
    fn insert(&mut self, job: NewJob, now: Micros) {
        let NewJob { queue, id, body, attributes, ttl, delay, tries } = job;
        let generation = self.next_seq();
        self.note_id(id);
        let key = self.job_key(&queue, id);
        let due = now.saturating_add(micros(delay));
        let location =
            if delay.is_zero() { Location::Ready(generation) } else { Location::Delayed((due, generation)) };
        let expires = ttl.map(|ttl| now.saturating_add(micros(ttl)));
        let attributes = if id.is_versioned() { attributes } else { Default::default() };
        self.will_expire(&queue, expires);
        let entry = Entry { id, tries: tries.get(), generation };
        self.txn.put_job(key, &Record { location, generation, expires, attributes, body });
        match location {
            Location::Delayed(timer) => {
                let limit = self.windows.delayed;
                let state = self.queue(&queue);
                state.timers += 1;
                let value = codec::timer_value(&state.key, &entry);
                self.txn.put(Space::Delayed, codec::timer_key(timer), value);
                self.timers.delay(timer, queue, entry, limit);
                self.next_due.stored(due);
            }
            Location::Ready(_) | Location::Dead(_) => self.push_ready(&queue, generation, entry),
        }
    }
}

fn taken(job: &NewJob) -> Error {
    Error::refused(format!("job {} of {} is stored already", job.id, job.queue))
}
