//! Collects acks of a queue for a moment, and sends them in one request.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::client::Client;
use crate::error::{Error, ErrorKind, Result};
use crate::request::{Call, job_path};

/// Maximum acks per request.
const MOST: usize = 100;

/// A waiting ack, and the channel for its result.
struct Waiting {
    id: String,
    receipt: Option<String>,
    /// How long it is useful.
    limit: Duration,
    answer: oneshot::Sender<Result<bool>>,
}

#[derive(Clone)]
pub(super) struct Acks(Arc<Inner>);

struct Inner {
    client: Client,
    window: Duration,
    tasks: TaskTracker,
    waiting: Mutex<HashMap<String, Gathering>>,
    /// Cancelled when acks should no longer wait.
    hurry: CancellationToken,
}

/// The waiting acks of a queue.
#[derive(Default)]
struct Gathering {
    /// Distinguishes this collection from the queue's next one, whose window begins later.
    number: u64,
    acks: Vec<Waiting>,
}

impl Gathering {
    fn take(&mut self) -> Vec<Waiting> {
        self.number += 1;
        std::mem::take(&mut self.acks)
    }
}

impl Acks {
    pub(super) fn new(client: Client, window: Duration, tasks: TaskTracker) -> Acks {
        Acks(Arc::new(Inner {
            client,
            window,
            tasks,
            waiting: Mutex::default(),
            hurry: CancellationToken::new(),
        }))
    }

    /// Acks a job once, within `limit`. Returns whether it was still ours.
    pub(super) async fn ack(
        &self,
        queue: &str,
        id: &str,
        receipt: Option<String>,
        limit: Duration,
    ) -> Result<bool> {
        let (answer, answered) = oneshot::channel();
        let waiting = Waiting { id: id.to_owned(), receipt, limit, answer };
        let (number, full) = {
            let mut all = self.0.waiting.lock().unwrap_or_else(PoisonError::into_inner);
            let of_queue = all.entry(queue.to_owned()).or_default();
            of_queue.acks.push(waiting);
            let begun = (of_queue.acks.len() == 1).then_some(of_queue.number);
            let full = (of_queue.acks.len() >= MOST).then(|| of_queue.take());
            (begun, full)
        };
        let (acks, queue) = (self.clone(), queue.to_owned());
        if let Some(full) = full {
            self.0.tasks.spawn(async move { acks.send(&queue, full).await });
        } else if let Some(number) = number {
            self.0.tasks.spawn(async move {
                tokio::select! {
                    () = sleep(acks.0.window) => {}
                    () = acks.0.hurry.cancelled() => {}
                }
                let taken = {
                    let mut all = acks.0.waiting.lock().unwrap_or_else(PoisonError::into_inner);
                    all.get_mut(&queue).filter(|of_queue| of_queue.number == number).map(Gathering::take)
                };
                acks.send(&queue, taken.unwrap_or_default()).await;
            });
        }
        answered.await.unwrap_or_else(|_| Err(Error::new(ErrorKind::Network, "the ack was not sent")))
    }

    /// Sends acks at once from now on.
    pub(super) fn hurry(&self) {
        self.0.hurry.cancel();
    }

    async fn send(&self, queue: &str, mut taken: Vec<Waiting>) {
        let Some(limit) = taken.iter().map(|ack| ack.limit).min() else {
            return;
        };
        let limit = limit.min(self.0.client.timeout());
        if taken.len() == 1 {
            let lone = taken.remove(0);
            let path = job_path(self.0.client.namespace(), queue, &lone.id);
            let call = Call::delete(path).with_some("receipt", lone.receipt.as_deref());
            let answer = match self.0.client.once(&call, limit).await {
                Ok(_) => Ok(true),
                Err(e) if e.kind() == ErrorKind::Lost => Ok(false),
                Err(e) => Err(e),
            };
            // The caller may have been dropped: then the job is lost.
            let _ = lone.answer.send(answer);
            return;
        }
        let ids: Vec<_> = taken.iter().map(|ack| (ack.id.clone(), ack.receipt.clone())).collect();
        let answer = self.0.client.ack_ids(queue, &ids, Some(limit)).await;
        for ack in taken {
            let _ = ack.answer.send(match &answer {
                Ok(acked) => Ok(!acked.stale.contains(&ack.id)),
                Err(e) => Err(e.clone()),
            });
        }
    }
}
