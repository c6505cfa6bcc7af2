//! Occurrences that a failover may have lost. The job and the record of a step are sent over different connections, and
//! may be on different servers of a store: a failover can lose the job although the record says that it was placed. So
//! each server remembers what it has published lately, and publishes it again after a new connection to the pool's
//! store. The idempotency key makes this store only what was lost.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::core::Scheduler;
use crate::engine::{How, Publication, Published, together};
use crate::error::Error;
use crate::outage::Outage;

/// How long no connection must have been made: by then the others to the old server are closed too.
const SETTLED: Duration = Duration::from_secs(1);
/// Maximum number of connections waited for.
const MOST_AWAITED: usize = 10;
/// Attempts to publish again, and the pause between them.
const TRIES: usize = 60;
const PAUSE: Duration = Duration::from_secs(1);
/// Maximum number of concurrent publishes: those of others wait for no more than these.
const AT_A_TIME: usize = 64;

/// Publishes recent occurrences again after each new connection to the pool's store, until `stop`.
pub async fn confirm(scheduler: Arc<Scheduler>, outage: Arc<Outage>, stop: CancellationToken) {
    let mut connections = outage.connections();
    let confirm = async {
        while connections.changed().await.is_ok() {
            for _ in 0..MOST_AWAITED {
                if timeout(SETTLED, connections.changed()).await.is_err() {
                    break;
                }
            }
            let mut jobs = scheduler.store.recent.all();
            for _ in 0..TRIES {
                jobs = scheduler.publish_again(jobs).await;
                if jobs.is_empty() {
                    break;
                }
                sleep(PAUSE).await;
            }
        }
    };
    stop.run_until_cancelled(confirm).await;
}

impl Scheduler {
    /// Publishes jobs of occurrences again. Returns those that the store could not take.
    async fn publish_again(&self, jobs: Vec<Publication>) -> Vec<Publication> {
        let mut left = Vec::new();
        for some in jobs.chunks(AT_A_TIME) {
            let published = some.iter().map(|job| self.engine.publish(job.clone()));
            for (job, published) in some.iter().zip(together::all(published).await) {
                match published {
                    Ok(Published::Done(placed)) => {
                        for placed in placed.iter().filter(|placed| placed.how == How::New) {
                            let (pool, id) = (&self.pool, placed.id.to_string());
                            tracing::warn!(%pool, id, "a job of a schedule was lost, and is published again");
                        }
                    }
                    Err(error) if error.is_out_of_memory() => left.push(job.clone()),
                    // A job with this id is stored.
                    Ok(_) | Err(Error::Refused(_) | Error::Closed) => {}
                    Err(_) => left.push(job.clone()),
                }
            }
        }
        left
    }
}
