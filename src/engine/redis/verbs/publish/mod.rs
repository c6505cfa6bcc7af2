//! Publish: one entry for every publication, and one way to its script. What has neither keys nor instants and is not to
//! be repeated shares a script call with what others publish meanwhile (lua/publish.lua); any other publication is a call by
//! itself, on the connection of calls off the hot path (lua/publish_with.lua). A publication with more values than one
//! script call may carry stores them in steps first, where nobody sees them, and becomes visible as a whole in the last call.

mod script;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use redis::Cmd;

pub use self::script::read_placed;
use self::script::{ScriptAnswer, Stored, placed_plain, read_keyed, read_plain, unreadable};
use crate::clock::{Micros, Millis};
use crate::engine::batch::{Call, Reply};
use crate::engine::redis::batches::{Plain, bytes_of};
use crate::engine::redis::connection::fault::{Fault, Outcome};
use crate::engine::redis::connection::open::Connection;
use crate::engine::redis::connection::shared::first_up;
use crate::engine::redis::core::RedisCore;
use crate::engine::redis::in_time::patient;
use crate::engine::redis::layout::{keys, value};
use crate::engine::redis::reply::{id_taken, wrong_type};
use crate::engine::{How, Placing, Publication, Published};
use crate::error::{Error, Result};
use crate::job::{JobRef, NewJob};
use crate::name::Queue;

/// How many bytes of values one script call carries. A single value may be larger.
const MAX_VALUES: usize = 1 << 20;
/// How long values are kept that were stored before the call that makes them visible: longer than the steps of the
/// largest bulk take, however slow the Redis is that still carries them out.
const STAGED: Duration = Duration::from_secs(600);
/// No job is due later, in the year 2255: Lua's numbers are exact so far, with room to count on. HTTP asks for 136
/// years at most.
const LATEST: Millis = ((1 << 53) - (1 << 30)) / 1000;

fn is_plain(publication: &Publication) -> bool {
    publication.once.is_none() && publication.jobs.iter().all(|job| job.key.is_none() && job.at.is_none())
}

/// The jobs, and their tries, of those calls that may be taken back. With a key, or when a call is safe to repeat,
/// another one may have been told of its jobs. A job that was replaced is gone.
fn names_to_take_back(calls: &[Publication]) -> Vec<(usize, Vec<(JobRef, u16)>)> {
    let may = |Publication { jobs, replaces, once }: &Publication| {
        replaces.is_none() && once.is_none() && jobs.iter().all(|placing| placing.key.is_none())
    };
    let name =
        |Placing { job, .. }: &Placing| (JobRef { queue: job.queue.clone(), id: job.id }, job.tries.get());
    let calls = calls.iter().enumerate().filter(|(_, call)| may(call));
    calls.map(|(i, call)| (i, call.jobs.iter().map(name).collect())).collect()
}

/// Refuses what no call of the script can store, whatever the Redis holds.
fn check(publication: &Publication) -> Result<()> {
    let (mut ids, mut taken) = (HashSet::new(), HashSet::new());
    for Placing { job, at, key } in &publication.jobs {
        if !ids.insert((&job.queue, job.id)) {
            return Err(id_taken());
        }
        if at.is_some_and(|at| at > LATEST) {
            return Err(Error::refused("an instant is too far away"));
        }
        if let Some((key, _)) = key
            && !taken.insert((&job.queue, key))
        {
            return Err(Error::refused("two jobs of one publish have the same key"));
        }
    }
    Ok(())
}

/// Leaves out calls that nobody waits for any more. Refuses calls with an id that another job of the batch has: they
/// cannot be stored, whatever the Redis holds. Returns the others.
fn calls_to_send(batch: Vec<Call<Plain, Published>>) -> (Vec<Publication>, Vec<Reply<Published>>) {
    let (mut seen, mut calls, mut replies) = (HashSet::new(), Vec::new(), Vec::new());
    for call in batch {
        let (Plain(publication), reply) = call.split();
        let fresh =
            publication.jobs.iter().all(|Placing { job, .. }| seen.insert((job.queue.clone(), job.id)));
        if reply.is_abandoned() {
            // Its caller left while it waited. What is not sent is stored for nobody.
        } else if fresh {
            calls.push(publication);
            replies.push(reply);
        } else {
            let _ = reply.send(Err(id_taken())); // a caller that has left needs no answer
        }
    }
    (calls, replies)
}

impl RedisCore {
    /// Stores what a publication has, all of it or nothing.
    pub async fn publish(self: &Arc<Self>, publication: Publication) -> Result<Published> {
        if publication.jobs.is_empty() {
            return Ok(Published::Done(Vec::new()));
        }
        if is_plain(&publication) {
            return self.publishes.call(Plain(publication)).await;
        }
        // Boxed: it would be part of the future of every plain one.
        Box::pin(self.publish_alone(publication)).await
    }

    async fn publish_alone(self: &Arc<Self>, publication: Publication) -> Result<Published> {
        if let Err(error) = check(&publication) {
            // What was done already is answered first.
            let once = publication.once.as_ref().zip(publication.jobs.first());
            let Some((once, first)) = once else { return Err(error) };
            return self.recall(&first.job.queue, once).await?.ok_or(error);
        }
        let connection = self.shared.connection().await?;
        self.carry(&connection, &[publication]).await.pop().unwrap_or_else(|| Err(unreadable().into()))
    }

    /// Publishes a batch, on the connection of this number if that is up, and answers each call.
    pub async fn publish_batch(self: &Arc<Self>, own: usize, batch: Vec<Call<Plain, Published>>) {
        let (calls, replies) = calls_to_send(batch);
        if calls.is_empty() {
            return;
        }
        let [first, second] = &self.publish_connections;
        let answers = match first_up(if own == 0 { [first, second] } else { [second, first] }).await {
            Ok(connection) => self.carry(&connection, &calls).await,
            Err(fault) => vec![Err(fault.into()); calls.len()],
        };
        for (reply, answer) in replies.into_iter().zip(answers) {
            let _ = reply.send(answer); // a caller that has left needs no answer
        }
    }

    /// Carries several plain calls, or one call of any kind. Answers what became of each.
    async fn carry(
        self: &Arc<Self>,
        connection: &Connection,
        calls: &[Publication],
    ) -> Vec<Result<Published>> {
        match self.carry_together(connection, calls).await {
            Ok(Some(answers)) => answers,
            Err(e) => vec![Err(e); calls.len()],
            // One by one, only those suffer that have the key of a wrong type.
            Ok(None) if calls.len() > 1 => {
                let mut answers = Vec::with_capacity(calls.len());
                for call in calls {
                    answers.extend(Box::pin(self.carry(connection, std::slice::from_ref(call))).await);
                }
                answers
            }
            Ok(None) => vec![Err(wrong_type())],
        }
    }

    /// In one script call. `None` when nothing was stored since some key has the wrong type.
    async fn carry_together(
        self: &Arc<Self>,
        connection: &Connection,
        calls: &[Publication],
    ) -> Result<Option<Vec<Result<Published>>>> {
        let jobs: Vec<&NewJob> =
            calls.iter().flat_map(|call| &call.jobs).map(|placing| &placing.job).collect();
        // A call with more bytes than fit is alone in its batch.
        let staged = self.stage(connection, &jobs).await;
        let staged = match staged.inspect_err(|fault| self.connections.report(connection, fault))? {
            Staged::Taken => return Ok(Some(vec![Err(id_taken())])),
            staged => staged == Staged::Yes,
        };
        let mut step = match calls {
            [call] if !is_plain(call) => self.keyed_step(call, &jobs, staged)?,
            calls => self.plain_step(calls, &jobs, staged)?,
        };
        let (now, answer) = loop {
            // Only a keyed one is sent more than once.
            let cmd = if step.plain { std::mem::take(&mut step.cmd) } else { step.cmd.clone() };
            match self.send(connection, calls, step.plain, cmd).await? {
                (_, ScriptAnswer::SetAside(index)) => {
                    let job = jobs.get(index).ok_or_else(unreadable)?;
                    self.finish_set_aside(&job.queue).await?;
                }
                answered => break answered,
            }
        };
        let (mut refused, placed) = match answer {
            ScriptAnswer::Stored { refused, placed } => (refused, placed),
            ScriptAnswer::Unchanged(published) => return Ok(Some(vec![Ok(published)])),
            ScriptAnswer::Ended => return Err(Error::away("the values were stored too slowly")),
            ScriptAnswer::WrongType => return Ok(None),
            ScriptAnswer::SetAside(_) => return Err(unreadable().into()), // not what the loop ends with
        };
        self.remember_names(step.new, calls, &refused);
        let mut placed = placed.unwrap_or_else(|| placed_plain(&jobs, &step.delays, now)).into_iter();
        let each = calls.iter().enumerate().map(|(i, call)| {
            let placed: Stored = placed.by_ref().take(call.jobs.len()).collect();
            match refused.remove(&i) {
                Some(error) => Err(error),
                None => {
                    self.tell_of(call, &placed, now);
                    Ok(Published::Done(placed.into_iter().map(|(placed, _)| placed).collect()))
                }
            }
        });
        Ok(Some(each.collect()))
    }

    /// One call of the script. What may be taken back is, when the Redis says too late that it has stored it.
    async fn send(
        self: &Arc<Self>,
        connection: &Connection,
        calls: &[Publication],
        plain: bool,
        cmd: Cmd,
    ) -> Outcome<(Micros, ScriptAnswer)> {
        let sent = self.clock.begin();
        let exchange = {
            let (core, mut redis) = (self.clone(), patient(connection));
            async move {
                if plain {
                    read_plain(core.run_script(&mut redis, &core.scripts.publish, cmd).await?)
                } else {
                    read_keyed(core.run_script(&mut redis, &core.scripts.publish_with, cmd).await?)
                }
            }
        };
        let late = || {
            let (core, calls) = (self.clone(), names_to_take_back(calls));
            async move |(_, answer)| {
                if let ScriptAnswer::Stored { refused, .. } = answer {
                    core.take_back(calls, &refused).await;
                }
            }
        };
        let (now, answer) = self.exchange(connection, exchange, late).await?;
        self.clock.learn(sent, now);
        Ok((now, answer))
    }

    /// Forgets jobs of calls that were not refused, since their callers were told that they are not stored.
    async fn take_back(&self, calls: Vec<(usize, Vec<(JobRef, u16)>)>, refused: &HashMap<usize, Error>) {
        let stored = calls.into_iter().filter(|(i, _)| !refused.contains_key(i));
        let jobs: Vec<_> = stored.flat_map(|(_, jobs)| jobs).collect();
        if jobs.is_empty() {
            return;
        }
        let call = self.forget(jobs.iter().map(|(job, tries)| (job, Some(*tries))));
        let taken_back: Outcome<u64> = self.run(&self.shared, &self.scripts.ack, call).await;
        if let Err(fault) = taken_back {
            let (pool, count) = (&*self.pool, jobs.len());
            tracing::warn!(pool, count, "jobs are stored that were answered with an error: {fault}");
        }
    }

    /// Tells consumers and the pump of what was stored.
    fn tell_of(&self, call: &Publication, placed: &Stored, now: Micros) {
        let mut notified: Option<&Queue> = None;
        for (Placing { job, .. }, (placed, due)) in call.jobs.iter().zip(placed) {
            match due {
                _ if placed.how == How::Duplicate => {}
                Some(due) if *due > now => self.next_due.stored(*due),
                _ if notified == Some(&job.queue) => {}
                _ => {
                    self.notifiers.notify(&job.queue);
                    notified = Some(&job.queue);
                }
            }
        }
    }

    /// These names were recorded: that of a queue all of whose calls were refused may not be there.
    fn remember_names(&self, new: Vec<Queue>, calls: &[Publication], refused: &HashMap<usize, Error>) {
        for queue in new {
            let stored = |(i, call): (usize, &Publication)| {
                !refused.contains_key(&i) && call.jobs.iter().any(|placing| placing.job.queue == queue)
            };
            if refused.is_empty() || calls.iter().enumerate().any(stored) {
                self.recorded_queues.add(queue);
            }
        }
    }
}

/// What became of the values of a call before the call itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Staged {
    /// They fit into one script call.
    No,
    Yes,
    /// An id is stored already.
    Taken,
}

impl RedisCore {
    /// Stores the values of a call that is too large for one script call, under their keys: nobody knows their ids
    /// yet. When this process ends in between, they end by themselves.
    async fn stage(&self, connection: &Connection, jobs: &[&NewJob]) -> Outcome<Staged> {
        let redis = &mut connection.redis.clone();
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
