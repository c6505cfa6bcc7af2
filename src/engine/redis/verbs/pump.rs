//! Pump: moves a batch of due jobs, which takes the Redis a few hundred microseconds.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use redis::Value;

use crate::clock::{self, Micros};
use crate::engine::Pumped;
use crate::engine::redis::connection::fault::Outcome;
use crate::engine::redis::core::PartitionCore;
use crate::engine::redis::dues::LONGEST_PAUSE;
use crate::engine::redis::layout::keys;
use crate::engine::redis::link::{Common, Lane};
use crate::error::Result;

/// How many jobs one script call moves. Larger batches gain nothing, and the Redis serves nobody else meanwhile.
const BATCH: usize = 200;
/// What the script says: now, how many left the timer, how long until the next, garbage, how many were put off, the
/// queues that got ready jobs, what [`Common::tell_ended`] reads, and for how long another server has the lease.
type PumpAnswer = (u64, usize, i64, u64, u64, Vec<Vec<u8>>, Vec<Value>, u64);

/// In a cluster one server pumps a partition.
#[derive(Clone, Copy, Debug)]
pub struct PumpLease<'a> {
    pub server: &'a str,
    /// This server has stored what is due now: it pumps whoever has the lease.
    pub is_own: bool,
}

/// What a pump has done.
#[derive(Clone, Copy, Debug)]
pub struct PumpReply {
    pub now: Micros,
    /// How many jobs left the timer set.
    pub moved: usize,
    /// Time until the next one is due; `None` when there is none.
    pub next: Option<Duration>,
    /// For how long another server has the lease; zero if it is this server's.
    pub held: Duration,
}

impl PartitionCore {
    /// Moves due jobs.
    pub async fn pump(self: &Arc<PartitionCore>) -> Result<Pumped> {
        let due = &self.dues.next;
        due.pump_begins();
        let sent = Instant::now();
        let PumpReply { now, moved, next, .. } = self.pump_once(None).await?;
        self.learn(sent, now);
        let next = next.unwrap_or(LONGEST_PAUSE).min(LONGEST_PAUSE);
        due.pump_said(now + clock::micros(next));
        Ok(Pumped { moved, next })
    }

    /// Moves due jobs, unless another server has the lease. Once a second it has a look for destroys that were not finished.
    pub async fn pump_once(self: &Arc<PartitionCore>, lease: Option<PumpLease<'_>>) -> Outcome<PumpReply> {
        let mut cmd = self.call(&self.scripts.pump);
        cmd.key(&self.keys.timer_set).arg(BATCH).arg(self.dead_ttl.as_millis() as u64);
        if let Some(PumpLease { server, is_own }) = lease {
            cmd.key(&self.keys.pump_lease).arg(server).arg(u8::from(is_own));
        }
        let (now, moved, next, garbage, put_off, ready, ended, held): PumpAnswer =
            self.run(Lane::Pump, &cmd).await?;
        if held == 0 && self.looked_for_dropped.load(Ordering::Relaxed).abs_diff(now) >= 1_000_000 {
            self.looked_for_dropped.store(now, Ordering::Relaxed);
            self.spawn_finisher();
        }
        if garbage > 0 {
            tracing::warn!(pool = &*self.common.pool, garbage, "dropped malformed timers");
        }
        if put_off > 0 {
            tracing::warn!(
                pool = &*self.common.pool,
                put_off,
                "postponed due jobs, because the key of their queue is not a list"
            );
        }
        self.common.tell_ended(ended)?;
        for queue in ready.iter().filter_map(|group| keys::queue_of_group(group)) {
            self.tell_ready(&queue);
        }
        let next = u64::try_from(next).ok().map(Duration::from_micros);
        Ok(PumpReply { now, moved, next, held: Duration::from_micros(held) })
    }
}

impl Common {
    /// What a pump says of hand-overs that have ended: per queue how many jobs are ready again, and how many died.
    pub fn tell_ended(&self, ended: Vec<Value>) -> Outcome<()> {
        for of in ended.chunks_exact(3) {
            let (name, again, died): (Vec<u8>, u64, u64) =
                redis::from_redis_value(Value::Array(of.to_vec()))?;
            let Some(queue) = keys::queue_of_group(&name) else { continue };
            self.observers.tell(|observer| {
                observer.redelivered(&queue, again);
                observer.died(&queue, died);
            });
        }
        Ok(())
    }
}
