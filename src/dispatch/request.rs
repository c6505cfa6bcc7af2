//! What a consumer asks for, and what it gets. Plain values.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use super::delivery::Delivery;
use crate::error::Error;
use crate::name::{Queue, QueueList};

/// Why a consumer got no answer.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ConsumeError {
    /// As many consumers are parked as may be.
    #[error("too many consumers are waiting (at most {0})")]
    TooMany(usize),
    /// As many consumers of its namespace are parked as may be.
    #[error("too many consumers of the namespace are waiting (at most {0})")]
    TooManyInNamespace(usize),
    #[error("{0}")]
    Store(Error),
}

/// What one consumer asks for.
#[derive(Clone, Debug)]
pub struct Request {
    /// First is served first, unless there are weights.
    pub queues: QueueList,
    /// In which proportion the queues are served while they have jobs.
    pub weights: Option<Weights>,
    /// How many jobs at most; 1 to 100.
    pub count: u16,
    /// How long each job may run before it comes back.
    pub ttr: Duration,
    /// How long to wait for the first job; zero is not at all.
    pub timeout: Duration,
    /// Bytes that its connection keeps of the request while it waits; 0 where there is none.
    pub head: usize,
}

/// With so many queues a list counts once. Each queue that it names takes memory: so many of the longest names take about
/// as much as a poll of one queue.
const OF_ONE_PLACE: usize = 10;
/// A head of so many bytes is no more than its connection's buffer has room for anyway. One that is longer counts once more
/// for each so many.
const HEAD_OF_ONE_PLACE: usize = 8 << 10;

/// How often a list counts against bounds that are there for its memory.
pub fn places(queues: &QueueList) -> usize {
    queues.names().len().div_ceil(OF_ONE_PLACE)
}

impl Request {
    /// How often it counts while it waits.
    pub(super) fn places(&self) -> usize {
        places(&self.queues) + self.head.saturating_sub(1) / HEAD_OF_ONE_PLACE
    }
}

/// What the waiters of one list have asked for. Shared: each queue of the list refers to it, and each waiter.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Wanted(Arc<WantedQueues>);

/// From which queues, and how those share.
#[derive(PartialEq, Eq, Hash, Debug)]
pub struct WantedQueues {
    pub queues: QueueList,
    /// `None`: the first queue that has jobs is served first.
    pub weights: Option<Weights>,
}

impl Deref for Wanted {
    type Target = WantedQueues;

    fn deref(&self) -> &WantedQueues {
        &self.0
    }
}

impl Wanted {
    pub fn new(queues: QueueList, weights: Option<Weights>) -> Wanted {
        Wanted(Arc::new(WantedQueues { queues, weights }))
    }

    pub fn queues(&self) -> impl Iterator<Item = Queue> + '_ {
        self.queues.queues()
    }
}

/// One weight for each queue of a list, in its order; each at least 1. Shared, since each waiter has it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Weights(Arc<Vec<u16>>);

impl Weights {
    pub fn new(weights: Vec<u16>) -> Weights {
        Weights(Arc::new(weights))
    }

    /// One for each queue.
    pub fn as_slice(&self) -> &[u16] {
        &self.0
    }
}

/// What a waiter gets.
pub type ConsumeResult = Result<Delivery, ConsumeError>;
