//! Inspect: returns a job by its id or its key. Changes no job.

use bytes::Bytes;
use redis::Value;

use crate::clock::Millis;
use crate::engine::redis::connection::fault::Fault;
use crate::engine::redis::core::PartitionCore;
use crate::engine::redis::layout::{keys, value};
use crate::engine::redis::link::Lane;
use crate::engine::redis::reply::{key_of, read, reason_of};
use crate::engine::{By, Detail};
use crate::error::Result;
use crate::job::{JobRef, JobState, JobView, Receipt};
use crate::name::{JobKey, Queue};

impl PartitionCore {
    /// Returns a job by its id or its key.
    pub async fn inspect_by(&self, queue: &Queue, by: By<'_>, detail: Detail) -> Result<Option<JobView>> {
        if let By::Id(id) = by
            && let Some(view) = self.inspect_packed(&JobRef { queue: queue.clone(), id }, detail).await?
        {
            return Ok(Some(view));
        }
        match (by, detail) {
            (By::Key(key), detail) => self.inspect_key(queue, key, detail).await,
            (By::Id(id), Detail::Stored) => self.inspect_stored(&JobRef { queue: queue.clone(), id }).await,
            (By::Id(id), _) => self.inspect(&JobRef { queue: queue.clone(), id }, detail.held_with()).await,
        }
    }

    /// Returns the stored fields of a job, by id.
    pub async fn inspect_stored(&self, job: &JobRef) -> Result<Option<JobView>> {
        let key = self.keys.job(&job.queue, &job.id);
        let mut both = redis::pipe();
        both.cmd("GET").arg(&key).cmd("PTTL").arg(&key);
        let (stored, ttl): (Option<Bytes>, i64) = self.query_all(&both).await?;
        // The job may expire between the two commands.
        let (Some(stored), -1..) = (stored, ttl) else { return Ok(None) };
        value::job(&job.queue, job.id, stored, ttl, self.now_micros()).map(|job| Some(job.into()))
    }

    pub async fn inspect_key(&self, queue: &Queue, key: &JobKey, detail: Detail) -> Result<Option<JobView>> {
        let mut both = redis::pipe();
        both.cmd("GET").arg(self.keys.job_key(queue, key)).cmd("EXISTS").arg(self.keys.set_aside(queue));
        let (id, set_aside): (Option<Vec<u8>>, bool) = self.query_all(&both).await?;
        let Some(id) = id.and_then(|id| keys::job_id(&id)) else { return Ok(None) };
        // The job may be one that a destroy has set aside.
        if set_aside {
            self.finish_set_aside(queue).await?;
        }
        let job = JobRef { queue: queue.clone(), id };
        match detail {
            Detail::Stored => self.stored_with_key(&job, key).await,
            _ => {
                let found = self.inspect(&job, detail.held_with()).await?;
                Ok(found.filter(|view| view.key.as_ref() == Some(key)))
            }
        }
    }

    /// Returns the stored fields of a job if it holds this key. Does not determine its state.
    async fn stored_with_key(&self, job: &JobRef, key: &JobKey) -> Result<Option<JobView>> {
        let mut cmd = self.call(&self.scripts.describe);
        cmd.key(self.keys.job(&job.queue, &job.id)).key(self.keys.details(&job.queue, &job.id)).arg(1);
        let reply: Vec<Value> = self.run(Lane::Other, &cmd).await?;
        let [now, ttl, _, has, _, stored] = reply.as_slice() else {
            return Err(Fault::unreadable("describe").into());
        };
        match read::<Option<Bytes>>(stored)? {
            Some(stored) if key_of(has)?.as_ref() == Some(key) => {
                value::job(&job.queue, job.id, stored, read(ttl)?, read(now)?).map(|job| Some(job.into()))
            }
            _ => Ok(None),
        }
    }

    /// Returns all fields of a job, with its body. The state of a ready or dead job is unknown if it is far from both
    /// ends of a long list. The receipt is the valid one, if the job runs with `held_with` tries left.
    pub async fn inspect(&self, job: &JobRef, held_with: Option<u16>) -> Result<Option<JobView>> {
        let JobRef { queue, id } = job;
        let mut cmd = self.call(&self.scripts.inspect);
        cmd.key(&self.keys.timer_set)
            .key(self.keys.job(queue, id))
            .key(self.keys.ready(queue))
            .key(self.keys.dead(queue));
        cmd.key(self.keys.details(queue, id)).arg(keys::member_prefix(queue)).arg(id.to_string());
        cmd.arg(held_with.map_or(-1, i32::from));
        let reply: Vec<Value> = self.run(Lane::Other, &cmd).await?;
        let [now, ttl, stored, key, reason, what, more @ ..] = reply.as_slice() else {
            return Ok(None);
        };
        let now: u64 = read(now)?;
        let mut receipt = None;
        let (state, due_at, tries_left): (_, Option<Millis>, _) = match (&*read::<String>(what)?, more) {
            ("timer", [tries, score]) => {
                let (due, runs) = keys::due_of_score(read(score)?, id);
                let state = if runs { JobState::Running } else { JobState::Delayed };
                let tries_left = read(tries)?;
                // A due time in whole seconds was written by lmstfy, which has no receipts.
                if runs && due % 2 == 1 && due > now && held_with == Some(tries_left) {
                    receipt = Some(Receipt { delivery: due, tries_left });
                }
                (Some(state), Some(due / 1000), Some(tries_left))
            }
            ("ready", [tries]) => (Some(JobState::Ready), None, Some(read(tries)?)),
            ("dead", _) => (Some(JobState::Dead), None, Some(0)),
            _ => (None, None, None),
        };
        let job = value::job(queue, *id, read::<Bytes>(stored)?, read(ttl)?, now)?;
        let (key, reason) = (key_of(key)?, reason_of(reason)?);
        Ok(Some(JobView { state, due_at, tries_left, receipt, key, reason, ..job.into() }))
    }
}
