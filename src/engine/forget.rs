//! Deletes a queue with all its jobs except running ones, and its name. Built on the methods of [`Engine`].

use super::{Engine, JobList, Listing, MAX_LISTED};
use crate::error::{Error, Result};
use crate::job::JobState;
use crate::name::Queue;

/// Deletes the delayed, dead and ready jobs of a queue, and removes its name. Running jobs continue; one that returns
/// adds the name again, and so does a job published meanwhile. In bounded steps: a call that fails in between has
/// deleted some of the jobs, and can be repeated.
pub async fn forget(engine: &dyn Engine, queue: &Queue) -> Result<()> {
    let mut cursor = None;
    loop {
        let list = JobList { state: JobState::Delayed, limit: MAX_LISTED, cursor, bodies: false };
        let page = engine.list_jobs(queue, list).await?;
        let page = page.ok_or_else(|| Error::refused("the list of delayed jobs cannot be continued"))?;
        let jobs: Vec<_> = page.jobs.iter().map(|job| (job.id, None)).collect();
        if !jobs.is_empty() {
            engine.ack(queue, &jobs).await?;
        }
        cursor = page.cursor;
        if cursor.is_none() {
            break;
        }
    }
    engine.delete_dead(queue, u64::MAX).await?;
    // After the delayed jobs, because some may have become ready meanwhile.
    engine.destroy(queue, Listing::Delete).await
}
