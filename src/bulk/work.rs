//! The steps of one action: each a bounded piece of the store's work.

use std::num::NonZeroU16;
use std::sync::Arc;

use super::order::{Action, Order};
use crate::engine::{By, Cursor, Engine, JobList, MAX_LISTED, Promoted, Respawn, Revival, Revived};
use crate::error::{Error, Result};
use crate::job::{JobId, JobState};
use crate::search;

/// How many jobs of the head of a dead letter one step takes.
const STEP: u64 = 250;

/// What is left to do.
pub struct Work {
    engine: Arc<dyn Engine>,
    order: Order,
    /// How many jobs are not looked at yet.
    left: u64,
    cursor: Option<Cursor>,
}

/// What one step did.
#[derive(Clone, Copy, Debug, Default)]
pub struct Step {
    pub looked_at: u64,
    pub done: u64,
    pub out_of_reach: u64,
    /// There is nothing left.
    pub ends: bool,
}

impl Work {
    /// On so many jobs at most, where it is known how many there are.
    pub fn new(engine: Arc<dyn Engine>, order: Order, total: Option<u64>) -> Work {
        Work { engine, order, left: total.unwrap_or(u64::MAX), cursor: None }
    }

    /// So many were dealt with by a step that failed.
    pub fn was_done(&mut self, jobs: u64) {
        self.left = self.left.saturating_sub(jobs);
    }

    /// Does the next piece.
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

    /// What can be done to all jobs without looking at each: at the head of a dead letter, and to all that is ready.
    async fn step_of_all(&self) -> Result<Option<u64>> {
        let Order { queue, action, .. } = &self.order;
        let limit = self.left.min(STEP);
        Ok(match *action {
            Action::Respawn(Revival { tries: NonZeroU16::MIN, delay, ttl }) if delay.is_zero() => {
                Some(self.engine.respawn(queue, Respawn::Oldest { limit, ttl }).await?.count)
            }
            Action::Delete => Some(self.engine.delete_dead(queue, limit).await?),
            // Ready ones are forgotten where they lie, so that none that was handed out meanwhile is.
            Action::Cancel(JobState::Ready) => {
                self.engine.destroy(queue).await?;
                Some(self.left)
            }
            _ => None,
        })
    }

    /// The next page of the list, and what is done to those of it that the filter finds.
    async fn step_of_some(&mut self) -> Result<Step> {
        let Order { queue, action, filter, .. } = &self.order;
        let limit = usize::try_from(self.left).unwrap_or(MAX_LISTED).min(MAX_LISTED);
        let list = JobList { state: action.state(), limit, cursor: self.cursor.clone(), bodies: false };
        let page = search::page(&*self.engine, queue, filter, list).await?;
        let page = page.ok_or_else(|| Error::refused("the list cannot be read on"))?;
        let looked_at = page.jobs.len() as u64;
        let found: Vec<JobId> = page.jobs.iter().filter(|job| filter.finds(job)).map(|job| job.id).collect();
        let (done, out_of_reach) = match *action {
            _ if found.is_empty() => (0, 0),
            Action::Respawn(revival) => {
                let each = self.engine.respawn(queue, Respawn::Jobs(&found, revival)).await?.each;
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
