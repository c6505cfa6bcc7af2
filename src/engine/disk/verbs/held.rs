//! Operations that require a receipt: touch and release. Each first checks that the receipt's delivery is current.

use std::time::Duration;

use crate::clock::{Micros, micros};
use crate::engine::disk::codec::{Location, Record};
use crate::engine::disk::state::WriterState;
use crate::engine::disk::step::{Step, StepResult};
use crate::engine::disk::store::{Fatal, Found};
use crate::engine::{Held, Release, Released, Touched, Tries};
use crate::job::{JobRef, Receipt};

/// Restarts the ttr, with a new receipt.
pub struct Touch {
    pub job: JobRef,
    pub receipt: Receipt,
    pub ttr: Duration,
}

/// Returns the job to its queue, or moves it to the dead letter.
pub struct GiveUp {
    pub job: JobRef,
    pub receipt: Receipt,
    pub release: Release,
}

/// Evaluates to the record of a delivered job, or returns why the delivery is no longer current.
macro_rules! held {
    ($state:expr, $job:expr, $receipt:expr, $now:expr) => {
        match $state.held($job, $receipt, $now)? {
            Held::Done(record) => record,
            Held::NotYours => return Ok(Held::NotYours),
            Held::NotFound => return Ok(Held::NotFound),
        }
    };
}

impl Step for Touch {
    type Reply = Held<Touched>;
    const MUST_LAST: bool = false;

    fn run(self, state: &mut WriterState, now: Micros) -> StepResult<Held<Touched>> {
        let Touch { job, receipt, ttr } = self;
        held!(state, &job, receipt, now);
        let Some(entry) = state.stop_running(&job) else { return Ok(Held::NotYours) };
        let (due, delivery) = (now.saturating_add(micros(ttr)), state.next_seq());
        state.start_ttr((due, delivery), &job.queue, entry);
        Ok(Held::Done(Touched { receipt: Receipt { delivery, ..receipt }, until: state.clock.to_day(due) }))
    }
}

impl Step for GiveUp {
    type Reply = Held<Released>;
    const MUST_LAST: bool = true;

    fn run(self, state: &mut WriterState, now: Micros) -> StepResult<Held<Released>> {
        let GiveUp { job, receipt, release } = self;
        let mut record = held!(state, &job, receipt, now);
        let Some(mut entry) = state.stop_running(&job) else { return Ok(Held::NotYours) };
        let (has_reason, expires) = (release.reason.is_some(), record.expires);
        record.reason = release.reason.or(record.reason);
        entry.tries = entry.tries.saturating_add(u16::from(release.tries == Tries::Restore));
        let due = now.saturating_add(micros(release.delay));
        if release.tries == Tries::Forfeit || entry.tries == 0 || record.expired(due) {
            state.move_to_dead_letter(&job.queue, entry, record, now)?;
            return Ok(Held::Done(Released::Dead));
        }
        if due > now {
            let timer = (due, state.next_seq());
            record.location = Location::Delayed(timer);
            state.txn.put_job(state.job_key(&job.queue, job.id), &record);
            state.start_delay(timer, &job.queue, entry);
        } else {
            if has_reason {
                state.txn.put_job(state.job_key(&job.queue, job.id), &record);
            }
            state.push_ready_first(&job.queue, entry, expires, now);
        }
        Ok(Held::Done(Released::Back { tries_left: entry.tries, due_at: state.clock.to_day(due) }))
    }
}

impl WriterState {
    /// Whether this delivery of the job is current.
    pub fn holds(&self, job: &JobRef, receipt: Receipt, now: Micros) -> bool {
        self.timers.running(job).is_some_and(|(due, seq)| seq == receipt.delivery && due > now)
    }

    /// Returns the record of the job, if this delivery is current. Fails if the record cannot be read.
    fn held(&mut self, job: &JobRef, receipt: Receipt, now: Micros) -> StepResult<Held<Record>> {
        let found: Result<Found, Fatal> = self.txn.job(&self.job_key(&job.queue, job.id));
        Ok(match found? {
            Found::Nothing => Held::NotFound,
            Found::Record(record) if record.expired(now) => Held::NotFound,
            Found::Record(record) if self.holds(job, receipt, now) => Held::Done(record),
            Found::Record(_) => Held::NotYours,
            Found::Corrupt(reason) => {
                return Err(WriterState::corrupt(&job.queue, job.id, &reason).into());
            }
        })
    }
}
