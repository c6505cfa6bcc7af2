//! Pump: moves a batch of due jobs of each partition that has some. It also gives timers to jobs that are near, and removes
//! what has ended.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::time::timeout;

use super::super::core::{CompactCore, Lane, Place};
use super::super::dues::{LONGEST_PAUSE, Said, Turn};
use super::super::partitions::Partition;
use crate::clock::Micros;
use crate::engine::Pumped;
use crate::engine::redis::connection::fault::{Fault, Outcome};
use crate::engine::redis::layout::keys::queue_of_group;
use crate::engine::redis::layout::times::micros;
use crate::engine::together;
use crate::error::{Error, Result};
use crate::name::Namespace;

/// How many jobs one script call moves. Larger batches gain nothing, and the Redis serves nobody else meanwhile.
const BATCH: usize = 200;
/// After how long an empty queue is forgotten.
const EMPTY: Duration = Duration::from_secs(600);
/// How long others wait for the pump of a node that is slow to answer.
const NODE: Duration = Duration::from_millis(100);
/// When a partition is pumped again that could not be.
const AGAIN: Duration = Duration::from_millis(50);
/// How often jobs that have ended are looked for in a partition, and how many times more seldom empty queues.
const SWEEP: u64 = 1_000_000;
const QUEUES: u64 = 2;

/// What one script call says: now, how many left the timers, how long until the next, the queues that got ready jobs
/// and since when the first of them is, jobs and bytes that have ended, queues that were forgotten, the same for each namespace, and what
/// [`Common::tell_ended`](crate::engine::redis::link::Common::tell_ended) reads; for how long another server has the lease; how
/// many queues were spread that are at home there, parts of publishes that wait for too long, and whether more jobs have
/// ended.
type PumpAnswer = (
    (u64, usize, i64, Vec<(Vec<u8>, Micros)>, i64, i64, i64, Vec<redis::Value>, Vec<redis::Value>),
    (u64, u64, Vec<Vec<u8>>, bool),
);

impl CompactCore {
    /// Moves due jobs.
    pub async fn pump(self: &Arc<Self>) -> Result<Pumped> {
        let due = self.dues.begin(self.now_micros());
        let asked = due.len();
        let pumps = together::all(due.into_iter().map(|turn| self.pump_in_time(turn))).await;
        let next = self.dues.end();
        let (mut moved, mut failed, mut unreachable) = (0, None, 0);
        for one in pumps {
            match one.map_err(Error::from) {
                Ok(some) => moved += some,
                Err(fault @ Error::Unreachable(_)) => {
                    unreachable += 1;
                    // While others are pumped it is for their callers to be told.
                    if unreachable == asked {
                        failed = Some(fault);
                    }
                }
                Err(fault) => failed = Some(fault),
            }
        }
        match failed {
            // The trouble of one shows when the others have nothing more to move.
            Some(fault) if moved == 0 => Err(fault),
            _ => {
                // Later than that is what a clock said that was set back since.
                let left = Duration::from_micros(next.saturating_sub(self.now_micros()));
                Ok(Pumped { moved, next: left.min(LONGEST_PAUSE) })
            }
        }
    }

    /// Pumps a partition, if its Redis can be used now. In a cluster nobody waits for a node that does not answer: its
    /// pump goes on by itself.
    async fn pump_in_time(self: &Arc<Self>, turn: Turn) -> Outcome<usize> {
        if let Place::One(_) = &self.place {
            return self.pump_partition(turn).await;
        }
        if let Err(why) = self.try_link(turn.partition, Lane::Pump) {
            self.dues.said(turn, self.now_micros(), Said::again(AGAIN));
            return Err(Fault::part(why));
        }
        let core = self.clone();
        let pump = self.tasks.spawn(async move { core.pump_partition(turn).await });
        match timeout(NODE, pump).await {
            Ok(Ok(pumped)) => pumped,
            Ok(Err(_)) => Err(Fault::away("a pump ended")),
            Err(_) => Ok(0),
        }
    }

    async fn pump_partition(self: &Arc<Self>, turn: Turn) -> Outcome<usize> {
        let partition = turn.partition;
        let sweep = self.sweeps(partition);
        let mut cmd = self.call(&self.scripts.pump, partition);
        cmd.arg(BATCH).arg(sweep).arg(EMPTY.as_millis() as u64).arg(&self.server).arg(u8::from(turn.is_own));
        let sent = Instant::now();
        let ((now, moved, next, ready, jobs, bytes, queues, freed, ended), (held, spread, staged, more)): PumpAnswer =
            match self.ask(partition, Lane::Pump, &self.scripts.pump, cmd).await.and_then(read_pumped) {
                Ok(answer) => answer,
                Err(fault) => {
                    self.dues.said(turn, self.now_micros(), Said::again(AGAIN));
                    return Err(fault);
                }
            };
        self.learn(partition, sent, now);
        let mut next = u64::try_from(next).map_or(Duration::MAX, Duration::from_micros);
        if more {
            // Each partition by itself, and all of them together leave the Redis time for others.
            let soon = Duration::from_millis(self.partitions.count().clamp(10, 250).into());
            self.dues.sweep_again(partition, self.now_micros() + micros(soon));
            next = next.min(soon);
        }
        let said = Said { next, held: Duration::from_micros(held) };
        self.dues.said(turn, self.in_pool_time(partition, now), said);
        self.look_for_spread(partition, spread);
        for id in staged {
            self.settle_later(partition, id);
        }
        self.common.tell_ended(ended)?;
        for (name, since) in ready {
            if let Some(queue) = queue_of_group(&name) {
                self.tell_ready(partition, &queue, since);
            }
        }
        if jobs + bytes + queues > 0 {
            for of in freed.chunks_exact(4) {
                let (name, jobs, bytes, queues): (String, i64, i64, i64) =
                    redis::from_redis_value(redis::Value::Array(of.to_vec()))?;
                if let Ok(namespace) = Namespace::parse(&name)
                    && self.is_counted(&namespace)
                {
                    self.give_room(&namespace, [jobs, bytes, queues]).await;
                }
            }
        }
        Ok(moved)
    }

    /// Whether it is time to look for what has ended there (1), and for empty queues too (2).
    fn sweeps(&self, partition: Partition) -> u64 {
        let now = self.now_micros();
        match self.dues.sweep(partition, now, SWEEP) {
            None => 0,
            Some(n) if n % QUEUES == 1 => 2,
            Some(_) => 1,
        }
    }
}

fn read_pumped(reply: Vec<redis::Value>) -> Outcome<PumpAnswer> {
    let (first, rest) = reply.split_at_checked(9).ok_or_else(|| Fault::unreadable("pump"))?;
    let read = |part: &[redis::Value]| redis::Value::Array(part.to_vec());
    Ok((redis::from_redis_value(read(first))?, redis::from_redis_value(read(rest))?))
}
