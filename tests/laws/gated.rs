//! An engine wrapper that counts consumes, can hold them after they popped or among deleted jobs, can fail and panic,
//! can suppress notifications, and can be unavailable or hang as a whole.

use std::collections::BTreeMap;
use std::sync::Weak;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use dormouse::clock::Millis;
use dormouse::engine::delays::{DelayCount, Delays};
use dormouse::engine::notifier::Notifier;
use dormouse::engine::{
    By, Consumed, Detail, Engine, Held, JobList, JobPage, Listing, Once, Promoted, Publication, Published,
    Pumped, QueuePage, Quotas, Release, Released, Respawn, Respawned, Size, SizeOf, Stats, Touched, Usage,
};
use dormouse::error::{Error, Result, Unreachable};
use dormouse::job::{Job, JobId, JobIds, JobRef, JobView, Receipt};
use dormouse::name::{JobKey, Namespace, Queue, QueueList, QueueName};
use tokio::sync::{Mutex, MutexGuard, watch};

/// Stands before `inner`.
#[derive(Debug)]
pub struct Gated<E> {
    inner: E,
    gate: Mutex<()>,
    fetches: AtomicUsize,
    handed_out: AtomicUsize,
    /// Number of consumes in flight, and their maximum so far.
    under_way: AtomicUsize,
    most_under_way: AtomicUsize,
    /// The queue with endless dead entries, and whether a consume has met them.
    endless: watch::Sender<Option<String>>,
    has_skipped: AtomicBool,
    away: AtomicBool,
    unseen: AtomicBool,
    leaves_open: AtomicBool,
    panics: AtomicBool,
    ack_panics: AtomicBool,
    /// The job that cannot be acked.
    unreachable: Mutex<Option<JobId>>,
    silent: AtomicBool,
    state: watch::Sender<State>,
    /// Number of calls left before all fail; `None`: no limit.
    calls_left: Mutex<Option<usize>>,
    /// Consumes of this namespace hang, and what gives its jobs back.
    hung_namespace: watch::Sender<Option<String>>,
    /// Publishes to this queue hang.
    hung_queue: watch::Sender<Option<String>>,
    /// Publishes to this queue find the store full.
    full_queue: watch::Sender<Option<String>>,
}

/// What becomes of calls other than `hold` and `set_away` are about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Up,
    /// Each call fails at once.
    Away,
    /// Each call waits until the store is up or away again. It happens then.
    Hangs,
    /// Each call takes this long.
    Slow(Duration),
}

impl<E: Engine> Gated<E> {
    /// Open, and in order.
    pub fn new(inner: E) -> Gated<E> {
        Gated {
            inner,
            gate: Mutex::new(()),
            fetches: AtomicUsize::new(0),
            handed_out: AtomicUsize::new(0),
            under_way: AtomicUsize::new(0),
            most_under_way: AtomicUsize::new(0),
            endless: watch::Sender::default(),
            has_skipped: AtomicBool::new(false),
            away: AtomicBool::new(false),
            unseen: AtomicBool::new(false),
            leaves_open: AtomicBool::new(false),
            panics: AtomicBool::new(false),
            ack_panics: AtomicBool::new(false),
            unreachable: Mutex::default(),
            silent: AtomicBool::new(false),
            state: watch::Sender::new(State::Up),
            calls_left: Mutex::new(None),
            hung_namespace: watch::Sender::default(),
            hung_queue: watch::Sender::default(),
            full_queue: watch::Sender::default(),
        }
    }

    /// What becomes of all calls from now on.
    pub fn set(&self, state: State) {
        self.state.send_replace(state);
    }

    /// Makes all calls fail after `calls` more, as if the caller had died; `None` ends that.
    pub async fn set_calls_left(&self, calls: Option<usize>) {
        *self.calls_left.lock().await = calls;
    }

    /// Makes publishes to this queue hang, until it is changed.
    pub fn hang_publishes_to(&self, queue: Option<&str>) {
        self.hung_queue.send_replace(queue.map(str::to_owned));
    }

    /// Makes publishes to this queue find the store full, until it is changed.
    pub fn refuse_publishes_to(&self, queue: Option<&str>) {
        self.full_queue.send_replace(queue.map(str::to_owned));
    }

    /// Fails or waits as calls currently do. Counts as a call.
    pub async fn up(&self) -> Result<()> {
        if let Some(left) = &mut *self.calls_left.lock().await {
            *left = left.checked_sub(1).ok_or_else(|| Error::away("the test says so"))?;
        }
        let state =
            *self.state.subscribe().wait_for(|state| *state != State::Hangs).await.expect("self has it");
        match state {
            State::Away => return Err(Error::away("the test says so")),
            State::Slow(time) => tokio::time::sleep(time).await,
            State::Up | State::Hangs => {}
        }
        Ok(())
    }

    /// Until the guard is dropped, consumes do not return, but jobs they have popped stay popped.
    pub async fn hold(&self) -> MutexGuard<'_, ()> {
        self.gate.lock().await
    }

    /// How many consumes there were.
    pub fn fetches(&self) -> usize {
        self.fetches.load(Ordering::SeqCst)
    }

    /// How many jobs they brought.
    pub fn handed_out(&self) -> usize {
        self.handed_out.load(Ordering::SeqCst)
    }

    /// Returns the maximum number of concurrent consumes.
    pub fn most_under_way(&self) -> usize {
        self.most_under_way.load(Ordering::SeqCst)
    }

    /// The first consume of a list that begins with this queue skips its maximum of dead entries. Further ones do not
    /// return until this is set to `None`, nor do consumes of lists that reach this queue after finding no job in
    /// earlier ones.
    pub fn set_endless(&self, queue: Option<&str>) {
        self.endless.send_replace(queue.map(str::to_owned));
    }

    /// Makes consumes of this namespace, and returns of its jobs, hang until it is changed.
    pub fn hang_namespace(&self, namespace: Option<&str>) {
        self.hung_namespace.send_replace(namespace.map(str::to_owned));
    }

    async fn hangs_no_more(&self, namespace: &Namespace) {
        let hangs = |hung: &Option<String>| hung.as_deref() == Some(namespace.as_str());
        // The sender is in this engine, so there is no error.
        let _ = self.hung_namespace.subscribe().wait_for(|hung| !hangs(hung)).await;
    }

    /// Whether consumes fail from now on.
    pub fn set_away(&self, away: bool) {
        self.away.store(away, Ordering::SeqCst);
    }

    /// The next consume that finds too few jobs leaves open whether there are more, and would notify of them.
    pub fn leave_open(&self) {
        self.leaves_open.store(true, Ordering::SeqCst);
    }

    /// Whether consumes that find nothing could not look everywhere from now on.
    pub fn set_unseen(&self, unseen: bool) {
        self.unseen.store(unseen, Ordering::SeqCst);
    }

    /// The next ack panics.
    pub fn an_ack_panics(&self) {
        self.ack_panics.store(true, Ordering::SeqCst);
    }

    /// Makes acks that include this job fail, as if it were in an unavailable partition. Other jobs of the same call
    /// are acked.
    pub async fn set_unreachable(&self, job: Option<JobId>) {
        *self.unreachable.lock().await = job;
    }

    /// Whether consumes panic from now on.
    pub fn set_panics(&self, panics: bool) {
        self.panics.store(panics, Ordering::SeqCst);
    }

    /// From now on attaches no notifier, so that notifications are lost.
    pub fn silence(&self) {
        self.silent.store(true, Ordering::SeqCst);
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl<E: Engine> Engine for Gated<E> {
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
        self.up().await?;
        if let Some(placing) = publication.jobs.first() {
            let goes_to = placing.job.queue.name.as_str();
            let mut hung = self.hung_queue.subscribe();
            let _hung = hung.wait_for(|hung| hung.as_deref() != Some(goes_to)).await.expect("self has it");
            if self.full_queue.borrow().as_deref() == Some(goes_to) {
                return Err(Error::Full { free: 0, least: 1 });
            }
        }
        self.inner.publish(publication).await
    }

    async fn recall(&self, queue: &Queue, once: &Once) -> Result<Option<Published>> {
        self.up().await?;
        self.inner.recall(queue, once).await
    }

    async fn cancel_key(&self, queue: &Queue, key: &JobKey) -> Result<bool> {
        self.up().await?;
        self.inner.cancel_key(queue, key).await
    }

    async fn consume(&self, queues: &QueueList, ttrs: &[Duration]) -> Result<Consumed> {
        self.fetches.fetch_add(1, Ordering::SeqCst);
        self.up().await?;
        if self.away.load(Ordering::SeqCst) {
            return Err(Error::away("the test says so"));
        }
        assert!(!self.panics.load(Ordering::SeqCst), "the test says so");
        let endless = |queue: &Option<String>| queue.as_deref() == Some(queues.names()[0].as_str());
        if endless(&self.endless.borrow()) && !self.has_skipped.swap(true, Ordering::SeqCst) {
            return Ok(Consumed { more: true, ..Consumed::default() });
        }
        let further_on =
            queues.names().iter().position(|name| self.endless.borrow().as_deref() == Some(name.as_str()));
        if let Some(before) = further_on.and_then(|n| {
            QueueList::new(queues.namespace().clone(), queues.names()[..n].iter().cloned()).filter(|_| n > 0)
        }) {
            let found = self.inner.consume(&before, ttrs).await?;
            if !found.jobs.is_empty() {
                self.handed_out.fetch_add(found.jobs.len(), Ordering::SeqCst);
                return Ok(found);
            }
            let _ = self.endless.subscribe().wait_for(Option::is_none).await;
        }
        // The sender is in this engine, so there is no error.
        let _ = self.endless.subscribe().wait_for(|queue| !endless(queue)).await;
        self.hangs_no_more(queues.namespace()).await;
        let under_way = self.under_way.fetch_add(1, Ordering::SeqCst) + 1;
        self.most_under_way.fetch_max(under_way, Ordering::SeqCst);
        let result = self.inner.consume(queues, ttrs).await;
        let jobs = result.as_ref().map_or(0, |consumed| consumed.jobs.len());
        self.handed_out.fetch_add(jobs, Ordering::SeqCst);
        // The jobs are popped; the holder of the gate decides when the caller receives them.
        let _open = self.gate.lock().await;
        self.under_way.fetch_sub(1, Ordering::SeqCst);
        let short = |consumed: &Consumed| consumed.jobs.len() < ttrs.len();
        if result.as_ref().is_ok_and(short) && self.leaves_open.swap(false, Ordering::SeqCst) {
            return result.map(|consumed| Consumed { more: true, notifies: true, ..consumed });
        }
        if jobs == 0 && self.unseen.load(Ordering::SeqCst) {
            return Err(Error::Unseen(Unreachable::Away, queues.queues().collect()));
        }
        result
    }

    async fn give_back(&self, jobs: Vec<Job>) -> Result<()> {
        self.up().await?;
        for job in &jobs {
            self.hangs_no_more(&job.queue.namespace).await;
        }
        self.inner.give_back(jobs).await
    }

    async fn ack(&self, queue: &Queue, jobs: &[(JobId, Option<Receipt>)]) -> Result<Vec<JobId>> {
        self.up().await?;
        assert!(!self.ack_panics.swap(false, Ordering::SeqCst), "the test says so");
        let unreachable = *self.unreachable.lock().await;
        let there: Vec<_> = jobs.iter().filter(|(id, _)| Some(*id) != unreachable).copied().collect();
        if there.len() == jobs.len() {
            return self.inner.ack(queue, jobs).await;
        }
        if !there.is_empty() {
            self.inner.ack(queue, &there).await?;
        }
        Err(Error::away("the test says so"))
    }

    async fn touch(&self, job: &JobRef, receipt: Receipt, ttr: Duration) -> Result<Held<Touched>> {
        self.up().await?;
        self.inner.touch(job, receipt, ttr).await
    }

    async fn release(&self, job: &JobRef, receipt: Receipt, release: Release) -> Result<Held<Released>> {
        self.up().await?;
        self.inner.release(job, receipt, release).await
    }

    async fn peek(&self, queue: &Queue) -> Result<Option<Job>> {
        self.up().await?;
        self.inner.peek(queue).await
    }

    async fn inspect(&self, queue: &Queue, by: By<'_>, detail: Detail) -> Result<Option<JobView>> {
        self.up().await?;
        self.inner.inspect(queue, by, detail).await
    }

    async fn promote(&self, queue: &Queue, by: By<'_>) -> Result<Promoted> {
        self.up().await?;
        self.inner.promote(queue, by).await
    }

    async fn list_jobs(&self, queue: &Queue, list: JobList) -> Result<Option<JobPage>> {
        self.up().await?;
        self.inner.list_jobs(queue, list).await
    }

    async fn size(&self, queue: &Queue, of: SizeOf) -> Result<Size> {
        self.up().await?;
        self.inner.size(queue, of).await
    }

    async fn destroy(&self, queue: &Queue, listing: Listing) -> Result<()> {
        self.up().await?;
        self.inner.destroy(queue, listing).await
    }

    async fn respawn(&self, queue: &Queue, which: Respawn<'_>) -> Result<Respawned> {
        self.up().await?;
        self.inner.respawn(queue, which).await
    }

    async fn delete_dead(&self, queue: &Queue, limit: u64) -> Result<u64> {
        self.up().await?;
        self.inner.delete_dead(queue, limit).await
    }

    async fn pump(&self) -> Result<Pumped> {
        self.up().await?;
        self.inner.pump().await
    }

    async fn list_queues(
        &self,
        namespace: &Namespace,
        after: Option<&QueueName>,
        limit: usize,
    ) -> Result<QueuePage> {
        self.up().await?;
        self.inner.list_queues(namespace, after, limit).await
    }

    async fn stats(&self) -> Result<Stats> {
        self.up().await?;
        self.inner.stats().await
    }

    async fn delays(&self, count: &DelayCount) -> Result<Delays> {
        self.up().await?;
        self.inner.delays(count).await
    }

    async fn set_quotas(&self, quotas: &Quotas) -> Result<BTreeMap<Namespace, Usage>> {
        self.inner.set_quotas(quotas).await
    }

    fn attach(&self, notifier: Weak<dyn Notifier>) {
        if !self.silent.load(Ordering::SeqCst) {
            self.inner.attach(notifier);
        }
    }

    fn watch(&self, queue: &Queue) {
        self.inner.watch(queue);
    }

    async fn check(&self) -> Result<()> {
        self.up().await?;
        self.inner.check().await
    }

    async fn close(&self) {
        self.inner.close().await
    }
}
