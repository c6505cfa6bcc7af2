//! Schedules of a pool that moves: each goes to the new store once, with its progress. It is marked in the old store first:
//! from then on nobody places it there. Then it is written to the new one, and at last its mark says that it has arrived. A
//! move that was cut off is finished by whoever looks next. The mark stays, so that a server that knows the old store
//! alone says where the schedule is not.
//!
//! **There and back.** A schedule may come back to a store that has its mark: a pool moves back, or servers of two rounds
//! serve side by side, of which one moves it there and the other one back. It takes the place of its mark. What a server
//! that began later has moved away is left where it is for a while: else the two would move it again and again.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::Mutex;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use super::patience::{OldState, late};
use crate::clock::Millis;
use crate::engine::{
    DueList, Engine, ScheduleBounds, ScheduleId, ScheduleList, SchedulePut, ScheduleSetting, ScheduleState,
    ScheduleStep, ScheduleThen, Stepped, StoredSchedule, together,
};
use crate::error::{Error, Result};
use crate::process::tasks::Tasks;

/// How many move at a time.
const AT_A_TIME: usize = 64;
/// When a schedule on its way is due: nobody comes to it for that.
const ON_ITS_WAY: Millis = (1 << 53) - 1;
/// How long what is due waits for the old store once all have moved.
const GLANCE: Duration = Duration::from_millis(5);
/// For how long a schedule is left in the old store that a server which began later has moved there.
const LEFT_THERE: Duration = Duration::from_secs(600);
/// How soon the old store is looked through again when all that it has is left there.
const REST: Duration = Duration::from_secs(60);
/// After how long a schedule on its way is taken for one whose move was cut off, by who is to move it the other way.
const CUT_OFF: Duration = Duration::from_secs(1);
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
    /// The new store's time of day at the first look.
    began: OnceLock<Millis>,
    /// All that the old store has was left there: until when it is not looked through.
    rests_until: parking_lot::Mutex<Option<Instant>>,
}

/// What became of a schedule that may be in the old store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Settled {
    /// The old store has none of that name, or its mark.
    NotThere,
    /// It is left there.
    Left,
    /// It has moved, or somebody else has done something with it.
    Moved,
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
            began: OnceLock::new(),
            rests_until: parking_lot::Mutex::default(),
        }
    }

    /// The new store's time of day is this.
    pub fn hear(&self, now: Millis) {
        self.began.get_or_init(|| now);
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
        if self.rests_until.lock().is_some_and(|until| Instant::now() < until) {
            return Ok(false);
        }
        let moved = self.move_left().await;
        self.is_away.store(moved.is_err(), Ordering::Relaxed);
        moved
    }

    /// Until a walk through all finds none.
    async fn move_left(&self) -> Result<bool> {
        let mut has_moved = false;
        loop {
            let (moved, left) = self.walk().await?;
            *self.rests_until.lock() = (left && !moved).then(|| Instant::now() + REST);
            if !moved {
                self.done.store(true, Ordering::Relaxed);
                return Ok(has_moved);
            }
            has_moved = true;
        }
    }

    /// Answers whether some have moved, and whether some were left.
    async fn walk(&self) -> Result<(bool, bool)> {
        let (mut moved, mut left, mut from) = (false, false, None);
        loop {
            let part = DueList::Ever { from, limit: AT_A_TIME };
            let there = self.state.ask(self.old.due_schedules(part)).await?;
            for some in there.schedules.chunks(AT_A_TIME) {
                let settled = together::try_all(some.iter().map(|of| self.settle(&of.id))).await?;
                moved |= settled.iter().any(|settled| *settled != Settled::Left);
                left |= settled.contains(&Settled::Left);
            }
            from = there.more;
            if from.is_none() {
                return Ok((moved, left));
            }
        }
    }

    /// Moves one, if it is in the old store. Where neither store has it the mark of an earlier move goes: the name is free.
    pub async fn move_one(&self, id: &ScheduleId) -> Result<()> {
        let _one = self.one.lock().await;
        if self.settle(id).await? != Settled::NotThere {
            return Ok(());
        }
        let (there, _) = self.in_new(id).await?;
        let Some(mark) = there.filter(has_arrived) else { return Ok(()) };
        if self.in_old(id).await?.is_none() {
            let step =
                ScheduleStep { id: id.clone(), expected: Some(mark.version), then: ScheduleThen::Delete };
            self.new.step_schedule(step).await?;
        }
        Ok(())
    }

    /// From here on the old store has no schedule of that name, or says that it has arrived, unless it is left there.
    async fn settle(&self, id: &ScheduleId) -> Result<Settled> {
        let Some((schedule, went)) = self.in_old(id).await? else { return Ok(Settled::NotThere) };
        if has_arrived(&schedule) {
            return Ok(Settled::NotThere);
        }
        // Read while the old store has it: what a mark stands for is known so.
        let (there, now) = self.in_new(id).await?;
        if schedule.state != ScheduleState::Moved {
            if there.as_ref().is_some_and(|mark| self.is_left(mark, now)) {
                return Ok(Settled::Left);
            }
            if there.as_ref().is_some_and(is_on_its_way) {
                sleep(CUT_OFF).await;
                let (still, _) = self.in_new(id).await?;
                if still != there {
                    return Ok(Settled::Moved); // somebody has finished it
                }
            }
        } else if self.in_old(id).await?.map(|(still, _)| still.version) != Some(schedule.version) {
            return Ok(Settled::Moved); // somebody was faster
        }
        // Until the next walk finds none. An error or the end of a request may prevent its last mark: deleted then, it would
        // come from the old store again.
        self.done.store(false, Ordering::Relaxed);
        self.move_schedule(schedule, there, went).await.map(|()| Settled::Moved)
    }

    /// Whether this is the mark of one that was moved away from the new store just now, by a server that began after this
    /// one.
    fn is_left(&self, mark: &StoredSchedule, now: Millis) -> bool {
        let gone = std::str::from_utf8(&mark.progress).ok().and_then(|text| text.parse::<Millis>().ok());
        let (Some(began), Some(gone), true) = (self.began.get(), gone, has_arrived(mark)) else {
            return false;
        };
        // A time of day that was set back says nothing.
        gone > *began && now.checked_sub(gone).is_some_and(|ago| ago < LEFT_THERE.as_millis() as Millis)
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

    /// The record of that name in the old store, and that store's time of day.
    async fn in_old(&self, id: &ScheduleId) -> Result<Option<(StoredSchedule, Millis)>> {
        let list = ScheduleList::One(id.name.clone());
        let page = self.state.ask(self.old.list_schedules(&id.namespace, list)).await?;
        Ok(page.schedules.into_iter().next().map(|found| (found, page.now)))
    }

    /// The same of the new store.
    async fn in_new(&self, id: &ScheduleId) -> Result<(Option<StoredSchedule>, Millis)> {
        let list = ScheduleList::One(id.name.clone());
        let page = self.new.list_schedules(&id.namespace, list).await?;
        Ok((page.schedules.into_iter().next(), page.now))
    }

    /// Takes a schedule from where it is on its way. Who was faster has done it, or the next look does. `there` is what the
    /// new store had while the old one had the schedule: its mark of an earlier time gives way. It went at `went`, by the
    /// old store's time of day.
    async fn move_schedule(
        &self,
        mut schedule: StoredSchedule,
        there: Option<StoredSchedule>,
        went: Millis,
    ) -> Result<()> {
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
        let expected = there.filter(|there| there.state == ScheduleState::Moved).map(|mark| mark.version);
        let step = ScheduleStep { id: schedule.id.clone(), expected, then };
        match self.new.step_schedule(step).await? {
            Stepped::Done { .. } => {}
            // It is there: somebody was faster, or the new store has one of that name. Or it was deleted there meanwhile.
            Stepped::Stale => {
                let (there, _) = self.in_new(&schedule.id).await?;
                if there.as_ref().is_some_and(has_arrived) {
                    return Ok(()); // it was there, and has left
                }
            }
            _ => return Err(Error::refused("the store that the pool moves to takes no schedule")),
        }
        // Nothing of it is left but its name, and when it went.
        let empty = ScheduleSetting { text: Bytes::new(), body: Bytes::new(), ..schedule.setting.clone() };
        let mark = put(None, Some(empty), &schedule);
        let mark = SchedulePut { progress: went.to_string().into(), landed: None, ..mark };
        in_old(&schedule, mark).await.map(drop)
    }

    /// Forgets that a schedule has moved.
    async fn forget_mark(&self, id: &ScheduleId) -> Result<()> {
        let found = self.in_old(id).await?.map(|(found, _)| found);
        let Some(mark) = found.filter(has_arrived) else { return Ok(()) };
        let then = ScheduleThen::Delete;
        let step = ScheduleStep { id: id.clone(), expected: Some(mark.version), then };
        self.state.ask(self.old.step_schedule(step)).await.map(drop)
    }
}

/// Whether it is elsewhere by now: this is its mark.
pub fn has_arrived(schedule: &StoredSchedule) -> bool {
    schedule.state == ScheduleState::Moved && schedule.next.is_none()
}

/// Whether a move of it has begun, and not ended.
fn is_on_its_way(schedule: &StoredSchedule) -> bool {
    schedule.state == ScheduleState::Moved && schedule.next.is_some()
}
