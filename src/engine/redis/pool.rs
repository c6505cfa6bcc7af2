//! What all partitions of a pool share, and the one entry point for calls: a call names its partition and never a node. A
//! single Redis is one node with one partition.

use std::sync::Arc;
use std::time::Instant;

use redis::{Cmd, FromRedisValue, Pipeline};

use super::cache::RecordedQueues;
use super::cluster::map::Partition;
use super::cluster::{self, Cluster, ask};
use super::connection::fault::Outcome;
use super::connection::shared::Field;
use super::counting::Counting;
use super::layout::script_call::ScriptCall;
use super::layout::scripts::Scripts;
use super::link::{Common, Lane, Link};
use super::pauses::Pauses;
use crate::clock::Micros;
use crate::engine::next_due::NextDue;
use crate::error::{Error, Result};
use crate::process::tasks::Tasks;

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
    pub next_due: NextDue,
    pub recorded_queues: RecordedQueues,
    pub pauses: Pauses,
    pub quotas: Counting,
}

impl Pool {
    pub fn new(common: Common, place: Place) -> Pool {
        Pool {
            tasks: Tasks::new(common.failure.clone()),
            common,
            place,
            scripts: Scripts::default(),
            next_due: NextDue::default(),
            recorded_queues: RecordedQueues::default(),
            pauses: Pauses::default(),
            quotas: Counting::default(),
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

    /// A command that may be executed twice.
    pub async fn query<T: FromRedisValue>(&self, partition: Partition, lane: Lane, cmd: &Cmd) -> Outcome<T> {
        ask!(self.place.attempts(partition, lane), |link| link.lane(lane).query(cmd))
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
    pub fn now_micros(&self, partition: Partition) -> Micros {
        self.place.link(partition).map_or(0, |link| link.clock.now_micros())
    }

    /// The node of a partition answered with its time to a call that was sent then.
    pub fn learn(&self, partition: Partition, sent: Instant, now: Micros) {
        if let Some(link) = self.place.link(partition) {
            link.clock.learn(sent, now);
        }
    }
}
