//! Schedules of a pool that moves are in the target; the source's are moved first.

use std::time::Duration;

use super::keys::Before;
use super::mover::has_arrived;
use super::patience::{LOOK_AGAIN, late};
use super::stores::TwoStores;
use crate::engine::{
    DueList, DueSchedules, ScheduleId, ScheduleList, SchedulePage, ScheduleStep, ScheduleThen, Stepped,
};
use crate::error::Result;
use crate::name::Namespace;

/// Maximum sleep of the scheduler: servers that know only the source may add schedules there.
const LOOK: Duration = Duration::from_secs(1);

impl TwoStores {
    /// Takes a step in the target. A schedule that may be in the source is moved first.
    pub async fn step_schedule(&self, mut step: ScheduleStep) -> Result<Stepped> {
        if step.then == ScheduleThen::Delete {
            return self.mover.delete(step).await;
        }
        if step.expected.is_none() {
            self.mover.move_one(&step.id).await?;
        }
        let mut go = Vec::new();
        if let ScheduleThen::Put(put) = &mut step.then
            && let Some(job) = &mut put.job
        {
            let has_keys = job.once.is_some() || job.jobs.iter().any(|placing| placing.key.is_some());
            if has_keys && self.mover.is_away() {
                return Err(late()); // a job in the source may have the key
            }
            go = match self.before_publish(job).await? {
                Before::Answered(published) => return Ok(Stepped::NotPlaced(published)),
                Before::Goes(go) => go,
            };
        }
        if go.is_empty() {
            return self.new.step_schedule(step).await;
        }
        let new = self.new.clone();
        let is_done = |stepped: &Stepped| matches!(stepped, Stepped::Done { .. });
        self.then_ack_old(go, async move { new.step_schedule(step).await }, is_done).await
    }

    /// Lists the target's schedules, after all have moved.
    pub async fn list_schedules(&self, namespace: &Namespace, list: ScheduleList) -> Result<SchedulePage> {
        if let ScheduleList::One(name) = &list {
            let page = self.new.list_schedules(namespace, list.clone()).await?;
            if page.schedules.first().is_some_and(|found| !has_arrived(found)) {
                return Ok(page);
            }
            self.mover.move_one(&ScheduleId { namespace: namespace.clone(), name: name.clone() }).await?;
        } else if let Err(error) = self.mover.move_all().await
            && !self.mover.is_done()
        {
            return Err(error);
        }
        self.new.list_schedules(namespace, list).await
    }

    /// Returns due schedules of the target. The source's schedules are moved first, if it replies in time.
    pub async fn due_schedules(&self, list: DueList) -> Result<DueSchedules> {
        let (moved, due) = tokio::join!(self.mover.begin(&self.tasks), self.new.due_schedules(list.clone()));
        let due = match moved {
            Ok(true) => self.new.due_schedules(list).await?,
            _ => due?,
        };
        self.mover.hear(due.now);
        let look = if moved.is_ok() { LOOK } else { LOOK_AGAIN };
        Ok(DueSchedules { next: due.next.min(look), ..due })
    }
}
