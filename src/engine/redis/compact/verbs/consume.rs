//! Consume: one script call for queues that stand behind each other in the list and have the same home. A queue that is
//! spread is asked by itself (`consume_spread`).

use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, Value};

use super::super::core::{CompactCore, Lane};
use super::super::keys;
use super::super::partitions::Partition;
use super::super::place::id_at;
use crate::clock::Micros;
use crate::engine::Consumed;
use crate::engine::redis::cluster::ask;
use crate::engine::redis::connection::fault::{Fault, Outcome};
use crate::engine::redis::in_time::patient;
use crate::engine::redis::layout::times::micros;
use crate::engine::redis::layout::value;
use crate::engine::redis::link::Link;
use crate::engine::redis::verbs::consume::{HandedOut, handed_out, queue_at};
use crate::error::{Error, Result, Unreachable};
use crate::job::Job;
use crate::name::{Queue, QueueList};

/// What one script call has brought.
pub struct Fetched {
    pub consumed: Consumed,
    pub now: Micros,
    /// One of the queues is paused.
    pub is_paused: bool,
    /// This queue is spread, and was not known to be: neither it nor those behind it were asked.
    pub spread: Option<usize>,
    /// Since when the next entry is ready, of a queue that is known to be.
    pub head: Option<Micros>,
}

impl CompactCore {
    /// Hands out a job for each ttr. Jobs of an answer that comes too late are given back. `notified`: a queue that is
    /// spread need be asked only where this process was told of a job.
    pub async fn consume(
        self: &Arc<Self>,
        queues: &QueueList,
        ttrs: &[Duration],
        notified: bool,
    ) -> Result<Consumed> {
        let queues: Vec<Queue> = queues.queues().collect();
        let mut consumed = Consumed::default();
        // Queues of which nobody can say that they are empty, and why.
        let mut unseen: Option<(Unreachable, Vec<Queue>)> = None;
        let mut rest = &queues[..];
        while let Some(first) = rest.first() {
            let ttrs = &ttrs[consumed.jobs.len()..];
            if ttrs.is_empty() {
                break;
            }
            let asked = match self.spreading.get(first) {
                Some(spread) => {
                    rest = &rest[1..];
                    Box::pin(self.consume_spread(first, &spread, ttrs, notified)).await
                }
                None => {
                    let home = self.partition_of(first);
                    let same = |queue: &&Queue| {
                        self.partition_of(queue) == home && self.spreading.get(queue).is_none()
                    };
                    let count = rest.iter().take_while(same).count();
                    let (part, behind) = rest.split_at(count.max(1));
                    match self.consume_part(home, part, ttrs, None).await {
                        // It is known from now on, and is asked once more.
                        Ok(Fetched { consumed, spread: Some(n), .. }) => {
                            if !matches!(self.is_spread(&part[n]).await, Ok(Some(_))) {
                                // Its record has gone in between, or cannot be read: what was said is right for good.
                                self.learn_spread(&part[n], self.now());
                            }
                            rest = &rest[n..];
                            Ok(consumed)
                        }
                        Ok(Fetched { consumed, .. }) => {
                            rest = behind;
                            Ok(consumed)
                        }
                        Err(fault) => Err(fault.into()),
                    }
                }
            };
            match asked {
                Ok(some) => {
                    consumed.jobs.extend(some.jobs);
                    consumed.more = some.more;
                }
                // Those behind it are served all the same.
                Err(Error::Unseen(why, some)) => unseen.get_or_insert((why, Vec::new())).1.extend(some),
                // What was handed out goes to whoever asked.
                Err(_) if !consumed.jobs.is_empty() => consumed.more = true,
                Err(error) => return Err(error),
            }
            // A queue behind is served when those before it were seen empty.
            if consumed.more {
                break;
            }
        }
        match unseen {
            Some((why, queues)) if consumed.jobs.is_empty() && !consumed.more => {
                Err(Error::Unseen(why, queues))
            }
            unseen => {
                consumed.more |= unseen.is_some();
                Ok(consumed)
            }
        }
    }

    /// Jobs of queues that have their home there; or of one that is spread, which have become ready until then.
    pub async fn consume_part(
        self: &Arc<Self>,
        home: Partition,
        queues: &[Queue],
        ttrs: &[Duration],
        until: Option<Micros>,
    ) -> Outcome<Fetched> {
        let mut call = self.call(&self.scripts.consume, home);
        call.arg(queues.len());
        queues.iter().for_each(|queue| _ = call.arg(keys::name(queue)));
        call.arg(until.map_or_else(String::new, |until| until.to_string()));
        for run in ttrs.chunk_by(|a, b| a == b) {
            call.arg(run.len()).arg(micros(run[0])); // a run has at least one element
        }
        let (asked, queues) = (ttrs.len(), Arc::new(queues.to_vec()));
        ask!(self.attempts_if(until.is_none(), home, Lane::Consume), |link| {
            self.consume_from(home, &link, &queues, asked, self.for_sending(&mut call))
        })
    }

    async fn consume_from(
        self: &Arc<Self>,
        home: Partition,
        link: &Arc<Link>,
        queues: &Arc<Vec<Queue>>,
        asked: usize,
        call: Cmd,
    ) -> Outcome<Fetched> {
        let arrived = link.clock.begin();
        let connection = link.connection(Lane::Consume).await?;
        let (core, through, mut redis) = (self.clone(), link.clone(), patient(&connection));
        let queues = queues.clone();
        let exchange = async move {
            let sent = through.clock.begin();
            let reply = through.run_script(&mut redis, &core.scripts.consume, call, arrived).await?;
            core.read_consumed(home, &through, reply, &queues, asked, sent)
        };
        let late = || {
            let (core, link) = (self.clone(), link.clone());
            Some(async move |late: Fetched| {
                link.told_nobody(late.consumed.jobs, async |jobs| core.give_back(jobs).await).await
            })
        };
        link.exchange(&connection, arrived, exchange, late).await
    }

    fn read_consumed(
        self: &Arc<Self>,
        home: Partition,
        link: &Link,
        reply: Value,
        queues: &[Queue],
        asked: usize,
        sent: std::time::Instant,
    ) -> Outcome<Fetched> {
        let (now, more, paused, cells, spread, head): (u64, bool, Vec<u64>, Vec<Value>, usize, u64) =
            redis::from_redis_value(reply)?;
        link.clock.learn(sent, now);
        for pause in paused.chunks_exact(2) {
            if let (Some(queue), until @ 2..) = (queue_at(queues, pause[0] as usize), pause[1]) {
                self.notify_at(queue, until);
            }
        }
        let mut jobs = Vec::with_capacity(asked.min(cells.len() / 6));
        let (mut unreadable, mut earliest) = (false, u64::MAX);
        for handed_out in handed_out(cells, queues) {
            let HandedOut { queue, id: place, tries_left, due, ttl, stored } = handed_out?;
            earliest = earliest.min(due);
            let job = id_at(home, &place).ok_or_else(|| Fault::unreadable("consume").into());
            match job.and_then(|id| value::job(queue, id, stored, ttl, now)) {
                Ok(job) => {
                    let was_due = self.common.handed_out.begin(job.id, tries_left, due);
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
            self.stored(home, earliest);
        }
        // Jobs that cannot be read do not hide those behind them.
        Ok(Fetched {
            now,
            is_paused: !paused.is_empty(),
            spread: spread.checked_sub(1).filter(|n| *n < queues.len()),
            head: (head > 0).then_some(head),
            consumed: Consumed { jobs, more: more || unreadable },
        })
    }
}
