//! The part of an engine that does not depend on its layout: connections, Redis's clock, notifiers, and their tasks. An
//! engine has one link, or in a cluster one to each node. Uses no keys.

use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio_util::sync::DropGuard;

use super::arming::Watch;
use super::cache::Deliveries;
use super::clock::RedisClock;
use super::connection::connector::{Connection, Connector, RedisAddress};
use super::connection::fault::Outcome;
use super::connection::shared::{SharedConnection, first_up};
use super::connection::status::Connections;
use super::ready_lists::ReadyLists;
use super::replicas::Replicas;
use crate::engine::notifier::Notifiers;
use crate::engine::observer::Observer;
use crate::error::Result;
use crate::job::Job;
use crate::name::PoolName;
use crate::outage::Outage;
use crate::process::tasks::{Failure, Tasks};

/// Number of tasks and connections for publishes: one batch is prepared while Redis executes another, and a large bulk
/// on one does not delay the other. More tasks make smaller batches, which cost Redis more; with a single one, all
/// publishes wait behind a large bulk. Measured with 64 callers: two cost within a tenth of one and are as fast or
/// faster; four cost a fifth more and gain nothing.
pub const PUBLISHERS: usize = 2;

/// Minimum number of this process's latest deliveries to remember.
const REMEMBERED_HAND_OVERS: usize = 131_072;
/// Time that a new engine waits for its connections; a busy machine needs part of it.
const FIRST_CONNECTIONS: Duration = Duration::from_secs(5);

/// The kind of a call. Each kind has connections of its own, so that none delays the others.
#[derive(Clone, Copy, Debug)]
pub enum Lane {
    /// The connection of a publishing task, or while it is down the other task's.
    Publish(usize),
    Consume,
    Pump,
    /// Calls that end deliveries.
    Delivered,
    /// Everything off the hot path.
    Other,
}

/// State shared by the links of one engine.
#[derive(Clone, Debug)]
pub struct Common {
    /// The name of the pool of jobs, for messages.
    pub pool: Arc<str>,
    /// Is informed whether the pool can be used.
    pub outage: Arc<Outage>,
    pub notifiers: Arc<Notifiers>,
    pub observer: Arc<dyn Observer>,
    /// This process's latest deliveries.
    pub handed_out: Arc<Deliveries>,
    /// Version of the first Redis, if it reports one.
    pub version: Arc<OnceLock<String>>,
    /// Number of replicas that must have a write before its reply is sent.
    pub wait_replicas: u16,
    /// Reports the end of a task that must not end.
    pub failure: Failure,
}

impl Common {
    pub fn new(name: &PoolName, observer: Arc<dyn Observer>, wait_replicas: u16, failure: Failure) -> Common {
        let pool: Arc<str> = name.as_str().into();
        let outage = Outage::new(format!("pool {pool}"));
        Common {
            pool,
            outage,
            notifiers: Arc::default(),
            observer,
            handed_out: Arc::new(Deliveries::new(REMEMBERED_HAND_OVERS)),
            version: Arc::default(),
            wait_replicas,
            failure,
        }
    }
}

/// Connections, clock and tasks for one Redis.
#[derive(Debug)]
pub struct Link {
    pub common: Common,
    /// State shared by all connections.
    pub connections: Arc<Connections>,
    /// One for each task that publishes.
    pub publish_connections: [SharedConnection; PUBLISHERS],
    pub consumes: SharedConnection,
    /// The pump, and calls that end deliveries, have connections of their own, so that reads do not delay them.
    pub pumps: SharedConnection,
    pub deliveries: SharedConnection,
    /// For everything off the hot path.
    pub shared: SharedConnection,
    pub clock: RedisClock,
    pub watch: Watch,
    pub ready_lists: Box<dyn ReadyLists>,
    pub replicas: Replicas,
    pub tasks: Tasks,
    /// Tasks that maintain the shared connections. They end last, since some of `tasks` need the connections while
    /// stopping.
    pub keepers: Tasks,
}

/// The task that maintains a shared connection, and its name.
type Keeper = (&'static str, Pin<Box<dyn Future<Output = ()> + Send>>);

/// A link that was opened, before any of its tasks runs.
pub struct Opened {
    pub link: Arc<Link>,
    /// For the first commands.
    pub first: Connection,
    keepers: Vec<Keeper>,
}

impl Link {
    /// Errors: `Away` or `Refused` if Redis cannot be reached now.
    pub async fn open(
        address: &RedisAddress,
        name: &PoolName,
        ready_lists: impl ReadyLists + 'static,
        observer: Arc<dyn Observer>,
        wait_replicas: u16,
    ) -> Result<Opened> {
        let connector = Arc::new(Connector::new(address)?);
        // Errors of this connection are reported before any task runs.
        let first = connector.connect().await?;
        let common = Common::new(name, observer, wait_replicas, connector.failure().clone());
        let outage = common.outage.clone();
        let (link, keepers) = Link::through(connector, &common, outage.into(), Box::new(ready_lists));
        Ok(Opened { link, first, keepers })
    }

    /// Opens a link to a node of a cluster, which need not be reachable now. The owner of the node map reports its
    /// state.
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
        let outages = (hears, Some(common.outage.clone()));
        let connections = Connections::with_end(common.pool.clone(), connector, outages, closing, closed);
        let mut to_keep: Vec<Keeper> = Vec::new();
        let mut shared = |name| {
            let (shared, keep) = SharedConnection::new(connections.clone());
            to_keep.push((name, Box::pin(keep)));
            shared
        };
        let link = Link {
            publish_connections: ["a connection for publishes"; PUBLISHERS].map(&mut shared),
            consumes: shared("the connection for consumes"),
            pumps: shared("the connection for the pump"),
            deliveries: shared("the connection for acks and touches"),
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

    /// Returns the connection for calls of this kind.
    pub fn lane(&self, lane: Lane) -> &SharedConnection {
        match lane {
            Lane::Publish(own) => &self.publish_connections[own % PUBLISHERS],
            Lane::Consume => &self.consumes,
            Lane::Pump => &self.pumps,
            Lane::Delivered => &self.deliveries,
            Lane::Other => &self.shared,
        }
    }

    /// Like `lane`, for callers that report faults to [`Connections::report`].
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

    /// Returns jobs whose delivery was too late for any consumer.
    pub async fn return_undelivered(
        &self,
        jobs: Vec<Job>,
        give_back: impl AsyncFnOnce(Vec<Job>) -> Result<()>,
    ) {
        let count = jobs.len();
        if give_back(jobs).await.is_err() {
            tracing::warn!(
                pool = &*self.common.pool,
                count,
                "jobs of a late delivery could not be returned; they are redelivered after their ttr"
            );
        }
    }

    /// Waits for the first attempts to connect. Redis was reachable when it was opened, so they usually succeed at
    /// once. A failed attempt does not stop the start.
    pub async fn connected(&self) {
        let _ = self.connections.all_up(FIRST_CONNECTIONS).await;
    }

    /// Ends all tasks in order, and every connection.
    pub async fn close(&self) {
        self.tasks.stop();
        self.tasks.ended().await;
        self.keepers.stop();
        self.keepers.ended().await;
        self.connections.connector.close();
    }
}

impl Opened {
    /// Starts maintaining the connections. Dropping the guards ends the tasks, also if the caller gives up.
    pub fn keep(self) -> [DropGuard; 2] {
        keep(&self.link, self.keepers)
    }
}

/// Starts the tasks that maintain the connections. Dropping the guards ends them.
fn keep(link: &Link, keepers: Vec<Keeper>) -> [DropGuard; 2] {
    let guards = [&link.tasks, &link.keepers].map(|tasks| tasks.stopping().clone().drop_guard());
    for (name, keep) in keepers {
        link.keepers.spawn_essential(name, keep);
    }
    guards
}
