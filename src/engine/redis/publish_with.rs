//! Publishes with keys, with due times and safe to repeat: one call, one script call (after others that store values,
//! when they are large). And what keys are for: to find a job, and to cancel it.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use redis::Cmd;

use super::RedisCore;
use super::connection::fault::{Fault, Outcome};
use super::connection::open::Connection;
use super::in_time::{in_time, patient};
use super::layout::times::{micros, ttl_millis};
use super::layout::{keys, value};
use super::publish::{InOrder, Staged};
use super::reply::{id_taken, over_quota, wrong_type};
use crate::clock::{Micros, Millis};
use crate::engine::{How, OnConflict, Once, Placed, Placing, Publication, Published, REMEMBERED};
use crate::error::{Error, Result};
use crate::job::{JobId, JobRef, JobView, NewJob};
use crate::name::{JobKey, Queue};

/// No job is due later, in the year 2255: Lua's numbers are exact so far, with room to count on. HTTP asks for 136
/// years at most.
const LATEST: Millis = ((1 << 53) - (1 << 30)) / 1000;

impl RedisCore {
    /// See [`Engine::publish_with`](crate::engine::Engine::publish_with).
    ///
    /// When the answer comes too late, jobs without a key are taken back, as those of a plain publish are. With a
    /// key, or when the call is safe to repeat, another call may have been told of these jobs meanwhile: they stay.
    pub async fn publish_with(self: &Arc<Self>, publication: Publication) -> Result<Published> {
        if publication.jobs.is_empty() {
            return Ok(Published::Done(Vec::new()));
        }
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
        let mut connection = self.shared.connection().await?;
        let jobs: Vec<&NewJob> = publication.jobs.iter().map(|placing| &placing.job).collect();
        let staged = self.stage(&mut connection.redis, &jobs).await;
        let staged = match staged.inspect_err(|fault| self.connections.note(&connection, fault))? {
            Staged::Taken => return Err(id_taken()),
            staged => staged == Staged::Yes,
        };
        let (call, recorded) = self.publish_with_call(&publication, staged)?;
        let (now, reply) = loop {
            let (now, reply) = self.publish_with_once(&connection, &publication, call.clone()).await?;
            let Reply::SetAside(index) = reply else { break (now, reply) };
            let Placing { job, .. } = publication.jobs.get(index).ok_or_else(unreadable)?;
            self.finish_set_aside(&job.queue).await?;
        };
        match reply {
            Reply::Done(placed) => {
                for queue in recorded {
                    self.recorded_queues.add(queue);
                }
                self.tell_of_placed(&publication, &placed, now);
                Ok(Published::Done(placed.into_iter().map(|(placed, _)| placed).collect()))
            }
            Reply::Replay(placed) => {
                Ok(Published::Replay(placed.into_iter().map(|(placed, _)| placed).collect()))
            }
            Reply::Mismatch => Ok(Published::Mismatch),
            Reply::Conflict { index, id } => Ok(Published::Conflict { index, id }),
            Reply::Taken => Err(id_taken()),
            Reply::OverQuota(used_up) => Err(over_quota(used_up)),
            Reply::Ended => Err(Error::away("the values were stored too slowly")),
            Reply::SetAside(_) => Err(unreadable().into()),
            Reply::WrongType => Err(wrong_type()),
        }
    }

    /// One call of the script.
    async fn publish_with_once(
        self: &Arc<Self>,
        connection: &Connection,
        publication: &Publication,
        call: Cmd,
    ) -> Result<(Micros, Reply)> {
        let sent = self.clock.mark();
        let exchange = {
            let (core, mut redis) = (self.clone(), patient(connection));
            async move {
                let reply = core.run_script(&mut redis, &core.scripts.publish_with, call).await?;
                Ok(redis::from_redis_value::<Vec<redis::Value>>(reply)?)
            }
        };
        let outcome = match in_time(exchange).await {
            Ok(outcome) => outcome.and_then(|reply| read_reply(&reply)),
            Err(exchange) => {
                let plain = publication.once.is_none() && publication.replaces.is_none();
                if plain && publication.jobs.iter().all(|placing| placing.key.is_none()) {
                    let jobs: Vec<(JobRef, u16)> = publication
                        .jobs
                        .iter()
                        .map(|Placing { job, .. }| (name(job), job.tries.get()))
                        .collect();
                    let core = self.clone();
                    self.listen_on(connection, exchange, async move |late: Vec<redis::Value>| {
                        if !matches!(read_reply(&late), Ok((_, Reply::Done(_)))) {
                            return;
                        }
                        let call = core.forget(jobs.iter().map(|(job, tries)| (job, Some(*tries))));
                        let back: Outcome<u64> = core.run(&core.shared, &core.scripts.ack, call).await;
                        if let Err(fault) = back {
                            let count = jobs.len();
                            tracing::warn!(
                                pool = &*core.pool,
                                count,
                                "jobs are stored that were answered with an error: {fault}"
                            );
                        }
                    });
                }
                Err(Fault::away("no answer in time"))
            }
        };
        let (now, reply) = outcome.inspect_err(|fault| self.connections.note(connection, fault))?;
        self.clock.learn(sent, now);
        Ok((now, reply))
    }

    /// Tells consumers and the pump of what was stored.
    fn tell_of_placed(&self, publication: &Publication, placed: &[(Placed, Option<Micros>)], now: Micros) {
        for (Placing { job, .. }, (placed, due)) in publication.jobs.iter().zip(placed) {
            match due {
                _ if placed.how == How::Duplicate => {}
                Some(due) if *due > now => self.next_due.stored(*due),
                _ => self.notifiers.notify(&job.queue),
            }
        }
    }

    /// The script call, and the queues whose names it records. When the values are stored already, they are not sent
    /// again.
    fn publish_with_call(&self, publication: &Publication, staged: bool) -> Result<(Cmd, Vec<Queue>)> {
        let Publication { jobs, replaces, once } = publication;
        let mut lists: Vec<&Queue> = Vec::new();
        for Placing { job, .. } in jobs {
            if !lists.contains(&&job.queue) {
                lists.push(&job.queue);
            }
        }
        let new: Vec<Queue> =
            lists.iter().filter(|queue| !self.recorded_queues.has(queue)).copied().cloned().collect();
        let replaced = usize::from(replaces.is_some()) + usize::from(once.is_some());
        let mut cmd = self.scripts.publish_with.call(2 + lists.len() + jobs.len() + replaced + 3 * new.len());
        cmd.arg(keys::TIMER_SET).arg(keys::WITH_DETAILS);
        for queue in &lists {
            cmd.arg(keys::ready(queue));
        }
        for Placing { job, .. } in jobs {
            cmd.arg(keys::job(&job.queue, &job.id));
        }
        if let Some(old) = replaces {
            cmd.arg(keys::job(&old.queue, &old.id));
        }
        if let (Some(once), Some(first)) = (once, jobs.first()) {
            cmd.arg(keys::once(&first.job.queue, &once.key));
        }
        for queue in &new {
            cmd.arg(keys::NAMESPACES);
            cmd.arg(keys::queues_of(&queue.namespace)).arg(keys::index_of(&queue.namespace));
        }

        cmd.arg(lists.len()).arg(jobs.len()).arg(u8::from(staged)).arg(u8::from(replaces.is_some()));
        let member = replaces
            .as_ref()
            .and_then(|old| self.tries.remove(&old.id).map(|tries| keys::member(&old.queue, tries, &old.id)));
        cmd.arg(member.unwrap_or_default());
        cmd.arg(once.as_ref().map_or(&[][..], |once| &once.fingerprint));
        cmd.arg(REMEMBERED.as_millis() as u64).arg(value::FOREVER).arg(&keys::BASES);
        for queue in &lists {
            cmd.arg(keys::group(queue)).arg(keys::member_prefix(queue));
        }
        let mut in_order = InOrder::default();
        for Placing { job, at, key } in jobs {
            let list = lists.iter().position(|queue| **queue == job.queue).map_or(0, |i| i + 1);
            let later = in_order.later(list, &keys::member(&job.queue, job.tries.get(), &job.id));
            cmd.arg(list).arg(job.ttl.map_or(0, ttl_millis)).arg(match job.delay {
                Duration::ZERO => 0,
                delay => micros(delay) + later,
            });
            match at {
                Some(at) => cmd.arg(at * 1000 + later),
                None => cmd.arg(""),
            };
            cmd.arg(job.tries.get()).arg(job.id.to_string());
            if staged {
                cmd.arg("");
            } else {
                cmd.arg(&value::encode(&job.id, &job.body, &job.attributes)?[..]);
            }
            let conflict = match key {
                Some((_, OnConflict::Keep)) => "keep".into(),
                Some((_, OnConflict::Replace)) => "replace".into(),
                Some((_, OnConflict::Fail)) => "fail".into(),
                Some((_, OnConflict::Elsewhere(Placed { id, due_at, how }))) => match (how, due_at) {
                    (How::New, _) => "replace".into(),
                    (How::Replaced(old), _) => format!("replaced {old} "),
                    (How::Duplicate, None) => format!("duplicate {id} "),
                    (How::Duplicate, Some(at)) => format!("duplicate {id} {}", at.saturating_mul(1000)),
                },
                None => String::new(),
            };
            cmd.arg(key.as_ref().map_or("", |(key, _)| key.as_str())).arg(conflict);
        }
        for queue in &new {
            cmd.arg(queue.namespace.as_str()).arg(queue.name.as_str());
        }
        Ok((cmd, new))
    }

    /// What became of a call that is safe to repeat, if it is remembered.
    pub async fn recall(&self, queue: &Queue, once: &Once) -> Result<Option<Published>> {
        let record = keys::once(queue, &once.key);
        let done: Option<Vec<u8>> = self.shared.query(redis::cmd("GET").arg(record)).await?;
        let Some(done) = done else { return Ok(None) };
        let Some(lines) = done.strip_prefix(&once.fingerprint) else { return Ok(Some(Published::Mismatch)) };
        let placed = std::str::from_utf8(lines).ok().and_then(read_placed);
        let placed = placed.ok_or_else(|| Error::corrupt("the record of a publish cannot be read"))?;
        Ok(Some(Published::Replay(placed.into_iter().map(|(placed, _)| placed).collect())))
    }

    /// The job that has this key.
    pub async fn find_key(&self, queue: &Queue, key: &JobKey) -> Result<Option<JobView>> {
        let id: Option<Vec<u8>> = self.shared.query(redis::cmd("GET").arg(keys::job_key(queue, key))).await?;
        let Some(id) = id.and_then(|id| keys::job_id(&id)) else { return Ok(None) };
        let job = JobRef { queue: queue.clone(), id };
        let mut view = self.inspect(&job).await?;
        // It may be among those that a destroy has set aside.
        if view.as_ref().is_some_and(|view| view.state.is_none())
            && self.shared.query(redis::cmd("EXISTS").arg(keys::set_aside(queue))).await?
        {
            self.finish_set_aside(queue).await?;
            view = self.inspect(&job).await?;
        }
        Ok(view.filter(|view| view.key.as_ref() == Some(key)))
    }

    /// Forgets the job that has this key.
    pub async fn cancel_key(&self, queue: &Queue, key: &JobKey) -> Result<bool> {
        let [jobs, details, _] = keys::BASES;
        let mut cmd = self.scripts.cancel_key.call(2);
        cmd.arg(keys::TIMER_SET).arg(keys::job_key(queue, key));
        cmd.arg(keys::group(queue)).arg(keys::member_prefix(queue)).arg(jobs).arg(details);
        loop {
            match self.run::<i64>(&self.shared, &self.scripts.cancel_key, cmd.clone()).await? {
                -1 => self.finish_set_aside(queue).await?,
                cancelled => return Ok(cancelled == 1),
            }
        }
    }
}

fn name(job: &NewJob) -> JobRef {
    JobRef { queue: job.queue.clone(), id: job.id }
}

/// What the script answers.
enum Reply {
    /// With when each is due, in microseconds.
    Done(Vec<(Placed, Option<Micros>)>),
    Replay(Vec<(Placed, Option<Micros>)>),
    Mismatch,
    Conflict {
        index: usize,
        id: JobId,
    },
    Taken,
    OverQuota(u64),
    Ended,
    WrongType,
    SetAside(usize),
}

fn unreadable() -> Fault {
    Fault::unreadable("publish_with")
}

fn read_reply(reply: &[redis::Value]) -> Outcome<(Micros, Reply)> {
    let [now, what, rest @ ..] = reply else { return Err(unreadable()) };
    let now = redis::from_redis_value_ref(now)?;
    let what: String = redis::from_redis_value_ref(what)?;
    let text = |n: usize| -> Outcome<String> {
        Ok(redis::from_redis_value_ref(rest.get(n).ok_or_else(unreadable)?)?)
    };
    let reply = match &*what {
        "done" => Reply::Done(read_placed(&text(0)?).ok_or_else(unreadable)?),
        "replay" => Reply::Replay(read_placed(&text(0)?).ok_or_else(unreadable)?),
        "mismatch" => Reply::Mismatch,
        "conflict" => Reply::Conflict {
            index: text(0)?.parse().map_err(|_| unreadable())?,
            id: JobId::parse(&text(1)?).ok_or_else(unreadable)?,
        },
        "taken" => Reply::Taken,
        "quota" => Reply::OverQuota(redis::from_redis_value_ref(rest.first().ok_or_else(unreadable)?)?),
        "ended" => Reply::Ended,
        "type" => Reply::WrongType,
        "set_aside" => Reply::SetAside(redis::from_redis_value_ref(rest.first().ok_or_else(unreadable)?)?),
        _ => return Err(unreadable()),
    };
    Ok((now, reply))
}

/// What became of each job, from the lines that lua/publish_with.lua writes.
fn read_placed(lines: &str) -> Option<Vec<(Placed, Option<Micros>)>> {
    let read = |line: &str| {
        let mut words = line.split(' ');
        let (how, id, due, old) = (words.next()?, words.next()?, words.next()?, words.next()?);
        let how = match how {
            "new" => How::New,
            "duplicate" => How::Duplicate,
            "replaced" => How::Replaced(JobId::parse(old)?),
            _ => return None,
        };
        let due: Option<Micros> = if due.is_empty() { None } else { Some(due.parse().ok()?) };
        let due_at: Option<Millis> = due.map(|due| due / 1000);
        Some((Placed { id: JobId::parse(id)?, due_at, how }, due))
    };
    lines.split('\n').map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_say_what_became_of_jobs() {
        let (a, b) = ("01AAAAAAAAAAAAAAAAAAAAAAAA", "101AAAAAAAAAAAAAAAAAAAAAAAB");
        let lines = format!("new {a} 1700000000000999 \nduplicate {b}  \nreplaced {a} 5000 {b}");
        let [a, b] = [a, b].map(|id| JobId::parse(id).expect("an id"));
        let placed = read_placed(&lines).expect("as the script writes them");
        let placed: Vec<_> = placed.into_iter().map(|(p, _)| (p.id, p.due_at, p.how)).collect();
        assert_eq!(
            placed,
            [
                (a, Some(1_700_000_000_000), How::New),
                (b, None, How::Duplicate),
                (a, Some(5), How::Replaced(b))
            ]
        );
        for bad in [
            "",
            "new",
            "old 01AAAAAAAAAAAAAAAAAAAAAAAA 1 ",
            "new x 1 ",
            "replaced 01AAAAAAAAAAAAAAAAAAAAAAAA 1 ",
        ] {
            assert!(read_placed(bad).is_none(), "{bad:?} is no such line");
        }
    }
}
