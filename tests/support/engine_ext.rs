//! Calls of an engine for tests: each is one call of the trait, with a result that is short to compare.

use std::time::Duration;

use async_trait::async_trait;
use dormouse::engine::{
    By, Detail, Engine, Held, Publication, Published, Release, Released, Respawn, Revival, Revived, Size,
    SizeOf, Tries,
};
use dormouse::error::Result;
use dormouse::job::{Job, JobId, JobRef, JobView, NewJob, Reason, Receipt};
use dormouse::name::{JobKey, Queue};

/// Implemented by every engine.
#[async_trait]
pub trait EngineExt: Engine {
    /// Replaces `old` by `new`.
    async fn republish(&self, old: JobRef, new: NewJob) -> Result<()> {
        let id = new.id;
        let publication = Publication { replaces: Some(old), ..vec![new].into() };
        match self.publish(publication).await? {
            Published::Done(placed) => assert_eq!(placed.len(), 1, "{id} is placed: {placed:?}"),
            other => panic!("a republish answers {other:?}"),
        }
        Ok(())
    }

    /// Acks one job without a receipt.
    async fn ack_job(&self, job: JobRef) -> Result<()> {
        let stale = self.ack(&job.queue, &[(job.id, None)]).await?;
        assert_eq!(stale, [], "an ack without a receipt is never stale");
        Ok(())
    }

    /// Returns all fields of the job that holds this key.
    async fn inspect_by_key(&self, queue: &Queue, key: &JobKey) -> Result<Option<JobView>> {
        self.inspect(queue, By::Key(key), Detail::All).await
    }

    /// Returns all fields of a job.
    async fn inspect_job(&self, job: &JobRef) -> Result<Option<JobView>> {
        self.inspect(&job.queue, By::Id(job.id), Detail::All).await
    }

    /// Returns a stored job by id as shown by lmstfy: with no tries left.
    async fn inspect_stored(&self, job: &JobRef) -> Result<Option<Job>> {
        let view = self.inspect(&job.queue, By::Id(job.id), Detail::Stored).await?;
        Ok(view.map(|view| {
            let JobView { id, state, due_at, tries_left, receipt, ttl, .. } = view;
            let JobView { elapsed, key, reason, size, body, attributes, .. } = view;
            assert_eq!(
                (state, due_at, tries_left, receipt, key, reason),
                (None, None, None, None, None, None),
                "not asked for"
            );
            let body = body.expect("a job is inspected with its body");
            assert_eq!(size, body.len() as u64, "the size of the body");
            let (queue, due) = (job.queue.clone(), id.first_due());
            Job { queue, id, body, attributes, ttl, elapsed, due, tries_left: 0, receipt: 0 }
        }))
    }

    /// Returns the number of ready jobs.
    async fn ready(&self, queue: &Queue) -> Result<u64> {
        Ok(self.size(queue, SizeOf::Ready).await?.jobs)
    }

    /// Returns the number of dead jobs, and the oldest.
    async fn dead_letter(&self, queue: &Queue) -> Result<Size> {
        self.size(queue, SizeOf::Dead).await
    }

    /// Respawns the oldest dead jobs. Returns their number.
    async fn respawn_oldest(&self, queue: &Queue, limit: u64, ttl: Option<Duration>) -> Result<u64> {
        let respawned = self.respawn(queue, Respawn::Oldest { limit, ttl }).await?;
        assert_eq!(respawned.each, [], "none was named");
        Ok(respawned.count)
    }

    /// Respawns by id. Returns the outcome of each.
    async fn respawn_jobs(&self, queue: &Queue, jobs: &[JobId], revival: Revival) -> Result<Vec<Revived>> {
        let respawned = self.respawn(queue, Respawn::Jobs(jobs, revival)).await?;
        let done = respawned.each.iter().filter(|revived| matches!(revived, Revived::Done { .. })).count();
        assert_eq!(respawned.count, done as u64, "of {:?}", respawned.each);
        Ok(respawned.each)
    }

    /// Releases a job into the dead letter.
    async fn bury(&self, job: &JobRef, receipt: Receipt, reason: Option<Reason>) -> Result<Held<()>> {
        Ok(match self.release(job, receipt, Release::bury(reason)).await? {
            Held::Done(Released::Dead) => Held::Done(()),
            Held::Done(other) => panic!("a buried job is {other:?}"),
            Held::NotYours => Held::NotYours,
            Held::NotFound => Held::NotFound,
        })
    }

    /// Every queue.
    async fn queues(&self) -> Result<Vec<Queue>> {
        Ok(self.stats().await?.queues.into_iter().map(|size| size.queue).collect())
    }
}

impl<E: Engine + ?Sized> EngineExt for E {}

/// Effect of a release on the try.
pub fn tries(restore: bool) -> Tries {
    if restore { Tries::Restore } else { Tries::Spend }
}
