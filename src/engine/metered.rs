//! A wrapper that records all metrics of an engine: from its replies, and as its observer for events that no reply
//! contains.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use async_trait::async_trait;

use super::delays::{DelayCount, Delays};
use super::notifier::Notifier;
use super::observer::Observer;
use super::{
    By, Consumed, Detail, Engine, Held, How, JobList, JobPage, Listing, Once, Placing, Promoted, Publication,
    Published, Pumped, QueuePage, Quotas, Release, Released, Respawn, Respawned, Size, SizeOf, Stats,
    Touched, Usage,
};
use crate::clock::Millis;
use crate::error::{Error, Result};
use crate::job::{Job, JobId, JobIds, JobRef, JobView, Receipt};
use crate::metrics::{Operation, PoolMetrics};
use crate::name::{JobKey, Namespace, Queue, QueueList, QueueName};

/// An engine with metrics under its pool's name.
#[derive(Debug)]
pub struct Metered {
    inner: Arc<dyn Engine>,
    metrics: Arc<PoolMetrics>,
}

impl Metered {
    /// Wraps `inner`, whose observer is the same metrics.
    pub fn new(inner: Arc<dyn Engine>, metrics: Arc<PoolMetrics>) -> Metered {
        Metered { inner, metrics }
    }

    async fn step<T>(&self, operation: Operation, work: impl Future<Output = Result<T>>) -> Result<T> {
        let began = Instant::now();
        let result = work.await;
        self.metrics.step(operation, result.is_ok(), began.elapsed());
        result
    }

    /// Records the number of jobs of a step, unless it is zero.
    fn batch(&self, operation: Operation, jobs: usize) {
        if jobs > 0 {
            self.metrics.batch(operation, jobs);
        }
    }

    fn stored(&self, queue: &Queue, jobs: usize, delayed: usize) {
        self.metrics.counters.publish_jobs.inc_by(jobs as u64);
        self.metrics.counters.pool_add_jobs.inc_by(jobs as u64);
        self.metrics.counters.timer_add_jobs.inc_by(delayed as u64);
        self.metrics.counters.queue_direct_push_jobs.inc_by((jobs - delayed) as u64);
        self.metrics.published(queue, jobs);
    }

    fn handed_out(&self, queues: &QueueList, consumed: &Consumed) {
        let now = self.inner.now();
        for job in &consumed.jobs {
            self.metrics.counters.consume_jobs.inc();
            self.metrics.counters.queue_pop_jobs.inc();
            self.metrics.counters.pool_get_jobs.inc();
            self.metrics.counters.timer_add_jobs.inc();
            if queues.names().len() > 1 {
                self.metrics.counters.consume_multi_jobs.inc();
            }
            let late = Duration::from_millis(now.saturating_sub(job.due));
            self.metrics.consumed(&job.queue, job.elapsed, late);
        }
        self.batch(Operation::Consume, consumed.jobs.len());
    }

    fn forgotten(&self, queue: &Queue, id: JobId) {
        self.metrics.counters.pool_delete_jobs.inc();
        let elapsed = self.inner.now().saturating_sub(id.published_at());
        self.metrics.acked(queue, Duration::from_millis(elapsed));
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Engine for Metered {
    fn now(&self) -> Millis {
        self.inner.now()
    }

    fn time_of_day(&self) -> Millis {
        self.inner.time_of_day()
    }

    fn make_id(&self, ids: &JobIds, queue: &Queue, delay: Duration, versioned: bool) -> JobId {
        self.inner.make_id(ids, queue, delay, versioned)
    }

    async fn publish(&self, publication: Publication) -> Result<Published> {
        let replaces = publication.replaces.clone();
        let queue_and_delayed =
            |Placing { job, at, .. }: &Placing| (job.queue.clone(), at.is_some() || !job.delay.is_zero());
        let mut jobs: Vec<(Queue, bool)> = publication.jobs.iter().map(queue_and_delayed).collect();
        let published = self.step(Operation::Publish, self.inner.publish(publication)).await?;
        if let Published::Done(placed) = &published {
            replaces.iter().for_each(|job| self.forgotten(&job.queue, job.id));
            for ((queue, _), placed) in jobs.iter().zip(placed) {
                if let How::Replaced(id) = placed.how {
                    self.forgotten(queue, id);
                }
            }
            let mut placed = placed.iter();
            jobs.retain(|_| placed.next().is_some_and(|placed| placed.how != How::Duplicate));
            // Most calls are of one queue; one of several is counted per queue.
            for same in jobs.chunk_by(|(one, _), (next, _)| one == next) {
                self.stored(&same[0].0, same.len(), same.iter().filter(|(_, delayed)| *delayed).count());
            }
        }
        Ok(published)
    }

    async fn recall(&self, queue: &Queue, once: &Once) -> Result<Option<Published>> {
        self.step(Operation::Recall, self.inner.recall(queue, once)).await
    }

    async fn cancel_key(&self, queue: &Queue, key: &JobKey) -> Result<bool> {
        let cancelled = self.step(Operation::CancelKey, self.inner.cancel_key(queue, key)).await;
        self.metrics.changed(queue);
        cancelled
    }

    async fn consume(&self, queues: &QueueList, ttrs: &[Duration]) -> Result<Consumed> {
        let consumed = self.step(Operation::Consume, self.inner.consume(queues, ttrs)).await?;
        self.handed_out(queues, &consumed);
        Ok(consumed)
    }

    async fn give_back(&self, jobs: Vec<Job>) -> Result<()> {
        let count = jobs.len() as u64;
        self.step(Operation::GiveBack, self.inner.give_back(jobs)).await?;
        self.metrics.counters.given_back_jobs.inc_by(count);
        self.batch(Operation::GiveBack, count as usize);
        Ok(())
    }

    async fn ack(&self, queue: &Queue, jobs: &[(JobId, Option<Receipt>)]) -> Result<Vec<JobId>> {
        let stale = self.step(Operation::Ack, self.inner.ack(queue, jobs)).await?;
        for (id, _) in jobs.iter().filter(|(id, _)| !stale.contains(id)) {
            self.forgotten(queue, *id);
        }
        Ok(stale)
    }

    async fn touch(&self, job: &JobRef, receipt: Receipt, ttr: Duration) -> Result<Held<Touched>> {
        self.step(Operation::Touch, self.inner.touch(job, receipt, ttr)).await
    }

    async fn release(&self, job: &JobRef, receipt: Receipt, release: Release) -> Result<Held<Released>> {
        let held = self.step(Operation::Release, self.inner.release(job, receipt, release)).await?;
        match held {
            Held::Done(Released::Back { .. }) => self.metrics.released(&job.queue),
            Held::Done(Released::Dead) => self.metrics.died(&job.queue, 1),
            Held::NotYours | Held::NotFound => {}
        }
        Ok(held)
    }

    async fn peek(&self, queue: &Queue) -> Result<Option<Job>> {
        self.step(Operation::Peek, self.inner.peek(queue)).await
    }

    async fn inspect(&self, queue: &Queue, by: By<'_>, detail: Detail) -> Result<Option<JobView>> {
        let found = self.step(Operation::Inspect, self.inner.inspect(queue, by, detail)).await?;
        // An inspection by key does not count as a fetch of a job.
        let is_fetched = found.is_some() && matches!(by, By::Id(_));
        self.metrics.counters.pool_get_jobs.inc_by(u64::from(is_fetched));
        Ok(found)
    }

    async fn promote(&self, queue: &Queue, by: By<'_>) -> Result<Promoted> {
        let promoted = self.step(Operation::Promote, self.inner.promote(queue, by)).await;
        self.metrics.changed(queue);
        promoted
    }

    async fn list_jobs(&self, queue: &Queue, list: JobList) -> Result<Option<JobPage>> {
        self.step(Operation::ListJobs, self.inner.list_jobs(queue, list)).await
    }

    async fn size(&self, queue: &Queue, of: SizeOf) -> Result<Size> {
        self.step(Operation::Size, self.inner.size(queue, of)).await
    }

    async fn destroy(&self, queue: &Queue, listing: Listing) -> Result<()> {
        let destroyed = self.step(Operation::Destroy, self.inner.destroy(queue, listing)).await;
        match listing {
            Listing::Delete if destroyed.is_ok() => self.metrics.forget(queue),
            Listing::Delete | Listing::Keep => self.metrics.changed(queue),
        }
        destroyed
    }

    async fn respawn(&self, queue: &Queue, which: Respawn<'_>) -> Result<Respawned> {
        let respawned = self.step(Operation::Respawn, self.inner.respawn(queue, which)).await;
        let done = match &respawned {
            Ok(respawned) => respawned.count,
            Err(Error::Partly { done, .. }) if matches!(which, Respawn::Oldest { .. }) => *done,
            Err(_) => 0,
        };
        self.metrics.counters.deadletter_respawn_jobs.inc_by(done);
        self.batch(Operation::Respawn, done as usize);
        self.metrics.changed(queue);
        respawned
    }

    async fn delete_dead(&self, queue: &Queue, limit: u64) -> Result<u64> {
        let deleted = self.step(Operation::DeleteDead, self.inner.delete_dead(queue, limit)).await;
        self.metrics.changed(queue);
        let deleted = deleted?;
        self.batch(Operation::DeleteDead, deleted as usize);
        Ok(deleted)
    }

    async fn pump(&self) -> Result<Pumped> {
        let pumped = self.step(Operation::Pump, self.inner.pump()).await?;
        self.metrics.counters.timer_due_jobs.inc_by(pumped.moved as u64);
        self.batch(Operation::Pump, pumped.moved);
        // More jobs are due than the store moves in one step.
        let is_full = pumped.moved > 0 && pumped.next.is_zero();
        self.metrics.counters.timer_full_batches.inc_by(u64::from(is_full));
        Ok(pumped)
    }

    async fn list_queues(
        &self,
        namespace: &Namespace,
        after: Option<&QueueName>,
        limit: usize,
    ) -> Result<QueuePage> {
        self.step(Operation::ListQueues, self.inner.list_queues(namespace, after, limit)).await
    }

    async fn stats(&self) -> Result<Stats> {
        self.step(Operation::Stats, self.inner.stats()).await
    }

    async fn delays(&self, count: &DelayCount) -> Result<Delays> {
        self.step(Operation::Delays, self.inner.delays(count)).await
    }

    async fn set_quotas(&self, quotas: &Quotas) -> Result<BTreeMap<Namespace, Usage>> {
        self.step(Operation::SetQuotas, self.inner.set_quotas(quotas)).await
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

impl Observer for PoolMetrics {
    fn published_together(&self, jobs: usize) {
        self.batch(Operation::Publish, jobs);
    }

    fn acked_together(&self, jobs: usize) {
        self.batch(Operation::Ack, jobs);
    }

    fn synced(&self, took: Duration, calls: usize) {
        PoolMetrics::synced(self, took, calls);
    }

    fn waited(&self, took: Duration) {
        PoolMetrics::waited(self, took);
    }

    fn died(&self, queue: &Queue, jobs: u64) {
        PoolMetrics::died(self, queue, jobs);
    }

    fn redelivered(&self, queue: &Queue, jobs: u64) {
        PoolMetrics::redelivered(self, queue, jobs);
    }

    fn expired(&self, jobs: u64) {
        PoolMetrics::expired(self, jobs);
    }
}
