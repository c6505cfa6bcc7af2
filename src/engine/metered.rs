//! A wrapper that counts: every metric of an engine is recorded here, and nowhere else.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use async_trait::async_trait;

use super::notifier::Notifier;
use super::{
    Consumed, Cursor, DeadLetter, Engine, Held, How, JobList, JobPage, Once, Pause, Publication, Published,
    Pumped, QueuePage, Quotas, Release, Released, Revival, Revived, Stats, Touched,
};
use crate::clock::Millis;
use crate::error::{Error, Result};
use crate::job::{Job, JobId, JobRef, JobView, NewJob, Reason, Receipt};
use crate::metrics::{Metrics, PoolMetrics};
use crate::name::{JobKey, Namespace, PoolName, Queue, QueueList};

/// An engine whose work is counted under its pool's name.
#[derive(Debug)]
pub struct Metered {
    inner: Arc<dyn Engine>,
    metrics: PoolMetrics,
}

impl Metered {
    /// Counts what `inner` does.
    pub fn new(inner: Arc<dyn Engine>, pool: &PoolName, metrics: &Metrics) -> Metered {
        Metered { inner, metrics: metrics.engine.pool(pool) }
    }

    async fn step<T>(&self, command: &'static str, work: impl Future<Output = Result<T>>) -> Result<T> {
        let began = Instant::now();
        let result = work.await;
        self.metrics.step(command, result.is_ok(), began.elapsed());
        result
    }

    fn stored(&self, queue: &Queue, jobs: usize, delayed: usize) {
        self.metrics.counters.publish_jobs.inc_by(jobs as u64);
        self.metrics.counters.pool_add_jobs.inc_by(jobs as u64);
        self.metrics.counters.timer_add_jobs.inc_by(delayed as u64);
        self.metrics.counters.queue_direct_push_jobs.inc_by((jobs - delayed) as u64);
        self.metrics.published(queue, jobs);
    }

    fn forgotten(&self, job: &JobRef) {
        self.metrics.counters.pool_delete_jobs.inc();
        let elapsed = self.inner.now().saturating_sub(job.id.published_at());
        self.metrics.acked(&job.queue, Duration::from_millis(elapsed));
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Engine for Metered {
    fn now(&self) -> Millis {
        self.inner.now()
    }

    async fn publish(&self, jobs: Vec<NewJob>) -> Result<()> {
        // Most calls are of one queue; one of several is counted per queue.
        let mut queues: Vec<(Queue, usize, usize)> = Vec::with_capacity(1);
        for job in &jobs {
            let delayed = usize::from(!job.delay.is_zero());
            match queues.iter_mut().find(|(queue, ..)| *queue == job.queue) {
                Some((_, count, late)) => (*count, *late) = (*count + 1, *late + delayed),
                None => queues.push((job.queue.clone(), 1, delayed)),
            }
        }
        self.step("publish", self.inner.publish(jobs)).await?;
        for (queue, jobs, delayed) in &queues {
            self.stored(queue, *jobs, *delayed);
        }
        Ok(())
    }

    async fn republish(&self, old: JobRef, new: NewJob) -> Result<()> {
        let (queue, delayed) = (new.queue.clone(), usize::from(!new.delay.is_zero()));
        self.step("republish", self.inner.republish(old.clone(), new)).await?;
        self.forgotten(&old);
        self.stored(&queue, 1, delayed);
        Ok(())
    }

    async fn publish_with(&self, publication: Publication) -> Result<Published> {
        let jobs: Vec<(Queue, bool)> = publication
            .jobs
            .iter()
            .map(|placing| (placing.job.queue.clone(), placing.at.is_some() || !placing.job.delay.is_zero()))
            .collect();
        let replaces = publication.replaces.clone();
        let published = self.step("publish_with", self.inner.publish_with(publication)).await?;
        if let Published::Done(placed) = &published {
            replaces.iter().for_each(|job| self.forgotten(job));
            for ((queue, delayed), placed) in jobs.iter().zip(placed) {
                match placed.how {
                    How::Duplicate => continue,
                    How::Replaced(id) => self.forgotten(&JobRef { queue: queue.clone(), id }),
                    How::New => {}
                }
                self.stored(queue, 1, usize::from(*delayed));
            }
        }
        Ok(published)
    }

    async fn recall(&self, queue: &Queue, once: &Once) -> Result<Option<Published>> {
        self.step("recall", self.inner.recall(queue, once)).await
    }

    async fn find_key(&self, queue: &Queue, key: &JobKey) -> Result<Option<JobView>> {
        self.step("find_key", self.inner.find_key(queue, key)).await
    }

    async fn cancel_key(&self, queue: &Queue, key: &JobKey) -> Result<bool> {
        self.step("cancel_key", self.inner.cancel_key(queue, key)).await
    }

    async fn consume(&self, queues: &QueueList, ttrs: &[Duration]) -> Result<Consumed> {
        let consumed = self.step("consume", self.inner.consume(queues, ttrs)).await?;
        for job in &consumed.jobs {
            self.metrics.counters.consume_jobs.inc();
            self.metrics.counters.queue_pop_jobs.inc();
            self.metrics.counters.pool_get_jobs.inc();
            self.metrics.counters.timer_add_jobs.inc();
            if queues.names().len() > 1 {
                self.metrics.counters.consume_multi_jobs.inc();
            }
            self.metrics.consumed(&job.queue, job.elapsed);
        }
        Ok(consumed)
    }

    async fn give_back(&self, jobs: Vec<Job>) -> Result<()> {
        let count = jobs.len() as u64;
        self.step("give_back", self.inner.give_back(jobs)).await?;
        self.metrics.counters.given_back_jobs.inc_by(count);
        Ok(())
    }

    async fn ack(&self, job: JobRef) -> Result<()> {
        self.step("ack", self.inner.ack(job.clone())).await?;
        self.forgotten(&job);
        Ok(())
    }

    async fn ack_many(&self, queue: &Queue, jobs: &[(JobId, Option<Receipt>)]) -> Result<Vec<JobId>> {
        let stale = self.step("ack_many", self.inner.ack_many(queue, jobs)).await?;
        for (id, _) in jobs.iter().filter(|(id, _)| !stale.contains(id)) {
            self.forgotten(&JobRef { queue: queue.clone(), id: *id });
        }
        Ok(stale)
    }

    async fn touch(&self, job: &JobRef, receipt: Receipt, ttr: Duration) -> Result<Held<Touched>> {
        self.step("touch", self.inner.touch(job, receipt, ttr)).await
    }

    async fn release(&self, job: &JobRef, receipt: Receipt, release: Release) -> Result<Held<Released>> {
        self.step("release", self.inner.release(job, receipt, release)).await
    }

    async fn bury(&self, job: &JobRef, receipt: Receipt, reason: Option<Reason>) -> Result<Held<()>> {
        self.step("bury", self.inner.bury(job, receipt, reason)).await
    }

    async fn peek(&self, queue: &Queue) -> Result<Option<Job>> {
        self.step("peek", self.inner.peek(queue)).await
    }

    async fn peek_job(&self, job: &JobRef) -> Result<Option<Job>> {
        let found = self.step("peek_job", self.inner.peek_job(job)).await?;
        self.metrics.counters.pool_get_jobs.inc_by(u64::from(found.is_some()));
        Ok(found)
    }

    async fn inspect(&self, job: &JobRef) -> Result<Option<JobView>> {
        let found = self.step("inspect", self.inner.inspect(job)).await?;
        self.metrics.counters.pool_get_jobs.inc_by(u64::from(found.is_some()));
        Ok(found)
    }

    async fn list_jobs(&self, queue: &Queue, list: JobList) -> Result<Option<JobPage>> {
        self.step("list_jobs", self.inner.list_jobs(queue, list)).await
    }

    async fn size(&self, queue: &Queue) -> Result<u64> {
        self.step("size", self.inner.size(queue)).await
    }

    async fn destroy(&self, queue: &Queue) -> Result<()> {
        self.step("destroy", self.inner.destroy(queue)).await
    }

    async fn dead_letter(&self, queue: &Queue) -> Result<DeadLetter> {
        self.step("dead_letter", self.inner.dead_letter(queue)).await
    }

    async fn respawn(&self, queue: &Queue, limit: u64, ttl: Option<Duration>) -> Result<u64> {
        let count = self.step("respawn", self.inner.respawn(queue, limit, ttl)).await;
        let (Ok(done) | Err(Error::Partly { done, .. })) = count else { return count };
        self.metrics.counters.deadletter_respawn_jobs.inc_by(done);
        count
    }

    async fn respawn_jobs(&self, queue: &Queue, jobs: &[JobId], revival: Revival) -> Result<Vec<Revived>> {
        let revived = self.step("respawn_jobs", self.inner.respawn_jobs(queue, jobs, revival)).await?;
        let count = revived.iter().filter(|revived| matches!(revived, Revived::Done { .. })).count();
        self.metrics.counters.deadletter_respawn_jobs.inc_by(count as u64);
        Ok(revived)
    }

    async fn delete_dead(&self, queue: &Queue, limit: u64) -> Result<u64> {
        self.step("delete_dead", self.inner.delete_dead(queue, limit)).await
    }

    async fn pause(&self, queue: &Queue, time: Option<Duration>) -> Result<Pause> {
        self.step("pause", self.inner.pause(queue, time)).await
    }

    async fn resume(&self, queue: &Queue) -> Result<()> {
        self.step("resume", self.inner.resume(queue)).await
    }

    async fn pauses(&self) -> Result<BTreeMap<Queue, Pause>> {
        self.inner.pauses().await
    }

    async fn pump(&self, limit: usize) -> Result<Pumped> {
        let pumped = self.step("pump", self.inner.pump(limit)).await?;
        self.metrics.counters.timer_due_jobs.inc_by(pumped.moved as u64);
        self.metrics.counters.timer_full_batches.inc_by(u64::from(pumped.moved >= limit));
        Ok(pumped)
    }

    async fn due_earlier(&self) {
        self.inner.due_earlier().await;
    }

    async fn queues(&self) -> Result<Vec<Queue>> {
        self.step("queues", self.inner.queues()).await
    }

    async fn list_queues(
        &self,
        namespace: &Namespace,
        limit: usize,
        cursor: Option<Cursor>,
    ) -> Result<Option<QueuePage>> {
        self.step("list_queues", self.inner.list_queues(namespace, limit, cursor)).await
    }

    async fn stats(&self) -> Result<Stats> {
        self.step("stats", self.inner.stats()).await
    }

    async fn set_quotas(&self, quotas: &Quotas) -> Result<()> {
        self.step("set_quotas", self.inner.set_quotas(quotas)).await
    }

    fn attach(&self, notifier: Weak<dyn Notifier>) {
        self.inner.attach(notifier);
    }

    fn watch(&self, queue: &Queue) {
        self.inner.watch(queue);
    }

    async fn check(&self) -> Result<()> {
        self.inner.check().await
    }

    async fn close(&self) {
        self.inner.close().await;
    }
}
