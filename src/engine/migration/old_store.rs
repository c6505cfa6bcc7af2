//! Calls of a source that may hang: late deliveries are returned, and acks are retried later.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep, timeout};

use super::consume::closed;
use super::patience::{OldState, late};
use super::stores::TwoStores;
use crate::engine::{Consumed, Engine, together};
use crate::error::{Error, Result};
use crate::job::{Job, JobRef};
use crate::name::QueueList;
use crate::process::tasks::Tasks;

/// Interval between attempts of an owed ack.
const TRY_AGAIN: Duration = Duration::from_secs(1);

impl TwoStores {
    /// Consumes from the source. `None` if it is late.
    pub async fn consume_old(&self, queues: &QueueList, ttrs: &[Duration]) -> Option<Result<Consumed>> {
        if self.state.late.load(Ordering::SeqCst) > 0 {
            return None;
        }
        let (old, queues, ttrs) = (self.old.clone(), queues.clone(), ttrs.to_vec());
        let asked = Instant::now();
        // Not dropped if it is late: it may have taken jobs.
        let mut call = Box::pin(async move { closed(&*old, &queues, &ttrs).await });
        if let Ok(answer) = timeout(self.state.patience(), &mut call).await {
            self.state.answered(asked, &answer);
            return Some(answer);
        }
        let (old, state) = (self.old.clone(), Late::new(&self.state));
        self.tasks.spawn(async move {
            let answer = call.await;
            state.0.answered(asked, &answer);
            // No consume calls the source before they are returned.
            if let Ok(consumed) = answer {
                give_back(&*old, consumed.jobs).await;
            }
        });
        None
    }

    /// Gives jobs back to the source. Waits for a source that hangs no longer than a consume does, and no consume calls
    /// it before they are returned.
    pub async fn give_back_old(&self, jobs: Vec<Job>) {
        if jobs.is_empty() {
            return;
        }
        let old = self.old.clone();
        let mut call = Box::pin(async move { give_back(&*old, jobs).await });
        let hangs = self.state.late.load(Ordering::SeqCst) > 0;
        let patience = if hangs { Duration::ZERO } else { self.state.patience() };
        if timeout(patience, &mut call).await.is_err() {
            let late = Late::new(&self.state);
            self.tasks.spawn(async move {
                call.await;
                drop(late);
            });
        }
    }

    /// Executes `step`, and if `is_done` accepts its result, acks these jobs in the source, now or later; both even if
    /// the caller has left.
    pub async fn then_ack_old<T: Send + 'static>(
        &self,
        jobs: Vec<JobRef>,
        step: impl Future<Output = Result<T>> + Send + 'static,
        is_done: impl FnOnce(&T) -> bool + Send + 'static,
    ) -> Result<T> {
        let acks = OldAcks::of(self);
        let both = self.tasks.spawn(async move {
            let stepped = step.await?;
            if is_done(&stepped) {
                acks.ack(jobs).await;
            }
            Ok(stepped)
        });
        both.await.map_err(Error::away)?
    }
}

/// Acks in the source of jobs replaced in the target.
struct OldAcks {
    old: Arc<dyn Engine>,
    state: Arc<OldState>,
    tasks: Tasks,
    owed: Arc<Semaphore>,
}

impl OldAcks {
    fn of(stores: &TwoStores) -> OldAcks {
        let TwoStores { old, state, tasks, owed, .. } = stores;
        OldAcks { old: old.clone(), state: state.clone(), tasks: tasks.clone(), owed: owed.clone() }
    }

    /// Acks all concurrently; failed acks are retried later.
    async fn ack(&self, jobs: Vec<JobRef>) {
        let patience = self.state.patience();
        let acks = jobs.iter().map(|job| async move {
            let acked = timeout(patience, self.old.ack(&job.queue, &[(job.id, None)])).await;
            acked.unwrap_or_else(|_| Err(late()))
        });
        for (job, acked) in jobs.iter().zip(together::all(acks).await) {
            if let Err(error) = acked {
                self.owe(job.clone(), &error);
            }
        }
    }

    /// Acks in the source later.
    fn owe(&self, job: JobRef, error: &Error) {
        let Ok(permit) = self.owed.clone().try_acquire_owned() else {
            tracing::debug!(%error, "an ack of a republished job is lost; the job comes back after its ttr");
            return;
        };
        let (old, stop) = (self.old.clone(), self.tasks.stopping().clone());
        self.tasks.spawn(async move {
            let _permit = permit;
            let acked = async {
                while let Err(error) = old.ack(&job.queue, &[(job.id, None)]).await {
                    if matches!(error, Error::Closed) {
                        return;
                    }
                    sleep(TRY_AGAIN).await;
                }
            };
            stop.run_until_cancelled(acked).await;
        });
    }
}

/// Marks a call as hanging in the source until this is dropped.
struct Late(Arc<OldState>);

impl Late {
    fn new(state: &Arc<OldState>) -> Late {
        state.late.fetch_add(1, Ordering::SeqCst);
        Late(state.clone())
    }
}

impl Drop for Late {
    fn drop(&mut self) {
        self.0.late.fetch_sub(1, Ordering::SeqCst);
    }
}

async fn give_back(old: &dyn Engine, jobs: Vec<Job>) {
    let count = jobs.len();
    if count > 0
        && let Err(error) = old.give_back(jobs).await
    {
        tracing::warn!(%error, count, "jobs delivered too late by the store that the pool moves from could not be given back; they return after their ttr");
    }
}
