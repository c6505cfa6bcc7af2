//! The engine's tasks: each is tracked, so that a close can wait for it, and the death of one that the engine
//! cannot do without is told to the server. Knows nothing of what they do.

use std::future::{Future, pending};

use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// The tasks of one engine.
#[derive(Debug)]
pub struct Tasks {
    tracker: TaskTracker,
    runtime: Handle,
    closing: CancellationToken,
    /// Why the engine has failed, once it has.
    failure: watch::Sender<Option<String>>,
}

impl Tasks {
    /// No tasks yet. They will run on this runtime; after `closing` each of them may end.
    pub fn new(closing: CancellationToken) -> Tasks {
        let (tracker, failure) = (TaskTracker::new(), watch::Sender::default());
        Tasks { tracker, runtime: Handle::current(), closing, failure }
    }

    /// A task that ends by itself. A panic in it is for the one who waits for it.
    pub fn spawn<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
        self.tracker.spawn_on(work, &self.runtime)
    }

    /// A task that must not end before the engine closes. If it does, the engine has failed.
    pub fn spawn_lasting(&self, name: &'static str, work: impl Future<Output = ()> + Send + 'static) {
        let task = self.spawn(work);
        let (closing, failure) = (self.closing.clone(), self.failure.clone());
        self.spawn(async move {
            let how = match task.await {
                Ok(()) if closing.is_cancelled() => return,
                Ok(()) => "ended",
                Err(e) if e.is_panic() => "panicked",
                Err(_) => return, // the runtime ends, and with it the process
            };
            failure.send_if_modified(|failure| {
                let first = failure.is_none();
                failure.get_or_insert_with(|| format!("{name} {how}"));
                first
            });
        });
    }

    /// Waits until the engine has failed, and says why.
    pub fn failed(&self) -> impl Future<Output = String> + Send + use<> {
        let mut failure = self.failure.subscribe();
        async move {
            if let Ok(why) = failure.wait_for(Option::is_some).await {
                return why.clone().unwrap_or_default();
            }
            // The engine is gone, and cannot fail any more.
            pending().await
        }
    }

    /// Waits until every task has ended.
    pub async fn ended(&self) {
        self.tracker.close();
        self.tracker.wait().await;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;
    use crate::engine::batch::{self, BatchLimit, BatchSize};
    use crate::error::Error;

    const BOUND: Duration = Duration::from_secs(5);

    struct Job;

    impl BatchSize for Job {
        fn items(&self) -> usize {
            1
        }
    }

    #[tokio::test]
    async fn a_worker_that_panics_is_told_of_and_leaves_no_call_waiting() {
        let tasks = Tasks::new(CancellationToken::new());
        let (calls, mut receiver) = batch::channel::<Job, ()>(16, BatchLimit { items: 1, bytes: 0 });
        tasks.spawn_lasting("the worker for jobs", async move {
            let _batch = receiver.next().await;
            panic!("on purpose");
        });
        // One in the batch, the other still in the queue.
        let (first, second) = tokio::join!(timeout(BOUND, calls.call(Job)), timeout(BOUND, calls.call(Job)),);
        for answer in [first, second] {
            let answer = answer.expect("a call must not wait for ever");
            assert!(matches!(answer, Err(Error::Closed)), "nobody serves it, came {answer:?}");
        }
        let why = timeout(BOUND, tasks.failed()).await.expect("the failure is told");
        assert_eq!(why, "the worker for jobs panicked", "who failed, and how");
    }

    #[tokio::test]
    async fn only_a_task_that_ends_before_its_time_is_a_failure() {
        let closing = CancellationToken::new();
        let tasks = Tasks::new(closing.clone());
        let close = closing.clone();
        tasks.spawn_lasting("the patient one", async move { close.cancelled().await });
        tasks.spawn(async {}).await.expect("no panic");
        closing.cancel();
        timeout(BOUND, tasks.ended()).await.expect("both end");
        assert!(tasks.failure.borrow().is_none(), "neither is a failure: {:?}", tasks.failure.borrow());

        let tasks = Tasks::new(CancellationToken::new());
        tasks.spawn_lasting("the hasty one", async {});
        let why = timeout(BOUND, tasks.failed()).await.expect("the failure is told");
        assert_eq!(why, "the hasty one ended", "it was not told to");
    }
}
