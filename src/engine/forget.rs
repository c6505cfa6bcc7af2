//! Forgetting a queue: everything in it goes but the jobs that run, and then its name. Above the stores: only the last step
//! is theirs.

use super::{Engine, JobList, MAX_LISTED};
use crate::error::{Error, Result};
use crate::job::JobState;
use crate::name::Queue;

/// Deletes the delayed, dead and ready jobs of a queue, and has the store forget its name. Running jobs are
/// left to their holders; one that comes back brings the name back. So does a job that is published meanwhile. In bounded
/// steps: a call that fails in between has deleted some of the jobs, and can be repeated.
pub async fn forget(engine: &dyn Engine, queue: &Queue) -> Result<()> {
    let mut cursor = None;
    loop {
        let list = JobList { state: JobState::Delayed, limit: MAX_LISTED, cursor, bodies: false };
        let page = engine.list_jobs(queue, list).await?;
        let page = page.ok_or_else(|| Error::refused("the list of delayed jobs cannot be read on"))?;
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
    // Last, since delayed jobs become ready meanwhile.
    engine.destroy(queue).await?;
    engine.forget_queue(queue).await
}
