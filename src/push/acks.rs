//! Acks delivered jobs in a task of its own: one call at a time, and the jobs that arrive meanwhile go into
//! the next call. So a slow ack occupies no slot. Failed acks wait apart from new ones: their partition may
//! be unavailable.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use super::shared::{AGAIN, PushedQueue};
use crate::engine::MAX_NAMED;
use crate::error::Error;
use crate::job::{JobId, Receipt};

/// The worker stops consuming while this number of delivered jobs wait for their ack.
const MOST_WAITING: usize = 2000;

/// A delivered job, and the deadline of its ack.
type ToAck = (JobId, Receipt, Instant);

/// Queues delivered jobs for their ack. The task ends when the last clone is dropped.
#[derive(Clone)]
pub struct Acks {
    to_ack: mpsc::UnboundedSender<ToAck>,
    /// Number of delivered jobs that are not acked yet.
    waiting: Arc<AtomicUsize>,
}

impl Acks {
    pub fn start(queue: &Arc<PushedQueue>) -> Acks {
        let (to_ack, delivered) = mpsc::unbounded_channel();
        let waiting = Arc::new(AtomicUsize::new(0));
        queue.server.tasks.spawn(ack(queue.clone(), delivered, waiting.clone()));
        Acks { to_ack, waiting }
    }

    /// Queues the ack of a delivered job, with its deadline.
    pub fn add(&self, id: JobId, receipt: Receipt, until: Instant) {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        // The receiver ends only after all senders.
        let _ = self.to_ack.send((id, receipt, until));
    }

    /// Whether too many delivered jobs wait for their ack.
    pub fn are_behind(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) >= MOST_WAITING
    }

    /// Completes when the task has died.
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
            // A job whose ack missed the deadline is sent again: the receiver recognizes it by its id.
            jobs.retain(|(_, _, until)| now < *until);
            // New failures must not postpone the retry of older ones.
            if is_again {
                again = now + AGAIN;
            }
        }
        waiting.fetch_sub(count - jobs.len(), Ordering::Relaxed);
        left.extend(jobs.drain(..));
    }
}

/// Acks jobs. Returns whether none of them needs a retry.
async fn ack_all(queue: &PushedQueue, jobs: &[ToAck]) -> bool {
    let named: Vec<_> = jobs.iter().map(|(id, receipt, _)| (*id, Some(*receipt))).collect();
    let acked = queue.pool.engine.ack(&queue.key.queue, &named).await;
    queue.pool.outage.report(&acked);
    match acked {
        Ok(late) => {
            if !late.is_empty() {
                tracing::debug!(queue = %queue.key, count = late.len(), "push: jobs were delivered after their ttr had ended");
            }
            true
        }
        Err(error) => matches!(error, Error::Closed),
    }
}
