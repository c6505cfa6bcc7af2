//! State of a store on several nodes, for operators: unavailable partitions, and statistics of each node. Knows no
//! store and no HTTP.

use std::fmt;

use async_trait::async_trait;

use super::Estimated;
use crate::clock::Millis;
use crate::error::Result;
use crate::name::Queue;

/// Number of a partition.
pub type PartNumber = u16;

/// A store on several nodes.
#[async_trait]
pub trait Nodes: Send + Sync + fmt::Debug + 'static {
    /// Returns the unavailable partitions, within half a second.
    async fn unusable(&self) -> Unusable;

    /// Returns the state of the nodes, within half a second: later replies of nodes are missing.
    async fn view(&self) -> NodesView;

    /// Returns the partitions of a queue, with its numbers of jobs.
    async fn places(&self, queue: &Queue) -> Result<QueuePlaces>;
}

/// Unavailable partitions, in order, by cause.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unusable {
    /// The node is down, and no replica has taken over yet.
    pub away: Vec<PartNumber>,
    /// They are being moved to another node.
    pub moving: Vec<PartNumber>,
    /// Two nodes have jobs of them.
    pub split: Vec<PartNumber>,
}

impl Unusable {
    /// Returns all of them, in order.
    pub fn all(&self) -> Vec<PartNumber> {
        let mut all = [&self.away[..], &self.moving, &self.split].concat();
        all.sort_unstable();
        all
    }
}

/// State of all nodes.
#[derive(Clone, Debug)]
pub struct NodesView {
    /// Prefix of every key.
    pub prefix: String,
    /// Number of partitions.
    pub parts: PartNumber,
    /// Number of replicas that must have a write before the reply.
    pub wait_replicas: u16,
    pub nodes: Vec<NodeView>,
    pub unusable: Unusable,
    /// Number of calls that nodes refused before executing them, by reason, since this process began.
    pub redirections: Vec<(&'static str, u64)>,
}

/// A node that serves partitions, or could.
#[derive(Clone, Debug)]
pub struct NodeView {
    pub id: String,
    /// `host:port`.
    pub addr: String,
    /// It responds, and accepts writes.
    pub up: bool,
    /// Since when `up` has its value, as far as this process knows.
    pub since: Millis,
    /// Number of its partitions.
    pub parts: PartNumber,
    pub replicas: Option<u64>,
    pub used_memory: Option<u64>,
    /// Lead of its clock over the median of all, in microseconds.
    pub clock: Option<i64>,
    pub version: Option<String>,
    /// Its statistics for the metrics.
    pub gauges: Vec<(&'static str, f64)>,
}

/// Partitions of a queue.
#[derive(Clone, Debug)]
pub struct QueuePlaces {
    pub home: PartNumber,
    /// The queue is spread over all partitions.
    pub spread: bool,
    /// The partitions that have jobs of it.
    pub jobs: Vec<JobsOfPart>,
}

/// Numbers of a queue's jobs in one partition.
#[derive(Clone, Debug)]
pub struct JobsOfPart {
    pub part: PartNumber,
    /// `host:port`; `None` if no node has the partition now.
    pub node: Option<String>,
    pub ready: u64,
    pub delayed: u64,
    pub running: u64,
    pub dead: u64,
    pub estimated: Estimated,
}
