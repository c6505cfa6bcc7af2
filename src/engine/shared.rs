//! A shared engine is an engine: wrappers compose over `Arc<dyn Engine>`.

use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;

use super::notifier::Notifier;
use super::{
    Consumed, Cursor, DeadLetter, Engine, Held, JobList, JobPage, Pause, Publication, Published, Pumped,
    QueuePage, Release, Released, Revival, Revived, Stats, Touched,
};
use crate::clock::Millis;
use crate::error::Result;
use crate::job::{Job, JobId, JobRef, JobView, NewJob, Reason, Receipt};
use crate::name::{JobKey, Namespace, Queue, QueueList};

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl<E: Engine + ?Sized> Engine for Arc<E> {
    fn now(&self) -> Millis {
        (**self).now()
    }

    async fn publish(&self, jobs: Vec<NewJob>) -> Result<()> {
        (**self).publish(jobs).await
    }

    async fn republish(&self, old: JobRef, new: NewJob) -> Result<()> {
        (**self).republish(old, new).await
    }

    async fn publish_with(&self, publication: Publication) -> Result<Published> {
        (**self).publish_with(publication).await
    }

    async fn find_key(&self, queue: &Queue, key: &JobKey) -> Result<Option<JobView>> {
        (**self).find_key(queue, key).await
    }

    async fn cancel_key(&self, queue: &Queue, key: &JobKey) -> Result<bool> {
        (**self).cancel_key(queue, key).await
    }

    async fn consume(&self, queues: &QueueList, ttrs: &[Duration]) -> Result<Consumed> {
        (**self).consume(queues, ttrs).await
    }

    async fn give_back(&self, jobs: Vec<Job>) -> Result<()> {
        (**self).give_back(jobs).await
    }

    async fn ack(&self, job: JobRef) -> Result<()> {
        (**self).ack(job).await
    }

    async fn ack_many(&self, queue: &Queue, jobs: &[(JobId, Option<Receipt>)]) -> Result<Vec<JobId>> {
        (**self).ack_many(queue, jobs).await
    }

    async fn touch(&self, job: &JobRef, receipt: Receipt, ttr: Duration) -> Result<Held<Touched>> {
        (**self).touch(job, receipt, ttr).await
    }

    async fn release(&self, job: &JobRef, receipt: Receipt, release: Release) -> Result<Held<Released>> {
        (**self).release(job, receipt, release).await
    }

    async fn bury(&self, job: &JobRef, receipt: Receipt, reason: Option<Reason>) -> Result<Held<()>> {
        (**self).bury(job, receipt, reason).await
    }

    async fn peek(&self, queue: &Queue) -> Result<Option<Job>> {
        (**self).peek(queue).await
    }

    async fn peek_job(&self, job: &JobRef) -> Result<Option<Job>> {
        (**self).peek_job(job).await
    }

    async fn inspect(&self, job: &JobRef) -> Result<Option<JobView>> {
        (**self).inspect(job).await
    }

    async fn list_jobs(&self, queue: &Queue, list: JobList) -> Result<Option<JobPage>> {
        (**self).list_jobs(queue, list).await
    }

    async fn size(&self, queue: &Queue) -> Result<u64> {
        (**self).size(queue).await
    }

    async fn destroy(&self, queue: &Queue) -> Result<()> {
        (**self).destroy(queue).await
    }

    async fn dead_letter(&self, queue: &Queue) -> Result<DeadLetter> {
        (**self).dead_letter(queue).await
    }

    async fn respawn(&self, queue: &Queue, limit: u64, ttl: Option<Duration>) -> Result<u64> {
        (**self).respawn(queue, limit, ttl).await
    }

    async fn respawn_jobs(&self, queue: &Queue, jobs: &[JobId], revival: Revival) -> Result<Vec<Revived>> {
        (**self).respawn_jobs(queue, jobs, revival).await
    }

    async fn delete_dead(&self, queue: &Queue, limit: u64) -> Result<u64> {
        (**self).delete_dead(queue, limit).await
    }

    async fn pause(&self, queue: &Queue, time: Option<Duration>) -> Result<Pause> {
        (**self).pause(queue, time).await
    }

    async fn resume(&self, queue: &Queue) -> Result<()> {
        (**self).resume(queue).await
    }

    async fn pump(&self, limit: usize) -> Result<Pumped> {
        (**self).pump(limit).await
    }

    async fn due_earlier(&self) {
        (**self).due_earlier().await
    }

    async fn queues(&self) -> Result<Vec<Queue>> {
        (**self).queues().await
    }

    async fn list_queues(
        &self,
        namespace: &Namespace,
        limit: usize,
        cursor: Option<Cursor>,
    ) -> Result<Option<QueuePage>> {
        (**self).list_queues(namespace, limit, cursor).await
    }

    async fn stats(&self) -> Result<Stats> {
        (**self).stats().await
    }

    fn attach(&self, notifier: Weak<dyn Notifier>) {
        (**self).attach(notifier)
    }

    fn watch(&self, queue: &Queue) {
        (**self).watch(queue)
    }

    async fn check(&self) -> Result<()> {
        (**self).check().await
    }

    async fn close(&self) {
        (**self).close().await
    }
}
