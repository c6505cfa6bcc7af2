//! Jobs on their way from a fetch to a consumer, and back to the engine when nobody takes them. This is the only
//! place that handles "the consumer has left". Knows no wait list.

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::{mpsc, oneshot};

use crate::engine::{Engine, MAX_CONSUME};
use crate::job::Job;

/// Jobs for one consumer. If it is dropped before they are taken, they go back to the head of their queue.
#[derive(Debug)]
pub struct Delivery {
    jobs: Vec<Job>,
    waited: bool,
    give_back: GiveBack,
}

impl Delivery {
    /// `jobs` for a consumer that was or was not parked.
    pub(super) fn new(jobs: Vec<Job>, waited: bool, give_back: GiveBack) -> Delivery {
        Delivery { jobs, waited, give_back }
    }

    /// The jobs; empty when there was none.
    pub fn jobs(&self) -> &[Job] {
        &self.jobs
    }

    /// Keeps the first `most` jobs; the others go back.
    pub fn truncate(&mut self, most: usize) {
        if most < self.jobs.len() {
            let rest = self.jobs.split_off(most);
            drop(Delivery::new(rest, self.waited, self.give_back.clone()));
        }
    }

    /// Whether the consumer was parked before the jobs came: it may have left meanwhile.
    pub fn waited(&self) -> bool {
        self.waited
    }

    /// The consumer has them now.
    pub fn take(mut self) -> Vec<Job> {
        std::mem::take(&mut self.jobs)
    }
}

impl Drop for Delivery {
    fn drop(&mut self) {
        if !self.jobs.is_empty() {
            let mut jobs = std::mem::take(&mut self.jobs);
            for job in &mut jobs {
                // No engine looks at it, and while a store hangs the jobs stand in line.
                job.body = Bytes::new();
            }
            // Fails only after the runtime has ended. The jobs come back after their ttr then.
            let _ = self.give_back.0.send(Message::Jobs(jobs));
        }
    }
}

#[derive(Debug)]
enum Message {
    Jobs(Vec<Job>),
    /// Answered once everything that was sent before it has been given back.
    Flush(oneshot::Sender<()>),
}

/// Gives untaken jobs back to the engine. It holds no more than the engine has just handed out.
#[derive(Clone, Debug)]
pub(super) struct GiveBack(mpsc::UnboundedSender<Message>);

impl GiveBack {
    /// The sending side, and the task that gives back. The task ends when the last clone is dropped.
    pub fn new(engine: Arc<dyn Engine>) -> (GiveBack, impl Future<Output = ()> + Send) {
        let (sender, receiver) = mpsc::unbounded_channel();
        (GiveBack(sender), run(engine, receiver))
    }

    /// Returns when everything that was dropped before has been given back.
    pub async fn flush(&self) {
        let (done, flushed) = oneshot::channel();
        if self.0.send(Message::Flush(done)).is_ok() {
            // An error means that the task has ended: nothing is left to give back then either.
            let _ = flushed.await;
        }
    }
}

/// What waits goes back in one call of the engine.
async fn run(engine: Arc<dyn Engine>, mut receiver: mpsc::UnboundedReceiver<Message>) {
    while let Some(first) = receiver.recv().await {
        let (mut jobs, mut flushed) = (Vec::new(), Vec::new());
        let mut next = Some(first);
        while let Some(message) = next {
            match message {
                Message::Jobs(more) => jobs.extend(more),
                Message::Flush(done) => flushed.push(done),
            }
            next = if jobs.len() < MAX_CONSUME { receiver.try_recv().ok() } else { None };
        }
        let count = jobs.len();
        if count > 0
            && let Err(error) = engine.give_back(jobs).await
        {
            tracing::warn!(
                %error,
                count,
                "jobs of consumers that left could not be given back; they come back after their ttr"
            );
        }
        for done in flushed {
            // Whoever asked may have stopped waiting.
            let _ = done.send(());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::job::JobId;
    use crate::name::{Namespace, Queue, QueueName};

    /// Guards against bodies that fill the memory while a store that hangs takes no job back.
    #[test]
    fn what_goes_back_takes_no_body_along() {
        let queue = Queue {
            namespace: Namespace::parse("ns").expect("a literal"),
            name: QueueName::parse("q").expect("a literal"),
        };
        let job = |n| Job {
            queue: queue.clone(),
            id: JobId::from_parts(1, n, 0, false),
            body: Bytes::from_static(b"large"),
            attributes: Default::default(),
            ttl: None,
            elapsed: Duration::ZERO,
            due: 1,
            tries_left: 1,
            receipt: n,
        };
        let (sender, mut receiver) = mpsc::unbounded_channel();
        let mut delivery = Delivery::new((1..=3).map(job).collect(), false, GiveBack(sender));
        delivery.truncate(1);
        let Ok(Message::Jobs(back)) = receiver.try_recv() else { panic!("two jobs go back") };
        let back: Vec<(u64, usize)> = back.iter().map(|job| (job.receipt, job.body.len())).collect();
        assert_eq!(back, [(2, 0), (3, 0)], "the receipts of what went back, and the bytes of their bodies");
        assert_eq!(delivery.take()[0].body, "large", "what is taken is whole");
    }
}
