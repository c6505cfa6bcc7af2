//! Keys of schedules' jobs in a queue that is spread: those jobs lie at home, and other producers' jobs lie where their keys
//! say. So the step of a schedule looks there before, and what it replaces there goes after it.

use std::sync::Arc;

use super::super::core::CompactCore;
use super::super::partitions::Partition;
use super::publish_call::Tried;
use super::publish_parts::Part;
use crate::engine::{How, OnConflict, Placed, Placing, Publication, Published};
use crate::error::{Error, Result};
use crate::job::{JobRef, JobState, JobView};

/// What other partitions say to the job of a schedule.
pub enum Elsewhere {
    /// It was done already, or a job has its key.
    Answered(Published),
    /// It is stored. These jobs go after that.
    Goes(Vec<Replaced>),
}

/// A job whose key the job of a schedule gets.
pub struct Replaced {
    partition: Partition,
    job: JobRef,
}

impl CompactCore {
    /// Looks for the keys of a schedule's job in the partitions that they belong to.
    pub async fn look_elsewhere(&self, publication: &mut Publication) -> Result<Elsewhere> {
        let Publication { jobs, once, .. } = publication;
        let mut goes = Vec::new();
        for (index, Placing { job, key, .. }) in jobs.iter_mut().enumerate() {
            let Some((key, on_conflict)) = key else { continue };
            let (queue, home) = (&job.queue, self.partition_of(&job.queue));
            let partition = self.partitions.of_key(queue, key);
            let is_told = matches!(on_conflict, OnConflict::Elsewhere(_));
            if partition == home || is_told || self.spreading.get(queue).is_none() {
                continue;
            }
            if let Some(once) = once
                && let Some(done) = self.recall_in(home, queue, once).await?
            {
                return Ok(Elsewhere::Answered(done));
            }
            let holder = self.inspect_in(partition, queue, (b"", key.as_str()), None).await?;
            let Some(JobView { id, due_at, state, .. }) = holder else { continue };
            let runs = state == Some(JobState::Running);
            let how = match on_conflict {
                OnConflict::Fail => return Ok(Elsewhere::Answered(Published::Conflict { index, id })),
                OnConflict::Keep => How::Duplicate,
                _ => How::Replaced(id),
            };
            if how != How::Duplicate {
                goes.push(Replaced { partition, job: JobRef { queue: queue.clone(), id } });
            }
            if !(runs && how != How::Duplicate) {
                *on_conflict = OnConflict::Elsewhere(Placed { id, due_at, how });
            }
        }
        Ok(Elsewhere::Goes(goes))
    }

    /// One that runs by now goes on without its key. What is placed stays, whatever becomes of this.
    pub async fn go_elsewhere(self: &Arc<Self>, goes: Vec<Replaced>) {
        for Replaced { partition, job } in goes {
            let (queue, id) = (job.queue.clone(), job.id);
            let mut part = Part::new(partition, job.queue.clone());
            part.gone.push(job);
            let error = match self.publish_in_parts(vec![part]).await {
                Ok(Tried::Busy) => Error::Overloaded,
                Ok(_) => continue,
                Err(error) => error,
            };
            tracing::warn!(pool = &*self.common.pool, %queue, %id, %error, "a job that was replaced has its key still");
        }
    }
}
