//! Publish: what has neither keys nor instants, is not to be repeated and has no quota shares a script call with what
//! others publish to the same partition meanwhile; any other publication is a call by itself. Large bodies of a bulk are
//! stored in steps first, where nobody sees them.

use std::collections::HashSet;
use std::pin::Pin;
use std::sync::Arc;

use redis::Cmd;
use tokio::time::{Instant, sleep};

use super::super::core::{CompactCore, Lane};
use super::super::keys;
use super::super::partitions::Partition;
use super::super::place::place_of;
use super::super::steps::Usage;
use super::publish_call::{Answer, BUSY, LOOK, Stored, Tried, encode, queues_of, read_answer};
use crate::clock::{Micros, Millis};
use crate::engine::batch::{self, BatchSize, Call, Caller};
use crate::engine::redis::batches::{self, MAX_WAITING, PUBLISHERS, Plain, answer_each, serve};
use crate::engine::redis::cluster::ask;
use crate::engine::redis::connection::connector::Connection;
use crate::engine::redis::connection::fault::{Fault, Outcome};
use crate::engine::redis::in_time::patient;
use crate::engine::redis::layout::times::micros;
use crate::engine::redis::link::Link;
use crate::engine::redis::reply::id_taken;
use crate::engine::redis::verbs::publish::{
    MAX_VALUES, STAGED, calls_to_send, check, is_plain, names_to_take_back, unreadable,
};
use crate::engine::{How, Placed, Placing, Publication, Published};
use crate::error::{Error, Result};
use crate::job::JobRef;
use crate::name::Queue;

/// Publications that wait for one call.
type Batch<Req> = Vec<Call<Req, Published>>;

/// Forgets jobs of an answer that came too late.
type TakingBack = Pin<Box<dyn Future<Output = ()> + Send>>;

impl CompactCore {
    /// Stores what a publication has, all of it or nothing.
    pub async fn publish(self: &Arc<Self>, publication: Publication) -> Result<Published> {
        if self.is_of_spread(&publication).await? {
            return self.publish_spread(publication).await;
        }
        let Some(first) = publication.jobs.first() else { return Ok(Published::Done(Vec::new())) };
        let home = self.partition_of(&first.job.queue);
        let is_here = |queue: &Queue| *queue == first.job.queue || self.partition_of(queue) == home;
        if publication.replaces.as_ref().is_some_and(|old| !is_here(&old.queue)) {
            return Box::pin(self.publish_and_ack(publication)).await;
        }
        if !publication.jobs.iter().all(|placing| is_here(&placing.job.queue)) {
            return Box::pin(self.publish_parts(publication)).await;
        }
        let counted = publication.jobs.iter().any(|placing| self.is_counted(&placing.job.queue.namespace));
        if is_plain(&publication) && !counted {
            return self.publish_plain(home, publication).await;
        }
        // Boxed: it would be part of the future of every plain one.
        Box::pin(self.publish_alone(home, publication)).await
    }

    /// Together with what others publish there.
    pub async fn publish_plain(
        self: &Arc<Self>,
        home: Partition,
        publication: Publication,
    ) -> Result<Published> {
        self.ready(home, Lane::Publish(0)).await?;
        let begin = || self.publisher(home, false, |batch| batch);
        self.publishes.call(home, Plain(publication), begin).await
    }

    /// Begins the tasks that publish to a partition what waits for it. `on_their_way` has those of a batch that go there.
    pub fn publisher<Req: BatchSize + Send + 'static>(
        self: &Arc<Self>,
        home: Partition,
        spread: bool,
        on_their_way: fn(Batch<Req>) -> Batch<Plain>,
    ) -> Caller<Req, Published> {
        let (caller, calls) = batch::channel(MAX_WAITING, batches::PUBLISHES);
        let tasks = ("a task that publishes", PUBLISHERS);
        serve(calls, &self.tasks, tasks, self, move |core, own, batch| async move {
            core.publish_batch(home, own, spread, on_their_way(batch)).await;
        });
        caller
    }

    /// The job that is replaced lies in another partition: it goes after the new one is stored. HTTP names one queue.
    async fn publish_and_ack(self: &Arc<Self>, publication: Publication) -> Result<Published> {
        let old = publication.replaces.clone();
        let published = self.publish(Publication { replaces: None, ..publication }).await?;
        if let (Published::Done(_), Some(JobRef { queue, id })) = (&published, old) {
            self.ack(&queue, &[(id, None)]).await?;
        }
        Ok(published)
    }

    /// To several partitions, one after the other; when one refuses, those before it are undone. HTTP names one queue.
    async fn publish_parts(self: &Arc<Self>, publication: Publication) -> Result<Published> {
        check(&publication)?;
        let Publication { jobs, once, .. } = publication;
        if once.is_some() {
            return Err(Error::refused("a publish that is safe to repeat has one queue"));
        }
        let homes: Vec<Partition> =
            jobs.iter().map(|placing| self.partition_of(&placing.job.queue)).collect();
        let mut placed: Vec<Option<Placed>> = vec![None; jobs.len()];
        let (mut done, mut names) = (HashSet::new(), Vec::new());
        for home in &homes {
            if !done.insert(*home) {
                continue;
            }
            let of_home: Vec<usize> = (0..jobs.len()).filter(|n| homes[*n] == *home).collect();
            let part: Vec<Placing> = of_home.iter().map(|n| jobs[*n].clone()).collect();
            let names_of_part = part.iter().map(|placing| (placing.job.queue.clone(), placing.job.id));
            let names_of_part: Vec<_> = names_of_part.collect();
            match Box::pin(self.publish(Publication { jobs: part, replaces: None, once: None })).await {
                Ok(Published::Done(all)) => {
                    names.extend(names_of_part);
                    of_home.iter().zip(all).for_each(|(n, one)| placed[*n] = Some(one));
                }
                refused => {
                    for (queue, id) in names {
                        self.ack(&queue, &[(id, None)]).await?;
                    }
                    return match refused {
                        Ok(Published::Conflict { index, id }) => Ok(Published::Conflict {
                            index: of_home.get(index).copied().unwrap_or(index),
                            id,
                        }),
                        refused => refused,
                    };
                }
            }
        }
        Ok(Published::Done(placed.into_iter().flatten().collect()))
    }

    /// As a call by itself. In a namespace with a quota room is taken first, as much as the script says that it needs.
    async fn publish_alone(self: &Arc<Self>, home: Partition, publication: Publication) -> Result<Published> {
        let end = Instant::now() + BUSY;
        loop {
            match self.publish_here(home, publication.clone(), true).await? {
                Tried::Published(published) => return Ok(published),
                Tried::Elsewhere(why) => return Err(Error::Unreachable(why)),
                Tried::Busy if self.spreading.get(&publication.jobs[0].job.queue).is_some() => {
                    // It was spread meanwhile.
                    return Box::pin(self.publish_spread(publication)).await;
                }
                Tried::Busy if Instant::now() >= end => return Err(Error::Overloaded),
                Tried::Busy => sleep(LOOK).await,
            }
        }
    }

    /// One attempt of it, which waits until the partition can be used, or does not. Busy also if its queue is spread, which
    /// is known from then on.
    pub async fn publish_here(
        self: &Arc<Self>,
        home: Partition,
        publication: Publication,
        waits: bool,
    ) -> Result<Tried> {
        if let Err(error) = check(&publication) {
            // What was done already is answered first.
            let once = publication.once.as_ref().zip(publication.jobs.first());
            let Some((once, first)) = once else { return Err(error) };
            return self.recall(&first.job.queue, once).await?.ok_or(error).map(Tried::Published);
        }
        self.common.observers.tell(|observer| observer.published_together(publication.jobs.len()));
        let namespace = publication.jobs.iter().map(|placing| &placing.job.queue.namespace);
        let counted = namespace.into_iter().find(|namespace| self.is_counted(namespace)).cloned();
        let values = encode(&publication)?;
        let (mut taken, mut elsewhere): (Usage, _) = ([0; 3], None);
        let outcome = loop {
            let admit = counted.is_some().then_some(taken);
            match self.step_alone(home, &publication, &values, (admit, waits)).await {
                Ok(Answer::Needs(needs)) => {
                    let Some(namespace) = &counted else { break Err(unreadable().into()) };
                    let more = std::array::from_fn(|n| (needs[n] - taken[n]).max(0));
                    if let Err(error) = self.take_room(namespace, more).await {
                        break Err(error);
                    }
                    taken = std::array::from_fn(|n| taken[n] + more[n]);
                }
                answer => {
                    let answer = answer.map_err(Error::from);
                    if let Err(Error::Unreachable(why)) = answer {
                        elsewhere = (!waits).then_some(why);
                    }
                    break answer;
                }
            }
        };
        let added = if let Ok(Answer::Done(_, added)) = &outcome { *added } else { [0; 3] };
        if let Some(namespace) = &counted
            && !matches!(&outcome, Err(Error::Away(_)))
        {
            // What was not used, or was freed.
            self.give_room(namespace, std::array::from_fn(|n| taken[n] - added[n])).await;
        }
        if !matches!(outcome, Ok(Answer::Done(..))) {
            self.unstage(home, &publication, &values).await;
        }
        if let Some(why) = elsewhere {
            return Ok(Tried::Elsewhere(why));
        }
        match outcome? {
            Answer::Done(placed, _) => Ok(Tried::Published(Published::Done(placed))),
            Answer::Unchanged(published) => Ok(Tried::Published(published)),
            Answer::Busy => Ok(Tried::Busy),
            Answer::Spread => {
                for of in &publication.jobs {
                    self.is_spread(&of.job.queue).await?;
                }
                Ok(Tried::Busy)
            }
            Answer::Taken => Err(id_taken()),
            Answer::Ended => Err(Error::away("the values were stored too slowly")),
            Answer::Needs(_) | Answer::Would(..) | Answer::Gone => Err(unreadable().into()), // not what the loop ends with
        }
    }

    /// One attempt of it, which may add so much.
    async fn step_alone(
        self: &Arc<Self>,
        home: Partition,
        publication: &Publication,
        values: &[Stored],
        (admit, waits): (Option<Usage>, bool),
    ) -> Outcome<Answer> {
        ask!(self.attempts_if(waits, home, Lane::Other), |link| async {
            let connection = link.connection(Lane::Other).await?;
            self.stage(home, &link, &connection, publication, values).await?;
            let Some(first) = publication.jobs.first() else { return Err(unreadable()) };
            let cmd = self.special_step(home, (publication, &first.job.queue), &[], values, admit);
            self.send_alone(home, &link, &connection, publication, cmd).await
        })
    }

    /// Publishes a batch, on the connection of this number if that is up, and answers each call.
    pub async fn publish_batch(
        self: &Arc<Self>,
        home: Partition,
        own: usize,
        spread: bool,
        batch: Batch<Plain>,
    ) {
        let (calls, replies) = calls_to_send(batch);
        if calls.is_empty() {
            return;
        }
        let under_way = spread.then(|| self.takes(home, calls.iter().map(|call| call.jobs.len()).sum()));
        let answers = self.publish_together(home, own, spread, &calls).await;
        // Who is answered, and publishes again, finds that nothing is under way.
        drop(under_way);
        answer_each(replies, answers);
    }

    /// Plain calls in one script call.
    async fn publish_together(
        self: &Arc<Self>,
        home: Partition,
        own: usize,
        spread: bool,
        calls: &[Publication],
    ) -> Result<Vec<Result<Published>>> {
        let jobs = calls.iter().map(|call| call.jobs.len()).sum();
        self.common.observers.tell(|observer| observer.published_together(jobs));
        // A call with more bytes than fit is alone in its batch.
        let values = calls.iter().map(encode).collect::<Result<Vec<_>>>()?;
        let lane = Lane::Publish(own);
        let answer = ask!(self.attempts_if(!spread, home, lane), |link| async {
            let _owes = spread.then(|| self.owes(&link));
            let connection = link.connection(lane).await?;
            for (call, values) in calls.iter().zip(&values) {
                self.stage(home, &link, &connection, call, values).await?;
            }
            let cmd = self.plain_step(home, calls, &values);
            self.send_plain(home, &link, &connection, calls, cmd).await
        });
        let refused_all = !matches!(&answer, Ok((_, refused)) if refused.is_empty());
        if refused_all {
            for (call, values) in calls.iter().zip(&values) {
                self.unstage(home, call, values).await;
            }
        }
        let (now, refused) = answer?;
        let mut delays = 0;
        let answers = calls.iter().enumerate().map(|(i, call)| {
            let placed = call.jobs.iter().map(|Placing { job, .. }| {
                let mut due = now;
                if !job.delay.is_zero() {
                    due = now + micros(job.delay) + delays;
                    delays += 1;
                }
                Placed { id: job.id, due_at: Some(due / 1000), how: How::New }
            });
            let placed: Vec<Placed> = placed.collect();
            if refused.contains(&i) {
                return Err(id_taken());
            }
            Ok(Published::Done(placed))
        });
        let answers: Vec<Result<Published>> = answers.collect();
        for (_, call) in calls.iter().enumerate().filter(|(i, _)| !refused.contains(i)) {
            for Placing { job, .. } in &call.jobs {
                self.tell_of(home, &job.queue, now + micros(job.delay), now);
            }
        }
        Ok(answers)
    }

    /// Tells consumers or the pump of a job.
    pub fn tell_of(&self, home: Partition, queue: &Queue, due: Micros, now: Micros) {
        if due > now {
            self.stored(home, due);
            return;
        }
        self.tell_ready(home, queue, now);
    }

    /// A call of plain publications. Jobs are taken back when the Redis says too late that it has stored them.
    async fn send_plain(
        self: &Arc<Self>,
        home: Partition,
        link: &Arc<Link>,
        connection: &Connection,
        calls: &[Publication],
        cmd: Cmd,
    ) -> Outcome<(Micros, Vec<usize>)> {
        let sent = link.clock.begin();
        let exchange = {
            let (core, through, mut redis) = (self.clone(), link.clone(), patient(connection));
            let queues: Vec<Queue> = queues_of(calls).into_iter().cloned().collect();
            async move {
                let answer = through.run_script(&mut redis, &core.scripts.publish, cmd, sent).await?;
                let answer: Vec<i64> = redis::from_redis_value(answer)?;
                let (now, refused) = answer.split_first().ok_or_else(unreadable)?;
                if refused == [-1] {
                    return Err(Fault::away("the values were stored too slowly"));
                }
                // Behind -1 are queues that are spread.
                for n in refused.iter().filter(|n| **n < -1) {
                    if let Some(queue) = queues.get((-2 - n) as usize) {
                        core.learn_spread(queue, *now as Millis / 1000);
                    }
                }
                let refused = refused.iter().filter_map(|n| usize::try_from(*n).ok());
                Ok((*now as Micros, refused.collect::<Vec<usize>>()))
            }
        };
        let late = || self.take_back_later(home, calls, |(_, refused): (Micros, Vec<usize>)| refused);
        let (now, refused) = link.exchange(connection, sent, exchange, late).await?;
        link.clock.learn(sent, now);
        Ok((now, refused))
    }

    /// A call that comes alone.
    async fn send_alone(
        self: &Arc<Self>,
        home: Partition,
        link: &Arc<Link>,
        connection: &Connection,
        call: &Publication,
        cmd: Cmd,
    ) -> Outcome<Answer> {
        let sent = link.clock.begin();
        let jobs = call.jobs.len();
        let exchange = {
            let (core, through, mut redis) = (self.clone(), link.clone(), patient(connection));
            async move {
                let answer = through.run_script(&mut redis, &core.scripts.publish_with, cmd, sent).await?;
                read_answer(home, jobs, answer)
            }
        };
        let refused = |(_, answer, _): (Micros, Answer, Vec<Option<Micros>>)| match answer {
            Answer::Done(..) => Vec::new(),
            _ => vec![0],
        };
        let late = || self.take_back_later(home, std::slice::from_ref(call), refused);
        let (now, answer, dues) = link.exchange(connection, sent, exchange, late).await?;
        link.clock.learn(sent, now);
        if let Answer::Done(placed, _) = &answer {
            for ((placing, placed), due) in call.jobs.iter().zip(placed).zip(dues) {
                if placed.how != How::Duplicate {
                    self.tell_of(home, &placing.job.queue, due.unwrap_or(0), now);
                }
            }
        }
        Ok(answer)
    }

    /// Forgets jobs of calls that were not refused when their answer comes too late: their callers were told that they
    /// are not stored.
    fn take_back_later<T, R>(
        self: &Arc<Self>,
        home: Partition,
        calls: &[Publication],
        refused: R,
    ) -> Option<impl FnOnce(T) -> TakingBack + Send + 'static + use<T, R>>
    where
        R: FnOnce(T) -> Vec<usize> + Send + 'static,
    {
        let (core, calls) = (self.clone(), names_to_take_back(calls));
        (!calls.is_empty()).then_some(move |answer: T| -> TakingBack {
            let refused = refused(answer);
            Box::pin(async move {
                let stored = calls.into_iter().filter(|(i, _)| !refused.contains(i));
                let jobs: Vec<JobRef> = stored.flat_map(|(_, jobs)| jobs).map(|(job, _)| job).collect();
                if jobs.is_empty() {
                    return;
                }
                let count = jobs.len();
                if let Err(fault) = core.forget(home, Lane::Other, &jobs).await {
                    let pool = &*core.common.pool;
                    tracing::warn!(pool, count, "jobs are stored that were answered with an error: {fault}");
                }
            })
        })
    }

    /// Stores the large bodies of a call that is too large for one script call. When this process ends in between, they
    /// end by themselves.
    pub async fn stage(
        &self,
        home: Partition,
        link: &Link,
        connection: &Connection,
        call: &Publication,
        values: &[Stored],
    ) -> Outcome<()> {
        let redis = &mut connection.redis.clone();
        let mut large: Vec<usize> = (0..values.len()).filter(|n| values[*n].1).collect();
        while !large.is_empty() {
            let mut size = 0;
            let fits = large.iter().take_while(|n| {
                size += values[**n].0.len();
                size <= MAX_VALUES
            });
            let some: Vec<usize> = large.drain(..fits.count().max(1)).collect();
            let mut step = self.call(&self.scripts.stage, home);
            step.arg(STAGED.as_millis() as u64);
            for n in &some {
                let job = &call.jobs[*n].job;
                step.arg(keys::name(&job.queue)).arg(place_of(home, &job.id)).arg(&values[*n].0[..]);
            }
            let reply = link.run_script(redis, &self.scripts.stage, step, link.clock.begin()).await;
            if let Err(fault) = reply {
                link.connections.report(connection, &fault);
                return Err(fault);
            }
        }
        Ok(())
    }

    /// Deletes what was stored before. What cannot be deleted now ends by itself.
    pub async fn unstage(&self, home: Partition, call: &Publication, values: &[Stored]) {
        let staged = call.jobs.iter().zip(values).filter(|(_, (_, staged))| *staged);
        let mut step = self.call(&self.scripts.unstage, home);
        let mut any = false;
        for (Placing { job, .. }, _) in staged {
            step.arg(keys::name(&job.queue)).arg(place_of(home, &job.id));
            any = true;
        }
        if any {
            let _: Outcome<u64> = self.ask(home, Lane::Other, &self.scripts.unstage, step).await;
        }
    }
}
