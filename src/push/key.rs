//! The name of a pushed queue.

use std::fmt;

use crate::name::{PoolName, Queue};

/// A pushed queue.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PushKey {
    pub pool: PoolName,
    pub queue: Queue,
}

impl fmt::Display for PushKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.pool, self.queue)
    }
}
