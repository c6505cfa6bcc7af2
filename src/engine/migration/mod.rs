//! A wrapper that moves a pool from one store, the source (`old`), to another, the target (`new`): publishes go to the
//! target, consumes drain the source first. Acks, peeks, pumps and statistics cover both. Stores can be of any kind.
//!
//! Each step is atomic in its store. A republish whose old job is in the source changes both: the new job is stored
//! before the old one is deleted, so nothing is lost in between.
//!
//! **Before, during and after.** Restarts begin and end a move, and meanwhile some servers of a pool may know only one
//! of the stores. Replies to clients stay valid:
//!
//! - A receipt is the store's own. Both stores are called, since a job is in one of them.
//! - An idempotent publish is looked up in both stores, also that of a schedule's occurrence.
//!
//! **Keys.** A key that belongs to a job in the source is taken. It is looked up before the target is called, so two
//! steps replace one: a replaced job in the source is deleted after the new one is stored, even if it was delivered in
//! between. A replaced job that runs in the source keeps its key there, and has it again once the new job is deleted.
//!
//! **Order.** Within a queue the source's jobs go first. Within a list, the first queue's jobs go first, in either
//! store: if the source delivers jobs of a later queue, the target is called for the queues before it, and if it has
//! jobs, the source's jobs are returned. A list of jobs begins with the source's.
//!
//! **A source that is unavailable or hangs** does not delay calls that the target can serve. Calls wait for it up to
//! [`PATIENCE`], a little longer while it is slow; then the target's reply counts. By call:
//!
//! - consume delivers the target's jobs. Without any it fails, since the source may have some. A source that hangs may
//!   recover soon, so consume first polls the target for a second. While one consume hangs in the source, the others do
//!   not call it. Jobs that it delivers too late are returned.
//! - peek, by queue and by id, returns the target's job, and fails if it has none.
//! - size and the dead letter's size cover the store that replies, also if the target is unavailable.
//! - ack succeeds if the target had all of the jobs, and fails otherwise.
//! - republish succeeds once the new job is stored. The old job is acked once the source replies again.
//! - touch and release succeed if the target has the job, and fail otherwise.
//! - Jobs given back to the source return later, the target's at once.
//! - Calls that change many jobs (destroy, respawn, delete_dead) fail and change nothing: the oldest jobs are in the
//!   source. Lists fail, and so do publishes with a job key or an idempotency key: the key may be taken in the source,
//!   or the call may have been executed there.
//! - Occurrences of schedules without a job key are published all the same. An occurrence comes twice if a server has
//!   published it to the source, and died before it recorded that.
//! - Statistics of the whole pool fail, because operators use them to decide whether the source is empty. So does the
//!   check, since a consumer may get an error.
//!
//! If the target cannot give the reply alone, calls wait for a source that hangs as long as its own calls last: touch,
//! release and the ack of one job without a receipt that is not in the target, the cancel of a key, promote, calls that
//! change many jobs, lists of queues, statistics of the whole pool, and the check. Other acks fail after the short
//! wait.

mod consume;
mod keys;
mod lists;
mod old_store;
mod patience;
mod stores;

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use tokio::time::timeout;

pub use self::patience::PATIENCE;
use self::patience::{LOOK_AGAIN, MOST_PATIENCE};
use self::stores::TwoStores;
use super::delays::{DelayCount, Delays};
use super::notifier::Notifier;
use super::{
    By, Consumed, Detail, Engine, Held, JobList, JobPage, Listing, Once, Promoted, Publication, Published,
    Pumped, QueuePage, Quotas, Release, Released, Respawn, Respawned, Revived, Size, SizeOf, Stats, Touched,
    Usage,
};
use crate::clock::Millis;
use crate::error::{Error, Result};
use crate::job::{Job, JobId, JobIds, JobRef, JobView, Receipt};
use crate::name::{JobKey, Namespace, Queue, QueueList, QueueName};
use crate::process::tasks::{Failure, Tasks};

/// Moves a pool from `old`, the source, to `new`, the target.
#[derive(Debug)]
pub struct Migration {
    stores: TwoStores,
}

impl Migration {
    /// Drains `old` by consumes, and fills `new` by publishes. `old` may delay by `patience` a reply that `new` could
    /// give. Spawns tasks on the current runtime.
    pub fn start(old: Arc<dyn Engine>, new: Arc<dyn Engine>, patience: Duration) -> Migration {
        Migration { stores: TwoStores::new(old, new, patience, Tasks::new(Failure::default())) }
    }
}

/// Returns the number of jobs changed by two steps. Succeeds if the first did something, even if the second failed:
/// after an error the caller would repeat both.
async fn and_rest(done: u64, limit: u64, rest: impl AsyncFnOnce(u64) -> Result<u64>) -> Result<u64> {
    if done >= limit {
        return Ok(done);
    }
    match rest(limit - done).await {
        Ok(more) => Ok(done + more),
        Err(Error::Partly { done: more, .. }) if done > 0 => Ok(done + more),
        Err(_) if done > 0 => Ok(done),
        Err(error) => Err(error),
    }
}

impl Drop for Migration {
    fn drop(&mut self) {
        self.stores.tasks.stop();
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Engine for Migration {
    fn now(&self) -> Millis {
        self.stores.new.now()
    }

    fn time_of_day(&self) -> Millis {
        self.stores.new.time_of_day()
    }

    fn make_id(&self, ids: &JobIds, queue: &Queue, delay: Duration, versioned: bool) -> JobId {
        self.stores.new.make_id(ids, queue, delay, versioned)
    }

    async fn publish(&self, publication: Publication) -> Result<Published> {
        self.stores.publish(publication).await
    }

    async fn recall(&self, queue: &Queue, once: &Once) -> Result<Option<Published>> {
        self.stores.recall(queue, once).await
    }

    async fn cancel_key(&self, queue: &Queue, key: &JobKey) -> Result<bool> {
        Ok(self.stores.new.cancel_key(queue, key).await? || self.stores.old.cancel_key(queue, key).await?)
    }

    async fn consume(&self, queues: &QueueList, ttrs: &[Duration]) -> Result<Consumed> {
        self.stores.consume(queues, ttrs).await
    }

    async fn give_back(&self, jobs: Vec<Job>) -> Result<()> {
        self.stores.give_back(jobs).await
    }

    async fn ack(&self, queue: &Queue, jobs: &[(JobId, Option<Receipt>)]) -> Result<Vec<JobId>> {
        self.stores.ack(queue, jobs).await
    }

    async fn touch(&self, job: &JobRef, receipt: Receipt, ttr: Duration) -> Result<Held<Touched>> {
        let TwoStores { old, new, .. } = &self.stores;
        self.stores.held(old.touch(job, receipt, ttr), new.touch(job, receipt, ttr)).await
    }

    async fn release(&self, job: &JobRef, receipt: Receipt, release: Release) -> Result<Held<Released>> {
        let TwoStores { old, new, .. } = &self.stores;
        let of_old = old.release(job, receipt, release.clone());
        self.stores.held(of_old, new.release(job, receipt, release)).await
    }

    async fn peek(&self, queue: &Queue) -> Result<Option<Job>> {
        self.stores.old_first(self.stores.old.peek(queue), self.stores.new.peek(queue)).await
    }

    async fn inspect(&self, queue: &Queue, by: By<'_>, detail: Detail) -> Result<Option<JobView>> {
        let TwoStores { old, new, .. } = &self.stores;
        let (old, new) = (old.inspect(queue, by, detail), new.inspect(queue, by, detail));
        match by {
            By::Id(_) => self.stores.old_first(old, new).await,
            // A running job in the source may have a key that a job in the target has taken over.
            By::Key(_) => self.stores.new_first(old, new).await,
        }
    }

    async fn promote(&self, queue: &Queue, by: By<'_>) -> Result<Promoted> {
        match self.stores.new.promote(queue, by).await? {
            // A job is in one of the stores.
            Promoted::NotFound => self.stores.old.promote(queue, by).await,
            promoted => Ok(promoted),
        }
    }

    async fn list_jobs(&self, queue: &Queue, list: JobList) -> Result<Option<JobPage>> {
        self.stores.list_jobs(queue, list).await
    }

    async fn size(&self, queue: &Queue, of: SizeOf) -> Result<Size> {
        let TwoStores { old, new, .. } = &self.stores;
        let both = self.stores.ask_both(old.size(queue, of), new.size(queue, of)).await?;
        let [old, new] = <[_; 2]>::from(both).map(Option::unwrap_or_default);
        Ok(Size { jobs: old.jobs + new.jobs, head: old.head.or(new.head) })
    }

    async fn destroy(&self, queue: &Queue, listing: Listing) -> Result<()> {
        self.stores.old.destroy(queue, listing).await?;
        // The error must not claim that nothing has happened.
        self.stores.new.destroy(queue, listing).await.map_err(Error::away)
    }

    async fn respawn(&self, queue: &Queue, which: Respawn<'_>) -> Result<Respawned> {
        let TwoStores { old, new, .. } = &self.stores;
        let Respawned { count, mut each } = old.respawn(queue, which).await?;
        let (jobs, revival) = match which {
            Respawn::Oldest { limit, ttl } => {
                let rest = async |limit| Ok(new.respawn(queue, Respawn::Oldest { limit, ttl }).await?.count);
                return Ok(Respawned { count: and_rest(count, limit, rest).await?, each });
            }
            Respawn::Jobs(jobs, revival) => (jobs, revival),
        };
        let missing: Vec<usize> = (0..jobs.len()).filter(|n| each[*n] == Revived::NotFound).collect();
        if !missing.is_empty() {
            let ids: Vec<JobId> = missing.iter().map(|n| jobs[*n]).collect();
            let done = (jobs.len() - ids.len()) as u64;
            let rest = new.respawn(queue, Respawn::Jobs(&ids, revival)).await;
            for (n, revived) in missing.into_iter().zip(rest.map_err(|e| e.after(done))?.each) {
                each[n] = revived;
            }
        }
        Ok(Respawned::of(each))
    }

    async fn delete_dead(&self, queue: &Queue, limit: u64) -> Result<u64> {
        let old = self.stores.old.delete_dead(queue, limit).await?;
        and_rest(old, limit, async |rest| self.stores.new.delete_dead(queue, rest).await).await
    }

    async fn pump(&self) -> Result<Pumped> {
        // An error of one store is reported once the other has nothing left to move.
        match tokio::join!(self.stores.old.pump(), self.stores.new.pump()) {
            (Ok(old), Ok(new)) => Ok(Pumped { moved: old.moved + new.moved, next: old.next.min(new.next) }),
            (Ok(one), Err(_)) | (Err(_), Ok(one)) if one.moved > 0 => {
                Ok(Pumped { next: one.next.min(LOOK_AGAIN), ..one })
            }
            (Err(error), _) | (_, Err(error)) => Err(error),
        }
    }

    async fn list_queues(
        &self,
        namespace: &Namespace,
        after: Option<&QueueName>,
        limit: usize,
    ) -> Result<QueuePage> {
        self.stores.list_queues(namespace, after, limit).await
    }

    async fn stats(&self) -> Result<Stats> {
        self.stores.stats().await
    }

    async fn delays(&self, count: &DelayCount) -> Result<Delays> {
        let (mut all, new) = tokio::try_join!(self.stores.old.delays(count), self.stores.new.delays(count))?;
        all.merge(new, count.most);
        Ok(all)
    }

    /// Sets the quotas of the target, which receives publishes.
    async fn set_quotas(&self, quotas: &Quotas) -> Result<BTreeMap<Namespace, Usage>> {
        self.stores.new.set_quotas(quotas).await
    }

    fn attach(&self, notifier: Weak<dyn Notifier>) {
        self.stores.old.attach(notifier.clone());
        self.stores.new.attach(notifier);
    }

    fn watch(&self, queue: &Queue) {
        self.stores.old.watch(queue);
        self.stores.new.watch(queue);
    }

    async fn check(&self) -> Result<()> {
        self.stores.old.check().await?;
        self.stores.new.check().await
    }

    async fn close(&self) {
        self.stores.tasks.stop();
        // Jobs on their way back to the source arrive before it closes, unless it hangs.
        let _ = timeout(MOST_PATIENCE, self.stores.tasks.ended()).await;
        self.stores.old.close().await;
        self.stores.new.close().await;
    }
}
