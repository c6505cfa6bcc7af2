//! Returns jobs to their queues if their consumer disconnected before it received them.

use std::time::Duration;

use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::engine::redis::connection::fault::Outcome;
use crate::engine::redis::core::PartitionCore;
use crate::engine::redis::layout::keys;
use crate::engine::redis::link::Lane;
use crate::engine::redis::timer_counts::Timers;
use crate::error::Result;
use crate::job::Job;

/// Maximum jobs returned by one script call.
pub const STEP: usize = 250;
/// Retries end after this time, if Redis stays unavailable or rejects writes: a job that is not returned loses a try.
/// Retrying is safe, because a delivery is returned at most once.
const TRIED_FOR: Duration = Duration::from_secs(30);
/// Pause before a retry.
const PAUSE: Duration = Duration::from_millis(100);

/// Repeats a call until it succeeds, fails permanently, [`TRIED_FOR`] has passed, or the engine closes.
pub async fn until_given<T, F: Future<Output = Outcome<T>>>(
    closing: &CancellationToken,
    mut ask: impl FnMut() -> F,
) -> Outcome<T> {
    let end = Instant::now() + TRIED_FOR;
    loop {
        match ask().await {
            Err(fault) if fault.may_heal() && Instant::now() < end && !closing.is_cancelled() => {
                closing.run_until_cancelled(sleep(PAUSE)).await;
            }
            given => return given,
        }
    }
}

impl PartitionCore {
    /// Returns each job to the head of its queue, in the order given.
    pub async fn give_back(&self, jobs: Vec<Job>) -> Result<()> {
        // The last job is pushed first, so that the first job becomes the head.
        let mut jobs: Vec<&Job> = jobs.iter().rev().collect();
        jobs.retain(|job| job.receipt != 0);
        jobs.iter().for_each(|job| _ = self.common.handed_out.remove(&job.id));
        for step in jobs.chunks(STEP) {
            let mut lists = Vec::new();
            for job in step {
                if !lists.contains(&&job.queue) {
                    lists.push(&job.queue);
                }
            }
            let mut cmd = self.call(&self.scripts.give_back);
            cmd.key(&self.keys.timer_set);
            for queue in &lists {
                cmd.key(self.keys.ready(queue));
            }
            for job in step {
                cmd.key(self.keys.job(&job.queue, &job.id));
            }
            cmd.arg(lists.len());
            for job in step {
                let list = lists.iter().position(|queue| **queue == job.queue).map_or(0, |i| i + 1);
                cmd.arg(list);
                cmd.arg(keys::member(&job.queue, job.tries_left, &job.id)).arg(job.receipt);
                cmd.arg(keys::element(job.tries_left.saturating_add(1), &job.id));
            }
            // Each attempt needs a new deadline.
            let give = || {
                let mut again = cmd.clone();
                again.arrived_at(std::time::Instant::now());
                async move { self.run(Lane::Delivered, &again).await }
            };
            let gone: Vec<i64> = until_given(self.tasks.stopping(), give).await?;
            let gone = lists.iter().zip(gone).map(|(queue, gone)| (*queue, Timers::running(-gone)));
            self.timer_counts.add_all(gone);
            for queue in lists {
                self.tell_ready(queue);
            }
        }
        Ok(())
    }
}
