//! The keys of a partition that are read or listed without a script. All begin with the partition's base, and the scripts
//! of lua/compact/ make them too: docs/redis.md has the whole list.

use std::sync::Arc;

use super::partitions::{Partition, Partitions};
use super::spread::Spreading;
use crate::engine::redis::cluster::PartedLists;
use crate::engine::redis::layout::keys::queue_of_group;
use crate::engine::redis::ready_lists::ReadyLists;
use crate::name::{IdempotencyKey, JobKey, Queue};

/// A key that nobody ever writes: a server that moves the partition's slot refuses each call that names it.
pub fn guard(base: &str) -> String {
    format!("{base}!")
}

/// The list of ready jobs, the oldest first.
pub fn ready(base: &str, queue: &Queue) -> String {
    format!("{base}r{}/{}", queue.namespace, queue.name)
}

/// The dead letter, the oldest first.
pub fn dead(base: &str, queue: &Queue) -> String {
    format!("{base}d{}/{}", queue.namespace, queue.name)
}

/// Figures of a queue.
pub fn record(base: &str, queue: &Queue) -> String {
    format!("{base}q{}/{}", queue.namespace, queue.name)
}

/// The names of 64 queues by their numbers.
pub fn names(base: &str, shard: u64) -> String {
    format!("{base}n{shard}")
}

/// The timers of jobs that run or are near, by when they are due in microseconds.
pub fn timers(base: &str) -> String {
    format!("{base}t")
}

/// Figures of the partition.
pub fn meta(base: &str) -> String {
    format!("{base}m")
}

/// What became of a publish that is safe to repeat.
pub fn once(base: &str, queue: &Queue, key: &IdempotencyKey) -> Vec<u8> {
    let mut bytes = format!("{base}o{}/{}/", queue.namespace, queue.name).into_bytes();
    bytes.extend(key.as_bytes());
    bytes
}

/// Namespaces with paused queues.
pub fn with_pauses(base: &str) -> String {
    format!("{base}a")
}

/// The paused queues of a namespace, and until when.
pub fn pauses(base: &str, namespace: &str) -> String {
    format!("{base}p{namespace}")
}

/// Namespaces with a quota.
pub fn with_quota(base: &str) -> String {
    format!("{base}c")
}

/// The queues that are spread and at home here, and since when in ms.
pub fn spread(base: &str) -> String {
    format!("{base}S")
}

/// The job that has a key.
pub fn holder(base: &str, queue: &Queue, key: &JobKey) -> String {
    format!("{base}k{}/{}/{key}", queue.namespace, queue.name)
}

/// How many schedules are in each state.
pub fn schedules(base: &str) -> String {
    format!("{base}v")
}

/// A queue as scripts name it.
pub fn name(queue: &Queue) -> String {
    format!("{}/{}", queue.namespace, queue.name)
}

/// Tells ready lists from other keys.
#[derive(Debug)]
pub struct Ready(pub Arc<Partitions>, pub Arc<Spreading>);

impl ReadyLists for Ready {
    fn keys_of(&self, queue: &Queue) -> Vec<Vec<u8>> {
        self.lists_of(queue).into_iter().map(|(_, key)| key).collect()
    }

    fn queue_of(&self, key: &[u8]) -> Option<Queue> {
        queue_of_group(self.0.rest(key)?.strip_prefix(b"r")?)
    }

    fn may_have(&self, list: Option<(&Queue, &[u8])>) {
        let Some((queue, key)) = list else { return self.1.told_everywhere() };
        if let Some(spread) = self.1.get(queue) {
            match self.0.at(key) {
                Some(partition) => spread.heads.lock().told(partition),
                None => spread.heads.lock().told_everywhere(),
            }
        }
    }
}

impl PartedLists for Ready {
    fn lists_of(&self, queue: &Queue) -> Vec<(Partition, Vec<u8>)> {
        let list = |partition| (partition, ready(self.0.base(partition), queue).into_bytes());
        match self.1.get(queue) {
            Some(_) => self.0.all().map(list).collect(),
            None => vec![list(self.0.home(queue))],
        }
    }
}
