//! The Redis Cluster of a pool: its masters, the connections to each, and the map of partitions to masters. Callers
//! name a partition, never a node. Independent of keys and layout.
//!
//! - `view`: the cluster as one node reports it; `map`: merges the views of several nodes.
//! - `node`: a master and the connections to it.
//! - `known`: other facts about the masters, for operators.
//! - `calls`: finds the node for a call, and resends the call while no node has started it.
//! - `follow`: the task that maintains the map, adds and removes nodes, and detects partitions that are split over two
//!   nodes.

mod calls;
mod follow;
mod known;
pub mod map;
mod node;
mod view;

use std::sync::Arc;

use redis::{Cmd, FromRedisValue};
use tokio_util::sync::DropGuard;

pub(crate) use self::calls::ask;
pub use self::calls::{Attempts, Cluster, PartState};
use self::follow::Follower;
pub use self::node::{Node, PartedLists, first_found, masters};
pub use self::view::SLOTS;
use super::connection::connector::RedisAddress;
use super::connection::fault::Outcome;
use super::link::Common;
use crate::process::tasks::Tasks;

/// A cluster whose map has been read but is not being maintained yet.
pub struct Opened {
    pub cluster: Arc<Cluster>,
    follower: Follower,
}

impl Opened {
    /// Sends a command to the master of `slot`.
    pub async fn query<T: FromRedisValue>(&self, slot: u16, cmd: &Cmd) -> Outcome<T> {
        self.follower.query(slot, cmd).await
    }

    /// Reads the map again.
    pub async fn look(&mut self) {
        self.follower.look().await;
    }

    /// Whether every slot has a master that has not failed.
    pub fn serves_all(&self) -> bool {
        self.follower.view.serves_all()
    }

    /// Starts the task that maintains the map. Dropping the returned guard stops it.
    pub fn keep(self) -> (Arc<Cluster>, DropGuard) {
        let Opened { cluster, follower } = self;
        let tasks = &cluster.tasks;
        tasks.spawn_essential("the cluster map", follower.run());
        let guard = tasks.stopping().clone().drop_guard();
        (cluster, guard)
    }
}

/// Asks the nodes in `address` for the cluster's masters, and connects to them. `slots` contains the slot of each
/// partition. Fails with `Away` if no node answers, and with `Refused` if one cannot be used.
pub async fn open(
    address: RedisAddress,
    common: Common,
    slots: Vec<u16>,
    lists: Arc<dyn PartedLists>,
) -> Outcome<Opened> {
    let tasks = Tasks::new(common.failure.clone());
    let cluster = Arc::new(Cluster::new(slots.len(), tasks));
    let follower = Follower::begin(cluster.clone(), (address, common, lists), slots).await?;
    Ok(Opened { cluster, follower })
}
