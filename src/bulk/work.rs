//! Steps of one action, each a bounded amount of work for the store.

use std::num::NonZeroU16;
use std::sync::Arc;

use super::order::{Action, Order};
use crate::engine::{By, Cursor, Engine, JobList, Listing, MAX_LISTED, Promoted, Revival, Revived, respawn};
use crate::error::{Error, Result};
use crate::job::{JobId, JobState};
use crate::search;

/// Number of jobs taken from the head of a dead letter list per step.
const STEP: u64 = 250;

/// The remaining work.
pub struct Work {
    engine: Arc<dyn Engine>,
    order: Order,
    /// Number of jobs not yet visited.
    left: u64,
    cursor: Option<Cursor>,
}

/// Result of one step.
#[derive(Clone, Copy, Debug, Default)]
pub struct Step {
    pub looked_at: u64,
    pub done: u64,
    pub out_of_reach: u64,
    /// Whether there is nothing left.
    pub ends: bool,
}

impl Work {
    /// Creates the work, limited to `total` jobs if known.
    pub fn new(engine: Arc<dyn Engine>, order: Order, total: Option<u64>) -> Work {
        Work { engine, order, left: total.unwrap_or(u64::MAX), cursor: None }
    }

    /// Records jobs processed by a step that failed.
    pub fn was_done(&mut self, jobs: u64) {
        self.left = self.left.saturating_sub(jobs);
    }

    /// Runs the next step.
    pub async fn step(&mut self) -> Result<Step> {
        if self.left == 0 {
            return Ok(Step { ends: true, ..Step::default() });
        }
        if self.order.filter.is_empty()
            && let Some(done) = self.step_of_all().await?
        {
            self.left = self.left.saturating_sub(done);
            let is_once = self.order.action == Action::Cancel(JobState::Ready);
            return Ok(Step {
                looked_at: done,
                done,
                ends: done == 0 || self.left == 0 || is_once,
                ..Step::default()
            });
        }
        self.step_of_some().await
    }

    /// Processes jobs without visiting each: the head of a dead letter list, or all ready jobs.
    async fn step_of_all(&self) -> Result<Option<u64>> {
        let Order { queue, action, .. } = &self.order;
        let limit = self.left.min(STEP);
        Ok(match *action {
            Action::Respawn(Revival { tries: NonZeroU16::MIN, delay, ttl }) if delay.is_zero() => {
                Some(respawn::oldest(&*self.engine, queue, limit, ttl).await?)
            }
            Action::Delete => Some(self.engine.delete_dead(queue, limit).await?),
            // Deleted within the queue, so that a job delivered meanwhile is not affected.
            Action::Cancel(JobState::Ready) => {
                self.engine.destroy(queue, Listing::Keep).await?;
                Some(self.left)
            }
            _ => None,
        })
    }

    /// Reads the next page and processes its jobs that match the filter.
    async fn step_of_some(&mut self) -> Result<Step> {
        let Order { queue, action, filter, .. } = &self.order;
        let limit = usize::try_from(self.left).unwrap_or(MAX_LISTED).min(MAX_LISTED);
        let list = JobList { state: action.state(), limit, cursor: self.cursor.clone(), bodies: false };
        let page = search::page(&*self.engine, queue, filter, list).await?;
        let page = page.ok_or_else(|| Error::refused("the list cannot be continued"))?;
        let looked_at = page.jobs.len() as u64;
        let found: Vec<JobId> = page.jobs.iter().filter(|job| filter.finds(job)).map(|job| job.id).collect();
        let (done, out_of_reach) = match *action {
            _ if found.is_empty() => (0, 0),
            Action::Respawn(revival) => {
                let each = respawn::jobs(&*self.engine, queue, &found, revival).await?;
                let count =
                    |of: fn(&Revived) -> bool| each.iter().filter(|revived| of(revived)).count() as u64;
                let far = count(|revived| matches!(revived, Revived::OutOfReach));
                (count(|revived| matches!(revived, Revived::Done { .. })), far)
            }
            Action::Promote => {
                let mut done = 0;
                for id in &found {
                    let promoted = self.engine.promote(queue, By::Id(*id)).await;
                    done += u64::from(promoted.map_err(|error| error.after(done))? == Promoted::Done);
                }
                (done, 0)
            }
            Action::Delete | Action::Cancel(_) => {
                let jobs: Vec<_> = found.iter().map(|id| (*id, None)).collect();
                self.engine.ack(queue, &jobs).await?;
                (found.len() as u64, 0)
            }
        };
        self.left = self.left.saturating_sub(looked_at);
        self.cursor = page.cursor;
        let ends = self.cursor.is_none() || self.left == 0;
        Ok(Step { looked_at, done, out_of_reach, ends })
    }
}
