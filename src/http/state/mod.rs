//! State shared by handlers: pools, authorization, limits, and requests in flight. It decides nothing. Within `http`,
//! it imports `answer`.

pub mod about;
pub mod changes;
pub mod cursors;
pub mod delays;
pub mod failed_logins;
pub mod idempotency;
pub mod parked_tokens;
pub mod parts;
pub mod proxies;

use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::Arc;

use axum::extract::{FromRef, State};

use self::cursors::Cursors;
use self::delays::DelayCounts;
pub use self::parts::Readiness;
use self::parts::{Access, Accounts, Operations, RequestBounds, ThisServer, Traffic};
use crate::clock::{Millis, system_now};
use crate::dispatch::Dispatcher;
use crate::engine::Engine;
use crate::job::JobIds;
use crate::name::PoolName;
use crate::outage::Outage;
use crate::pauses::Pauses;
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

/// The pools of this server by name.
#[derive(Clone, Debug)]
pub struct Pools(Arc<BTreeMap<PoolName, Arc<PoolState>>>);

impl FromIterator<PoolState> for Pools {
    fn from_iter<I: IntoIterator<Item = PoolState>>(pools: I) -> Pools {
        Pools(Arc::new(pools.into_iter().map(|pool| (pool.name.clone(), Arc::new(pool))).collect()))
    }
}

impl Deref for Pools {
    type Target = BTreeMap<PoolName, Arc<PoolState>>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

/// State of the handlers, in parts by purpose. A handler that needs only [`Pools`] or [`Access`] takes that part.
#[derive(Debug)]
pub struct AppState {
    pub pools: Pools,
    /// Queues whose jobs are sent to a URL.
    pub push: Arc<Push>,
    pub cursors: Cursors,
    pub defaults: Defaults,
    pub access: Access,
    pub accounts: Accounts,
    pub bounds: RequestBounds,
    pub traffic: Traffic,
    pub operations: Operations,
    pub server: ThisServer,
}

impl FromRef<Arc<AppState>> for Pools {
    fn from_ref(state: &Arc<AppState>) -> Pools {
        state.pools.clone()
    }
}

impl FromRef<Arc<AppState>> for Access {
    fn from_ref(state: &Arc<AppState>) -> Access {
        state.access.clone()
    }
}

impl AppState {
    /// Returns the time of day.
    pub fn now(&self) -> Millis {
        system_now()
    }

    /// Converts a time of [`began`](ThisServer::began) to the time of day.
    pub fn shown(&self, time: Millis) -> Millis {
        self.server.began.of_day(time, self.now())
    }
}
