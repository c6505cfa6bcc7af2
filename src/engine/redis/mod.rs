//! The store on a Redis, in lmstfy's own layout: any number of Dormouse and lmstfy servers may serve one Redis
//! at the same time. One step is one script; nothing is kept here that another server would need.
//!
//! - `connection/`: how connections are made, kept and shared, and what becomes of calls when they break.
//! - `layout/`: keys, values, and the scripts of lua/.
//! - `verbs/`: a file for each step, named as on disk.
//! - `link`: the connections to one node; `pool`: what all partitions share, and the entry point for calls; `core`: one
//!   partition; `pauses`, `copies`, `counting`, `arming`, `cache`, `clock`: what this
//!   process remembers; `batches`: which calls share a script call.
//! - `in_time`: deadlines of calls, and answers that come too late.
//! - `replicas`, `waits`: which replicas are in step, and whether they have what was asked.
//! - `watch`: notifies of jobs that others made ready.
//! - `reply`: how answers of scripts are read, and what several of them refuse.
//! - `tables`: tokens, limits and what push keeps: their place on one Redis or in a cluster.
//! - `safety`: whether the server is set up to keep jobs; `look`: whether it can be used at all.
//!
//! Knows no HTTP, and of the engine trait's callers only their notifiers.

mod arming;
mod batches;
mod cache;
mod clock;
mod cluster;
mod compact;
pub(crate) mod connection;
mod copies;
mod core;
mod counting;
mod in_time;
pub(crate) mod layout;
mod link;
mod look;
mod pauses;
mod pool;
mod ready_lists;
mod replicas;
mod reply;
mod safety;
pub(crate) mod tables;
pub(crate) mod verbs;
mod waits;
mod watch;

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::Mutex;
use tokio_util::sync::DropGuard;

pub use compact::{CompactEngine, CompactLayout, SpreadRules};
pub use connection::connector::RedisAddress;
pub use look::look;
pub use safety::{Unsafe, check_safety};

use crate::clock::Millis;
use crate::engine::batch;
use crate::engine::delays::{DelayCount, Delays};
use crate::engine::notifier::Notifier;
use crate::engine::observer::Observer;
use crate::engine::{
    By, Consumed, Detail, DueList, DueSchedules, Engine, Held, JobList, JobPage, Once, Pause, Pausing,
    Promoted, Publication, Published, Pumped, QueuePage, Quotas, Release, Released, Respawn, Respawned,
    ScheduleList, SchedulePage, ScheduleStep, Size, SizeOf, Stats, Stepped, Touched,
};
use crate::error::Result;
use crate::job::{Job, JobId, JobRef, JobView, Receipt};
use crate::name::{JobKey, Namespace, PoolName, Queue, QueueList, QueueName};
use crate::outage::Outage;
use batches::{MAX_WAITING, serve};
use layout::keys::Keys;
use link::PUBLISHERS;
use verbs::check::{OLDEST, first_check};
use verbs::{pause, quotas};

use self::copies::Copies;
use self::core::RedisCore;
use self::link::Link;
use self::pool::{Place, Pool};

/// A pool of jobs on a Redis.
#[derive(Debug)]
pub struct RedisEngine {
    core: Arc<RedisCore>,
    /// Ends the tasks of an engine that is dropped without `close`: its own first.
    _closing: [DropGuard; 3],
}

impl RedisEngine {
    /// Connects, and begins the engine's tasks. `Away` or `Refused` when the Redis cannot be used now; once
    /// connected, the engine outlives any outage.
    pub async fn connect(address: RedisAddress, name: &PoolName) -> Result<Arc<RedisEngine>> {
        RedisEngine::connect_with(address, name, Duration::ZERO).await
    }

    /// The same; jobs that die from now on are kept for `dead_ttl`, or forever if it is zero.
    pub async fn connect_with(
        address: RedisAddress,
        name: &PoolName,
        dead_ttl: Duration,
    ) -> Result<Arc<RedisEngine>> {
        let mut opened = Link::open(&address, name, Keys::default(), 0).await?;
        let link = opened.link.clone();
        first_check(&link, &mut opened.first, OLDEST).await?;
        let (publishes, publish_calls) = batch::channel(MAX_WAITING, batches::PUBLISHES);
        let (acks, ack_calls) = batch::channel(MAX_WAITING, batches::ACKS);
        let (steps, step_calls) = batch::channel(MAX_WAITING, batches::PUBLISHES);
        let pool = Arc::new(Pool::new(link.common.clone(), Place::One(link.clone())));
        let tasks = &pool.tasks.clone();
        let core = Arc::new(RedisCore {
            pool,
            partition: 0,
            keys: Keys::default(),
            publishes,
            acks,
            steps,
            copies: Copies::default(),
            finishing: Mutex::default(),
            far_looks: Mutex::default(),
            looked_for_dropped: AtomicU64::default(),
            dead_ttl,
        });
        let [of_link, of_keepers] = opened.keep();
        let guards = [tasks.stopping().clone().drop_guard(), of_link, of_keepers];
        link.tasks.spawn_essential("the watch of ready lists", watch::run(link.clone()));
        tasks.spawn_essential("the watch of pauses", pause::run(core.clone()));
        tasks.spawn_essential("the count of namespaces with a quota", quotas::run(core.clone()));
        core.spawn_finisher();
        serve(
            publish_calls,
            tasks,
            ("a task that publishes", PUBLISHERS),
            &core,
            |core, own, batch| async move {
                core.publish_batch(own, batch).await;
            },
        );
        serve(ack_calls, tasks, ("the task that acks", 1), &core, |core, _, batch| async move {
            core.ack_batch(batch).await;
        });
        let steps = "a task that takes steps of schedules";
        serve(step_calls, tasks, (steps, PUBLISHERS), &core, |core, own, batch| async move {
            core.step_schedules(own, batch).await;
        });
        link.connected().await;
        Ok(Arc::new(RedisEngine { core, _closing: guards }))
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

    /// What does the work, unless the engine is closing.
    fn open(&self) -> Result<&Arc<RedisCore>> {
        self.core.is_open().map(|()| &self.core)
    }
}

#[async_trait]
impl Engine for RedisEngine {
    fn now(&self) -> Millis {
        self.core.now()
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
            self.open()?.acks.call(JobRef { queue: queue.clone(), id: *id }).await?;
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
        let core = self.open()?;
        match (by, detail) {
            (By::Key(key), detail) => core.inspect_key(queue, key, detail).await,
            (By::Id(id), Detail::Stored) => core.inspect_stored(&JobRef { queue: queue.clone(), id }).await,
            (By::Id(id), _) => core.inspect(&JobRef { queue: queue.clone(), id }, detail.held_with()).await,
        }
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

    async fn destroy(&self, queue: &Queue) -> Result<()> {
        self.open()?.destroy(queue).await
    }

    async fn forget_queue(&self, queue: &Queue) -> Result<()> {
        self.open()?.forget_queue(queue).await
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
        self.open()?.all_paused().await
    }

    async fn pump(&self) -> Result<Pumped> {
        self.open()?.pump().await
    }

    async fn due_earlier(&self) {
        self.core.next_due.earlier().await;
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
        if let Some(link) = self.core.place.link(self.core.partition) {
            link.watch.arm([queue.clone()]);
        }
    }

    fn observe(&self, observer: Arc<dyn Observer>) {
        self.core.common.observers.attach(observer);
    }

    async fn check(&self) -> Result<()> {
        match &self.open()?.place {
            Place::One(link) => link.check().await,
            Place::Cluster(_) => Ok(()),
        }
    }

    async fn close(&self) {
        self.core.tasks.stop();
        self.core.tasks.ended().await;
        self.core.place.close().await;
    }
}
