//! Schedules of a pool that moves: each goes to the new store once, with its progress. It is marked in the old store first:
//! from then on nobody places it there. Then it is written to the new one, and at last its mark says that it has arrived. A
//! move that was cut off is finished by whoever looks next. The mark stays, so that a server that knows the old store
//! alone says where the schedule is not.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::stores::{LOOK_AGAIN, TwoStores};
use crate::clock::Millis;
use crate::engine::{
    DueList, DueSchedules, ScheduleBounds, ScheduleId, ScheduleList, SchedulePage, SchedulePut,
    ScheduleSetting, ScheduleState, ScheduleStep, ScheduleThen, Stepped, StoredSchedule, together,
};
use crate::error::Result;
use crate::name::Namespace;
use bytes::Bytes;

/// How many move at a time.
const AT_A_TIME: usize = 64;
/// How long the placer may sleep: servers that know the old store alone may add schedules there.
const LOOK: Duration = Duration::from_secs(1);
/// When a schedule on its way is due: nobody comes to it for that.
const ON_ITS_WAY: Millis = (1 << 53) - 1;
/// What moves is no new schedule to the pool.
const ALL: ScheduleBounds = ScheduleBounds { of_namespace: ON_ITS_WAY, of_pool: ON_ITS_WAY };

impl TwoStores {
    /// In the new store. A schedule that may be in the old one moves first.
    pub async fn step_schedule(&self, step: ScheduleStep) -> Result<Stepped> {
        if step.then == ScheduleThen::Delete {
            let _one = self.moves.one.lock().await;
            let id = step.id.clone();
            let stepped = self.new.step_schedule(step).await?;
            if let Stepped::Done { .. } = stepped {
                // The name is free, in the old store too.
                let _ = self.ask_old(self.forget_mark(&id)).await;
            }
            return Ok(stepped);
        }
        if step.expected.is_none() {
            self.move_one(&step.id).await?;
        }
        self.new.step_schedule(step).await
    }

    /// Of the new store, once all have moved.
    pub async fn list_schedules(&self, namespace: &Namespace, list: ScheduleList) -> Result<SchedulePage> {
        if let ScheduleList::One(name) = &list {
            let page = self.new.list_schedules(namespace, list.clone()).await?;
            if !page.schedules.is_empty() {
                return Ok(page);
            }
            self.move_one(&ScheduleId { namespace: namespace.clone(), name: name.clone() }).await?;
        } else if let Err(error) = self.move_all().await
            && !self.moves.done.load(Ordering::Relaxed)
        {
            return Err(error);
        }
        self.new.list_schedules(namespace, list).await
    }

    /// Of the new store. What is in the old one moves first, as far as that answers.
    pub async fn due_schedules(&self, list: DueList) -> Result<DueSchedules> {
        let moved = self.move_all().await;
        let due = self.new.due_schedules(list).await?;
        let look = if moved.is_ok() { LOOK } else { LOOK_AGAIN };
        Ok(DueSchedules { next: due.next.min(look), ..due })
    }

    /// Moves what is left in the old store.
    async fn move_all(&self) -> Result<()> {
        let _one = self.moves.one.lock().await;
        loop {
            let left = self
                .ask_old(self.old.due_schedules(DueList::Ever { skip: 0, limit: AT_A_TIME }))
                .await?
                .schedules;
            if left.is_empty() {
                self.moves.done.store(true, Ordering::Relaxed);
                return Ok(());
            }
            together::try_all(left.into_iter().map(|schedule| self.move_schedule(schedule))).await?;
        }
    }

    /// Moves one, if it is in the old store.
    async fn move_one(&self, id: &ScheduleId) -> Result<()> {
        let _one = self.moves.one.lock().await;
        let list = ScheduleList::One(id.name.clone());
        let found = self.ask_old(self.old.list_schedules(&id.namespace, list)).await?.schedules;
        match found.into_iter().next() {
            Some(schedule) => self.move_schedule(schedule).await,
            None => Ok(()),
        }
    }

    /// Takes a schedule from where it is on its way. Who was faster has done it, or the next look does.
    async fn move_schedule(&self, mut schedule: StoredSchedule) -> Result<()> {
        if has_arrived(&schedule) {
            return Ok(());
        }
        let put = |next, setting, schedule: &StoredSchedule| SchedulePut {
            setting,
            revision: Some(schedule.version.revision),
            bounds: ALL,
            ..SchedulePut::plain(ScheduleState::Moved, next, schedule.progress.clone(), schedule.landed)
        };
        let in_old = async |schedule: &StoredSchedule, put| {
            let then = ScheduleThen::Put(Box::new(put));
            let step = ScheduleStep { id: schedule.id.clone(), expected: Some(schedule.version), then };
            self.old.step_schedule(step).await
        };
        if schedule.state != ScheduleState::Moved {
            let mark = SchedulePut { revision: None, ..put(Some(ON_ITS_WAY), None, &schedule) };
            let Stepped::Done { version, .. } = in_old(&schedule, mark).await? else { return Ok(()) };
            schedule.version = version;
        }
        // Whoever looks at it next finds out what it does, and when.
        let arrives = SchedulePut {
            state: ScheduleState::On,
            ..put(Some(0), Some(schedule.setting.clone()), &schedule)
        };
        let then = ScheduleThen::Put(Box::new(arrives));
        self.new.step_schedule(ScheduleStep { id: schedule.id.clone(), expected: None, then }).await?;
        // Nothing of it is left but its name.
        let empty = ScheduleSetting { text: Bytes::new(), body: Bytes::new(), ..schedule.setting.clone() };
        let mark = SchedulePut { progress: Bytes::new(), landed: None, ..put(None, Some(empty), &schedule) };
        in_old(&schedule, mark).await.map(drop)
    }

    /// Forgets that a schedule has moved.
    async fn forget_mark(&self, id: &ScheduleId) -> Result<()> {
        let list = ScheduleList::One(id.name.clone());
        let found = self.old.list_schedules(&id.namespace, list).await?.schedules;
        if let Some(mark) = found.into_iter().find(has_arrived) {
            let then = ScheduleThen::Delete;
            let step = ScheduleStep { id: id.clone(), expected: Some(mark.version), then };
            self.old.step_schedule(step).await?;
        }
        Ok(())
    }
}

fn has_arrived(schedule: &StoredSchedule) -> bool {
    schedule.state == ScheduleState::Moved && schedule.next.is_none()
}
