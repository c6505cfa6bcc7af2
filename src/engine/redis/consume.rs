//! Consume: orders of several consumers become one script call. An order that met more dead jobs than one
//! call may skip goes on in the next, beside the orders that have come meanwhile.

use std::collections::{HashMap, HashSet};
use std::mem::take;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use redis::{Cmd, FromRedisValue, Value};

use super::RedisCore;
use super::connection::connector::Connection;
use super::connection::fault::{Fault, Outcome};
use super::connection::worker::Handler;
use super::layout::{keys, value};
use super::publish::micros;
use crate::engine::batch::{BatchLimit, BatchSize, Call, Reply};
use crate::engine::{MAX_CONSUME, Want};
use crate::job::Job;
use crate::name::{Queue, QueueList};

/// How many jobs a batch asks for together, and how many bytes of queues' names it carries: each queue is a
/// look, so orders of very many queues go alone.
pub const BOUND: BatchLimit = BatchLimit { items: MAX_CONSUME, bytes: 64 << 10 };

/// One call.
#[derive(Debug)]
pub struct Consume {
    pub queues: QueueList,
    pub wants: Vec<Want>,
}

impl BatchSize for Consume {
    fn items(&self) -> usize {
        self.wants.iter().map(|want| usize::from(want.count)).sum()
    }

    fn bytes(&self) -> usize {
        self.queues.names().iter().map(|name| 64 + name.as_str().len()).sum()
    }
}

/// A call on its way, with what it has got so far.
#[derive(Debug)]
struct Order {
    request: Consume,
    got: Vec<Vec<Job>>,
    /// One of its queues cannot be read.
    fault: Option<Fault>,
    reply: Reply<Vec<Vec<Job>>>,
}

impl Order {
    /// What is still wanted: which want, how many, and its ttr.
    fn open(&self) -> impl Iterator<Item = (usize, usize, Duration)> + '_ {
        let wants = self.request.wants.iter().zip(&self.got).enumerate();
        wants
            .map(|(i, (want, got))| (i, usize::from(want.count).saturating_sub(got.len()), want.ttr))
            .filter(|(_, count, _)| *count > 0)
    }

    /// Answers; jobs that nobody waits for any more are handed to `orphans`.
    fn finish(self, fault: Option<&Fault>, orphans: &mut Vec<Job>) {
        let some = self.got.iter().any(|jobs| !jobs.is_empty());
        // What was popped before a failure is armed, and goes to who asked.
        let answer = match fault.or(self.fault.as_ref()) {
            Some(fault) if !some => Err(fault.clone().into()),
            _ => Ok(self.got),
        };
        if let Err(Ok(unread)) = self.reply.send(answer) {
            orphans.extend(unread.into_iter().flatten());
        }
    }
}

/// A lane's hands.
#[derive(Debug)]
pub struct Consumer {
    shared: Arc<RedisCore>,
    /// Orders cut short by the bound on one call.
    unfinished: Vec<Order>,
}

impl Consumer {
    /// Empty hands.
    pub fn new(shared: Arc<RedisCore>) -> Consumer {
        Consumer { shared, unfinished: Vec::new() }
    }
}

impl Handler for Consumer {
    type Request = Consume;
    type Reply = Vec<Vec<Job>>;

    async fn handle(
        &mut self,
        link: &mut Connection,
        batch: Vec<Call<Consume, Vec<Vec<Job>>>>,
    ) -> Outcome<()> {
        let mut orders = take(&mut self.unfinished);
        orders.extend(batch.into_iter().map(|call| {
            let (request, reply) = call.split();
            Order { got: vec![Vec::new(); request.wants.len()], request, fault: None, reply }
        }));
        let (cmd, sent_as) = self.command(&orders);
        let sent = self.shared.clock.mark();
        let reply = self.shared.scripts.consume.run(&mut link.redis, &cmd).await;
        let reply = reply.map_err(Fault::from).and_then(|v| self.hand_out(v, &mut orders, &sent_as, sent));
        let mut orphans = Vec::new();
        let outcome = match reply {
            Ok(cut) => {
                for (i, order) in orders.into_iter().enumerate() {
                    if cut.contains(&i) && order.open().next().is_some() {
                        self.unfinished.push(order);
                    } else {
                        order.finish(None, &mut orphans);
                    }
                }
                Ok(())
            }
            Err(fault) => {
                for order in orders {
                    order.finish(Some(&fault), &mut orphans);
                }
                Err(fault)
            }
        };
        self.shared.return_orphans(orphans);
        outcome
    }

    fn has_more(&self) -> bool {
        !self.unfinished.is_empty()
    }

    fn give_up(&mut self, fault: &Fault) {
        let mut orphans = Vec::new();
        for order in take(&mut self.unfinished) {
            order.finish(Some(fault), &mut orphans);
        }
        self.shared.return_orphans(orphans);
    }
}

/// How orders were put to the script: what its numbers, which begin at 1, stand for.
#[derive(Debug, Default)]
struct SentAs {
    queues: Vec<Queue>,
    /// Orders from the same queues are one to the script, so that it pops for all of them at once. Per such
    /// group, its wants: which order's, and which of that order's.
    groups: Vec<Vec<(usize, usize)>>,
}

impl Consumer {
    /// The script call.
    fn command(&self, orders: &[Order]) -> (Cmd, SentAs) {
        let mut sent_as = SentAs::default();
        let mut numbers = HashMap::new();
        let (mut group_of, mut lists, mut wants) = (HashMap::new(), Vec::new(), Vec::new());
        for (o, order) in orders.iter().enumerate() {
            let list = &order.request.queues;
            let group = *group_of.entry(list).or_insert_with(|| {
                lists.push(list);
                wants.push(Vec::new());
                sent_as.groups.push(Vec::new());
                lists.len() - 1
            });
            for (w, count, ttr) in order.open() {
                sent_as.groups[group].push((o, w));
                wants[group].push((count, micros(ttr)));
            }
        }
        for queue in lists.iter().flat_map(|list| list.queues()) {
            numbers.entry(queue.clone()).or_insert_with(|| {
                sent_as.queues.push(queue);
                sent_as.queues.len()
            });
        }

        let queues = &sent_as.queues;
        let mut cmd = self.shared.scripts.consume.call(1 + 2 * queues.len());
        cmd.arg(keys::TIMER_SET);
        for queue in queues {
            cmd.arg(keys::ready(queue));
        }
        for queue in queues {
            cmd.arg(keys::dead(queue));
        }
        cmd.arg(lists.len()).arg(queues.len());
        for queue in queues {
            cmd.arg(keys::job_prefix(queue)).arg(keys::member_prefix(queue));
        }
        for (list, wants) in lists.iter().zip(&wants) {
            cmd.arg(list.names().len());
            for queue in list.queues() {
                cmd.arg(numbers.get(&queue).copied().unwrap_or_default());
            }
            cmd.arg(wants.len());
            for (count, ttr) in wants {
                cmd.arg(count).arg(ttr);
            }
        }
        (cmd, sent_as)
    }

    /// Reads the reply into the orders; answers which of them were cut short.
    fn hand_out(
        &self,
        reply: Value,
        orders: &mut [Order],
        sent_as: &SentAs,
        sent: std::time::Instant,
    ) -> Outcome<HashSet<usize>> {
        let (now, garbage, cut, bad, rows): (u64, u64, Vec<usize>, Vec<usize>, Vec<Value>) =
            redis::from_redis_value(reply)?;
        self.shared.clock.learn(sent, now);
        if garbage > 0 {
            tracing::warn!(pool = &*self.shared.pool, garbage, "dropped list elements that are not jobs");
        }
        let mut unread = HashSet::new();
        let mut earliest = None;
        let mut rows = rows.into_iter();
        while let Some(group) = rows.next() {
            let mut cell = || rows.next().unwrap_or(Value::Nil);
            let group = usize::from_redis_value(group)?;
            let want = usize::from_redis_value(cell())?;
            let queue = usize::from_redis_value(cell())?;
            let id = Vec::<u8>::from_redis_value(cell())?;
            let tries_left = u16::from_redis_value(cell())?;
            let due = u64::from_redis_value(cell())?;
            let ttl = i64::from_redis_value(cell())?;
            let stored = Bytes::from_redis_value(cell())?;
            earliest = Some(earliest.map_or(due, |e: u64| e.min(due)));
            let place = group.checked_sub(1).and_then(|group| {
                let (order, want) = *sent_as.groups.get(group)?.get(want.checked_sub(1)?)?;
                Some((order, orders.get_mut(order)?.got.get_mut(want)?))
            });
            let (Some((order, place)), Some(queue)) =
                (place, queue.checked_sub(1).and_then(|q| sent_as.queues.get(q)))
            else {
                return Err(Fault::unreadable("consume"));
            };
            let Some(id) = keys::job_id(&id) else {
                tracing::warn!(pool = &*self.shared.pool, %queue, "skipped a job whose id no server has made");
                unread.insert(order);
                continue;
            };
            let job = match value::job(queue, id, stored, ttl, now) {
                Ok(job) => job,
                Err(e) => {
                    // It comes back after its ttr, and ends in the dead letter, where it can be looked at.
                    tracing::warn!(pool = &*self.shared.pool, %queue, "skipped a job: {e}");
                    unread.insert(order);
                    continue;
                }
            };
            self.shared.tries.insert(id, tries_left);
            place.push(Job { tries_left, receipt: due, ..job });
        }
        if let Some(due) = earliest {
            self.shared.next_due.stored(due);
        }
        let bad = bad.iter().filter_map(|list| sent_as.queues.get(list.checked_sub(1)?));
        for queue in bad {
            for order in orders.iter_mut().filter(|order| order.request.queues.queues().any(|q| q == *queue))
            {
                order.fault = Some(Fault::refused(format!("the key of queue {queue} is not a list")));
            }
        }
        // Jobs that could not be read must not hide those behind them.
        let cut = cut.iter().filter_map(|group| sent_as.groups.get(group.checked_sub(1)?)).flatten();
        Ok(cut.map(|(order, _)| *order).chain(unread).collect())
    }
}
