//! Consume: one list of queues, one script call. Calls of several wait lists share a connection, on which they
//! are pipelined.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use redis::{FromRedisValue, Value};

use crate::clock::Micros;
use crate::engine::Consumed;
use crate::engine::redis::connection::fault::{Fault, Outcome};
use crate::engine::redis::core::RedisCore;
use crate::engine::redis::in_time::patient;
use crate::engine::redis::layout::times::micros;
use crate::engine::redis::layout::{keys, value};
use crate::error::Result;
use crate::job::Job;
use crate::name::{Queue, QueueList};

/// A job that a script has handed out.
pub struct HandedOut<'a> {
    pub queue: &'a Queue,
    /// The id, or what tells it, as the layout has it.
    pub id: Vec<u8>,
    pub tries_left: u16,
    pub due: Micros,
    pub ttl: i64,
    pub stored: Bytes,
}

/// What the script says: now, garbage, whether there may be more, which ready lists are none, those of jobs that died, and
/// the jobs.
type ConsumeAnswer = (u64, u64, bool, Vec<usize>, Vec<usize>, Vec<Value>);

/// The queue that a script calls by this number: it counts from 1.
pub fn queue_at(queues: &[Queue], n: usize) -> Option<&Queue> {
    n.checked_sub(1).and_then(|n| queues.get(n))
}

/// The jobs in the answer of a script of consume: six cells each.
pub fn handed_out(cells: Vec<Value>, queues: &[Queue]) -> impl Iterator<Item = Outcome<HandedOut<'_>>> {
    let mut cells = cells.into_iter();
    std::iter::from_fn(move || {
        let queue = cells.next()?;
        let mut cell = || cells.next().unwrap_or(Value::Nil);
        let job = || {
            let queue = queue_at(queues, usize::from_redis_value(queue)?);
            Ok(HandedOut {
                queue: queue.ok_or_else(|| Fault::unreadable("consume"))?,
                id: Vec::from_redis_value(cell())?,
                tries_left: u16::from_redis_value(cell())?,
                due: u64::from_redis_value(cell())?,
                ttl: i64::from_redis_value(cell())?,
                stored: Bytes::from_redis_value(cell())?,
            })
        };
        Some(job())
    })
}

impl RedisCore {
    /// Hands out a job for each ttr. Jobs of an answer that comes too late are given back.
    pub async fn consume(self: &Arc<Self>, queues: &QueueList, ttrs: &[Duration]) -> Result<Consumed> {
        let arrived = Instant::now();
        let queues = self.not_paused(queues).await?;
        if queues.is_empty() {
            return Ok(Consumed::default());
        }
        let mut call = self.scripts.consume.call(1 + 2 * queues.len());
        call.arg(keys::TIMER_SET);
        for queue in &queues {
            call.arg(keys::ready(queue));
        }
        for queue in &queues {
            call.arg(keys::dead(queue));
        }
        for queue in &queues {
            call.arg(keys::job_prefix(queue)).arg(keys::member_prefix(queue));
        }
        for run in ttrs.chunk_by(|a, b| a == b) {
            call.arg(run.len()).arg(micros(run[0])); // a run has at least one element
        }
        let connection = self.consumes.connection().await?;
        let (core, mut redis, asked) = (self.clone(), patient(&connection), ttrs.len());
        let exchange = async move {
            let sent = core.clock.begin();
            let reply = core.run_script(&mut redis, &core.scripts.consume, call, arrived).await?;
            core.read_consumed(reply, &queues, asked, sent)
        };
        let late = || {
            let core = self.clone();
            Some(async move |late: Consumed| {
                core.told_nobody(late.jobs, async |jobs| core.give_back(jobs).await).await
            })
        };
        Ok(self.exchange(&connection, arrived, exchange, late).await?)
    }

    fn read_consumed(
        &self,
        reply: Value,
        queues: &[Queue],
        asked: usize,
        sent: Instant,
    ) -> Outcome<Consumed> {
        let (now, garbage, more, not_lists, died, cells): ConsumeAnswer = redis::from_redis_value(reply)?;
        self.clock.learn(sent, now);
        if garbage > 0 {
            tracing::warn!(pool = &*self.common.pool, garbage, "dropped list elements that are not jobs");
        }
        for queue in died.iter().filter_map(|n| queue_at(queues, *n)) {
            self.common.observers.tell(|observer| observer.died(queue, 1));
        }
        let mut jobs = Vec::with_capacity(asked.min(cells.len() / 6));
        let (mut unreadable, mut earliest) = (false, u64::MAX);
        for handed_out in handed_out(cells, queues) {
            let HandedOut { queue, id, tries_left, due, ttl, stored } = handed_out?;
            earliest = earliest.min(due);
            self.timer_counts.running(queue, 1);
            let Some(id) = keys::job_id(&id) else {
                tracing::warn!(pool = &*self.common.pool, %queue, "skipped a job whose id no server has made");
                unreadable = true;
                continue;
            };
            match value::job(queue, id, stored, ttl, now) {
                Ok(job) => {
                    let was_due = self.common.handed_out.begin(id, tries_left, due);
                    jobs.push(Job { due: was_due, tries_left, receipt: due, ..job });
                }
                Err(e) => {
                    // It comes back after its ttr, and ends in the dead letter, where it can be looked at.
                    tracing::warn!(pool = &*self.common.pool, %queue, "skipped a job: {e}");
                    unreadable = true;
                }
            }
        }
        if earliest < u64::MAX {
            self.next_due.stored(earliest);
        }
        // What was handed out goes to whoever asked. Otherwise nobody can say that there is nothing.
        if let (true, Some(queue)) = (jobs.is_empty(), not_lists.first().and_then(|n| queue_at(queues, *n))) {
            return Err(Fault::refused(format!("the key of queue {queue} is not a list")));
        }
        // Jobs that cannot be read do not hide those behind them.
        Ok(Consumed { jobs, more: more || unreadable })
    }
}
