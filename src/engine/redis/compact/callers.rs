//! Calls that share script calls, gathered for each partition by itself: a partition that cannot be used now holds up no
//! other one, and what waits for one goes to it in large calls.

use std::sync::OnceLock;

use super::partitions::Partition;
use crate::engine::batch::Caller;
use crate::error::Result;

/// The calling sides of all partitions.
#[derive(Debug)]
pub struct Callers<Req, Rep> {
    each: Vec<OnceLock<Caller<Req, Rep>>>,
}

impl<Req, Rep> Callers<Req, Rep> {
    pub fn new(count: u16) -> Callers<Req, Rep> {
        Callers { each: (0..count).map(|_| OnceLock::new()).collect() }
    }

    /// Queues a call. `begin` starts what serves the partition, before the first one.
    pub async fn call(
        &self,
        partition: Partition,
        request: Req,
        begin: impl FnOnce() -> Caller<Req, Rep>,
    ) -> Result<Rep> {
        self.each[usize::from(partition)].get_or_init(begin).call(request).await
    }
}
