//! Schedules in a cluster: all records are in one partition, and their jobs in others. A step with a job first checks
//! the record, then publishes the job with an idempotency key, and finally replaces the record. An interrupted step is
//! repeated, and then finds its job published.

use std::sync::Arc;

use super::Router;
use crate::engine::{
    DueList, DueSchedules, Landed, Once, Publication, Published, ScheduleList, SchedulePage, SchedulePut,
    ScheduleStep, ScheduleThen, Stepped,
};
use crate::error::{Error, Result};
use crate::name::{IdempotencyKey, Namespace};

impl Router {
    pub async fn step_schedule(self: &Arc<Self>, step: ScheduleStep) -> Result<Stepped> {
        if self.only().is_some() {
            return self.settings().step_schedule(step).await;
        }
        // Continues if the caller leaves, because a job must not be stored without its record.
        let router = self.clone();
        let stepped = self.pool.tasks.spawn(async move { router.step_in_cluster(step).await });
        stepped.await.unwrap_or(Err(Error::Closed))
    }

    async fn step_in_cluster(&self, step: ScheduleStep) -> Result<Stepped> {
        let settings = self.settings();
        let ScheduleThen::Put(put) = &step.then else { return settings.step_schedule(step).await };
        let Some(job) = put.job.clone() else { return settings.step_schedule(step).await };
        let with = |put: SchedulePut| ScheduleStep { then: ScheduleThen::Put(Box::new(put)), ..step.clone() };
        let dry = SchedulePut { job: None, dry: true, ..(**put).clone() };
        match settings.step_schedule(with(dry)).await? {
            Stepped::Done { .. } => {}
            refused => return Ok(refused),
        }
        let is_own = job.once.is_none();
        let job = Publication { once: job.once.clone().or_else(|| once_of(&step)), ..job };
        let placed = match self.publish(job).await {
            Ok(Published::Done(placed)) => placed,
            Ok(Published::Replay(placed)) if is_own => placed,
            Ok(other) => return Ok(Stepped::NotPlaced(other)),
            Err(Error::Refused(why)) => return Ok(Stepped::Refused(why.to_string())),
            Err(error) => return Err(error),
        };
        let at = settings.now();
        let landed = placed.into_iter().next().map(|placed| Landed { at, placed });
        settings.step_schedule(with(SchedulePut { job: None, landed, ..(**put).clone() })).await
    }

    pub async fn list_schedules(&self, namespace: &Namespace, list: &ScheduleList) -> Result<SchedulePage> {
        self.settings().list_schedules(namespace, list).await
    }

    pub async fn due_schedules(&self, list: DueList) -> Result<DueSchedules> {
        self.settings().due_schedules(list).await
    }
}

/// Returns the idempotency key of the job of a step: derived from the version that the step expects.
fn once_of(step: &ScheduleStep) -> Option<Once> {
    let version = step.expected.unwrap_or_default();
    let key = format!("schedule/{}/{}/{}", step.id, version.revision, version.step);
    let hash = xxhash_rust::xxh3::xxh3_128(key.as_bytes());
    let key = IdempotencyKey::new(format!("schedule-{hash:032x}").as_bytes())?;
    Some(Once { key, fingerprint: hash.to_be_bytes() })
}
