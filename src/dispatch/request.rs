//! Requests of consumers and their results, as plain values.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use super::delivery::Delivery;
use crate::error::Error;
use crate::name::{Queue, QueueList};

/// Why a consume failed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ConsumeError {
    /// The limit on parked polls is reached.
    #[error("too many consumers are waiting (at most {0})")]
    TooMany(usize),
    /// The namespace's limit on parked polls is reached.
    #[error("too many consumers of the namespace are waiting (at most {0})")]
    TooManyInNamespace(usize),
    #[error("{0}")]
    Store(Error),
}

/// A consume request.
#[derive(Clone, Debug)]
pub struct Request {
    /// Queues in order of priority, unless there are weights.
    pub queues: QueueList,
    /// Relative shares of the queues while they have jobs.
    pub weights: Option<Weights>,
    /// Maximum number of jobs, from 1 to 100.
    pub count: u16,
    /// Time to run of each job.
    pub ttr: Duration,
    /// Time to wait for the first job; zero does not wait.
    pub timeout: Duration,
    /// Bytes of the request's head that its connection keeps while it waits; 0 if there is no connection.
    pub head: usize,
}

/// Queues per slot. Each queue name takes memory: ten of maximum length take about the memory of a poll of one queue.
const OF_ONE_PLACE: usize = 10;
/// Bytes of request head per slot. The first 8 KiB fit the connection's buffer and are free.
const HEAD_OF_ONE_PLACE: usize = 8 << 10;

/// Returns the number of slots that `queues` takes against limits that exist to bound memory.
pub fn places(queues: &QueueList) -> usize {
    queues.names().len().div_ceil(OF_ONE_PLACE)
}

impl Request {
    /// Returns the number of slots that the request takes while it waits.
    pub(super) fn places(&self) -> usize {
        places(&self.queues) + self.head.saturating_sub(1) / HEAD_OF_ONE_PLACE
    }
}

/// The queues and weights of a wait list, shared by its waiters and by the entry of each queue.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Wanted(Arc<WantedQueues>);

/// Contents of a [`Wanted`].
#[derive(PartialEq, Eq, Hash, Debug)]
pub struct WantedQueues {
    pub queues: QueueList,
    /// `None` serves the first queue that has jobs.
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

/// One weight per queue of a list, in its order, each at least 1. Shared by all waiters.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Weights(Arc<Vec<u16>>);

impl Weights {
    pub fn new(weights: Vec<u16>) -> Weights {
        Weights(Arc::new(weights))
    }

    /// Returns one weight per queue.
    pub fn as_slice(&self) -> &[u16] {
        &self.0
    }
}

/// Result of one consume.
pub type ConsumeResult = Result<Delivery, ConsumeError>;
