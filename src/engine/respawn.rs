//! The two forms of a respawn as their callers use them. In the trait they are one method, so that each store and
//! wrapper treats them alike.

use std::time::Duration;

use super::{Engine, Respawn, Revival, Revived};
use crate::error::Result;
use crate::job::JobId;
use crate::name::Queue;

/// Makes up to `limit` dead jobs ready at once, oldest first, each with one try and this ttl; `None` is forever.
/// Returns how many.
pub async fn oldest(engine: &dyn Engine, queue: &Queue, limit: u64, ttl: Option<Duration>) -> Result<u64> {
    Ok(engine.respawn(queue, Respawn::Oldest { limit, ttl }).await?.count)
}

/// Makes these dead jobs ready or delayed, 1 to [`MAX_NAMED`](super::MAX_NAMED). Returns the result for each, in order.
pub async fn jobs(
    engine: &dyn Engine,
    queue: &Queue,
    jobs: &[JobId],
    revival: Revival,
) -> Result<Vec<Revived>> {
    Ok(engine.respawn(queue, Respawn::Jobs(jobs, revival)).await?.each)
}
