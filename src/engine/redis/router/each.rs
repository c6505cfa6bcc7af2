//! Reads many partitions: one round trip per node, all nodes concurrently.

use std::sync::Arc;

use redis::{Cmd, FromRedisValue, RedisResult};

use super::Router;
use crate::engine::redis::cluster::map::Partition;
use crate::engine::redis::connection::fault::Outcome;
use crate::engine::redis::core::PartitionCore;
use crate::engine::redis::link::{Lane, Link};
use crate::engine::together;

impl Router {
    /// Returns a read of each of these partitions, ordered by partition. `waits`: whether to wait, as any call does,
    /// for a partition whose node is unavailable or whose slot migrates.
    pub async fn read_each<T: FromRedisValue>(
        &self,
        parts: &[Partition],
        waits: bool,
        ask: impl Fn(&PartitionCore) -> Cmd,
    ) -> Vec<(Partition, Outcome<T>)> {
        let mut by_link: Vec<(Arc<Link>, Vec<Partition>)> = Vec::new();
        let mut left: Vec<Partition> = Vec::new();
        for partition in parts {
            match self.try_link(*partition, Lane::Other) {
                Ok(link) => match by_link.iter_mut().find(|(known, _)| Arc::ptr_eq(known, &link)) {
                    Some((_, parts)) => parts.push(*partition),
                    None => by_link.push((link, vec![*partition])),
                },
                Err(_) => left.push(*partition),
            }
        }
        let asked = together::all(by_link.iter().map(async |(link, parts)| {
            let mut each = redis::pipe();
            parts.iter().for_each(|partition| _ = each.add_command(ask(self.part(*partition))));
            each.ignore_errors();
            let answers: Outcome<Vec<RedisResult<T>>> = link.shared.query_all(&each).await;
            answers
        }));
        let mut all = Vec::with_capacity(parts.len());
        for ((_, parts), answers) in by_link.iter().zip(asked.await) {
            match answers {
                Ok(answers) if answers.len() == parts.len() => {
                    for (partition, answer) in parts.iter().zip(answers) {
                        match answer {
                            Ok(answer) => all.push((*partition, Ok(answer))),
                            // The slot may have moved: a separate call follows the redirection.
                            Err(_) => left.push(*partition),
                        }
                    }
                }
                _ => left.extend(parts),
            }
        }
        let singly = left.into_iter().map(async |partition| {
            let part = self.part(partition);
            (partition, part.query_if(waits, &ask(part)).await)
        });
        all.extend(together::all(singly).await);
        all.sort_unstable_by_key(|(partition, _)| *partition);
        all
    }
}
