//! The acks of what was delivered, on a task of its own: one call at a time, and what comes meanwhile goes with the
//! next. So a slow ack holds no slot. What could not be acked waits beside what comes: it may lie in a part of the store
//! that is away.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

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
    let (mut jobs, mut left): (Vec<ToAck>, VecDeque<ToAck>) =
        (Vec::with_capacity(MAX_NAMED), VecDeque::new());
    let (mut again, mut goes_on) = (Instant::now(), true);
    while goes_on || !left.is_empty() {
        let mut is_again = left.is_empty();
        tokio::select! {
            biased;
            () = sleep_until(again), if !left.is_empty() => {
                is_again = true;
                jobs.extend(left.drain(..left.len().min(MAX_NAMED)));
            }
            count = delivered.recv_many(&mut jobs, MAX_NAMED), if goes_on => goes_on = count > 0,
        }
        if jobs.is_empty() {
            continue;
        }
        let count = jobs.len();
        if ack_all(&queue, &jobs).await {
            jobs.clear();
        } else {
            let now = Instant::now();
            // What is not acked in time is sent once more: the receiver knows it by its id.
            jobs.retain(|(_, _, until)| now < *until);
            // New ones that fail all the time keep those that were left from no try.
            if is_again {
                again = now + AGAIN;
            }
        }
        waiting.fetch_sub(count - jobs.len(), Ordering::Relaxed);
        left.extend(jobs.drain(..));
    }
}

/// Acks jobs. Answers whether none of them need be tried again.
async fn ack_all(queue: &PushedQueue, jobs: &[ToAck]) -> bool {
    let named: Vec<_> = jobs.iter().map(|(id, receipt, _)| (*id, Some(*receipt))).collect();
    let acked = queue.pool.engine.ack(&queue.key.queue, &named).await;
    queue.pool.outage.report(&acked);
    match acked {
        Ok(late) => {
            if !late.is_empty() {
                tracing::debug!(queue = %queue.key, count = late.len(), "delivered after their ttr");
            }
            true
        }
        Err(error) => matches!(error, Error::Closed),
    }
}
