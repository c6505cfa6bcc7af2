//! Inspect: returns a job by its id or its key.

use std::time::Duration;

use crate::clock::{Micros, Millis};
use crate::engine::Detail;
use crate::engine::disk::codec::{self, Entry, Location, Record};
use crate::engine::disk::state::WriterState;
use crate::engine::disk::state::clock::PoolClock;
use crate::engine::disk::step::{Step, StepResult};
use crate::engine::disk::store::{Fatal, Found, Space};
use crate::job::{Attributes, JobId, JobRef, JobState, JobView, Receipt};
use crate::name::{JobKey, Queue};

/// Inspects a job.
pub struct Inspect {
    pub job: JobRef,
    pub detail: Detail,
}

/// Inspects the job with a key.
pub struct InspectKey {
    pub queue: Queue,
    pub key: JobKey,
    pub detail: Detail,
}

/// State of a job, its `due_at` by the pool's clock, and its tries.
pub type Whereabouts = (Option<JobState>, Option<Millis>, Option<u16>);

impl Step for Inspect {
    type Reply = Option<JobView>;
    const MUST_LAST: bool = false;

    fn run(self, state: &mut WriterState, now: Micros) -> StepResult<Option<JobView>> {
        let job = self.job;
        match state.txn.job(&state.job_key(&job.queue, job.id))? {
            Found::Record(mut record) => {
                state.set_end_of_dead(&job.queue, &mut record)?;
                if record.expired(now) {
                    return Ok(None);
                }
                Ok(Some(state.view_in(self.detail, &job, record, now)?))
            }
            Found::Nothing => Ok(None),
            Found::Corrupt(reason) => Err(WriterState::corrupt(&job.queue, job.id, &reason).into()),
        }
    }
}

impl Step for InspectKey {
    type Reply = Option<JobView>;
    const MUST_LAST: bool = false;

    fn run(self, state: &mut WriterState, now: Micros) -> StepResult<Option<JobView>> {
        Ok(match state.key_holder(&self.queue, &self.key)? {
            Some((id, record)) if !record.expired(now) => {
                Some(state.view_in(self.detail, &JobRef { queue: self.queue, id }, record, now)?)
            }
            _ => None,
        })
    }
}

/// Returns the view of an existing job.
pub fn view(
    id: JobId,
    record: Record,
    place: Whereabouts,
    with_body: bool,
    (now, clock): (Micros, &PoolClock),
) -> JobView {
    let (state, due_at, tries_left) = place;
    JobView {
        id,
        state,
        due_at: due_at.map(|at| at.saturating_sub(clock.ahead())),
        tries_left,
        receipt: None,
        ttl: record.expires.map(|at| Duration::from_micros(at.saturating_sub(now))),
        elapsed: Duration::from_millis((now / 1000).saturating_sub(id.published_at())),
        published_at: id.published_at().saturating_sub(clock.ahead()),
        key: record.key,
        reason: record.reason,
        size: record.body.len() as u64,
        body: with_body.then_some(record.body),
        attributes: if with_body { record.attributes } else { Attributes::new() },
    }
}

impl WriterState {
    /// Returns the full view of an existing job. Commits earlier writes, so it must not run in the middle of a step.
    pub fn view(&mut self, job: &JobRef, record: Record, now: Micros) -> Result<JobView, Fatal> {
        let place = self.find(job, &record)?;
        Ok(view(job.id, record, place, true, (now, &self.clock)))
    }

    /// Returns the requested detail. The stored detail is in the record, and needs no commit.
    fn view_in(
        &mut self,
        detail: Detail,
        job: &JobRef,
        record: Record,
        now: Micros,
    ) -> Result<JobView, Fatal> {
        match detail {
            Detail::All => self.view(job, record, now),
            Detail::HeldWith(tries) => {
                let receipt = self.receipt(job, tries, now);
                Ok(JobView { receipt, ..self.view(job, record, now)? })
            }
            Detail::Stored => {
                Ok(detail.of(view(job.id, record, (None, None, None), true, (now, &self.clock))))
            }
        }
    }

    /// Returns the receipt of a running job's delivery, if it has not ended and has this number of tries left.
    fn receipt(&self, job: &JobRef, tries_left: u16, now: Micros) -> Option<Receipt> {
        let (due, delivery) = self.timers.running(job).filter(|(due, _)| *due > now)?;
        let entry = self.timers.running_entry((due, delivery))?;
        (entry.tries == tries_left).then_some(Receipt { delivery, tries_left })
    }

    fn find(&mut self, job: &JobRef, record: &Record) -> Result<Whereabouts, Fatal> {
        if let Some(timer) = self.timers.running(job) {
            let tries = self.timers.running_entry(timer).map(|entry| entry.tries);
            return Ok((Some(JobState::Running), Some(timer.0 / 1000), tries));
        }
        self.txn.flush()?;
        match record.location {
            Location::Dead(seq) => {
                let since = self.list_row(Space::Dead, &job.queue, seq)?.map(|(_, since)| since);
                Ok((Some(JobState::Dead), since, Some(0)))
            }
            Location::Delayed(timer) if self.timers.is_delayed(timer) => {
                let row = self.txn.store().get(Space::Delayed, &codec::timer_key(timer))?;
                let tries = match row {
                    Some(row) => Some(codec::split_timer_value(&row)?.1.tries),
                    None => None,
                };
                Ok((Some(JobState::Delayed), Some(timer.0 / 1000), tries))
            }
            // Ready. Its number is known if the window has it, or if it never moved.
            location => {
                self.refill_ready(&job.queue)?;
                let queue = self.queues.get(&job.queue);
                let seen = queue.and_then(|queue| queue.find_job(job.id, record.generation));
                let seq = match (seen, location) {
                    (Some((seq, _)), _) | (None, Location::Ready(seq)) => seq,
                    _ => return Ok((Some(JobState::Ready), None, None)),
                };
                let row = self.list_row(Space::Ready, &job.queue, seq)?;
                let row = row.filter(|(entry, _)| entry.generation == record.generation);
                let since = row.map(|(_, since)| since);
                Ok((Some(JobState::Ready), since, row.map(|(entry, _)| entry.tries)))
            }
        }
    }

    /// Returns a committed entry of a list, with the time of its insertion.
    pub fn list_row(&self, space: Space, queue: &Queue, seq: u64) -> Result<Option<(Entry, Millis)>, Fatal> {
        let row = self.txn.store().get(space, &codec::list_key(&self.prefix(queue), seq))?;
        Ok(row.map(|row| codec::read_list_value(seq, &row)).transpose()?)
    }
}
