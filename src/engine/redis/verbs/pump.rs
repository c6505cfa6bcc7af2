//! Pump: moves a batch of due jobs, which takes the Redis a few hundred microseconds.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use redis::Value;

use crate::clock;
use crate::engine::Pumped;
use crate::engine::redis::connection::fault::Outcome;
use crate::engine::redis::core::RedisCore;
use crate::engine::redis::layout::keys;
use crate::engine::redis::link::Link;
use crate::error::Result;

/// How many jobs one script call moves. Larger batches gain nothing, and the Redis serves nobody else meanwhile.
const BATCH: usize = 200;
/// The longest pause between two pumps: nobody tells this process of the jobs that other servers store.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// What the script says: now, how many left the timer, how long until the next, garbage, how many were put off, the
/// queues that got ready jobs, what [`Link::tell_ended`] reads, and whose timers are gone.
type PumpAnswer = (u64, usize, i64, u64, u64, Vec<Vec<u8>>, Vec<Value>, Vec<Value>);

impl RedisCore {
    /// Moves due jobs. Once a second it has a look for destroys that were not finished.
    pub async fn pump(self: &Arc<RedisCore>) -> Result<Pumped> {
        let mut cmd = self.scripts.pump.call(1);
        cmd.arg(keys::TIMER_SET).arg(BATCH);
        self.next_due.pump_begins();
        let sent = self.clock.begin();
        let (now, moved, next, garbage, put_off, ready, ended, gone): PumpAnswer =
            self.run(&self.pumps, &self.scripts.pump, cmd).await?;
        self.clock.learn(sent, now);
        if self.looked_for_dropped.load(Ordering::Relaxed).abs_diff(now) >= 1_000_000 {
            self.looked_for_dropped.store(now, Ordering::Relaxed);
            self.spawn_finisher();
        }
        if garbage > 0 {
            tracing::warn!(pool = &*self.common.pool, garbage, "dropped timers that are not jobs");
        }
        if put_off > 0 {
            tracing::warn!(
                pool = &*self.common.pool,
                put_off,
                "put off jobs whose queue's key is not a list"
            );
        }
        self.timers_gone(&gone)?;
        self.tell_ended(ended)?;
        for queue in ready.iter().filter_map(|group| keys::queue_of_group(group)) {
            self.common.notifiers.notify(&queue);
        }
        let next = u64::try_from(next).map_or(LONGEST_PAUSE, Duration::from_micros).min(LONGEST_PAUSE);
        self.next_due.pump_said(now + clock::micros(next));
        Ok(Pumped { moved, next })
    }
}

impl Link {
    /// What a pump says of hand-overs that have ended: per queue how many jobs are ready again, and how many died.
    pub fn tell_ended(&self, ended: Vec<Value>) -> Outcome<()> {
        for of in ended.chunks_exact(3) {
            let (name, again, died): (Vec<u8>, u64, u64) =
                redis::from_redis_value(Value::Array(of.to_vec()))?;
            let Some(queue) = keys::queue_of_group(&name) else { continue };
            self.common.observers.tell(|observer| {
                observer.redelivered(&queue, again);
                observer.died(&queue, died);
            });
        }
        Ok(())
    }
}
