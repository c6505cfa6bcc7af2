//! Gathers concurrent calls into batches: while one batch is on its way to the store, the next gathers, and
//! nobody waits for a timer. Both engines stand behind it: on Redis a batch is one script call, on disk one
//! commit. Knows nothing of what a call does.

use tokio::sync::{mpsc, oneshot};

use crate::error::{Error, Result};

/// How large a batch may grow. A single call larger than this is a batch by itself.
#[derive(Clone, Copy, Debug)]
pub struct BatchLimit {
    /// Jobs, or what else [`BatchSize::items`] counts.
    pub items: usize,
    /// Bytes.
    pub bytes: usize,
}

/// How much one call adds to a batch, counted against a [`BatchLimit`].
pub trait BatchSize {
    /// How many jobs it moves.
    fn items(&self) -> usize;
    /// How many bytes it carries to the store.
    fn bytes(&self) -> usize {
        0
    }
}

/// A call that waits for its answer.
#[derive(Debug)]
pub struct Call<Req, Rep> {
    pub request: Req,
    reply: oneshot::Sender<Result<Rep>>,
}

impl<Req, Rep> Call<Req, Rep> {
    /// The request, and where its answer goes.
    pub fn split(self) -> (Req, Reply<Rep>) {
        (self.request, Reply(self.reply))
    }
}

/// Where one answer goes.
#[derive(Debug)]
pub struct Reply<Rep>(oneshot::Sender<Result<Rep>>);

impl<Rep> Reply<Rep> {
    /// Answers. Gives the answer back when nobody waits for it any more.
    pub fn send(self, answer: Result<Rep>) -> std::result::Result<(), Result<Rep>> {
        self.0.send(answer)
    }
}

/// The side that calls. Clones send to the same receiver.
#[derive(Debug)]
pub struct BatchSender<Req, Rep> {
    calls: mpsc::Sender<Call<Req, Rep>>,
}

impl<Req, Rep> Clone for BatchSender<Req, Rep> {
    fn clone(&self) -> Self {
        BatchSender { calls: self.calls.clone() }
    }
}

impl<Req, Rep> BatchSender<Req, Rep> {
    /// Queues the call and waits for its answer. [`Error::Overloaded`] when the queue is full,
    /// [`Error::Closed`] when the receiver is gone, also when it went with the call in hand.
    pub async fn call(&self, request: Req) -> Result<Rep> {
        let (reply, answer) = oneshot::channel();
        match self.calls.try_send(Call { request, reply }) {
            Ok(()) => answer.await.unwrap_or(Err(Error::Closed)),
            Err(mpsc::error::TrySendError::Full(_)) => Err(Error::Overloaded),
            Err(mpsc::error::TrySendError::Closed(_)) => Err(Error::Closed),
        }
    }
}

/// The side that serves the calls, in batches.
#[derive(Debug)]
pub struct BatchReceiver<Req, Rep> {
    calls: mpsc::Receiver<Call<Req, Rep>>,
    /// The call that did not fit into the last batch. It is the first of the next one.
    held: Option<Call<Req, Rep>>,
    limit: BatchLimit,
}

/// Both sides. `capacity` calls may wait; the next gets [`Error::Overloaded`].
pub fn channel<Req: BatchSize, Rep>(
    capacity: usize,
    limit: BatchLimit,
) -> (BatchSender<Req, Rep>, BatchReceiver<Req, Rep>) {
    let (tx, rx) = mpsc::channel(capacity);
    (BatchSender { calls: tx }, BatchReceiver { calls: rx, held: None, limit })
}

impl<Req: BatchSize, Rep> BatchReceiver<Req, Rep> {
    /// Waits for a call, and takes with it all that wait already, up to the limit. `None` when every sender
    /// is gone. Cancel-safe: no call is lost when the future is dropped.
    pub async fn next(&mut self) -> Option<Vec<Call<Req, Rep>>> {
        let first = match self.held.take() {
            Some(call) => call,
            None => self.calls.recv().await?,
        };
        Some(self.gather(first))
    }

    /// The same, for a thread of its own.
    pub fn blocking_next(&mut self) -> Option<Vec<Call<Req, Rep>>> {
        let first = match self.held.take() {
            Some(call) => call,
            None => self.calls.blocking_recv()?,
        };
        Some(self.gather(first))
    }

    fn gather(&mut self, first: Call<Req, Rep>) -> Vec<Call<Req, Rep>> {
        let (mut items, mut bytes) = (first.request.items(), first.request.bytes());
        let mut batch = vec![first];
        while let Ok(call) = self.calls.try_recv() {
            items += call.request.items();
            bytes += call.request.bytes();
            if items > self.limit.items || bytes > self.limit.bytes {
                self.held = Some(call);
                break;
            }
            batch.push(call);
        }
        batch
    }

    /// No more calls are taken; those that wait already are still served by `next`.
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
    async fn calls_that_wait_go_together_up_to_the_limit() {
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
            let batch = calls.next().await.expect("callers are there");
            sizes.push(batch.iter().map(|c| c.request.0).collect::<Vec<_>>());
            for call in batch {
                call.split().1.send(Ok(())).expect("the caller waits");
            }
        }
        assert_eq!(sizes, [vec![1, 2], vec![3], vec![9]], "at most 4 a batch, and what is larger goes alone");
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
