//! Pump: moves a batch of due jobs, which takes Redis a few hundred microseconds.

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

/// Maximum jobs moved per script call. A larger batch saves nothing, and blocks Redis for longer.
const BATCH: usize = 200;
/// The script's reply: now, members removed, microseconds until the next is due, invalid members, members postponed,
/// queues with newly ready jobs, the argument of [`Common::tell_ended`], and the time left of another server's lease.
type PumpAnswer = (u64, usize, i64, u64, u64, Vec<Vec<u8>>, Vec<Value>, u64);

/// The lease of a partition's pump in a cluster: one server pumps the partition.
#[derive(Clone, Copy, Debug)]
pub struct PumpLease<'a> {
    pub server: &'a str,
    /// This server has stored a job that is due now, and pumps even without the lease.
    pub is_own: bool,
}

/// The result of a pump.
#[derive(Clone, Copy, Debug)]
pub struct PumpReply {
    pub now: Micros,
    /// Number of members removed from the timer set.
    pub moved: usize,
    /// Time until the next timer is due; `None` without timers.
    pub next: Option<Duration>,
    /// Time left of another server's lease; zero if this server holds it.
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

    /// Moves due jobs, unless another server has the lease. Also looks for interrupted destroys, at most once a second.
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
    /// Reports deliveries that have ended. `ended` has per queue its name, the jobs that are ready again, and those
    /// that died.
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
