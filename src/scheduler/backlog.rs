//! What is late, as far as this process knows: whether the task that does it is busy, how schedules go on that catch up, and
//! since when something is owed. The store decides: all of this may be forgotten.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ahash::HashMap;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::record::Schedule;
use super::stored::ScheduleId;
use crate::clock::Millis;

/// Of so many it is kept how they go on. Others are found again by the store's word.
const MOST_GOING: usize = 1000;
/// So many are remembered that owe something.
const MOST_OWING: usize = 10_000;
/// A schedule that has more to catch up is looked at again after so long, in case that whoever catches up is gone. Much
/// sooner, and those with a backlog would fill the list of what is due now.
pub const TAKE_UP: Millis = 60_000;
/// What a schedule owed this long ago another server may have placed since.
const FORGOTTEN: Duration = Duration::from_secs(10);

/// What is late.
#[derive(Debug, Default)]
pub struct Late {
    woken: Notify,
    /// How often the task was woken, and how often when it began to look and found all done.
    woken_times: AtomicU64,
    done_times: AtomicU64,
    /// Schedules as the last step has left them, that have more to catch up.
    going: Mutex<BTreeMap<ScheduleId, Schedule>>,
    /// Since when schedules owe something that the store is not asked for yet, and when that was seen.
    owing: Mutex<HashMap<ScheduleId, (Millis, Instant)>>,
}

impl Late {
    /// There is something to do.
    pub fn wake(&self) {
        self.woken_times.fetch_add(1, Ordering::AcqRel);
        self.woken.notify_one();
    }

    /// There may be something to walk for.
    pub fn nudge(&self) {
        self.woken.notify_one();
    }

    /// Waits until one of both is said.
    pub async fn woken(&self) {
        self.woken.notified().await;
    }

    /// How often it was woken so far: for [`rest`](Late::rest), before it looks.
    pub fn woken_times(&self) -> u64 {
        self.woken_times.load(Ordering::Acquire)
    }

    /// There is nothing to do any more, unless it was woken since it looked.
    pub fn rest(&self, woken_times: u64) {
        self.done_times.store(woken_times, Ordering::Release);
    }

    /// Whether it has done all that there was to do when it had been woken so often.
    pub fn has_done(&self, woken_times: u64) -> bool {
        self.done_times.load(Ordering::Acquire) >= woken_times
    }

    /// Whether the task has something to do.
    pub fn is_busy(&self) -> bool {
        self.woken_times() != self.done_times.load(Ordering::Acquire)
    }

    /// This schedule has more to catch up.
    pub fn hand(&self, schedule: Schedule) {
        let mut going = self.going.lock();
        if going.len() < MOST_GOING || going.contains_key(&schedule.id) {
            going.insert(schedule.id.clone(), schedule);
        }
        drop(going);
        self.wake();
    }

    /// Some of those that have more to catch up.
    pub fn take(&self, most: usize) -> Vec<Schedule> {
        let mut going = self.going.lock();
        std::iter::from_fn(|| going.pop_first()).take(most).map(|(_, schedule)| schedule).collect()
    }

    pub fn has_more(&self) -> bool {
        !self.going.lock().is_empty()
    }

    /// Remembers since when a schedule owes something.
    pub fn owes(&self, id: &ScheduleId, since: Option<Millis>) {
        let mut owing = self.owing.lock();
        match since {
            Some(since) if owing.len() < MOST_OWING => _ = owing.insert(id.clone(), (since, Instant::now())),
            _ => _ = owing.remove(id),
        }
    }

    /// Since when something is owed, as far as this server knows.
    pub fn oldest_owed(&self) -> Option<Millis> {
        let mut owing = self.owing.lock();
        owing.retain(|_, (_, seen)| seen.elapsed() < FORGOTTEN);
        owing.values().map(|(since, _)| *since).min()
    }
}
