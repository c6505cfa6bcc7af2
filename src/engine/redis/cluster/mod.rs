//! A Redis Cluster under a pool: the nodes that are masters, the connections to each, and which of them has which
//! partition. Whoever calls names a partition and never a node. Knows no key and no layout.
//!
//! - `view`: what one node says of the cluster; `map`: what is right of what several say.
//! - `node`: a master and the connections to it.
//! - `known`: what else is known of the masters, for operators.
//! - `calls`: a call finds its node, and is sent again as long as no node has begun it.
//! - `follow`: the task that keeps the map, makes and leaves nodes, and looks whether a partition is on two of them.

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

/// A cluster whose map is known, before anybody keeps it.
pub struct Opened {
    pub cluster: Arc<Cluster>,
    follower: Follower,
}

impl Opened {
    /// A command to whoever has a slot.
    pub async fn query<T: FromRedisValue>(&self, slot: u16, cmd: &Cmd) -> Outcome<T> {
        self.follower.query(slot, cmd).await
    }

    /// Whether somebody serves each slot.
    pub fn serves_all(&self) -> bool {
        self.follower.view.serves_all()
    }

    /// Keeps the map from here on. That ends with what is answered.
    pub fn keep(self) -> (Arc<Cluster>, DropGuard) {
        let Opened { cluster, follower } = self;
        let tasks = &cluster.tasks;
        tasks.spawn_essential("the cluster map", follower.run());
        let guard = tasks.stopping().clone().drop_guard();
        (cluster, guard)
    }
}

/// Asks the nodes of this address for the others, and connects to the masters. `Away` when none answers, `Refused` when
/// one cannot be used. `slots` has the slot of each partition.
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
