//! Publish and republish.

use crate::clock::{Micros, micros};
use crate::engine::disk::state::WriterState;
use crate::engine::disk::step::{Outcome, Step};
use crate::engine::disk::store::codec::{Entry, Location, Record};
use crate::engine::disk::store::{Fatal, Found};
use crate::error::Error;
use crate::job::{JobRef, NewJob};
use crate::name::JobKey;

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
        state.admit(jobs.iter(), &expired)?;
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
        let mut gone = vec![old];
        if new.id <= state.newest && (gone[0].id != new.id || gone[0].queue != new.queue) {
            match state.holder(&new, now)? {
                Holder::Nobody => {}
                Holder::Expired => gone.push(JobRef { queue: new.queue.clone(), id: new.id }),
                Holder::Lives => return Err(taken(&new).into()),
            }
        }
        state.admit(std::iter::once(&new), &gone)?;
        for job in gone {
            state.ack(&job, now)?;
        }
        state.insert(new, now);
        Ok(())
    }
}

/// Who has an id that is to be published.
pub enum Holder {
    Nobody,
    /// A job whose ttl has ended: as good as gone, but not swept yet.
    Expired,
    Lives,
}

impl WriterState {
    /// Who has this id.
    pub fn holder(&self, job: &NewJob, now: Micros) -> Result<Holder, Fatal> {
        Ok(match self.txn.job(&self.job_key(&job.queue, job.id))? {
            Found::Nothing => Holder::Nobody,
            Found::Record(record) if record.expired(now) => Holder::Expired,
            Found::Record(_) | Found::Corrupt(_) => Holder::Lives,
        })
    }

    /// Stores a job whose id nobody has.
    fn insert(&mut self, job: NewJob, now: Micros) {
        let due = now.saturating_add(micros(job.delay));
        self.place(job, due, None, now);
    }

    /// Stores a job whose id and key nobody has. It is ready at once if it is due now.
    pub fn place(&mut self, job: NewJob, due: Micros, name: Option<JobKey>, now: Micros) {
        let NewJob { queue, id, body, attributes, ttl, delay: _, tries } = job;
        let generation = self.next_seq();
        self.note_id(id);
        let key = self.job_key(&queue, id);
        let location =
            if due <= now { Location::Ready(generation) } else { Location::Delayed((due, generation)) };
        let expires = ttl.map(|ttl| now.saturating_add(micros(ttl)));
        let attributes = if id.is_versioned() { attributes } else { Default::default() };
        self.will_expire(&queue, expires);
        let entry = Entry { id, tries: tries.get(), generation, keyed: name.is_some() };
        if let Some(name) = &name {
            self.take_key(&queue, name, id, generation);
        }
        self.count_stored(&queue.namespace, body.len());
        let record = Record { location, generation, expires, attributes, key: name, reason: None, body };
        self.txn.put_job(key, &record);
        match location {
            Location::Delayed(timer) => self.start_delay(timer, &queue, entry),
            Location::Ready(_) | Location::Dead(_) => self.push_ready(&queue, generation, entry, None),
        }
    }
}

pub fn taken(job: &NewJob) -> Error {
    Error::refused(format!("job {} of {} is stored already", job.id, job.queue))
}
