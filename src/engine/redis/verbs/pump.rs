//! Pump: unpacks jobs that are due soon, and moves a batch of due jobs, which takes Redis a few hundred microseconds.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use redis::{FromRedisValue, ParsingError, Value};

use crate::clock::{self, Micros};
use crate::engine::Pumped;
use crate::engine::redis::connection::fault::Outcome;
use crate::engine::redis::core::PartitionCore;
use crate::engine::redis::dues::LONGEST_PAUSE;
use crate::engine::redis::layout::keys;
use crate::engine::redis::layout::times::micros;
use crate::engine::redis::link::{Common, Lane};
use crate::engine::redis::timer_counts::Timers;
use crate::error::Result;

/// Maximum jobs moved per script call. A larger batch saves nothing, and blocks Redis for longer.
const BATCH: usize = 200;

/// Reply of the script `pump`.
struct ScriptReply {
    now: Micros,
    /// Number of members removed from the timer set.
    removed: usize,
    /// Microseconds until the next member is due; negative if there is none.
    next: i64,
    /// Number of removed members that are no jobs.
    invalid: u64,
    /// Number of postponed members, whose queue's key is not a list.
    postponed: u64,
    /// `ns/queue` of each queue that got ready jobs.
    ready: Vec<Vec<u8>>,
    /// Per queue, for [`Common::tell_ended`].
    ended: Vec<Value>,
    /// Microseconds left of another server's lease; 0 if this server may pump.
    held: u64,
    /// Per queue: its name, and the timers of delayed and running jobs removed.
    counts: Vec<Value>,
    /// The timers removed whose scores are in whole seconds, for [`PartitionCore::count_gone`].
    whole_seconds: Vec<Value>,
    /// Microseconds until the next packed job is to be unpacked; negative if there is none.
    unpack: i64,
}

impl FromRedisValue for ScriptReply {
    fn from_redis_value(value: Value) -> std::result::Result<ScriptReply, ParsingError> {
        let (now, removed, next, invalid, postponed, ready, ended, held, counts, whole_seconds, unpack) =
            redis::from_redis_value(value)?;
        Ok(ScriptReply {
            now,
            removed,
            next,
            invalid,
            postponed,
            ready,
            ended,
            held,
            counts,
            whole_seconds,
            unpack,
        })
    }
}

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
    /// Time until the next timer is due, or until the next look for jobs to be unpacked.
    pub next: Duration,
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
        let next = next.min(LONGEST_PAUSE);
        due.pump_said(now + clock::micros(next));
        Ok(Pumped { moved, next })
    }

    /// Moves due jobs, unless another server has the lease. Also looks for interrupted destroys, at most once a second.
    pub async fn pump_once(self: &Arc<PartitionCore>, lease: Option<PumpLease<'_>>) -> Outcome<PumpReply> {
        let mut cmd = self.call(&self.scripts.pump);
        cmd.key(&self.keys.timer_set).key(&self.keys.buckets);
        cmd.arg(BATCH).arg(self.dead_ttl.as_millis() as u64);
        // Replaced first, since a publish may set it during the call.
        let unpack_at = self.unpack_at.load(Ordering::Relaxed);
        let unpacks = self.now_micros() >= unpack_at;
        match unpacks {
            true => {
                self.unpack_at.store(Micros::MAX, Ordering::Relaxed);
                cmd.arg(micros(self.unpack_before()))
            }
            false => cmd.arg(""),
        };
        if let Some(PumpLease { server, is_own }) = lease {
            cmd.key(&self.keys.pump_lease).arg(server).arg(u8::from(is_own));
        }
        let reply: Outcome<ScriptReply> = self.run(Lane::Pump, &cmd).await;
        if unpacks {
            let now = reply.as_ref().map_or(0, |reply| reply.now);
            let wait = reply.as_ref().map_or(0, |reply| u64::try_from(reply.unpack).unwrap_or(u64::MAX));
            self.unpack_at.fetch_min(now + wait.min(clock::micros(LONGEST_PAUSE)), Ordering::Relaxed);
        }
        let reply = reply?;
        let now = reply.now;
        if reply.held == 0 && self.looked_for_dropped.load(Ordering::Relaxed).abs_diff(now) >= 1_000_000 {
            self.looked_for_dropped.store(now, Ordering::Relaxed);
            self.spawn_finisher();
        }
        if reply.invalid > 0 {
            let garbage = reply.invalid;
            tracing::warn!(pool = &*self.common.pool, garbage, "dropped malformed timers");
        }
        if reply.postponed > 0 {
            tracing::warn!(
                pool = &*self.common.pool,
                put_off = reply.postponed,
                "postponed due jobs, because the key of their queue is not a list"
            );
        }
        self.count_moved(&reply.counts)?;
        self.count_gone(&reply.whole_seconds);
        self.common.tell_ended(reply.ended)?;
        for queue in reply.ready.iter().filter_map(|group| keys::queue_of_group(group)) {
            self.tell_ready(&queue);
        }
        let unpack = Duration::from_micros(self.unpack_at.load(Ordering::Relaxed).saturating_sub(now));
        let next = u64::try_from(reply.next).map_or(Duration::MAX, Duration::from_micros).min(unpack);
        Ok(PumpReply { now, moved: reply.removed, next, held: Duration::from_micros(reply.held) })
    }

    /// Counts the timers that a pump has removed: per queue its name, delayed and running jobs.
    fn count_moved(&self, counts: &[Value]) -> Outcome<()> {
        for of in counts.as_chunks::<3>().0 {
            let (name, delayed, running): (Vec<u8>, i64, i64) =
                redis::from_redis_value(Value::Array(of.to_vec()))?;
            let Some(queue) = keys::queue_of_group(&name) else { continue };
            self.timer_counts.add(&queue, Timers { delayed: -delayed, running: -running });
        }
        Ok(())
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
            self.observer.redelivered(&queue, again);
            self.observer.died(&queue, died);
        }
        Ok(())
    }
}
