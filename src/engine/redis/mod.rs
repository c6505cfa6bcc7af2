//! The store on a Redis or in a Redis Cluster, in lmstfy's own layout: any number of Dormouse and lmstfy servers may
//! serve one Redis at the same time. One step is one script; no state is kept here that another server would need.
//!
//! A pool has one or many *partitions*, each a complete small store whose keys have its base as prefix. A single Redis
//! is one partition with an empty base.
//!
//! - `router/`: which partitions a call concerns; `partitions`: their bases, and the hash of a queue; `spread`,
//!   `hints`: queues that use all of them, and where their ready jobs are.
//! - `core`: one partition; `verbs/`: a file for each step in it, named as on disk.
//! - `pool`: state shared by all partitions, and the entry point for calls; `link`: the connections to one node;
//!   `cluster/`: the nodes of a cluster; `open`: opening a pool.
//! - `connection/`: opening, maintaining and sharing connections, and calls in flight when they break.
//! - `layout/`: keys, values, and the scripts of lua/.
//! - `copies`, `counting`, `timer_counts`, `arming`, `cache`, `clock`, `dues`: in-memory state of this process;
//!   `batches`: calls that share a script call.
//! - `in_time`: deadlines of calls, and late replies.
//! - `replicas`, `waits`: which replicas are in sync, and whether they have a write.
//! - `watch`, `lists`: notifies of jobs that other servers made ready.
//! - `packing`: which packed jobs share a bucket.
//! - `reply`: reads replies of scripts, and has errors shared by several of them.
//! - `tables`: location of tokens, limits and records of push, on a single Redis or in a cluster.
//! - `nodes`: the operators' view of a cluster.
//! - `safety`: whether the server is configured to keep jobs; `look`: whether it can be used at all.
//!
//! Knows no HTTP, and of the engine trait's callers only their notifiers.

mod arming;
mod batches;
mod cache;
mod clock;
mod cluster;
pub(crate) mod connection;
mod copies;
mod core;
mod counting;
mod dues;
mod hints;
mod in_time;
pub(crate) mod layout;
mod link;
mod lists;
mod look;
mod nodes;
mod open;
mod packing;
mod partitions;
mod pool;
mod ready_lists;
mod replicas;
mod reply;
mod router;
mod safety;
mod spread;
pub(crate) mod tables;
mod timer_counts;
pub(crate) mod verbs;
mod waits;
mod watch;

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use tokio_util::sync::DropGuard;

pub use connection::connector::RedisAddress;
pub use look::look;
pub use open::RedisOptions;
pub use safety::{Unsafe, check_safety};
pub use spread::SpreadRules;

use crate::clock::Millis;
use crate::engine::delays::{DelayCount, Delays};
use crate::engine::nodes::Nodes;
use crate::engine::notifier::Notifier;
use crate::engine::{
    By, Consumed, Detail, Engine, Held, JobList, JobPage, Listing, Once, Promoted, Publication, Published,
    Pumped, QueuePage, Quotas, Release, Released, Respawn, Respawned, Size, SizeOf, Stats, Touched, Usage,
};
use crate::error::Result;
use crate::job::{Job, JobId, JobIds, JobRef, JobView, Receipt};
use crate::name::{JobKey, Namespace, PoolName, Queue, QueueList, QueueName};
use crate::outage::Outage;

use self::core::PartitionCore;
use self::lists::PoolLists;
use self::nodes::NodesOfPool;
use self::open::{open_cluster, open_one};
use self::partitions::Partitions;
use self::pool::{Place, Pool};
use self::router::Router;
use self::spread::Spreading;
use self::verbs::{quotas, timer_counts as timers};

/// A pool of jobs on a Redis or in a cluster.
#[derive(Debug)]
pub struct RedisEngine {
    router: Arc<Router>,
    _closing: Closing,
}

/// Ends the tasks of an engine that is dropped without `close`: its own first.
#[derive(Debug)]
struct Closing {
    _tasks: DropGuard,
    _place: Vec<DropGuard>,
}

impl RedisEngine {
    /// Connects to a single Redis, and starts the engine's tasks. `Away` or `Refused` if Redis cannot be used now; once
    /// connected, the engine outlives any outage.
    pub async fn connect(address: RedisAddress, name: &PoolName) -> Result<Arc<RedisEngine>> {
        RedisEngine::connect_with(address, name, &RedisOptions::default()).await
    }

    /// Like `connect`, with options; to a cluster if the address names one. `Refused` also if the pool has another
    /// number of partitions.
    pub async fn connect_with(
        address: RedisAddress,
        name: &PoolName,
        options: &RedisOptions,
    ) -> Result<Arc<RedisEngine>> {
        let in_cluster = address.cluster;
        let partitions = Arc::new(match in_cluster {
            true => Partitions::new(&options.prefix, options.partitions),
            false => Partitions::single(),
        });
        let spreading = Arc::new(Spreading::new(options.spread.clone(), partitions.count()));
        let lists = PoolLists { partitions: partitions.clone(), spreading: spreading.clone() };
        let (common, place, closing) = match in_cluster {
            true => open_cluster(address, name, options, (&partitions, lists)).await?,
            false => open_one(address, name, options, lists).await?,
        };
        let pool = Arc::new(Pool::new(
            common,
            place,
            spreading,
            partitions.count(),
            (options.dead_ttl, options.pack_after),
        ));
        let part =
            |partition| Arc::new(PartitionCore::new(pool.clone(), partition, partitions.base(partition)));
        let parts: Vec<Arc<PartitionCore>> = partitions.all().map(part).collect();
        let router = Arc::new(Router::new(pool.clone(), parts, partitions));
        let tasks = &pool.tasks;
        let _closing = Closing { _tasks: tasks.stopping().clone().drop_guard(), _place: closing };
        for part in &router.parts {
            let count = quotas::run(part.clone());
            tasks.spawn_essential("the quota count", count);
            tasks.spawn_essential("the record of timers", timers::record(part.clone()));
            tasks.spawn_essential("the recount of timers", timers::recount(part.clone()));
            part.spawn_finisher();
        }
        match &pool.place {
            Place::One(link) => {
                link.connected().await;
                router.refuse_earlier().await?;
            }
            Place::Cluster(_) => {
                let (accepted, ()) = tokio::join!(router.refuse_earlier(), router.look_for_scattered());
                accepted?;
                tasks.spawn_essential(
                    "the search for scattered queues",
                    router::scattered::run(router.clone()),
                );
                tasks.spawn_essential("the quota sampler", router::quotas::run(router.clone()));
            }
        }
        Ok(Arc::new(RedisEngine { router, _closing }))
    }

    /// Returns the version of Redis, if it reports one.
    pub fn version(&self) -> Option<&str> {
        self.router.pool.common.version.get().map(String::as_str)
    }

    /// Returns the outage, which is informed of every lost connection and by the engine's callers.
    pub fn outage(&self) -> Arc<Outage> {
        self.router.pool.common.outage.clone()
    }

    /// Waits until a task that the engine needs has died, and returns its name. Calls to such an engine may return
    /// [`Closed`](crate::error::Error::Closed).
    pub fn failed(&self) -> impl Future<Output = String> + Send + use<> {
        let failure = self.router.pool.common.failure.clone();
        async move { failure.reported().await.to_owned() }
    }

    /// Its nodes, in a cluster.
    pub fn nodes(&self) -> Option<Arc<dyn Nodes>> {
        match &self.router.pool.place {
            Place::One(_) => None,
            Place::Cluster(cluster) => Some(Arc::new(NodesOfPool::new(&self.router, cluster))),
        }
    }

    /// The router, unless the engine is closing.
    fn open(&self) -> Result<&Arc<Router>> {
        self.router.pool.is_open().map(|()| &self.router)
    }
}

#[async_trait]
impl Engine for RedisEngine {
    fn now(&self) -> Millis {
        self.router.now()
    }

    fn make_id(&self, ids: &JobIds, queue: &Queue, delay: Duration, versioned: bool) -> JobId {
        self.router.make_id(ids, queue, delay, versioned)
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
            self.open()?.ack_one(queue, *id).await?;
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
        self.open()?.inspect(queue, by, detail).await
    }

    async fn promote(&self, queue: &Queue, by: By<'_>) -> Result<Promoted> {
        self.open()?.promote(queue, by).await
    }

    async fn list_jobs(&self, queue: &Queue, list: JobList) -> Result<Option<JobPage>> {
        self.open()?.list_jobs(queue, list).await
    }

    async fn size(&self, queue: &Queue, of: SizeOf) -> Result<Size> {
        self.open()?.size(queue, of).await
    }

    async fn destroy(&self, queue: &Queue, listing: Listing) -> Result<()> {
        self.open()?.destroy(queue, listing).await
    }

    async fn respawn(&self, queue: &Queue, which: Respawn<'_>) -> Result<Respawned> {
        self.open()?.respawn(queue, which).await
    }

    async fn delete_dead(&self, queue: &Queue, limit: u64) -> Result<u64> {
        self.open()?.delete_dead(queue, limit).await
    }

    async fn pump(&self) -> Result<Pumped> {
        self.open()?.pump().await
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

    async fn set_quotas(&self, quotas: &Quotas) -> Result<BTreeMap<Namespace, Usage>> {
        self.open()?.set_quotas(quotas).await
    }

    fn attach(&self, notifier: Weak<dyn Notifier>) {
        self.router.pool.common.notifiers.attach(notifier);
    }

    fn watch(&self, queue: &Queue) {
        self.router.watch(queue);
    }

    async fn check(&self) -> Result<()> {
        let router = self.open()?;
        match &router.pool.place {
            Place::One(link) => link.check().await,
            Place::Cluster(cluster) => NodesOfPool::new(router, cluster).check().await,
        }
    }

    async fn close(&self) {
        self.router.pool.tasks.stop();
        self.router.pool.tasks.ended().await;
        self.router.pool.place.close().await;
    }
}
