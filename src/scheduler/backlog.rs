//! This process's view of late occurrences: whether the task for them is busy, the schedules that are catching up, and
//! how long something has been owed. A cache: the records decide, and all of this may be lost.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ahash::HashMap;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::record::Schedule;
use super::stored::ScheduleId;
use crate::clock::Millis;

/// Maximum number of entries of `going`. Further schedules are read again from the settings.
const MOST_GOING: usize = 1000;
/// Maximum number of entries of `owing`.
const MOST_OWING: usize = 10_000;
/// A schedule with a backlog is due again after this time, in case the server that catches up has died. If this were
/// much shorter, schedules with a backlog would fill the list of due ones.
pub const TAKE_UP: Millis = 60_000;
/// Age at which an entry of `owing` is dropped: another server may have placed the occurrence since.
const FORGOTTEN: Duration = Duration::from_secs(10);

/// Late occurrences, and the wake-ups of the task for them.
#[derive(Debug, Default)]
pub struct Late {
    woken: Notify,
    /// Number of times the task was woken, and that number at the start of its last check that found nothing left.
    woken_times: AtomicU64,
    done_times: AtomicU64,
    /// Schedules with a backlog, as the last step left them.
    going: Mutex<BTreeMap<ScheduleId, Schedule>>,
    /// Due time of the oldest occurrence owed by a schedule that is not due by its record yet, and when that was
    /// noted.
    owing: Mutex<HashMap<ScheduleId, (Millis, Instant)>>,
}

impl Late {
    /// Wakes the task: something is late.
    pub fn wake(&self) {
        self.woken_times.fetch_add(1, Ordering::AcqRel);
        self.woken.notify_one();
    }

    /// Wakes the task: a [`walk`](super::walk) may be needed.
    pub fn nudge(&self) {
        self.woken.notify_one();
    }

    /// Waits for [`wake`](Late::wake) or [`nudge`](Late::nudge).
    pub async fn woken(&self) {
        self.woken.notified().await;
    }

    /// Returns how many times it was woken: read before a check, for [`rest`](Late::rest).
    pub fn woken_times(&self) -> u64 {
        self.woken_times.load(Ordering::Acquire)
    }

    /// Records that nothing is left to do, unless it was woken since `woken_times` was read.
    pub fn rest(&self, woken_times: u64) {
        self.done_times.store(woken_times, Ordering::Release);
    }

    /// Returns whether the work of its first `woken_times` wake-ups is done.
    pub fn has_done(&self, woken_times: u64) -> bool {
        self.done_times.load(Ordering::Acquire) >= woken_times
    }

    /// Returns whether the task has work to do.
    pub fn is_busy(&self) -> bool {
        self.woken_times() != self.done_times.load(Ordering::Acquire)
    }

    /// Hands a schedule with a backlog to the task, and wakes it.
    pub fn hand(&self, schedule: Schedule) {
        let mut going = self.going.lock();
        if going.len() < MOST_GOING || going.contains_key(&schedule.id) {
            going.insert(schedule.id.clone(), schedule);
        }
        drop(going);
        self.wake();
    }

    /// Removes and returns up to `most` schedules with a backlog.
    pub fn take(&self, most: usize) -> Vec<Schedule> {
        let mut going = self.going.lock();
        std::iter::from_fn(|| going.pop_first()).take(most).map(|(_, schedule)| schedule).collect()
    }

    pub fn has_more(&self) -> bool {
        !self.going.lock().is_empty()
    }

    /// Records the due time of the oldest occurrence that a schedule owes; `None`: it owes nothing.
    pub fn owes(&self, id: &ScheduleId, since: Option<Millis>) {
        let mut owing = self.owing.lock();
        match since {
            Some(since) if owing.len() < MOST_OWING || owing.contains_key(id) => {
                owing.insert(id.clone(), (since, Instant::now()));
            }
            Some(_) => {}
            None => _ = owing.remove(id),
        }
    }

    /// Returns the due time of the oldest owed occurrence known to this server.
    pub fn oldest_owed(&self) -> Option<Millis> {
        let mut owing = self.owing.lock();
        owing.retain(|_, (_, seen)| seen.elapsed() < FORGOTTEN);
        owing.values().map(|(since, _)| *since).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::name::{Namespace, ScheduleName};

    /// Guards against a gauge that forgets schedules because too many are behind.
    #[test]
    fn schedules_that_owe_stay_when_no_more_are_remembered() {
        let id = |n: usize| ScheduleId {
            namespace: Namespace::parse("ns").expect("a literal"),
            name: ScheduleName::parse(&format!("s{n}")).expect("a literal"),
        };
        let late = Late::default();
        for n in 0..MOST_OWING {
            late.owes(&id(n), Some(1000 + n as Millis));
        }
        late.owes(&id(0), Some(500));
        late.owes(&id(MOST_OWING), Some(1));
        assert_eq!(late.oldest_owed(), Some(500), "what a remembered schedule owes now");
        late.owes(&id(0), None);
        assert_eq!(late.oldest_owed(), Some(1001), "the next one");
    }
}
