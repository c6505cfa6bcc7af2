//! Destroy: drops what is ready in a queue. The list is set aside in one move, and then deleted in bounded steps. Every
//! server's pump finishes what others have left, and so does who asks for a key that a job of such a list may have.

use std::sync::Arc;

use crate::engine::redis::core::PartitionCore;
use crate::engine::redis::layout::keys;
use crate::engine::redis::link::Lane;
use crate::error::{Error, Result};
use crate::name::Queue;

/// How many lists that were left behind one destroy finishes at most.
const MAX_UNFINISHED: usize = 100;

impl PartitionCore {
    /// Drops what is ready now. In a task, so that a caller that leaves does not leave half of the steps undone.
    pub async fn destroy(self: &Arc<PartitionCore>, queue: &Queue) -> Result<()> {
        let (core, queue) = (self.clone(), queue.clone());
        let task = self.tasks.spawn(async move {
            core.drop_list(&queue, true).await?;
            core.finish_dropped().await;
            Ok(())
        });
        task.await.map_err(Error::away)?
    }

    /// Deletes a list that is set aside; with `ready`, what is ready goes the same way.
    async fn drop_list(&self, queue: &Queue, ready: bool) -> Result<()> {
        let script = &self.scripts.destroy;
        let mut moved = !ready;
        loop {
            let mut cmd = self.call(script);
            cmd.key(self.keys.ready(queue)).key(self.keys.set_aside(queue)).key(&self.keys.dropped);
            cmd.arg(keys::group(queue)).arg(self.keys.job_prefix(queue)).arg(u8::from(!moved));
            let (now, left): (u8, u64) = match self.run(Lane::Other, &cmd).await {
                // What is set aside is nobody's any more, and pumps go on.
                Err(_) if ready && moved => return Ok(()),
                answer => answer?,
            };
            moved |= now == 1;
            if moved && left == 0 {
                return Ok(());
            }
        }
    }

    /// Forgets the name of a queue that has no ready and no dead jobs. Another server that has recorded the name lately
    /// does not record it again for a minute.
    pub async fn forget_queue(&self, queue: &Queue) -> Result<()> {
        let (namespace, name) = (&queue.namespace, &queue.name);
        let mut cmd = self.call(&self.scripts.forget_queue);
        cmd.key(self.keys.queues_of(namespace)).key(self.keys.index_of(namespace)).key(&self.keys.namespaces);
        cmd.key(self.keys.ready(queue)).key(self.keys.dead(queue));
        cmd.arg(name.as_str()).arg(namespace.as_str());
        let _: u8 = self.run(Lane::Other, &cmd).await?;
        self.recorded_queues.remove(self.partition, queue);
        Ok(())
    }

    /// Has a task [finish](PartitionCore::finish_dropped) what others have left.
    pub fn spawn_finisher(self: &Arc<PartitionCore>) {
        let core = self.clone();
        self.tasks.spawn(async move {
            core.tasks.stopping().run_until_cancelled(core.finish_dropped()).await;
        });
    }

    /// Deletes what is set aside of a queue.
    pub async fn finish_set_aside(&self, queue: &Queue) -> Result<()> {
        self.drop_list(queue, false).await
    }

    /// Finishes lists that servers set aside before they were killed. Each is of one destroy, so this ends. What
    /// fails is left to the next pump.
    pub async fn finish_dropped(&self) {
        let Ok(_one) = self.finishing.try_lock() else { return };
        let finish = async {
            let mut cmd = redis::cmd("SRANDMEMBER");
            cmd.arg(&self.keys.dropped).arg(MAX_UNFINISHED);
            let groups: Vec<Vec<u8>> = self.query(&cmd).await?;
            for queue in groups.iter().filter_map(|group| keys::queue_of_group(group)) {
                self.drop_list(&queue, false).await?;
            }
            Ok::<(), Error>(())
        };
        if let Err(e) = finish.await {
            tracing::debug!(
                pool = &*self.common.pool,
                "renamed lists are not deleted yet; the next pump retries: {e}"
            );
        }
    }
}
