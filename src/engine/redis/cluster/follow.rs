//! Maintains the map of a cluster. Asks one node per second, in rotation, and also at once after a MOVED reply or when
//! a call found no node. Connects to new masters, and disconnects from masters without partitions.
//!
//! A partition that has moved to another master is used only after checking that no other master has keys of its slot.
//! If a master fails while it migrates a slot away, its promoted replica does not know of the migration, and would
//! serve only half of the keys. If another master has some of them and the owner does not report the slot as migrating,
//! the partition is *split* and not used until an operator has repaired it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, FromRedisValue, Pipeline};
use tokio::time::{Instant, sleep};

use super::calls::{Cluster, Part, PartState};
use super::map::{Partition, SlotMap};
use super::node::{Node, PartedLists, ask_for_view, ask_once, first_view};
use super::view::{Master, NodeId, View};
use crate::engine::redis::connection::connector::RedisAddress;
use crate::engine::redis::connection::fault::{Fault, Outcome};
use crate::engine::redis::connection::open::HostPort;
use crate::engine::redis::link::Common;

/// Interval between updates of the map while every partition can be used.
const PERIOD: Duration = Duration::from_secs(1);
/// First and longest interval otherwise. The interval doubles each time.
const FIRST_PAUSE: Duration = Duration::from_millis(25);
const LAST_PAUSE: Duration = Duration::from_millis(400);
/// After failing to answer, a node is asked last for this long.
const DEAF: Duration = Duration::from_secs(2);
/// How long the start waits for masters that do not answer.
const START: Duration = Duration::from_secs(1);

/// Maintains the map.
pub struct Follower {
    cluster: Arc<Cluster>,
    /// Addresses of some nodes, and the login for all of them.
    address: RedisAddress,
    common: Common,
    lists: Arc<dyn PartedLists>,
    map: SlotMap,
    /// The latest view.
    pub view: View,
    nodes: BTreeMap<NodeId, Arc<Node>>,
    states: Vec<PartState>,
    /// Masters that could not be asked for keys of other partitions. They are asked once they answer.
    unasked: BTreeSet<NodeId>,
    deaf: Vec<(HostPort, Instant)>,
    /// Number of queries so far; rotates through the nodes.
    turn: usize,
    /// Nodes logged as unavailable.
    gone: BTreeMap<NodeId, HostPort>,
}

impl Follower {
    /// Reads the map, then waits until every partition can be used, at most `START`.
    pub async fn begin(
        cluster: Arc<Cluster>,
        (address, common, lists): (RedisAddress, Common, Arc<dyn PartedLists>),
        slots: Vec<u16>,
    ) -> Outcome<Follower> {
        let view = first_view(&address).await?;
        let mut follower = Follower {
            states: vec![PartState::default(); slots.len()],
            map: SlotMap::new(slots),
            view: View::default(),
            nodes: BTreeMap::new(),
            unasked: BTreeSet::new(),
            deaf: Vec::new(),
            turn: 0,
            gone: BTreeMap::new(),
            cluster,
            address,
            common,
            lists,
        };
        let (began, mut pause) = (Instant::now(), FIRST_PAUSE);
        follower.take(view).await;
        while !follower.is_well() && began.elapsed() < START {
            sleep(pause).await;
            pause = (pause * 2).min(LAST_PAUSE);
            follower.look().await;
        }
        if follower.cluster.nodes().is_empty() {
            return Err(Fault::away("no master of the cluster responds"));
        }
        Ok(follower)
    }

    /// Sends a command to the master of `slot`.
    pub async fn query<T: FromRedisValue>(&self, slot: u16, cmd: &Cmd) -> Outcome<T> {
        let owner = self.view.owner(slot).ok_or_else(|| Fault::away("no node serves the slot"))?;
        let mut asked = redis::pipe();
        asked.add_command(cmd.clone());
        let (answer,): (T,) = match self.nodes.get(&owner.id) {
            Some(node) if node.is_up() => node.query(&asked).await?,
            _ => ask_once(&self.address, &owner.address, &asked).await?,
        };
        Ok(answer)
    }

    /// Updates the map until the cluster is closed.
    pub async fn run(mut self) {
        let (cluster, stop) = (self.cluster.clone(), self.cluster.tasks.stopping().clone());
        let follow = async {
            let mut pause = FIRST_PAUSE;
            loop {
                let period = if self.is_well() { PERIOD } else { pause };
                tokio::select! {
                    () = cluster.look.notified() => pause = FIRST_PAUSE,
                    () = sleep(period) => pause = (pause * 2).min(LAST_PAUSE),
                }
                self.look().await;
            }
        };
        stop.run_until_cancelled(follow).await;
    }

    /// Whether every partition can be used.
    fn is_well(&self) -> bool {
        let parts = self.cluster.parts.read();
        parts.iter().all(|part| {
            part.state != PartState::Unchecked && part.node.as_ref().is_some_and(|node| node.is_up())
        })
    }

    /// Asks one node for its view, and applies it. Tries the next node if it fails.
    pub async fn look(&mut self) {
        let named = self.cluster.named.lock().take();
        let named = named.and_then(|named| HostPort::parse(&named).ok());
        let mut asked: Vec<HostPort> = named.into_iter().collect();
        self.turn += 1;
        let mut all: Vec<HostPort> = self.view.masters.iter().map(|master| master.address.clone()).collect();
        // Every node lists the masters in its own order, so without sorting some would never be asked.
        all.sort_by_key(HostPort::to_string);
        if !all.is_empty() {
            let first = self.turn % all.len();
            all.rotate_left(first);
        }
        // The configured addresses come last: they help if all nodes have new addresses.
        all.extend(self.address.addrs.iter().filter_map(|addr| HostPort::parse(addr).ok()));
        self.deaf.retain(|(_, since)| since.elapsed() < DEAF);
        let (good, deaf): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|address| self.deaf.iter().all(|(deaf, _)| deaf != address));
        asked.extend(good);
        asked.extend(deaf);
        for address in asked {
            match self.ask(&address).await {
                Ok(view) => return self.take(view).await,
                Err(fault) => {
                    tracing::debug!(pool = &*self.common.pool, "no cluster map from {address}: {fault}");
                    self.deaf.retain(|(deaf, _)| *deaf != address);
                    self.deaf.push((address, Instant::now()));
                }
            }
        }
        self.tell_who_is_gone();
    }

    async fn ask(&self, address: &HostPort) -> Outcome<View> {
        match self.nodes.values().find(|node| node.address == *address) {
            Some(node) if node.is_up() => self.ask_node(node).await,
            Some(_) => Err(Fault::away("no connection")),
            None => ask_for_view(&self.address, address).await,
        }
    }

    /// Also reads the node's clock.
    async fn ask_node(&self, node: &Node) -> Outcome<View> {
        let mut asked = redis::pipe();
        asked.cmd("TIME");
        View::ask().cmd_iter().for_each(|cmd| _ = asked.add_command(cmd.clone()));
        let sent = Instant::now();
        let ((seconds, micros), nodes, slots): ((u64, u64), _, _) = node.query(&asked).await?;
        if let Some(off) = self.cluster.known.clock(&node.id, sent, seconds * 1_000_000 + micros) {
            tracing::warn!(
                pool = &*self.common.pool,
                node = %node.address,
                "this node's clock differs from the other nodes' by {} ms, so its jobs become due early or late: \
                 synchronize the clocks",
                off.as_millis()
            );
        }
        View::read((nodes, slots), &node.address)
    }

    /// Applies the newer claims of a view, and updates nodes and partitions.
    async fn take(&mut self, view: View) {
        for partition in self.map.take(&view) {
            self.states[usize::from(partition)] = PartState::Unchecked;
        }
        self.view = view;
        self.connect().await;
        self.check().await;
        self.publish();
        self.tell_who_is_gone();
    }

    /// Returns the partitions of each master.
    fn owned(&self) -> BTreeMap<NodeId, Vec<Partition>> {
        let mut owned: BTreeMap<NodeId, Vec<Partition>> = BTreeMap::new();
        for partition in self.map.all() {
            if let Some(id) = self.map.owner(partition) {
                owned.entry(id.clone()).or_default().push(partition);
            }
        }
        owned
    }

    /// Creates nodes for new masters and for masters with a new address.
    async fn connect(&mut self) {
        for (id, has) in self.owned() {
            let Some(master) = self.view.master(&id) else { continue };
            if self.nodes.get(&id).is_some_and(|node| node.address == master.address) {
                continue;
            }
            match Node::new(master, &self.address, &self.common, &self.lists) {
                Ok(node) => {
                    if let Some(old) = self.nodes.insert(id, Arc::new(node)) {
                        old.leave();
                    }
                    // Unusable until the new node's clock is known.
                    has.into_iter().for_each(|of| self.states[usize::from(of)] = PartState::Unchecked);
                }
                Err(fault) => {
                    tracing::warn!(pool = &*self.common.pool, node = %master.address, "cannot use a node of the cluster: {fault}")
                }
            }
        }
    }

    /// Checks unchecked and split partitions: whether another master has keys of them.
    async fn check(&mut self) {
        // A node is used once its clock is known.
        let new: Vec<Partition> = self
            .map
            .all()
            .filter(|partition| self.states[usize::from(*partition)] != PartState::Whole)
            .filter(|partition| self.node_of(*partition).is_some_and(|node| node.is_up()))
            .collect();
        let mut learnt: BTreeMap<NodeId, bool> = BTreeMap::new();
        let mut left = Vec::new();
        for partition in new {
            let Some(node) = self.node_of(partition).cloned() else { continue };
            let knows = match learnt.get(&node.id) {
                Some(knows) => *knows,
                None => {
                    let knows = node.learn().await.is_ok();
                    learnt.insert(node.id.clone(), knows);
                    knows
                }
            };
            if knows {
                left.push(partition);
            }
        }
        let back: Vec<NodeId> = self.unasked.iter().cloned().collect();
        if left.is_empty() && back.is_empty() {
            return;
        }
        let others: Vec<Master> = self.view.masters.iter().filter(|master| !master.failed).cloned().collect();
        let mut elsewhere: BTreeSet<Partition> = BTreeSet::new();
        for master in others {
            // A master that could not be asked earlier is asked about all partitions.
            let was_away = back.contains(&master.id);
            let of: Vec<Partition> = if was_away { self.map.all().collect() } else { left.clone() };
            let of: Vec<Partition> =
                of.into_iter().filter(|partition| self.map.owner(*partition) != Some(&master.id)).collect();
            match self.keys_of_others(&master, of).await {
                Ok(of) => {
                    self.unasked.remove(&master.id);
                    elsewhere.extend(of);
                }
                Err(_) => _ = self.unasked.insert(master.id),
            }
        }
        let split = self.split(&elsewhere).await;
        for partition in left {
            // If an owner does not say which slots it is migrating, all are checked again next time.
            let Ok(split) = &split else { break };
            self.set_state(
                partition,
                if split.contains(&partition) { PartState::Split } else { PartState::Whole },
            );
        }
        for partition in split.into_iter().flatten() {
            self.set_state(partition, PartState::Split);
        }
    }

    fn set_state(&mut self, partition: Partition, state: PartState) {
        let was = std::mem::replace(&mut self.states[usize::from(partition)], state);
        let pool = &*self.common.pool;
        match (was, state) {
            (PartState::Split, PartState::Whole) => {
                tracing::info!(pool, partition, "this part of the pool is on one node again");
            }
            (PartState::Unchecked | PartState::Whole, PartState::Split) => tracing::error!(
                pool,
                partition,
                slot = self.map.slot(partition),
                "this part of the pool is on two nodes and is not used: run redis-cli --cluster fix"
            ),
            _ => {}
        }
    }

    fn node_of(&self, partition: Partition) -> Option<&Arc<Node>> {
        self.nodes.get(self.map.owner(partition)?)
    }

    /// Returns which of these partitions of other masters `master` has keys of. Excludes partitions that it still
    /// believes to own: a demoted master that has not heard of the failover has all of their keys, which is not a
    /// split.
    async fn keys_of_others(&self, master: &Master, of: Vec<Partition>) -> Outcome<Vec<Partition>> {
        if of.is_empty() {
            return Ok(of);
        }
        let mut asked = redis::pipe();
        for partition in &of {
            asked.cmd("CLUSTER").arg("COUNTKEYSINSLOT").arg(self.map.slot(*partition));
        }
        let counts: Vec<u64> = self.ask_master(master, &asked).await?;
        let mut has: Vec<Partition> =
            of.into_iter().zip(counts).filter(|(_, keys)| *keys > 0).map(|(of, _)| of).collect();
        if !has.is_empty() {
            let view = View::read(self.ask_master(master, &View::ask()).await?, &master.address)?;
            let own = view.master(&master.id);
            has.retain(|of| own.is_some_and(|own| !own.has(self.map.slot(*of))));
        }
        Ok(has)
    }

    async fn ask_master<T: FromRedisValue>(&self, master: &Master, asked: &Pipeline) -> Outcome<T> {
        match self.nodes.get(&master.id) {
            Some(node) if node.is_up() => node.query(asked).await,
            Some(_) => Err(Fault::away("no connection")),
            None => ask_once(&self.address, &master.address, asked).await,
        }
    }

    /// Returns the partitions in `elsewhere` whose owner does not report their slot as migrating.
    async fn split(&self, elsewhere: &BTreeSet<Partition>) -> Outcome<BTreeSet<Partition>> {
        let mut split = BTreeSet::new();
        let owners: BTreeSet<&NodeId> = elsewhere.iter().filter_map(|of| self.map.owner(*of)).collect();
        for owner in owners {
            let Some(node) = self.nodes.get(owner) else { continue };
            let view = View::read(node.query(&View::ask()).await?, &node.address)?;
            let of_owner = elsewhere.iter().filter(|of| self.map.owner(**of) == Some(owner));
            split.extend(of_owner.filter(|of| !view.leaving.contains(&self.map.slot(**of))));
        }
        Ok(split)
    }

    /// Makes the new state visible to calls, and disconnects from nodes without partitions.
    fn publish(&mut self) {
        let mut changed = Vec::new();
        let mut parts = self.cluster.parts.write();
        for (part, n) in parts.iter_mut().zip(0..) {
            let state = self.states[usize::from(n)];
            let node = self.nodes.get(self.map.owner(n).unwrap_or(&"".into())).cloned();
            let id =
                |node: &Option<Arc<Node>>| node.as_ref().map(|node| (node.id.clone(), node.address.clone()));
            if part.state != state || id(&part.node) != id(&node) {
                changed.push(n);
            }
            *part = Part { node, state };
        }
        drop(parts);
        let owned = self.owned();
        self.nodes.retain(|id, node| {
            let has = owned.get(id);
            match has {
                Some(has) => node.has(has.iter().copied().collect()),
                None => node.leave(),
            }
            has.is_some()
        });
        self.wake(&changed);
    }

    /// Makes waiters for queues with changed partitions fetch again: jobs may have become ready there while nothing
    /// watched their lists.
    fn wake(&self, changed: &[Partition]) {
        if changed.is_empty() {
            return;
        }
        let (common, lists) = (&self.common, &self.lists);
        lists.may_have(None);
        for queue in common.notifiers.waited_for() {
            let lists = lists.lists_of(&queue).into_iter().map(|(partition, _)| partition);
            let here: Vec<Partition> = lists.filter(|partition| changed.contains(partition)).collect();
            for node in here.iter().filter_map(|partition| self.node_of(*partition)) {
                node.link.watch.arm([queue.clone()]);
            }
            if !here.is_empty() {
                common.notifiers.notify(&queue);
            }
        }
    }

    /// Logs one line when a node becomes unavailable and one when it is back.
    fn tell_who_is_gone(&mut self) {
        let pool = &*self.common.pool;
        for (id, node) in &self.nodes {
            let failed = self.view.master(id).is_some_and(|master| master.failed);
            if (failed || !node.is_up()) && !self.gone.contains_key(id) {
                tracing::error!(pool, node = %node.address, "a node of the cluster is unavailable");
                self.gone.insert(id.clone(), node.address.clone());
            }
        }
        let (view, nodes) = (&self.view, &self.nodes);
        self.cluster.known.tell(view.masters.iter().map(|master| {
            let up = !master.failed && nodes.get(&master.id).is_none_or(|node| node.is_up());
            (master, up)
        }));
        self.gone.retain(|id, address| {
            let back = view.alive.contains(id) && nodes.get(id).is_none_or(|node| node.is_up());
            if back {
                tracing::info!(pool, node = %address, "a node of the cluster is available again");
            }
            !back
        });
    }
}
