//! What an engine has of a Redis whatever its layout is: connections, the Redis's clock, who is notified, and the tasks
//! that keep all this going. An engine has one link, or in a cluster one to each node. Knows no key.

use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio_util::sync::DropGuard;

use super::arming::Watch;
use super::cache::HandOvers;
use super::clock::RedisClock;
use super::connection::connector::{Connection, Connector, RedisAddress};
use super::connection::fault::Outcome;
use super::connection::shared::{SharedConnection, first_up};
use super::connection::status::Connections;
use super::ready_lists::ReadyLists;
use super::replicas::Replicas;
use crate::engine::notifier::Notifiers;
use crate::engine::observer::Observers;
use crate::error::Result;
use crate::job::Job;
use crate::name::PoolName;
use crate::outage::Outage;
use crate::process::tasks::{Failure, Tasks};

/// How many tasks share what publishes, as many as a link has connections for them: one batch is made while the Redis works
/// on another. A large bulk on one of them delays nobody on the other. More make smaller batches, which cost the Redis
/// more, and with one alone everybody waits behind a large bulk. Measured with 64 callers: two cost within a tenth of what
/// one costs and answer as fast or faster; four cost a fifth more and gain nothing.
pub const PUBLISHERS: usize = 2;

/// How many of the hand-overs of this process are remembered at least.
const REMEMBERED_HAND_OVERS: usize = 131_072;
/// How long a new engine waits for its connections. A busy machine needs some of it.
const FIRST_CONNECTIONS: Duration = Duration::from_secs(5);

/// What a call is for: each kind has connections of its own, so that none holds up the others.
#[derive(Clone, Copy, Debug)]
pub enum Lane {
    /// That of a task that publishes, or while it is down that of the other one.
    Publish(usize),
    Consume,
    Pump,
    /// What ends hand-overs.
    HandOver,
    /// Everything off the hot path.
    Other,
}

/// What the links of one engine have in common.
#[derive(Clone, Debug)]
pub struct Common {
    /// The name of the pool of jobs, for messages.
    pub pool: Arc<str>,
    /// Hears whether the pool can be used.
    pub outage: Arc<Outage>,
    pub notifiers: Arc<Notifiers>,
    pub observers: Arc<Observers>,
    /// What this process remembers of what it handed out.
    pub handed_out: Arc<HandOvers>,
    /// Of the Redis that the engine began with, if it says.
    pub version: Arc<OnceLock<String>>,
    /// How many replicas must have what was asked before it is answered.
    pub wait_replicas: u16,
    /// Where the end of a task is reported that must not end.
    pub failure: Failure,
}

impl Common {
    pub fn new(name: &PoolName, wait_replicas: u16, failure: Failure) -> Common {
        let pool: Arc<str> = name.as_str().into();
        let outage = Outage::new(format!("pool {pool}"));
        Common {
            pool,
            outage,
            notifiers: Arc::default(),
            observers: Arc::default(),
            handed_out: Arc::new(HandOvers::new(REMEMBERED_HAND_OVERS)),
            version: Arc::default(),
            wait_replicas,
            failure,
        }
    }
}

/// What does not depend on the layout.
#[derive(Debug)]
pub struct Link {
    pub common: Common,
    /// What all connections have in common.
    pub connections: Arc<Connections>,
    /// One for each task that publishes.
    pub publish_connections: [SharedConnection; PUBLISHERS],
    pub consumes: SharedConnection,
    /// The pump, and what ends hand-overs, have connections of their own, so that nobody's reads delay them.
    pub pumps: SharedConnection,
    pub hand_overs: SharedConnection,
    /// For everything off the hot path.
    pub shared: SharedConnection,
    pub clock: RedisClock,
    pub watch: Watch,
    pub ready_lists: Box<dyn ReadyLists>,
    pub replicas: Replicas,
    pub tasks: Tasks,
    /// Those that keep the shared connections. They end after `tasks`, some of which need them until their end.
    pub keepers: Tasks,
}

/// What keeps a shared connection, and what that is called.
type Keeper = (&'static str, Pin<Box<dyn Future<Output = ()> + Send>>);

/// A link that was opened, before any of its tasks runs.
pub struct Opened {
    pub link: Arc<Link>,
    /// For the first questions to the Redis.
    pub first: Connection,
    keepers: Vec<Keeper>,
}

impl Link {
    /// `Away` or `Refused` when the Redis cannot be reached now.
    pub async fn open(
        address: &RedisAddress,
        name: &PoolName,
        ready_lists: impl ReadyLists + 'static,
        wait_replicas: u16,
    ) -> Result<Opened> {
        let connector = Arc::new(Connector::new(address)?);
        // What this one finds out is said before any task runs.
        let first = connector.connect().await?;
        let common = Common::new(name, wait_replicas, connector.failure().clone());
        let outage = common.outage.clone();
        let (link, keepers) = Link::through(connector, &common, outage.into(), Box::new(ready_lists));
        Ok(Opened { link, first, keepers })
    }

    /// To a node of a cluster, which need not be there now. Who keeps the map of nodes reports what becomes of it.
    pub fn to_node(
        connector: Arc<Connector>,
        common: &Common,
        ready_lists: Box<dyn ReadyLists>,
    ) -> (Arc<Link>, [DropGuard; 2]) {
        let (link, keepers) = Link::through(connector, common, None, ready_lists);
        let guards = keep(&link, keepers);
        (link, guards)
    }

    fn through(
        connector: Arc<Connector>,
        common: &Common,
        hears: Option<Arc<Outage>>,
        ready_lists: Box<dyn ReadyLists>,
    ) -> (Arc<Link>, Vec<Keeper>) {
        let [tasks, keepers] = [(); 2].map(|()| Tasks::new(common.failure.clone()));
        let (closing, closed) = (tasks.stopping().clone(), keepers.stopping().clone());
        let connections = Connections::with_end(common.pool.clone(), connector, hears, closing, closed);
        let mut to_keep: Vec<Keeper> = Vec::new();
        let mut shared = |name| {
            let (shared, keep) = SharedConnection::new(connections.clone());
            to_keep.push((name, Box::pin(keep)));
            shared
        };
        let link = Link {
            publish_connections: ["a connection of publishes"; PUBLISHERS].map(&mut shared),
            consumes: shared("the connection of consumes"),
            pumps: shared("the connection of the pump"),
            hand_overs: shared("the connection of what ends hand-overs"),
            shared: shared("the shared connection"),
            common: common.clone(),
            connections,
            clock: RedisClock::new(),
            watch: Watch::default(),
            ready_lists,
            replicas: Replicas::new(common.wait_replicas),
            tasks,
            keepers,
        };
        (Arc::new(link), to_keep)
    }

    /// The connection for calls of this kind.
    pub fn lane(&self, lane: Lane) -> &SharedConnection {
        match lane {
            Lane::Publish(own) => &self.publish_connections[own % PUBLISHERS],
            Lane::Consume => &self.consumes,
            Lane::Pump => &self.pumps,
            Lane::HandOver => &self.hand_overs,
            Lane::Other => &self.shared,
        }
    }

    /// The same, for who tells [`Connections::report`] of a fault.
    pub async fn connection(&self, lane: Lane) -> Outcome<Connection> {
        match lane {
            Lane::Publish(own) => {
                first_up([self.lane(Lane::Publish(own)), self.lane(Lane::Publish(own + 1))]).await
            }
            lane => self.lane(lane).connection().await,
        }
    }

    /// Whether a call of this kind could be sent now.
    pub fn is_up(&self, lane: Lane) -> bool {
        match lane {
            Lane::Publish(_) => self.publish_connections.iter().any(SharedConnection::is_up),
            lane => self.lane(lane).is_up(),
        }
    }

    /// Jobs were handed out too late to tell anybody: they are given back.
    pub async fn told_nobody(&self, jobs: Vec<Job>, give_back: impl AsyncFnOnce(Vec<Job>) -> Result<()>) {
        let count = jobs.len();
        if give_back(jobs).await.is_err() {
            tracing::warn!(
                pool = &*self.common.pool,
                count,
                "jobs that nobody was told of could not be given back; they come back after their ttr"
            );
        }
    }

    /// Waits for the first attempts to connect. The Redis was there when it began: so are the connections, a moment
    /// later. One that cannot be made is no reason to stop.
    pub async fn connected(&self) {
        let _ = self.connections.all_up(FIRST_CONNECTIONS).await;
    }

    /// Ends all tasks in their order, and every connection.
    pub async fn close(&self) {
        self.tasks.stop();
        self.tasks.ended().await;
        self.keepers.stop();
        self.keepers.ended().await;
        self.connections.connector.close();
    }
}

impl Opened {
    /// Keeps the connections from here on. The tasks end with what is answered, also when the caller gives up.
    pub fn keep(self) -> [DropGuard; 2] {
        keep(&self.link, self.keepers)
    }
}

/// Keeps its connections. The tasks end with what is answered.
fn keep(link: &Link, keepers: Vec<Keeper>) -> [DropGuard; 2] {
    let guards = [&link.tasks, &link.keepers].map(|tasks| tasks.stopping().clone().drop_guard());
    for (name, keep) in keepers {
        link.keepers.spawn_essential(name, keep);
    }
    guards
}
