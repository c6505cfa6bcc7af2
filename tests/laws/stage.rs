//! A stage runs laws: one empty store, its time, and its permitted differences. Laws call the engine through these
//! helpers, so that failures name the call and the expectation.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use dormouse::clock::{ManualClock, Millis};
use dormouse::engine::{
    By, Detail, Engine, Held, JobList, JobPage, MAX_PUBLISH, Placed, Publication, Published, QueueView,
    Release, Released, Touched,
};
use dormouse::error::Result;
use dormouse::job::{Job, JobIds, JobRef, JobState, JobView, NewJob, Reason, Receipt};
use dormouse::name::{Queue, QueueList};

pub use crate::jobs::*;
pub use crate::support::consume::consume;
use crate::support::engine_ext::EngineExt;
pub use crate::support::wait::TIMEOUT;

/// A delay or ttr short enough for a law to wait for.
pub const SHORT: Duration = Duration::from_millis(40);
/// A ttr short enough for a law to wait for, and long enough for a call. Of several calls, see `life`.
pub const LIFE: Duration = Duration::from_secs(1);
/// A delay, ttl or ttr that does not end while a law runs.
pub const LONG: Duration = Duration::from_secs(3600);

/// Permitted differences of a store, for laws that depend on them.
#[derive(Clone, Copy, Debug)]
pub struct Differences {
    /// Time moves by `advance` only, so that instants are exact to the millisecond.
    pub virtual_time: bool,
    /// Sizes exclude acked and expired jobs. Otherwise they may include them.
    pub exact_sizes: bool,
    /// Maximum of a pump's `next`; `None` if only this process writes to the store.
    pub horizon: Option<Duration>,
    /// Maximum difference between ids or `elapsed` and the store's clock.
    pub slack: Duration,
    /// A publish may change the ids of jobs: in a spread queue the partition in an id may be slow or unavailable.
    pub renames: bool,
}

/// One empty store with its time.
#[async_trait]
pub trait Stage: Send + Sync {
    /// The engine under test.
    fn engine(&self) -> Arc<dyn Engine>;

    /// Returns the generator of this stage's job ids.
    fn ids(&self) -> &JobIds;

    /// Returns once the store's clock has advanced by at least this much.
    async fn advance(&self, by: Duration);

    /// Returns the permitted differences of this store.
    fn differences(&self) -> Differences;
}

/// A stage with a manual clock.
pub struct VirtualStage {
    engine: Arc<dyn Engine>,
    clock: Arc<ManualClock>,
    exact_sizes: bool,
    ids: JobIds,
    /// Dropped with the stage: usually a directory.
    _keep: Box<dyn Any + Send + Sync>,
}

impl VirtualStage {
    /// Returns a stage. `engine` must use `clock`; `keep` is dropped after the engine.
    pub fn new(engine: Arc<dyn Engine>, clock: Arc<ManualClock>, keep: impl Any + Send + Sync) -> Self {
        VirtualStage { engine, clock, exact_sizes: true, ids: JobIds::default(), _keep: Box::new(keep) }
    }

    /// Permits sizes that include acked and expired jobs for a while.
    pub fn with_stale_sizes(self) -> Self {
        VirtualStage { exact_sizes: false, ..self }
    }
}

#[async_trait]
impl Stage for VirtualStage {
    fn engine(&self) -> Arc<dyn Engine> {
        self.engine.clone()
    }

    fn ids(&self) -> &JobIds {
        &self.ids
    }

    async fn advance(&self, by: Duration) {
        self.clock.advance(by);
    }

    fn differences(&self) -> Differences {
        Differences {
            virtual_time: true,
            exact_sizes: self.exact_sizes,
            horizon: None,
            slack: Duration::ZERO,
            renames: false,
        }
    }
}

/// A stage whose store has its own clock. Waits for time to pass.
pub struct RealStage {
    engine: Arc<dyn Engine>,
    differences: Differences,
    ids: JobIds,
    /// Dropped with the stage: usually a server process.
    _keep: Box<dyn Any + Send + Sync>,
}

impl RealStage {
    /// Returns a stage. Ignores `differences.virtual_time`; `keep` is dropped after the engine.
    pub fn new(engine: Arc<dyn Engine>, differences: Differences, keep: impl Any + Send + Sync) -> Self {
        let differences = Differences { virtual_time: false, ..differences };
        RealStage { engine, differences, ids: JobIds::default(), _keep: Box::new(keep) }
    }
}

#[async_trait]
impl Stage for RealStage {
    fn engine(&self) -> Arc<dyn Engine> {
        self.engine.clone()
    }

    fn ids(&self) -> &JobIds {
        &self.ids
    }

    async fn advance(&self, by: Duration) {
        let until = self.engine.now() + ms(by + self.differences.slack) + 1;
        while self.engine.now() < until {
            tokio::time::sleep(Duration::from_millis(until.saturating_sub(self.engine.now()))).await;
        }
    }

    fn differences(&self) -> Differences {
        self.differences
    }
}

/// Publishes new jobs in one call. Sets their ids to the ones in the reply, which differ only if the store `renames`.
pub async fn publish(engine: &dyn Engine, jobs: &mut [NewJob], renames: bool) {
    let published = ok("publish", engine.publish(jobs.to_vec().into()).await);
    let Published::Done(placed) = published else { panic!("a publish answers {published:?}") };
    assert_eq!(placed.len(), jobs.len(), "an answer for each job");
    for (job, placed) in jobs.iter_mut().zip(placed) {
        assert!(renames || placed.id == job.id, "{:?} was published as {:?}", job.id, placed.id);
        job.id = placed.id;
    }
}

/// The model's clock at the start: any time long after 1970.
pub const START: Millis = 1_700_000_000_000;

/// Returns a new clock for a virtual stage.
pub fn manual_clock() -> Arc<ManualClock> {
    Arc::new(ManualClock::new(START))
}

/// Returns the result of a call that must succeed.
pub fn ok<T>(what: &str, answer: Result<T>) -> T {
    answer.unwrap_or_else(|e| panic!("{what} should succeed, but answered: {e}"))
}

impl dyn Stage + '_ {
    /// Returns a ttl or ttr short enough for a law to wait for, and long enough for the law's calls before its end: a
    /// machine may stall for a second.
    pub fn life(&self) -> Duration {
        if self.differences().virtual_time { LIFE } else { LIFE * 2 }
    }

    /// Publishes one job.
    pub async fn put(&self, draft: Draft) -> NewJob {
        self.put_all([draft]).await.remove(0)
    }

    /// Publishes jobs in maximum batches; up to 64 in one call.
    pub async fn put_all(&self, drafts: impl IntoIterator<Item = Draft>) -> Vec<NewJob> {
        let mut jobs: Vec<NewJob> = drafts.into_iter().map(|draft| draft.make(self)).collect();
        let (engine, renames) = (self.engine(), self.differences().renames);
        for batch in jobs.chunks_mut(MAX_PUBLISH) {
            publish(&*engine, batch, renames).await;
        }
        jobs
    }

    /// Consumes at most `count` jobs of one queue.
    pub async fn take(&self, queue: &Queue, count: u16, ttr: Duration) -> Vec<Job> {
        self.take_from(&queue.clone().into(), &vec![ttr; count.into()]).await
    }

    /// Consumes one job. Panics if there is none.
    pub async fn take_one(&self, queue: &Queue, ttr: Duration) -> Job {
        let mut jobs = self.take(queue, 1, ttr).await;
        assert_eq!(jobs.len(), 1, "a job of {queue} should be ready");
        jobs.remove(0)
    }

    /// Consumes from several queues, a job for each ttr.
    pub async fn take_from(&self, queues: &QueueList, ttrs: &[Duration]) -> Vec<Job> {
        ok("consume", consume(&*self.engine(), queues, ttrs).await)
    }

    /// Consumes all ready jobs and returns their bodies in order.
    pub async fn drain(&self, queue: &Queue) -> Vec<String> {
        let mut all = Vec::new();
        for _ in 0..1000 {
            let jobs = self.take(queue, 100, LONG).await;
            if jobs.is_empty() {
                return all;
            }
            all.extend(bodies(&jobs));
        }
        panic!("{queue} gives jobs without end: {} so far", all.len());
    }

    /// Pumps until nothing more is due, as a server does.
    pub async fn pump(&self) {
        for _ in 0..1000 {
            let pumped = ok("pump", self.engine().pump().await);
            if pumped.moved == 0 && !pumped.next.is_zero() && !self.is_overdue().await {
                return;
            }
        }
        panic!("the pump finds due jobs without end");
    }

    /// Whether a due job waits for a pump: that of a slow node of a cluster goes on after the call.
    pub async fn is_overdue(&self) -> bool {
        if self.differences().virtual_time {
            return false;
        }
        let overdue = self.engine().stats().await.is_ok_and(|stats| stats.overdue.is_some());
        if overdue {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        overdue
    }

    /// Lets this much time pass, and pumps.
    pub async fn pass(&self, time: Duration) {
        self.advance(time).await;
        self.pump().await;
    }

    /// Publishes jobs, each with one try, and lets them die in order.
    pub async fn kill(&self, queue: &Queue, drafts: impl IntoIterator<Item = Draft>) -> Vec<NewJob> {
        let jobs = self.put_all(drafts).await;
        for _ in 0..jobs.len().div_ceil(100) {
            self.take(queue, 100, SHORT).await;
        }
        self.pass(SHORT).await;
        let dead = ok("dead_letter", self.engine().dead_letter(queue).await);
        assert!(dead.jobs >= jobs.len() as u64, "{} jobs died, the dead letter has {dead:?}", jobs.len());
        jobs
    }

    /// Reads the job by id, in any state.
    pub async fn find(&self, job: &impl Named) -> Option<Job> {
        ok("inspect_stored", self.engine().inspect_stored(&job.name()).await)
    }

    pub async fn ack(&self, job: &impl Named) {
        ok("ack", self.engine().ack_job(job.name()).await);
    }

    /// Returns the head of a queue.
    pub async fn peek(&self, queue: &Queue) -> Option<Job> {
        ok("peek", self.engine().peek(queue).await)
    }

    /// Returns the number of ready jobs.
    pub async fn size(&self, queue: &Queue) -> u64 {
        ok("size", self.engine().ready(queue).await)
    }

    /// Returns the number of dead jobs.
    pub async fn dead(&self, queue: &Queue) -> u64 {
        ok("dead_letter", self.engine().dead_letter(queue).await).jobs
    }

    /// Returns jobs to their queues.
    pub async fn give_back(&self, jobs: &[Job]) {
        ok("give_back", self.engine().give_back(jobs.to_vec()).await);
    }

    /// Publishes drafts with keys and instants, in one call.
    pub async fn place_all(&self, drafts: impl IntoIterator<Item = Draft>) -> Published {
        let jobs = drafts.into_iter().map(|draft| draft.placing(self)).collect();
        self.publication(Publication { jobs, replaces: None, once: None }).await
    }

    /// Executes a publication, which may be refused but must not fail.
    pub async fn publication(&self, publication: Publication) -> Published {
        ok("publish", self.engine().publish(publication).await)
    }

    /// Publishes one draft with a key or an instant, which must succeed.
    pub async fn place(&self, draft: Draft) -> Placed {
        match self.place_all([draft]).await {
            Published::Done(placed) if placed.len() == 1 => placed[0],
            other => panic!("one job should be placed, but the answer is {other:?}"),
        }
    }

    /// Returns the job that holds a key.
    pub async fn holder(&self, queue: &Queue, key: &str) -> Option<JobView> {
        ok("inspect_by_key", self.engine().inspect_by_key(queue, &job_key(key)).await)
    }

    /// Returns the receipt of a job that runs with `tries_left`.
    pub async fn receipt(&self, job: &impl Named, tries_left: u16) -> Option<Receipt> {
        let JobRef { queue, id } = job.name();
        let view = self.engine().inspect(&queue, By::Id(id), Detail::HeldWith(tries_left)).await;
        ok("inspect", view).and_then(|view| view.receipt)
    }

    pub async fn inspect(&self, job: &impl Named) -> Option<JobView> {
        ok("inspect", self.engine().inspect_job(&job.name()).await)
    }

    /// Returns the full view of a job. Panics if there is none.
    pub async fn view(&self, job: &impl Named) -> JobView {
        self.inspect(job).await.unwrap_or_else(|| panic!("{:?} should be there", job.name()))
    }

    /// Touches with this receipt.
    pub async fn touch(&self, job: &impl Named, receipt: Receipt, ttr: Duration) -> Held<Touched> {
        ok("touch", self.engine().touch(&job.name(), receipt, ttr).await)
    }

    /// Releases with this receipt.
    pub async fn release(&self, job: &impl Named, receipt: Receipt, release: Release) -> Held<Released> {
        ok("release", self.engine().release(&job.name(), receipt, release).await)
    }

    /// Buries with this receipt.
    pub async fn bury(&self, job: &impl Named, receipt: Receipt, reason: Option<Reason>) -> Held<()> {
        ok("bury", self.engine().bury(&job.name(), receipt, reason).await)
    }

    /// Acks with this receipt. Returns false if the receipt is not valid for an existing job.
    pub async fn ack_held(&self, job: &impl Named, receipt: Receipt) -> bool {
        let name = job.name();
        let stale = self.engine().ack(&name.queue, &[(name.id, Some(receipt))]).await;
        match &ok("ack", stale)[..] {
            [] => true,
            [id] if *id == name.id => false,
            other => panic!("one job was to be acked, stale are {other:?}"),
        }
    }

    /// Returns one page of a list. Panics if the cursor is refused.
    pub async fn page(&self, queue: &Queue, list: JobList) -> JobPage {
        let limit = list.limit;
        let page =
            ok("list_jobs", self.engine().list_jobs(queue, list).await).expect("a cursor of this list");
        assert!(page.jobs.len() <= limit, "asked for {limit}, got {}", page.jobs.len());
        assert!(page.scanned >= page.jobs.len() as u64, "every listed job was scanned: {page:?}");
        page
    }

    /// Returns all jobs of a queue in one state, read in pages of `limit`.
    pub async fn list(&self, queue: &Queue, state: JobState, limit: usize) -> Vec<JobView> {
        let (mut all, mut cursor) = (Vec::new(), None);
        for _ in 0..1000 {
            let page = self.page(queue, JobList { state, limit, cursor, bodies: false }).await;
            all.extend(page.jobs);
            cursor = page.cursor;
            if cursor.is_none() {
                return all;
            }
        }
        panic!("the {state:?} jobs of {queue} are listed without end: {} so far", all.len());
    }

    /// Returns a queue's entry in the list of queues.
    pub async fn queue_view(&self, queue: &Queue) -> Option<QueueView> {
        self.queue_views(queue, 100).await.into_iter().find(|view| view.queue == *queue)
    }

    /// Returns all queues of the namespace of `queue`, read in pages of `limit`.
    pub async fn queue_views(&self, queue: &Queue, limit: usize) -> Vec<QueueView> {
        let (mut all, mut after) = (Vec::new(), None);
        for _ in 0..1000 {
            let page = self.engine().list_queues(&queue.namespace, after.as_ref(), limit).await;
            let page = ok("list_queues", page);
            assert!(page.queues.len() <= limit, "asked for {limit}, got {}", page.queues.len());
            all.extend(page.queues);
            after = page.next;
            if after.is_none() {
                return all;
            }
        }
        panic!("queues are listed without end: {} so far", all.len());
    }

    /// Creates a job in each state, each in its own queue: "every state" in a law means these. Their ttl is long.
    pub async fn one_in_each_state(&self) -> Vec<(&'static str, NewJob)> {
        let all = ["delayed", "ready", "running", "running-last", "dead"];
        let mut jobs = Vec::new();
        for state in all {
            let draft = job(&queue(state), state).ttl(LONG).tries(2);
            jobs.push((
                state,
                match state {
                    "delayed" => self.put(draft.delay(LONG)).await,
                    "ready" => self.put(draft).await,
                    "dead" => self.kill(&queue(state), [draft.tries(1)]).await.remove(0),
                    _ => {
                        let tries = if state == "running" { 2 } else { 1 };
                        let new = self.put(draft.tries(tries)).await;
                        self.take_one(&new.queue, LONG).await;
                        new
                    }
                },
            ));
        }
        jobs
    }
}
