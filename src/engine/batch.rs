//! Gathers concurrent calls into batches: while one batch is on its way to the store, the next gathers, so no call
//! waits for a timer. On Redis a batch is one script call. The writer of a disk pool is a thread with its own
//! mailbox; it shares the bounds of this file. Knows nothing of the calls' meaning.

use std::time::Instant;

use tokio::sync::{mpsc, oneshot};

use crate::error::{Error, Result};

/// Bound of a batch. A single call beyond it is sent alone.
#[derive(Clone, Copy, Debug)]
pub struct BatchLimit {
    /// Jobs (or other units of [`BatchSize::items`]).
    pub items: usize,
    pub bytes: usize,
}

impl BatchLimit {
    /// Whether a batch of this size is within the bound.
    pub fn holds(self, items: usize, bytes: usize) -> bool {
        items <= self.items && bytes <= self.bytes
    }
}

/// Size of a call against a [`BatchLimit`].
pub trait BatchSize {
    /// Number of jobs that it moves.
    fn items(&self) -> usize;
    /// Bytes that it carries to the store.
    fn bytes(&self) -> usize {
        0
    }
}

/// A call that waits for its reply.
#[derive(Debug)]
pub struct Call<Req, Rep> {
    pub request: Req,
    /// When the caller made the call.
    pub arrived: Instant,
    reply: oneshot::Sender<Result<Rep>>,
}

impl<Req, Rep> Call<Req, Rep> {
    /// Splits it, for callers that keep requests and replies in two lists.
    pub fn split(self) -> (Req, Reply<Rep>) {
        (self.request, Reply(self.reply))
    }

    /// Replaces the request.
    pub fn map<Other>(self, request: impl FnOnce(Req) -> Other) -> Call<Other, Rep> {
        Call { request: request(self.request), arrived: self.arrived, reply: self.reply }
    }
}

/// Destination of one reply.
#[derive(Debug)]
pub struct Reply<Rep>(oneshot::Sender<Result<Rep>>);

impl<Rep> Reply<Rep> {
    /// Sends the reply. Returns it if the caller no longer waits.
    pub fn send(self, answer: Result<Rep>) -> std::result::Result<(), Result<Rep>> {
        self.0.send(answer)
    }

    /// Whether the caller no longer waits.
    pub fn is_abandoned(&self) -> bool {
        self.0.is_closed()
    }
}

impl<Req: BatchSize, Rep> BatchSize for Call<Req, Rep> {
    fn items(&self) -> usize {
        self.request.items()
    }

    fn bytes(&self) -> usize {
        self.request.bytes()
    }
}

/// The calling side.
#[derive(Debug)]
pub struct Caller<Req, Rep> {
    calls: mpsc::Sender<Call<Req, Rep>>,
}

impl<Req, Rep> Clone for Caller<Req, Rep> {
    fn clone(&self) -> Self {
        Caller { calls: self.calls.clone() }
    }
}

impl<Req, Rep> Caller<Req, Rep> {
    /// Queues a call and waits for its reply. [`Error::Overloaded`] if the queue is full, [`Error::Closed`] if the
    /// serving side has ended.
    pub async fn call(&self, request: Req) -> Result<Rep> {
        let (reply, answer) = oneshot::channel();
        self.calls.try_send(Call { request, arrived: Instant::now(), reply }).map_err(|e| match e {
            mpsc::error::TrySendError::Full(_) => Error::Overloaded,
            mpsc::error::TrySendError::Closed(_) => Error::Closed,
        })?;
        answer.await.unwrap_or(Err(Error::Closed))
    }
}

/// The serving side.
#[derive(Debug)]
pub struct Calls<Req, Rep> {
    calls: mpsc::Receiver<Call<Req, Rep>>,
    /// First call of the next batch: it did not fit into the previous one, or has just arrived.
    held: Option<Call<Req, Rep>>,
    limit: BatchLimit,
}

/// Returns both sides. `capacity` calls may wait; the next gets [`Error::Overloaded`].
pub fn channel<Req, Rep>(capacity: usize, limit: BatchLimit) -> (Caller<Req, Rep>, Calls<Req, Rep>) {
    let (tx, rx) = mpsc::channel(capacity);
    (Caller { calls: tx }, Calls { calls: rx, held: None, limit })
}

impl<Req: BatchSize, Rep> Calls<Req, Rep> {
    /// Waits for a call, and adds the calls of tasks that are ready now, up to the limit. `None` when every caller
    /// has been dropped. Cancel-safe: no call is lost.
    pub async fn next(&mut self) -> Option<Vec<Call<Req, Rep>>> {
        if self.held.is_none() {
            self.held = Some(self.calls.recv().await?);
            // Otherwise the first call would be served alone, before other ready tasks have run.
            tokio::task::yield_now().await;
        }
        let first = self.held.take()?;
        Some(self.gather(first))
    }

    fn gather(&mut self, first: Call<Req, Rep>) -> Vec<Call<Req, Rep>> {
        let (mut items, mut bytes) = (first.items(), first.bytes());
        let mut batch = vec![first];
        while let Ok(call) = self.calls.try_recv() {
            items += call.items();
            bytes += call.bytes();
            if !self.limit.holds(items, bytes) {
                self.held = Some(call);
                break;
            }
            batch.push(call);
        }
        batch
    }

    /// Accepts no more calls; waiting ones are still returned by `next`.
    pub fn close(&mut self) {
        self.calls.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Jobs(usize);

    impl BatchSize for Jobs {
        fn items(&self) -> usize {
            self.0
        }
    }

    const LIMIT: BatchLimit = BatchLimit { items: 4, bytes: 1 };

    #[tokio::test]
    async fn calls_that_wait_go_together_up_to_the_bound() {
        let (caller, mut calls) = channel::<Jobs, ()>(16, LIMIT);
        let waiting: Vec<_> = [1, 2, 3, 9]
            .map(|n| {
                let caller = caller.clone();
                tokio::spawn(async move { caller.call(Jobs(n)).await })
            })
            .into();
        tokio::task::yield_now().await;
        let mut sizes = Vec::new();
        for _ in 0..3 {
            let batch = calls.next().await.expect("the callers exist");
            sizes.push(batch.iter().map(|c| c.request.0).collect::<Vec<_>>());
            for call in batch {
                call.split().1.send(Ok(())).expect("the caller waits");
            }
        }
        assert_eq!(sizes, [vec![1, 2], vec![3], vec![9]], "at most 4 per batch, and a larger call alone");
        for call in waiting {
            assert!(call.await.unwrap().is_ok(), "each call is answered"); // the task does not panic
        }
    }

    #[tokio::test]
    async fn a_full_queue_refuses_and_a_closed_one_says_so() {
        let (caller, mut calls) = channel::<Jobs, ()>(1, LIMIT);
        let first = tokio::spawn({
            let caller = caller.clone();
            async move { caller.call(Jobs(1)).await }
        });
        tokio::task::yield_now().await;
        assert!(matches!(caller.call(Jobs(1)).await, Err(Error::Overloaded)), "one waits already");
        calls.close();
        assert!(matches!(caller.call(Jobs(1)).await, Err(Error::Closed)), "no more are taken");
        assert_eq!(calls.next().await.map(|b| b.len()), Some(1), "what waited is still served");
        drop(calls);
        assert!(matches!(first.await, Ok(Err(Error::Closed))), "dropped unanswered");
    }
}
