//! What operators are told of a store that lies on several nodes: which of its parts cannot be used, and what each node
//! says of itself. Knows no store and no HTTP.

use std::fmt;

use async_trait::async_trait;

use crate::clock::Millis;
use crate::error::Result;
use crate::name::Queue;

/// The number of a part of a store.
pub type PartNumber = u16;

/// A store that lies on several nodes.
#[async_trait]
pub trait Nodes: Send + Sync + fmt::Debug + 'static {
    /// The parts that cannot be used now. Takes half a second at most.
    async fn unusable(&self) -> Unusable;

    /// All that is known of the nodes. Takes half a second at most: what a node does not say in that time is not there.
    async fn view(&self) -> NodesView;

    /// Where a queue lies, and how many jobs it has there.
    async fn places(&self, queue: &Queue) -> Result<QueuePlaces>;
}

/// Parts that cannot be used, in order, by why.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unusable {
    /// The node does not answer, and no other one has taken its place yet.
    pub away: Vec<PartNumber>,
    /// They are moved to another node.
    pub moving: Vec<PartNumber>,
    /// Two nodes have jobs of them.
    pub split: Vec<PartNumber>,
}

impl Unusable {
    /// All of them, in order.
    pub fn all(&self) -> Vec<PartNumber> {
        let mut all = [&self.away[..], &self.moving, &self.split].concat();
        all.sort_unstable();
        all
    }
}

/// All nodes.
#[derive(Clone, Debug)]
pub struct NodesView {
    /// What every key begins with.
    pub prefix: String,
    /// How many parts there are.
    pub parts: PartNumber,
    /// How many replicas must have what was asked before it is answered.
    pub wait_replicas: u16,
    pub nodes: Vec<NodeView>,
    pub unusable: Unusable,
    /// How many calls a node has refused before it began them, by why, since this process began.
    pub redirections: Vec<(&'static str, u64)>,
}

/// A node that serves parts, or could.
#[derive(Clone, Debug)]
pub struct NodeView {
    pub id: String,
    /// `host:port`.
    pub addr: String,
    /// It answers, and takes writes.
    pub up: bool,
    /// Since when it is so, as far as this process knows.
    pub since: Millis,
    /// How many parts it has.
    pub parts: PartNumber,
    pub replicas: Option<u64>,
    pub used_memory: Option<u64>,
    /// How far its clock is ahead of the median of all, in microseconds.
    pub clock: Option<i64>,
    pub version: Option<String>,
    /// Its figures for the metrics.
    pub gauges: Vec<(&'static str, f64)>,
}

/// Where a queue lies.
#[derive(Clone, Debug)]
pub struct QueuePlaces {
    pub home: PartNumber,
    /// It lies in all parts, and not at home alone.
    pub spread: bool,
    /// The parts that have jobs of it.
    pub jobs: Vec<JobsOfPart>,
}

/// How many jobs of a queue one part has.
#[derive(Clone, Debug)]
pub struct JobsOfPart {
    pub part: PartNumber,
    /// `host:port`; `None` when nobody has the part now.
    pub node: Option<String>,
    pub ready: u64,
    /// `None` when the part has too many timers to count those of the queue.
    pub delayed: Option<u64>,
    pub running: Option<u64>,
    pub dead: u64,
}
