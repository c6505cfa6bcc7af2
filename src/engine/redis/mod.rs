//! The store on a Redis, in lmstfy's own layout: any number of Dormouse and lmstfy servers may serve one Redis
//! at the same time. One method is one script; nothing is kept here that another server would need.
//!
//! - `connect`, `pool`, `lane`, `outage`, `fault`: connections, and what becomes of calls when they break.
//! - `keys`, `value`, `scripts`: the bytes, and the scripts of lua/.
//! - `publish`, `consume`, `ack`: the hot path, coalesced. `give_back`, `pump`, `dead`, `look`:
//!   everything else.
//! - `wake`: rings for jobs that others made ready. `clock`, `known`: what this process remembers.
//! - `safety`: whether the server is set up to keep jobs.
//!
//! Knows no HTTP, and of the engine trait's callers only their bells.

mod ack;
mod cache;
mod clock;
pub(crate) mod connection;
mod consume;
mod dead_letter;
mod give_back;
pub(crate) mod layout;
mod peek;
mod publish;
mod pump;
mod safety;
mod watch;

use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

pub use connection::connector::RedisAddress;
pub use safety::{Unsafe, check_safety};

use crate::clock::Millis;
use crate::engine::batch::{self, Bound, Caller};
use crate::engine::next_due::NextDue;
use crate::engine::notifier::{Notifier, Notifiers};
use crate::engine::{Consumed, DeadLetter, Engine, Pumped, Stats};
use crate::error::{Error, Result};
use crate::job::{Job, JobId, JobRef, NewJob};
use crate::name::{PoolName, Queue, QueueList};
use cache::{Generations, Recorded};
use clock::RedisClock;
use connection::connector::Connector;
use connection::outage::Outage;
use connection::pool::Pool;
use connection::shared::SharedConnection;
use connection::worker::{Home, Serve, Siblings};
use layout::scripts::Scripts;

/// The most connections that one engine makes: lanes, wake-ups and the pool together.
pub const MAX_CONNECTIONS: usize = 16;
/// The most pooled connections for what is off the hot path.
const MOST_POOLED: usize = 4;
/// How many calls of one kind may wait for a lane.
const WAITING: usize = 16_384;
/// How long a new engine waits for its connections, in which a busy machine makes them too.
const GATHERING: Duration = Duration::from_secs(5);
/// How many running jobs' tries are remembered, so that an ack takes their timers too.
const MOST_RUNNING: usize = 131_072;

/// How many lanes each hot call has. More lanes make smaller batches, which cost the Redis more; with one alone
/// everybody waits behind a large bulk. Measured with 64 callers (tests/redis_measure.rs): two lanes cost within
/// a tenth of what one costs and answer as fast or faster; four cost a fifth more and gain nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lanes {
    pub publish: usize,
    pub ack: usize,
}

impl Default for Lanes {
    fn default() -> Lanes {
        Lanes { publish: 2, ack: 1 }
    }
}

/// What the engine, its lanes and its tasks have in common.
#[derive(Debug)]
pub(crate) struct Shared {
    pool: Arc<str>,
    links: Pool,
    scripts: Scripts,
    clock: RedisClock,
    next_due: NextDue,
    notifiers: Notifiers,
    recorded: Recorded,
    /// Tries left of the jobs that this process handed out: what their timer members are made of.
    running: Generations<JobId, u16>,
    watch: watch::Watch,
    outage: Arc<Outage>,
    closing: CancellationToken,
    tasks: TaskTracker,
}

/// A pool of jobs on a Redis.
#[derive(Debug)]
pub struct RedisEngine {
    shared: Arc<Shared>,
    publishes: Caller<publish::Publish, ()>,
    consumes: SharedConnection,
    acks: Caller<JobRef, ()>,
    /// Ends the tasks of an engine that is dropped without `close`.
    _closing: DropGuard,
}

impl RedisEngine {
    /// Connects, and begins the engine's tasks. `Away` or `Refused` when the Redis cannot be used now; once
    /// connected, the engine outlives any outage.
    pub async fn connect(address: RedisAddress, name: &PoolName) -> Result<Arc<RedisEngine>> {
        RedisEngine::connect_with(address, name, Lanes::default()).await
    }

    /// The same with other numbers of lanes: for benchmarks.
    pub async fn connect_with(
        address: RedisAddress,
        name: &PoolName,
        lanes: Lanes,
    ) -> Result<Arc<RedisEngine>> {
        let lanes = Lanes { publish: lanes.publish.clamp(1, 4), ack: lanes.ack.clamp(1, 3) };
        // With the ones for consumes and for watching; at most 9, so at least four are left below MAX_CONNECTIONS.
        let fixed = lanes.publish + lanes.ack + 2;
        let pooled = address.pool_size.saturating_sub(fixed).clamp(1, MOST_POOLED);
        let connector = Arc::new(Connector::new(&address)?);
        let closing = CancellationToken::new();
        let pool: Arc<str> = name.as_str().into();
        let shared = Arc::new(Shared {
            outage: Outage::new(pool.clone()),
            pool,
            links: Pool::new(connector.clone(), pooled)?,
            scripts: Scripts::default(),
            clock: RedisClock::new(),
            next_due: NextDue::default(),
            notifiers: Notifiers::default(),
            recorded: Recorded::default(),
            running: Generations::new(MOST_RUNNING),
            watch: watch::Watch::default(),
            closing: closing.clone(),
            tasks: TaskTracker::new(),
        });
        shared.greet().await?;
        // From here on tasks run, which end with it, also when the caller gives up.
        let guard = closing.clone().drop_guard();
        let home = Home {
            pool: shared.pool.clone(),
            connector,
            outage: shared.outage.clone(),
            closing: closing.clone(),
        };
        shared.tasks.spawn(watch::run(shared.clone(), home.clone()));
        let (finisher, end) = (shared.clone(), closing.clone());
        shared.tasks.spawn(async move { end.run_until_cancelled(finisher.finish_dropped()).await });
        let publishes =
            open(&home, &shared, lanes.publish, publish::BOUND, || publish::Publisher(shared.clone()));
        let (consumes, keep) = SharedConnection::new(home.clone());
        shared.tasks.spawn(keep);
        let acks = open(&home, &shared, lanes.ack, ack::BOUND, || ack::Acker(shared.clone()));
        // The Redis is there: so are the lanes, a moment later. One that cannot be made is no reason to stop.
        let _ = shared.outage.over(GATHERING).await;
        Ok(Arc::new(RedisEngine { shared, publishes, consumes, acks, _closing: guard }))
    }
}

/// Opens a number of lanes with one queue of calls.
fn open<S: Serve>(
    home: &Home,
    shared: &Shared,
    lanes: usize,
    bound: Bound,
    server: impl Fn() -> S,
) -> Caller<S::Request, S::Reply> {
    let (caller, calls) = batch::channel(WAITING, bound);
    let siblings = Siblings::new(calls);
    for _ in 0..lanes {
        shared.tasks.spawn(siblings.lane(home.clone(), server()).run());
    }
    caller
}

impl Shared {
    /// `Closed` once the engine is closing.
    fn open(&self) -> Result<()> {
        if self.closing.is_cancelled() { Err(Error::Closed) } else { Ok(()) }
    }
}

#[async_trait]
impl Engine for RedisEngine {
    fn now(&self) -> Millis {
        self.shared.clock.now()
    }

    async fn publish(&self, jobs: Vec<NewJob>) -> Result<()> {
        self.publishes.call(publish::Publish { jobs, old: None }).await
    }

    async fn republish(&self, old: JobRef, new: NewJob) -> Result<()> {
        self.publishes.call(publish::Publish { jobs: vec![new], old: Some(old) }).await
    }

    async fn consume(&self, queues: &QueueList, ttrs: &[Duration]) -> Result<Consumed> {
        self.shared.open()?;
        self.shared.consume(&self.consumes, queues, ttrs).await
    }

    async fn give_back(&self, jobs: Vec<Job>) -> Result<()> {
        self.shared.open()?;
        self.shared.give_back(jobs).await
    }

    async fn ack(&self, job: JobRef) -> Result<()> {
        self.acks.call(job).await
    }

    async fn peek(&self, queue: &Queue) -> Result<Option<Job>> {
        self.shared.open()?;
        self.shared.peek(queue).await
    }

    async fn peek_job(&self, job: &JobRef) -> Result<Option<Job>> {
        self.shared.open()?;
        self.shared.peek_job(job).await
    }

    async fn size(&self, queue: &Queue) -> Result<u64> {
        self.shared.open()?;
        self.shared.size(queue).await
    }

    async fn destroy(&self, queue: &Queue) -> Result<()> {
        self.shared.open()?;
        self.shared.destroy(queue).await
    }

    async fn dead_letter(&self, queue: &Queue) -> Result<DeadLetter> {
        self.shared.open()?;
        self.shared.dead_letter(queue).await
    }

    async fn respawn(&self, queue: &Queue, limit: u64, ttl: Option<Duration>) -> Result<u64> {
        self.shared.open()?;
        self.shared.respawn(queue, limit, ttl).await
    }

    async fn delete_dead(&self, queue: &Queue, limit: u64) -> Result<u64> {
        self.shared.open()?;
        self.shared.delete_dead(queue, limit).await
    }

    async fn pump(&self, limit: usize) -> Result<Pumped> {
        self.shared.open()?;
        self.shared.pump(limit).await
    }

    async fn due_earlier(&self) {
        self.shared.next_due.earlier().await;
    }

    async fn queues(&self) -> Result<Vec<Queue>> {
        self.shared.open()?;
        self.shared.queues().await
    }

    async fn stats(&self) -> Result<Stats> {
        self.shared.open()?;
        self.shared.stats().await
    }

    fn attach(&self, notifier: Weak<dyn Notifier>) {
        self.shared.notifiers.attach(notifier);
    }

    fn watch(&self, queue: &Queue) {
        self.shared.watch.arm([queue.clone()]);
    }

    async fn check(&self) -> Result<()> {
        self.shared.open()?;
        self.shared.check().await
    }

    async fn close(&self) {
        self.shared.closing.cancel();
        self.shared.tasks.close();
        self.shared.tasks.wait().await;
        self.shared.links.close();
    }
}
