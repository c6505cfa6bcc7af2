//! Gives hand-overs back: those that a consumer left behind.

use super::RedisCore;
use super::layout::keys;
use crate::error::Result;
use crate::job::Job;

/// How many go back in one script call.
const STEP: usize = 250;

impl RedisCore {
    /// Each to the head of its queue, in the order given.
    pub async fn give_back(&self, jobs: Vec<Job>) -> Result<()> {
        // The last one goes first, so that the first one ends at the very head.
        let mut jobs: Vec<&Job> = jobs.iter().rev().collect();
        jobs.retain(|job| job.receipt != 0);
        for step in jobs.chunks(STEP) {
            let mut lists = Vec::new();
            for job in step {
                if !lists.contains(&&job.queue) {
                    lists.push(&job.queue);
                }
            }
            let mut cmd = self.scripts.give_back.call(1 + lists.len() + step.len());
            cmd.arg(keys::TIMER_SET);
            for queue in &lists {
                cmd.arg(keys::ready(queue));
            }
            for job in step {
                cmd.arg(keys::job(&job.queue, &job.id));
            }
            cmd.arg(lists.len());
            for job in step {
                let list = lists.iter().position(|queue| **queue == job.queue).map_or(0, |i| i + 1);
                cmd.arg(list);
                cmd.arg(keys::member(&job.queue, job.tries_left, &job.id)).arg(job.receipt);
                cmd.arg(keys::element(job.tries_left.saturating_add(1), &job.id));
            }
            let _: u64 = self.pooled.run(&self.scripts.give_back, &cmd).await?;
            for queue in lists {
                self.notifiers.notify(queue);
            }
        }
        Ok(())
    }
}
