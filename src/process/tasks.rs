//! Background tasks of the process. Every task is tracked, can be stopped and awaited, and the unexpected end of an
//! essential task is noticed.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;

use tokio::runtime::Handle;
use tokio::sync::SetOnce;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Why the process cannot continue. Reported at most once, since later reasons are mostly consequences.
#[derive(Debug, Clone, Default)]
pub struct Failure(Arc<SetOnce<String>>);

impl Failure {
    /// Reports that a part of the process has failed permanently. Only the first report is kept.
    pub fn report(&self, reason: String) {
        // An error means that another failure was reported before.
        let _ = self.0.set(reason);
    }

    /// Returns the reason, if a failure was reported.
    pub fn reason(&self) -> Option<&str> {
        self.0.get().map(String::as_str)
    }

    /// Waits for a failure and returns its reason.
    pub async fn reported(&self) -> &str {
        self.0.wait().await
    }
}

/// Tells a task to stop. Checking it takes no lock, whereas checking a [`CancellationToken`] takes one shared by all
/// tasks.
#[derive(Debug, Clone, Default)]
pub struct StopSignal {
    token: CancellationToken,
    /// Set before `token` is cancelled.
    stopped: Arc<AtomicBool>,
}

impl StopSignal {
    /// Runs `work` until it completes or the tasks are stopped. Returns `None` when stopped; `work` can be polled
    /// further.
    pub async fn run_until<F: Future + Unpin>(&self, work: &mut F) -> Option<F::Output> {
        let mut cancelled = std::pin::pin!(self.token.cancelled());
        let mut registered = false;
        std::future::poll_fn(|cx| {
            if let Poll::Ready(done) = Pin::new(&mut *work).poll(cx) {
                return Poll::Ready(Some(done));
            }
            // Once registered, the token wakes this task, and `stopped` is set by then.
            let asks = !std::mem::replace(&mut registered, true) || self.stopped.load(Ordering::Acquire);
            if asks && cancelled.as_mut().poll(cx).is_ready() { Poll::Ready(None) } else { Poll::Pending }
        })
        .await
    }
}

/// A set of tasks that are stopped together. Clones share the set.
#[derive(Debug, Clone)]
pub struct Tasks {
    tracker: TaskTracker,
    stop: StopSignal,
    failure: Failure,
    /// Other threads may start tasks too.
    runtime: Handle,
}

impl Tasks {
    /// Creates an empty set, whose tasks run in the current runtime. The unexpected end of an essential task is
    /// reported to `failure`.
    pub fn new(failure: Failure) -> Tasks {
        let runtime = Handle::current();
        Tasks { tracker: TaskTracker::new(), stop: StopSignal::default(), failure, runtime }
    }

    /// Starts a task that may end at any time and should end soon after [`stop`](Tasks::stop). Its panic is returned by
    /// the handle.
    pub fn spawn<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
        self.tracker.spawn_on(work, &self.runtime)
    }

    /// Starts a task that must run until [`stop`](Tasks::stop). If it ends or panics earlier, this is logged and
    /// reported as a [`Failure`] with its `name`.
    pub fn spawn_essential(&self, name: impl Into<String>, work: impl Future<Output = ()> + Send + 'static) {
        let (name, stop, failure) = (name.into(), self.stop.token.clone(), self.failure.clone());
        let task = self.tracker.spawn_on(work, &self.runtime);
        let watch = async move {
            let how = if task.await.is_err() { "panicked" } else { "ended" };
            if !stop.is_cancelled() {
                tracing::error!(task = name, how, "an essential task has ended; the server stops");
                failure.report(format!("{name} {how}"));
            }
        };
        self.tracker.spawn_on(watch, &self.runtime);
    }

    /// Returns where the unexpected end of an essential task is reported.
    pub fn failure(&self) -> &Failure {
        &self.failure
    }

    /// Tells the tasks to stop, without waiting for them.
    pub fn stop(&self) {
        self.stop.stopped.store(true, Ordering::Release);
        self.stop.token.cancel();
        self.tracker.close();
    }

    /// Returns a token that is cancelled when the tasks are stopped.
    pub fn stopping(&self) -> &CancellationToken {
        &self.stop.token
    }

    /// Returns a stop signal for a task that is polled often.
    pub fn stop_signal(&self) -> StopSignal {
        self.stop.clone()
    }

    /// Waits until the tasks have been stopped and all have ended.
    pub async fn ended(&self) {
        self.tracker.wait().await;
    }

    /// Returns the number of running tasks.
    pub fn len(&self) -> usize {
        self.tracker.len()
    }

    pub fn is_empty(&self) -> bool {
        self.tracker.is_empty()
    }
}

/// Runs blocking or long work on a separate thread.
pub async fn beside_the_runtime<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await.map_err(tokio::task::JoinError::try_into_panic) {
        Ok(done) => done,
        Err(Ok(panic)) => std::panic::resume_unwind(panic),
        // The runtime is shutting down, and this task with it.
        Err(Err(_)) => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Returns the failure reported within a second.
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
            // Polled repeatedly before the stop.
            let mut work = Box::pin(async move { while more.recv().await.is_some() {} });
            let left = signal.run_until(&mut work).await.is_none();
            work.await;
            left
        });
        for _ in 0..10 {
            done.send(()).await.expect("the task reads");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert!(!task.is_finished(), "it was not stopped yet");
        tasks.stop();
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert!(!task.is_finished(), "its work can continue");
        drop(done);
        assert!(task.await.expect("it does not panic"), "it was stopped during its work");
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
        assert_eq!(failure.reason(), None, "it was stopped");
        assert_eq!(tasks.len(), 0, "no task is left");
    }
}
