//! Jobs of a schedule placed on request, in addition to due occurrences.

use std::time::Duration;

use super::condition::{NotChanged, TRIES};
use super::core::Scheduler;
use super::record::{Pending, entry_of};
use crate::clock::Millis;
use crate::engine::{Landed, OnConflict, Once, Published, ScheduleId, ScheduleStep, ScheduleThen, Stepped};
use crate::error::Error;
use crate::job::{JobId, JobIds};
use crate::schedule::{Became, Overlap};

/// A requested job.
#[derive(Clone, Debug)]
pub struct Runs<'a> {
    pub ids: &'a JobIds,
    /// Due time to show instead of now.
    pub at: Option<Millis>,
    /// Idempotency key of the request.
    pub once: Option<Once>,
}

/// Result of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ran {
    Placed {
        id: JobId,
        due_at: Option<Millis>,
        replayed: bool,
    },
    /// This job holds the key.
    Lives(JobId),
    /// Another request has used the idempotency key.
    Mismatch,
}

impl Scheduler {
    /// Places one job now, without deciding any occurrence.
    pub async fn run(&self, id: &ScheduleId, runs: Runs<'_>) -> Result<Ran, NotChanged> {
        for _ in 0..TRIES {
            let (mut schedule, now) = self.get(id).await?;
            let due = runs.at.unwrap_or(now);
            let queue = schedule.queue();
            if let Some(once) = &runs.once
                && let Some(done) = self.engine.recall(&queue, once).await?
            {
                return Ok(ran(done));
            }
            let job_id = self.engine.make_id(runs.ids, &queue, Duration::ZERO, true);
            let on_conflict = match schedule.setting.overlap {
                Overlap::Skip => OnConflict::Fail,
                Overlap::Allow | Overlap::Replace => OnConflict::Keep,
            };
            let mut job = self.publication(&schedule, job_id, due, false, on_conflict);
            job.once = runs.once.clone();
            schedule.state.pending = Some(Pending { due, outcome: Became::Run });
            schedule.state.zones = self.zones.version().to_owned();
            let when = schedule.when(&self.zones);
            let state = schedule.state_at(when.as_ref(), now);
            let mut put = self.put(&schedule, state, self.next_of(&schedule, now));
            put.job = Some(job);
            let then = ScheduleThen::Put(Box::new(put));
            let step = ScheduleStep { id: id.clone(), expected: Some(schedule.version), then };
            match self.engine.step_schedule(step).await? {
                Stepped::Done { landed: Some(Landed { placed, at }), .. } => {
                    let outcome = entry_of(due, Became::Run, Landed { placed, at }).outcome;
                    self.metrics.occurrences(outcome.as_str(), 1);
                    self.changed.notify_one();
                    return Ok(Ran::Placed { id: placed.id, due_at: placed.due_at, replayed: false });
                }
                Stepped::NotPlaced(published) => return Ok(ran(published)),
                Stepped::Refused(why) => return Err(Error::refused(why).into()),
                _ => {}
            }
        }
        Err(Error::Overloaded.into())
    }
}

/// Returns the result of an earlier request, or the reason for storing nothing.
fn ran(published: Published) -> Ran {
    match published {
        Published::Replay(placed) | Published::Done(placed) => match placed.first() {
            Some(placed) => Ran::Placed { id: placed.id, due_at: placed.due_at, replayed: true },
            None => Ran::Mismatch,
        },
        Published::Conflict { id, .. } => Ran::Lives(id),
        Published::Mismatch => Ran::Mismatch,
    }
}
