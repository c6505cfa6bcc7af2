//! Deliveries and give-backs: the store to call, and the order of calls.

use std::ops::Range;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::patience::{LOOK_AGAIN, MOST_PATIENCE, late};
use super::stores::TwoStores;
use crate::engine::{Consumed, Engine};
use crate::error::Result;
use crate::job::Job;
use crate::name::QueueList;

impl TwoStores {
    /// Consumes from the source first, queue by queue.
    pub async fn consume(&self, queues: &QueueList, ttrs: &[Duration]) -> Result<Consumed> {
        let give_up = Instant::now() + MOST_PATIENCE;
        loop {
            let old = self.consume_old(queues, ttrs).await;
            let hangs = old.is_none();
            let (from_old, trouble) = match old.unwrap_or_else(|| Err(late())) {
                Ok(consumed) => (consumed, None),
                Err(error) => (Consumed::default(), Some(error)),
            };
            let (mut consumed, seen) = self.in_order(queues, ttrs, from_old).await;
            // The target serves the rest of the request.
            let rest = ttrs.get(consumed.jobs.len()..).unwrap_or_default();
            if rest.is_empty() || consumed.more {
                return Ok(consumed);
            }
            let later = part(queues, seen..queues.names().len());
            match closed(&*self.new, later.as_ref().unwrap_or(queues), rest).await {
                Ok(found) => {
                    consumed.more = found.more || trouble.is_some() && !found.jobs.is_empty();
                    consumed.jobs.extend(from_new(found.jobs));
                }
                // The source's jobs are delivered; an error of the target shows in the next call.
                Err(_) if !consumed.jobs.is_empty() => consumed.more = true,
                Err(error) => return Err(error),
            }
            match trouble {
                Some(error) if consumed.jobs.is_empty() && !consumed.more => {
                    if !hangs || Instant::now() >= give_up {
                        // The source may have jobs, so an empty reply would be wrong.
                        return Err(error);
                    }
                    sleep(LOOK_AGAIN).await;
                }
                _ => return Ok(consumed),
            }
        }
    }

    /// Returns each job to the store that delivered it.
    pub async fn give_back(&self, jobs: Vec<Job>) -> Result<()> {
        let (mut to_old, mut to_new) = (Vec::new(), Vec::new());
        for mut job in jobs {
            let from_new = job.receipt & Job::FROM_NEW != 0;
            job.receipt &= !Job::FROM_NEW;
            if from_new { to_new.push(job) } else { to_old.push(job) }
        }
        let new = async { if to_new.is_empty() { Ok(()) } else { self.new.give_back(to_new).await } };
        tokio::join!(self.give_back_old(to_old), new).1
    }

    /// Returns the result of a consume of the source, and the position in the list from which on the target was not
    /// called yet. If the target has jobs of an earlier queue, they are delivered, and the source's jobs are returned.
    async fn in_order(&self, queues: &QueueList, ttrs: &[Duration], from_old: Consumed) -> (Consumed, usize) {
        let Consumed { mut jobs, more, .. } = from_old;
        let (mut taken, mut seen) = (0, 0);
        while let Some(job) = jobs.get(taken) {
            let (queue, names) = (job.queue.name.clone(), &queues.names()[seen..]);
            let at = seen + names.iter().position(|name| *name == queue).unwrap_or(0);
            if let Some(earlier) = part(queues, seen..at) {
                match closed(&*self.new, &earlier, &ttrs[taken..]).await {
                    Ok(Consumed { jobs: none, more: false, .. }) if none.is_empty() => {}
                    Ok(found) => {
                        self.give_back_old(jobs.split_off(taken)).await;
                        jobs.extend(from_new(found.jobs));
                        return (may_have_more(jobs), at);
                    }
                    // The source's jobs are delivered; an error of the target shows in the next call.
                    Err(_) => return (may_have_more(jobs), at),
                }
            }
            seen = at;
            taken += jobs[taken..].iter().take_while(|job| job.queue.name == queue).count();
        }
        (Consumed { jobs, more, notifies: false }, seen)
    }
}

/// Returns a part of a list, unless it is empty.
fn part(queues: &QueueList, range: Range<usize>) -> Option<QueueList> {
    QueueList::new(queues.namespace().clone(), queues.names()[range].iter().cloned())
}

/// Consumes again while the reply is empty and [leaves open](Consumed::notifies) whether there are jobs.
pub async fn closed(engine: &dyn Engine, queues: &QueueList, ttrs: &[Duration]) -> Result<Consumed> {
    loop {
        let consumed = engine.consume(queues, ttrs).await?;
        if !consumed.jobs.is_empty() || !consumed.notifies {
            return Ok(consumed);
        }
    }
}

fn may_have_more(jobs: Vec<Job>) -> Consumed {
    Consumed { jobs, more: true, notifies: false }
}

/// Marks jobs as delivered by the target, for a give-back.
fn from_new(mut jobs: Vec<Job>) -> Vec<Job> {
    jobs.iter_mut().for_each(|job| job.receipt |= Job::FROM_NEW);
    jobs
}
