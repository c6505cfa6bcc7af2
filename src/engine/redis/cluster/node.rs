//! A master with its connections, and queries to nodes without permanent connections.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::RwLock;
use redis::{Cmd, FromRedisValue, InfoDict, Pipeline, Value};
use tokio::time::timeout;
use tokio_util::sync::DropGuard;

use super::map::Partition;
use super::view::{Master, NodeId, View};
use crate::engine::redis::connection::connector::{Connector, RedisAddress};
use crate::engine::redis::connection::fault::{Fault, Outcome};
use crate::engine::redis::connection::open::HostPort;
use crate::engine::redis::link::{Common, Lane, Link};
use crate::engine::redis::ready_lists::ReadyLists;
use crate::engine::redis::watch;
use crate::name::Queue;

/// Timeout of a query about the cluster. Short, since other nodes can be asked.
const ANSWER: Duration = Duration::from_millis(500);

/// Ready lists of a layout with partitions.
pub trait PartedLists: ReadyLists {
    /// Returns the ready lists of a queue, each with its partition.
    fn lists_of(&self, queue: &Queue) -> Vec<(Partition, Vec<u8>)>;
}

/// A master that owns partitions.
#[derive(Debug)]
pub struct Node {
    pub id: NodeId,
    pub address: HostPort,
    pub link: Arc<Link>,
    connector: Arc<Connector>,
    /// The partitions it owns.
    has: Arc<RwLock<BTreeSet<Partition>>>,
    /// Stop its tasks on drop.
    _guards: [DropGuard; 2],
}

impl Node {
    /// Starts to connect in the background.
    pub fn new(
        master: &Master,
        address: &RedisAddress,
        common: &Common,
        lists: &Arc<dyn PartedLists>,
    ) -> Outcome<Node> {
        let connector = Arc::new(Connector::new(&at(address, &master.address))?);
        let has: Arc<RwLock<BTreeSet<Partition>>> = Arc::default();
        let of_node = ListsOfNode { lists: lists.clone(), has: has.clone() };
        let (link, guards) = Link::to_node(connector.clone(), common, Box::new(of_node));
        link.tasks.spawn_essential("the watch on a node's ready lists", watch::run(link.clone()));
        if common.wait_replicas > 0 {
            link.tasks.spawn_essential("the watch on a node's replicas", link.clone().watch_replicas());
        }
        Ok(Node {
            id: master.id.clone(),
            address: master.address.clone(),
            link,
            connector,
            has,
            _guards: guards,
        })
    }

    /// Reads the node's clock. The node can be used afterwards.
    pub async fn learn(&self) -> Outcome<()> {
        let sent = self.link.clock.begin();
        let ((seconds, micros),): ((u64, u64),) = self.query(redis::pipe().cmd("TIME")).await?;
        self.link.clock.learn(sent, seconds * 1_000_000 + micros);
        // A node that does not answer counts as having too few replicas.
        let _ = timeout(ANSWER, self.link.look_at_replicas()).await;
        Ok(())
    }

    /// Sends commands that the node executes quickly.
    pub async fn query<T: FromRedisValue>(&self, asked: &Pipeline) -> Outcome<T> {
        let late = |_| Fault::away("no answer in time");
        timeout(ANSWER, self.link.lane(Lane::Other).query_all(asked)).await.map_err(late)?
    }

    pub fn is_up(&self) -> bool {
        self.link.is_up(Lane::Other)
    }

    /// Sets the partitions that it owns.
    pub fn has(&self, partitions: BTreeSet<Partition>) {
        *self.has.write() = partitions;
    }

    /// Disconnects from a node that no longer owns partitions. Calls in flight have a moment to finish.
    pub fn leave(&self) {
        self.connector.leave();
    }
}

/// Returns the address of one node, with the login of the cluster.
fn at(address: &RedisAddress, node: &HostPort) -> RedisAddress {
    RedisAddress { addrs: vec![node.to_string()], cluster: false, ..address.clone() }
}

/// Sends commands over a connection made for them.
pub async fn ask_once<T: FromRedisValue>(
    address: &RedisAddress,
    node: &HostPort,
    asked: &Pipeline,
) -> Outcome<T> {
    let connector = Connector::new(&at(address, node))?;
    let answer = async {
        let mut connection = connector.connect().await?;
        Ok(asked.query_async(&mut connection.redis).await?)
    };
    let late = |_| Fault::away("no answer in time").at(&node.to_string());
    timeout(ANSWER, answer).await.map_err(late)?
}

/// Asks a node for its view of the cluster.
pub async fn ask_for_view(address: &RedisAddress, node: &HostPort) -> Outcome<View> {
    let said: Outcome<(String, Vec<Vec<Value>>)> = ask_once(address, node, &View::ask()).await;
    View::read(said?, node)
}

/// Returns the view of the first node in `address` that answers.
pub async fn first_view(address: &RedisAddress) -> Outcome<View> {
    let mut why = Fault::refused("Cluster contains no node");
    for addr in &address.addrs {
        let node = HostPort::parse(addr)?;
        match ask_for_view(address, &node).await {
            Ok(view) => return Ok(view),
            Err(fault) if fault.is_refusal() => return Err(why_refused(address, &node, fault).await),
            Err(fault) => why = fault,
        }
    }
    Err(why)
}

/// Returns the first value found by these commands. Each is sent to the master of its slot.
pub async fn first_found<T: FromRedisValue>(
    address: &RedisAddress,
    asked: impl IntoIterator<Item = (u16, Cmd)>,
) -> Outcome<Option<T>> {
    let view = first_view(address).await?;
    for (slot, cmd) in asked {
        let Some(owner) = view.owner(slot).filter(|owner| !owner.failed) else { continue };
        let answer: Outcome<(Option<T>,)> =
            ask_once(address, &owner.address, redis::pipe().add_command(cmd)).await;
        if let Ok((Some(found),)) = answer {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

/// Returns the error for a Redis that refused the cluster commands: most likely it is not part of a cluster.
async fn why_refused(address: &RedisAddress, node: &HostPort, fault: Fault) -> Fault {
    let asked: Outcome<(InfoDict,)> = ask_once(address, node, redis::pipe().cmd("INFO").arg("server")).await;
    let mode = asked.ok().and_then(|(info,)| info.get::<String>("redis_mode"));
    if mode.is_none_or(|mode| mode == "cluster") {
        return fault.at(&node.to_string());
    }
    Fault::refused(format!("{node} in Cluster is not in cluster mode: use Addr instead"))
}

/// Returns the reachable masters of a cluster, each as the address of a single Redis.
pub async fn masters(address: &RedisAddress) -> Outcome<Vec<RedisAddress>> {
    let mut there = Vec::new();
    for master in first_view(address).await?.masters.iter().filter(|master| !master.failed) {
        let answer: Outcome<(String,)> = ask_once(address, &master.address, redis::pipe().cmd("PING")).await;
        match answer {
            Ok(_) => there.push(at(address, &master.address)),
            Err(fault) if fault.is_refusal() => return Err(fault),
            Err(_) => {}
        }
    }
    Ok(there)
}

/// The ready lists on one node.
#[derive(Debug)]
struct ListsOfNode {
    lists: Arc<dyn PartedLists>,
    has: Arc<RwLock<BTreeSet<Partition>>>,
}

impl ReadyLists for ListsOfNode {
    fn keys_of(&self, queue: &Queue) -> Vec<Vec<u8>> {
        let has = self.has.read();
        let here = self.lists.lists_of(queue).into_iter().filter(|(partition, _)| has.contains(partition));
        here.map(|(_, key)| key).collect()
    }

    fn queue_of(&self, key: &[u8]) -> Option<Queue> {
        self.lists.queue_of(key)
    }

    fn are_together(&self) -> bool {
        false
    }

    fn may_have(&self, list: Option<(&Queue, &[u8])>) {
        self.lists.may_have(list);
    }
}
