//! Publish with keys, due instants, and requests that are safe to repeat. Looks at everything before it writes.

use super::publish::{Holder, taken};
use crate::clock::{Micros, Millis, micros};
use crate::engine::disk::state::WriterState;
use crate::engine::disk::step::{Outcome, Step};
use crate::engine::disk::store::codec::{self, Remembered};
use crate::engine::disk::store::{Fatal, Space};
use crate::engine::{How, OnConflict, Once, Placed, Placing, Publication, Published, REMEMBERED};
use crate::error::Error;
use crate::job::{JobId, JobRef};
use crate::name::Queue;

/// Does all of it, or nothing.
pub struct PublishWith(pub Publication);

/// What became of a call that is safe to repeat, if it is remembered.
pub struct Recall {
    pub queue: Queue,
    pub once: Once,
}

impl Step for Recall {
    type Reply = Option<Published>;
    const MUST_LAST: bool = false;

    fn run(self, state: &mut WriterState, now: Micros) -> Outcome<Option<Published>> {
        Ok(state.remembered(&self.queue, &self.once, now)?)
    }
}

/// What is to be done about a job whose key another one has.
enum Plan {
    Store,
    Duplicate {
        id: JobId,
        due_at: Option<Millis>,
    },
    /// The other one is deleted. It may have expired: then it does not count.
    Replace {
        id: JobId,
        lives: bool,
    },
    /// The other one runs on without its key.
    Rob,
}

impl Step for PublishWith {
    type Reply = Published;
    const MUST_LAST: bool = true;

    fn items(&self) -> usize {
        self.0.jobs.len()
    }

    fn bytes(&self) -> usize {
        self.0.jobs.iter().map(|placing| placing.job.body.len()).sum()
    }

    fn run(self, state: &mut WriterState, now: Micros) -> Outcome<Published> {
        let Publication { jobs, replaces, once } = self.0;
        let Some(queue) = jobs.first().map(|placing| placing.job.queue.clone()) else {
            return Ok(Published::Done(Vec::new()));
        };
        if let Some(once) = &once
            && let Some(done) = state.remembered(&queue, once, now)?
        {
            return Ok(done);
        }
        let goes = |queue: &Queue, id: JobId| {
            replaces.as_ref().is_some_and(|old| old.id == id && old.queue == *queue)
        };
        let (mut plans, mut expired) = (Vec::with_capacity(jobs.len()), Vec::new());
        let mut conflict = None;
        for (index, placing) in jobs.iter().enumerate() {
            let Placing { job, key, .. } = placing;
            let same = |other: &&Placing| {
                let one_key = key.is_some() && other.key.as_ref().map(|k| &k.0) == key.as_ref().map(|k| &k.0);
                other.job.queue == job.queue && (one_key || other.job.id == job.id)
            };
            if let Some(twin) = jobs[..index].iter().find(same) {
                return Err(if twin.job.id == job.id {
                    taken(job).into()
                } else {
                    Error::refused("two jobs of one call have one key").into()
                });
            }
            if job.id <= state.newest && !goes(&job.queue, job.id) {
                match state.holder(job, now)? {
                    Holder::Nobody => {}
                    Holder::Expired => expired.push(JobRef { queue: job.queue.clone(), id: job.id }),
                    Holder::Lives => return Err(taken(job).into()),
                }
            }
            let holder = match key {
                Some((_, OnConflict::Elsewhere(Placed { id, due_at, how: How::Duplicate }))) => {
                    plans.push(Plan::Duplicate { id: *id, due_at: *due_at });
                    continue;
                }
                Some((key, on_conflict)) => {
                    state.key_holder(&job.queue, key)?.map(|held| (held, *on_conflict))
                }
                None => None,
            };
            plans.push(match holder {
                None => Plan::Store,
                Some(((id, _), _)) if goes(&job.queue, id) => Plan::Store,
                Some(((id, record), _)) if record.expired(now) => Plan::Replace { id, lives: false },
                Some(((id, _), OnConflict::Fail)) => {
                    conflict = conflict.or(Some(Published::Conflict { index, id }));
                    Plan::Store
                }
                Some(((id, record), OnConflict::Keep)) => {
                    let view = state.view(&JobRef { queue: job.queue.clone(), id }, record, now)?;
                    Plan::Duplicate { id, due_at: view.due_at }
                }
                Some(((id, _), OnConflict::Replace | OnConflict::Elsewhere(_))) => {
                    let job = JobRef { queue: job.queue.clone(), id };
                    let runs = state.timers.running(&job).is_some();
                    if runs { Plan::Rob } else { Plan::Replace { id, lives: true } }
                }
            });
        }
        if let Some(conflict) = conflict {
            return Ok(conflict);
        }
        let gone: Vec<JobRef> = replaces.into_iter().chain(expired).collect();
        if !state.quotas.is_empty() {
            let (mut stored, mut all_gone) = (Vec::with_capacity(jobs.len()), gone.clone());
            for (Placing { job, .. }, plan) in jobs.iter().zip(&plans) {
                match plan {
                    Plan::Duplicate { .. } => continue,
                    Plan::Replace { id, .. } => all_gone.push(JobRef { queue: job.queue.clone(), id: *id }),
                    Plan::Store | Plan::Rob => {}
                }
                stored.push(job);
            }
            state.admit(stored.into_iter(), &all_gone)?;
        }
        // From here on everything is written, and nothing fails but the disk.
        for job in &gone {
            state.ack(job, now)?;
        }
        let mut placed = Vec::with_capacity(jobs.len());
        for (placing, plan) in jobs.into_iter().zip(plans) {
            placed.push(state.carry_out(placing, plan, now)?);
        }
        if let Some(once) = once {
            state.remember(&queue, once, placed.clone(), now);
        }
        Ok(Published::Done(placed))
    }
}

impl WriterState {
    fn carry_out(&mut self, placing: Placing, plan: Plan, now: Micros) -> Result<Placed, Fatal> {
        let Placing { job, at, key } = placing;
        let mut how = How::New;
        match plan {
            Plan::Store => {}
            Plan::Duplicate { id, due_at } => return Ok(Placed { id, due_at, how: How::Duplicate }),
            Plan::Replace { id, lives } => {
                self.ack(&JobRef { queue: job.queue.clone(), id }, now)?;
                if lives {
                    how = How::Replaced(id);
                }
            }
            Plan::Rob => {
                if let Some((key, _)) = &key
                    && let Some((id, mut record)) = self.key_holder(&job.queue, key)?
                {
                    self.free_key(&job.queue, id, &record)?;
                    record.key = None;
                    self.txn.put_job(self.job_key(&job.queue, id), &record);
                }
            }
        }
        let due = match at {
            Some(at) => at.saturating_mul(1000).max(now),
            None => now.saturating_add(micros(job.delay)),
        };
        if let Some((_, OnConflict::Elsewhere(placed))) = &key {
            how = placed.how;
        }
        let id = job.id;
        self.place(job, due, key.map(|(key, _)| key), now);
        Ok(Placed { id, due_at: Some(due / 1000), how })
    }

    /// What the request was answered, if it was done already and is remembered.
    fn remembered(&self, queue: &Queue, once: &Once, now: Micros) -> Result<Option<Published>, Fatal> {
        let row = self.txn.row(Space::Once, codec::once_key(&self.prefix(queue), &once.key))?;
        let Some(row) = row else { return Ok(None) };
        let done = codec::read_remembered(&row)?;
        Ok(if done.until <= now {
            None
        } else if done.fingerprint == once.fingerprint {
            Some(Published::Replay(done.placed))
        } else {
            Some(Published::Mismatch)
        })
    }

    /// Remembers a request. One with the same key that need not be remembered any more may be there still: its end
    /// finds that the row is another one's.
    fn remember(&mut self, queue: &Queue, once: Once, placed: Vec<Placed>, now: Micros) {
        let until = now.saturating_add(micros(REMEMBERED));
        let key = codec::once_key(&self.prefix(queue), &once.key);
        self.once += 1;
        self.once_from = self.once_from.min(until);
        self.txn.put(Space::Once, codec::once_end(until, &key), []);
        let done = Remembered { until, fingerprint: once.fingerprint, placed };
        self.txn.put_row(Space::Once, key, codec::remembered(&done));
    }

    /// From when on requests have ended that were not forgotten yet, if some may have.
    pub fn requests_ended(&self, now: Micros) -> Option<Micros> {
        (self.once > 0 && self.once_from < now).then_some(self.once_from)
    }

    /// Forgets these requests, each of which ended at the time beside it. Those that are left end at `from` or later.
    pub fn forget_requests(&mut self, ended: Vec<(Micros, Vec<u8>)>, from: Micros) -> Result<(), Fatal> {
        for (until, key) in ended {
            self.txn.delete(Space::Once, codec::once_end(until, &key));
            self.once = self.once.saturating_sub(1);
            // A request that came later may have the same name.
            if let Some(row) = self.txn.row(Space::Once, key.clone())?
                && codec::read_remembered(&row)?.until == until
            {
                self.txn.delete_row(Space::Once, key);
            }
        }
        self.once_from = from;
        Ok(())
    }
}
