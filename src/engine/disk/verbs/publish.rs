//! Publish. Checks everything before it writes, and reads only rows that may exist: the owner of a key, and of an id
//! that is not the newest.

use crate::clock::{Micros, Millis, micros};
use crate::engine::disk::codec::{Entry, Location, Record};
use crate::engine::disk::state::WriterState;
use crate::engine::disk::step::{Step, StepResult};
use crate::engine::disk::store::{Fatal, Found};
use crate::engine::{How, OnConflict, Placed, Placing, Publication, Published};
use crate::error::Error;
use crate::job::{JobId, JobRef, NewJob};
use crate::name::{JobKey, Queue};

/// Publishes all jobs, or none.
pub struct Publish(pub Publication);

/// What to do about a job whose key is taken.
enum Plan {
    Duplicate {
        id: JobId,
        due_at: Option<Millis>,
    },
    /// The other job is deleted. It may have expired: then it does not count.
    Replace {
        id: JobId,
        lives: bool,
    },
    /// The other job continues to run without its key.
    TakeKey,
}

/// The key belongs to this job, so the whole call stores nothing.
struct KeyTaken(JobId);

impl Step for Publish {
    type Reply = Published;
    const MUST_LAST: bool = true;

    fn items(&self) -> usize {
        self.0.jobs.len()
    }

    fn bytes(&self) -> usize {
        self.0.bytes()
    }

    fn run(self, state: &mut WriterState, now: Micros) -> StepResult<Published> {
        let Publication { jobs, replaces, once } = self.0;
        let once = once.and_then(|once| Some((once, jobs.first()?.job.queue.clone())));
        if let Some((once, queue)) = &once
            && let Some(done) = state.remembered(queue, once, now)?
        {
            return Ok(done);
        }
        // A job without conflicts needs no plan.
        let (mut plans, mut expired) = (Vec::new(), Vec::new());
        let (mut newest, mut conflict) = (state.newest, None);
        for (index, Placing { job, key, .. }) in jobs.iter().enumerate() {
            let before = || jobs[..index].iter().filter(|other| other.job.queue == job.queue);
            if job.id > newest {
                // Larger than all stored ids and the earlier ids of this call, so it is free.
                newest = job.id;
            } else if before().any(|other| other.job.id == job.id) {
                return Err(taken(job).into());
            } else if replaces.as_ref().is_none_or(|old| old.id != job.id || old.queue != job.queue) {
                match state.holder(job, now)? {
                    Holder::Nobody => {}
                    Holder::Expired => expired.push(JobRef { queue: job.queue.clone(), id: job.id }),
                    Holder::Lives => return Err(taken(job).into()),
                }
            }
            let Some((key, on_conflict)) = key else { continue };
            if before().any(|other| other.key.as_ref().is_some_and(|(other, _)| other == key)) {
                return Err(Error::refused("two jobs of one call have the same key").into());
            }
            match state.plan(&job.queue, key, *on_conflict, replaces.as_ref(), now)? {
                Ok(plan) => plans.extend(plan.map(|plan| (index, plan))),
                Err(KeyTaken(id)) => conflict = conflict.or(Some(Published::Conflict { index, id })),
            }
        }
        if let Some(conflict) = conflict {
            return Ok(conflict);
        }
        let gone: Vec<JobRef> = replaces.into_iter().chain(expired).collect();
        if !state.quotas.is_empty() {
            let replaced = plans.iter().filter_map(|(index, plan)| match plan {
                Plan::Replace { id, .. } => Some(JobRef { queue: jobs[*index].job.queue.clone(), id: *id }),
                _ => None,
            });
            let all_gone: Vec<JobRef> = gone.iter().cloned().chain(replaced).collect();
            let is_stored = |at: usize| {
                !plans.iter().any(|(index, plan)| *index == at && matches!(plan, Plan::Duplicate { .. }))
            };
            let stored = jobs.iter().enumerate().filter(|(at, _)| is_stored(*at));
            let stores_none = stored.clone().next().is_none();
            state.admit(stored.map(|(_, placing)| &placing.job), &all_gone)?;
            if let Some((_, queue)) = once.as_ref().filter(|_| stores_none) {
                // It stores no job, but its result.
                state.admit_record(&queue.namespace)?;
            }
        }
        // From here on everything is written, and only the disk can fail.
        for job in &gone {
            state.ack(job, now)?;
        }
        let mut placed = Vec::with_capacity(jobs.len());
        let mut plans = plans.into_iter().peekable();
        for (index, placing) in jobs.into_iter().enumerate() {
            let plan = plans.next_if(|(at, _)| *at == index).map(|(_, plan)| plan);
            placed.push(state.carry_out(placing, plan, now)?);
        }
        if let Some((once, queue)) = once {
            state.remember(&queue, once, placed.clone(), now);
        }
        Ok(Published::Done(placed))
    }
}

/// Owner of an id to be published.
enum Holder {
    Nobody,
    /// A job whose ttl has ended, but which has not been swept yet.
    Expired,
    Lives,
}

impl WriterState {
    /// Returns the owner of the id.
    fn holder(&self, job: &NewJob, now: Micros) -> Result<Holder, Fatal> {
        Ok(match self.txn.job(&self.job_key(&job.queue, job.id))? {
            Found::Nothing => Holder::Nobody,
            Found::Record(record) if record.expired(now) => Holder::Expired,
            Found::Record(_) | Found::Corrupt(_) => Holder::Lives,
        })
    }

    /// Returns the plan for a job whose key is taken; `None` if the key is free. Commits earlier
    /// writes, so it must not run in the middle of a step.
    fn plan(
        &mut self,
        queue: &Queue,
        key: &JobKey,
        on_conflict: OnConflict,
        replaces: Option<&JobRef>,
        now: Micros,
    ) -> Result<Result<Option<Plan>, KeyTaken>, Fatal> {
        if let OnConflict::Elsewhere(Placed { id, due_at, how: How::Duplicate }) = on_conflict {
            return Ok(Ok(Some(Plan::Duplicate { id, due_at })));
        }
        let Some((id, record)) = self.key_holder(queue, key)? else { return Ok(Ok(None)) };
        let holder = JobRef { queue: queue.clone(), id };
        if replaces == Some(&holder) {
            return Ok(Ok(None));
        }
        if record.expired(now) {
            return Ok(Ok(Some(Plan::Replace { id, lives: false })));
        }
        Ok(Ok(Some(match on_conflict {
            OnConflict::Fail => return Ok(Err(KeyTaken(id))),
            OnConflict::Keep => Plan::Duplicate { id, due_at: self.view(&holder, record, now)?.due_at },
            OnConflict::Replace | OnConflict::Elsewhere(_) if self.timers.running(&holder).is_some() => {
                Plan::TakeKey
            }
            OnConflict::Replace | OnConflict::Elsewhere(_) => Plan::Replace { id, lives: true },
        })))
    }

    /// Stores a job with a free id, following the plan for its key.
    fn carry_out(&mut self, placing: Placing, plan: Option<Plan>, now: Micros) -> Result<Placed, Fatal> {
        let Placing { job, at, key } = placing;
        let mut how = How::New;
        match plan {
            None => {}
            Some(Plan::Duplicate { id, due_at }) => return Ok(Placed { id, due_at, how: How::Duplicate }),
            Some(Plan::Replace { id, lives }) => {
                self.ack(&JobRef { queue: job.queue.clone(), id }, now)?;
                if lives {
                    how = How::Replaced(id);
                }
            }
            Some(Plan::TakeKey) => {
                if let Some((key, _)) = &key
                    && let Some((id, mut record)) = self.key_holder(&job.queue, key)?
                {
                    self.free_key(&job.queue, id, &record)?;
                    record.key = None;
                    self.txn.put_job(self.job_key(&job.queue, id), &record);
                }
            }
        }
        if let Some((_, OnConflict::Elsewhere(placed))) = &key {
            how = placed.how;
        }
        let due = match at {
            Some(at) => self.clock.at_time_of_day(at).max(now),
            None => now.saturating_add(micros(job.delay)),
        };
        let id = job.id;
        self.place(job, due, key.map(|(key, _)| key), now);
        Ok(Placed { id, due_at: Some(self.clock.to_day(due)), how })
    }

    /// Stores a job with a free id and key. It is ready at once if it is due.
    fn place(&mut self, job: NewJob, due: Micros, name: Option<JobKey>, now: Micros) {
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
        self.txn.put_new_job(key, &record);
        match location {
            Location::Delayed(timer) => self.start_delay(timer, &queue, entry),
            Location::Ready(_) | Location::Dead(_) => self.push_ready(&queue, generation, entry, None),
        }
    }
}

fn taken(job: &NewJob) -> Error {
    Error::refused(format!("job {} of {} is stored already", job.id, job.queue))
}
