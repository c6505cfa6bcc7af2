//! Maps between queues of a pool and the keys of their ready lists, for the watch. Sends nothing.

use std::sync::Arc;

use super::cluster::PartedLists;
use super::cluster::map::Partition;
use super::layout::keys::{queue_of_ready, ready_of};
use super::partitions::Partitions;
use super::ready_lists::ReadyLists;
use super::spread::Spreading;
use crate::name::Queue;

/// The ready lists of a pool.
#[derive(Debug)]
pub struct PoolLists {
    pub partitions: Arc<Partitions>,
    pub spreading: Arc<Spreading>,
}

impl ReadyLists for PoolLists {
    fn keys_of(&self, queue: &Queue) -> Vec<Vec<u8>> {
        self.lists_of(queue).into_iter().map(|(_, key)| key).collect()
    }

    fn queue_of(&self, key: &[u8]) -> Option<Queue> {
        queue_of_ready(self.partitions.split(key)?.1)
    }

    fn may_have(&self, list: Option<(&Queue, &[u8])>) {
        match list.map(|(queue, key)| (queue, self.partitions.split(key))) {
            Some((queue, Some((partition, _)))) => self.spreading.notify(queue, partition),
            _ => self.spreading.notify_all(),
        }
    }
}

impl PartedLists for PoolLists {
    fn lists_of(&self, queue: &Queue) -> Vec<(Partition, Vec<u8>)> {
        let list = |partition| (partition, ready_of(self.partitions.base(partition), queue).into_bytes());
        if self.spreading.is_everywhere(queue) {
            return self.partitions.all().map(list).collect();
        }
        vec![list(self.partitions.home(queue))]
    }
}
