//! The store on a Redis in a layout of its own: a delayed job takes a third of the memory that it takes in lmstfy's, and
//! the pool is made of partitions, each a small whole store whose keys are in one hash slot. docs/redis.md has its keys
//! and bytes.
//!
//! - `partitions`, `place`, `buckets`: which partition a queue is at home in, where a job lies, and how its id says so.
//! - `core`: what verbs have in common, and the one door through which calls go to a partition.
//! - `verbs/`: a file for each step, or for those that are alike.
//! - `keys`, `scripts`: the keys that are read without a script, and the scripts of lua/compact/.
//! - `dues`: when each partition is pumped; `steps`: steps of schedules on their way.
//!
//! A queue has all its jobs in its home. Connections, deadlines, batches and the watch are those of the other layout.

mod buckets;
mod core;
mod dues;
mod keys;
mod partitions;
mod place;
mod scripts;
mod steps;
mod verbs;

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::{Mutex, RwLock};
use tokio_util::sync::DropGuard;

use self::buckets::Buckets;
use self::core::CompactCore;
use self::dues::Dues;
use self::partitions::Partitions;
use self::scripts::Scripts;
use super::batches::{self, MAX_WAITING};
use super::connection::connector::RedisAddress;
use super::connection::fault::{Fault, Outcome};
use super::link::Link;
use super::safety::warn_of_tables;
use super::verbs::check::first_check;
use super::watch;
use crate::clock::Millis;
use crate::engine::batch;
use crate::engine::delays::{DelayCount, Delays};
use crate::engine::notifier::Notifier;
use crate::engine::observer::Observer;
use crate::engine::{
    By, Consumed, Detail, DueList, DueSchedules, Engine, Held, JobList, JobPage, NewId, Once, Pause, Pausing,
    Publication, Published, Pumped, QueuePage, Quotas, Release, Released, Respawn, Respawned, ScheduleList,
    SchedulePage, ScheduleStep, Size, SizeOf, Stats, Stepped, Touched,
};
use crate::error::Result;
use crate::job::{Job, JobId, JobIds, JobRef, JobView, Receipt};
use crate::name::{JobKey, Namespace, PoolName, Queue, QueueList, QueueName};
use crate::outage::Outage;

/// ZADD takes LT since 6.2; a slot's channels, which servers are to tell each other by, are there since this version.
const OLDEST: (u32, u32) = (7, 0);

/// How a pool in this layout is cut up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompactLayout {
    /// What every key begins with.
    pub prefix: String,
    /// How many partitions: a power of two up to 4096.
    pub partitions: u16,
}

/// A pool of jobs on a Redis, in the compact layout.
#[derive(Debug)]
pub struct CompactEngine {
    core: Arc<CompactCore>,
    /// Ends the tasks of an engine that is dropped without `close`.
    _closing: [DropGuard; 2],
}

impl CompactLayout {
    /// The key that has the number of partitions.
    pub fn pool_key(&self) -> String {
        Partitions::new(&self.prefix, self.partitions).pool_key()
    }

    /// Whether the pool has as many partitions as it is said to have.
    pub fn fits(&self, kept: u16) -> Outcome<()> {
        if kept == self.partitions {
            return Ok(());
        }
        Err(Fault::refused(format!(
            "Partitions is {}, and the pool with the prefix {} has {kept}: set it to {kept}; to change it, move the pool \
             to another one with MigrateTo",
            self.partitions, self.prefix
        )))
    }
}

impl CompactEngine {
    /// Connects, and begins the engine's tasks. `Away` or `Refused` when the Redis cannot be used now, or when the pool
    /// has another number of partitions; once connected, the engine outlives any outage.
    pub async fn connect(
        address: RedisAddress,
        name: &PoolName,
        layout: &CompactLayout,
    ) -> Result<Arc<CompactEngine>> {
        let partitions = Arc::new(Partitions::new(&layout.prefix, layout.partitions));
        let mut opened = Link::open(&address, name, keys::Ready(partitions.clone())).await?;
        let link = opened.link.clone();
        first_check(&link, &mut opened.first, OLDEST).await?;
        let mut use_first = redis::cmd("SETNX");
        use_first.arg(partitions.pool_key()).arg(layout.partitions);
        let _: u64 = opened.first.query(&use_first).await?;
        let kept: u16 = opened.first.query(redis::cmd("GET").arg(partitions.pool_key())).await?;
        layout.fits(kept)?;
        warn_of_tables(&mut opened.first, &link.pool).await;
        let (publishes, publish_calls) = batch::channel(MAX_WAITING, batches::PUBLISHES);
        let (acks, ack_calls) = batch::channel(MAX_WAITING, batches::ACKS);
        let (steps, step_calls) = batch::channel(MAX_WAITING, batches::PUBLISHES);
        let core = Arc::new(CompactCore {
            link: link.clone(),
            scripts: Scripts::default(),
            dues: Dues::new(partitions.count()),
            partitions,
            buckets: Buckets::default(),
            publishes,
            acks,
            steps,
            has_schedules: AtomicBool::new(false),
            pauses_end: Mutex::default(),
            quotas: RwLock::default(),
            setting_quotas: tokio::sync::Mutex::default(),
        });
        let guards = opened.keep();
        let closing = link.tasks.stopping();
        link.tasks.spawn_essential("the watch of ready lists", watch::run(link.clone()));
        link.tasks.spawn_essential("the count of namespaces with a quota", verbs::quotas::run(core.clone()));
        let publish_calls = Arc::new(tokio::sync::Mutex::new(publish_calls));
        for own in 0..link.publish_connections.len() {
            let (core, calls) = (core.clone(), publish_calls.clone());
            let carry = async move |batch| core.publish_batch(own, batch).await;
            link.tasks.spawn_essential("a task that publishes", batch::serve(calls, closing.clone(), carry));
        }
        let carry = {
            let core = core.clone();
            async move |batch| core.ack_batch(batch).await
        };
        let ack_calls = Arc::new(tokio::sync::Mutex::new(ack_calls));
        link.tasks.spawn_essential("the task that acks", batch::serve(ack_calls, closing.clone(), carry));
        let step_calls = Arc::new(tokio::sync::Mutex::new(step_calls));
        // Two, so that one batch is made while the Redis works on another.
        for own in 0..2 {
            let (core, calls) = (core.clone(), step_calls.clone());
            let carry = async move |batch| core.step_schedules(own, batch).await;
            let steps = batch::serve(calls, closing.clone(), carry);
            link.tasks.spawn_essential("a task that takes steps of schedules", steps);
        }
        link.connected().await;
        Ok(Arc::new(CompactEngine { core, _closing: guards }))
    }

    /// The version of the Redis, if it says.
    pub fn version(&self) -> Option<&str> {
        self.core.version.get().map(String::as_str)
    }

    /// Hears of every connection that is lost, and of what the engine's users tell it.
    pub fn outage(&self) -> Arc<Outage> {
        self.core.outage.clone()
    }

    /// Waits until a task has died that the engine cannot do without, and says which. Calls to such an engine
    /// may be answered with [`Closed`](crate::error::Error::Closed).
    pub fn failed(&self) -> impl Future<Output = String> + Send + use<> {
        self.core.failed()
    }

    fn open(&self) -> Result<&Arc<CompactCore>> {
        self.core.is_open()?;
        Ok(&self.core)
    }
}

#[async_trait]
impl Engine for CompactEngine {
    fn now(&self) -> Millis {
        self.core.clock.now()
    }

    /// In the queue's home.
    fn make_id(&self, _ids: &JobIds, of: NewId<'_>) -> JobId {
        self.core.buckets.make_id(self.core.clock.now(), self.core.partition_of(of.queue), &of)
    }

    async fn publish(&self, publication: Publication) -> Result<Published> {
        self.open()?.publish(publication).await
    }

    async fn recall(&self, queue: &Queue, once: &Once) -> Result<Option<Published>> {
        self.open()?.recall(queue, once).await
    }

    async fn cancel_key(&self, queue: &Queue, key: &JobKey) -> Result<bool> {
        self.open()?.cancel_key(queue, key).await
    }

    async fn consume(&self, queues: &QueueList, ttrs: &[Duration]) -> Result<Consumed> {
        self.open()?.consume(queues, ttrs).await
    }

    async fn give_back(&self, jobs: Vec<Job>) -> Result<()> {
        self.open()?.give_back(jobs).await
    }

    async fn ack(&self, queue: &Queue, jobs: &[(JobId, Option<Receipt>)]) -> Result<Vec<JobId>> {
        if let [(id, None)] = jobs {
            self.core.acks.call(JobRef { queue: queue.clone(), id: *id }).await?;
            return Ok(Vec::new());
        }
        self.open()?.ack(queue, jobs).await
    }

    async fn touch(&self, job: &JobRef, receipt: Receipt, ttr: Duration) -> Result<Held<Touched>> {
        self.open()?.touch(job, receipt, ttr).await
    }

    async fn release(&self, job: &JobRef, receipt: Receipt, release: Release) -> Result<Held<Released>> {
        self.open()?.release(job, receipt, release).await
    }

    async fn peek(&self, queue: &Queue) -> Result<Option<Job>> {
        self.open()?.peek(queue).await
    }

    async fn inspect(&self, queue: &Queue, by: By<'_>, detail: Detail) -> Result<Option<JobView>> {
        let found = self.open()?.inspect(queue, by, detail.held_with()).await?;
        Ok(found.map(|view| detail.of(view)))
    }

    async fn list_jobs(&self, queue: &Queue, list: JobList) -> Result<Option<JobPage>> {
        self.open()?.list_jobs(queue, list).await
    }

    async fn size(&self, queue: &Queue, of: SizeOf) -> Result<Size> {
        self.open()?.size(queue, of).await
    }

    async fn destroy(&self, queue: &Queue) -> Result<()> {
        self.open()?.destroy(queue).await
    }

    async fn respawn(&self, queue: &Queue, which: Respawn<'_>) -> Result<Respawned> {
        let core = self.open()?;
        match which {
            Respawn::Oldest { limit, ttl } => {
                let count = core.respawn_oldest(queue, limit, ttl).await?;
                Ok(Respawned { count, each: Vec::new() })
            }
            Respawn::Jobs(jobs, revival) => Ok(Respawned::of(core.respawn_jobs(queue, jobs, revival).await?)),
        }
    }

    async fn delete_dead(&self, queue: &Queue, limit: u64) -> Result<u64> {
        self.open()?.delete_dead(queue, limit).await
    }

    async fn pause(&self, queue: &Queue, pausing: Pausing) -> Result<Option<Pause>> {
        self.open()?.pause(queue, pausing).await
    }

    async fn pauses(&self) -> Result<BTreeMap<Queue, Pause>> {
        self.open()?.pauses().await
    }

    async fn pump(&self) -> Result<Pumped> {
        self.open()?.pump().await
    }

    async fn due_earlier(&self) {
        self.core.dues.next.earlier().await;
    }

    async fn list_queues(
        &self,
        namespace: &Namespace,
        after: Option<&QueueName>,
        limit: usize,
    ) -> Result<QueuePage> {
        self.open()?.list_queues(namespace, after, limit).await
    }

    async fn stats(&self) -> Result<Stats> {
        self.open()?.stats().await
    }

    async fn delays(&self, count: &DelayCount) -> Result<Delays> {
        self.open()?.delays(count).await
    }

    async fn set_quotas(&self, quotas: &Quotas) -> Result<()> {
        self.open()?.set_quotas(quotas).await
    }

    async fn step_schedule(&self, step: ScheduleStep) -> Result<Stepped> {
        self.open()?.step_schedule(step).await
    }

    async fn list_schedules(&self, namespace: &Namespace, list: ScheduleList) -> Result<SchedulePage> {
        self.open()?.list_schedules(namespace, &list).await
    }

    async fn due_schedules(&self, list: DueList) -> Result<DueSchedules> {
        self.open()?.due_schedules(list).await
    }

    fn attach(&self, notifier: Weak<dyn Notifier>) {
        self.core.notifiers.attach(notifier);
    }

    fn watch(&self, queue: &Queue) {
        self.core.watch.arm([queue.clone()]);
    }

    fn observe(&self, observer: Arc<dyn Observer>) {
        self.core.observers.attach(observer);
    }

    async fn check(&self) -> Result<()> {
        self.open()?.check().await
    }

    async fn close(&self) {
        self.core.link.close().await;
    }
}
