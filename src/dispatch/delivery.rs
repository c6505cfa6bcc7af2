//! Jobs on their way from a fetch to a consumer, and back to the engine when nobody takes them. This is the only
//! place that handles "the consumer has left". Knows no wait list.

use std::sync::Arc;

use ahash::HashMap;
use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc, oneshot};

use crate::engine::{Engine, MAX_CONSUME};
use crate::job::Job;
use crate::name::Namespace;
use crate::process::tasks::Tasks;

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
    /// The sending side. What gives back is one of these tasks, and ends when the last clone is dropped.
    pub fn start(engine: Arc<dyn Engine>, tasks: &Tasks) -> GiveBack {
        let (sender, receiver) = mpsc::unbounded_channel();
        let lanes =
            Arc::new(Lanes { engine, tasks: tasks.clone(), behind: Mutex::default(), idle: Notify::new() });
        tasks.spawn_essential("giving jobs back", lanes.run(receiver));
        GiveBack(sender)
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

/// What gives jobs back: one call of the engine at a time for each namespace. A store may have parts, of which one is
/// away: a call for it is tried again for long, and jobs of other namespaces go back meanwhile.
#[derive(Debug)]
struct Lanes {
    engine: Arc<dyn Engine>,
    tasks: Tasks,
    /// The namespaces that a call is under way for, each with what waits behind it.
    behind: Mutex<HashMap<Namespace, Vec<Job>>>,
    /// Told when there is one namespace less.
    idle: Notify,
}

impl Lanes {
    /// What waits of a namespace goes back in one call of the engine.
    async fn run(self: Arc<Self>, mut receiver: mpsc::UnboundedReceiver<Message>) {
        while let Some(first) = receiver.recv().await {
            let (mut jobs, mut flushed) = (HashMap::<Namespace, Vec<Job>>::default(), Vec::new());
            let (mut next, mut count) = (Some(first), 0);
            while let Some(message) = next {
                match message {
                    Message::Jobs(more) => {
                        count += more.len();
                        // They are of one list of queues, and so of one namespace.
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
                // Whoever asked may have stopped waiting.
                let _ = done.send(());
            }
        }
    }

    /// Jobs of this namespace are to go back.
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

    /// Returns when no call is under way.
    async fn empty(&self) {
        while !self.behind.lock().is_empty() {
            self.idle.notified().await;
        }
    }
}

/// The calls for one namespace.
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
                    "jobs of consumers that left could not be given back; they come back after their ttr"
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
            self.lanes.tasks.failure().report("giving jobs back panicked".into());
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
