//! Respawns and deletes the oldest dead jobs, in bounded steps, up to the number that the dead letter had at the start.

use std::time::Duration;

use crate::engine::redis::core::PartitionCore;
use crate::engine::redis::layout::keys;
use crate::engine::redis::layout::times::ttl_millis;
use crate::engine::redis::link::Lane;
use crate::error::{Error, Result};
use crate::name::Queue;

/// Maximum elements removed per step.
const STEP: u64 = 250;
/// Maximum steps of one [`trim_dead`](PartitionCore::trim_dead).
const MOST_TRIMS: usize = 40;

impl PartitionCore {
    /// Makes the oldest dead jobs ready again. Ids of deleted jobs are dropped and not counted.
    pub async fn respawn_oldest(&self, queue: &Queue, limit: u64, ttl: Option<Duration>) -> Result<u64> {
        let script = &self.scripts.respawn;
        let (mut unseen, mut done) = (self.dead_size(queue).await?, 0);
        while unseen > 0 && done < limit {
            let mut cmd = self.call(script);
            cmd.key(self.keys.dead(queue)).key(self.keys.ready(queue)).arg(keys::group(queue));
            cmd.arg(STEP.min(unseen)).arg(STEP.min(limit - done)).arg(ttl.map_or(0, ttl_millis));
            let step = self.run(Lane::Other, &cmd).await;
            let (seen, respawned): (u64, u64) = step.map_err(|e| Error::from(e).after(done))?;
            if respawned > 0 {
                self.tell_ready(queue);
            }
            done += respawned;
            if seen == 0 {
                break;
            }
            unseen = unseen.saturating_sub(seen);
        }
        Ok(done)
    }

    /// Deletes the oldest dead jobs. Ids of deleted jobs are dropped and not counted.
    pub async fn delete_dead(&self, queue: &Queue, limit: u64) -> Result<u64> {
        let script = &self.scripts.delete_dead;
        let (mut unseen, mut done) = (self.dead_size(queue).await?, 0);
        while unseen > 0 && done < limit {
            let mut cmd = self.call(script);
            cmd.key(self.keys.dead(queue))
                .arg(self.keys.job_prefix(queue))
                .arg(STEP.min(unseen).min(limit - done));
            let step = self.run(Lane::Other, &cmd).await;
            let (taken, deleted): (u64, u64) = step.map_err(|e| Error::from(e).after(done))?;
            done += deleted;
            if taken == 0 {
                break;
            }
            unseen = unseen.saturating_sub(taken);
        }
        Ok(done)
    }

    /// Drops the ids of expired jobs from dead letters, starting at the oldest. In a bounded number of bounded steps,
    /// since many jobs may have expired at once.
    pub async fn trim_dead(&self, queues: &[Queue]) -> Result<()> {
        if self.dead_ttl.is_zero() || queues.is_empty() {
            return Ok(());
        }
        for _ in 0..MOST_TRIMS {
            let mut cmd = self.call(&self.scripts.trim_dead);
            cmd.arg(STEP);
            for queue in queues {
                cmd.key(self.keys.dead(queue)).arg(self.keys.job_prefix(queue));
            }
            let dropped: u64 = self.run(Lane::Other, &cmd).await?;
            if dropped < STEP {
                break;
            }
        }
        Ok(())
    }

    async fn dead_size(&self, queue: &Queue) -> Result<u64> {
        Ok(self.query(redis::cmd("LLEN").arg(self.keys.dead(queue))).await?)
    }
}
