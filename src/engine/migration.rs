//! A wrapper that moves a pool: publishes go to the new store, consumes drain the old one first. Jobs of both
//! are acked, peeked, pumped and counted as one. Knows nothing of what the stores are.
//!
//! Each step is atomic in the store that it touches. A republish whose old job is in the old store touches
//! both: the new job is stored before the old one is forgotten, so nothing is lost in between.
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
//! - ack succeeds when the new store had the job, and fails otherwise.
//! - republish succeeds once the new job is stored. The old one is acked as soon as the old store answers again.
//! - What changes many jobs (destroy, respawn, delete_dead) changes nothing and fails: the oldest jobs are in the
//!   old store. So fail the figures of the whole pool (queues, stats), by which somebody decides whether the old store
//!   is empty, and the check, since a consumer may get an error now.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep, timeout};

use super::notifier::Notifier;
use super::{
    Consumed, Cursor, DeadLetter, Engine, Held, JobList, JobPage, Pause, Publication, Published, Pumped,
    QueuePage, QueueSize, Release, Released, Revival, Revived, Stats, Touched,
};
use crate::clock::Millis;
use crate::error::{Error, Result};
use crate::job::{Job, JobId, JobRef, JobView, NewJob, Reason, Receipt};
use crate::name::{JobKey, Namespace, Queue, QueueList};
use crate::process::tasks::{Failure, Tasks};

/// How long the old store may hold up what the new one could answer.
pub const PATIENCE: Duration = Duration::from_millis(250);
/// The same for an old store whose last consume took long. Without it a store that is slow all the time would
/// never be drained: what it hands out would be given back each time. A consume that finds nothing in the new store
/// fails after this time too.
const MOST_PATIENCE: Duration = Duration::from_secs(1);
/// How often a consume looks into the new store while the old one hangs.
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// How many acks may be owed to an old store that is away. The jobs of others come back after their ttr.
const MAX_OWED: usize = 1000;
/// How often an owed ack is tried.
const TRY_AGAIN: Duration = Duration::from_secs(1);

/// From `Old` to `New`.
#[derive(Debug)]
pub struct Migration<Old, New> {
    old: Arc<Old>,
    new: New,
    state: Arc<OldState>,
    /// What goes on in the old store although nobody waits for it.
    tasks: Tasks,
    /// A permit for each ack that may be owed.
    owed: Arc<Semaphore>,
}

/// How the old store does.
#[derive(Debug)]
struct OldState {
    /// How many consumes hang in it.
    late: AtomicUsize,
    /// How long the last consume that it answered took, in milliseconds.
    took: AtomicU64,
}

impl OldState {
    fn patience(&self) -> Duration {
        let took = Duration::from_millis(self.took.load(Ordering::Relaxed));
        (took * 2).clamp(PATIENCE, MOST_PATIENCE)
    }

    fn answered<T>(&self, asked: Instant, answer: &Result<T>) {
        // A failure says nothing about how long an answer takes.
        let took = answer.as_ref().map_or(Duration::ZERO, |_| asked.elapsed());
        self.took.store(took.as_millis().try_into().unwrap_or(u64::MAX), Ordering::Relaxed);
    }
}

impl<Old: Engine, New: Engine> Migration<Old, New> {
    /// Drains `old` by consumes, and fills `new` by publishes. In the current runtime.
    pub fn new(old: Old, new: New) -> Migration<Old, New> {
        Migration {
            old: Arc::new(old),
            new,
            state: Arc::new(OldState { late: AtomicUsize::new(0), took: AtomicU64::new(0) }),
            tasks: Tasks::new(Failure::default()),
            owed: Arc::new(Semaphore::new(MAX_OWED)),
        }
    }

    /// Consumes from the old store. `None` when it is late.
    async fn consume_old(&self, queues: &QueueList, ttrs: &[Duration]) -> Option<Result<Consumed>> {
        if self.state.late.load(Ordering::SeqCst) > 0 {
            return None;
        }
        let (old, queues, ttrs) = (self.old.clone(), queues.clone(), ttrs.to_vec());
        let asked = Instant::now();
        // Not dropped when it is late: it may have taken jobs.
        let mut call = Box::pin(async move { old.consume(&queues, &ttrs).await });
        if let Ok(answer) = timeout(self.state.patience(), &mut call).await {
            self.state.answered(asked, &answer);
            return Some(answer);
        }
        self.state.late.fetch_add(1, Ordering::SeqCst);
        let (old, state) = (self.old.clone(), Late(self.state.clone()));
        self.tasks.spawn(async move {
            let answer = call.await;
            state.0.answered(asked, &answer);
            // Nobody asks the old store before they are there again.
            if let Ok(consumed) = answer
                && !consumed.jobs.is_empty()
            {
                let count = consumed.jobs.len();
                if let Err(error) = old.give_back(consumed.jobs).await {
                    tracing::warn!(
                        %error,
                        count,
                        "jobs that an old store handed out too late come back after their ttr"
                    );
                }
            }
        });
        None
    }

    /// Acks in the old store, now or later.
    async fn ack_old(&self, job: JobRef) {
        let Err(error) = self.ask_old(self.old.ack(job.clone())).await else { return };
        let Ok(permit) = self.owed.clone().try_acquire_owned() else {
            tracing::debug!(%error, "an ack of a republished job is lost; the job comes back after its ttr");
            return;
        };
        let (old, stop) = (self.old.clone(), self.tasks.stopping().clone());
        self.tasks.spawn(async move {
            let _permit = permit;
            let acked = async {
                while let Err(error) = old.ack(job.clone()).await {
                    if matches!(error, Error::Closed) {
                        return;
                    }
                    sleep(TRY_AGAIN).await;
                }
            };
            stop.run_until_cancelled(acked).await;
        });
    }

    /// Asks the old store for what may be asked again: nothing is lost with an answer that comes too late.
    async fn ask_old<T>(&self, call: impl Future<Output = Result<T>>) -> Result<T> {
        timeout(self.state.patience(), call).await.unwrap_or_else(|_| Err(late()))
    }

    /// Asks both for what both have a part of.
    async fn ask_both<T>(
        &self,
        old: impl Future<Output = Result<T>>,
        new: impl Future<Output = Result<T>>,
    ) -> Result<(Option<T>, Option<T>)> {
        match tokio::join!(self.ask_old(old), new) {
            (Err(error), Err(_)) => Err(error),
            (old, new) => Ok((old.ok(), new.ok())),
        }
    }
}

/// A consume hangs in the old store until this is dropped.
struct Late(Arc<OldState>);

impl Drop for Late {
    fn drop(&mut self) {
        self.0.late.fetch_sub(1, Ordering::SeqCst);
    }
}

fn late() -> Error {
    Error::away("the store that the pool moves from does not answer")
}

/// Marks which store handed a job out: the lowest bit of its receipt. Engines give receipts of 63 bits.
const NEW: u64 = 1;

fn marked(mut jobs: Vec<Job>, mark: u64) -> Vec<Job> {
    for job in &mut jobs {
        job.receipt = (job.receipt << 1) | mark;
    }
    jobs
}

/// How many jobs two steps did together. What the first has done is done, also when the second fails: a caller
/// that is told of an error would ask for all of it once more.
async fn and_rest(done: u64, limit: u64, rest: impl AsyncFnOnce(u64) -> Result<u64>) -> Result<u64> {
    if done >= limit {
        return Ok(done);
    }
    match rest(limit - done).await {
        Ok(more) => Ok(done + more),
        Err(_) if done > 0 => Ok(done),
        Err(error) => Err(error),
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl<Old: Engine, New: Engine> Engine for Migration<Old, New> {
    fn now(&self) -> Millis {
        self.new.now()
    }

    async fn publish(&self, jobs: Vec<NewJob>) -> Result<()> {
        self.new.publish(jobs).await
    }

    async fn republish(&self, old: JobRef, new: NewJob) -> Result<()> {
        // The new store forgets the job if it has it, in one step with the publish.
        self.new.republish(old.clone(), new).await?;
        // From here on an error would make the caller publish the new job once more.
        self.ack_old(old).await;
        Ok(())
    }

    async fn publish_with(&self, _: Publication) -> Result<Published> {
        Err(Error::refused("not built yet"))
    }

    async fn find_key(&self, _: &Queue, _: &JobKey) -> Result<Option<JobView>> {
        Err(Error::refused("not built yet"))
    }

    async fn cancel_key(&self, _: &Queue, _: &JobKey) -> Result<bool> {
        Err(Error::refused("not built yet"))
    }

    async fn consume(&self, queues: &QueueList, ttrs: &[Duration]) -> Result<Consumed> {
        let give_up = Instant::now() + MOST_PATIENCE;
        loop {
            let old = self.consume_old(queues, ttrs).await;
            let hangs = old.is_none();
            let (mut consumed, trouble) = match old.unwrap_or_else(|| Err(late())) {
                Ok(consumed) => (Consumed { jobs: marked(consumed.jobs, 0), ..consumed }, None),
                Err(error) => (Consumed::default(), Some(error)),
            };
            // The new store serves whom the old one left without a job.
            let rest = ttrs.get(consumed.jobs.len()..).unwrap_or_default();
            if rest.is_empty() || consumed.more {
                return Ok(consumed);
            }
            match self.new.consume(queues, rest).await {
                Ok(more) => {
                    consumed.more = more.more;
                    consumed.jobs.extend(marked(more.jobs, NEW));
                }
                // What the old store handed out is on its way; the new one's trouble shows at the next call.
                Err(_) if !consumed.jobs.is_empty() => {}
                Err(error) => return Err(error),
            }
            match trouble {
                Some(error) if consumed.jobs.is_empty() && !consumed.more => {
                    if !hangs || Instant::now() >= give_up {
                        // The old store may hold jobs: nobody can say that there is none.
                        return Err(error);
                    }
                    sleep(LOOK_AGAIN).await;
                }
                _ => return Ok(consumed),
            }
        }
    }

    async fn give_back(&self, jobs: Vec<Job>) -> Result<()> {
        let (mut to_old, mut to_new) = (Vec::new(), Vec::new());
        for mut job in jobs {
            let from_new = job.receipt & NEW == NEW;
            job.receipt >>= 1;
            if from_new { to_new.push(job) } else { to_old.push(job) }
        }
        let old = async { if to_old.is_empty() { Ok(()) } else { self.old.give_back(to_old).await } };
        let new = async { if to_new.is_empty() { Ok(()) } else { self.new.give_back(to_new).await } };
        let (old, new) = tokio::join!(old, new);
        old.and(new)
    }

    async fn ack(&self, job: JobRef) -> Result<()> {
        // Either may hold it: one that is away must not keep the other from forgetting it.
        let mut in_old = self.old.ack(job.clone());
        let old = match timeout(self.state.patience(), &mut in_old).await {
            Ok(Ok(())) => return self.new.ack(job).await,
            Ok(Err(error)) => Some(error),
            Err(_) => None,
        };
        let was_here = self.new.peek_job(&job).await?.is_some();
        self.new.ack(job).await?;
        match old {
            // A job is in one of the stores.
            _ if was_here => Ok(()),
            Some(error) => Err(error),
            None => in_old.await,
        }
    }

    async fn ack_many(&self, _: &Queue, _: &[(JobId, Option<Receipt>)]) -> Result<Vec<JobId>> {
        Err(Error::refused("not built yet"))
    }

    async fn touch(&self, _: &JobRef, _: Receipt, _: Duration) -> Result<Held<Touched>> {
        Err(Error::refused("not built yet"))
    }

    async fn release(&self, _: &JobRef, _: Receipt, _: Release) -> Result<Held<Released>> {
        Err(Error::refused("not built yet"))
    }

    async fn bury(&self, _: &JobRef, _: Receipt, _: Option<Reason>) -> Result<Held<()>> {
        Err(Error::refused("not built yet"))
    }

    async fn peek(&self, queue: &Queue) -> Result<Option<Job>> {
        let old = self.ask_old(self.old.peek(queue)).await;
        if let Ok(Some(_)) = old {
            return old;
        }
        Ok(match self.new.peek(queue).await? {
            Some(job) => Some(job),
            None => old?,
        })
    }

    async fn peek_job(&self, job: &JobRef) -> Result<Option<Job>> {
        let old = self.ask_old(self.old.peek_job(job)).await;
        if let Ok(Some(_)) = old {
            return old;
        }
        Ok(match self.new.peek_job(job).await? {
            Some(job) => Some(job),
            None => old?,
        })
    }

    async fn inspect(&self, _: &JobRef) -> Result<Option<JobView>> {
        Err(Error::refused("not built yet"))
    }

    async fn list_jobs(&self, _: &Queue, _: JobList) -> Result<Option<JobPage>> {
        Err(Error::refused("not built yet"))
    }

    async fn size(&self, queue: &Queue) -> Result<u64> {
        let (old, new) = self.ask_both(self.old.size(queue), self.new.size(queue)).await?;
        Ok(old.unwrap_or(0) + new.unwrap_or(0))
    }

    async fn destroy(&self, queue: &Queue) -> Result<()> {
        self.old.destroy(queue).await?;
        self.new.destroy(queue).await
    }

    async fn dead_letter(&self, queue: &Queue) -> Result<DeadLetter> {
        let both = self.ask_both(self.old.dead_letter(queue), self.new.dead_letter(queue)).await?;
        let [old, new] = <[_; 2]>::from(both).map(|dead| dead.unwrap_or(DeadLetter { size: 0, head: None }));
        Ok(DeadLetter { size: old.size + new.size, head: old.head.or(new.head) })
    }

    async fn respawn(&self, queue: &Queue, limit: u64, ttl: Option<Duration>) -> Result<u64> {
        let old = self.old.respawn(queue, limit, ttl).await?;
        and_rest(old, limit, async |rest| self.new.respawn(queue, rest, ttl).await).await
    }

    async fn respawn_jobs(&self, _: &Queue, _: &[JobId], _: Revival) -> Result<Vec<Revived>> {
        Err(Error::refused("not built yet"))
    }

    async fn delete_dead(&self, queue: &Queue, limit: u64) -> Result<u64> {
        let old = self.old.delete_dead(queue, limit).await?;
        and_rest(old, limit, async |rest| self.new.delete_dead(queue, rest).await).await
    }

    async fn pause(&self, _: &Queue, _: Option<Duration>) -> Result<Pause> {
        Err(Error::refused("not built yet"))
    }

    async fn resume(&self, _: &Queue) -> Result<()> {
        Err(Error::refused("not built yet"))
    }

    async fn pump(&self, limit: usize) -> Result<Pumped> {
        let old = self.old.pump(limit).await;
        let moved = old.as_ref().map_or(0, |old| old.moved);
        if moved >= limit {
            return Ok(Pumped { moved, next: Duration::ZERO });
        }
        // The trouble of the one shows when the other has nothing more to move.
        match (old, self.new.pump(limit - moved).await) {
            (Ok(old), Ok(new)) => Ok(Pumped { moved: moved + new.moved, next: old.next.min(new.next) }),
            (Ok(one), Err(_)) | (Err(_), Ok(one)) if one.moved > 0 => {
                Ok(Pumped { next: Duration::ZERO, ..one })
            }
            (Err(error), _) | (_, Err(error)) => Err(error),
        }
    }

    async fn due_earlier(&self) {
        tokio::select! {
            () = self.old.due_earlier() => {}
            () = self.new.due_earlier() => {}
        }
    }

    async fn queues(&self) -> Result<Vec<Queue>> {
        let mut queues = self.old.queues().await?;
        queues.extend(self.new.queues().await?);
        queues.sort_unstable();
        queues.dedup();
        Ok(queues)
    }

    async fn list_queues(&self, _: &Namespace, _: usize, _: Option<Cursor>) -> Result<Option<QueuePage>> {
        Err(Error::refused("not built yet"))
    }

    async fn stats(&self) -> Result<Stats> {
        let (old, new) = (self.old.stats().await?, self.new.stats().await?);
        let mut queues: BTreeMap<Queue, (u64, u64)> = BTreeMap::new();
        for size in old.queues.into_iter().chain(new.queues) {
            let (ready, dead) = queues.entry(size.queue).or_default();
            (*ready, *dead) = (*ready + size.ready, *dead + size.dead);
        }
        let queues =
            queues.into_iter().map(|(queue, (ready, dead))| QueueSize { queue, ready, dead }).collect();
        // The new pool's own figures are scraped under its own name; these are the old one's.
        Ok(Stats { timers: old.timers + new.timers, queues, gauges: old.gauges })
    }

    fn attach(&self, notifier: Weak<dyn Notifier>) {
        self.old.attach(notifier.clone());
        self.new.attach(notifier);
    }

    fn watch(&self, queue: &Queue) {
        self.old.watch(queue);
        self.new.watch(queue);
    }

    async fn check(&self) -> Result<()> {
        self.old.check().await?;
        self.new.check().await
    }

    async fn close(&self) {
        self.tasks.stop();
        self.old.close().await;
        self.new.close().await;
    }
}
