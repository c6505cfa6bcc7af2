//! Consume: one script call for a list of queues. Calls of several wait lists are pipelined on one connection.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use redis::{FromRedisValue, Value};

use crate::clock::Micros;
use crate::engine::Consumed;
use crate::engine::redis::cluster::ask;
use crate::engine::redis::connection::fault::{Fault, Outcome};
use crate::engine::redis::core::PartitionCore;
use crate::engine::redis::in_time::patient;
use crate::engine::redis::layout::script_call::ScriptCall;
use crate::engine::redis::layout::times::micros;
use crate::engine::redis::layout::{keys, value};
use crate::engine::redis::link::{Lane, Link};
use crate::engine::redis::timer_counts::Timers;
use crate::error::Result;
use crate::job::Job;
use crate::name::Queue;

/// A job delivered by a script.
pub struct HandedOut<'a> {
    pub queue: &'a Queue,
    /// The id as stored.
    pub id: Vec<u8>,
    pub tries_left: u16,
    pub due: Micros,
    pub ttl: i64,
    pub stored: Bytes,
}

/// The script's reply: now, invalid elements dropped, whether there may be more jobs, ready lists of another type,
/// ready lists of jobs that died, and the jobs.
type ConsumeAnswer = (u64, u64, bool, Vec<usize>, Vec<usize>, Vec<Value>);

/// Returns the queue with this number in a script's reply, counted from 1.
pub fn queue_at(queues: &[Queue], n: usize) -> Option<&Queue> {
    n.checked_sub(1).and_then(|n| queues.get(n))
}

/// Returns the jobs in a reply of the consume script: six cells each.
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

impl PartitionCore {
    /// Delivers up to one job per ttr. The jobs of a late reply are returned to their queues. `waits`: whether to wait
    /// for an unavailable node.
    pub async fn consume(
        self: &Arc<Self>,
        queues: Vec<Queue>,
        ttrs: &[Duration],
        waits: bool,
    ) -> Result<Consumed> {
        let mut call = self.call(&self.scripts.consume);
        call.key(&self.keys.timer_set);
        for queue in &queues {
            call.key(self.keys.ready(queue));
        }
        for queue in &queues {
            call.key(self.keys.dead(queue));
        }
        for queue in &queues {
            call.arg(self.keys.job_prefix(queue)).arg(keys::member_prefix(queue));
        }
        for run in ttrs.chunk_by(|a, b| a == b) {
            call.arg(run.len()).arg(micros(run[0])); // a run has at least one element
        }
        call.arg(self.dead_ttl.as_millis() as u64);
        let (queues, asked) = (Arc::new(queues), ttrs.len());
        let consumed = ask!(self.attempts_if(waits, Lane::Consume), |link| {
            self.consume_from(&link, &queues, asked, call.clone())
        });
        Ok(consumed?)
    }

    async fn consume_from(
        self: &Arc<Self>,
        link: &Arc<Link>,
        queues: &Arc<Vec<Queue>>,
        asked: usize,
        call: ScriptCall,
    ) -> Outcome<Consumed> {
        let (connection, end) = (link.connection(Lane::Consume).await?, link.answer_by(&call));
        let (core, through, mut redis) = (self.clone(), link.clone(), patient(&connection));
        let queues = queues.clone();
        let exchange = async move {
            let sent = Instant::now();
            let reply = through.send(&mut redis, &call).await?;
            core.read_consumed(reply, &queues, asked, sent)
        };
        let late = || {
            let (core, link) = (self.clone(), link.clone());
            Some(async move |late: Consumed| {
                link.return_undelivered(late.jobs, async |jobs| core.give_back(jobs).await).await
            })
        };
        link.exchange(&connection, (end, false), exchange, late).await
    }

    fn read_consumed(
        &self,
        reply: Value,
        queues: &[Queue],
        asked: usize,
        sent: Instant,
    ) -> Outcome<Consumed> {
        let (now, garbage, more, not_lists, died, cells): ConsumeAnswer = redis::from_redis_value(reply)?;
        self.learn(sent, now);
        if garbage > 0 {
            tracing::warn!(pool = &*self.common.pool, garbage, "dropped malformed elements of ready lists");
        }
        for queue in died.iter().filter_map(|n| queue_at(queues, *n)) {
            self.common.observer.died(queue, 1);
        }
        let mut jobs = Vec::with_capacity(asked.min(cells.len() / 6));
        let (mut unreadable, mut earliest) = (false, u64::MAX);
        let mut delivered = Vec::with_capacity(jobs.capacity());
        for handed_out in handed_out(cells, queues) {
            let HandedOut { queue, id, tries_left, due, ttl, stored } = handed_out?;
            earliest = earliest.min(due);
            delivered.push(queue);
            let Some(id) = keys::job_id(&id) else {
                tracing::warn!(pool = &*self.common.pool, %queue, "skipped a job with a malformed id");
                unreadable = true;
                continue;
            };
            match value::job(queue, id, stored, ttl, now) {
                Ok(job) => {
                    let was_due = self.common.handed_out.begin(id, tries_left, due);
                    jobs.push(Job { due: was_due, tries_left, receipt: due, ..job });
                }
                Err(e) => {
                    // It is redelivered after its ttr, and ends in the dead letter, where it can be inspected.
                    tracing::warn!(
                        pool = &*self.common.pool,
                        %queue,
                        "an unreadable job was not delivered; it dies when its tries are used up: {e}"
                    );
                    unreadable = true;
                }
            }
        }
        self.timer_counts.add_all(delivered.into_iter().map(|queue| (queue, Timers::running(1))));
        if earliest < u64::MAX {
            self.stored(earliest);
        }
        // Delivered jobs are returned to the caller. Without any, the queues were not seen empty, so the error is.
        if let (true, Some(queue)) = (jobs.is_empty(), not_lists.first().and_then(|n| queue_at(queues, *n))) {
            return Err(Fault::refused(format!("the key of queue {queue} is not a list")));
        }
        // Unreadable jobs must not hide the jobs after them.
        Ok(Consumed { jobs, more: more || unreadable, notifies: false })
    }
}
