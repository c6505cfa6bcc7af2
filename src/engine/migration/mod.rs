//! A wrapper that moves a pool: publishes go to the new store, consumes drain the old one first. Jobs of both
//! are acked, peeked, pumped and counted as one. Knows nothing of what the stores are.
//!
//! Each step is atomic in the store that it touches. A republish whose old job is in the old store touches
//! both: the new job is stored before the old one is forgotten, so nothing is lost in between.
//!
//! **Before, during and after.** Restarts begin and end a move, and some servers of a pool may know one of the stores
//! alone meanwhile. What a client was told holds all the same:
//!
//! - A receipt is the one that the store gave. Both stores are asked; a job is in one of them.
//! - A publish that is safe to repeat is looked up in both stores. The new one remembers what was found in the old one.
//!
//! **Keys.** A key that a job of the old store has is taken. That is looked up before the new store is asked, so two
//! steps stand in place of one: a job of the old store that is replaced goes after the new one is stored; one that is
//! handed out in between goes all the same. A job that runs in the old store and is replaced keeps its key there, and
//! has it again when the new one is gone.
//!
//! **Order.** Of each queue the old store's jobs go first. Of a list, the first queue's jobs go first, whichever store
//! has them: when the old store hands out jobs of a later queue, the new one is asked for jobs of those before it, and
//! if it has some, the old store gets its jobs back. A list of jobs shows those of the old store first.
//!
//! **An old store that is away or hangs** holds up nothing that the new one can do. It is waited for by
//! [`PATIENCE`], a little longer while it is slow; then the new one answers. What that means for each call:
//!
//! - consume hands out the new store's jobs. When there are none it fails: nobody can say that there is no job. A
//!   store that hangs may go on soon, so there it looks into the new store again and again for a second before it
//!   fails. While one consume hangs in the old store, the others do not ask it. Jobs that it hands out too late are
//!   given back.
//! - peek, by queue and by id, shows the new store's job, and fails when there is none.
//! - size and the dead letter tell what the store that answers has. So they do when the new store is away.
//! - ack succeeds when the new store had all of the jobs, and fails otherwise.
//! - republish succeeds once the new job is stored. The old one is acked as soon as the old store answers again.
//! - touch and release succeed when the new store has the job, and fail otherwise.
//! - Jobs that are given back to the old store are there later, and those of the new one at once.
//! - What changes many jobs (destroy, respawn, delete_dead) changes nothing and fails: the oldest jobs are in the old
//!   store. Lists fail, and so does a publish with a key or one that is safe to repeat: nobody can say whether
//!   the key is taken, or whether it was done already.
//! - Occurrences of schedules are published as ever, but where their jobs have a key: whether the old store has published
//!   one cannot be told, and the new one remembers what it has published itself.
//! - The figures of the whole pool (stats) fail, by which somebody decides whether the old store is empty, and so does
//!   the check, since a consumer may get an error now.
//!
//! Where the new store alone can give no answer, an old store that hangs is waited for as long as its own calls last:
//! touch, release and the ack of one job without a receipt that is not in the new store, the cancel of a key, promote, what
//! changes many jobs, the figures of the whole pool, and the check. Other acks fail after the short
//! patience.

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
use super::observer::Observer;
use super::{
    By, Consumed, Detail, Engine, Held, JobList, JobPage, Once, Promoted, Publication, Published, Pumped,
    QueuePage, Quotas, Release, Released, Respawn, Respawned, Revived, Size, SizeOf, Stats, Touched, Usage,
};
use crate::clock::Millis;
use crate::error::{Error, Result};
use crate::job::{Job, JobId, JobIds, JobRef, JobView, Receipt};
use crate::name::{JobKey, Namespace, Queue, QueueList, QueueName};
use crate::process::tasks::{Failure, Tasks};

/// From `old` to `new`.
#[derive(Debug)]
pub struct Migration {
    stores: TwoStores,
}

impl Migration {
    /// Drains `old` by consumes, and fills `new` by publishes. In the current runtime.
    pub fn start(old: Arc<dyn Engine>, new: Arc<dyn Engine>) -> Migration {
        Migration { stores: TwoStores::new(old, new, Tasks::new(Failure::default())) }
    }
}

/// How many jobs two steps did together. What the first has done is done, also when the second fails: a caller
/// that is told of an error would ask for all of it once more.
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
            // A job that runs in the old store may have a key that one of the new store has taken over.
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

    async fn destroy(&self, queue: &Queue) -> Result<()> {
        self.stores.old.destroy(queue).await?;
        // Not an error that says that nothing has happened.
        self.stores.new.destroy(queue).await.map_err(Error::away)
    }

    async fn forget_queue(&self, queue: &Queue) -> Result<()> {
        self.stores.old.forget_queue(queue).await?;
        self.stores.new.forget_queue(queue).await.map_err(Error::away)
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
        // The trouble of the one shows when the other has nothing more to move.
        match tokio::join!(self.stores.old.pump(), self.stores.new.pump()) {
            (Ok(old), Ok(new)) => Ok(Pumped { moved: old.moved + new.moved, next: old.next.min(new.next) }),
            (Ok(one), Err(_)) | (Err(_), Ok(one)) if one.moved > 0 => {
                Ok(Pumped { next: one.next.min(LOOK_AGAIN), ..one })
            }
            (Err(error), _) | (_, Err(error)) => Err(error),
        }
    }

    async fn due_earlier(&self) {
        tokio::select! {
            () = self.stores.old.due_earlier() => {}
            () = self.stores.new.due_earlier() => {}
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

    /// Of the new store, to which publishes go.
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

    fn observe(&self, observer: Arc<dyn Observer>) {
        self.stores.old.observe(observer.clone());
        self.stores.new.observe(observer);
    }

    async fn check(&self) -> Result<()> {
        self.stores.old.check().await?;
        self.stores.new.check().await
    }

    async fn close(&self) {
        self.stores.tasks.stop();
        // What goes back to the old store is there before it closes, unless that hangs.
        let _ = timeout(MOST_PATIENCE, self.stores.tasks.ended()).await;
        self.stores.old.close().await;
        self.stores.new.close().await;
    }
}
