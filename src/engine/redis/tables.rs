//! Tables shared by all servers besides jobs: tokens, limits, and records of push. On one Redis, or in a cluster, where
//! each namespace's are in one of 16 slots. Callers name the partition and the key, never a node. Knows no table.

use std::fmt::Display;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, FromRedisValue};
use tokio::time::{sleep, timeout};

use super::cluster::map::Partition;
use super::cluster::{self, Cluster, PartedLists, ask};
use super::connection::connector::{Connector, RedisAddress};
use super::connection::fault::Outcome;
use super::connection::shared::SharedConnection;
use super::connection::status::Connections;
use super::layout::scripts::Script;
use super::link::{Common, Lane};
use super::partitions::Partitions;
use super::ready_lists::ReadyLists;
use super::verbs::check;
use crate::engine::together;
use crate::error::{Error, Result, Unreachable};
use crate::name::{PoolName, Queue};
use crate::outage::Outage;
use crate::process::tasks::{Failure, Tasks};

/// Time that a new store waits for its connection; a busy machine needs part of it.
const FIRST_CONNECTION: Duration = Duration::from_secs(5);
/// Time that a check of a reachable Redis waits for the shared connection if it is down; and in a cluster for a node.
const CONNECTION_WAIT: Duration = Duration::from_millis(500);
/// Interval of checks that Redis is still the master. A former master answers reads as before, and tokens are rarely
/// written: without the check, the next write would get an error.
const LOOK: Duration = Duration::from_secs(1);
/// Number of slots of a cluster that hold tables.
const PARTS: u16 = 16;
/// Its name in messages.
const NAME: &str = "tokens and limits";

/// Location of the tables.
#[derive(Clone, Debug)]
pub struct Tables {
    place: Place,
    failure: Failure,
}

#[derive(Clone, Debug)]
enum Place {
    /// The connection, and its state.
    One(SharedConnection, Arc<Connections>),
    Cluster(Arc<Cluster>, Arc<Partitions>),
}

/// The attempts to execute a command.
enum Attempts<'a> {
    One(&'a SharedConnection),
    Cluster(cluster::Attempts<'a>),
}

impl Attempts<'_> {
    async fn next(&mut self) -> Outcome<SharedConnection> {
        match self {
            Attempts::One(shared) => Ok(shared.clone()),
            Attempts::Cluster(attempts) => Ok(attempts.next().await?.lane(Lane::Other).clone()),
        }
    }

    /// Returns the outcome of an attempt; `None` if there is to be another.
    fn outcome<T>(&mut self, answer: Outcome<T>) -> Option<Outcome<T>> {
        match self {
            Attempts::One(_) => Some(answer),
            Attempts::Cluster(attempts) => attempts.outcome(answer),
        }
    }
}

impl Tables {
    /// Errors: `Away` or `Refused` if Redis cannot be used now; once connected, the tables outlive any outage. One of
    /// `tasks` maintains the connection until they are stopped. In a cluster every key begins with `prefix`.
    pub async fn open(
        address: &RedisAddress,
        prefix: &str,
        outage: Arc<Outage>,
        tasks: &Tasks,
    ) -> Result<Tables> {
        if address.cluster {
            return Tables::in_cluster(address, prefix, outage, tasks).await;
        }
        let connector = Arc::new(Connector::new(address)?);
        let failure = connector.failure().clone();
        check::usable(&mut connector.connect().await?, check::OLDEST, false).await?;
        let connections = Connections::new(NAME.into(), connector, outage, tasks.stopping().clone());
        let (shared, keep) = SharedConnection::new(connections.clone());
        tasks.spawn_essential("the connection for tokens and limits", keep);
        let (look, stop) = (shared.clone(), tasks.stopping().clone());
        tasks.spawn_essential("the check of the master for tokens and limits", async move {
            let looks = async {
                loop {
                    sleep(LOOK).await;
                    // A refusal means that another Redis is the master now, or concerns callers that write.
                    let _: Outcome<u64> = look.query(&check::empty_write()).await;
                }
            };
            stop.run_until_cancelled(looks).await;
        });
        // Redis is reachable, so the connection usually is at once. If not, the start continues.
        let _ = connections.all_up(FIRST_CONNECTION).await;
        Ok(Tables { place: Place::One(shared, connections), failure })
    }

    async fn in_cluster(
        address: &RedisAddress,
        prefix: &str,
        outage: Arc<Outage>,
        tasks: &Tasks,
    ) -> Result<Tables> {
        // No pool's prefix has a slash: the keys of a pool in the same cluster begin otherwise.
        let partitions = Arc::new(Partitions::new(&format!("{prefix}/"), PARTS));
        let failure = Failure::default();
        let of_pool = Common::new(&PoolName::default_pool(), Arc::new(()), 0, failure.clone());
        let common = Common { pool: NAME.into(), outage, ..of_pool };
        let opened = cluster::open(address.clone(), common, partitions.slots(), Arc::new(NoLists)).await?;
        let (cluster, guard) = opened.keep();
        let (closes, stop) = (cluster.clone(), tasks.stopping().clone());
        tasks.spawn_essential("the nodes of tokens and limits", async move {
            let _guard = guard;
            stop.cancelled().await;
            closes.close().await;
        });
        Ok(Tables { place: Place::Cluster(cluster, partitions), failure })
    }

    /// Waits until a task that the tables need has died, and returns its name.
    pub fn failed(&self) -> impl Future<Output = String> + Send + use<> {
        let failure = self.failure.clone();
        async move { failure.reported().await.to_owned() }
    }

    /// Returns the partition of a namespace's tables.
    pub fn part_of(&self, pool: &impl Display, namespace: &impl Display) -> Partition {
        match &self.place {
            Place::One(..) => 0,
            Place::Cluster(_, partitions) => partitions.of(format!("{pool}/{namespace}").as_bytes()),
        }
    }

    /// Returns all partitions.
    pub fn parts(&self) -> Range<Partition> {
        match &self.place {
            Place::One(..) => 0..1,
            Place::Cluster(_, partitions) => partitions.all(),
        }
    }

    /// Returns the full name of a key in a partition.
    pub fn key(&self, part: Partition, key: impl Display) -> String {
        match &self.place {
            Place::One(..) => key.to_string(),
            Place::Cluster(_, partitions) => format!("{}{key}", partitions.base(part)),
        }
    }

    /// Returns a call of a script with these keys. In a cluster it names one more key, which is never written: a server
    /// that migrates the slot refuses the call before it begins.
    pub fn call<const N: usize>(&self, script: &Script, part: Partition, keys: [String; N]) -> Cmd {
        let guard = match &self.place {
            Place::One(..) => None,
            Place::Cluster(..) => Some(self.key(part, "!")),
        };
        let mut cmd = script.call(N + usize::from(guard.is_some()));
        keys.into_iter().chain(guard).for_each(|key| _ = cmd.arg(key));
        cmd
    }

    pub async fn run<T: FromRedisValue>(&self, part: Partition, script: &Script, call: &Cmd) -> Outcome<T> {
        ask!(self.attempts(part), |shared| shared.run(script, call))
    }

    pub async fn query<T: FromRedisValue>(&self, part: Partition, cmd: &Cmd) -> Outcome<T> {
        ask!(self.attempts(part), |shared| shared.query(cmd))
    }

    /// Reads a whole hash in steps. A field that changes meanwhile, or before a step is repeated, may occur twice.
    pub async fn scan(
        &self,
        part: Partition,
        key: &str,
        mut each: impl FnMut(Vec<u8>, Vec<u8>) + Send,
    ) -> Outcome<()> {
        ask!(self.attempts(part), |shared| shared.scan(key, &mut each))
    }

    fn attempts(&self, part: Partition) -> Attempts<'_> {
        match &self.place {
            Place::One(shared, _) => Attempts::One(shared),
            Place::Cluster(cluster, _) => Attempts::Cluster(cluster.attempts(part, Lane::Other)),
        }
    }

    /// Checks that the tables can be used: in a cluster, that a node replies.
    pub async fn check(&self) -> Result<()> {
        match &self.place {
            Place::One(shared, connections) => {
                let _: String = shared.query(&redis::cmd("PING")).await?;
                connections.retry_now();
                connections.all_up(CONNECTION_WAIT).await
            }
            Place::Cluster(cluster, _) => {
                let nodes = cluster.nodes();
                let answers = nodes.into_iter().map(|(link, _)| async move {
                    let ping = redis::cmd("PING");
                    matches!(timeout(CONNECTION_WAIT, link.shared.query::<String>(&ping)).await, Ok(Ok(_)))
                });
                let any = together::all(answers).await.into_iter().any(|up| up);
                if any { Ok(()) } else { Err(Error::Unreachable(Unreachable::Away)) }
            }
        }
    }
}

/// No ready lists.
#[derive(Debug)]
struct NoLists;

impl ReadyLists for NoLists {
    fn keys_of(&self, _: &Queue) -> Vec<Vec<u8>> {
        Vec::new()
    }

    fn queue_of(&self, _: &[u8]) -> Option<Queue> {
        None
    }
}

impl PartedLists for NoLists {
    fn lists_of(&self, _: &Queue) -> Vec<(Partition, Vec<u8>)> {
        Vec::new()
    }
}
