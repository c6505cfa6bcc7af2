//! Moves the schedules of a pool, each once and with its progress, in three steps. First the record in the source
//! becomes a mark, so that no server places the schedule there. Then the schedule is written to the target, and finally
//! the mark says that it has arrived. An interrupted move is finished by the next server that finds it. The mark stays,
//! so that a server that knows only the source can tell that the schedule has moved.
//!
//! **There and back.** A schedule may return to a store that has its mark: if a pool moves back, or if servers with an
//! earlier and a later configuration run side by side and move it in opposite directions. It then replaces its mark. A
//! schedule that was moved away by a server that started later stays where it is for a while; otherwise the two would
//! move it back and forth.

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

/// Number of schedules moved concurrently.
const AT_A_TIME: usize = 64;
/// Due time of a schedule whose move has begun: never reached.
const ON_ITS_WAY: Millis = (1 << 53) - 1;
/// How long a read of due schedules waits for the source after all have moved.
const GLANCE: Duration = Duration::from_millis(5);
/// How long a schedule stays in the source after a server that started later has moved it there.
const LEFT_THERE: Duration = Duration::from_secs(600);
/// Interval between walks through the source while all of its schedules stay there.
const REST: Duration = Duration::from_secs(60);
/// A move in the opposite direction counts as interrupted if its record has not changed for this long.
const CUT_OFF: Duration = Duration::from_secs(1);
/// A moved schedule is not new to the pool, so no bound applies.
const ALL: ScheduleBounds = ScheduleBounds { of_namespace: ON_ITS_WAY, of_pool: ON_ITS_WAY };

/// Moves schedules from the source to the target.
#[derive(Debug)]
pub struct Mover {
    old: Arc<dyn Engine>,
    new: Arc<dyn Engine>,
    state: Arc<OldState>,
    /// Held while schedules move, and while one is deleted: a deleted schedule must not be moved from the source again.
    one: Mutex<()>,
    /// The last walk found all schedules of the source moved, and no move has begun since.
    done: AtomicBool,
    /// The last walk through the source failed: due schedules do not wait for it until one succeeds.
    is_away: AtomicBool,
    /// A walk through the source that no caller waits for any more. Returns whether schedules have moved.
    under_way: Mutex<Option<JoinHandle<Result<bool>>>>,
    /// The target's time of day at the first read of due schedules.
    began: OnceLock<Millis>,
    /// When to walk through the source again, if all of its schedules stay there.
    rests_until: parking_lot::Mutex<Option<Instant>>,
}

/// State of a schedule after [`settle`](Mover::settle).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Settled {
    /// The source has no schedule with this name, or its mark.
    NotThere,
    /// It stays in the source.
    Left,
    /// It has moved, or another server has changed it.
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

    /// Records the target's time of day, the first time.
    pub fn hear(&self, now: Millis) {
        self.began.get_or_init(|| now);
    }

    /// Whether the last walk through the source failed.
    pub fn is_away(&self) -> bool {
        self.is_away.load(Ordering::Relaxed)
    }

    /// Whether the last walk found all schedules of the source moved, and no move has begun since.
    pub fn is_done(&self) -> bool {
        self.done.load(Ordering::Relaxed)
    }

    /// Starts to move the remaining schedules of the source, and waits a little. Does not wait for a walk that is
    /// already in progress, or for a source that is known to be unavailable. Returns whether schedules have moved.
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

    /// Moves the remaining schedules of the source. Returns whether there were any.
    pub async fn move_all(&self) -> Result<bool> {
        let _one = self.one.lock().await;
        if self.rests_until.lock().is_some_and(|until| Instant::now() < until) {
            return Ok(false);
        }
        let moved = self.move_left().await;
        self.is_away.store(moved.is_err(), Ordering::Relaxed);
        moved
    }

    /// Walks until a walk moves no schedule.
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

    /// Walks through the source once. Returns whether schedules have moved, and whether some stay there.
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

    /// Moves a schedule if the source has it. If neither store has it, deletes the target's mark of an earlier move,
    /// which frees the name.
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

    /// Moves a schedule unless it must stay. Otherwise the source then has its mark, or no schedule with this name.
    async fn settle(&self, id: &ScheduleId) -> Result<Settled> {
        let Some((schedule, went)) = self.in_old(id).await? else { return Ok(Settled::NotThere) };
        if has_arrived(&schedule) {
            return Ok(Settled::NotThere);
        }
        // Read while the source has the schedule, so a mark in the target is of an earlier move.
        let (there, now) = self.in_new(id).await?;
        if schedule.state != ScheduleState::Moved {
            if there.as_ref().is_some_and(|mark| self.is_left(mark, now)) {
                return Ok(Settled::Left);
            }
            if there.as_ref().is_some_and(is_on_its_way) {
                sleep(CUT_OFF).await;
                let (still, _) = self.in_new(id).await?;
                if still != there {
                    return Ok(Settled::Moved); // another server has finished it
                }
            }
        } else if self.in_old(id).await?.map(|(still, _)| still.version) != Some(schedule.version) {
            return Ok(Settled::Moved); // another server was faster
        }
        // Until the next walk moves none. An error or a cancelled request may prevent the last mark of this move; a
        // schedule deleted after that would be moved from the source again.
        self.done.store(false, Ordering::Relaxed);
        self.move_schedule(schedule, there, went).await.map(|()| Settled::Moved)
    }

    /// Whether this mark in the target shows that the schedule was moved away within [`LEFT_THERE`], by a server that
    /// has started since.
    fn is_left(&self, mark: &StoredSchedule, now: Millis) -> bool {
        let gone = std::str::from_utf8(&mark.progress).ok().and_then(|text| text.parse::<Millis>().ok());
        let (Some(began), Some(gone), true) = (self.began.get(), gone, has_arrived(mark)) else {
            return false;
        };
        // Says nothing if the time of day was set back.
        gone > *began && now.checked_sub(gone).is_some_and(|ago| ago < LEFT_THERE.as_millis() as Millis)
    }

    /// Deletes a schedule in the target, and prevents a later move from the source.
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
            // Frees the name in the source too, if it replies.
            let _ = self.forget_mark(&id).await;
        }
        Ok(stepped)
    }

    /// Returns the record with this name in the source, and the source's time of day.
    async fn in_old(&self, id: &ScheduleId) -> Result<Option<(StoredSchedule, Millis)>> {
        let list = ScheduleList::One(id.name.clone());
        let page = self.state.ask(self.old.list_schedules(&id.namespace, list)).await?;
        Ok(page.schedules.into_iter().next().map(|found| (found, page.now)))
    }

    /// Returns the record with this name in the target, and the target's time of day.
    async fn in_new(&self, id: &ScheduleId) -> Result<(Option<StoredSchedule>, Millis)> {
        let list = ScheduleList::One(id.name.clone());
        let page = self.new.list_schedules(&id.namespace, list).await?;
        Ok((page.schedules.into_iter().next(), page.now))
    }

    /// Moves a schedule, or finishes its interrupted move. Returns early if another server is faster: that server or
    /// the next walk finishes. `there` is the target's record, read while the source had the schedule; a mark from an
    /// earlier move is replaced. `went` is the source's time of day.
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
        // Due at once, so that the scheduler finds out its state and next occurrence.
        let arrives = SchedulePut {
            state: ScheduleState::On,
            ..put(Some(0), Some(schedule.setting.clone()), &schedule)
        };
        let then = ScheduleThen::Put(Box::new(arrives));
        let expected = there.filter(|there| there.state == ScheduleState::Moved).map(|mark| mark.version);
        let step = ScheduleStep { id: schedule.id.clone(), expected, then };
        match self.new.step_schedule(step).await? {
            Stepped::Done { .. } => {}
            // The target has it, moved by another server or created under this name, or it was deleted there meanwhile.
            Stepped::Stale => {
                let (there, _) = self.in_new(&schedule.id).await?;
                if there.as_ref().is_some_and(has_arrived) {
                    return Ok(()); // it has arrived, and moved on
                }
            }
            _ => return Err(Error::refused("the store that the pool moves to takes no schedule")),
        }
        // The mark keeps only the names and the time of the move.
        let empty = ScheduleSetting { text: Bytes::new(), body: Bytes::new(), ..schedule.setting.clone() };
        let mark = put(None, Some(empty), &schedule);
        let mark = SchedulePut { progress: went.to_string().into(), landed: None, ..mark };
        in_old(&schedule, mark).await.map(drop)
    }

    /// Deletes the mark of a moved schedule in the source.
    async fn forget_mark(&self, id: &ScheduleId) -> Result<()> {
        let found = self.in_old(id).await?.map(|(found, _)| found);
        let Some(mark) = found.filter(has_arrived) else { return Ok(()) };
        let then = ScheduleThen::Delete;
        let step = ScheduleStep { id: id.clone(), expected: Some(mark.version), then };
        self.state.ask(self.old.step_schedule(step)).await.map(drop)
    }
}

/// Whether the schedule has moved to another store, so that this record is only its mark.
pub fn has_arrived(schedule: &StoredSchedule) -> bool {
    schedule.state == ScheduleState::Moved && schedule.next.is_none()
}

/// Whether its move has begun and not ended.
fn is_on_its_way(schedule: &StoredSchedule) -> bool {
    schedule.state == ScheduleState::Moved && schedule.next.is_some()
}
