//! Whole queues at once: dropping what is ready, respawning and deleting what is dead. In bounded steps, and
//! never more than was there at the start.

use std::sync::Arc;
use std::time::Duration;

use super::Shared;
use super::layout::keys;
use super::publish::ttl_millis;
use crate::error::{Error, Result};
use crate::name::Queue;

/// How many jobs one step looks at.
const STEP: u64 = 250;
/// How many queues' leftovers one look finishes at most.
const MOST_UNFINISHED: usize = 100;

impl Shared {
    /// Drops what is ready now. In a task, so that a caller that leaves does not leave half of the steps undone.
    pub async fn destroy(self: &Arc<Shared>, queue: &Queue) -> Result<()> {
        let (shared, queue) = (self.clone(), queue.clone());
        let task = self.tasks.spawn(async move {
            shared.drop_list(&queue, true).await?;
            shared.finish_dropped().await;
            Ok(())
        });
        task.await.map_err(Error::away)?
    }

    /// Deletes a list that is set aside; with `ready`, what is ready goes the same way.
    async fn drop_list(&self, queue: &Queue, ready: bool) -> Result<()> {
        let script = &self.scripts.destroy;
        let mut moved = !ready;
        loop {
            let mut cmd = script.call(3);
            cmd.arg(keys::ready(queue)).arg(keys::set_aside(queue)).arg(keys::DROPPED);
            cmd.arg(keys::group(queue)).arg(keys::job_prefix(queue)).arg(u8::from(!moved));
            let (now, left): (u8, u64) = self.links.run(script, &cmd).await?;
            moved |= now == 1;
            if moved && left == 0 {
                return Ok(());
            }
        }
    }

    /// Finishes lists that servers set aside before they were killed. Each is of one destroy, so this ends. What
    /// fails is left to the next one who looks.
    pub async fn finish_dropped(&self) {
        let unfinished = async {
            let mut look = redis::cmd("SRANDMEMBER");
            look.arg(keys::DROPPED).arg(MOST_UNFINISHED);
            let groups: Vec<Vec<u8>> = self.links.ask(&look).await?;
            for queue in groups.iter().filter_map(|group| keys::queue_of_group(group)) {
                self.drop_list(&queue, false).await?;
            }
            Ok::<(), Error>(())
        };
        if let Err(e) = unfinished.await {
            tracing::debug!(pool = &*self.pool, "dropped queues wait to be finished: {e}");
        }
    }

    /// Makes the oldest dead jobs ready again; ids whose job is gone are dropped and not counted.
    pub async fn respawn(&self, queue: &Queue, limit: u64, ttl: Option<Duration>) -> Result<u64> {
        let script = &self.scripts.respawn;
        let (mut unseen, mut done) = (self.dead_size(queue).await?, 0);
        while unseen > 0 && done < limit {
            let mut cmd = script.call(2);
            cmd.arg(keys::dead(queue)).arg(keys::ready(queue)).arg(keys::job_prefix(queue));
            cmd.arg(STEP.min(unseen)).arg(STEP.min(limit - done)).arg(ttl.map_or(0, ttl_millis));
            let (seen, respawned): (u64, u64) = self.links.run(script, &cmd).await?;
            if respawned > 0 {
                self.notifiers.notify(queue);
            }
            done += respawned;
            if seen == 0 {
                break;
            }
            unseen = unseen.saturating_sub(seen);
        }
        Ok(done)
    }

    /// Deletes the oldest dead jobs; ids whose job is gone are dropped and not counted.
    pub async fn delete_dead(&self, queue: &Queue, limit: u64) -> Result<u64> {
        let script = &self.scripts.delete_dead;
        let (mut unseen, mut done) = (self.dead_size(queue).await?, 0);
        while unseen > 0 && done < limit {
            let mut cmd = script.call(1);
            cmd.arg(keys::dead(queue)).arg(keys::job_prefix(queue)).arg(STEP.min(unseen).min(limit - done));
            let (taken, deleted): (u64, u64) = self.links.run(script, &cmd).await?;
            done += deleted;
            if taken == 0 {
                break;
            }
            unseen = unseen.saturating_sub(taken);
        }
        Ok(done)
    }

    async fn dead_size(&self, queue: &Queue) -> Result<u64> {
        Ok(self.links.ask(redis::cmd("LLEN").arg(keys::dead(queue))).await?)
    }
}
