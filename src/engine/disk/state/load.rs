//! Rebuilds the writer's state from the disk, by one walk over the keys of each list.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use super::clock::PoolClock;
use super::garbage::Garbage;
use super::queues::{QueueState, Queues};
use super::tables::Tables;
use super::timers::Timers;
use super::{Windows, WriterState};
use crate::clock::{Clock, Micros};
use crate::engine::disk::store::codec::{self, FIRST_SEQ, META_CLOCK, META_NEWEST, META_SEQ};
use crate::engine::disk::store::{Fatal, Space, Store, Txn};
use crate::job::JobId;
use crate::name::Queue;

/// Rebuilds the writer's state.
pub fn load(store: Store, clock: Arc<dyn Clock>, windows: Windows) -> Result<WriterState, Fatal> {
    let seq = store.number(META_SEQ)?.unwrap_or(FIRST_SEQ);
    let clock_mark = store.number(META_CLOCK)?.unwrap_or(0);
    let clock = PoolClock::new(clock, clock_mark);
    if clock.ahead() > 0 {
        let ahead_ms = clock.ahead() / 1000;
        tracing::warn!(
            ahead_ms,
            "the machine's clock is behind the store's; the store's goes on from where it was"
        );
    }
    let newest = match store.get(Space::Meta, META_NEWEST)? {
        Some(value) => codec::read_newest(&value)?,
        None => JobId::from_bytes([0; 16], false),
    };
    let tables = Arc::new(Mutex::new(Tables::load(&store)?));
    let mut state = WriterState {
        txn: Txn::new(store.clone()),
        clock,
        windows,
        queues: Queues::default(),
        timers: Timers::default(),
        tables,
        seq: (seq, seq),
        clock_mark,
        newest,
        newest_mark: newest,
        next_due: Arc::default(),
        garbage: Garbage::default(),
        pauses: Default::default(),
        keys: 0,
        once: 0,
        once_from: 0,
        to_notify: Default::default(),
        must_sync: false,
    };
    for item in store.all(Space::Queues) {
        let (key, value) = item?;
        let queue = codec::read_queue_key(&key)?;
        let low = state.next_seq();
        let mut empty = QueueState::new(&queue, low);
        empty.paused = codec::read_queue_value(&value)?;
        if let Some(until) = empty.paused.filter(|until| *until < Micros::MAX) {
            state.pauses.insert((until, queue.clone()));
        }
        state.queues.insert(queue, empty);
    }
    count_list(&mut state, &store, Space::Ready, |q, count, first| q.recover(count, first))?;
    count_list(&mut state, &store, Space::Dead, |q, count, first| {
        q.dead = count;
        q.dead_from = first;
    })?;
    load_timers(&mut state, &store)?;
    state.keys = count(store.keys(Space::Keys))?;
    state.once = count(store.keys(Space::Once))? / 2;
    state.count_garbage();
    let now = state.clock.now_micros();
    for queue in state.queues.names() {
        state.queues.note_idle(&queue, now);
    }
    Ok(state)
}

fn count<T>(mut items: impl Iterator<Item = Result<T, Fatal>>) -> Result<u64, Fatal> {
    items.try_fold(0, |count, item| item.map(|_| count + 1))
}

/// Counts the entries of each queue in a list, and notes the number of the first.
fn count_list(
    state: &mut WriterState,
    store: &Store,
    space: Space,
    done: impl Fn(&mut QueueState, u64, u64),
) -> Result<(), Fatal> {
    let mut run: Option<(Vec<u8>, u64, u64)> = None;
    let end = |state: &mut WriterState, run: Option<(Vec<u8>, u64, u64)>| -> Result<(), Fatal> {
        if let Some((prefix, count, first)) = run {
            let queue = codec::read_queue_key(&prefix)?;
            done(state.queue(&queue), count, first);
        }
        Ok(())
    };
    for key in store.keys(space) {
        let key = key?;
        let (prefix, seq) = codec::split_list_key(&key)?;
        match &mut run {
            Some((same, count, _)) if same == prefix => *count += 1,
            _ => end(state, run.replace((prefix.to_vec(), 1, seq)))?,
        }
    }
    end(state, run)
}

/// Counts the timers of each queue, and takes the running ones into memory.
fn load_timers(state: &mut WriterState, store: &Store) -> Result<(), Fatal> {
    let mut delayed = 0;
    // By prefix: nothing is allocated for a timer of a queue that was met before.
    let mut queues: HashMap<Vec<u8>, (Queue, u64, u64)> = HashMap::new();
    for space in [Space::Delayed, Space::Running] {
        for item in store.all(space) {
            let (key, value) = item?;
            let (prefix, entry) = codec::split_timer_value(&value)?;
            if !queues.contains_key(prefix) {
                let queue = state.queues.shared(codec::read_queue_key(prefix)?);
                queues.insert(prefix.to_vec(), (queue, 0, 0));
            }
            let Some((queue, count, running)) = queues.get_mut(prefix) else { continue };
            *count += 1;
            if space == Space::Running {
                *running += 1;
                state.timers.start(codec::read_timer_key(&key)?, queue.clone(), entry);
            } else {
                delayed += 1;
            }
        }
    }
    for (queue, count, running) in queues.into_values() {
        let state = state.queue(&queue);
        (state.timers, state.running) = (count, running);
    }
    state.timers.recover(delayed);
    state.refill_delayed()
}
