//! The background tasks of the process. Every task is tracked, can be stopped and waited for, and a task that
//! must not end is noticed when it does. Knows nothing of what the tasks do.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;

use tokio::runtime::Handle;
use tokio::sync::SetOnce;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Why the process cannot go on. It is reported at most once: later reasons are mostly consequences.
#[derive(Debug, Clone, Default)]
pub struct Failure(Arc<SetOnce<String>>);

impl Failure {
    /// A part of the process has failed for good. Only the first report is kept.
    pub fn report(&self, reason: String) {
        // An error means that another failure was reported before.
        let _ = self.0.set(reason);
    }

    /// The reason, if a failure was reported.
    pub fn reason(&self) -> Option<&str> {
        self.0.get().map(String::as_str)
    }

    /// Returns the reason as soon as a failure is reported.
    pub async fn reported(&self) -> &str {
        self.0.wait().await
    }
}

/// Tells a task that it is to end. A look at it takes no lock, where a look at a [`CancellationToken`] takes one
/// that all tasks share.
#[derive(Debug, Clone, Default)]
pub struct StopSignal {
    token: CancellationToken,
    /// Set before `token` is cancelled.
    told: Arc<AtomicBool>,
}

impl StopSignal {
    /// Runs `work` to its end, or until the tasks are told to end. `None` then; `work` goes on where it is polled again.
    pub async fn run_until<F: Future + Unpin>(&self, work: &mut F) -> Option<F::Output> {
        let mut cancelled = std::pin::pin!(self.token.cancelled());
        let mut registered = false;
        std::future::poll_fn(|cx| {
            if let Poll::Ready(done) = Pin::new(&mut *work).poll(cx) {
                return Poll::Ready(Some(done));
            }
            // Once registered it wakes this task, and `told` is set by then.
            let asks = !std::mem::replace(&mut registered, true) || self.told.load(Ordering::Acquire);
            if asks && cancelled.as_mut().poll(cx).is_ready() { Poll::Ready(None) } else { Poll::Pending }
        })
        .await
    }
}

/// A set of tasks that are stopped together. Clones are the same set.
#[derive(Debug, Clone)]
pub struct Tasks {
    tracker: TaskTracker,
    stop: StopSignal,
    failure: Failure,
    /// Threads of their own may start tasks too.
    runtime: Handle,
}

impl Tasks {
    /// An empty set, whose tasks run in the current runtime. The unexpected end of an essential task is
    /// reported to `failure`.
    pub fn new(failure: Failure) -> Tasks {
        let runtime = Handle::current();
        Tasks { tracker: TaskTracker::new(), stop: StopSignal::default(), failure, runtime }
    }

    /// Starts a task that may end at any time. It should end soon after [`stop`](Tasks::stop).
    /// A panic in it is for whoever waits for its handle.
    pub fn spawn<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
        self.tracker.spawn_on(work, &self.runtime)
    }

    /// Starts a task that must run until [`stop`](Tasks::stop). If it ends or panics before, that is logged and
    /// reported as a [`Failure`] under its `name`.
    pub fn spawn_essential(&self, name: impl Into<String>, work: impl Future<Output = ()> + Send + 'static) {
        let (name, stop, failure) = (name.into(), self.stop.token.clone(), self.failure.clone());
        let task = self.tracker.spawn_on(work, &self.runtime);
        let watch = async move {
            let how = if task.await.is_err() { "panicked" } else { "ended" };
            if !stop.is_cancelled() {
                tracing::error!(task = name, how, "a task that the server needs is gone; the server ends");
                failure.report(format!("{name} {how}"));
            }
        };
        self.tracker.spawn_on(watch, &self.runtime);
    }

    /// Where the unexpected end of an essential task is reported.
    pub fn failure(&self) -> &Failure {
        &self.failure
    }

    /// Tells these tasks to end. Does not wait for them.
    pub fn stop(&self) {
        self.stop.told.store(true, Ordering::Release);
        self.stop.token.cancel();
        self.tracker.close();
    }

    /// Cancelled when the tasks are told to end.
    pub fn stopping(&self) -> &CancellationToken {
        &self.stop.token
    }

    /// For a task that is polled often.
    pub fn stop_signal(&self) -> StopSignal {
        self.stop.clone()
    }

    /// Returns when the tasks were told to end and all have ended.
    pub async fn ended(&self) {
        self.tracker.wait().await;
    }

    /// How many tasks have not ended.
    pub fn len(&self) -> usize {
        self.tracker.len()
    }

    pub fn is_empty(&self) -> bool {
        self.tracker.is_empty()
    }
}

/// Does on a thread of its own what takes long.
pub async fn beside_the_runtime<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await.map_err(tokio::task::JoinError::try_into_panic) {
        Ok(done) => done,
        Err(Ok(panic)) => std::panic::resume_unwind(panic),
        // The runtime ends, and this with it.
        Err(Err(_)) => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// What is reported within a second, or nothing.
    async fn reported(failure: &Failure) -> Option<&str> {
        tokio::time::timeout(Duration::from_secs(1), failure.reported()).await.ok()
    }

    #[tokio::test(start_paused = true)]
    async fn an_essential_task_that_ends_or_panics_is_reported() {
        let failure = Failure::default();
        Tasks::new(failure.clone()).spawn_essential("a task", async {});
        assert_eq!(reported(&failure).await, Some("a task ended"), "the task has ended by itself");
        let failure = Failure::default();
        let tasks = Tasks::new(failure.clone());
        tasks.spawn_essential("a task", async { panic!("the test says so") });
        assert_eq!(reported(&failure).await, Some("a task panicked"), "the task has panicked");
        tasks.spawn_essential("another task", async {});
        tasks.stop();
        tasks.ended().await;
        assert_eq!(failure.reason(), Some("a task panicked"), "the first failure stays the reason");
    }

    #[tokio::test(start_paused = true)]
    async fn work_ends_or_is_left_when_its_tasks_are_told_to_end() {
        let tasks = Tasks::new(Failure::default());
        let mut work = Box::pin(async { 7 });
        assert_eq!(tasks.stop_signal().run_until(&mut work).await, Some(7), "work that ends");
        let (done, mut more) = tokio::sync::mpsc::channel::<()>(1);
        let signal = tasks.stop_signal();
        let task = tasks.spawn(async move {
            // Is polled again and again before the stop.
            let mut work = Box::pin(async move { while more.recv().await.is_some() {} });
            let left = signal.run_until(&mut work).await.is_none();
            work.await;
            left
        });
        for _ in 0..10 {
            done.send(()).await.expect("the task reads");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert!(!task.is_finished(), "nobody told it to end");
        tasks.stop();
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert!(!task.is_finished(), "what it left can go on");
        drop(done);
        assert!(task.await.expect("it does not panic"), "it was told to end while it worked");
        let mut never = Box::pin(std::future::pending::<()>());
        assert_eq!(tasks.stop_signal().run_until(&mut never).await, None, "told to end before it began");
    }

    #[tokio::test(start_paused = true)]
    async fn a_task_that_ends_after_the_stop_is_not_reported() {
        let failure = Failure::default();
        let tasks = Tasks::new(failure.clone());
        let stop = tasks.stopping().clone();
        tasks.spawn_essential("a task", async move { stop.cancelled().await });
        tasks.spawn(async {});
        assert_eq!(reported(&failure).await, None, "the task still runs");
        tasks.stop();
        tasks.ended().await;
        assert_eq!(failure.reason(), None, "it was told to end");
        assert_eq!(tasks.len(), 0, "no task is left");
    }
}
