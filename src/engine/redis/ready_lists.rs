//! Identifies the ready lists of a Redis, for the watch. Uses no connection.

use std::fmt;

use crate::name::Queue;

/// Which keys are ready lists.
pub trait ReadyLists: Send + Sync + fmt::Debug {
    /// Returns the ready lists of a queue on this Redis.
    fn keys_of(&self, queue: &Queue) -> Vec<Vec<u8>>;
    /// Returns the queue of this ready list, if it is one.
    fn queue_of(&self, key: &[u8]) -> Option<Queue>;
    /// Whether one command may name several of them: in a cluster each may be in a slot of its own.
    fn are_together(&self) -> bool {
        true
    }
    /// Reports that this list, or any, may have jobs unknown to this process. The caller notifies its queue's waiters
    /// next.
    fn may_have(&self, _: Option<(&Queue, &[u8])>) {}
}
