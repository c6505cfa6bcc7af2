//! Destroy: deletes a queue's ready jobs. The list is set aside (renamed) in one step, and then deleted in bounded
//! steps. The pump of any server finishes an interrupted destroy, and so does a call about a key whose job may be in
//! such a list.

use std::sync::Arc;

use crate::engine::Listing;
use crate::engine::redis::core::PartitionCore;
use crate::engine::redis::layout::keys;
use crate::engine::redis::link::Lane;
use crate::error::{Error, Result};
use crate::name::Queue;

/// Maximum interrupted destroys finished per destroy.
const MAX_UNFINISHED: usize = 100;

impl PartitionCore {
    /// Deletes the jobs that are ready now, and then the name if requested. Runs in a task, so that all steps are done
    /// even if the caller disconnects.
    pub async fn destroy(self: &Arc<PartitionCore>, queue: &Queue, listing: Listing) -> Result<()> {
        let (core, queue) = (self.clone(), queue.clone());
        let task = self.tasks.spawn(async move {
            core.drop_list(&queue, true).await?;
            core.finish_dropped().await;
            match listing {
                Listing::Keep => Ok(()),
                Listing::Delete => core.delete_name(&queue).await,
            }
        });
        task.await.map_err(Error::away)?
    }

    /// Deletes a list that is set aside; with `ready`, first sets the ready list aside.
    async fn drop_list(&self, queue: &Queue, ready: bool) -> Result<()> {
        let script = &self.scripts.destroy;
        let mut moved = !ready;
        loop {
            let mut cmd = self.call(script);
            cmd.key(self.keys.ready(queue)).key(self.keys.set_aside(queue)).key(&self.keys.dropped);
            cmd.arg(keys::group(queue)).arg(self.keys.job_prefix(queue)).arg(u8::from(!moved));
            let (now, left): (u8, u64) = match self.run(Lane::Other, &cmd).await {
                // The jobs can no longer be delivered, and the pumps will delete them.
                Err(_) if ready && moved => return Ok(()),
                answer => answer?,
            };
            moved |= now == 1;
            if moved && left == 0 {
                return Ok(());
            }
        }
    }

    /// Deletes the name of a queue without ready and dead jobs. A server that has recently recorded the name does not
    /// record it again for a minute.
    async fn delete_name(&self, queue: &Queue) -> Result<()> {
        let (namespace, name) = (&queue.namespace, &queue.name);
        let mut cmd = self.call(&self.scripts.forget_queue);
        cmd.key(self.keys.queues_of(namespace)).key(self.keys.index_of(namespace)).key(&self.keys.namespaces);
        cmd.key(self.keys.ready(queue)).key(self.keys.dead(queue));
        cmd.arg(name.as_str()).arg(namespace.as_str());
        let _: u8 = self.run(Lane::Other, &cmd).await?;
        self.recorded_queues.remove(self.partition, queue);
        Ok(())
    }

    /// Starts a task that [finishes](PartitionCore::finish_dropped) interrupted destroys.
    pub fn spawn_finisher(self: &Arc<PartitionCore>) {
        let core = self.clone();
        self.tasks.spawn(async move {
            core.tasks.stopping().run_until_cancelled(core.finish_dropped()).await;
        });
    }

    /// Deletes the jobs of a queue that are set aside.
    pub async fn finish_set_aside(&self, queue: &Queue) -> Result<()> {
        self.drop_list(queue, false).await
    }

    /// Finishes destroys that were interrupted when a server was killed. Each list belongs to one destroy, so this
    /// ends. The next pump retries after a failure.
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
