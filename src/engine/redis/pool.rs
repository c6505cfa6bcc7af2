//! What all partitions of a pool share, and the one entry point for calls: a call names its partition and never a node. A
//! single Redis is one node with one partition.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use redis::{Cmd, FromRedisValue, Pipeline};
use tokio::sync::Semaphore;

use super::cache::RecordedQueues;
use super::cluster::map::Partition;
use super::cluster::{self, Cluster, ask};
use super::connection::fault::{Fault, Outcome};
use super::connection::shared::Field;
use super::dues::Dues;
use super::layout::script_call::ScriptCall;
use super::layout::scripts::Scripts;
use super::link::{Common, Lane, Link};
use super::spread::Spreading;
use crate::clock::Micros;
use crate::error::{Error, Result};
use crate::process::tasks::Tasks;

/// A node that has owed an answer to a publish for so long gets no more of those that another one can take.
pub const SLOW: Duration = Duration::from_millis(500);

/// The nodes of a pool.
#[derive(Clone, Debug)]
pub enum Place {
    One(Arc<Link>),
    Cluster(Arc<Cluster>),
}

/// The attempts to have a call executed.
pub enum Attempts<'a> {
    One(&'a Arc<Link>),
    Cluster(cluster::Attempts<'a>),
}

impl Attempts<'_> {
    /// The node for the next one.
    pub async fn next(&mut self) -> Outcome<Arc<Link>> {
        match self {
            Attempts::One(link) => Ok(link.clone()),
            Attempts::Cluster(attempts) => attempts.next().await,
        }
    }

    /// The outcome of the last one; `None` when there is to be another one.
    pub fn outcome<T>(&mut self, answer: Outcome<T>) -> Option<Outcome<T>> {
        match self {
            Attempts::One(_) => Some(answer),
            Attempts::Cluster(attempts) => attempts.outcome(answer),
        }
    }
}

impl Place {
    /// A call that is about to be sent to the node of a partition. In a cluster it is sent again as long as no node has
    /// begun it.
    pub fn attempts(&self, partition: Partition, lane: Lane) -> Attempts<'_> {
        match self {
            Place::One(link) => Attempts::One(link),
            Place::Cluster(cluster) => Attempts::Cluster(cluster.attempts(partition, lane)),
        }
    }

    /// The same if the call waits for a node. Otherwise another partition takes it when this one cannot.
    pub fn attempts_if(&self, waits: bool, partition: Partition, lane: Lane) -> Attempts<'_> {
        match self {
            Place::Cluster(cluster) if !waits => Attempts::Cluster(cluster.attempt_now(partition, lane)),
            _ => self.attempts(partition, lane),
        }
    }

    /// Waits until a partition can be used, for calls that are queued up before they are sent.
    pub async fn ready(&self, partition: Partition, lane: Lane) -> Outcome<()> {
        match self {
            Place::One(_) => Ok(()),
            Place::Cluster(cluster) => cluster.ready(partition, lane).await,
        }
    }

    /// The fault of a call that has waited too long to be sent to a partition.
    pub fn too_late(&self, partition: Partition) -> Fault {
        match self {
            Place::One(_) => Fault::too_late(),
            Place::Cluster(cluster) => cluster.too_late(partition),
        }
    }

    /// The node that a partition was at last, for its clock.
    pub fn link(&self, partition: Partition) -> Option<Arc<Link>> {
        match self {
            Place::One(link) => Some(link.clone()),
            Place::Cluster(cluster) => cluster.link(partition),
        }
    }

    /// The figures of a single Redis. Those of a cluster are told by node.
    pub async fn gauges(&self) -> Vec<(&'static str, f64)> {
        match self {
            Place::One(link) => link.gauges().await,
            Place::Cluster(_) => Vec::new(),
        }
    }

    pub async fn close(&self) {
        match self {
            Place::One(link) => link.close().await,
            Place::Cluster(cluster) => cluster.close().await,
        }
    }
}

/// What the partitions of a pool share.
#[derive(Debug)]
pub struct Pool {
    pub common: Common,
    pub place: Place,
    /// The engine's own tasks. They end before those of the nodes.
    pub tasks: Tasks,
    pub scripts: Scripts,
    pub spreading: Arc<Spreading>,
    pub dues: Dues,
    pub recorded_queues: RecordedQueues,
    /// How long dead jobs are kept; zero: forever.
    pub dead_ttl: Duration,
    /// Held by the count of one partition's keys: one at a time.
    pub counting: Semaphore,
    /// Publishes that another partition could have taken and that are not answered: to which node, and since when.
    owed: Mutex<Vec<(usize, Instant)>>,
}

impl Pool {
    pub fn new(
        common: Common,
        place: Place,
        spreading: Arc<Spreading>,
        partitions: u16,
        dead_ttl: Duration,
    ) -> Pool {
        Pool {
            tasks: Tasks::new(common.failure.clone()),
            common,
            place,
            scripts: Scripts::default(),
            spreading,
            dues: Dues::new(partitions),
            recorded_queues: RecordedQueues::default(),
            dead_ttl,
            counting: Semaphore::new(1),
            owed: Mutex::default(),
        }
    }

    /// `Closed` once the engine is closing.
    pub fn is_open(&self) -> Result<()> {
        if self.tasks.stopping().is_cancelled() { Err(Error::Closed) } else { Ok(()) }
    }

    /// Runs a call.
    pub async fn run<T: FromRedisValue>(
        &self,
        partition: Partition,
        lane: Lane,
        call: &ScriptCall,
    ) -> Outcome<T> {
        ask!(self.place.attempts(partition, lane), |link| link.ask(link.lane(lane), call))
    }

    /// A command that may be executed twice. It waits for a node, or does not.
    pub async fn query<T: FromRedisValue>(
        &self,
        waits: bool,
        partition: Partition,
        lane: Lane,
        cmd: &Cmd,
    ) -> Outcome<T> {
        ask!(self.place.attempts_if(waits, partition, lane), |link| link.lane(lane).query(cmd))
    }

    /// Several of them in one round trip.
    pub async fn query_all<T: FromRedisValue>(&self, partition: Partition, asked: &Pipeline) -> Outcome<T> {
        ask!(self.place.attempts(partition, Lane::Other), |link| link.shared.query_all(asked))
    }

    /// One step of the scan of a hash, and where the next one goes on. It begins and ends with 0.
    pub async fn scan_step(
        &self,
        partition: Partition,
        lane: Lane,
        key: &str,
        cursor: u64,
    ) -> Outcome<(u64, Vec<Field>)> {
        ask!(self.place.attempts(partition, lane), |link| link.lane(lane).scan_step(key, cursor))
    }

    /// The clock of a partition's node, by which all of the partition is due.
    pub fn now_in(&self, partition: Partition) -> Micros {
        self.place.link(partition).map_or_else(|| self.now_micros(), |link| link.clock.now_micros())
    }

    /// The pool's clock: that of the first node, so that all servers agree.
    pub fn now_micros(&self) -> Micros {
        match &self.place {
            Place::One(link) => link.clock.now_micros(),
            Place::Cluster(cluster) => cluster.any_link().map_or(0, |link| link.clock.now_micros()),
        }
    }

    /// A time of a partition's clock by the pool's.
    pub fn in_pool_time(&self, partition: Partition, at: Micros) -> Micros {
        (at + self.now_micros()).saturating_sub(self.now_in(partition))
    }

    /// A job was stored there that is due then, by the partition's clock.
    pub fn stored(&self, partition: Partition, due: Micros) {
        match &self.place {
            Place::One(_) => self.dues.next.stored(due),
            Place::Cluster(_) => {
                self.dues.stored(partition, self.in_pool_time(partition, due), self.now_micros());
            }
        }
    }

    /// Whether a node has owed the answer to a publish for so long that others get the next ones.
    pub fn is_slow(&self, link: &Arc<Link>) -> bool {
        let link = Arc::as_ptr(link) as usize;
        self.owed.lock().iter().any(|(owes, since)| *owes == link && since.elapsed() >= SLOW)
    }

    /// Such a publish is on its way to this node until what is returned is dropped.
    pub fn owes(&self, link: &Arc<Link>) -> Owes<'_> {
        let entry = (Arc::as_ptr(link) as usize, Instant::now());
        self.owed.lock().push(entry);
        Owes { pool: self, entry }
    }

    /// The node of a partition answered with its time to a call that was sent then.
    pub fn learn(&self, partition: Partition, sent: Instant, now: Micros) {
        if let Some(link) = self.place.link(partition) {
            link.clock.learn(sent, now);
        }
    }
}

/// A publish that is not answered.
pub struct Owes<'a> {
    pool: &'a Pool,
    entry: (usize, Instant),
}

impl Drop for Owes<'_> {
    fn drop(&mut self) {
        let mut owed = self.pool.owed.lock();
        if let Some(at) = owed.iter().position(|entry| *entry == self.entry) {
            owed.swap_remove(at);
        }
    }
}
