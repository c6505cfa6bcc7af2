//! A wrapper that moves a pool: publishes go to the new store, consumes drain the old one first. Jobs of both
//! are acked, peeked, pumped and counted as one. Knows nothing of what the stores are.
//!
//! Each step is atomic in the store that it touches. A republish whose old job is in the old store touches
//! both: the new job is stored before the old one is forgotten, so nothing is lost in between.
//!
//! **Keys.** A key that a job of the old store has is taken. That is looked up before the new store is asked, so two steps
//! stand in place of one: a job of the old store that is replaced goes after the new one is stored; one that is handed
//! out in between goes all the same. A job that runs in the old store and is replaced keeps its key there, and has it
//! again when the new one is gone. What was kept for a job of the old store is not remembered for a repeat of the publish.
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
//! - touch, release, bury and an ack with a receipt go to the store that handed the job out, which the receipt names.
//! - What changes many jobs (destroy, respawn, delete_dead, respawn_jobs) changes nothing and fails: the oldest jobs are
//!   in the old store. Lists fail, and so does a publish with a key: nobody can say whether it is taken.
//! - A pause or a resume is done in the store that answers, and fails, so that it is repeated.
//!   So fail the figures of the whole pool (queues, stats), by which somebody decides whether the old store
//!   is empty, and the check, since a consumer may get an error now.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering as Atomic};
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep, timeout};

use super::notifier::Notifier;
use super::{
    Consumed, Cursor, DeadLetter, Engine, Held, How, JobList, JobPage, OnConflict, Pause, Placed, Placing,
    Publication, Published, Pumped, QueuePage, QueueSize, QueueView, Quotas, Release, Released, Revival,
    Revived, Stats, Touched,
};
use crate::clock::Millis;
use crate::error::{Error, Result};
use crate::job::{Job, JobId, JobRef, JobState, JobView, NewJob, Reason, Receipt};
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

/// From `old` to `new`.
#[derive(Debug)]
pub struct Migration {
    old: Arc<dyn Engine>,
    new: Arc<dyn Engine>,
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
        let took = Duration::from_millis(self.took.load(Atomic::Relaxed));
        (took * 2).clamp(PATIENCE, MOST_PATIENCE)
    }

    fn answered<T>(&self, asked: Instant, answer: &Result<T>) {
        // A failure says nothing about how long an answer takes.
        let took = answer.as_ref().map_or(Duration::ZERO, |_| asked.elapsed());
        self.took.store(took.as_millis().try_into().unwrap_or(u64::MAX), Atomic::Relaxed);
    }
}

impl Migration {
    /// Drains `old` by consumes, and fills `new` by publishes. In the current runtime.
    pub fn new(old: Arc<dyn Engine>, new: Arc<dyn Engine>) -> Migration {
        Migration {
            old,
            new,
            state: Arc::new(OldState { late: AtomicUsize::new(0), took: AtomicU64::new(0) }),
            tasks: Tasks::new(Failure::default()),
            owed: Arc::new(Semaphore::new(MAX_OWED)),
        }
    }

    /// Consumes from the old store. `None` when it is late.
    async fn consume_old(&self, queues: &QueueList, ttrs: &[Duration]) -> Option<Result<Consumed>> {
        if self.state.late.load(Atomic::SeqCst) > 0 {
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
        self.state.late.fetch_add(1, Atomic::SeqCst);
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

impl Migration {
    /// Publishes into the new store. A key that a job of the old store has counts as taken, unless a job of the new one
    /// has it too.
    async fn publish_with_keys(&self, publication: Publication) -> Result<Published> {
        let replaces = publication.replaces.clone();
        // By place in the publication: jobs of the old store that have the key, and are to stay or to go.
        let (mut stay, mut go) = (HashMap::new(), HashMap::new());
        for (index, placing) in publication.jobs.iter().enumerate() {
            let Some((key, on_conflict)) = &placing.key else { continue };
            let queue = &placing.job.queue;
            let Some(holder) = self.ask_old(self.old.find_key(queue, key)).await? else { continue };
            let goes_first = replaces.as_ref().is_some_and(|old| old.id == holder.id && old.queue == *queue);
            if goes_first || self.new.find_key(queue, key).await?.is_some() {
                continue;
            }
            match on_conflict {
                OnConflict::Fail => return Ok(Published::Conflict { index, id: holder.id }),
                OnConflict::Keep => drop(stay.insert(index, holder)),
                // A running one goes on.
                OnConflict::Replace if holder.state == Some(JobState::Running) => {}
                OnConflict::Replace => drop(go.insert(index, (queue.clone(), key.clone(), holder.id))),
            }
        }
        let count = publication.jobs.len();
        let jobs: Vec<Placing> = publication
            .jobs
            .into_iter()
            .enumerate()
            .filter(|(index, _)| !stay.contains_key(index))
            .map(|(_, placing)| placing)
            .collect();
        let sent = jobs.len();
        let published = if sent == 0 {
            // Nothing is stored, and nothing is remembered.
            if let Some(old) = &replaces {
                self.new.ack(old.clone()).await?;
            }
            Published::Done(Vec::new())
        } else {
            self.new.publish_with(Publication { jobs, ..publication }).await?
        };
        let (placed, replayed) = match published {
            Published::Done(placed) => (placed, false),
            Published::Replay(placed) => (placed, true),
            other => return Ok(other),
        };
        // The first of these publishes met nothing in the old store if this one does not: it only runs empty.
        if replayed && (stay.is_empty() || placed.len() == count) {
            return Ok(Published::Replay(placed));
        }
        if placed.len() != sent {
            return Err(Error::refused("what the first of these publishes met in the old store is gone"));
        }
        let mut placed = placed.into_iter();
        let mut all = Vec::with_capacity(count);
        for index in 0..count {
            all.extend(match stay.get(&index) {
                Some(holder) => Some(Placed { id: holder.id, due_at: holder.due_at, how: How::Duplicate }),
                None => placed.next(),
            });
        }
        if replayed {
            return Ok(Published::Replay(all));
        }
        // What is stored stays, whatever becomes of the rest: an error would make the caller publish it once more.
        for (index, (queue, key, id)) in go {
            if matches!(self.old.cancel_key(&queue, &key).await, Ok(true)) && all[index].how == How::New {
                all[index].how = How::Replaced(id);
            }
        }
        if let Some(old) = replaces {
            self.ack_old(old).await;
        }
        Ok(Published::Done(all))
    }

    /// Acks jobs without a receipt, which may be in either store.
    async fn ack_bare(&self, queue: &Queue, jobs: &[(JobId, Option<Receipt>)]) -> Result<()> {
        let Err(error) = self.ask_old(self.old.ack_many(queue, jobs)).await else {
            return self.new.ack_many(queue, jobs).await.map(drop);
        };
        // A job is in one of the stores.
        let mut all_were_here = true;
        for (id, _) in jobs {
            let job = JobRef { queue: queue.clone(), id: *id };
            all_were_here &= self.new.peek_job(&job).await?.is_some();
        }
        self.new.ack_many(queue, jobs).await?;
        if all_were_here { Ok(()) } else { Err(error) }
    }

    /// A receipt that names the one store, of a job that is in the other, is none that anybody got.
    async fn not_found_or_not_yours<T: Send>(&self, job: &JobRef, in_new: bool, held: Held<T>) -> Held<T> {
        if !matches!(held, Held::NotFound) {
            return held;
        }
        let there =
            if in_new { self.ask_old(self.old.peek_job(job)).await } else { self.new.peek_job(job).await };
        if matches!(there, Ok(Some(_))) { Held::NotYours } else { held }
    }

    /// The next queues of each store. `None` when a cursor is not one of its store.
    async fn next_queues(
        &self,
        namespace: &Namespace,
        limit: usize,
        old: &Part,
        new: &Part,
    ) -> Result<Option<(QueuePage, QueuePage)>> {
        async fn next(
            store: &dyn Engine,
            namespace: &Namespace,
            limit: usize,
            part: &Part,
        ) -> Result<Option<QueuePage>> {
            match part {
                Part::End => Ok(Some(QueuePage::default())),
                Part::Begin => store.list_queues(namespace, limit, None).await,
                Part::At(cursor) => store.list_queues(namespace, limit, Some(cursor.clone())).await,
            }
        }
        let (of_old, of_new) =
            tokio::join!(next(&*self.old, namespace, limit, old), next(&*self.new, namespace, limit, new));
        Ok(of_old?.zip(of_new?))
    }
}

/// A consume hangs in the old store until this is dropped.
struct Late(Arc<OldState>);

impl Drop for Late {
    fn drop(&mut self) {
        self.0.late.fetch_sub(1, Atomic::SeqCst);
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

/// The receipt as its store gave it, and whether that was the new one.
fn unmarked(receipt: Receipt) -> (Receipt, bool) {
    (Receipt { hand_over: receipt.hand_over >> 1, ..receipt }, receipt.hand_over & NEW == NEW)
}

/// The same jobs with a receipt that no hand-over has: an ack tells which of them are there, and acks none.
fn of_nobody(jobs: &[(JobId, Option<Receipt>)]) -> Vec<(JobId, Option<Receipt>)> {
    jobs.iter().map(|(id, _)| (*id, Some(Receipt { hand_over: 0, tries_left: 0 }))).collect()
}

/// What a cursor of a list of jobs begins with: the store that it goes on in.
const IN_OLD: &str = "o";
const IN_NEW: &str = "n";

/// Whether a list goes on in the old store, and where there.
fn store_of(cursor: Option<&Cursor>) -> Option<(bool, Option<Cursor>)> {
    let Some(Cursor(cursor)) = cursor else { return Some((true, None)) };
    let (in_old, rest) = match cursor.strip_prefix(IN_OLD) {
        Some(rest) => (true, rest),
        None => (false, cursor.strip_prefix(IN_NEW)?),
    };
    Some((in_old, (!rest.is_empty()).then(|| Cursor(rest.to_owned()))))
}

/// The same page, whose cursor names its store.
fn in_store(page: JobPage, store: &str) -> JobPage {
    JobPage { cursor: page.cursor.map(|Cursor(cursor)| Cursor(format!("{store}{cursor}"))), ..page }
}

/// Where a list of queues goes on in one store. Both stores list queues in the order of their names.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Begin,
    At(Cursor),
    End,
}

impl Part {
    fn behind(cursor: Option<Cursor>) -> Part {
        cursor.map_or(Part::End, Part::At)
    }

    /// The old store's part and the new one's, as text.
    fn write(old: &Part, new: &Part) -> Cursor {
        let part = |part: &Part| match part {
            Part::Begin => "b".to_owned(),
            Part::End => "e".to_owned(),
            Part::At(Cursor(cursor)) => format!("{:03}{cursor}", cursor.len()),
        };
        Cursor(part(old) + &part(new))
    }

    fn read(cursor: Option<&Cursor>) -> Option<(Part, Part)> {
        fn part(text: &str) -> Option<(Part, &str)> {
            if let Some(rest) = text.strip_prefix('b') {
                return Some((Part::Begin, rest));
            }
            if let Some(rest) = text.strip_prefix('e') {
                return Some((Part::End, rest));
            }
            let (length, rest) = text.split_at_checked(3)?;
            let (cursor, rest) = rest.split_at_checked(length.parse().ok()?)?;
            Some((Part::At(Cursor(cursor.to_owned())), rest))
        }
        let Some(Cursor(cursor)) = cursor else { return Some((Part::Begin, Part::Begin)) };
        let (old, rest) = part(cursor)?;
        let (new, rest) = part(rest)?;
        rest.is_empty().then_some((old, new))
    }
}

/// The pause that ends later.
fn longer(a: Pause, b: Pause) -> Pause {
    Pause { until: a.until.zip(b.until).map(|(a, b)| a.max(b)) }
}

/// The figures of one queue in both stores.
fn together(a: QueueView, b: QueueView) -> QueueView {
    let sum = |a: Option<u64>, b: Option<u64>| Some(a? + b?);
    let age_known = |view: &QueueView| view.ready == Some(0) || view.oldest_ready_age.is_some();
    let age = if age_known(&a) && age_known(&b) { a.oldest_ready_age.max(b.oldest_ready_age) } else { None };
    let paused = match (a.paused, b.paused) {
        (Some(a), Some(b)) => Some(longer(a, b)),
        (a, b) => a.or(b),
    };
    QueueView {
        queue: a.queue,
        ready: sum(a.ready, b.ready),
        delayed: sum(a.delayed, b.delayed),
        running: sum(a.running, b.running),
        dead: sum(a.dead, b.dead),
        oldest_ready_age: age,
        paused,
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

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Engine for Migration {
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

    async fn publish_with(&self, publication: Publication) -> Result<Published> {
        self.publish_with_keys(publication).await
    }

    async fn find_key(&self, queue: &Queue, key: &JobKey) -> Result<Option<JobView>> {
        match self.new.find_key(queue, key).await? {
            Some(job) => Ok(Some(job)),
            None => self.ask_old(self.old.find_key(queue, key)).await,
        }
    }

    async fn cancel_key(&self, queue: &Queue, key: &JobKey) -> Result<bool> {
        Ok(self.new.cancel_key(queue, key).await? || self.old.cancel_key(queue, key).await?)
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

    async fn ack_many(&self, queue: &Queue, jobs: &[(JobId, Option<Receipt>)]) -> Result<Vec<JobId>> {
        let (mut held_old, mut held_new, mut bare) = (Vec::new(), Vec::new(), Vec::new());
        for (id, receipt) in jobs {
            match receipt.map(unmarked) {
                None => bare.push((*id, None)),
                Some((receipt, true)) => held_new.push((*id, Some(receipt))),
                Some((receipt, false)) => held_old.push((*id, Some(receipt))),
            }
        }
        let mut stale = Vec::new();
        if !bare.is_empty() {
            self.ack_bare(queue, &bare).await?;
        }
        if !held_new.is_empty() {
            stale.extend(self.new.ack_many(queue, &held_new).await?);
            stale.extend(
                self.ask_old(self.old.ack_many(queue, &of_nobody(&held_new))).await.unwrap_or_default(),
            );
        }
        if !held_old.is_empty() {
            stale.extend(self.old.ack_many(queue, &held_old).await?);
            stale.extend(self.new.ack_many(queue, &of_nobody(&held_old)).await?);
        }
        Ok(jobs.iter().map(|(id, _)| *id).filter(|id| stale.contains(id)).collect())
    }

    async fn touch(&self, job: &JobRef, receipt: Receipt, ttr: Duration) -> Result<Held<Touched>> {
        let (receipt, in_new) = unmarked(receipt);
        let (touched, mark) = if in_new {
            (self.new.touch(job, receipt, ttr).await?, NEW)
        } else {
            (self.old.touch(job, receipt, ttr).await?, 0)
        };
        Ok(match touched {
            Held::Done(Touched { receipt, until }) => {
                let receipt = Receipt { hand_over: (receipt.hand_over << 1) | mark, ..receipt };
                Held::Done(Touched { receipt, until })
            }
            other => self.not_found_or_not_yours(job, in_new, other).await,
        })
    }

    async fn release(&self, job: &JobRef, receipt: Receipt, release: Release) -> Result<Held<Released>> {
        let (receipt, in_new) = unmarked(receipt);
        let held = if in_new {
            self.new.release(job, receipt, release).await?
        } else {
            self.old.release(job, receipt, release).await?
        };
        Ok(self.not_found_or_not_yours(job, in_new, held).await)
    }

    async fn bury(&self, job: &JobRef, receipt: Receipt, reason: Option<Reason>) -> Result<Held<()>> {
        let (receipt, in_new) = unmarked(receipt);
        let held = if in_new {
            self.new.bury(job, receipt, reason).await?
        } else {
            self.old.bury(job, receipt, reason).await?
        };
        Ok(self.not_found_or_not_yours(job, in_new, held).await)
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

    async fn inspect(&self, job: &JobRef) -> Result<Option<JobView>> {
        let old = self.ask_old(self.old.inspect(job)).await;
        if let Ok(Some(_)) = old {
            return old;
        }
        Ok(match self.new.inspect(job).await? {
            Some(job) => Some(job),
            None => old?,
        })
    }

    async fn list_jobs(&self, queue: &Queue, list: JobList) -> Result<Option<JobPage>> {
        let Some((in_old, inner)) = store_of(list.cursor.as_ref()) else { return Ok(None) };
        if !in_old {
            let list = JobList { cursor: inner, ..list };
            return Ok(self.new.list_jobs(queue, list).await?.map(|page| in_store(page, IN_NEW)));
        }
        let from_old = JobList { cursor: inner, ..list.clone() };
        let Some(page) = self.ask_old(self.old.list_jobs(queue, from_old)).await? else { return Ok(None) };
        if page.cursor.is_some() {
            return Ok(Some(in_store(page, IN_OLD)));
        }
        let room = list.limit.saturating_sub(page.jobs.len());
        if room == 0 {
            return Ok(Some(JobPage { cursor: Some(Cursor(IN_NEW.into())), ..page }));
        }
        let from_new = JobList { cursor: None, limit: room, ..list };
        let Some(rest) = self.new.list_jobs(queue, from_new).await? else { return Ok(None) };
        let mut rest = in_store(rest, IN_NEW);
        rest.scanned += page.scanned;
        rest.jobs.splice(..0, page.jobs);
        Ok(Some(rest))
    }

    async fn size(&self, queue: &Queue) -> Result<u64> {
        let (old, new) = self.ask_both(self.old.size(queue), self.new.size(queue)).await?;
        Ok(old.unwrap_or(0) + new.unwrap_or(0))
    }

    async fn destroy(&self, queue: &Queue) -> Result<()> {
        self.old.destroy(queue).await?;
        // Not an error that says that nothing has happened.
        self.new.destroy(queue).await.map_err(Error::away)
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

    async fn respawn_jobs(&self, queue: &Queue, jobs: &[JobId], revival: Revival) -> Result<Vec<Revived>> {
        let mut revived = self.old.respawn_jobs(queue, jobs, revival).await?;
        let missing: Vec<usize> = (0..jobs.len()).filter(|n| revived[*n] == Revived::NotFound).collect();
        if !missing.is_empty() {
            let ids: Vec<JobId> = missing.iter().map(|n| jobs[*n]).collect();
            let old = (jobs.len() - ids.len()) as u64;
            let new = self.new.respawn_jobs(queue, &ids, revival).await.map_err(|e| e.after(old))?;
            for (n, new) in missing.into_iter().zip(new) {
                revived[n] = new;
            }
        }
        Ok(revived)
    }

    async fn delete_dead(&self, queue: &Queue, limit: u64) -> Result<u64> {
        let old = self.old.delete_dead(queue, limit).await?;
        and_rest(old, limit, async |rest| self.new.delete_dead(queue, rest).await).await
    }

    async fn pause(&self, queue: &Queue, time: Option<Duration>) -> Result<Pause> {
        let (old, new) = tokio::join!(self.old.pause(queue, time), self.new.pause(queue, time));
        Ok(longer(old?, new?))
    }

    async fn resume(&self, queue: &Queue) -> Result<()> {
        let (old, new) = tokio::join!(self.old.resume(queue), self.new.resume(queue));
        old.and(new)
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

    async fn list_queues(
        &self,
        namespace: &Namespace,
        limit: usize,
        cursor: Option<Cursor>,
    ) -> Result<Option<QueuePage>> {
        let Some((mut old, mut new)) = Part::read(cursor.as_ref()) else { return Ok(None) };
        let mut page = QueuePage::default();
        // A whole page of each, if both together are one.
        let Some(both) = self.next_queues(namespace, limit, &old, &new).await? else { return Ok(None) };
        let (of_old, of_new) = both;
        let names: BTreeSet<&Queue> =
            of_old.queues.iter().chain(&of_new.queues).map(|view| &view.queue).collect();
        if of_old.cursor.is_none() && of_new.cursor.is_none() && names.len() <= limit {
            let mut all: BTreeMap<Queue, QueueView> = BTreeMap::new();
            for view in of_old.queues.into_iter().chain(of_new.queues) {
                let view = match all.remove(&view.queue) {
                    Some(other) => together(other, view),
                    None => view,
                };
                all.insert(view.queue.clone(), view);
            }
            page.queues = all.into_values().collect();
            return Ok(Some(page));
        }
        // One by one, since a cursor of a store stands behind what it has shown.
        for _ in 0..2 * limit {
            let Some((of_old, of_new)) = self.next_queues(namespace, 1, &old, &new).await? else {
                return Ok(None);
            };
            let (first_old, first_new) = (of_old.queues.first(), of_new.queues.first());
            // A page without a queue may be in the middle of a list.
            let waits = |part: &Part, of: &QueuePage| {
                *part != Part::End && of.queues.is_empty() && of.cursor.is_some()
            };
            if waits(&old, &of_old) || waits(&new, &of_new) {
                if waits(&old, &of_old) {
                    old = Part::behind(of_old.cursor);
                }
                if waits(&new, &of_new) {
                    new = Part::behind(of_new.cursor);
                }
                continue;
            }
            let from_old = match (first_old, first_new) {
                (None, None) => return Ok(Some(page)),
                (Some(a), Some(b)) => a.queue.cmp(&b.queue),
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
            };
            if from_old.is_le() {
                old = Part::behind(of_old.cursor);
            }
            if from_old.is_ge() {
                new = Part::behind(of_new.cursor);
            }
            let (a, b) = (of_old.queues.into_iter().next(), of_new.queues.into_iter().next());
            page.queues.extend(match (from_old, a, b) {
                (Ordering::Equal, Some(a), Some(b)) => Some(together(a, b)),
                (Ordering::Less, a, _) => a,
                (_, _, b) => b,
            });
            if page.queues.len() == limit {
                break;
            }
        }
        page.cursor = (old != Part::End || new != Part::End).then(|| Part::write(&old, &new));
        Ok(Some(page))
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

    /// Of the new store, to which publishes go.
    async fn set_quotas(&self, quotas: &Quotas) -> Result<()> {
        self.new.set_quotas(quotas).await
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
