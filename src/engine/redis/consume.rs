//! Consume: orders of several consumers become one script call. An order that met more dead jobs than one
//! call may skip goes on in the next, beside the orders that have come meanwhile.

use std::collections::HashMap;
use std::mem::take;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use redis::{Cmd, FromRedisValue, Value};

use super::connect::Link;
use super::fault::{Fault, Outcome};
use super::lane::Serve;
use super::publish::micros;
use super::{Shared, keys, value};
use crate::engine::coalesce::{Bound, Call, Reply, Weigh};
use crate::engine::{MAX_CONSUME, Want};
use crate::job::Job;
use crate::name::{Queue, QueueList};

/// How many jobs a batch asks for together.
pub const BOUND: Bound = Bound { items: MAX_CONSUME, bytes: usize::MAX };

/// One call.
#[derive(Debug)]
pub struct Consume {
    pub queues: QueueList,
    pub wants: Vec<Want>,
}

impl Weigh for Consume {
    fn items(&self) -> usize {
        self.wants.iter().map(|want| usize::from(want.count)).sum()
    }
}

/// A call on its way, with what it has got so far.
#[derive(Debug)]
struct Order {
    request: Consume,
    got: Vec<Vec<Job>>,
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
        let answer = match fault {
            Some(fault) if !some => Err(fault.error()),
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
    shared: Arc<Shared>,
    /// Orders cut short by the bound on one call.
    unfinished: Vec<Order>,
}

impl Consumer {
    /// Empty hands.
    pub fn new(shared: Arc<Shared>) -> Consumer {
        Consumer { shared, unfinished: Vec::new() }
    }
}

impl Serve for Consumer {
    type Request = Consume;
    type Reply = Vec<Vec<Job>>;

    async fn serve(&mut self, link: &mut Link, batch: Vec<Call<Consume, Vec<Vec<Job>>>>) -> Outcome<()> {
        let mut orders = take(&mut self.unfinished);
        orders.extend(batch.into_iter().map(|call| {
            let (request, reply) = call.split();
            Order { got: vec![Vec::new(); request.wants.len()], request, reply }
        }));
        let (cmd, queues) = self.command(&orders);
        let sent = self.shared.clock.mark();
        let reply = self.shared.scripts.consume.run(&mut link.conn, &cmd).await;
        let reply = reply.map_err(Fault::from).and_then(|v| self.hand_out(v, &mut orders, &queues, sent));
        let mut orphans = Vec::new();
        let outcome = match reply {
            Ok(cut) => {
                for (i, order) in orders.into_iter().enumerate() {
                    if cut.contains(&(i + 1)) && order.open().next().is_some() {
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
}

impl Consumer {
    /// The script call, and its queues in the order of their numbers.
    fn command(&self, orders: &[Order]) -> (Cmd, Vec<Queue>) {
        let (mut queues, mut number) = (Vec::new(), HashMap::new());
        for queue in orders.iter().flat_map(|order| order.request.queues.queues()) {
            number.entry(queue.clone()).or_insert_with(|| {
                queues.push(queue);
                queues.len()
            });
        }
        let mut cmd = self.shared.scripts.consume.call(1 + 2 * queues.len());
        cmd.arg(keys::TIMER_SET);
        for queue in &queues {
            cmd.arg(keys::ready(queue));
        }
        for queue in &queues {
            cmd.arg(keys::dead(queue));
        }
        cmd.arg(orders.len()).arg(queues.len());
        for queue in &queues {
            cmd.arg(keys::job_prefix(queue)).arg(keys::member_prefix(queue));
        }
        for order in orders {
            cmd.arg(order.request.queues.names().len());
            for queue in order.request.queues.queues() {
                cmd.arg(number.get(&queue).copied().unwrap_or_default());
            }
            cmd.arg(order.open().count());
            for (_, count, ttr) in order.open() {
                cmd.arg(count).arg(micros(ttr));
            }
        }
        (cmd, queues)
    }

    /// Reads the reply into the orders; answers the numbers of those that were cut short.
    fn hand_out(
        &self,
        reply: Value,
        orders: &mut [Order],
        queues: &[Queue],
        sent: std::time::Instant,
    ) -> Outcome<Vec<usize>> {
        let (now, garbage, cut, rows): (u64, u64, Vec<usize>, Vec<Value>) = redis::from_redis_value(reply)?;
        self.shared.clock.learn(sent, now);
        if garbage > 0 {
            tracing::warn!(pool = &*self.shared.pool, garbage, "dropped list elements that are not jobs");
        }
        // The script numbers the open wants; the order knows which they are.
        let open: Vec<Vec<usize>> = orders.iter().map(|o| o.open().map(|(i, ..)| i).collect()).collect();
        let mut earliest = None;
        let mut rows = rows.into_iter();
        while let Some(order) = rows.next() {
            let mut cell = || rows.next().unwrap_or(Value::Nil);
            let order = usize::from_redis_value(order)?;
            let want = usize::from_redis_value(cell())?;
            let queue = usize::from_redis_value(cell())?;
            let id = Vec::<u8>::from_redis_value(cell())?;
            let tries_left = u16::from_redis_value(cell())?;
            let due = u64::from_redis_value(cell())?;
            let ttl = i64::from_redis_value(cell())?;
            let stored = Bytes::from_redis_value(cell())?;
            earliest = Some(earliest.map_or(due, |e: u64| e.min(due)));
            let place = order.checked_sub(1).and_then(|o| {
                let want = *open.get(o)?.get(want.checked_sub(1)?)?;
                orders.get_mut(o)?.got.get_mut(want)
            });
            let (Some(place), Some(queue)) = (place, queue.checked_sub(1).and_then(|q| queues.get(q))) else {
                return Err(Fault::unreadable("consume"));
            };
            let Some(id) = keys::job_id(&id) else {
                tracing::warn!(pool = &*self.shared.pool, %queue, "skipped a job whose id no server has made");
                continue;
            };
            let (body, attributes) = match value::decode(&id, stored) {
                Ok(read) => read,
                Err(e) => {
                    // It comes back after its ttr, and ends in the dead letter, where it can be looked at.
                    tracing::warn!(pool = &*self.shared.pool, %queue, "skipped a job: {e}");
                    continue;
                }
            };
            self.shared.running.insert(id, tries_left);
            place.push(Job {
                queue: queue.clone(),
                id,
                body,
                attributes,
                ttl: ttl_left(ttl),
                elapsed: Duration::from_millis((now / 1000).saturating_sub(id.published_at())),
                tries_left,
                receipt: due,
            });
        }
        if let Some(due) = earliest {
            self.shared.next_due.stored(due);
        }
        Ok(cut)
    }
}

/// What PTTL says.
pub fn ttl_left(millis: i64) -> Option<Duration> {
    u64::try_from(millis).ok().map(Duration::from_millis)
}
