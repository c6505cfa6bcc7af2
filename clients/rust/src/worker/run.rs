//! A run of a worker, from its first poll to its last ack.
//!
//! It has its own thread, runtime and connections, so that a handler that blocks the application's threads does not
//! stop touches. Handlers run in the runtime in which the worker was started.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

use super::acks::Acks;
use super::hooks::Event;
use super::polls::Polls;
use super::stop::Stopper;
use super::{Settings, WorkerError, work};
use crate::client::Client;
use crate::error::Error;

/// State shared by the tasks of a run.
pub(super) struct Run {
    /// Uses connections of the run's own runtime.
    pub(super) client: Client,
    /// The runtime of the handlers.
    pub(super) handlers: Handle,
    pub(super) settings: Arc<Settings>,
    pub(super) acks: Acks,
    /// Cancelled when the drain time is over: handlers are cancelled.
    pub(super) drained: CancellationToken,
    /// Cancelled when the grace time is over: jobs are returned even if handlers continue.
    pub(super) over: CancellationToken,
    /// Number of handlers that had not returned by then.
    pub(super) unfinished: AtomicUsize,
}

pub(super) async fn run(settings: Arc<Settings>, stopper: Stopper) -> Result<(), WorkerError> {
    let running = stopper.begin();
    let runtime = Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|e| Error::invalid(format!("the worker gets no runtime: {e}")))?;
    let (handlers, given_up) = (Handle::current(), CancellationToken::new());
    // Dropping this future ends the thread.
    let _guard = given_up.clone().drop_guard();
    let (ended, end) = oneshot::channel();
    let thread = thread::Builder::new().name("dormouse-worker".to_owned()).spawn(move || {
        let run = run_here(settings, stopper, handlers);
        let result = runtime.block_on(async {
            tokio::select! {
                result = run => Some(result),
                () = given_up.cancelled() => None,
            }
        });
        // Connections are closed before the run counts as ended.
        drop(runtime);
        // The worker may be run again as soon as this run has ended.
        drop(running);
        if let Some(result) = result {
            let _ = ended.send(result);
        }
    });
    thread.map_err(|e| Error::invalid(format!("the worker gets no thread: {e}")))?;
    end.await.unwrap_or_else(|_| Err(Error::invalid("the worker's thread has died").into()))
}

async fn run_here(settings: Arc<Settings>, stopper: Stopper, handlers: Handle) -> Result<(), WorkerError> {
    let client = settings.client.fork()?;
    let _signals =
        settings.signals.then(|| AbortOnDropHandle::new(tokio::spawn(stopper.clone().heed_signals())));
    let tasks = TaskTracker::new();
    let run = Arc::new(Run {
        acks: Acks::new(client.clone(), settings.ack_window, tasks.clone()),
        client: client.clone(),
        handlers,
        settings: settings.clone(),
        drained: CancellationToken::new(),
        over: CancellationToken::new(),
        unfinished: AtomicUsize::new(0),
    });
    let mut polls = Polls::new(settings.clone(), client, stopper.clone());
    let ended = loop {
        match polls.next().await {
            Ok(Some(jobs)) => {
                for (job, slot) in jobs {
                    // The reply may have taken so long that the job is another consumer's.
                    if stopper.is_asked() || job.hold.left().is_zero() {
                        tasks.spawn(work::give_back(run.clone(), job));
                    } else {
                        tasks.spawn(work::work(run.clone(), job, slot));
                    }
                }
            }
            Ok(None) => break Ok(()),
            Err(e) => {
                tracing::error!(error = %e, "the worker ends");
                break Err(e);
            }
        }
    };
    drain(&run, &tasks, &stopper, polls.running()).await;
    ended?;
    match run.unfinished.load(Ordering::Relaxed) {
        0 => Ok(()),
        handlers => Err(WorkerError::Unfinished(handlers)),
    }
}

async fn drain(run: &Run, tasks: &TaskTracker, stopper: &Stopper, running: usize) {
    run.settings.tell(&Event::Drain { running });
    run.acks.hurry();
    tasks.close();
    tracing::debug!(jobs = tasks.len(), "the worker takes no more jobs");
    if !end_within(tasks, run.settings.drain, stopper).await {
        run.drained.cancel();
        if !end_within(tasks, run.settings.grace, stopper).await {
            run.over.cancel();
        }
    }
    tasks.wait().await;
}

/// Whether all tasks ended in time, and before a second stop.
async fn end_within(tasks: &TaskTracker, time: Duration, stopper: &Stopper) -> bool {
    tokio::select! {
        ended = timeout(time, tasks.wait()) => ended.is_ok(),
        () = stopper.asked(2) => tasks.is_empty(),
    }
}
