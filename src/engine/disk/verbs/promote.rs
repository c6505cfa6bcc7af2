//! Promote: makes a delayed job ready before it is due.

use crate::clock::Micros;
use crate::engine::disk::codec::{self, Location, Record};
use crate::engine::disk::state::WriterState;
use crate::engine::disk::step::{Step, StepResult};
use crate::engine::disk::store::{Fatal, Found, Space};
use crate::engine::{By, Promoted};
use crate::job::{JobId, JobRef, JobState};
use crate::name::{JobKey, Queue};

/// Promotes one job.
pub struct Promote {
    pub queue: Queue,
    pub job: JobName,
}

/// An owned [`By`].
pub enum JobName {
    Id(JobId),
    Key(JobKey),
}

impl From<By<'_>> for JobName {
    fn from(by: By<'_>) -> JobName {
        match by {
            By::Id(id) => JobName::Id(id),
            By::Key(key) => JobName::Key(key.clone()),
        }
    }
}

impl Step for Promote {
    type Reply = Promoted;
    const MUST_LAST: bool = true;

    fn run(self, state: &mut WriterState, now: Micros) -> StepResult<Promoted> {
        let Promote { queue, job } = self;
        let found = match job {
            JobName::Id(id) => match state.txn.job(&state.job_key(&queue, id))? {
                Found::Record(record) => Some((id, record)),
                Found::Nothing => None,
                Found::Corrupt(reason) => return Err(WriterState::corrupt(&queue, id, &reason).into()),
            },
            JobName::Key(key) => state.key_holder(&queue, &key)?,
        };
        Ok(match found {
            Some((id, record)) if !record.expired(now) => {
                state.promote(&JobRef { queue, id }, record, now)?
            }
            _ => Promoted::NotFound,
        })
    }
}

impl WriterState {
    /// Makes a delayed job ready. Must begin a step, since it commits earlier writes. Also rewrites the record: its old
    /// location would name the deleted timer.
    fn promote(&mut self, job: &JobRef, mut record: Record, now: Micros) -> Result<Promoted, Fatal> {
        let state = match record.location {
            _ if self.timers.running(job).is_some() => JobState::Running,
            Location::Dead(_) => JobState::Dead,
            Location::Delayed(timer) if self.timers.is_delayed(timer) => {
                self.txn.flush()?;
                let row = self.txn.store().get(Space::Delayed, &codec::timer_key(timer))?;
                let row = row.ok_or_else(|| Fatal(format!("the timer of job {} is missing", job.id)))?;
                let entry = codec::split_timer_value(&row)?.1;
                self.timers.undelay(timer);
                self.txn.delete(Space::Delayed, codec::timer_key(timer));
                self.timer_passed(&job.queue);
                let seq = self.next_seq();
                record.location = Location::Ready(seq);
                self.txn.put_job(self.job_key(&job.queue, job.id), &record);
                self.push_ready(&job.queue, seq, entry, Some(now));
                return Ok(Promoted::Done);
            }
            Location::Delayed(_) | Location::Ready(_) => JobState::Ready,
        };
        Ok(Promoted::NotDelayed(Some(state)))
    }
}
