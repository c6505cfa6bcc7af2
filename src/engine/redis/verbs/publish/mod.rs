//! Publish. Publishes without keys, instants and idempotency key (*plain*) are coalesced into one script call
//! (lua/publish.lua); any other is a call by itself, on the connection for calls off the hot path
//! (lua/publish_with.lua). A publish with more values than one script call may carry first stores them in steps,
//! invisible to clients, and becomes visible as a whole in the last call.

mod calls;
mod script;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::Value;

use self::calls::{MAX_VALUES, is_large};
pub use self::calls::{calls_to_send, check, is_plain, names_to_take_back};
pub use self::script::{PublishOutcome, jobs_of, read_placed, unreadable};
use self::script::{PublishStep, Stored};
use crate::clock::Micros;
use crate::engine::batch::{self, Call, Caller};
use crate::engine::redis::batches::{
    self, MAX_WAITING, Plain, Taken, answer_each, arrival_of, bytes_of, serve,
};
use crate::engine::redis::cluster::ask;
use crate::engine::redis::connection::fault::{Fault, Outcome};
use crate::engine::redis::connection::open::Connection;
use crate::engine::redis::core::PartitionCore;
use crate::engine::redis::in_time::patient;
use crate::engine::redis::layout::{packed, value};
use crate::engine::redis::link::{Lane, Link, PUBLISHERS};
use crate::engine::redis::pool::Owes;
use crate::engine::redis::reply::{id_taken, wrong_type};
use crate::engine::redis::timer_counts::Timers;
use crate::engine::{How, Placed, Placing, Publication, Published};
use crate::error::{Error, Result};
use crate::job::{JobRef, NewJob};
use crate::name::Queue;

/// Expiry of staged values, which are stored before the call that makes them visible: longer than the steps of the
/// largest bulk take on a slow Redis.
pub const STAGED: Duration = Duration::from_secs(600);
/// A node's reply to a publish: its time, the outcome, and the queues whose names it has recorded.
type Answered = (Micros, PublishOutcome, Vec<Queue>);

impl PartitionCore {
    /// Stores all jobs of a publication, or none.
    pub async fn publish(self: &Arc<Self>, publication: Publication) -> Result<Published> {
        if publication.jobs.is_empty() {
            return Ok(Published::Done(Vec::new()));
        }
        if is_plain(&publication) {
            self.place.ready(self.partition, Lane::Publish(0)).await?;
            let begin = || self.publisher(true);
            return self.publishes.get_or_init(begin).call(Plain::new(publication, Taken::default())).await;
        }
        // Boxed, because it would enlarge the future of every plain publish.
        Box::pin(self.publish_alone(publication, true)).await
    }

    /// Like `publish`, but does not wait for a node, because another partition can take the publication.
    pub async fn publish_now(self: &Arc<Self>, publication: Publication) -> Result<Published> {
        self.publish_alone(publication, false).await
    }

    /// Like `publish_now`, for a plain publication, coalesced with others.
    pub async fn publish_movable(self: &Arc<Self>, plain: Plain) -> Result<Published> {
        self.movable.get_or_init(|| self.publisher(false)).call(plain).await
    }

    /// Starts the tasks that publish pending calls.
    fn publisher(self: &Arc<Self>, waits: bool) -> Caller<Plain, Published> {
        let (caller, calls) = batch::channel(MAX_WAITING, batches::PUBLISHES);
        let tasks = ("a publish task", PUBLISHERS);
        serve(calls, &self.tasks, tasks, self, move |core, own, batch| async move {
            core.publish_batch(own, waits, batch).await;
        });
        caller
    }

    async fn publish_alone(self: &Arc<Self>, publication: Publication, waits: bool) -> Result<Published> {
        if let Err(error) = check(&publication) {
            // A repeated publish gets its recorded result, even if it is invalid now.
            let once = publication.once.as_ref().zip(publication.jobs.first());
            let Some((once, first)) = once else { return Err(error) };
            return self.recall(&first.job.queue, once).await?.ok_or(error);
        }
        let mut answers = self.publish_together((Lane::Other, waits), Instant::now(), &[publication]).await?;
        answers.pop().unwrap_or_else(|| Err(unreadable().into()))
    }

    /// Publishes a batch, preferably on the connection with this number, and replies to each call.
    async fn publish_batch(self: &Arc<Self>, own: usize, waits: bool, batch: Vec<Call<Plain, Published>>) {
        let arrived = arrival_of(&batch);
        let (calls, replies) = calls_to_send(batch);
        if !calls.is_empty() {
            let lane = (Lane::Publish(own), waits);
            answer_each(replies, self.publish_together(lane, arrived, &calls).await);
        }
    }

    /// Publishes several plain calls, or one call of any kind. `arrived` is the time of the oldest. If a key has the
    /// wrong type, publishes the calls one at a time, so that only the calls with that key fail.
    async fn publish_together(
        self: &Arc<Self>,
        lane: (Lane, bool),
        arrived: Instant,
        calls: &[Publication],
    ) -> Result<Vec<Result<Published>>> {
        let jobs = calls.iter().map(|call| call.jobs.len()).sum();
        self.common.observer.published_together(jobs);
        if let Some(answers) = self.publish_once(lane, arrived, calls).await? {
            return Ok(answers);
        }
        let (mut answers, mut away) = (Vec::with_capacity(calls.len()), None);
        for call in calls {
            // Otherwise each call would wait until its own timeout.
            if let Some(error) = &away {
                answers.push(Err(Error::clone(error)));
                continue;
            }
            answers.push(match self.publish_once(lane, arrived, std::slice::from_ref(call)).await {
                Ok(Some(mut answer)) => answer.pop().unwrap_or_else(|| Err(unreadable().into())),
                Ok(None) => Err(wrong_type()),
                Err(error) => {
                    away = matches!(error, Error::Away(_)).then(|| error.clone());
                    Err(error)
                }
            });
        }
        Ok(answers)
    }

    /// Publishes in one script call. Returns `None` if a key has the wrong type, so nothing was stored.
    async fn publish_once(
        self: &Arc<Self>,
        (lane, waits): (Lane, bool),
        mut arrived: Instant,
        calls: &[Publication],
    ) -> Result<Option<Vec<Result<Published>>>> {
        // A call with too many bytes for one script call is alone in its batch. Its values are stored once, even if the
        // call is then sent to another node.
        let mut staged = None;
        self.unpack_named(calls).await?;
        loop {
            let answered: Outcome<Answered> = ask!(self.attempts_if(waits, lane), |link| {
                self.publish_through(&link, (lane, waits), &mut arrived, calls, &mut staged)
            });
            match answered? {
                (_, PublishOutcome::SetAside(index), _) => {
                    let job = jobs_of(calls).nth(index).ok_or_else(unreadable)?;
                    self.finish_set_aside(&job.queue).await?;
                    arrived = Instant::now(); // the caller has waited for each previous step
                }
                (_, PublishOutcome::WrongType, _) => return Ok(None),
                (_, PublishOutcome::Unchanged(published), _) => return Ok(Some(vec![Ok(published)])),
                (now, PublishOutcome::Stored { refused, jobs, gone }, new) => {
                    self.common.outage.has_room();
                    self.count_gone(&gone);
                    self.remember_names(new, calls, &refused);
                    return Ok(Some(self.tell_of_all(calls, refused, jobs, now)));
                }
            }
        }
    }

    /// Unpacks packed jobs that a publish replaces, and jobs whose ids it repeats, unless lua/publish.lua looks for them.
    async fn unpack_named(&self, calls: &[Publication]) -> Result<()> {
        let repeated = |call: &Publication| !is_plain(call) || is_large(calls);
        for call in calls {
            let new = call.jobs.iter().filter(|_| repeated(call)).map(|of| (&of.job.queue, &of.job.id));
            let old = call.replaces.iter().map(|old| (&old.queue, &old.id));
            self.unpack(self.unpack_call(new.chain(old))).await?;
        }
        Ok(())
    }

    /// Makes one attempt, through this node. `staged`: whether the values were stored before, once that is known.
    async fn publish_through(
        self: &Arc<Self>,
        link: &Arc<Link>,
        (lane, waits): (Lane, bool),
        arrived: &mut Instant,
        calls: &[Publication],
        staged: &mut Option<bool>,
    ) -> Outcome<Answered> {
        let owes = (!waits).then(|| self.owes(link));
        let connection = link.connection(lane).await?;
        if staged.is_none() {
            let stored = self.stage(link, &connection, calls).await;
            match stored.inspect_err(|fault| link.connections.report(&connection, fault))? {
                Ok(is_staged) => {
                    if is_staged {
                        *arrived = Instant::now(); // the caller has waited for each previous step
                    }
                    *staged = Some(is_staged);
                }
                Err(refused) => {
                    let refused = HashMap::from([(0, refused)]);
                    let (jobs, gone) = (Vec::new(), Vec::new());
                    return Ok((0, PublishOutcome::Stored { refused, jobs, gone }, Vec::new()));
                }
            }
        }
        let is_staged = *staged == Some(true);
        let step = match calls {
            [call] if !is_plain(call) => self.keyed_step(call, is_staged),
            calls => self.plain_step(calls, is_staged),
        };
        let mut step = step.map_err(|e| Fault::refused(e.to_string()))?;
        // A large value may take long to send.
        let bytes: usize = jobs_of(calls).map(bytes_of).sum();
        step.call.arrived_at(*arrived).movable(!waits && bytes <= MAX_VALUES);
        self.send_step(link, &connection, calls, (step, owes)).await
    }

    /// Sends one script call. If the reply arrives too late for the callers, undoes the publishes that can be undone.
    /// Until then the node is slow: `owes`.
    async fn send_step(
        self: &Arc<Self>,
        link: &Arc<Link>,
        connection: &Connection,
        calls: &[Publication],
        (step, owes): (PublishStep, Option<Owes>),
    ) -> Outcome<Answered> {
        let sent = Instant::now();
        let PublishStep { call, new, plain } = step;
        let limit = (link.answer_by(&call), call.is_movable());
        let exchange = {
            let (through, mut redis) = (link.clone(), patient(connection));
            async move {
                let reply = through.send(&mut redis, &call).await;
                drop(owes);
                PublishOutcome::read(reply?, plain)
            }
        };
        let late = || {
            let (core, calls) = (self.clone(), names_to_take_back(calls));
            (!calls.is_empty()).then_some(async move |(_, outcome)| {
                if let PublishOutcome::Stored { refused, .. } = outcome {
                    core.take_back(calls, &refused).await;
                }
            })
        };
        let (now, outcome) = link.exchange(connection, limit, exchange, late).await?;
        link.clock.learn(sent, now);
        Ok((now, outcome, new))
    }

    /// Deletes the jobs of calls that were not refused, since their callers have received an error.
    async fn take_back(&self, calls: Vec<(usize, Vec<(JobRef, u16)>)>, refused: &HashMap<usize, Error>) {
        let stored = calls.into_iter().filter(|(i, _)| !refused.contains_key(i));
        let jobs: Vec<_> = stored.flat_map(|(_, jobs)| jobs).collect();
        if jobs.is_empty() {
            return;
        }
        let call = self.forget(jobs.iter().map(|(job, tries)| (job, Some(*tries))));
        let unpacked = self.unpack(self.unpack_call(jobs.iter().map(|(job, _)| (&job.queue, &job.id)))).await;
        // Its reply is not counted, and neither were the late replies to the publishes.
        let taken_back: Outcome<Value> = match unpacked {
            Ok(()) => self.run(Lane::Other, &call).await,
            Err(fault) => Err(fault),
        };
        if let Err(fault) = taken_back {
            let (pool, count) = (&*self.common.pool, jobs.len());
            tracing::warn!(
                pool,
                count,
                "failed publishes could not be undone, so their jobs may be delivered: {fault}"
            );
        }
    }

    /// Returns the reply to each call, and notifies consumers and the pump.
    fn tell_of_all(
        &self,
        calls: &[Publication],
        mut refused: HashMap<usize, Error>,
        jobs: Vec<Stored>,
        now: Micros,
    ) -> Vec<Result<Published>> {
        let mut jobs = jobs.into_iter();
        let answer = |(i, call): (usize, &Publication)| {
            let of_call: Vec<Stored> = jobs.by_ref().take(call.jobs.len()).collect();
            if let Some(error) = refused.remove(&i) {
                return Err(error);
            }
            if let Some(old) = &call.replaces {
                self.common.handed_out.remove(&old.id);
            }
            Ok(Published::Done(self.tell_of(call, of_call, now)))
        };
        calls.iter().enumerate().map(answer).collect()
    }

    /// Notifies consumers and the pump of a call's jobs.
    fn tell_of(&self, call: &Publication, jobs: Vec<Stored>, now: Micros) -> Vec<Placed> {
        let mut notified: Option<&Queue> = None;
        let mut all = Vec::with_capacity(call.jobs.len());
        for (Placing { job, .. }, (placed, due)) in call.jobs.iter().zip(jobs) {
            match due {
                _ if placed.how == How::Duplicate => {}
                Some(due) if due > now => {
                    self.timer_counts.add(&job.queue, Timers::delayed(1));
                    match packed::may_be_packed(&job.id) {
                        true => self.stored_packed(due, now),
                        false => self.stored(due),
                    }
                }
                _ if notified == Some(&job.queue) => {}
                _ => {
                    self.tell_ready(&job.queue);
                    notified = Some(&job.queue);
                }
            }
            all.push(placed);
        }
        all
    }

    /// Remembers the recorded names, except for queues all of whose calls were refused: their names may not be
    /// recorded.
    fn remember_names(&self, new: Vec<Queue>, calls: &[Publication], refused: &HashMap<usize, Error>) {
        for queue in new {
            let stored = |(i, call): (usize, &Publication)| {
                !refused.contains_key(&i) && call.jobs.iter().any(|placing| placing.job.queue == queue)
            };
            if refused.is_empty() || calls.iter().enumerate().any(stored) {
                self.recorded_queues.add(self.partition, queue);
            }
        }
    }

    /// Stores the values of a call that is too large for one script call, under the keys of its jobs, whose ids no
    /// client knows yet. If the publish is not completed, they expire. Returns whether values were stored, or why the
    /// call is refused.
    async fn stage(
        &self,
        link: &Link,
        connection: &Connection,
        calls: &[Publication],
    ) -> Outcome<Result<bool>> {
        if !is_large(calls) {
            return Ok(Ok(false));
        }
        let redis = &mut connection.redis.clone();
        let mut stored = Vec::new();
        let mut result = Ok(Ok(true));
        let jobs: Vec<&NewJob> = jobs_of(calls).collect();
        let mut jobs = &jobs[..];
        while !jobs.is_empty() {
            let (mut size, mut keys) = (0, Vec::new());
            let mut call = self.call(&self.scripts.stage);
            call.arg(STAGED.as_millis() as u64);
            while let Some((job, rest)) = jobs.split_first() {
                let value = value::encode(&job.id, &job.body, &job.attributes);
                let value = value.map_err(|e| Fault::refused(e.to_string()))?;
                if size > 0 && size + value.len() > MAX_VALUES {
                    break;
                }
                size += value.len();
                keys.push(self.keys.job(&job.queue, &job.id));
                call.key(keys.last()).arg(&value[..]);
                jobs = rest;
            }
            let reply = link.send(redis, &call).await;
            match reply.and_then(|reply| Ok(redis::from_redis_value::<(u64, u8)>(reply)?)) {
                Ok((_, 0)) => stored.extend(keys),
                Ok(_) => {
                    result = Ok(Err(id_taken()));
                    break;
                }
                Err(fault) => {
                    result = Err(fault);
                    break;
                }
            }
        }
        // If the values cannot be deleted, they expire.
        let there = !result.as_ref().is_err_and(|fault| fault.reconnect);
        if !matches!(result, Ok(Ok(true))) && !stored.is_empty() && there {
            // Deleted by a script that updates usage. The jobs have no timers.
            let mut call = self.call(&self.scripts.ack);
            call.key(&self.keys.timer_set).key(stored).arg(0).arg(0);
            let _ = link.send(redis, &call).await;
        }
        result
    }
}
