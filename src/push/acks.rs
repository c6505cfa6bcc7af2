//! The acks of what was delivered, on a task of its own: one call at a time, and what comes meanwhile goes with the
//! next. So a slow ack holds no slot.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};

use super::shared::{AGAIN, PushedQueue};
use crate::engine::MAX_NAMED;
use crate::error::Error;
use crate::job::{JobId, Receipt};

/// With so many delivered jobs whose acks wait for the store nothing more is consumed.
const MOST_WAITING: usize = 2000;

/// A delivered job, and until when its ack is worth trying.
type ToAck = (JobId, Receipt, Instant);

/// Takes what was delivered. The task ends after the last of these.
#[derive(Clone)]
pub struct Acks {
    to_ack: mpsc::UnboundedSender<ToAck>,
    /// Delivered, and the ack is not done yet.
    waiting: Arc<AtomicUsize>,
}

impl Acks {
    pub fn start(queue: &Arc<PushedQueue>) -> Acks {
        let (to_ack, delivered) = mpsc::unbounded_channel();
        let waiting = Arc::new(AtomicUsize::new(0));
        queue.server.tasks.spawn(ack(queue.clone(), delivered, waiting.clone()));
        Acks { to_ack, waiting }
    }

    /// A job was delivered, and is acked soon.
    pub fn add(&self, id: JobId, receipt: Receipt, until: Instant) {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        // The receiver ends after all of its senders.
        let _ = self.to_ack.send((id, receipt, until));
    }

    /// Whether too many acks wait for the store.
    pub fn are_behind(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) >= MOST_WAITING
    }

    /// Returns when the task has died.
    pub async fn died(&self) {
        self.to_ack.closed().await;
    }
}

async fn ack(
    queue: Arc<PushedQueue>,
    mut delivered: mpsc::UnboundedReceiver<ToAck>,
    waiting: Arc<AtomicUsize>,
) {
    let mut jobs = Vec::with_capacity(MAX_NAMED);
    while delivered.recv_many(&mut jobs, MAX_NAMED).await > 0 {
        let count = jobs.len();
        while !jobs.is_empty() {
            let named: Vec<_> = jobs.iter().map(|(id, receipt, _)| (*id, Some(*receipt))).collect();
            let acked = queue.pool.engine.ack(&queue.key.queue, &named).await;
            queue.pool.outage.report(&acked);
            match acked {
                Ok(late) => {
                    if !late.is_empty() {
                        tracing::debug!(queue = %queue.key, count = late.len(), "delivered after their ttr");
                    }
                    jobs.clear();
                }
                // What is not acked in time is sent once more: the receiver knows it by its id.
                Err(Error::Closed) => jobs.clear(),
                Err(_) => {
                    sleep(AGAIN).await;
                    let now = Instant::now();
                    jobs.retain(|(_, _, until)| now < *until);
                }
            }
        }
        waiting.fetch_sub(count, Ordering::Relaxed);
    }
}
