//! Publish and republish: coalesced calls become one script call. A call with more values than one script call may
//! carry stores them in steps first, where nobody sees them, and becomes visible as a whole in the last call.

use std::collections::{HashMap, HashSet};
use std::mem::take;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use redis::Cmd;
use redis::aio::MultiplexedConnection;

use super::RedisCore;
use super::connection::connector::Connection;
use super::connection::fault::{Fault, Outcome};
use super::connection::shared::first_up;
use super::in_time::{Pending, in_time, patient};
use super::layout::times::{micros, ttl_millis};
use super::layout::{keys, value};
use super::reply::{id_taken, over_quota, wrong_type};
use crate::clock::Micros;
use crate::engine::MAX_PUBLISH;
use crate::engine::batch::{BatchLimit, BatchSize, Call, Reply};
use crate::error::{Error, Result};
use crate::job::{JobRef, NewJob};
use crate::name::{Namespace, Queue};

/// How large a batch of publishes grows, so that one script call keeps the Redis busy for a few milliseconds. A call
/// with more bytes goes alone.
pub const LIMIT: BatchLimit = BatchLimit { items: MAX_PUBLISH, bytes: 1 << 20 };
/// How many bytes of values one script call carries. A single value may be larger.
const MAX_VALUES: usize = 1 << 20;
/// How long values are kept that were stored before the call that makes them visible: longer than the steps of the
/// largest bulk take, however slow the Redis is that still carries them out.
const STAGED: Duration = Duration::from_secs(600);

/// One call: jobs to store, and for a republish the one that they replace.
#[derive(Debug)]
pub struct Publish {
    pub jobs: Vec<NewJob>,
    pub old: Option<JobRef>,
}

impl BatchSize for Publish {
    fn items(&self) -> usize {
        self.jobs.len()
    }

    fn bytes(&self) -> usize {
        self.jobs.iter().map(bytes_of).sum()
    }
}

type PendingCall = (Publish, Reply<()>);

impl RedisCore {
    /// Publishes a batch, on the connection of this number if that is up, and answers each call.
    pub async fn publish_batch(self: &Arc<Self>, own: usize, batch: Vec<Call<Publish, ()>>) {
        let mut calls = self.calls_to_send(batch);
        if calls.is_empty() {
            return;
        }
        let [first, second] = &self.publishing;
        let connections = if own == 0 { [first, second] } else { [second, first] };
        let mut connection = match first_up(connections).await {
            Ok(connection) => connection,
            Err(fault) => return refuse_all(calls, &fault.into()),
        };
        match self.store(&mut connection, &mut calls).await {
            Ok(true) => {
                // Some key has the wrong type, so nothing was stored. One by one, only its own callers suffer.
                let several = calls.len() > 1;
                for call in calls {
                    let mut alone = vec![call];
                    if !several || matches!(self.store(&mut connection, &mut alone).await, Ok(true)) {
                        refuse_all(alone, &wrong_type());
                    }
                }
            }
            Ok(false) => {}
            Err(fault) => self.connections.note(&connection, &fault),
        }
    }
}

/// Answers every call with the same error.
fn refuse_all(calls: Vec<PendingCall>, error: &Error) {
    for (_, reply) in calls {
        // A caller that has left needs no answer; so everywhere in this file.
        let _ = reply.send(Err(error.clone()));
    }
}

/// What a refused call is told: which one, and for what.
fn read_refused(refused: u64) -> (usize, Error) {
    let error = if refused < 1000 { id_taken() } else { over_quota(refused / 1000) };
    ((refused % 1000) as usize, error)
}

/// What became of the values of a call before the call itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Staged {
    /// They fit into one script call.
    No,
    Yes,
    /// An id is stored already.
    Taken,
}

impl RedisCore {
    /// Stores the values of a call that is too large for one script call, under their keys: nobody knows their ids
    /// yet. When this process ends in between, they end by themselves.
    pub async fn stage(&self, redis: &mut MultiplexedConnection, jobs: &[&NewJob]) -> Outcome<Staged> {
        if jobs.len() == 1 || jobs.iter().map(|job| bytes_of(job)).sum::<usize>() <= MAX_VALUES {
            return Ok(Staged::No);
        }
        let mut stored = Vec::new();
        let mut result = Ok(Staged::Yes);
        let mut jobs = jobs;
        while !jobs.is_empty() {
            let (mut size, mut keys, mut values) = (0, Vec::new(), Vec::new());
            while let Some((job, rest)) = jobs.split_first() {
                let value = value::encode(&job.id, &job.body, &job.attributes);
                let value = value.map_err(|e| Fault::refused(e.to_string()))?;
                if size > 0 && size + value.len() > MAX_VALUES {
                    break;
                }
                size += value.len();
                keys.push(keys::job(&job.queue, &job.id));
                values.push(value);
                jobs = rest;
            }
            let mut call = self.scripts.stage.call(keys.len());
            call.arg(&keys).arg(STAGED.as_millis() as u64);
            values.iter().for_each(|value| {
                call.arg(&value[..]);
            });
            let reply = self.run_script(redis, &self.scripts.stage, call).await;
            let reply = reply.map_err(Fault::from);
            match reply.and_then(|reply| Ok(redis::from_redis_value::<(u64, u8)>(reply)?)) {
                Ok((_, 0)) => stored.extend(keys),
                Ok(_) => {
                    result = Ok(Staged::Taken);
                    break;
                }
                Err(fault) => {
                    result = Err(fault);
                    break;
                }
            }
        }
        // What cannot be removed now ends by itself.
        let there = !result.as_ref().is_err_and(|fault| fault.reconnect);
        if !matches!(result, Ok(Staged::Yes)) && !stored.is_empty() && there {
            // By a script that counts. They have no timers.
            let mut call = self.scripts.ack.call(1 + stored.len());
            call.arg(keys::TIMER_SET).arg(stored).arg(0);
            let _ = self.run_script(redis, &self.scripts.ack, call).await;
        }
        result
    }
}

/// What a job counts in a batch.
fn bytes_of(job: &NewJob) -> usize {
    job.body.len() + 256
}

impl RedisCore {
    /// Leaves out calls that nobody waits for any more. Refuses calls with an id that another job of the batch has:
    /// they cannot be stored, whatever the Redis holds. Returns the others.
    fn calls_to_send(&self, batch: Vec<Call<Publish, ()>>) -> Vec<PendingCall> {
        let (mut seen, mut calls) = (HashSet::new(), Vec::with_capacity(batch.len()));
        for call in batch {
            let (request, reply) = call.split();
            let fresh = request.jobs.iter().all(|job| seen.insert((job.queue.clone(), job.id)));
            if reply.is_abandoned() {
                // Its caller left while it waited. What is not sent is stored for nobody.
            } else if request.jobs.is_empty() {
                let _ = reply.send(Ok(()));
            } else if fresh {
                calls.push((request, reply));
            } else {
                let _ = reply.send(Err(id_taken()));
            }
        }
        calls
    }

    /// Sends the calls and answers them. `true`: all were refused for a key's type, and none was answered.
    async fn store(
        self: &Arc<Self>,
        connection: &mut Connection,
        calls: &mut Vec<PendingCall>,
    ) -> Outcome<bool> {
        let core = self;
        // A call with more bytes than fit is alone in its batch.
        let staged = match calls.as_slice() {
            [(request, _)] => {
                core.stage(&mut connection.redis, &request.jobs.iter().collect::<Vec<_>>()).await
            }
            _ => Ok(Staged::No),
        };
        let staged = match staged {
            Ok(Staged::Taken) => {
                refuse_all(take(calls), &id_taken());
                return Ok(false);
            }
            Ok(staged) => staged == Staged::Yes,
            Err(fault) => {
                refuse_all(take(calls), &fault.clone().into());
                return Err(fault);
            }
        };
        let (cmd, recorded) = match self.command(calls, staged) {
            Ok(built) => built,
            Err(e) => {
                refuse_all(take(calls), &e);
                return Ok(false);
            }
        };
        let sent = core.clock.mark();
        let exchange = {
            let (core, mut redis) = (core.clone(), patient(connection));
            async move {
                let reply = core.run_script(&mut redis, &core.scripts.publish, cmd).await?;
                Ok(redis::from_redis_value::<Vec<u64>>(reply)?)
            }
        };
        let reply: Outcome<Vec<u64>> = match in_time(exchange).await {
            Ok(reply) => reply,
            Err(exchange) => {
                self.take_back_late(connection, exchange, calls);
                Err(Fault::away("no answer in time"))
            }
        };
        let (now, refused) = match reply.as_deref() {
            Ok([now, 0, refused @ ..]) => {
                (*now, refused.iter().map(|c| read_refused(*c)).collect::<HashMap<_, _>>())
            }
            Ok([_, 1, ..]) => return Ok(true),
            Ok([_, 2, ..]) => {
                refuse_all(take(calls), &Error::away("the values were stored too slowly"));
                return Ok(false);
            }
            Ok(_) => {
                let fault = Fault::unreadable("publish");
                refuse_all(take(calls), &fault.clone().into());
                return Err(fault);
            }
            Err(fault) => {
                refuse_all(take(calls), &fault.clone().into());
                return Err(fault.clone());
            }
        };
        core.clock.learn(sent, now);
        for queue in recorded {
            // The name of one whose calls were all refused may not be there.
            let stored = |(i, (request, _)): (usize, &PendingCall)| {
                !refused.contains_key(&i) && request.jobs.iter().any(|job| job.queue == queue)
            };
            if refused.is_empty() || calls.iter().enumerate().any(stored) {
                core.recorded_queues.add(queue);
            }
        }
        for (i, (request, reply)) in calls.drain(..).enumerate() {
            if let Some(error) = refused.get(&i) {
                let _ = reply.send(Err(error.clone()));
                continue;
            }
            self.notify(&request, now);
            let _ = reply.send(Ok(()));
        }
        Ok(false)
    }

    /// The callers are told that the Redis is away. If it has stored their jobs all the same, these are taken back
    /// as soon as it says so. A republish stays done: the job that it replaced is gone.
    fn take_back_late<F>(
        self: &Arc<Self>,
        connection: &Connection,
        exchange: Pending<F>,
        calls: &[PendingCall],
    ) where
        F: Future<Output = Outcome<Vec<u64>>> + Send + 'static,
    {
        let calls: Vec<Vec<(JobRef, Option<u16>)>> = calls
            .iter()
            .map(|(request, _)| {
                let jobs = request.jobs.iter().filter(|_| request.old.is_none());
                jobs.map(|job| {
                    let tries = (!job.delay.is_zero()).then_some(job.tries.get());
                    (JobRef { queue: job.queue.clone(), id: job.id }, tries)
                })
                .collect()
            })
            .collect();
        let core = self.clone();
        self.listen_on(connection, exchange, async move |reply: Vec<u64>| {
            let [_, 0, refused @ ..] = reply.as_slice() else { return };
            let refused: HashSet<usize> = refused.iter().map(|call| read_refused(*call).0).collect();
            let stored = calls.iter().enumerate().filter(|(i, _)| !refused.contains(i));
            let jobs: Vec<_> = stored.flat_map(|(_, jobs)| jobs).collect();
            if jobs.is_empty() {
                return;
            }
            let call = core.forget(jobs.iter().map(|(job, tries)| (job, *tries)));
            let taken_back: Outcome<u64> = core.run(&core.shared, &core.scripts.ack, call).await;
            if let Err(fault) = taken_back {
                let count = jobs.len();
                tracing::warn!(
                    pool = &*core.pool,
                    count,
                    "jobs are stored that were answered with an error: {fault}"
                );
            }
        });
    }

    /// Tells consumers and the pump of what was stored.
    fn notify(&self, request: &Publish, now: Micros) {
        let mut notified: Option<&Queue> = None;
        for job in &request.jobs {
            if !job.delay.is_zero() {
                self.next_due.stored(now + micros(job.delay));
            } else if notified != Some(&job.queue) {
                self.notifiers.notify(&job.queue);
                notified = Some(&job.queue);
            }
        }
    }

    /// The script call, and the queues whose names it records. When the values are stored already, they are not sent
    /// again.
    fn command(&self, calls: &[PendingCall], staged: bool) -> Result<(Cmd, Vec<Queue>)> {
        let (mut lists, mut list_of) = (Vec::new(), HashMap::new());
        let (mut jobs, mut replaced) = (Vec::new(), Vec::new());
        for (i, (request, _)) in calls.iter().enumerate() {
            for job in &request.jobs {
                let next = lists.len() + 1;
                let list = *list_of.entry(&job.queue).or_insert(next);
                if list == next {
                    lists.push(&job.queue);
                }
                jobs.push((i, list, job));
            }
            replaced.extend(request.old.as_ref().map(|old| (i, old)));
        }
        let new: Vec<Queue> =
            lists.iter().filter(|queue| !self.recorded_queues.has(queue)).copied().cloned().collect();
        let namespaces: HashSet<&Namespace> = new.iter().map(|queue| &queue.namespace).collect();
        let names = namespaces.len() + 2 * new.len();

        let mut cmd = self.scripts.publish.call(1 + lists.len() + jobs.len() + replaced.len() + names);
        cmd.arg(keys::TIMER_SET);
        for queue in &lists {
            cmd.arg(keys::ready(queue));
        }
        for (_, _, job) in &jobs {
            cmd.arg(keys::job(&job.queue, &job.id));
        }
        for (_, old) in &replaced {
            cmd.arg(keys::job(&old.queue, &old.id));
        }
        for _ in &namespaces {
            cmd.arg(keys::NAMESPACES);
        }
        for queue in &new {
            cmd.arg(keys::queues_of(&queue.namespace));
        }
        for queue in &new {
            cmd.arg(keys::index_of(&queue.namespace));
        }

        cmd.arg(lists.len()).arg(jobs.len()).arg(replaced.len()).arg(u8::from(staged));
        let mut in_order = InOrder::default();
        for (call, list, job) in &jobs {
            let tries = job.tries.get();
            cmd.arg(call);
            let ready = job.delay.is_zero();
            cmd.arg(if ready { *list } else { 0 });
            cmd.arg(job.ttl.map_or(0, ttl_millis));
            if ready {
                cmd.arg(0).arg(keys::element(tries, &job.id));
            } else {
                let member = keys::member(&job.queue, tries, &job.id);
                cmd.arg(micros(job.delay) + in_order.later(*list, &member)).arg(member);
            }
            let value =
                if staged { Bytes::new() } else { value::encode(&job.id, &job.body, &job.attributes)? };
            cmd.arg(&value[..]);
        }
        for (call, old) in &replaced {
            let member = self.tries.remove(&old.id).map(|tries| keys::member(&old.queue, tries, &old.id));
            cmd.arg(call).arg(member.unwrap_or_default());
        }
        for namespace in &namespaces {
            cmd.arg(namespace.as_str());
        }
        for queue in new.iter().chain(&new) {
            cmd.arg(queue.name.as_str());
        }
        if !new.is_empty() {
            cmd.arg(new.len());
        }
        Ok((cmd, new))
    }
}

/// Keeps delayed jobs of one call in order that would be due together: timers of one score stand in the order of their
/// members, which begin with queue and tries.
#[derive(Debug, Default)]
pub struct InOrder {
    /// The last member of each list.
    last: HashMap<usize, Vec<u8>>,
    later: Micros,
}

impl InOrder {
    /// How many microseconds later than asked for the job of the next member is due.
    pub fn later(&mut self, list: usize, member: &[u8]) -> Micros {
        let last = self.last.insert(list, member.to_vec());
        if last.is_some_and(|last| *member < last[..]) {
            self.later += 2; // delayed jobs are due at even microseconds
        }
        self.later
    }
}
