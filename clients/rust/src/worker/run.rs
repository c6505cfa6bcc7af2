//! A run of a worker, from its first poll to its last ack.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

use super::acks::Acks;
use super::hooks::Event;
use super::polls::Polls;
use super::stop::Stopper;
use super::{Settings, WorkerError, work};

/// What the tasks of a run share.
pub(super) struct Run {
    pub(super) settings: Arc<Settings>,
    pub(super) acks: Acks,
    /// The drain is over: handlers are cancelled.
    pub(super) drained: CancellationToken,
    /// The grace is over: jobs are given back, whatever their handlers do.
    pub(super) over: CancellationToken,
    /// How many handlers had not returned then.
    pub(super) unfinished: AtomicUsize,
}

pub(super) async fn run(settings: Arc<Settings>, stopper: Stopper) -> Result<(), WorkerError> {
    let _running = stopper.begin();
    let _signals =
        settings.signals.then(|| AbortOnDropHandle::new(tokio::spawn(stopper.clone().heed_signals())));
    let tasks = TaskTracker::new();
    let run = Arc::new(Run {
        acks: Acks::new(settings.client.clone(), settings.ack_window, tasks.clone()),
        settings: settings.clone(),
        drained: CancellationToken::new(),
        over: CancellationToken::new(),
        unfinished: AtomicUsize::new(0),
    });
    let mut polls = Polls::new(settings.clone(), stopper.clone());
    let ended = loop {
        match polls.next().await {
            Ok(Some(jobs)) => {
                for (job, slot) in jobs {
                    if stopper.is_asked() {
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
    drain(&run, &tasks, &stopper).await;
    ended?;
    match run.unfinished.load(Ordering::Relaxed) {
        0 => Ok(()),
        handlers => Err(WorkerError::Unfinished(handlers)),
    }
}

async fn drain(run: &Run, tasks: &TaskTracker, stopper: &Stopper) {
    run.settings.tell(&Event::Drain);
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

/// Whether all tasks ended in time, or before somebody lost patience.
async fn end_within(tasks: &TaskTracker, time: Duration, stopper: &Stopper) -> bool {
    tokio::select! {
        ended = timeout(time, tasks.wait()) => ended.is_ok(),
        () = stopper.asked(2) => tasks.is_empty(),
    }
}
