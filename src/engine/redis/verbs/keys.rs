//! Calls by the keys of earlier publishes: job keys, to cancel a job, and idempotency keys, to repeat a publish.

use super::publish::read_placed;
use crate::engine::redis::core::PartitionCore;
use crate::engine::redis::layout::keys;
use crate::engine::redis::link::Lane;
use crate::engine::redis::timer_counts::Timers;
use crate::engine::{Once, Published};
use crate::error::{Error, Result};
use crate::name::{JobKey, Queue};

impl PartitionCore {
    /// Returns the recorded result of a publish with this idempotency key, if any.
    pub async fn recall(&self, queue: &Queue, once: &Once) -> Result<Option<Published>> {
        let record = self.keys.once(queue, &once.key);
        let done: Option<Vec<u8>> = self.query(redis::cmd("GET").arg(record)).await?;
        let Some(done) = done else { return Ok(None) };
        if self.common.wait_replicas > 0 {
            // The call without jobs waits until the replicas have all earlier writes.
            let _: u64 = self.run(Lane::Other, &self.forget(std::iter::empty())).await?;
        }
        let Some(lines) = done.strip_prefix(&once.fingerprint) else { return Ok(Some(Published::Mismatch)) };
        let placed = std::str::from_utf8(lines).ok().and_then(read_placed);
        let placed =
            placed.ok_or_else(|| Error::corrupt("the record of an idempotent publish is unreadable"))?;
        Ok(Some(Published::Replay(placed.into_iter().map(|(placed, _)| placed).collect())))
    }

    /// Deletes the job that holds this key.
    pub async fn cancel_key(&self, queue: &Queue, key: &JobKey) -> Result<bool> {
        let mut cmd = self.call(&self.scripts.cancel_key);
        cmd.key(&self.keys.timer_set).key(self.keys.job_key(queue, key));
        cmd.arg(keys::group(queue)).arg(keys::member_prefix(queue));
        loop {
            match self.run::<i64>(Lane::Other, &cmd).await? {
                -1 => self.finish_set_aside(queue).await?,
                cancelled => {
                    let (delayed, running) = (-i64::from(cancelled == 2), -i64::from(cancelled == 3));
                    self.timer_counts.add(queue, Timers { delayed, running });
                    return Ok(cancelled > 0);
                }
            }
        }
    }
}
