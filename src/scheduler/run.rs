//! Jobs of a schedule placed on request, in addition to due occurrences.

use std::time::Duration;

use super::condition::{NotChanged, TRIES};
use super::core::Scheduler;
use super::record::{Pending, Schedule, entry_of};
use super::stored::{Landed, ScheduleId, ScheduleStep, Stepped};
use crate::clock::Millis;
use crate::engine::{OnConflict, Once, Published};
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
        let (schedule, now) = self.get(id).await?;
        let due = runs.at.unwrap_or(now);
        let queue = schedule.queue();
        let job_id = self.engine.make_id(runs.ids, &queue, Duration::ZERO, true);
        let on_conflict = match schedule.setting.overlap {
            Overlap::Skip => OnConflict::Fail,
            Overlap::Allow | Overlap::Replace => OnConflict::Keep,
        };
        let mut job = self.publication(&schedule, job_id, due, false, on_conflict);
        job.once = runs.once;
        let placed = match self.engine.publish(job).await? {
            Published::Done(placed) => placed,
            other => return Ok(ran(other)),
        };
        let Some(placed) = placed.first().copied() else { return Ok(Ran::Mismatch) };
        let landed = Landed { at: self.store.now(), placed };
        let outcome = entry_of(due, Became::Run, landed).outcome;
        self.metrics.occurrences(outcome.as_str(), 1);
        // The job is stored: after an error the caller would publish a second job.
        if let Err(error) = self.tell_run(schedule, due, landed).await {
            tracing::warn!(pool = %self.pool, schedule = %id, ?error, "a job was placed, and the schedule does not show it");
        }
        Ok(Ran::Placed { id: placed.id, due_at: placed.due_at, replayed: false })
    }

    /// Adds a placed job to the schedule's history.
    async fn tell_run(&self, mut schedule: Schedule, due: Millis, landed: Landed) -> Result<(), NotChanged> {
        let id = schedule.id.clone();
        for _ in 0..TRIES {
            schedule.state.pending = Some(Pending { due, outcome: Became::Run });
            schedule.state.zones = self.zones.version().to_owned();
            let now = self.store.now();
            let when = schedule.when(&self.zones);
            let state = schedule.state_at(when.as_ref(), now);
            let mut put = self.put(&schedule, state, self.next_of(&schedule, now));
            put.landed = Some(landed);
            let step = ScheduleStep { id: id.clone(), expected: Some(schedule.version), put };
            if let Stepped::Done { .. } = self.store.step(step).await? {
                self.changed.notify_one();
                return Ok(());
            }
            schedule = self.get(&id).await?.0;
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
