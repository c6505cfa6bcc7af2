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
//! - A queue that is paused in one store is paused in both. Pauses are copied before the first job is handed out, and
//!   from then on when one of the stores has another pause or resume, whoever has set it. Servers that look at the same
//!   moment as somebody pauses and at once resumes may set that pause again.
//! - A publish that is safe to repeat is looked up in both stores. The new one remembers what was found in the old one.
//!
//! **Keys.** A key that a job of the old store has is taken. That is looked up before the new store is asked, so two steps
//! stand in place of one: a job of the old store that is replaced goes after the new one is stored; one that is handed
//! out in between goes all the same. A job that runs in the old store and is replaced keeps its key there, and has it
//! again when the new one is gone.
//!
//! **Order.** Of each queue the old store's jobs go first. Of a list, the first queue's jobs go first, whichever store has
//! them: when the old store hands out jobs of a later queue, the new one is asked for jobs of those before it, and if it
//! has some, the old store gets its jobs back. A list of jobs shows those of the old store first.
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
//! - A pause or a resume is done in the store that answers, and fails. The other one gets it when it answers again.
//!   A pause that one store refuses, since too many queues are paused there, is done in neither.
//!   So fail the figures of the whole pool (stats), by which somebody decides whether the old store
//!   is empty, and the check, since a consumer may get an error now.
//!
//! Where the new store alone can give no answer, an old store that hangs is waited for as long as its own calls last: touch,
//! release and the ack of one job without a receipt that is not in the new store, the cancel of a key, what changes many
//! jobs, pause, resume, the figures of the whole pool, and the check. Other acks fail after the short patience.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::{RwLock, Semaphore};
use tokio::time::{Instant, sleep, timeout};

use super::notifier::Notifier;
use super::{
    By, Consumed, Cursor, Detail, Engine, Held, How, JobList, JobPage, OnConflict, Once, Pause, Pausing,
    Placed, Placing, Publication, Published, Pumped, QueuePage, QueueSize, QueueView, Quotas, Release,
    Released, Respawn, Respawned, Revived, Size, SizeOf, Stats, Touched,
};
use crate::clock::Millis;
use crate::error::{Error, Result};
use crate::job::{Job, JobId, JobRef, JobState, JobView, Receipt};
use crate::name::{JobKey, Namespace, Queue, QueueList, QueueName};
use crate::process::tasks::{Failure, Tasks};

/// How long the old store may hold up what the new one could answer.
pub const PATIENCE: Duration = Duration::from_millis(250);
/// The same for an old store whose last consume took long. Without it a store that is slow all the time would
/// never be drained: what it hands out would be given back each time. A consume that finds nothing in the new store
/// fails after this time too.
const MOST_PATIENCE: Duration = Duration::from_secs(1);
/// How often a consume looks into the new store while the old one hangs, and how soon a pump asks a store that was away
/// again.
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// How many acks may be owed to an old store that is away. The jobs of others come back after their ttr.
const MAX_OWED: usize = 1000;
/// How often both stores are asked for pauses. Two looks and two answers are less than the second within which a pause
/// holds everywhere.
const LOOK_FOR_PAUSES: Duration = Duration::from_millis(400);
/// How far apart the ends of two pauses may be that count as the same: the stores' clocks are known to the millisecond.
const ALIKE: Duration = Duration::from_millis(250);
/// How many pauses are copied at the same time.
const AT_A_TIME: usize = 64;
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
    /// Shared by pauses and resumes, and taken alone to make the stores alike.
    pausing: Arc<RwLock<Seen>>,
}

/// The pauses of the old store and of the new one, as they were when both were last looked at.
type Seen = [BTreeMap<Queue, Pause>; 2];

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

impl Migration {
    /// Drains `old` by consumes, and fills `new` by publishes, once a queue that is paused in one is paused in both. In the
    /// current runtime.
    pub async fn start(old: Arc<dyn Engine>, new: Arc<dyn Engine>) -> Result<Migration> {
        let (tasks, mut seen) = (Tasks::new(Failure::default()), Seen::default());
        make_alike(&tasks, [&old, &new], &mut seen).await?;
        let migration = Migration {
            old,
            new,
            state: Arc::new(OldState { late: AtomicUsize::new(0), took: AtomicU64::new(0) }),
            tasks: tasks.clone(),
            owed: Arc::new(Semaphore::new(MAX_OWED)),
            pausing: Arc::new(RwLock::new(seen)),
        };
        let (old, new, pausing) = (migration.old.clone(), migration.new.clone(), migration.pausing.clone());
        migration.tasks.clone().spawn(async move {
            let stop = tasks.stopping().clone();
            let watch = async {
                loop {
                    sleep(LOOK_FOR_PAUSES).await;
                    let look = async { make_alike(&tasks, [&old, &new], &mut *pausing.write().await).await };
                    // What is away or late is looked at again.
                    if let Ok(Err(Error::Closed)) = timeout(MOST_PATIENCE, look).await {
                        return;
                    }
                }
            };
            stop.run_until_cancelled(watch).await;
        });
        Ok(migration)
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
        let (old, state) = (self.old.clone(), Late::new(&self.state));
        self.tasks.spawn(async move {
            let answer = call.await;
            state.0.answered(asked, &answer);
            // Nobody asks the old store before they are there again.
            if let Ok(consumed) = answer {
                give_back(&*old, consumed.jobs).await;
            }
        });
        None
    }

    /// Gives jobs back to the old store. One that hangs is waited for no longer than by a consume, and no consume asks it
    /// before they are there again.
    async fn give_back_old(&self, jobs: Vec<Job>) {
        if jobs.is_empty() {
            return;
        }
        let old = self.old.clone();
        let mut call = Box::pin(async move { give_back(&*old, jobs).await });
        let hangs = self.state.late.load(Ordering::SeqCst) > 0;
        let patience = if hangs { Duration::ZERO } else { self.state.patience() };
        if timeout(patience, &mut call).await.is_err() {
            let late = Late::new(&self.state);
            self.tasks.spawn(async move {
                call.await;
                drop(late);
            });
        }
    }

    /// What a consume of the old store has brought, and the place in the list from which on the new store was not asked
    /// yet. Where the new store has jobs of an earlier queue, these are handed out, and the old store's go back.
    async fn in_order(&self, queues: &QueueList, ttrs: &[Duration], from_old: Consumed) -> (Consumed, usize) {
        let Consumed { mut jobs, more } = from_old;
        let (mut taken, mut seen) = (0, 0);
        while let Some(job) = jobs.get(taken) {
            let (queue, names) = (job.queue.name.clone(), &queues.names()[seen..]);
            let at = seen + names.iter().position(|name| *name == queue).unwrap_or(0);
            if let Some(earlier) = part(queues, seen..at) {
                match self.new.consume(&earlier, &ttrs[taken..]).await {
                    Ok(Consumed { jobs: none, more: false }) if none.is_empty() => {}
                    Ok(found) => {
                        self.give_back_old(jobs.split_off(taken)).await;
                        jobs.extend(from_new(found.jobs));
                        return (Consumed { jobs, more: true }, at);
                    }
                    // What the old store handed out is on its way; the new one's trouble shows at the next call.
                    Err(_) => return (Consumed { jobs, more: true }, at),
                }
            }
            seen = at;
            taken += jobs[taken..].iter().take_while(|job| job.queue.name == queue).count();
        }
        (Consumed { jobs, more }, seen)
    }

    /// Acks in the old store, all at the same time, now or later.
    async fn ack_old(&self, jobs: Vec<JobRef>) {
        let patience = self.state.patience();
        let acks = jobs.into_iter().map(|job| {
            let old = self.old.clone();
            self.tasks.spawn(async move {
                let acked = timeout(patience, old.ack(&job.queue, &[(job.id, None)])).await;
                (job, acked.unwrap_or_else(|_| Err(late())))
            })
        });
        for ack in acks.collect::<Vec<_>>() {
            if let Ok((job, Err(error))) = ack.await {
                self.owe(job, &error);
            }
        }
    }

    /// Acks in the old store later.
    fn owe(&self, job: JobRef, error: &Error) {
        let Ok(permit) = self.owed.clone().try_acquire_owned() else {
            tracing::debug!(%error, "an ack of a republished job is lost; the job comes back after its ttr");
            return;
        };
        let (old, stop) = (self.old.clone(), self.tasks.stopping().clone());
        self.tasks.spawn(async move {
            let _permit = permit;
            let acked = async {
                while let Err(error) = old.ack(&job.queue, &[(job.id, None)]).await {
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

    /// What the old store has, or else the new one.
    async fn first<T>(
        &self,
        old: impl Future<Output = Result<Option<T>>>,
        new: impl Future<Output = Result<Option<T>>>,
    ) -> Result<Option<T>> {
        let old = self.ask_old(old).await;
        if let Ok(Some(_)) = old {
            return old;
        }
        Ok(match new.await? {
            Some(job) => Some(job),
            None => old?,
        })
    }

    /// Whether the new store has this job.
    async fn has(&self, queue: &Queue, by: By<'_>) -> Result<bool> {
        Ok(self.new.inspect(queue, by, Detail::Stored).await?.is_some())
    }

    /// Whether the new store has all of these jobs. Looks no further than to the first that it has not.
    async fn has_all(&self, queue: &Queue, jobs: &[(JobId, Option<Receipt>)]) -> Result<bool> {
        for (id, _) in jobs {
            if !self.has(queue, By::Id(*id)).await? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// What the new store has, or else the old one.
    async fn new_first<T>(
        &self,
        old: impl Future<Output = Result<Option<T>>>,
        new: impl Future<Output = Result<Option<T>>>,
    ) -> Result<Option<T>> {
        match new.await? {
            Some(found) => Ok(Some(found)),
            None => self.ask_old(old).await,
        }
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
    /// A step of a holder. The receipt is the same whoever asks, before the move and after it, so both stores are asked:
    /// the one that has the job answers, and the other knows no such job.
    async fn held<T>(
        &self,
        old: impl Future<Output = Result<Held<T>>>,
        new: impl Future<Output = Result<Held<T>>>,
    ) -> Result<Held<T>> {
        let (mut old, mut new) = (pin!(old), pin!(new));
        let (first, of_old) = tokio::select! {
            first = &mut old => (first, true),
            first = &mut new => (first, false),
        };
        if let Ok(Held::Done(_) | Held::NotYours) = first {
            return first;
        }
        match if of_old { new.await } else { old.await } {
            Ok(Held::NotFound) => first,
            other => other,
        }
    }
}

/// A call hangs in the old store until this is dropped.
struct Late(Arc<OldState>);

impl Late {
    fn new(state: &Arc<OldState>) -> Late {
        state.late.fetch_add(1, Ordering::SeqCst);
        Late(state.clone())
    }
}

impl Drop for Late {
    fn drop(&mut self) {
        self.0.late.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Gives jobs back to the old store.
async fn give_back(old: &dyn Engine, jobs: Vec<Job>) {
    let count = jobs.len();
    if count > 0
        && let Err(error) = old.give_back(jobs).await
    {
        tracing::warn!(%error, count, "jobs of an old store that nobody got come back after their ttr");
    }
}

fn late() -> Error {
    Error::away("the store that the pool moves from does not answer")
}

/// A part of a list, unless it is empty.
fn part(queues: &QueueList, range: Range<usize>) -> Option<QueueList> {
    QueueList::new(queues.namespace().clone(), queues.names()[range].iter().cloned())
}

/// Marks which store has handed the jobs out, for their way back.
fn from_new(mut jobs: Vec<Job>) -> Vec<Job> {
    jobs.iter_mut().for_each(|job| job.receipt |= Job::FROM_NEW);
    jobs
}

/// How long a queue is paused still: no time when it is not.
fn left(store: &dyn Engine, pause: Option<&Pause>) -> Duration {
    let Some(Pause { until }) = pause else { return Duration::ZERO };
    until.map_or(Duration::MAX, |until| Duration::from_millis(until.saturating_sub(store.now())))
}

/// Makes each pause or resume that one of the stores has seen since the last look hold in the other one too. Servers that
/// know one of the stores alone pause and resume there. What differs for longer stays as it is, and so does what one store
/// refuses since too many queues are paused there.
async fn make_alike(tasks: &Tasks, stores: [&Arc<dyn Engine>; 2], seen: &mut Seen) -> Result<()> {
    let (old, new) = tokio::try_join!(stores[0].pauses(), stores[1].pauses())?;
    let (mut now, looked) = ([old, new], Instant::now());
    let names: BTreeSet<Queue> = seen.iter().chain(&now).flat_map(BTreeMap::keys).cloned().collect();
    let mut copies = Vec::new();
    for queue in names {
        let left = [0, 1].map(|n| left(&**stores[n], now[n].get(&queue)));
        let changed = |n: usize| seen[n].get(&queue) != now[n].get(&queue);
        if left[0].abs_diff(left[1]) <= ALIKE {
            continue;
        }
        if let Some(from) = [0, 1].into_iter().find(|n| changed(*n)) {
            copies.push((1 - from, queue, left[from]));
        }
    }
    let mut no_room = 0;
    for copies in copies.chunks(AT_A_TIME) {
        let under_way = copies.iter().cloned().map(|(to, queue, left)| {
            let store = stores[to].clone();
            tasks.spawn(async move {
                let left = if left == Duration::MAX { left } else { left.saturating_sub(looked.elapsed()) };
                let pausing = match left {
                    Duration::ZERO => Pausing::Resumed,
                    Duration::MAX => Pausing::UntilResumed,
                    time => Pausing::For(time),
                };
                let pause = store.pause(&queue, pausing).await?;
                Ok::<_, Error>((to, queue, pause))
            })
        });
        for copied in under_way.collect::<Vec<_>>() {
            match copied.await.map_err(Error::away)? {
                Ok((to, queue, Some(pause))) => drop(now[to].insert(queue, pause)),
                Ok((to, queue, None)) => drop(now[to].remove(&queue)),
                Err(Error::TooManyPaused(_)) => no_room += 1,
                Err(error) => return Err(error),
            }
        }
    }
    if no_room > 0 {
        tracing::warn!(
            count = no_room,
            "queues are paused in one store of a pool that moves alone: too many are"
        );
    }
    *seen = now;
    Ok(())
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

impl Drop for Migration {
    fn drop(&mut self) {
        self.tasks.stop();
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Engine for Migration {
    fn now(&self) -> Millis {
        self.new.now()
    }

    async fn publish(&self, mut publication: Publication) -> Result<Published> {
        let Publication { jobs, replaces, once } = &mut publication;
        if let (Some(once), Some(first)) = (&*once, jobs.first())
            && let Some(done) = self.recall(&first.job.queue, once).await?
        {
            return Ok(done);
        }
        let mut go: Vec<JobRef> = replaces.iter().cloned().collect();
        for (index, Placing { job, key, .. }) in jobs.iter_mut().enumerate() {
            let Some((key, on_conflict)) = key else { continue };
            let in_old = self.old.inspect(&job.queue, By::Key(key), Detail::All);
            let Some(holder) = self.ask_old(in_old).await? else { continue };
            let (id, due_at, state) = (holder.id, holder.due_at, holder.state);
            let holder = JobRef { queue: job.queue.clone(), id };
            if go.contains(&holder) || self.has(&job.queue, By::Key(key)).await? {
                continue;
            }
            let how = match on_conflict {
                OnConflict::Fail => return Ok(Published::Conflict { index, id }),
                OnConflict::Keep => How::Duplicate,
                // A running one goes on.
                OnConflict::Replace if state == Some(JobState::Running) => continue,
                OnConflict::Replace => How::Replaced(id),
                OnConflict::Elsewhere(_) => continue,
            };
            if how != How::Duplicate {
                go.push(holder);
            }
            *on_conflict = OnConflict::Elsewhere(Placed { id, due_at, how });
        }
        // The new store forgets the job that is replaced if it has it, in one step with the publish.
        let published = self.new.publish(publication).await?;
        if let Published::Done(_) = published {
            // What is stored stays, whatever becomes of the rest: an error would make the caller publish it once more.
            self.ack_old(go).await;
        }
        Ok(published)
    }

    async fn recall(&self, queue: &Queue, once: &Once) -> Result<Option<Published>> {
        self.new_first(self.old.recall(queue, once), self.new.recall(queue, once)).await
    }

    async fn cancel_key(&self, queue: &Queue, key: &JobKey) -> Result<bool> {
        Ok(self.new.cancel_key(queue, key).await? || self.old.cancel_key(queue, key).await?)
    }

    async fn consume(&self, queues: &QueueList, ttrs: &[Duration]) -> Result<Consumed> {
        let give_up = Instant::now() + MOST_PATIENCE;
        loop {
            let old = self.consume_old(queues, ttrs).await;
            let hangs = old.is_none();
            let (from_old, trouble) = match old.unwrap_or_else(|| Err(late())) {
                Ok(consumed) => (consumed, None),
                Err(error) => (Consumed::default(), Some(error)),
            };
            let (mut consumed, seen) = self.in_order(queues, ttrs, from_old).await;
            // The new store serves whom the old one left without a job.
            let rest = ttrs.get(consumed.jobs.len()..).unwrap_or_default();
            if rest.is_empty() || consumed.more {
                return Ok(consumed);
            }
            let later = part(queues, seen..queues.names().len());
            match self.new.consume(later.as_ref().unwrap_or(queues), rest).await {
                Ok(found) => {
                    consumed.more = found.more || trouble.is_some() && !found.jobs.is_empty();
                    consumed.jobs.extend(from_new(found.jobs));
                }
                // What the old store handed out is on its way; the new one's trouble shows at the next call.
                Err(_) if !consumed.jobs.is_empty() => consumed.more = true,
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
            let from_new = job.receipt & Job::FROM_NEW != 0;
            job.receipt &= !Job::FROM_NEW;
            if from_new { to_new.push(job) } else { to_old.push(job) }
        }
        let new = async { if to_new.is_empty() { Ok(()) } else { self.new.give_back(to_new).await } };
        tokio::join!(self.give_back_old(to_old), new).1
    }

    async fn ack(&self, queue: &Queue, jobs: &[(JobId, Option<Receipt>)]) -> Result<Vec<JobId>> {
        // Either may hold a job: one that is away must not keep the other from forgetting it.
        let mut in_old = self.old.ack(queue, jobs);
        let of_old = timeout(self.state.patience(), &mut in_old).await;
        let all_are_new = !matches!(of_old, Ok(Ok(_))) && self.has_all(queue, jobs).await?;
        let of_new = self.new.ack(queue, jobs).await?;
        let of_old = match of_old {
            Ok(Ok(stale)) => stale,
            // A job is in one of the stores.
            _ if all_are_new => Vec::new(),
            Ok(Err(error)) => return Err(error),
            Err(_) if matches!(jobs, [(_, None)]) => in_old.await?,
            Err(_) => return Err(late()),
        };
        Ok(jobs.iter().map(|(id, _)| *id).filter(|id| of_old.contains(id) || of_new.contains(id)).collect())
    }

    async fn touch(&self, job: &JobRef, receipt: Receipt, ttr: Duration) -> Result<Held<Touched>> {
        self.held(self.old.touch(job, receipt, ttr), self.new.touch(job, receipt, ttr)).await
    }

    async fn release(&self, job: &JobRef, receipt: Receipt, release: Release) -> Result<Held<Released>> {
        let of_old = self.old.release(job, receipt, release.clone());
        self.held(of_old, self.new.release(job, receipt, release)).await
    }

    async fn peek(&self, queue: &Queue) -> Result<Option<Job>> {
        self.first(self.old.peek(queue), self.new.peek(queue)).await
    }

    async fn inspect(&self, queue: &Queue, by: By<'_>, detail: Detail) -> Result<Option<JobView>> {
        let (old, new) = (self.old.inspect(queue, by, detail), self.new.inspect(queue, by, detail));
        match by {
            By::Id(_) => self.first(old, new).await,
            // A job that runs in the old store may have a key that one of the new store has taken over.
            By::Key(_) => self.new_first(old, new).await,
        }
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

    async fn size(&self, queue: &Queue, of: SizeOf) -> Result<Size> {
        let both = self.ask_both(self.old.size(queue, of), self.new.size(queue, of)).await?;
        let [old, new] = <[_; 2]>::from(both).map(Option::unwrap_or_default);
        Ok(Size { jobs: old.jobs + new.jobs, head: old.head.or(new.head) })
    }

    async fn destroy(&self, queue: &Queue) -> Result<()> {
        self.old.destroy(queue).await?;
        // Not an error that says that nothing has happened.
        self.new.destroy(queue).await.map_err(Error::away)
    }

    async fn respawn(&self, queue: &Queue, which: Respawn<'_>) -> Result<Respawned> {
        let Respawned { count: old, mut each } = self.old.respawn(queue, which).await?;
        let (jobs, revival) = match which {
            Respawn::Oldest { limit, ttl } => {
                let rest =
                    async |limit| Ok(self.new.respawn(queue, Respawn::Oldest { limit, ttl }).await?.count);
                return Ok(Respawned { count: and_rest(old, limit, rest).await?, each });
            }
            Respawn::Jobs(jobs, revival) => (jobs, revival),
        };
        let missing: Vec<usize> = (0..jobs.len()).filter(|n| each[*n] == Revived::NotFound).collect();
        if !missing.is_empty() {
            let ids: Vec<JobId> = missing.iter().map(|n| jobs[*n]).collect();
            let done = (jobs.len() - ids.len()) as u64;
            let new =
                self.new.respawn(queue, Respawn::Jobs(&ids, revival)).await.map_err(|e| e.after(done))?;
            for (n, new) in missing.into_iter().zip(new.each) {
                each[n] = new;
            }
        }
        Ok(Respawned::of(each))
    }

    async fn delete_dead(&self, queue: &Queue, limit: u64) -> Result<u64> {
        let old = self.old.delete_dead(queue, limit).await?;
        and_rest(old, limit, async |rest| self.new.delete_dead(queue, rest).await).await
    }

    async fn pause(&self, queue: &Queue, pausing: Pausing) -> Result<Option<Pause>> {
        let seen = self.pausing.read().await;
        let (old, new) = tokio::join!(self.old.pause(queue, pausing), self.new.pause(queue, pausing));
        // A pause that is refused is done in neither, unless one of them had it.
        let refused_by_other = match (&old, &new) {
            (Ok(_), Err(Error::TooManyPaused(_))) => Some((&self.old, &seen[0])),
            (Err(Error::TooManyPaused(_)), Ok(_)) => Some((&self.new, &seen[1])),
            _ => None,
        };
        if let Some((store, seen)) = refused_by_other
            && left(&**store, seen.get(queue)).is_zero()
        {
            store.pause(queue, Pausing::Resumed).await?;
        }
        Ok(old?.zip(new?).map(|(old, new)| longer(old, new)))
    }

    async fn pauses(&self) -> Result<BTreeMap<Queue, Pause>> {
        let (mut all, new) = tokio::try_join!(self.old.pauses(), self.new.pauses())?;
        for (queue, pause) in new {
            let both = all.get(&queue).map_or(pause, |old| longer(*old, pause));
            all.insert(queue, both);
        }
        Ok(all)
    }

    async fn pump(&self) -> Result<Pumped> {
        // The trouble of the one shows when the other has nothing more to move.
        match tokio::join!(self.old.pump(), self.new.pump()) {
            (Ok(old), Ok(new)) => Ok(Pumped { moved: old.moved + new.moved, next: old.next.min(new.next) }),
            (Ok(one), Err(_)) | (Err(_), Ok(one)) if one.moved > 0 => {
                Ok(Pumped { next: one.next.min(LOOK_AGAIN), ..one })
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

    async fn list_queues(
        &self,
        namespace: &Namespace,
        after: Option<&QueueName>,
        limit: usize,
    ) -> Result<QueuePage> {
        let (old, new) = tokio::try_join!(
            self.old.list_queues(namespace, after, limit),
            self.new.list_queues(namespace, after, limit)
        )?;
        // Behind the end of either page the other one may leave queues out.
        let end = [&old.next, &new.next].into_iter().flatten().min().cloned();
        let mut all: BTreeMap<QueueName, QueueView> = BTreeMap::new();
        for view in old.queues.into_iter().chain(new.queues) {
            if end.as_ref().is_none_or(|end| view.queue.name <= *end) {
                let view = match all.remove(&view.queue.name) {
                    Some(other) => together(other, view),
                    None => view,
                };
                all.insert(view.queue.name.clone(), view);
            }
        }
        let more = all.len() > limit;
        let queues: Vec<QueueView> = all.into_values().take(limit).collect();
        let next = if more { queues.last().map(|last| last.queue.name.clone()) } else { end };
        Ok(QueuePage { queues, next })
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
        // What goes back to the old store is there before it closes, unless that hangs.
        let _ = timeout(MOST_PATIENCE, self.tasks.ended()).await;
        self.old.close().await;
        self.new.close().await;
    }
}
