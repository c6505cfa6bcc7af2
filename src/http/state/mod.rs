//! State shared by handlers: pools, authorization, limits, and requests in flight. It decides nothing. Within `http`,
//! it imports `answer`.

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
use crate::pauses::Pauses;
use crate::process::tasks::{Failure, Tasks};
use crate::push::Push;
use crate::sampler::Sampler;
use crate::scheduler::Scheduler;

/// Maximum size of a job in bytes.
pub const MAX_JOB: usize = 1 << 20;
/// Maximum bytes of jobs in a reply, unless its first job is larger. Further jobs of a consume return to their
/// queues.
pub const MAX_ANSWER: usize = 8 << 20;

/// Maximum concurrent searches for the contents of jobs.
pub const MOST_SEARCHES: usize = 2;

/// Extractor of the state.
pub type App = State<Arc<AppState>>;

/// State of one pool.
#[derive(Debug)]
pub struct PoolState {
    pub name: PoolName,
    pub engine: Arc<dyn Engine>,
    pub dispatcher: Arc<Dispatcher>,
    /// Receives failures and successes of requests.
    pub outage: Arc<Outage>,
    /// Cached counts of due times.
    pub delays: DelayCounts,
    pub scheduler: Arc<Scheduler>,
    pub pauses: Arc<Pauses>,
    /// The pool's samples.
    pub sampler: Arc<Sampler>,
    /// Ids of jobs published to this pool.
    pub ids: Arc<JobIds>,
}

/// Defaults of parameters of publish and consume.
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
    /// Ready until `failure` is reported, or the server stops.
    pub fn new(failure: Failure) -> Readiness {
        Readiness { draining: AtomicBool::new(false), failure }
    }

    /// The server is stopping: load balancers should send no more.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::SeqCst);
    }

    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    /// Returns the permanent failure, if there is one.
    pub fn failure(&self) -> Option<&str> {
        self.failure.reason()
    }
}

/// A pool that can be backed up, and its turn.
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
    /// Durations of operations, for pages.
    pub times: KeptTimes,
    /// Displayed configuration of this server.
    pub about: About,
    /// The servers of the fleet.
    pub fleet: Arc<Fleet>,
    /// Bulk actions.
    pub bulk: Arc<Bulk>,
    /// Latest changes by operators.
    pub changes: Arc<Changes>,
    /// Slots for searches in the contents of jobs.
    pub searches: Semaphore,
    /// The clock of samples. Its times are displayed through [`shown`](AppState::shown).
    pub began: Began,
    /// Recent history of queues.
    pub history: Arc<history::History>,
    /// Name of this server for operators: its machine, and its public port.
    pub server: String,
    /// Number of parked polls, over all pools.
    pub parked: Arc<ParkedPolls>,
    /// Tokens of the parked polls.
    pub parked_tokens: Arc<ParkedTokens>,
    pub readiness: Readiness,
    /// Held while a scrape sets and writes the sizes, so that two scrapes do not mix.
    pub scrape: Arc<tokio::sync::Mutex<()>>,
    /// `-sv`: every token is accepted.
    pub skip_verification: bool,
    /// Users and passwords for the guarded routes of the admin port. If empty, no account is required.
    pub accounts: BTreeMap<String, Secret>,
    /// Accounts that may only read.
    pub read_only_accounts: BTreeMap<String, Secret>,
    /// Which roles see bodies on the admin port.
    pub show_bodies: ShowBodies,
    /// Bounds the total memory of large bodies.
    pub body_room: BodyRoom,
    /// Publishes with an idempotency key that are in flight.
    pub under_way: Arc<KeysUnderWay>,
    /// Pools that can be backed up, each with its turn: one backup at a time.
    pub backups: BTreeMap<PoolName, Backups>,
    /// Nodes of the pools in a cluster.
    pub nodes: BTreeMap<PoolName, Arc<dyn Nodes>>,
    /// Addresses with recent failed logins.
    pub failed_logins: FailedLogins,
    pub access_log: AtomicBool,
    /// Proxies trusted to set X-Forwarded-For.
    pub trusted_proxies: Arc<TrustedProxies>,
    /// Number of requests in flight, parked polls included.
    pub requests: AtomicUsize,
    /// Runs tasks that outlive their request.
    pub tasks: Tasks,
}

impl AppState {
    /// Returns the time of day.
    pub fn now(&self) -> Millis {
        system_now()
    }

    /// Converts a time of [`began`](AppState::began) to the time of day.
    pub fn shown(&self, time: Millis) -> Millis {
        self.began.of_day(time, self.now())
    }
}
