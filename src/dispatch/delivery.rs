//! Jobs between the engine and a consumer, and their way back when nobody takes them. Knows no line.

use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};

use crate::engine::{Engine, MAX_CONSUME};
use crate::job::Job;

/// Jobs on their way to a consumer. Dropped before they are taken, they go back to the head of their queue.
#[derive(Debug)]
pub struct Delivery {
    jobs: Vec<Job>,
    waited: bool,
    back: WayBack,
}

impl Delivery {
    /// `jobs` for a consumer that was or was not parked; untaken ones go `back`.
    pub(super) fn new(jobs: Vec<Job>, waited: bool, back: WayBack) -> Delivery {
        Delivery { jobs, waited, back }
    }

    /// The jobs; empty when there was none.
    pub fn jobs(&self) -> &[Job] {
        &self.jobs
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
            // Fails only after the runtime has ended; the jobs then come back after their ttr.
            let _ = self.back.0.send(Return::Jobs(std::mem::take(&mut self.jobs)));
        }
    }
}

#[derive(Debug)]
enum Return {
    Jobs(Vec<Job>),
    /// Dropped once everything before it has been given back.
    Mark(oneshot::Sender<()>),
}

/// Where untaken jobs go. It holds no more than what the engine has just handed out.
#[derive(Clone, Debug)]
pub(super) struct WayBack(mpsc::UnboundedSender<Return>);

impl WayBack {
    /// The way back to `engine`, and its task, which ends when the last clone is dropped.
    pub fn open(engine: Arc<dyn Engine>) -> WayBack {
        let (back, returned) = mpsc::unbounded_channel();
        tokio::spawn(give_back(engine, returned));
        WayBack(back)
    }

    /// Returns when everything that was dropped before has been given back.
    pub async fn flushed(&self) {
        let (mark, passed) = oneshot::channel();
        if self.0.send(Return::Mark(mark)).is_ok() {
            // The mark is dropped, not answered.
            let _ = passed.await;
        }
    }
}

/// Gives back what was popped for consumers that have left. What waits goes in one call.
async fn give_back(engine: Arc<dyn Engine>, mut returned: mpsc::UnboundedReceiver<Return>) {
    while let Some(first) = returned.recv().await {
        let (mut jobs, mut marks) = (Vec::new(), Vec::new());
        let mut next = Some(first);
        while let Some(one) = next {
            match one {
                Return::Jobs(more) => jobs.extend(more),
                Return::Mark(mark) => marks.push(mark),
            }
            next = if jobs.len() < MAX_CONSUME { returned.try_recv().ok() } else { None };
        }
        if jobs.is_empty() {
            continue;
        }
        let count = jobs.len();
        // A task of its own, so that a panic in the engine does not end all giving back.
        let engine = engine.clone();
        let failed = match tokio::spawn(async move { engine.give_back(jobs).await }).await {
            Ok(Ok(())) => continue,
            Ok(Err(error)) => error.to_string(),
            Err(error) => error.to_string(),
        };
        tracing::warn!(
            error = failed,
            count,
            "jobs of consumers that left could not be given back; they come back after their ttr"
        );
    }
}
