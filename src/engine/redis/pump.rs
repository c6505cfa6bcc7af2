//! The pump: moves due jobs in batches, each under a millisecond of the Redis's time.

use std::time::Duration;

use super::Shared;
use super::layout::keys;
use crate::clock;
use crate::engine::Pumped;
use crate::error::Result;

/// How many go in one script call. Larger batches gain nothing and hold the Redis up.
const BATCH: usize = 200;
/// Nobody tells us of jobs that other servers stored, so look at least this often.
const MOST: Duration = Duration::from_secs(1);

impl Shared {
    /// Moves up to `limit` due jobs.
    pub async fn pump(&self, limit: usize) -> Result<Pumped> {
        let mut moved = 0;
        loop {
            let batch = BATCH.min(limit - moved);
            let mut cmd = self.scripts.pump.call(1);
            cmd.arg(keys::TIMER_SET).arg(batch.max(1));
            self.next_due.pump_begins();
            let sent = self.clock.mark();
            let (now, n, next, garbage, put_off, ready): (u64, usize, i64, u64, u64, Vec<Vec<u8>>) =
                self.links.run(&self.scripts.pump, &cmd).await?;
            self.clock.learn(sent, now);
            if garbage > 0 {
                tracing::warn!(pool = &*self.pool, garbage, "dropped timers that are not jobs");
            }
            if put_off > 0 {
                tracing::warn!(pool = &*self.pool, put_off, "put off jobs whose queue's key is not a list");
            }
            for queue in ready.iter().filter_map(|group| keys::queue_of_group(group)) {
                self.notifiers.notify(&queue);
            }
            moved += n;
            let next = u64::try_from(next).map_or(MOST, Duration::from_micros).min(MOST);
            self.next_due.pump_said(now + clock::micros(next));
            if n < batch || moved >= limit {
                return Ok(Pumped { moved, next });
            }
        }
    }
}
