//! Which keys of a Redis are ready lists, for what watches them. Knows no connection.

use std::fmt;

use crate::name::Queue;

/// Which keys are ready lists.
pub trait ReadyLists: Send + Sync + fmt::Debug {
    /// The ready lists of a queue that are on this Redis.
    fn keys_of(&self, queue: &Queue) -> Vec<Vec<u8>>;
    /// The queue whose ready list this is, when it is one.
    fn queue_of(&self, key: &[u8]) -> Option<Queue>;
    /// Whether one command may name several of them: in a cluster each may be in a slot of its own.
    fn are_together(&self) -> bool {
        true
    }
    /// This list, or any, may have jobs that this process knows nothing of. Consumers of its queue are notified next.
    fn may_have(&self, _: Option<(&Queue, &[u8])>) {}
}
