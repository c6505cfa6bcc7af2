//! Bulk actions on all jobs of a queue that match a filter: respawn, delete, promote, cancel. Each is a task that
//! works in small steps and leaves nine tenths of the time to other work of the store. It ends after examining as
//! many jobs as there were at its beginning, when it is stopped, or when the server stops; never within a step. Knows
//! no HTTP.

mod order;
mod work;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

pub use self::order::{Action, Order};
use self::work::Work;
use crate::clock::{Millis, system_now};
use crate::engine::{Engine, SizeOf};
use crate::error::Error;
use crate::job::JobState;
use crate::process::tasks::Tasks;
use crate::random;

/// Multiple of a step's duration to pause after it.
const REST: u32 = 9;
/// Number of finished actions kept.
const REMEMBERED: usize = 200;
/// Maximum number of concurrent actions.
const MOST_RUNNING: usize = 16;
/// Number of consecutive retries of a failed step, and the pause before each.
const AGAIN: u32 = 5;
const PAUSE: Duration = Duration::from_secs(1);

/// State of an action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BulkState {
    Running,
    Done,
    /// Stopped by this operator.
    Stopped(String),
    /// Failed with this error.
    Failed(String),
}

/// Progress of one action.
#[derive(Clone, Debug)]
pub struct Progress {
    pub id: String,
    pub order: Order,
    /// Number of jobs at the start; `None` if the store does not know.
    pub total: Option<u64>,
    pub looked_at: u64,
    pub done: u64,
    /// Number of matching jobs too far from both ends of a long dead letter list to be respawned.
    pub out_of_reach: u64,
    pub state: BulkState,
    pub started: Millis,
    /// `None` while it runs. A stopped action ends with its current step.
    pub ended: Option<Millis>,
}

/// Why an action was not started.
#[derive(Debug)]
pub enum NotBegun {
    /// This action is running on the same queue.
    Busy(String),
    /// Too many actions are running.
    TooMany,
    Store(Error),
}

/// All actions of this server.
#[derive(Debug)]
pub struct Bulk {
    tasks: Tasks,
    /// Newest first.
    all: Mutex<VecDeque<(Progress, CancellationToken)>>,
}

impl Bulk {
    /// Creates the collection; actions run in `tasks`.
    pub fn new(tasks: Tasks) -> Arc<Bulk> {
        Arc::new(Bulk { tasks, all: Mutex::default() })
    }

    /// Starts an action. `known` is the number of delayed or running jobs, if known.
    pub async fn begin(
        self: &Arc<Self>,
        engine: Arc<dyn Engine>,
        order: Order,
        known: Option<u64>,
    ) -> Result<Progress, NotBegun> {
        let of = match order.action.state() {
            JobState::Dead => Some(SizeOf::Dead),
            JobState::Ready => Some(SizeOf::Ready),
            JobState::Delayed | JobState::Running => None,
        };
        let total = match of {
            Some(of) => Some(engine.size(&order.queue, of).await.map_err(NotBegun::Store)?.jobs),
            None => known,
        };
        let progress = Progress {
            id: random::ulid().to_string(),
            order,
            total,
            looked_at: 0,
            done: 0,
            out_of_reach: 0,
            state: BulkState::Running,
            started: system_now(),
            ended: None,
        };
        let stop = CancellationToken::new();
        self.enter(progress.clone(), stop.clone())?;
        let (this, of) = (self.clone(), progress.clone());
        self.tasks.spawn(async move { this.run(engine, of, stop).await });
        Ok(progress)
    }

    /// Records a new action, if it may run.
    fn enter(&self, progress: Progress, stop: CancellationToken) -> Result<(), NotBegun> {
        let mut all = self.all.lock();
        let running = all.iter().filter(|(of, _)| of.ended.is_none());
        let same = |of: &Order| of.pool == progress.order.pool && of.queue == progress.order.queue;
        if let Some((of, _)) = running.clone().find(|(of, _)| same(&of.order)) {
            return Err(NotBegun::Busy(of.id.clone()));
        }
        if running.count() >= MOST_RUNNING {
            return Err(NotBegun::TooMany);
        }
        all.push_front((progress, stop));
        let mut ended = 0;
        all.retain(|(of, _)| {
            ended += usize::from(of.ended.is_some());
            of.ended.is_none() || ended <= REMEMBERED
        });
        Ok(())
    }

    /// Returns all running and recent actions, newest first.
    pub fn list(&self) -> Vec<Progress> {
        self.all.lock().iter().map(|(progress, _)| progress.clone()).collect()
    }

    pub fn get(&self, id: &str) -> Option<Progress> {
        let all = self.all.lock();
        all.iter().find(|(progress, _)| progress.id == id).map(|(progress, _)| progress.clone())
    }

    /// Stops an action after its current step. Returns its progress; a finished action is unchanged.
    pub fn stop(&self, id: &str, by: &str) -> Option<Progress> {
        let mut all = self.all.lock();
        let (progress, stop) = all.iter_mut().find(|(progress, _)| progress.id == id)?;
        if progress.state == BulkState::Running {
            progress.state = BulkState::Stopped(by.to_owned());
            stop.cancel();
        }
        Some(progress.clone())
    }

    fn update(&self, id: &str, change: impl FnOnce(&mut Progress)) {
        let mut all = self.all.lock();
        if let Some((progress, _)) = all.iter_mut().find(|(progress, _)| progress.id == id) {
            change(progress);
        }
    }

    async fn run(self: Arc<Self>, engine: Arc<dyn Engine>, of: Progress, stop: CancellationToken) {
        let end = End { bulk: self.clone(), id: of.id.clone() };
        let mut work = Work::new(engine, of.order, of.total);
        let server = self.tasks.stopping().clone();
        let mut failures = 0;
        let state = loop {
            if stop.is_cancelled() {
                // The state was set by `stop`.
                break BulkState::Running;
            }
            if server.is_cancelled() {
                break BulkState::Stopped("the server stopped".into());
            }
            let began = Instant::now();
            let step = work.step().await;
            let rest = match step {
                Ok(step) => {
                    failures = 0;
                    self.update(&of.id, |progress| {
                        progress.looked_at += step.looked_at;
                        progress.done += step.done;
                        progress.out_of_reach += step.out_of_reach;
                    });
                    if step.ends {
                        break BulkState::Done;
                    }
                    began.elapsed() * REST
                }
                Err(error) => {
                    if let Error::Partly { done, .. } = &error {
                        work.was_done(*done);
                        self.update(&of.id, |progress| progress.done += done);
                    }
                    failures += 1;
                    if failures > AGAIN || matches!(error, Error::Closed | Error::Poisoned(_)) {
                        break BulkState::Failed(error.to_string());
                    }
                    PAUSE
                }
            };
            tokio::select! {
                () = stop.cancelled() => {}
                () = server.cancelled() => {}
                () = sleep(rest) => {}
            }
        };
        end.with(state);
    }
}

/// Records the end of an action on drop, however it ended.
struct End {
    bulk: Arc<Bulk>,
    id: String,
}

impl End {
    fn with(self, state: BulkState) {
        self.bulk.update(&self.id, |progress| {
            if progress.state == BulkState::Running {
                progress.state = state;
            }
        });
    }
}

impl Drop for End {
    fn drop(&mut self) {
        self.bulk.update(&self.id, |progress| {
            if progress.state == BulkState::Running {
                // The panic has been logged.
                progress.state = BulkState::Failed("internal error".into());
            }
            progress.ended = Some(system_now());
            let Progress { id, order, done, state, .. } = progress;
            let (pool, queue) = (order.pool.as_str(), order.queue.to_string());
            tracing::info!(
                id,
                pool,
                queue,
                action = order.action.as_str(),
                done,
                ?state,
                "a bulk action has ended"
            );
        });
    }
}
