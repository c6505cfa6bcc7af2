//! Publish and republish: coalesced calls become one script call.

use std::collections::{HashMap, HashSet};
use std::mem::take;
use std::sync::Arc;
use std::time::Duration;

use redis::Cmd;

use super::RedisCore;
use super::connection::connector::Connection;
use super::connection::fault::{Fault, Outcome};
use super::connection::worker::Handler;
use super::layout::{keys, value};
use crate::clock::{self, Micros};
use crate::engine::MAX_PUBLISH;
use crate::engine::batch::{BatchLimit, BatchSize, Call, Reply};
use crate::error::{Error, Result};
use crate::job::{JobRef, NewJob};
use crate::name::{Namespace, Queue};

/// How large a batch of publishes grows. A single call of 64 jobs of 1 MiB goes alone.
pub const LIMIT: BatchLimit = BatchLimit { items: MAX_PUBLISH, bytes: 4 << 20 };

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
        self.jobs.iter().map(|job| job.body.len() + 256).sum()
    }
}

/// Handles batches of publishes.
#[derive(Debug)]
pub struct PublishHandler(pub Arc<RedisCore>);

type PendingCall = (Publish, Reply<()>);

impl Handler for PublishHandler {
    type Request = Publish;
    type Reply = ();

    async fn handle(&mut self, connection: &mut Connection, batch: Vec<Call<Publish, ()>>) -> Outcome<()> {
        let mut calls = self.refuse_duplicates(batch);
        if calls.is_empty() {
            return Ok(());
        }
        if self.store(connection, &mut calls).await? {
            // Some key has the wrong type, so nothing was stored. One by one, only its own callers suffer.
            let several = calls.len() > 1;
            for call in calls {
                let mut alone = vec![call];
                if !several || self.store(connection, &mut alone).await? {
                    refuse_all(
                        alone,
                        &Error::refused("a key of the queue is not of the type that it must be"),
                    );
                }
            }
        }
        Ok(())
    }
}

/// Answers every call with the same error.
fn refuse_all(calls: Vec<PendingCall>, error: &Error) {
    for (_, reply) in calls {
        // A caller that has left needs no answer; so everywhere in this file.
        let _ = reply.send(Err(error.clone()));
    }
}

fn id_taken() -> Error {
    Error::refused("a job with this id is stored already")
}

impl PublishHandler {
    /// Refuses calls with an id that another job of the batch has: they cannot be stored, whatever the Redis
    /// holds. Returns the others.
    fn refuse_duplicates(&self, batch: Vec<Call<Publish, ()>>) -> Vec<PendingCall> {
        let (mut seen, mut calls) = (HashSet::new(), Vec::with_capacity(batch.len()));
        for call in batch {
            let (request, reply) = call.split();
            let fresh = request.jobs.iter().all(|job| seen.insert((job.queue.clone(), job.id)));
            if request.jobs.is_empty() {
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
    async fn store(&self, connection: &mut Connection, calls: &mut Vec<PendingCall>) -> Outcome<bool> {
        let core = &self.0;
        let (cmd, recorded) = match self.command(calls) {
            Ok(built) => built,
            Err(e) => {
                refuse_all(take(calls), &e);
                return Ok(false);
            }
        };
        let sent = core.clock.mark();
        let reply = core.scripts.publish.run(&mut connection.redis, &cmd).await;
        let reply: Outcome<Vec<u64>> =
            reply.map_err(Fault::from).and_then(|v| Ok(redis::from_redis_value(v)?));
        let (now, refused) = match reply.as_deref() {
            Ok([now, 0, refused @ ..]) => (*now, refused.iter().map(|c| *c as usize).collect::<HashSet<_>>()),
            Ok([_, _, ..]) => return Ok(true),
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
            core.recorded_queues.add(queue);
        }
        for (i, (request, reply)) in calls.drain(..).enumerate() {
            if refused.contains(&i) {
                let _ = reply.send(Err(id_taken()));
                continue;
            }
            self.notify(&request, now);
            let _ = reply.send(Ok(()));
        }
        Ok(false)
    }

    /// Tells consumers and the pump of what was stored.
    fn notify(&self, request: &Publish, now: Micros) {
        let mut notified: Option<&Queue> = None;
        for job in &request.jobs {
            if !job.delay.is_zero() {
                self.0.next_due.stored(now + micros(job.delay));
            } else if notified != Some(&job.queue) {
                self.0.notifiers.notify(&job.queue);
                notified = Some(&job.queue);
            }
        }
    }

    /// The script call, and the queues whose names it records.
    fn command(&self, calls: &[PendingCall]) -> Result<(Cmd, Vec<Queue>)> {
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
            lists.iter().filter(|queue| !self.0.recorded_queues.has(queue)).copied().cloned().collect();
        let namespaces: HashSet<&Namespace> = new.iter().map(|queue| &queue.namespace).collect();
        let names = namespaces.len() + new.len();

        let mut cmd = self.0.scripts.publish.call(1 + lists.len() + jobs.len() + replaced.len() + names);
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

        cmd.arg(lists.len()).arg(jobs.len()).arg(replaced.len());
        for (call, list, job) in &jobs {
            let tries = job.tries.get();
            cmd.arg(call);
            let ready = job.delay.is_zero();
            cmd.arg(if ready { *list } else { 0 });
            cmd.arg(job.ttl.map_or(0, ttl_millis)).arg(micros(job.delay));
            cmd.arg(if ready {
                keys::element(tries, &job.id)
            } else {
                keys::member(&job.queue, tries, &job.id)
            });
            cmd.arg(&value::encode(&job.id, &job.body, &job.attributes)?[..]);
        }
        for (call, old) in &replaced {
            let member = self.0.tries.remove(&old.id).map(|tries| keys::member(&old.queue, tries, &old.id));
            cmd.arg(call).arg(member.unwrap_or_default());
        }
        for namespace in &namespaces {
            cmd.arg(namespace.as_str());
        }
        for queue in &new {
            cmd.arg(queue.name.as_str());
        }
        Ok((cmd, new))
    }
}

/// The longest delay and ttr: what lmstfy's API can ask for. Lua's numbers are exact far beyond.
const LONGEST: Duration = Duration::from_secs(u32::MAX as u64);

/// A delay or ttr for a script, in microseconds.
pub fn micros(time: Duration) -> Micros {
    clock::micros(time.min(LONGEST))
}

/// A ttl for a script, in milliseconds; never 0, which would mean forever.
pub fn ttl_millis(ttl: Duration) -> u64 {
    // Redis refuses what overflows when the present is added; a thousand years do not.
    ttl.min(Duration::from_secs(1000 * 366 * 86_400)).as_nanos().div_ceil(1_000_000).max(1) as u64
}
