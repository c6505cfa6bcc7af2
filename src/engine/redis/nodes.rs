//! The operators' view of a pool in a cluster: its nodes, partitions that are unavailable, and where a queue is.
//! Changes nothing.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use redis::InfoDict;
use tokio::time::timeout;

use super::cluster::{Cluster, Node, PartState};
use super::connection::fault::{Fault, NotBegun, Outcome};
use super::router::Router;
use super::verbs::check::empty_write_of;
use super::verbs::stats::gauges_of;
use crate::engine::nodes::{JobsOfPart, NodeView, Nodes, NodesView, PartNumber, QueuePlaces, Unusable};
use crate::engine::{Estimated, together};
use crate::error::{Error, Result, Unreachable};
use crate::name::Queue;

/// Timeout of a node's check.
const CHECK: Duration = Duration::from_millis(500);

/// The nodes of a pool that is in a cluster.
#[derive(Debug)]
pub struct NodesOfPool {
    router: Arc<Router>,
    cluster: Arc<Cluster>,
}

/// Why a node cannot be used; `None`: it can.
type Trouble = Option<Fault>;

impl NodesOfPool {
    pub fn new(router: &Arc<Router>, cluster: &Arc<Cluster>) -> NodesOfPool {
        NodesOfPool { router: router.clone(), cluster: cluster.clone() }
    }

    /// Whether any partition works.
    pub async fn check(&self) -> Result<()> {
        let nodes = self.ask().await;
        let works = |part: PartNumber| {
            let part = &self.cluster.parts.read()[usize::from(part)];
            let node = part.node.as_ref().and_then(|node| nodes.get(&*node.id));
            part.state == PartState::Whole && node.is_some_and(|(_, trouble)| trouble.is_none())
        };
        if self.router.partitions.all().any(works) {
            return Ok(());
        }
        let refused = nodes.into_values().filter_map(|(_, trouble)| trouble).find(Fault::is_refusal);
        Err(refused.map_or(Error::Unreachable(Unreachable::Away), Error::from))
    }

    /// Checks for each node with partitions whether it accepts writes.
    async fn ask(&self) -> BTreeMap<String, (Arc<Node>, Trouble)> {
        let mut first: BTreeMap<String, (Arc<Node>, PartNumber)> = BTreeMap::new();
        for (part, n) in self.cluster.parts.read().iter().zip(0..) {
            if let Some(node) = &part.node {
                first.entry(node.id.to_string()).or_insert_with(|| (node.clone(), n));
            }
        }
        let asked = first.into_iter().map(async |(id, (node, part))| {
            let trouble = self.trouble(&node, part).await;
            (id, (node, trouble))
        });
        together::all(asked).await.into_iter().collect()
    }

    async fn trouble(&self, node: &Node, part: PartNumber) -> Trouble {
        let write = empty_write_of(&self.router.part(part).keys.guard());
        let answer: Outcome<u64> = match timeout(CHECK, node.link.shared.query(&write)).await {
            Ok(answer) => answer,
            Err(_) => Err(Fault::away("no answer in time")),
        };
        // The node replied that the slot has moved or is moving: it is healthy.
        let is_well = |why: &NotBegun| matches!(why, NotBegun::Moved(_) | NotBegun::Moving);
        answer.err().filter(|fault| !fault.not_begun.as_ref().is_some_and(is_well))
    }

    fn unusable_of(&self, nodes: &BTreeMap<String, (Arc<Node>, Trouble)>) -> Unusable {
        let mut unusable = Unusable::default();
        for (part, n) in self.cluster.parts.read().iter().zip(0..) {
            let node = part.node.as_ref().and_then(|node| nodes.get(&*node.id));
            let is_up = node.is_some_and(|(_, trouble)| trouble.is_none());
            match part.state {
                PartState::Split => unusable.split.push(n),
                PartState::Whole if is_up && self.cluster.is_moving(n) => unusable.moving.push(n),
                PartState::Whole if is_up => {}
                PartState::Whole | PartState::Unchecked => unusable.away.push(n),
            }
        }
        unusable
    }
}

#[async_trait]
impl Nodes for NodesOfPool {
    async fn unusable(&self) -> Unusable {
        self.unusable_of(&self.ask().await)
    }

    async fn view(&self) -> NodesView {
        let nodes = self.ask().await;
        let mut owned: BTreeMap<&str, PartNumber> = BTreeMap::new();
        let parts = self.cluster.parts.read().clone();
        for node in parts.iter().filter_map(|part| part.node.as_ref()) {
            *owned.entry(&node.id).or_default() += 1;
        }
        let clocks = self.cluster.known.differences();
        let now = self.router.now();
        let masters = self.cluster.known.masters();
        let views = together::all(masters.iter().map(async |master| {
            let of = nodes.get(&*master.id);
            let answers = of.is_none_or(|(_, trouble)| trouble.is_none());
            let info = match of {
                Some((node, None)) => info(node).await,
                _ => None,
            };
            let field = |name: &str| info.as_ref().and_then(|(info, _)| info.get::<u64>(name));
            NodeView {
                id: master.id.to_string(),
                addr: master.address.to_string(),
                up: master.up && answers,
                since: now.saturating_sub(master.since.elapsed().as_millis() as u64),
                parts: owned.get(&*master.id).copied().unwrap_or(0),
                replicas: field("connected_slaves"),
                used_memory: field("used_memory"),
                clock: clocks.get(&master.id).copied(),
                version: info.as_ref().and_then(|(info, _)| info.get("redis_version")),
                gauges: info.as_ref().map(|(_, text)| gauges_of(text)).unwrap_or_default(),
            }
        }));
        NodesView {
            prefix: self.router.partitions.prefix().to_owned(),
            parts: self.router.partitions.count(),
            wait_replicas: self.router.pool.common.wait_replicas,
            nodes: views.await,
            unusable: self.unusable_of(&nodes),
            redirections: self.cluster.known.redirections(),
        }
    }

    async fn places(&self, queue: &Queue) -> Result<QueuePlaces> {
        let home = self.router.partitions.home(queue);
        let mut jobs = Vec::new();
        for (part, [ready, dead]) in self.router.lengths(queue).await? {
            let node = self.cluster.parts.read()[usize::from(part)].node.clone();
            let node = node.map(|node| node.address.to_string());
            let (timers, estimated) = self.router.part(part).timers_of(std::slice::from_ref(queue)).await?;
            let [delayed, running] = timers.first().copied().unwrap_or_default();
            if ready + dead + delayed + running > 0 {
                let estimated = Estimated { timers: estimated, age: false };
                jobs.push(JobsOfPart { part, node, ready, delayed, running, dead, estimated });
            }
        }
        Ok(QueuePlaces { home, spread: self.router.spreading.is_spread(queue), jobs })
    }
}

/// Returns the node's INFO; `None` also if INFO is forbidden.
async fn info(node: &Node) -> Option<(InfoDict, String)> {
    let mut info = redis::cmd("INFO");
    info.arg("server").arg("clients").arg("memory").arg("replication").arg("keyspace");
    let text: String = timeout(CHECK, node.link.shared.query(&info)).await.ok()?.ok()?;
    Some((InfoDict::new(&text), text))
}
