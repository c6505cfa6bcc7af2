//! Ack: deletes a job in any state, or only during the delivery of a receipt.

use crate::clock::Micros;
use crate::engine::disk::codec::{self, Location, Record};
use crate::engine::disk::state::WriterState;
use crate::engine::disk::step::{Step, StepResult};
use crate::engine::disk::store::{Fatal, Found, Space};
use crate::job::{JobId, JobRef, Receipt};
use crate::name::Queue;

/// Deletes jobs of one queue; a job with a receipt only if its delivery is current. `J` holds them: a single job
/// needs no vector.
pub struct Ack<J> {
    pub queue: Queue,
    pub jobs: J,
}

impl<J: AsRef<[(JobId, Option<Receipt>)]> + Send + 'static> Step for Ack<J> {
    /// Jobs that exist and were not deleted.
    type Reply = Vec<JobId>;
    const MUST_LAST: bool = true;

    fn items(&self) -> usize {
        self.jobs.as_ref().len()
    }

    fn run(self, state: &mut WriterState, now: Micros) -> StepResult<Vec<JobId>> {
        let mut stale = Vec::new();
        let jobs = self.jobs.as_ref();
        let Some((first, _)) = jobs.first() else { return Ok(stale) };
        let mut job = JobRef { queue: self.queue, id: *first };
        for (id, receipt) in jobs {
            job.id = *id;
            match receipt {
                Some(receipt) if !state.holds(&job, *receipt, now) => {
                    let lives = match state.txn.job(&state.job_key(&job.queue, job.id))? {
                        Found::Record(record) => !record.expired(now),
                        Found::Corrupt(_) => true,
                        Found::Nothing => false,
                    };
                    if lives {
                        stale.push(job.id);
                    } else {
                        // An expired job may still have a timer.
                        state.ack(&job, now)?;
                    }
                }
                _ => state.ack(&job, now)?,
            }
        }
        Ok(stale)
    }
}

impl WriterState {
    /// Deletes a job in any state; an unknown one is ignored.
    pub fn ack(&mut self, job: &JobRef, now: Micros) -> Result<(), Fatal> {
        let key = self.job_key(&job.queue, job.id);
        if let Some(entry) = self.stop_running(job) {
            // Few jobs have keys: the others need not be read.
            if entry.keyed
                && let Found::Record(record) = self.txn.job(&key)?
            {
                self.free_key(&job.queue, job.id, &record)?;
            }
            self.delete_job(&job.queue, key)?;
            self.queues.note_idle(&job.queue, now);
            return Ok(());
        }
        match self.txn.job(&key)? {
            Found::Nothing => return Ok(()),
            // Its list is unknown; any entry of it is stale from now on.
            Found::Corrupt(_) => self.queues.sweep_at(&job.queue, 0),
            Found::Record(record) => {
                self.free_key(&job.queue, job.id, &record)?;
                self.leave(&job.queue, &record, now);
            }
        }
        self.leave_quarantine(&key);
        self.delete_job(&job.queue, key)?;
        Ok(())
    }

    /// Deletes the entry of a job that is not running, if the record tells its position. An entry left in the ready
    /// list is stale: consumes skip it, and the scheduled sweep deletes it.
    fn leave(&mut self, queue: &Queue, record: &Record, now: Micros) {
        match record.location {
            Location::Delayed(timer) => {
                if self.timers.undelay(timer) {
                    self.txn.delete(Space::Delayed, codec::timer_key(timer));
                    self.timer_gone(queue, now);
                } else {
                    self.queues.sweep_at(queue, 0);
                }
            }
            Location::Dead(seq) => {
                let Some(state) = self.queues.get_mut(queue) else { return };
                state.dead = state.dead.saturating_sub(1);
                self.txn.delete(Space::Dead, codec::list_key(&state.key, seq));
            }
            Location::Ready(seq) => {
                let Some(state) = self.queues.get_mut(queue) else { return };
                if state.find(seq).is_some_and(|entry| entry.generation == record.generation) {
                    state.remove(seq);
                    self.txn.delete(Space::Ready, codec::list_key(&state.key, seq));
                } else {
                    self.queues.sweep_at(queue, 0);
                }
            }
        }
        self.queues.note_idle(queue, now);
    }
}
