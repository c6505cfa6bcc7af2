//! Queues that are no longer spread by configuration, while partitions other than their home still have jobs of them.
//! Each partition lists its known queues. These lists are read at start and once a minute. A partition without jobs of
//! such a queue removes the queue from its list.

use std::sync::Arc;
use std::time::Duration;

use ahash::{HashMap, HashSet};
use tokio::time::sleep;

use super::Router;
use crate::engine::redis::core::PartitionCore;
use crate::engine::together;
use crate::error::Result;
use crate::name::Queue;

/// Interval between reads of the lists.
const PERIOD: Duration = Duration::from_secs(60);

impl Router {
    /// Updates the scattered queues. Queues known to be scattered stay so while a partition cannot be read.
    pub async fn look_for_scattered(&self) {
        let lists = together::all(self.parts.iter().map(|part| part.queues())).await;
        let (mut elsewhere, mut complete): (HashMap<Queue, Vec<u16>>, bool) = (HashMap::default(), true);
        for (part, queues) in self.parts.iter().zip(lists) {
            complete &= queues.is_ok();
            for queue in queues.unwrap_or_default() {
                if self.partitions.home(&queue) != part.partition && !self.spreading.is_spread(&queue) {
                    elsewhere.entry(queue).or_default().push(part.partition);
                }
            }
        }
        let mut scattered = if complete { HashSet::default() } else { self.spreading.scattered() };
        for (queue, parts) in elsewhere {
            let mut has_jobs = false;
            for partition in parts {
                // On an error the partition may have jobs.
                has_jobs |= self.part(partition).forget_if_empty(&queue).await.map_or(true, |empty| !empty);
            }
            if has_jobs {
                scattered.insert(queue);
            } else if complete {
                scattered.remove(&queue);
            }
        }
        for queue in self.spreading.set_scattered(scattered) {
            tracing::warn!(
                pool = &*self.pool.common.pool,
                %queue,
                "the queue is no longer in Spread, but partitions other than its home still have its jobs: all \
                 partitions are served until those are empty"
            );
            self.watch(&queue);
            self.pool.common.notifiers.notify(&queue);
        }
    }
}

impl PartitionCore {
    /// Removes a queue from the list of known queues if this partition has no jobs of it. Returns whether it has none.
    async fn forget_if_empty(&self, queue: &Queue) -> Result<bool> {
        let mut lists = redis::pipe();
        lists.cmd("EXISTS").arg(self.keys.ready(queue)).cmd("EXISTS").arg(self.keys.dead(queue));
        let (ready, dead): (bool, bool) = self.query_all(&lists).await?;
        if ready || dead || self.has_timers(queue).await? {
            return Ok(false);
        }
        let names = self.keys.queues_of(&queue.namespace);
        let _: u64 = self.query(&redis::Cmd::hdel(names, queue.name.as_str())).await?;
        Ok(true)
    }
}

/// Looks for scattered queues periodically until the engine closes.
pub async fn run(router: Arc<Router>) {
    let looks = async {
        loop {
            sleep(PERIOD).await;
            router.look_for_scattered().await;
        }
    };
    router.pool.tasks.stopping().run_until_cancelled(looks).await;
}
