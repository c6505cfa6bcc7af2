//! Lists of a namespace's queues, with their sizes. lmstfy's hash of queues has no order and thus no cursor, so an
//! ordered index is kept beside it. The first list creates it. From then on our servers add a new queue to both; names
//! that other programs added only to the hash are copied when a list begins. One task copies for all waiting callers,
//! and continues if they disconnect.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;

use crate::engine::redis::core::PartitionCore;
use crate::engine::{Estimated, QueueView};
use crate::error::{Error, Result};
use crate::name::{Namespace, Queue, QueueName};

/// Time that a list waits for the copy. A later list finds the names copied meanwhile.
const COPY_TIME: Duration = Duration::from_secs(5);
/// Number of names read at a time after invalid ones.
const SKIPPED: usize = 1000;

impl PartitionCore {
    /// Returns names of a namespace's queues in this partition, in order, and whether there are more: then there is at
    /// least one. Names that are not valid, which only other programs add, are skipped.
    pub async fn queue_names(
        self: &Arc<Self>,
        namespace: &Namespace,
        after: Option<&QueueName>,
        limit: usize,
    ) -> Result<(Vec<QueueName>, bool)> {
        if after.is_none() {
            let copied = timeout(COPY_TIME, self.wait_for_names(namespace)).await;
            copied.unwrap_or(Err(Error::Overloaded))?;
        }
        let (mut from, mut most) = (b"-".to_vec(), limit + 1);
        if let Some(after) = after {
            from = [b"(", after.as_str().as_bytes()].concat();
        }
        loop {
            let mut cmd = redis::cmd("ZRANGEBYLEX");
            cmd.arg(self.keys.index_of(namespace)).arg(&from).arg("+").arg("LIMIT").arg(0).arg(most);
            let found: Vec<Vec<u8>> = self.query(&cmd).await?;
            let mut names: Vec<QueueName> = found.iter().filter_map(|name| parse(name)).collect();
            let more = found.len() == most || names.len() > limit;
            match found.last() {
                Some(last) if more && names.is_empty() => from = [b"(", &last[..]].concat(),
                _ => {
                    names.truncate(limit);
                    return Ok((names, more));
                }
            }
            most = most.max(SKIPPED);
        }
    }

    /// Waits until the index has all names that the hash had at the time of the call.
    async fn wait_for_names(self: &Arc<Self>, namespace: &Namespace) -> Result<()> {
        let (hash, index) = (self.keys.queues_of(namespace), self.keys.index_of(namespace));
        let mut sizes = redis::pipe();
        sizes.cmd("HLEN").arg(&hash).cmd("ZCARD").arg(&index);
        // A copy that was already in flight may miss a name added before this call. The next copy does not.
        for _ in 0..2 {
            let (named, indexed): (u64, u64) = self.query_all(&sizes).await?;
            if indexed >= named {
                return Ok(());
            }
            let mut copy = self.copies.join(namespace, |end| {
                let (core, namespace) = (self.clone(), namespace.clone());
                self.tasks.spawn(async move { end.send_replace(Some(core.copy_names(&namespace).await)) });
            })?;
            copy.wait_for(Option::is_some).await.map_err(Error::away)?.clone().unwrap_or(Ok(()))?;
        }
        Ok(())
    }

    /// Copies names from the hash into the index, in steps.
    async fn copy_names(&self, namespace: &Namespace) -> Result<()> {
        let _turn = self.copies.turn().await;
        let (hash, index) = (self.keys.queues_of(namespace), self.keys.index_of(namespace));
        let mut scan = Some(0);
        while let Some(from) = scan {
            self.is_open()?;
            let (next, fields) = self.scan_step(&hash, from).await?;
            if !fields.is_empty() {
                let mut add = redis::cmd("ZADD");
                add.arg(&index);
                for (name, _) in &fields {
                    add.arg(0).arg(name);
                }
                let _: u64 = self.query(&add).await?;
            }
            scan = (next > 0).then_some(next);
        }
        Ok(())
    }

    /// Returns the sizes of these queues, at least one, of a namespace in this partition. Queues that were destroyed are
    /// left out, and removed from the index.
    pub async fn views(&self, namespace: &Namespace, queues: Vec<Queue>) -> Result<Vec<QueueView>> {
        self.trim_dead(&queues).await?;
        let mut figures = redis::pipe();
        for queue in &queues {
            figures.cmd("LLEN").arg(self.keys.ready(queue)).cmd("LLEN").arg(self.keys.dead(queue));
            figures.cmd("HEXISTS").arg(self.keys.queues_of(namespace)).arg(queue.name.as_str());
        }
        let figures = self.sizes(&figures).await?;
        let (timers, estimated) = self.timers_of(&queues).await?;
        let estimated = Estimated { timers: estimated, age: false };
        let (mut views, mut gone) = (Vec::with_capacity(queues.len()), Vec::new());
        let all = queues.into_iter().zip(figures.chunks_exact(3)).zip(timers);
        for ((queue, figures), [delayed, running]) in all {
            if figures[2] == 0 {
                gone.push(queue.name);
                continue;
            }
            views.push(QueueView {
                ready: Some(figures[0]),
                delayed: Some(delayed),
                running: Some(running),
                dead: Some(figures[1]),
                oldest_ready_age: None,
                estimated,
                queue,
            });
        }
        // Their names were removed from the hash.
        if !gone.is_empty() {
            let mut forget = redis::cmd("ZREM");
            forget.arg(self.keys.index_of(namespace));
            for name in &gone {
                forget.arg(name.as_str());
            }
            let _: u64 = self.query(&forget).await?;
        }
        Ok(views)
    }
}

fn parse(name: &[u8]) -> Option<QueueName> {
    QueueName::parse_for_consume(std::str::from_utf8(name).ok()?).ok()
}
