//! State shared by all partitions of a pool, and the one entry point for calls: a call names its partition and never a
//! node. A single Redis is one node with one partition.

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

/// A node with a publish in flight for this long gets no more publishes that another node can take.
pub const SLOW: Duration = Duration::from_millis(500);

/// How long before its due time a job is unpacked, unless packing begins earlier.
const UNPACK_BEFORE: Duration = Duration::from_secs(60);

/// The nodes of a pool.
#[derive(Clone, Debug)]
pub enum Place {
    One(Arc<Link>),
    Cluster(Arc<Cluster>),
}

/// The attempts to execute a call.
pub enum Attempts<'a> {
    One(&'a Arc<Link>),
    Cluster(cluster::Attempts<'a>),
}

impl Attempts<'_> {
    /// Returns the node for the next attempt.
    pub async fn next(&mut self) -> Outcome<Arc<Link>> {
        match self {
            Attempts::One(link) => Ok(link.clone()),
            Attempts::Cluster(attempts) => attempts.next().await,
        }
    }

    /// Returns the outcome of the last attempt; `None` if there is to be another.
    pub fn outcome<T>(&mut self, answer: Outcome<T>) -> Option<Outcome<T>> {
        match self {
            Attempts::One(_) => Some(answer),
            Attempts::Cluster(attempts) => attempts.outcome(answer),
        }
    }
}

impl Place {
    /// Returns the attempts for a call to the node of a partition. In a cluster it is sent again until a node has begun
    /// it.
    pub fn attempts(&self, partition: Partition, lane: Lane) -> Attempts<'_> {
        match self {
            Place::One(link) => Attempts::One(link),
            Place::Cluster(cluster) => Attempts::Cluster(cluster.attempts(partition, lane)),
        }
    }

    /// Like `attempts`. Waits for a node only if `waits`; otherwise the call can go to another partition.
    pub fn attempts_if(&self, waits: bool, partition: Partition, lane: Lane) -> Attempts<'_> {
        match self {
            Place::Cluster(cluster) if !waits => Attempts::Cluster(cluster.attempt_now(partition, lane)),
            _ => self.attempts(partition, lane),
        }
    }

    /// Waits until a partition is available, for calls that wait in a mailbox before they are sent.
    pub async fn ready(&self, partition: Partition, lane: Lane) -> Outcome<()> {
        match self {
            Place::One(_) => Ok(()),
            Place::Cluster(cluster) => cluster.ready(partition, lane).await,
        }
    }

    /// Returns the fault of a call that has waited too long to be sent to a partition.
    pub fn too_late(&self, partition: Partition) -> Fault {
        match self {
            Place::One(_) => Fault::too_late(),
            Place::Cluster(cluster) => cluster.too_late(partition),
        }
    }

    /// Returns the last known node of a partition. Its clock applies to the partition's timers.
    pub fn link(&self, partition: Partition) -> Option<Arc<Link>> {
        match self {
            Place::One(link) => Some(link.clone()),
            Place::Cluster(cluster) => cluster.link(partition),
        }
    }

    /// Returns the gauges of a single Redis. A cluster's are reported by node.
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

/// State shared by the partitions of a pool.
#[derive(Debug)]
pub struct Pool {
    pub common: Common,
    pub place: Place,
    /// The engine's own tasks, which end before the tasks of its nodes.
    pub tasks: Tasks,
    pub scripts: Scripts,
    pub spreading: Arc<Spreading>,
    pub dues: Dues,
    pub recorded_queues: RecordedQueues,
    /// How long dead jobs are kept; zero: forever.
    pub dead_ttl: Duration,
    /// Delays longer than this are packed; zero: none.
    pub pack_after: Duration,
    /// Held while counting the keys of one partition: one at a time.
    pub counting: Semaphore,
    /// Publishes in flight that another partition could have taken: the node and the start.
    owed: Owed,
}

/// Nodes, by the address of their link, and since when.
type Owed = Arc<Mutex<Vec<(usize, Instant)>>>;

impl Pool {
    pub fn new(
        common: Common,
        place: Place,
        spreading: Arc<Spreading>,
        partitions: u16,
        (dead_ttl, pack_after): (Duration, Duration),
    ) -> Pool {
        let notifiers = common.notifiers.clone();
        Pool {
            tasks: Tasks::new(common.failure.clone()),
            common,
            place,
            scripts: Scripts::default(),
            spreading,
            dues: Dues::new(partitions, notifiers),
            recorded_queues: RecordedQueues::default(),
            dead_ttl,
            pack_after,
            counting: Semaphore::new(1),
            owed: Owed::default(),
        }
    }

    /// Returns `Closed` once the engine is closing.
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

    /// Runs a command that is safe to execute twice. `waits`: whether to wait for a node.
    pub async fn query<T: FromRedisValue>(
        &self,
        waits: bool,
        partition: Partition,
        lane: Lane,
        cmd: &Cmd,
    ) -> Outcome<T> {
        ask!(self.place.attempts_if(waits, partition, lane), |link| link.lane(lane).query(cmd))
    }

    /// Runs several such commands in one round trip.
    pub async fn query_all<T: FromRedisValue>(&self, partition: Partition, asked: &Pipeline) -> Outcome<T> {
        ask!(self.place.attempts(partition, Lane::Other), |link| link.shared.query_all(asked))
    }

    /// Runs one step of the scan of a hash. Returns the next cursor; the scan starts and ends with 0.
    pub async fn scan_step(
        &self,
        partition: Partition,
        lane: Lane,
        key: &str,
        cursor: u64,
    ) -> Outcome<(u64, Vec<Field>)> {
        ask!(self.place.attempts(partition, lane), |link| link.lane(lane).scan_step(key, cursor))
    }

    /// Returns whether jobs with this delay are packed.
    pub fn packs(&self, delay: Duration) -> bool {
        !self.pack_after.is_zero() && delay > self.pack_after
    }

    /// Returns how long before its due time a job is unpacked.
    pub fn unpack_before(&self) -> Duration {
        if self.pack_after.is_zero() { UNPACK_BEFORE } else { UNPACK_BEFORE.min(self.pack_after / 10) }
    }

    /// Returns the time of the partition's node, by whose clock its jobs become due.
    pub fn now_in(&self, partition: Partition) -> Micros {
        self.place.link(partition).map_or_else(|| self.now_micros(), |link| link.clock.now_micros())
    }

    /// Returns the pool's time: that of the first node, so that all servers agree.
    pub fn now_micros(&self) -> Micros {
        match &self.place {
            Place::One(link) => link.clock.now_micros(),
            Place::Cluster(cluster) => cluster.any_link().map_or(0, |link| link.clock.now_micros()),
        }
    }

    /// Converts a time of a partition's clock to the pool's.
    pub fn in_pool_time(&self, partition: Partition, at: Micros) -> Micros {
        (at + self.now_micros()).saturating_sub(self.now_in(partition))
    }

    /// Records that a job was stored, due at this time of the partition's clock.
    pub fn stored(&self, partition: Partition, due: Micros) {
        match &self.place {
            Place::One(_) => self.dues.next.stored(due),
            Place::Cluster(_) => {
                self.dues.stored(partition, self.in_pool_time(partition, due), self.now_micros());
            }
        }
    }

    /// Whether a node has been slow to reply to a publish, so that others get the next ones.
    pub fn is_slow(&self, link: &Arc<Link>) -> bool {
        let link = Arc::as_ptr(link) as usize;
        self.owed.lock().iter().any(|(owes, since)| *owes == link && since.elapsed() >= SLOW)
    }

    /// Records a publish in flight to this node until the guard is dropped.
    pub fn owes(&self, link: &Arc<Link>) -> Owes {
        let entry = (Arc::as_ptr(link) as usize, Instant::now());
        self.owed.lock().push(entry);
        Owes { owed: self.owed.clone(), entry }
    }

    /// Corrects the clock of a partition's node by the time in a reply.
    pub fn learn(&self, partition: Partition, sent: Instant, now: Micros) {
        if let Some(link) = self.place.link(partition) {
            link.clock.learn(sent, now);
        }
    }
}

/// A publish in flight.
pub struct Owes {
    owed: Owed,
    entry: (usize, Instant),
}

impl Drop for Owes {
    fn drop(&mut self) {
        let mut owed = self.owed.lock();
        if let Some(at) = owed.iter().position(|entry| *entry == self.entry) {
            owed.swap_remove(at);
        }
    }
}
