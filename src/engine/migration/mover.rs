//! Schedules of a pool that moves: each goes to the new store once, with its progress. It is marked in the old store first:
//! from then on nobody places it there. Then it is written to the new one, and at last its mark says that it has arrived. A
//! move that was cut off is finished by whoever looks next. The mark stays, so that a server that knows the old store
//! alone says where the schedule is not.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::Mutex;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::patience::{OldState, late};
use crate::clock::Millis;
use crate::engine::{
    DueList, Engine, ScheduleBounds, ScheduleId, ScheduleList, SchedulePut, ScheduleSetting, ScheduleState,
    ScheduleStep, ScheduleThen, Stepped, StoredSchedule, together,
};
use crate::error::Result;
use crate::process::tasks::Tasks;

/// How many move at a time.
const AT_A_TIME: usize = 64;
/// When a schedule on its way is due: nobody comes to it for that.
const ON_ITS_WAY: Millis = (1 << 53) - 1;
/// How long what is due waits for the old store once all have moved.
const GLANCE: Duration = Duration::from_millis(5);
/// What moves is no new schedule to the pool.
const ALL: ScheduleBounds = ScheduleBounds { of_namespace: ON_ITS_WAY, of_pool: ON_ITS_WAY };

/// Moves schedules from the old store to the new one.
#[derive(Debug)]
pub struct Mover {
    old: Arc<dyn Engine>,
    new: Arc<dyn Engine>,
    state: Arc<OldState>,
    /// Held while schedules move, and while one is deleted: what was deleted must not come from the old store again.
    one: Mutex<()>,
    /// All that were in the old store had moved when it was last looked at, and none has stopped on its way since.
    done: AtomicBool,
    /// The last look into the old store has failed: nothing that is due waits for it until one succeeds.
    is_away: AtomicBool,
    /// A look into the old store that nobody waits for any more. Answers whether something has moved.
    under_way: Mutex<Option<JoinHandle<Result<bool>>>>,
}

impl Mover {
    pub fn new(old: Arc<dyn Engine>, new: Arc<dyn Engine>, state: Arc<OldState>) -> Mover {
        Mover {
            old,
            new,
            state,
            one: Mutex::default(),
            done: AtomicBool::new(false),
            is_away: AtomicBool::new(false),
            under_way: Mutex::default(),
        }
    }

    /// Whether the old store did not answer when it was last looked at.
    pub fn is_away(&self) -> bool {
        self.is_away.load(Ordering::Relaxed)
    }

    /// Whether all that were in the old store had moved when it was last looked at, and none has stopped on its way since.
    pub fn is_done(&self) -> bool {
        self.done.load(Ordering::Relaxed)
    }

    /// Begins to move what is left in the old store, and waits for that a little. One that goes on already, or a store that
    /// is known to be away, is not waited for. Answers whether something has moved.
    pub async fn begin(self: &Arc<Self>, tasks: &Tasks) -> Result<bool> {
        let mut under_way = self.under_way.lock().await;
        let patience = match &*under_way {
            None if self.is_away() => Duration::ZERO,
            None if self.is_done() => GLANCE,
            None => self.state.patience(),
            Some(_) => Duration::ZERO,
        };
        let task = under_way.get_or_insert_with(|| {
            let mover = self.clone();
            tasks.spawn(async move { mover.move_all().await })
        });
        let Ok(ended) = timeout(patience, task).await else { return Err(late()) };
        *under_way = None;
        ended.unwrap_or_else(|_| Err(late()))
    }

    /// Moves what is left in the old store. Answers whether there was something.
    pub async fn move_all(&self) -> Result<bool> {
        let _one = self.one.lock().await;
        let moved = self.move_left().await;
        self.is_away.store(moved.is_err(), Ordering::Relaxed);
        moved
    }

    /// Until a walk through all finds none.
    async fn move_left(&self) -> Result<bool> {
        let mut has_moved = false;
        while self.walk().await? {
            has_moved = true;
        }
        self.done.store(true, Ordering::Relaxed);
        Ok(has_moved)
    }

    async fn walk(&self) -> Result<bool> {
        let (mut found, mut from) = (false, None);
        loop {
            let part = DueList::Ever { from, limit: AT_A_TIME };
            let left = self.state.ask(self.old.due_schedules(part)).await?;
            for some in left.schedules.chunks(AT_A_TIME) {
                found = true;
                together::try_all(some.iter().map(|of| self.settle(&of.id))).await?;
            }
            from = left.more;
            if from.is_none() {
                return Ok(found);
            }
        }
    }

    /// Moves one, if it is in the old store.
    pub async fn move_one(&self, id: &ScheduleId) -> Result<()> {
        let _one = self.one.lock().await;
        self.settle(id).await
    }

    /// From here on the old store has no schedule of that name, or says that it has arrived.
    async fn settle(&self, id: &ScheduleId) -> Result<()> {
        let Some(schedule) = self.in_old(id).await? else { return Ok(()) };
        // Until the next walk finds none. An error or the end of a request may prevent its last mark: deleted then, it would
        // come from the old store again.
        self.done.store(false, Ordering::Relaxed);
        self.move_schedule(schedule).await
    }

    /// Deletes one in the new store. Nothing of it comes from the old one after that.
    pub async fn delete(&self, step: ScheduleStep) -> Result<Stepped> {
        let _one = self.one.lock().await;
        let id = step.id.clone();
        if let Err(error) = self.settle(&id).await
            && !self.is_done()
        {
            return Err(error);
        }
        let stepped = self.new.step_schedule(step).await?;
        if let Stepped::Done { .. } = stepped {
            // The name is free, in the old store too, if it answers.
            let _ = self.forget_mark(&id).await;
        }
        Ok(stepped)
    }

    async fn in_old(&self, id: &ScheduleId) -> Result<Option<StoredSchedule>> {
        let list = ScheduleList::One(id.name.clone());
        let found = self.state.ask(self.old.list_schedules(&id.namespace, list)).await?.schedules;
        Ok(found.into_iter().next())
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
            self.state.ask(self.old.step_schedule(step)).await
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
        let Some(mark) = self.in_old(id).await?.filter(has_arrived) else { return Ok(()) };
        let then = ScheduleThen::Delete;
        let step = ScheduleStep { id: id.clone(), expected: Some(mark.version), then };
        self.state.ask(self.old.step_schedule(step)).await.map(drop)
    }
}

fn has_arrived(schedule: &StoredSchedule) -> bool {
    schedule.state == ScheduleState::Moved && schedule.next.is_none()
}
