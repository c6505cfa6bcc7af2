//! What handlers share: the pools, who may use them, what is bounded, and what is under way. It decides nothing. Of
//! `http` it imports `answer`.

pub mod about;
pub mod changes;
pub mod cursors;
pub mod delays;
pub mod failed_logins;
pub mod idempotency;
pub mod parked_tokens;
pub mod proxies;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use axum::extract::State;
use tokio::sync::Semaphore;

use self::about::About;
use self::changes::Changes;
use self::cursors::Cursors;
use self::delays::DelayCounts;
use self::failed_logins::FailedLogins;
use self::idempotency::KeysUnderWay;
use self::parked_tokens::ParkedTokens;
use self::proxies::TrustedProxies;
use crate::admin::limits::Throttle;
use crate::admin::quotas::QuotaManager;
use crate::admin::tokens::TokenManager;
use crate::bulk::Bulk;
use crate::clock::{Began, Millis, system_now};
use crate::config::{Secret, ShowBodies};
use crate::dispatch::{Dispatcher, ParkedPolls};
use crate::engine::Engine;
use crate::engine::backup::Backup;
use crate::engine::nodes::Nodes;
use crate::fleet::Fleet;
use crate::history;
use crate::http::answer::room::BodyRoom;
use crate::job::JobIds;
use crate::metrics::{KeptTimes, Metrics};
use crate::name::PoolName;
use crate::outage::Outage;
use crate::process::tasks::{Failure, Tasks};
use crate::push::Push;
use crate::sampler::Sampler;
use crate::scheduler::Scheduler;

/// The largest job, in bytes.
pub const MAX_JOB: usize = 1 << 20;
/// The most bytes of jobs that an answer shows, unless its first job is larger. Of a consume the others go back.
pub const MAX_ANSWER: usize = 8 << 20;

/// How many searches for what is in jobs run at a time.
pub const MOST_SEARCHES: usize = 2;

/// How a handler takes the state.
pub type App = State<Arc<AppState>>;

/// What requests need of a pool.
#[derive(Debug)]
pub struct PoolState {
    pub name: PoolName,
    pub engine: Arc<dyn Engine>,
    pub dispatcher: Arc<Dispatcher>,
    /// Hears of requests that fail, and of those that work.
    pub outage: Arc<Outage>,
    /// What falls due when, as it was counted last.
    pub delays: DelayCounts,
    pub scheduler: Arc<Scheduler>,
    /// Its figures, as they were read last.
    pub sampler: Arc<Sampler>,
    /// Ids of the jobs published to this pool.
    pub ids: Arc<JobIds>,
}

/// What publish and consume take for parameters that are not given.
#[derive(Debug, Clone, Copy)]
pub struct Defaults {
    /// Seconds; 0 is forever.
    pub ttl: u32,
    /// Seconds.
    pub delay: u32,
    pub tries: u16,
    /// Seconds.
    pub ttr: u32,
    /// Seconds.
    pub timeout: u32,
}

/// Whether the server should get requests.
#[derive(Debug)]
pub struct Readiness {
    draining: AtomicBool,
    failure: Failure,
}

impl Readiness {
    /// Ready until `failure` is reported, or the server is told to stop.
    pub fn new(failure: Failure) -> Readiness {
        Readiness { draining: AtomicBool::new(false), failure }
    }

    /// The server stops: load balancers should send no more.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::SeqCst);
    }

    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    /// What has failed for good, if anything has.
    pub fn failure(&self) -> Option<&str> {
        self.failure.reason()
    }
}

/// A pool that copies itself, and its turn.
pub type Backups = (Arc<dyn Backup>, Arc<tokio::sync::Mutex<()>>);

#[derive(Debug)]
pub struct AppState {
    pub pools: BTreeMap<PoolName, Arc<PoolState>>,
    /// Queues whose jobs are sent to a URL.
    pub push: Arc<Push>,
    pub tokens: Arc<TokenManager>,
    pub throttle: Arc<Throttle>,
    pub cursors: Cursors,
    pub quotas: Arc<QuotaManager>,
    pub defaults: Defaults,
    pub metrics: Arc<Metrics>,
    /// What took how long, for pages.
    pub times: KeptTimes,
    /// What the configuration says of this server.
    pub about: About,
    /// The servers of the fleet.
    pub fleet: Arc<Fleet>,
    /// Actions on all jobs of a queue.
    pub bulk: Arc<Bulk>,
    /// What operators changed lately.
    pub changes: Arc<Changes>,
    /// Turns of searches for what is in jobs.
    pub searches: Semaphore,
    /// The time that samples go by. What is shown of it is told as [`shown`](AppState::shown) says.
    pub began: Began,
    /// What queues did lately.
    pub history: Arc<history::History>,
    /// What operators call this server: its machine, and its public port.
    pub server: String,
    /// How many polls are parked, over all pools.
    pub parked: Arc<ParkedPolls>,
    /// The tokens that they wait with.
    pub parked_tokens: Arc<ParkedTokens>,
    pub readiness: Readiness,
    /// Held while a scrape sets the sizes and writes them out, so that two scrapes do not mix.
    pub scrape: Arc<tokio::sync::Mutex<()>>,
    /// `-sv`: every token is accepted.
    pub skip_verification: bool,
    /// Users and passwords for the guarded routes of the admin port. Empty: everybody may use them.
    pub accounts: BTreeMap<String, Secret>,
    /// The same of those who may only look.
    pub read_only_accounts: BTreeMap<String, Secret>,
    /// Who sees what is in jobs, on the admin port.
    pub show_bodies: ShowBodies,
    /// Bounds the memory that large bodies take together.
    pub body_room: BodyRoom,
    /// The publishes with an idempotency key that are under way.
    pub under_way: Arc<KeysUnderWay>,
    /// The pools that copy themselves, each with its turn: one backup at a time.
    pub backups: BTreeMap<PoolName, Backups>,
    /// Those of the pools that are in a cluster.
    pub nodes: BTreeMap<PoolName, Arc<dyn Nodes>>,
    /// Who has tried wrong passwords lately.
    pub failed_logins: FailedLogins,
    pub access_log: AtomicBool,
    /// Who is believed who sent a request.
    pub trusted_proxies: Arc<TrustedProxies>,
    /// How many requests are under way, parked polls included.
    pub requests: AtomicUsize,
    /// Where handlers start tasks that outlive their request.
    pub tasks: Tasks,
}

impl AppState {
    /// Returns the time of day.
    pub fn now(&self) -> Millis {
        system_now()
    }

    /// When that was which was seen at this time of [`began`](AppState::began).
    pub fn shown(&self, time: Millis) -> Millis {
        self.began.of_day(time, self.now())
    }
}
