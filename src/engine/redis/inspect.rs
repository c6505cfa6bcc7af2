//! Inspect: all that is known of a job by its id. Changes nothing.

use bytes::Bytes;
use redis::Value;

use super::RedisCore;
use super::layout::{keys, value};
use super::reply::{key_of, read, reason_of};
use crate::clock::Millis;
use crate::error::Result;
use crate::job::{JobRef, JobState, JobView};

impl RedisCore {
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
        Ok(Some(JobView {
            id: *id,
            state,
            due_at,
            tries_left,
            ttl: job.ttl,
            elapsed: job.elapsed,
            key: key_of(key)?,
            reason: reason_of(reason)?,
            size: job.body.len() as u64,
            body: Some(job.body),
            attributes: job.attributes,
        }))
    }
}
