//! Jobs on their way from a fetch to a consumer, and their return to the engine if the consumer disconnected. This is
//! the only place that handles disconnected consumers.

use std::sync::Arc;

use ahash::HashMap;
use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc, oneshot};

use crate::engine::{Engine, MAX_CONSUME};
use crate::job::Job;
use crate::name::Namespace;
use crate::process::tasks::Tasks;

/// Jobs for one consumer. Dropping a delivery before [`take`](Delivery::take) returns its jobs to the head of their
/// queue.
#[derive(Debug)]
pub struct Delivery {
    jobs: Vec<Job>,
    waited: bool,
    give_back: GiveBack,
}

impl Delivery {
    /// Creates a delivery of `jobs`; `waited` says whether the consumer was parked.
    pub(super) fn new(jobs: Vec<Job>, waited: bool, give_back: GiveBack) -> Delivery {
        Delivery { jobs, waited, give_back }
    }

    /// Returns the jobs; empty if the poll found none.
    pub fn jobs(&self) -> &[Job] {
        &self.jobs
    }

    /// Keeps the first `most` jobs and returns the others to their queue.
    pub fn truncate(&mut self, most: usize) {
        if most < self.jobs.len() {
            let rest = self.jobs.split_off(most);
            drop(Delivery::new(rest, self.waited, self.give_back.clone()));
        }
    }

    /// Returns whether the consumer was parked before the jobs arrived, so that it may have disconnected meanwhile.
    pub fn waited(&self) -> bool {
        self.waited
    }

    /// Takes the jobs: from here on the consumer owns them.
    pub fn take(mut self) -> Vec<Job> {
        std::mem::take(&mut self.jobs)
    }
}

impl Drop for Delivery {
    fn drop(&mut self) {
        if !self.jobs.is_empty() {
            let mut jobs = std::mem::take(&mut self.jobs);
            for job in &mut jobs {
                // Engines do not need the body, and jobs pile up here while a store hangs.
                job.body = Bytes::new();
            }
            // Fails only after the runtime has ended; the jobs are then redelivered after their `ttr`.
            let _ = self.give_back.0.send(Message::Jobs(jobs));
        }
    }
}

#[derive(Debug)]
enum Message {
    Jobs(Vec<Job>),
    /// Completed once every earlier message has been processed.
    Flush(oneshot::Sender<()>),
}

/// Returns jobs that no consumer took to the engine. Its backlog never exceeds the jobs just delivered.
#[derive(Clone, Debug)]
pub(super) struct GiveBack(mpsc::UnboundedSender<Message>);

impl GiveBack {
    /// Starts the task that returns jobs; it ends when the last clone of the handle is dropped.
    pub fn start(engine: Arc<dyn Engine>, tasks: &Tasks) -> GiveBack {
        let (sender, receiver) = mpsc::unbounded_channel();
        let lanes =
            Arc::new(Lanes { engine, tasks: tasks.clone(), behind: Mutex::default(), idle: Notify::new() });
        tasks.spawn_essential("returning jobs", lanes.run(receiver));
        GiveBack(sender)
    }

    /// Waits until every delivery dropped so far has been returned.
    pub async fn flush(&self) {
        let (done, flushed) = oneshot::channel();
        if self.0.send(Message::Flush(done)).is_ok() {
            // An error means that the task has ended, so nothing is left to return.
            let _ = flushed.await;
        }
    }
}

/// Returns jobs with at most one engine call in flight per namespace. While one partition of a store is unavailable,
/// calls for it are retried for a long time; other namespaces must not wait for them.
#[derive(Debug)]
struct Lanes {
    engine: Arc<dyn Engine>,
    tasks: Tasks,
    /// Namespaces with a call in flight, each with the jobs that wait for the next call.
    behind: Mutex<HashMap<Namespace, Vec<Job>>>,
    /// Notified when a namespace has no more calls in flight.
    idle: Notify,
}

impl Lanes {
    /// Combines the waiting jobs of each namespace into one engine call.
    async fn run(self: Arc<Self>, mut receiver: mpsc::UnboundedReceiver<Message>) {
        while let Some(first) = receiver.recv().await {
            let (mut jobs, mut flushed) = (HashMap::<Namespace, Vec<Job>>::default(), Vec::new());
            let (mut next, mut count) = (Some(first), 0);
            while let Some(message) = next {
                match message {
                    Message::Jobs(more) => {
                        count += more.len();
                        // A delivery has jobs of one list of queues, hence of one namespace.
                        if let Some(job) = more.first() {
                            jobs.entry(job.queue.namespace.clone()).or_default().extend(more);
                        }
                    }
                    Message::Flush(done) => flushed.push(done),
                }
                next = if count < MAX_CONSUME { receiver.try_recv().ok() } else { None };
            }
            jobs.into_iter().for_each(|(namespace, jobs)| self.enter(namespace, jobs));
            if !flushed.is_empty() {
                self.empty().await;
            }
            for done in flushed {
                // The receiver may have stopped waiting.
                let _ = done.send(());
            }
        }
    }

    /// Queues `jobs` behind the namespace's call in flight, or starts one.
    fn enter(self: &Arc<Self>, namespace: Namespace, jobs: Vec<Job>) {
        let mut behind = self.behind.lock();
        if let Some(waiting) = behind.get_mut(&namespace) {
            waiting.extend(jobs);
            return;
        }
        behind.insert(namespace.clone(), Vec::new());
        let lane = Lane { lanes: self.clone(), namespace };
        self.tasks.spawn(lane.give_back(jobs));
    }

    /// Waits until no call is in flight.
    async fn empty(&self) {
        while !self.behind.lock().is_empty() {
            self.idle.notified().await;
        }
    }
}

/// The sequence of calls for one namespace.
struct Lane {
    lanes: Arc<Lanes>,
    namespace: Namespace,
}

impl Lane {
    async fn give_back(self, mut jobs: Vec<Job>) {
        loop {
            let count = jobs.len();
            if let Err(error) = self.lanes.engine.give_back(jobs).await {
                tracing::warn!(
                    %error,
                    count,
                    "jobs of disconnected consumers could not be returned; they are redelivered after their ttr"
                );
            }
            let mut behind = self.lanes.behind.lock();
            let Some(waiting) = behind.get_mut(&self.namespace).filter(|waiting| !waiting.is_empty()) else {
                behind.remove(&self.namespace);
                return;
            };
            let rest = waiting.split_off(waiting.len().min(MAX_CONSUME));
            jobs = std::mem::replace(waiting, rest);
        }
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.lanes.behind.lock().remove(&self.namespace);
            self.lanes.tasks.failure().report("returning jobs panicked".into());
        }
        self.lanes.idle.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::job::JobId;
    use crate::name::{Namespace, Queue, QueueName};

    /// Guards against bodies that fill memory while a hanging store accepts no returned jobs.
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
        assert_eq!(back, [(2, 0), (3, 0)], "receipts and body sizes of the returned jobs");
        assert_eq!(delivery.take()[0].body, "large", "a job that is taken keeps its body");
    }
}
