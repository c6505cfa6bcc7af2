//! The engine on local disk: one directory, one writer thread, nothing else to install. Knows no HTTP, no tokens and
//! no other engine; only [`store`] knows the database.
//!
//! - A call is a [`step::Step`], one per verb, each in a file of [`verbs`].
//! - It travels through the [`writer::handle`] to the [`writer`] thread, which takes calls in groups. Each step changes
//!   the [`state`] in memory and a transaction of the [`store`] together; the group is committed and synced once, and
//!   then answered.
//! - Memory is a window on the disk: the first ready jobs of each queue ([`state::queues`]), the earliest delayed
//!   jobs and all running ones ([`state::timers`]). [`state::load`] rebuilds it.
//! - [`verbs::list_jobs`] reads long lists on other threads, from a snapshot.
//! - [`codec`] defines the byte formats, which docs/disk-format.md draws and explains.
//! - [`upkeep`] runs in the background: it sweeps, compacts, merges and syncs, rejects new data while the disk is
//!   almost full, quarantines unreadable jobs, and rebuilds unreadable lists.
//!
//! - [`core`] opens the directory and owns the threads; this file turns the trait's methods into steps.
//!
//! Imports point one way: `core → upkeep → verbs → writer → step → state → store`.

mod codec;
mod core;
mod options;
mod raw;
mod readers;
mod records;
mod state;
mod step;
mod store;
mod upkeep;
mod verbs;
mod writer;

use std::collections::BTreeMap;
use std::sync::Weak;
use std::time::Duration;

use async_trait::async_trait;
use tokio::time::timeout;

pub use self::core::DiskEngine;
use self::core::FAILED_PATIENCE;
pub use self::options::{DiskOptions, Sync};
#[doc(hidden)]
pub use self::raw::RawStore;
use self::readers::LongRead;
pub(crate) use self::records::Records;
use self::step::Progress;
use self::store::mark;
pub use self::store::mark::{FORMAT, OpenError};
pub use self::store::open::{Look, look};
pub use self::upkeep::repair::{RepairReport, RepairTo, repair};
use self::upkeep::sweep::ShareStore;
use self::verbs::ack::Ack;
use self::verbs::consume::Consume;
use self::verbs::dead_letter::{DeleteDead, RespawnOldest};
use self::verbs::delays;
use self::verbs::destroy::{Destroy, Rest};
use self::verbs::give_back::GiveBack;
use self::verbs::held::{GiveUp, Touch};
use self::verbs::inspect::{Inspect, InspectKey};
use self::verbs::keys::{CancelKey, Recall};
use self::verbs::list_jobs::list_jobs;
use self::verbs::list_queues::ListQueues;
use self::verbs::peek::Peek;
use self::verbs::promote::Promote;
use self::verbs::publish::Publish;
use self::verbs::pump::Pump;
use self::verbs::quotas::SetQuotas;
use self::verbs::respawn_jobs::RespawnJobs;
use self::verbs::stats::{ReadSize, ReadStatistics};
use super::backup::{Backup, StoreCopy};
use super::delays::{DelayCount, Delays};
use super::notifier::Notifier;
use super::{
    By, Consumed, Detail, Engine, Held, JobList, JobPage, Listing, Once, Promoted, Publication, Published,
    Pumped, QueuePage, Quotas, Release, Released, Respawn, Respawned, Size, SizeOf, Stats, Touched, Tries,
    Usage,
};
use crate::clock::Millis;
use crate::error::{Error, Result};
use crate::job::{Job, JobId, JobRef, JobView, Receipt};
use crate::name::{JobKey, Namespace, Queue, QueueList, QueueName};

/// How long setting a quota waits for the count of stored jobs.
const COUNTED: Duration = Duration::from_millis(800);

#[async_trait]
impl Backup for DiskEngine {
    async fn copy(&self) -> Result<StoreCopy> {
        // The writer replies once everything acknowledged before is committed.
        let store = self.handle.ask(ShareStore).await?;
        let copy = move || Ok(store.copy_inside().map(|dir| StoreCopy::new(dir, mark::MARK)));
        self.readers.run(LongRead::Copy, &self.handle, copy).await?.map_err(Error::refused)
    }
}

#[async_trait]
impl Engine for DiskEngine {
    fn now(&self) -> Millis {
        self.handle.clock.now()
    }

    fn time_of_day(&self) -> Millis {
        self.handle.clock.time_of_day()
    }

    async fn publish(&self, publication: Publication) -> Result<Published> {
        if publication.replaces.is_some() {
            self.room.rewrite(publication.bytes())?;
        } else {
            self.room.publish(publication.jobs.len(), publication.bytes())?;
        }
        self.observer.published_together(publication.jobs.len());
        self.handle.ask(Publish(publication)).await
    }

    async fn recall(&self, queue: &Queue, once: &Once) -> Result<Option<Published>> {
        self.handle.ask(Recall { queue: queue.clone(), once: once.clone() }).await
    }

    async fn cancel_key(&self, queue: &Queue, key: &JobKey) -> Result<bool> {
        self.handle.ask(CancelKey { queue: queue.clone(), key: key.clone() }).await
    }

    async fn consume(&self, queues: &QueueList, ttrs: &[Duration]) -> Result<Consumed> {
        let step = Consume { queues: queues.clone(), ttrs: ttrs.to_vec() };
        self.handle.ask(step).await
    }

    async fn give_back(&self, jobs: Vec<Job>) -> Result<()> {
        let jobs =
            jobs.into_iter().map(|job| (JobRef { queue: job.queue, id: job.id }, job.receipt, job.ttl));
        self.handle.ask(GiveBack(jobs.collect())).await
    }

    async fn ack(&self, queue: &Queue, jobs: &[(JobId, Option<Receipt>)]) -> Result<Vec<JobId>> {
        let queue = queue.clone();
        self.observer.acked_together(jobs.len());
        match jobs {
            [one] => self.handle.ask(Ack { queue, jobs: [*one] }).await,
            jobs => self.handle.ask(Ack { queue, jobs: jobs.to_vec() }).await,
        }
    }

    async fn touch(&self, job: &JobRef, receipt: Receipt, ttr: Duration) -> Result<Held<Touched>> {
        self.handle.ask(Touch { job: job.clone(), receipt, ttr }).await
    }

    async fn release(&self, job: &JobRef, receipt: Receipt, release: Release) -> Result<Held<Released>> {
        // Moving a job back to the head of its queue needs no more space than a consume; otherwise its body is stored
        // again.
        if let Some(reason) = &release.reason {
            self.room.rewrite(reason.as_str().len())?;
        } else if !release.delay.is_zero() || release.tries == Tries::Forfeit {
            self.room.rewrite(0)?;
        }
        self.handle.ask(GiveUp { job: job.clone(), receipt, release }).await
    }

    async fn peek(&self, queue: &Queue) -> Result<Option<Job>> {
        loop {
            if let Progress::Done(job) = self.handle.ask(Peek(queue.clone())).await? {
                return Ok(job);
            }
        }
    }

    async fn inspect(&self, queue: &Queue, by: By<'_>, detail: Detail) -> Result<Option<JobView>> {
        let queue = queue.clone();
        match by {
            By::Id(id) => self.handle.ask(Inspect { job: JobRef { queue, id }, detail }).await,
            By::Key(key) => self.handle.ask(InspectKey { queue, key: key.clone(), detail }).await,
        }
    }

    async fn promote(&self, queue: &Queue, by: By<'_>) -> Result<Promoted> {
        self.room.rewrite(0)?;
        self.handle.ask(Promote { queue: queue.clone(), job: by.into() }).await
    }

    async fn list_jobs(&self, queue: &Queue, list: JobList) -> Result<Option<JobPage>> {
        list_jobs(&self.readers, &self.handle, queue, list).await
    }

    async fn size(&self, queue: &Queue, of: SizeOf) -> Result<Size> {
        self.handle.ask(ReadSize { queue: queue.clone(), of }).await
    }

    async fn destroy(&self, queue: &Queue, listing: Listing) -> Result<()> {
        let mut from: Option<Rest> = None;
        loop {
            let done = from.map_or(0, |rest| rest.done);
            let step = Destroy { queue: queue.clone(), from, listing };
            from = self.handle.ask(step).await.map_err(|e| e.after(done))?;
            if from.is_none() {
                return Ok(());
            }
        }
    }

    async fn respawn(&self, queue: &Queue, which: Respawn<'_>) -> Result<Respawned> {
        self.room.rewrite(0)?;
        let (jobs, revival) = match which {
            Respawn::Oldest { limit, ttl } => {
                let step = |limit| RespawnOldest { queue: queue.clone(), limit, ttl };
                let count = self.in_steps(limit, step).await?;
                return Ok(Respawned { count, each: Vec::new() });
            }
            Respawn::Jobs(jobs, revival) => (jobs, revival),
        };
        let mut each = Vec::with_capacity(jobs.len());
        while let rest @ [_, ..] = &jobs[each.len()..] {
            let step = RespawnJobs { queue: queue.clone(), jobs: rest.to_vec(), revival };
            let some = self.handle.ask(step).await.map_err(|e| e.after(each.len() as u64))?;
            each.extend(some);
        }
        Ok(Respawned::of(each))
    }

    async fn delete_dead(&self, queue: &Queue, limit: u64) -> Result<u64> {
        self.in_steps(limit, |limit| DeleteDead { queue: queue.clone(), limit }).await
    }

    async fn pump(&self) -> Result<Pumped> {
        self.handle.ask(Pump(self.pump)).await
    }

    async fn list_queues(
        &self,
        namespace: &Namespace,
        after: Option<&QueueName>,
        limit: usize,
    ) -> Result<QueuePage> {
        let (namespace, after) = (namespace.clone(), after.cloned());
        self.handle.ask(ListQueues { namespace, after, limit }).await
    }

    async fn stats(&self) -> Result<Stats> {
        let (figures, queues) = (self.handle.ask(ReadStatistics).await?, self.sizes().await?);
        let mut gauges = figures.gauges;
        gauges.push(("disk_free_bytes", self.room.free() as f64));
        gauges.push(("disk_full", f64::from(u8::from(self.room.is_low()))));
        Ok(Stats { timers: figures.timers, overdue: figures.overdue, queues, gauges })
    }

    async fn delays(&self, count: &DelayCount) -> Result<Delays> {
        let store = self.handle.ask(ShareStore).await?;
        let (count, clock, stop) = (count.clone(), self.handle.clock.clone(), self.stop.clone());
        let counted = self
            .readers
            .run(LongRead::Count, &self.handle, move || delays::count(&store, &count, &clock, &stop));
        counted.await?.ok_or(Error::Closed)
    }

    async fn set_quotas(&self, quotas: &Quotas) -> Result<BTreeMap<Namespace, Usage>> {
        let set = self.handle.ask(SetQuotas { quotas: quotas.clone() }).await?;
        let Some(count) = set.to_count else { return Ok(set.usage) };
        let (handle, stop) = (self.handle.clone(), self.stop.clone());
        // A blocking thread continues after a timeout; a count without a thread is requested again.
        let counted = self.readers.run(LongRead::Count, &self.handle, move || count.run(&handle, &stop));
        timeout(COUNTED, counted).await.unwrap_or(Err(Error::Overloaded))?;
        Ok(self.handle.ask(SetQuotas { quotas: quotas.clone() }).await?.usage)
    }

    fn attach(&self, notifier: Weak<dyn Notifier>) {
        self.notifiers.attach(notifier);
    }

    /// All writers of this store are in this process, and they notify.
    fn watch(&self, _: &Queue) {}

    async fn check(&self) -> Result<()> {
        self.handle.check().await
    }

    async fn close(&self) {
        self.end();
        let (threads, poison) = (self.threads.clone(), self.handle.poison.clone());
        // Waits for readers: another process may change the files once the directory is free. A reader that hangs in
        // the disk is abandoned.
        let failed = async {
            poison.poisoned().await;
            tokio::time::sleep(FAILED_PATIENCE).await;
        };
        tokio::select! {
            () = self.readers.ended() => {}
            () = failed => {}
        }
        // Blocks for the last sync, and for a running compaction.
        let _ = tokio::task::spawn_blocking(move || threads.lock().join(&poison)).await;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, mpsc};

    use super::store::Space;
    use super::store::merge::Merged;
    use super::*;
    use crate::clock::ManualClock;

    /// Guards against a copy that continues in a directory which another process may open.
    #[tokio::test]
    async fn a_close_waits_for_a_copy() {
        let dir = tempfile::tempdir().unwrap(); // the temporary directory can be written
        let clock = Arc::new(ManualClock::new(1_000_000));
        // The engine's own thread merges nothing, for lack of space.
        let options = DiskOptions { upkeep: false, min_free: 1 << 60, ..DiskOptions::new(dir.path(), clock) };
        let engine = DiskEngine::open(options).unwrap(); // new directory
        let store = engine.handle.ask(ShareStore).await.unwrap(); // nothing is wrong with the disk
        let ((begins, begun), (ends, ended)) = (mpsc::channel(), mpsc::channel::<()>());
        let merging = std::thread::spawn(move || {
            let merge = || {
                let _ = begins.send(());
                let _ = ended.recv();
                Ok(Merged::Nothing)
            };
            store.make_tables(Space::Ready, merge).is_ok()
        });
        begun.recv().unwrap(); // it sends before it waits
        let copies = engine.clone();
        let copying = tokio::spawn(async move { copies.copy().await.map(drop) });
        // It waits for the merge.
        while !dir.path().join("copy").exists() {
            tokio::task::yield_now().await;
        }
        let mut closing = engine.close();
        let early = timeout(Duration::from_millis(300), &mut closing).await;
        assert!(early.is_err(), "the directory was released while the copy was running");
        drop(ends);
        closing.await;
        let copied = copying.await.unwrap(); // it does not panic
        assert!(copied.is_ok(), "the copy is made: {copied:?}");
        assert!(merging.join().unwrap(), "the merge ends well"); // as above
    }
}
