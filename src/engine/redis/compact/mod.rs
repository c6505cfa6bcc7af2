//! The store on a Redis in a layout of its own: a delayed job takes a third of the memory that it takes in lmstfy's, and
//! the pool is made of partitions, each a small whole store whose keys are in one hash slot. docs/redis.md has its keys
//! and bytes.
//!
//! - `partitions`, `place`, `buckets`: which partition a queue is at home in, where a job lies, and how its id says so.
//! - `core`: what verbs have in common, and the one door through which calls go to a partition, be it on one Redis or in
//!   a cluster.
//! - `callers`: calls that share script calls, by partition.
//! - `verbs/`: a file for each step, or for those that are alike.
//! - `keys`, `scripts`: the keys that are read without a script, and the scripts of lua/compact/.
//! - `nodes`: what operators are told of a cluster.
//! - `spread`, `heads`: which queues are spread over all partitions, and where their oldest jobs are.
//! - `dues`: when each partition is pumped; `steps`: steps of schedules on their way.
//!
//! A queue has all its jobs in its home until it is spread. Connections, deadlines, batches and the watch are those of the other layout.

mod buckets;
mod callers;
mod core;
mod dues;
mod heads;
mod keys;
mod nodes;
pub mod partitions;
mod place;
mod scripts;
mod spread;
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
use self::callers::Callers;
use self::core::{CompactCore, Place};
use self::dues::Dues;
use self::nodes::NodesOfPool;
use self::partitions::Partitions;
use self::scripts::Scripts;
pub use self::spread::SpreadRules;
use self::spread::Spreading;
use super::cluster;
use super::connection::connector::RedisAddress;
use super::connection::fault::{Fault, Outcome};
use super::link::{Common, Link};
use super::safety::{check_nodes, warn_of_tables};
use super::verbs::check::first_check;
use super::watch;
use crate::clock::Millis;
use crate::engine::delays::{DelayCount, Delays};
use crate::engine::nodes::Nodes;
use crate::engine::notifier::Notifier;
use crate::engine::observer::Observer;
use crate::engine::{
    By, Consumed, Detail, DueList, DueSchedules, Engine, Held, JobList, JobPage, NewId, Once, Pause, Pausing,
    Promoted, Publication, Published, Pumped, QueuePage, Quotas, Release, Released, Respawn, Respawned,
    ScheduleList, SchedulePage, ScheduleStep, Size, SizeOf, Stats, Stepped, Touched,
};
use crate::error::{Error, Result};
use crate::job::{Job, JobId, JobIds, JobRef, JobView, Receipt};
use crate::name::{JobKey, Namespace, PoolName, Queue, QueueList, QueueName};
use crate::outage::Outage;
use crate::process::tasks::{Failure, Tasks};
use crate::random;

/// ZADD takes LT since 6.2; a slot's channels, which servers are to tell each other by, are there since this version.
pub const OLDEST: (u32, u32) = (7, 0);

/// How a pool in this layout is cut up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompactLayout {
    /// What every key begins with.
    pub prefix: String,
    /// How many partitions: a power of two up to 4096.
    pub partitions: u16,
    /// How many replicas must have what was asked before it is answered.
    pub wait_replicas: u16,
    /// Which queues lie in all of them.
    pub spread: SpreadRules,
}

/// A pool of jobs on a Redis or in a cluster, in the compact layout.
#[derive(Debug)]
pub struct CompactEngine {
    core: Arc<CompactCore>,
    _closing: Closing,
}

/// Ends the tasks of an engine that is dropped without `close`: its own first.
#[derive(Debug)]
struct Closing {
    _tasks: DropGuard,
    _place: Vec<DropGuard>,
}

/// What a pool is on, and what ends its tasks.
type OpenedPlace = (Common, Place, Vec<DropGuard>);

/// One Redis.
async fn open_one(
    address: RedisAddress,
    name: &PoolName,
    layout: &CompactLayout,
    (partitions, spreading): (&Arc<Partitions>, &Arc<Spreading>),
) -> Result<OpenedPlace> {
    let lists = keys::Ready(partitions.clone(), spreading.clone());
    let mut opened = Link::open(&address, name, lists, layout.wait_replicas).await?;
    let link = opened.link.clone();
    first_check(&link, &mut opened.first, OLDEST).await?;
    let mut use_first = redis::cmd("SETNX");
    use_first.arg(partitions.pool_key()).arg(layout.partitions);
    let _: u64 = opened.first.query(&use_first).await?;
    let kept: u16 = opened.first.query(redis::cmd("GET").arg(partitions.pool_key())).await?;
    layout.fits(kept)?;
    warn_of_tables(&mut opened.first, &link.common.pool).await;
    let guards = opened.keep();
    link.tasks.spawn_essential("the watch of ready lists", watch::run(link.clone()));
    link.connected().await;
    if layout.wait_replicas > 0 {
        let _ = link.look_at_replicas().await; // who cannot say has too few
        link.tasks.spawn_essential("the watch of replicas", link.clone().watch_replicas());
    }
    Ok((link.common.clone(), Place::One(link), guards.into()))
}

/// A cluster. A pool that was used before begins with the nodes that answer; a new one needs all of them.
async fn open_cluster(
    address: RedisAddress,
    name: &PoolName,
    layout: &CompactLayout,
    (partitions, spreading): (&Arc<Partitions>, &Arc<Spreading>),
) -> Result<OpenedPlace> {
    let common = Common::new(name, layout.wait_replicas, Failure::default());
    if let Some(version) = check_nodes(&address, &common.pool, OLDEST).await? {
        let _ = common.version.set(version); // asked once
    }
    let lists = Arc::new(keys::Ready(partitions.clone(), spreading.clone()));
    let opened = cluster::open(address, common.clone(), partitions.slots(), lists).await?;
    let (mut known, mut missing) = (false, Vec::new());
    for (slot, key) in partitions.pool_keys() {
        match opened.query::<Option<u16>>(slot, redis::cmd("GET").arg(&key)).await {
            Ok(Some(kept)) => {
                layout.fits(kept)?;
                known = true;
            }
            Ok(None) => missing.push((slot, key)),
            Err(fault) if fault.is_refusal() => return Err(fault.into()),
            Err(_) => {}
        }
    }
    if !known && (missing.len() < partitions.pool_keys().len() || !opened.serves_all()) {
        return Err(Error::away(
            "the first start of a pool needs every slot of the cluster to be served, and some are not",
        ));
    }
    for (slot, key) in missing {
        let kept = async {
            let _: u64 = opened.query(slot, redis::cmd("SETNX").arg(&key).arg(layout.partitions)).await?;
            opened.query::<u16>(slot, redis::cmd("GET").arg(&key)).await
        };
        match kept.await {
            // Another server that starts for the first time may have been faster, with another number.
            Ok(kept) => layout.fits(kept)?,
            Err(fault) if !known => return Err(fault.into()),
            Err(_) => {}
        }
    }
    let (cluster, guard) = opened.keep();
    Ok((common, Place::Cluster(cluster), vec![guard]))
}

impl CompactLayout {
    /// The key that has the number of partitions.
    pub fn pool_key(&self) -> String {
        Partitions::new(&self.prefix, self.partitions).pool_key()
    }

    /// The same in a cluster, where it is in several slots: slot, key.
    pub fn pool_keys(&self) -> Vec<(u16, String)> {
        Partitions::new(&self.prefix, self.partitions).pool_keys()
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
        let spreading = Arc::new(Spreading::new(layout.spread.clone(), partitions.clone()));
        let (common, place, closing) = if address.cluster {
            open_cluster(address, name, layout, (&partitions, &spreading)).await?
        } else {
            open_one(address, name, layout, (&partitions, &spreading)).await?
        };
        let tasks = Tasks::new(common.failure.clone());
        let core = Arc::new(CompactCore {
            common,
            place,
            tasks: tasks.clone(),
            scripts: Scripts::default(),
            dues: Dues::new(partitions.count()),
            server: random::bytes(),
            publishes: Callers::new(partitions.count()),
            spread_publishes: Callers::new(partitions.count()),
            spreading,
            owed: Mutex::default(),
            acks: Callers::new(partitions.count()),
            steps: Callers::new(partitions.count()),
            has_schedules: AtomicBool::new(false),
            partitions,
            buckets: Buckets::default(),
            pauses_end: Mutex::default(),
            quotas: RwLock::default(),
            setting_quotas: tokio::sync::Mutex::default(),
        });
        tasks.spawn_essential("the count of namespaces with a quota", verbs::quotas::run(core.clone()));
        let _closing = Closing { _tasks: tasks.stopping().clone().drop_guard(), _place: closing };
        Ok(Arc::new(CompactEngine { core, _closing }))
    }

    /// The version of the Redis, if it says.
    pub fn version(&self) -> Option<&str> {
        self.core.common.version.get().map(String::as_str)
    }

    /// Hears of every connection that is lost, and of what the engine's users tell it.
    pub fn outage(&self) -> Arc<Outage> {
        self.core.common.outage.clone()
    }

    /// Waits until a task has died that the engine cannot do without, and says which. Calls to such an engine
    /// may be answered with [`Closed`](crate::error::Error::Closed).
    pub fn failed(&self) -> impl Future<Output = String> + Send + use<> {
        let failure = self.core.common.failure.clone();
        async move { failure.reported().await.to_owned() }
    }

    /// Its nodes, in a cluster.
    pub fn nodes(&self) -> Option<Arc<dyn Nodes>> {
        match &self.core.place {
            Place::One(_) => None,
            Place::Cluster(cluster) => Some(Arc::new(NodesOfPool::new(&self.core, cluster))),
        }
    }

    fn open(&self) -> Result<&Arc<CompactCore>> {
        if self.core.tasks.stopping().is_cancelled() { Err(Error::Closed) } else { Ok(&self.core) }
    }
}

#[async_trait]
impl Engine for CompactEngine {
    fn now(&self) -> Millis {
        self.core.now()
    }

    /// In the queue's home; of one that is spread where what it is beside says, or where it is whose turn it is.
    fn make_id(&self, _ids: &JobIds, of: NewId<'_>) -> JobId {
        let partition = self.core.partition_for(&of);
        self.core.buckets.make_id(self.core.now_in(partition), partition, &of)
    }

    fn id_at_home(&self, queue: &Queue, id: JobId) -> JobId {
        self.core.partitions.with_partition(&id, self.core.partition_of(queue))
    }

    async fn publish(&self, publication: Publication) -> Result<Published> {
        let published = self.open()?.publish(publication).await;
        if let Err(Error::Unreachable(_)) = &published {
            // Nothing was done. Nodes are left while it closes.
            self.open()?;
        }
        published
    }

    async fn recall(&self, queue: &Queue, once: &Once) -> Result<Option<Published>> {
        self.open()?.recall(queue, once).await
    }

    async fn cancel_key(&self, queue: &Queue, key: &JobKey) -> Result<bool> {
        self.open()?.cancel_key(queue, key).await
    }

    async fn consume(&self, queues: &QueueList, ttrs: &[Duration]) -> Result<Consumed> {
        self.open()?.consume(queues, ttrs, false).await
    }

    async fn consume_notified(&self, queues: &QueueList, ttrs: &[Duration]) -> Result<Consumed> {
        self.open()?.consume(queues, ttrs, true).await
    }

    async fn give_back(&self, jobs: Vec<Job>) -> Result<()> {
        self.open()?.give_back(jobs).await
    }

    async fn ack(&self, queue: &Queue, jobs: &[(JobId, Option<Receipt>)]) -> Result<Vec<JobId>> {
        if let [(id, None)] = jobs {
            self.open()?.ack_one(JobRef { queue: queue.clone(), id: *id }).await?;
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

    async fn promote(&self, _: &Queue, _: By<'_>) -> Result<Promoted> {
        self.open()?;
        Err(Error::refused("a job cannot be promoted in the compact layout yet"))
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

    async fn forget_queue(&self, _: &Queue) -> Result<()> {
        self.open()?;
        Err(Error::refused("a queue cannot be forgotten in the compact layout yet"))
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
        self.core.common.notifiers.attach(notifier);
    }

    fn watch(&self, queue: &Queue) {
        self.core.arm(queue);
    }

    fn observe(&self, observer: Arc<dyn Observer>) {
        self.core.common.observers.attach(observer);
    }

    async fn check(&self) -> Result<()> {
        let core = self.open()?;
        match &core.place {
            Place::One(link) => link.check().await,
            Place::Cluster(cluster) => NodesOfPool::new(core, cluster).check().await,
        }
    }

    async fn close(&self) {
        self.core.tasks.stop();
        self.core.tasks.ended().await;
        match &self.core.place {
            Place::One(link) => link.close().await,
            Place::Cluster(cluster) => cluster.close().await,
        }
    }
}
