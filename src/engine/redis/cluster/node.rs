//! A master, with the connections to it; and questions to nodes that none are kept to.

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

/// How long a node may take to answer a question about the cluster: others can be asked.
const ANSWER: Duration = Duration::from_millis(500);

/// Which keys are ready lists, of a layout that has partitions.
pub trait PartedLists: ReadyLists {
    /// The ready lists of a queue, and where each is.
    fn lists_of(&self, queue: &Queue) -> Vec<(Partition, Vec<u8>)>;
}

/// A master that has partitions.
#[derive(Debug)]
pub struct Node {
    pub id: NodeId,
    pub address: HostPort,
    pub link: Arc<Link>,
    connector: Arc<Connector>,
    /// Its partitions.
    has: Arc<RwLock<BTreeSet<Partition>>>,
    /// End its tasks.
    _guards: [DropGuard; 2],
}

impl Node {
    /// Begins to connect.
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

    /// Learns its clock. It can be used from then on.
    pub async fn learn(&self) -> Outcome<()> {
        let sent = self.link.clock.begin();
        let ((seconds, micros),): ((u64, u64),) = self.query(redis::pipe().cmd("TIME")).await?;
        self.link.clock.learn(sent, seconds * 1_000_000 + micros);
        // Who cannot say has too few.
        let _ = timeout(ANSWER, self.link.look_at_replicas()).await;
        Ok(())
    }

    /// Commands that take it no time.
    pub async fn query<T: FromRedisValue>(&self, asked: &Pipeline) -> Outcome<T> {
        let late = |_| Fault::away("no answer in time");
        timeout(ANSWER, self.link.lane(Lane::Other).query_all(asked)).await.map_err(late)?
    }

    /// Whether it can be reached.
    pub fn is_up(&self) -> bool {
        self.link.is_up(Lane::Other)
    }

    /// It has these partitions now.
    pub fn has(&self, partitions: BTreeSet<Partition>) {
        *self.has.write() = partitions;
    }

    /// It has no partition any more: calls under way have a moment to be answered.
    pub fn leave(&self) {
        self.connector.leave();
    }
}

/// The same login for one node.
fn at(address: &RedisAddress, node: &HostPort) -> RedisAddress {
    RedisAddress { addrs: vec![node.to_string()], cluster: false, ..address.clone() }
}

/// Commands to a node that no connection is kept to.
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

/// What a node says of the cluster.
pub async fn ask_for_view(address: &RedisAddress, node: &HostPort) -> Outcome<View> {
    let said: Outcome<(String, Vec<Vec<Value>>)> = ask_once(address, node, &View::ask()).await;
    View::read(said?, node)
}

/// What the first node of an address that answers says of the cluster.
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

/// The first value that one of these commands finds. Each goes to whoever has its slot.
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

/// What to say of a Redis that tells of no cluster: most likely it is in none.
async fn why_refused(address: &RedisAddress, node: &HostPort, fault: Fault) -> Fault {
    let asked: Outcome<(InfoDict,)> = ask_once(address, node, redis::pipe().cmd("INFO").arg("server")).await;
    let mode = asked.ok().and_then(|(info,)| info.get::<String>("redis_mode"));
    if mode.is_none_or(|mode| mode == "cluster") {
        return fault.at(&node.to_string());
    }
    Fault::refused(format!("{node} in Cluster is not in cluster mode: use Addr instead"))
}

/// The masters of a cluster that can be reached, each as a Redis of its own.
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

/// The ready lists that are on a node.
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
