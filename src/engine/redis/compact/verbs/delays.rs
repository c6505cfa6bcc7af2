//! What falls due when: timers and far buckets, counted by scripts a piece at a time. The Redis serves others in between.
//! Timers first: a bucket that becomes near meanwhile is missed, and none counts twice. Changes nothing.

use tokio::time::{Instant, sleep};

use super::super::core::{CompactCore, Lane};
use super::super::partitions::Partition;
use crate::clock::Millis;
use crate::engine::delays::{DelayCount, DelayedOf, Delays, Rests};
use crate::engine::redis::connection::fault::Outcome;
use crate::engine::redis::verbs::delays::add;
use crate::engine::together;
use crate::error::Result;

/// How many timers, and how many buckets of up to 120 jobs, one script call reads: a millisecond or two of the Redis.
const PIECE: usize = 1000;
const BUCKETS: usize = 8;

impl CompactCore {
    /// Counts the delayed jobs.
    pub async fn delays(&self, count: &DelayCount) -> Result<Delays> {
        let partitions = match &count.of {
            DelayedOf::Queue(queue) => self.parts_of(queue).await?,
            DelayedOf::All | DelayedOf::Namespace(_) => self.partitions.all().collect(),
        };
        let each =
            together::try_all(partitions.into_iter().map(|partition| self.delays_of(partition, count)))
                .await?;
        let mut all = Delays::default();
        each.into_iter().for_each(|of| all.merge(of, count.most));
        Ok(all)
    }

    async fn delays_of(&self, partition: Partition, count: &DelayCount) -> Outcome<Delays> {
        let mut delays = None;
        self.count_near(partition, count, &mut delays).await?;
        self.count_far(partition, count, &mut delays).await?;
        Ok(delays.unwrap_or_default())
    }

    async fn count_near(
        &self,
        partition: Partition,
        count: &DelayCount,
        delays: &mut Option<Delays>,
    ) -> Outcome<()> {
        let (mut from, mut read, mut rests) = (String::new(), 0_u64, Rests::default());
        loop {
            let began = Instant::now();
            let mut cmd = self.call(&self.scripts.count_near, partition);
            cmd.arg(filter(&count.of)).arg(count.step).arg(&from).arg(read).arg(PIECE);
            let (now, next, next_read, told): (Millis, String, u64, Vec<i64>) =
                self.ask(partition, Lane::Other, &self.scripts.count_near, cmd).await?;
            add(delays.get_or_insert_with(|| Delays::new(now / 1000)), &told, count);
            if next.is_empty() {
                return Ok(());
            }
            (from, read) = (next, next_read);
            sleep(rests.after(began.elapsed())).await;
        }
    }

    async fn count_far(
        &self,
        partition: Partition,
        count: &DelayCount,
        delays: &mut Option<Delays>,
    ) -> Outcome<()> {
        let (mut from, mut behind, mut rests) = (String::new(), Vec::new(), Rests::default());
        loop {
            let began = Instant::now();
            let mut cmd = self.call(&self.scripts.count_far, partition);
            cmd.arg(filter(&count.of)).arg(count.step).arg(&from).arg(&behind[..]).arg(BUCKETS);
            let (now, next, bucket, told): (Millis, String, Vec<u8>, Vec<i64>) =
                self.ask(partition, Lane::Other, &self.scripts.count_far, cmd).await?;
            add(delays.get_or_insert_with(|| Delays::new(now / 1000)), &told, count);
            if next.is_empty() {
                return Ok(());
            }
            (from, behind) = (next, bucket);
            sleep(rests.after(began.elapsed())).await;
        }
    }
}

/// Whose jobs, as the scripts take it.
fn filter(of: &DelayedOf) -> String {
    match of {
        DelayedOf::All => String::new(),
        DelayedOf::Namespace(namespace) => format!("{namespace}/"),
        DelayedOf::Queue(queue) => format!("{}/{}", queue.namespace, queue.name),
    }
}
