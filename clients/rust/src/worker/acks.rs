//! Acks of a queue wait a moment for others, and go out as one request.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::sleep;
use tokio_util::task::TaskTracker;

use crate::client::Client;
use crate::error::{Error, ErrorKind, Result};
use crate::request::{Call, job_path};

/// What one request acks at most.
const MOST: usize = 100;

/// An ack that waits: what it is of, and who wants to know.
struct Waiting {
    id: String,
    receipt: Option<String>,
    /// Until when it is of use.
    limit: Duration,
    answer: oneshot::Sender<Result<bool>>,
}

#[derive(Clone)]
pub(super) struct Acks(Arc<Inner>);

struct Inner {
    client: Client,
    window: Duration,
    tasks: TaskTracker,
    waiting: Mutex<HashMap<String, Vec<Waiting>>>,
}

impl Acks {
    pub(super) fn new(client: Client, window: Duration, tasks: TaskTracker) -> Acks {
        Acks(Arc::new(Inner { client, window, tasks, waiting: Mutex::default() }))
    }

    /// Acks a job once, within `limit`: whether it was still ours.
    pub(super) async fn ack(
        &self,
        queue: &str,
        id: &str,
        receipt: Option<String>,
        limit: Duration,
    ) -> Result<bool> {
        let (answer, answered) = oneshot::channel();
        let waiting = Waiting { id: id.to_owned(), receipt, limit, answer };
        let (first, full) = {
            let mut all = self.0.waiting.lock().unwrap_or_else(PoisonError::into_inner);
            let of_queue = all.entry(queue.to_owned()).or_default();
            of_queue.push(waiting);
            (of_queue.len() == 1, of_queue.len() >= MOST)
        };
        let (acks, queue) = (self.clone(), queue.to_owned());
        if full {
            self.0.tasks.spawn(async move { acks.send(&queue).await });
        } else if first {
            self.0.tasks.spawn(async move {
                sleep(acks.0.window).await;
                acks.send(&queue).await;
            });
        }
        answered.await.unwrap_or_else(|_| Err(Error::new(ErrorKind::Network, "the ack was not sent")))
    }

    async fn send(&self, queue: &str) {
        let taken = self.0.waiting.lock().unwrap_or_else(PoisonError::into_inner).remove(queue);
        let mut taken = taken.unwrap_or_default();
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
            // Whoever asked may have gone: the job is lost then.
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
