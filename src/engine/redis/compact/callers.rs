//! Calls that share script calls, gathered for each partition by itself: a partition that cannot be used now holds up no
//! other one, and what waits for one goes to it in large calls.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use super::partitions::Partition;
use crate::engine::batch::{BatchSize, Call, Caller};
use crate::engine::redis::batches::Plain;
use crate::engine::{Publication, Published};
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

/// A publication that goes to another partition if this one does not come to it.
#[derive(Debug)]
pub struct Movable {
    plain: Plain,
    taken: Taken,
}

/// Whether a publication is on its way, or has gone elsewhere: whoever says so first has it.
#[derive(Clone, Debug, Default)]
pub struct Taken(Arc<AtomicBool>);

impl Taken {
    /// Takes it, unless it was.
    pub fn take(&self) -> bool {
        !self.0.swap(true, Ordering::SeqCst)
    }
}

impl Movable {
    pub fn new(publication: Publication, taken: Taken) -> Movable {
        Movable { plain: Plain(publication), taken }
    }

    /// Those of a batch that have not gone elsewhere. They are on their way from now on.
    pub fn take_all(batch: Vec<Call<Movable, Published>>) -> Vec<Call<Plain, Published>> {
        let left = batch.into_iter().filter(|call| call.request.taken.take());
        left.map(|call| call.map(|movable| movable.plain)).collect()
    }
}

impl BatchSize for Movable {
    fn items(&self) -> usize {
        self.plain.items()
    }

    fn bytes(&self) -> usize {
        self.plain.bytes()
    }
}
