//! Publish: one entry for every publication, and one way to its script. What has neither keys nor instants and is not to
//! be repeated shares a script call with what others publish meanwhile (lua/publish.lua); any other publication is a
//! call by itself, on the connection of calls off the hot path (lua/publish_with.lua). A publication with more values
//! than one script call may carry stores them in steps first, where nobody sees them, and becomes visible as a whole in
//! the last call.

mod script;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::{Cmd, Value};

use self::script::{ScriptAnswer, Stored, placed_plain, read_keyed, read_plain};
pub use self::script::{Step, answer_of_publish, jobs_of, read_placed, unreadable};
use crate::clock::{Micros, Millis};
use crate::engine::batch::{Call, Reply};
use crate::engine::redis::batches::{Plain, arrival_of, bytes_of};
use crate::engine::redis::connection::fault::{Fault, Outcome};
use crate::engine::redis::connection::open::Connection;
use crate::engine::redis::connection::shared::first_up;
use crate::engine::redis::core::RedisCore;
use crate::engine::redis::in_time::patient;
use crate::engine::redis::layout::{keys, value};
use crate::engine::redis::reply::{id_taken, wrong_type};
use crate::engine::{How, Placed, Placing, Publication, Published};
use crate::error::{Error, Result};
use crate::job::{JobRef, NewJob};
use crate::name::Queue;

/// How many bytes of values one script call carries. A single value may be larger.
pub const MAX_VALUES: usize = 1 << 20;
/// How long values are kept that were stored before the call that makes them visible: longer than the steps of the
/// largest bulk take, however slow the Redis is that still carries them out.
pub const STAGED: Duration = Duration::from_secs(600);
/// No job is due later, in the year 2255: Lua's numbers are exact so far, with room to count on. HTTP asks for 136
/// years at most.
pub const LATEST: Millis = ((1 << 53) - (1 << 30)) / 1000;

/// Takes the answers to several calls, one after the other, in the order of the calls.
pub type Answer<'a> = &'a mut (dyn FnMut(Result<Published>) + Send);

pub fn answer_all(calls: &[Publication], error: &Error, answer: Answer<'_>) {
    calls.iter().for_each(|_| answer(Err(error.clone())));
}

pub fn is_plain(publication: &Publication) -> bool {
    publication.once.is_none() && publication.jobs.iter().all(|job| job.key.is_none() && job.at.is_none())
}

/// The jobs, and their tries, of those calls that may be taken back. With a key, or when a call is safe to repeat,
/// another one may have been told of its jobs. A job that was replaced is gone.
pub fn names_to_take_back(calls: &[Publication]) -> Vec<(usize, Vec<(JobRef, u16)>)> {
    let may = |Publication { jobs, replaces, once }: &Publication| {
        replaces.is_none() && once.is_none() && jobs.iter().all(|placing| placing.key.is_none())
    };
    let name =
        |Placing { job, .. }: &Placing| (JobRef { queue: job.queue.clone(), id: job.id }, job.tries.get());
    let calls = calls.iter().enumerate().filter(|(_, call)| may(call));
    calls.map(|(i, call)| (i, call.jobs.iter().map(name).collect())).collect()
}

/// Refuses what no call of the script can store, whatever the Redis holds.
pub fn check(publication: &Publication) -> Result<()> {
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
pub fn calls_to_send(batch: Vec<Call<Plain, Published>>) -> (Vec<Publication>, Vec<Reply<Published>>) {
    let mut seen = HashSet::new();
    let (mut calls, mut replies) = (Vec::with_capacity(batch.len()), Vec::with_capacity(batch.len()));
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
        let arrived = Instant::now();
        let connection = self.shared.connection().await?;
        let mut answer = None;
        self.carry(&connection, arrived, &[publication], &mut |told| answer = Some(told)).await;
        answer.unwrap_or_else(|| Err(unreadable().into()))
    }

    /// Publishes a batch, on the connection of this number if that is up, and answers each call.
    pub async fn publish_batch(self: &Arc<Self>, own: usize, batch: Vec<Call<Plain, Published>>) {
        let arrived = arrival_of(&batch);
        let (calls, replies) = calls_to_send(batch);
        if calls.is_empty() {
            return;
        }
        let mut replies = replies.into_iter();
        let answer: Answer<'_> = &mut |told| {
            // A caller that has left needs no answer.
            let _ = replies.next().map(|reply| reply.send(told));
        };
        let [first, second] = &self.publish_connections;
        match first_up(if own == 0 { [first, second] } else { [second, first] }).await {
            Ok(connection) => self.carry(&connection, arrived, &calls, answer).await,
            Err(fault) => answer_all(&calls, &fault.into(), answer),
        }
    }

    /// Carries several plain calls, or one call of any kind, and answers each. The oldest arrived at `arrived`.
    async fn carry(
        self: &Arc<Self>,
        connection: &Connection,
        arrived: Instant,
        calls: &[Publication],
        answer: Answer<'_>,
    ) {
        let jobs = calls.iter().map(|call| call.jobs.len()).sum();
        self.common.observers.tell(|observer| observer.published_together(jobs));
        match self.carry_together(connection, arrived, calls, answer).await {
            Ok(Carried::Answered) => {}
            Ok(Carried::WrongType) if calls.len() > 1 => {
                self.carry_each(connection, arrived, calls, answer).await
            }
            Ok(Carried::WrongType) => answer(Err(wrong_type())),
            Err(e) => answer_all(calls, &e, answer),
        }
    }

    /// One by one, so that only those suffer that have the key of a wrong type. What comes after the end of the
    /// connection is not sent: each call would wait for as long as the one with which it ended.
    async fn carry_each(
        self: &Arc<Self>,
        connection: &Connection,
        arrived: Instant,
        calls: &[Publication],
        answer: Answer<'_>,
    ) {
        let mut end = None;
        for (i, call) in calls.iter().enumerate() {
            if connection.lost.is_cancelled() {
                let end = end.unwrap_or_else(|| Fault::away("the connection was lost").into());
                return answer_all(&calls[i..], &end, answer);
            }
            match self.carry_together(connection, arrived, std::slice::from_ref(call), answer).await {
                Ok(Carried::Answered) => {}
                Ok(Carried::WrongType) => answer(Err(wrong_type())),
                Err(e) => {
                    answer(Err(e.clone()));
                    end = connection.lost.is_cancelled().then_some(e);
                }
            }
        }
    }

    /// In one script call. Answers all calls or, when it fails or some key has the wrong type, none.
    async fn carry_together(
        self: &Arc<Self>,
        connection: &Connection,
        mut arrived: Instant,
        calls: &[Publication],
        answer: Answer<'_>,
    ) -> Result<Carried> {
        // A call with more bytes than fit is alone in its batch.
        let staged = self.stage(connection, calls).await;
        let staged = match staged.inspect_err(|fault| self.connections.report(connection, fault))? {
            Staged::Taken => {
                answer(Err(id_taken()));
                return Ok(Carried::Answered);
            }
            Staged::Yes => {
                // Its caller has waited for each of the steps before, so this one has its own time.
                arrived = Instant::now();
                true
            }
            Staged::No => false,
        };
        let mut step = match calls {
            [call] if !is_plain(call) => self.keyed_step(call, staged)?,
            calls => self.plain_step(calls, staged)?,
        };
        let (now, outcome) = loop {
            // Only a keyed one is sent more than once.
            let cmd = if step.plain { std::mem::take(&mut step.cmd) } else { step.cmd.clone() };
            match self.send(connection, arrived, calls, step.plain, cmd).await? {
                (_, ScriptAnswer::SetAside(index)) => {
                    let job = jobs_of(calls).nth(index).ok_or_else(unreadable)?;
                    self.finish_set_aside(&job.queue).await?;
                    arrived = Instant::now(); // as above
                }
                answered => break answered,
            }
        };
        let (mut refused, placed) = match outcome {
            ScriptAnswer::Stored { refused, placed } => (refused, placed),
            ScriptAnswer::Unchanged(published) => {
                answer(Ok(published));
                return Ok(Carried::Answered);
            }
            ScriptAnswer::Ended => return Err(Error::away("the values were stored too slowly")),
            ScriptAnswer::WrongType => return Ok(Carried::WrongType),
            ScriptAnswer::SetAside(_) => return Err(unreadable().into()), // not what the loop ends with
        };
        self.common.outage.has_room();
        self.remember_names(step.new, calls, &refused);
        let (mut placed, mut delays) = (placed.map(Vec::into_iter), step.delays.into_iter());
        let mut next = |job: &NewJob| match &mut placed {
            Some(placed) => placed.next(),
            None => Some(placed_plain(job, &mut delays, now)),
        };
        for (i, call) in calls.iter().enumerate() {
            match refused.remove(&i) {
                Some(error) => {
                    call.jobs.iter().for_each(|placing| _ = next(&placing.job));
                    answer(Err(error));
                }
                None => {
                    if let Some(old) = &call.replaces {
                        self.common.handed_out.remove(&old.id);
                    }
                    answer(Ok(Published::Done(self.tell_of(call, &mut next, now))));
                }
            }
        }
        Ok(Carried::Answered)
    }

    /// One call of the script. What may be taken back is, when the Redis says too late that it has stored it.
    async fn send(
        self: &Arc<Self>,
        connection: &Connection,
        arrived: Instant,
        calls: &[Publication],
        plain: bool,
        cmd: Cmd,
    ) -> Outcome<(Micros, ScriptAnswer)> {
        let sent = self.clock.begin();
        let exchange = {
            let (core, mut redis) = (self.clone(), patient(connection));
            async move {
                if plain {
                    read_plain(core.run_script(&mut redis, &core.scripts.publish, cmd, arrived).await?)
                } else {
                    read_keyed(core.run_script(&mut redis, &core.scripts.publish_with, cmd, arrived).await?)
                }
            }
        };
        let late = || {
            let (core, calls) = (self.clone(), names_to_take_back(calls));
            (!calls.is_empty()).then_some(async move |(_, answer)| {
                if let ScriptAnswer::Stored { refused, .. } = answer {
                    core.take_back(calls, &refused).await;
                }
            })
        };
        let (now, answer) = self.exchange(connection, arrived, exchange, late).await?;
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
        let taken_back: Outcome<Value> = self.run(&self.shared, &self.scripts.ack, call).await;
        if let Err(fault) = taken_back {
            let (pool, count) = (&*self.common.pool, jobs.len());
            tracing::warn!(pool, count, "jobs are stored that were answered with an error: {fault}");
        }
    }

    /// Tells consumers and the pump of what was stored. `next` says what became of the call's next job.
    fn tell_of(
        &self,
        call: &Publication,
        next: &mut impl FnMut(&NewJob) -> Option<Stored>,
        now: Micros,
    ) -> Vec<Placed> {
        let mut notified: Option<&Queue> = None;
        // The script of others counts by itself.
        let counts = is_plain(call);
        let mut all = Vec::with_capacity(call.jobs.len());
        for Placing { job, .. } in &call.jobs {
            let Some((placed, due)) = next(job) else { break };
            match due {
                _ if placed.how == How::Duplicate => {}
                Some(due) if due > now => {
                    self.next_due.stored(due);
                    self.timer_counts.delayed(&job.queue, i64::from(counts));
                }
                _ if notified == Some(&job.queue) => {}
                _ => {
                    self.common.notifiers.notify(&job.queue);
                    notified = Some(&job.queue);
                }
            }
            all.push(placed);
        }
        all
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

/// What became of calls that were sent together.
enum Carried {
    Answered,
    /// Some key has the wrong type, so nothing was stored, and none is answered.
    WrongType,
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
    async fn stage(&self, connection: &Connection, calls: &[Publication]) -> Outcome<Staged> {
        let alone = matches!(calls, [call] if call.jobs.len() == 1);
        if alone || jobs_of(calls).map(bytes_of).sum::<usize>() <= MAX_VALUES {
            return Ok(Staged::No);
        }
        let redis = &mut connection.redis.clone();
        let mut stored = Vec::new();
        let mut result = Ok(Staged::Yes);
        let jobs: Vec<&NewJob> = jobs_of(calls).collect();
        let mut jobs = &jobs[..];
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
            let reply = self.run_script(redis, &self.scripts.stage, call, Instant::now()).await;
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
            let _ = self.run_script(redis, &self.scripts.ack, call, Instant::now()).await;
        }
        result
    }
}
