//! Rebuilds the writer's state from the disk: from the summary of a clean shutdown, or else by one pass over each
//! list.

use std::sync::Arc;

use ahash::HashMap;

use super::clock::PoolClock;
use super::garbage::Garbage;
use super::queues::Queues;
use super::settings::Settings;
use super::timers::Timers;
use super::{Windows, WriterState, count, summary};
use crate::clock::{Clock, Micros};
use crate::engine::disk::codec::{self, FIRST_SEQ, META_CLOCK, META_NEWEST, META_SEQ};
use crate::engine::disk::store::txn::Txn;
use crate::engine::disk::store::{Fatal, Space, Store};
use crate::engine::next_due::NextDue;
use crate::engine::notifier::Notifiers;
use crate::job::JobId;
use crate::name::Queue;

/// Rebuilds the writer's state. `closed` is the last group after a clean shutdown.
pub fn load(
    store: Store,
    clock: Arc<dyn Clock>,
    windows: Windows,
    closed: Option<u64>,
) -> Result<WriterState, Fatal> {
    let seq = store.number(META_SEQ)?.unwrap_or(FIRST_SEQ);
    let clock_mark = store.number(META_CLOCK)?.unwrap_or(0);
    let clock = PoolClock::new(clock, clock_mark);
    let ahead_ms = clock.ahead();
    if ahead_ms > 0 {
        tracing::warn!(
            ahead_ms,
            "the system clock is behind the store's clock, which continues from its last time"
        );
    }
    let newest = match store.get(Space::Meta, META_NEWEST)? {
        Some(value) => codec::read_newest(&value)?,
        None => JobId::from_bytes([0; 16], false),
    };
    let notifiers: Arc<Notifiers> = Arc::default();
    let mut state = WriterState {
        txn: Txn::new(store.clone()),
        clock,
        windows,
        queues: Queues::new(windows.ready_budget),
        timers: Timers::default(),
        seq: (seq, seq),
        clock_mark,
        newest,
        newest_mark: newest,
        next_due: NextDue::new(notifiers.clone()),
        notifiers,
        garbage: Garbage::default(),
        dead_ends: Default::default(),
        keys: 0,
        once: 0,
        once_from: 0,
        quotas: Default::default(),
        settings: Settings::load(&store, clock_mark)?,
        quarantine: Default::default(),
        to_notify: Default::default(),
        observer: Arc::new(()),
        must_sync: false,
    };
    state.load_used(&store)?;
    load_queues(&mut state, &store)?;
    load_lists(&mut state, &store, closed)?;
    for key in store.all(Space::Quarantine) {
        state.quarantine.insert(key?.0.to_vec());
    }
    let live = state.live();
    state.garbage.count(&live, state.txn.store());
    state.load_dead_ends();
    let now = state.clock.now_micros();
    for queue in state.queues.names() {
        state.queues.note_idle(&queue, now);
    }
    Ok(state)
}

/// Loads the queues.
fn load_queues(state: &mut WriterState, store: &Store) -> Result<(), Fatal> {
    for item in store.all(Space::Queues) {
        let queue = codec::read_queue_key(&item?.0)?;
        let low = state.next_seq();
        let empty = state.queues.new_state(&queue, low);
        state.queues.insert(queue, empty);
    }
    Ok(())
}

/// Sweep state of a queue without a summary: all of it must be swept.
const UNKNOWN: (Micros, u64, bool) = (0, 0, true);

/// Loads the sizes of each queue's lists, from the summary or by counting.
fn load_lists(state: &mut WriterState, store: &Store, closed: Option<u64>) -> Result<(), Fatal> {
    let summary = closed.map(|number| summary::read(store, number)).transpose()?.flatten();
    if let Some(summary) = summary {
        for of in summary.queues {
            let q = state.queue(&of.queue);
            if of.ready > 0 {
                q.recover(of.ready, of.first);
            }
            (q.dead, q.dead_from, q.timers) = (of.dead, of.dead_from, of.timers);
            let now = state.clock_mark;
            state.queues.recover_sweep(&of.queue, of.sweep, now);
        }
        (state.keys, state.once) = (summary.keys, summary.once);
        load_running(state, store, false)?;
        state.timers.recover(summary.delayed);
        return state.refill_delayed();
    }
    let counts = count::count(store)?;
    for (prefix, (count, first)) in counts.ready {
        let queue = codec::read_queue_key(&prefix)?;
        state.queue(&queue).recover(count, first);
        state.queues.recover_sweep(&queue, UNKNOWN, 0);
    }
    for (prefix, (count, first)) in counts.dead {
        let q = state.queue(&codec::read_queue_key(&prefix)?);
        (q.dead, q.dead_from) = (count, first);
    }
    let mut delayed = 0;
    for (prefix, count) in counts.delayed {
        let queue = codec::read_queue_key(&prefix)?;
        state.queue(&queue).timers += count;
        state.queues.recover_sweep(&queue, UNKNOWN, 0);
        delayed += count;
    }
    (state.keys, state.once) = (counts.keys, counts.requests);
    load_running(state, store, true)?;
    state.timers.recover(delayed);
    state.refill_delayed()
}

/// Loads the running jobs, and counts them if `count`.
fn load_running(state: &mut WriterState, store: &Store, count: bool) -> Result<(), Fatal> {
    // By prefix: allocates only for queues not seen before.
    let mut queues: HashMap<Vec<u8>, Queue> = HashMap::default();
    for item in store.all(Space::Running) {
        let (key, value) = item?;
        let (prefix, entry) = codec::split_timer_value(&value)?;
        let queue = match queues.get(prefix) {
            Some(queue) => queue.clone(),
            None => {
                let queue = state.queues.shared(codec::read_queue_key(prefix)?);
                queues.insert(prefix.to_vec(), queue.clone());
                queue
            }
        };
        let q = state.queue(&queue);
        q.running += 1;
        if count {
            q.timers += 1;
            state.queues.recover_sweep(&queue, UNKNOWN, 0);
        }
        state.timers.start(codec::read_timer_key(&key)?, queue, entry);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::clock::ManualClock;
    use crate::engine::disk::store::{StoreLimits, open};

    /// Guards against a receipt that is reused for another worker after a power cut: a delivery is not synced.
    #[test]
    fn numbers_are_reserved_on_the_disk_before_one_is_given() {
        let dir = tempfile::tempdir().unwrap(); // the temporary directory can be written
        let (store, _mark) = open::open(dir.path(), StoreLimits::OF_A_TOOL).unwrap(); // new directory
        let windows =
            Windows { ready: 9, ready_budget: 9, delayed: 9, idle: Duration::ZERO, dead: Duration::ZERO };
        let mut state = load(store, Arc::new(ManualClock::new(0)), windows, None).unwrap(); // it is whole
        let first = state.next_seq();
        assert!(std::mem::take(&mut state.must_sync), "the group that reserves numbers is synced");
        assert_eq!(state.next_seq(), first + 1, "numbers follow each other");
        assert!(!state.must_sync, "they are reserved already");
    }
}
