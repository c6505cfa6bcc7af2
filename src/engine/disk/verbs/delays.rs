//! Statistics of due times: reads all delayed jobs in order, from a snapshot on another thread, in parts.

use std::ops::Bound;
use std::time::Instant;

use crate::engine::delays::{DelayCount, DelayedOf, Delays, Rests};
use crate::engine::disk::codec::{self, TimerKey};
use crate::engine::disk::state::clock::PoolClock;
use crate::engine::disk::store::{Fatal, Space, Store};
use crate::engine::disk::writer::threads::Stop;

/// Jobs read before yielding the processor.
const PART: usize = 16_384;

/// Counts the delayed jobs of the store. `None` when the engine ends. Blocks.
pub fn count(
    store: &Store,
    count: &DelayCount,
    clock: &PoolClock,
    stop: &Stop,
) -> Result<Option<Delays>, Fatal> {
    let prefix = match &count.of {
        DelayedOf::All => Vec::new(),
        DelayedOf::Namespace(namespace) => codec::namespace_key(namespace),
        DelayedOf::Queue(queue) => codec::queue_key(queue).to_vec(),
    };
    // Names are length-prefixed, so a name is not matched by a longer one.
    let is_counted = |queue: &[u8]| match &count.of {
        DelayedOf::Queue(_) => queue == prefix,
        DelayedOf::All | DelayedOf::Namespace(_) => queue.starts_with(&prefix),
    };
    let (mut delays, mut last): (Delays, Option<TimerKey>) =
        (Delays::new(clock.to_day(clock.now_micros())), None);
    let mut rests = Rests::default();
    loop {
        let began = Instant::now();
        let from = last.map_or(Bound::Unbounded, |last| Bound::Excluded(codec::timer_key(last)));
        let mut read = 0;
        for item in store.range(Space::Delayed, (from, Bound::Unbounded)).take(PART) {
            let (key, value) = item?;
            let timer = codec::read_timer_key(&key)?;
            if is_counted(codec::split_timer_value(&value)?.0) {
                delays.add(clock.to_day(timer.0), count);
            }
            (last, read) = (Some(timer), read + 1);
        }
        if read < PART {
            return Ok(Some(delays));
        }
        if stop.stopped_within(rests.after(began.elapsed())) {
            return Ok(None);
        }
    }
}
