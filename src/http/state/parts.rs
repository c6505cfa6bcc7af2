//! The parts of the handlers' state, by purpose.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tokio::sync::{Mutex, Semaphore};

use super::about::About;
use super::changes::Changes;
use super::failed_logins::FailedLogins;
use super::idempotency::KeysUnderWay;
use super::parked_tokens::ParkedTokens;
use super::proxies::TrustedProxies;
use crate::admin::limits::Throttle;
use crate::admin::tokens::TokenManager;
use crate::bulk::Bulk;
use crate::clock::Began;
use crate::config::{Secret, ShowBodies};
use crate::dispatch::ParkedPolls;
use crate::engine::backup::Backup;
use crate::engine::nodes::Nodes;
use crate::fleet::Fleet;
use crate::history;
use crate::http::answer::room::BodyRoom;
use crate::metrics::{KeptTimes, Metrics};
use crate::name::PoolName;
use crate::process::tasks::{Failure, Tasks};
use crate::quotas::QuotaManager;

/// Tokens of namespaces, their limits, and quotas.
#[derive(Clone, Debug)]
pub struct Access {
    pub tokens: Arc<TokenManager>,
    pub throttle: Arc<Throttle>,
    pub quotas: Arc<QuotaManager>,
    /// Tokens of the parked polls.
    pub parked_tokens: Arc<ParkedTokens>,
    /// `-sv`: every token is accepted.
    pub skip_verification: bool,
}

/// Accounts of the admin port.
#[derive(Debug)]
pub struct Accounts {
    /// Users and passwords that may do everything. If empty, no account is required.
    pub operators: BTreeMap<String, Secret>,
    /// Those that may only read.
    pub viewers: BTreeMap<String, Secret>,
    /// Which roles see bodies.
    pub show_bodies: ShowBodies,
    /// Addresses with recent failed logins.
    pub failed_logins: FailedLogins,
}

/// Bounds on what requests hold.
#[derive(Debug)]
pub struct RequestBounds {
    /// Number of parked polls, over all pools.
    pub parked: Arc<ParkedPolls>,
    /// Bounds the total memory of large bodies.
    pub body_room: BodyRoom,
    /// Publishes with an idempotency key that are in flight.
    pub under_way: Arc<KeysUnderWay>,
    /// Slots for searches in the contents of jobs.
    pub searches: Semaphore,
}

/// Metrics and log of requests.
#[derive(Debug)]
pub struct Traffic {
    pub metrics: Arc<Metrics>,
    /// Durations of operations, for pages.
    pub times: KeptTimes,
    /// Held while a scrape sets and writes the sizes, so that two scrapes do not mix.
    pub scrape: Arc<Mutex<()>>,
    pub access_log: AtomicBool,
    /// Number of requests in flight, parked polls included.
    pub requests: AtomicUsize,
    /// Proxies trusted to set X-Forwarded-For.
    pub trusted_proxies: Arc<TrustedProxies>,
}

/// A pool that can be backed up, and its turn.
pub type Backups = (Arc<dyn Backup>, Arc<Mutex<()>>);

/// What operators see and do beside jobs.
#[derive(Debug)]
pub struct Operations {
    /// The servers of the fleet.
    pub fleet: Arc<Fleet>,
    /// Bulk actions.
    pub bulk: Arc<Bulk>,
    /// Latest changes by operators.
    pub changes: Arc<Changes>,
    /// Recent history of queues.
    pub history: Arc<history::History>,
    /// Pools that can be backed up, each with its turn: one backup at a time.
    pub backups: BTreeMap<PoolName, Backups>,
    /// Nodes of the pools in a cluster.
    pub nodes: BTreeMap<PoolName, Arc<dyn Nodes>>,
}

/// This server.
#[derive(Debug)]
pub struct ThisServer {
    /// Its name for operators: its machine, and its public port.
    pub name: String,
    /// Its displayed configuration.
    pub about: About,
    /// The clock of samples. Its times are displayed through `AppState::shown`.
    pub began: Began,
    pub readiness: Readiness,
    /// Runs tasks that outlive their request.
    pub tasks: Tasks,
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
