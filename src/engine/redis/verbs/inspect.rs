//! Inspect: what is known of a job by its id or its key. Changes no job.

use bytes::Bytes;
use redis::Value;

use crate::clock::Millis;
use crate::engine::redis::core::RedisCore;
use crate::engine::redis::layout::{keys, value};
use crate::engine::redis::reply::{key_of, read, reason_of};
use crate::error::Result;
use crate::job::{Job, JobRef, JobState, JobView};
use crate::name::{JobKey, Queue};

impl RedisCore {
    /// A job by its id, as it is stored.
    pub async fn inspect_stored(&self, job: &JobRef) -> Result<Option<JobView>> {
        let key = keys::job(&job.queue, &job.id);
        let mut both = redis::pipe();
        both.cmd("GET").arg(&key).cmd("PTTL").arg(&key);
        let (stored, ttl): (Option<Bytes>, i64) = self.shared.query_all(&both).await?;
        // Its ttl may end between the two.
        let (Some(stored), -1..) = (stored, ttl) else { return Ok(None) };
        value::job(&job.queue, job.id, stored, ttl, self.clock.now_micros()).map(|job| Some(view(job)))
    }

    /// All that is known of the job that has this key.
    pub async fn inspect_key(&self, queue: &Queue, key: &JobKey) -> Result<Option<JobView>> {
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

    /// All that is known of a job, with its body. The state is not known of a ready or dead job that stands far from
    /// both ends of a long list.
    pub async fn inspect(&self, job: &JobRef) -> Result<Option<JobView>> {
        let JobRef { queue, id } = job;
        let mut cmd = self.scripts.inspect.call(5);
        cmd.arg(keys::TIMER_SET).arg(keys::job(queue, id)).arg(keys::ready(queue)).arg(keys::dead(queue));
        cmd.arg(keys::details(queue, id)).arg(keys::member_prefix(queue)).arg(id.to_string());
        let reply: Vec<Value> = self.run(&self.shared, &self.scripts.inspect, cmd).await?;
        let [now, ttl, stored, key, reason, what, more @ ..] = reply.as_slice() else {
            return Ok(None);
        };
        let now: u64 = read(now)?;
        let (state, due_at, tries_left): (_, Option<Millis>, _) = match (&*read::<String>(what)?, more) {
            ("timer", [tries, score]) => {
                let (due, runs) = keys::due_of_score(read(score)?, id);
                let state = if runs { JobState::Running } else { JobState::Delayed };
                (Some(state), Some(due / 1000), Some(read(tries)?))
            }
            ("ready", [tries]) => (Some(JobState::Ready), None, Some(read(tries)?)),
            ("dead", _) => (Some(JobState::Dead), None, Some(0)),
            _ => (None, None, None),
        };
        let job = value::job(queue, *id, read::<Bytes>(stored)?, read(ttl)?, now)?;
        let (key, reason) = (key_of(key)?, reason_of(reason)?);
        Ok(Some(JobView { state, due_at, tries_left, key, reason, ..view(job) }))
    }
}

/// What a job is stored with.
fn view(job: Job) -> JobView {
    JobView {
        id: job.id,
        state: None,
        due_at: None,
        tries_left: None,
        ttl: job.ttl,
        elapsed: job.elapsed,
        key: None,
        reason: None,
        size: job.body.len() as u64,
        body: Some(job.body),
        attributes: job.attributes,
    }
}
