//! Quotas. A namespace's queues lie in several partitions, so what it has is written down once, in the partition that its
//! name decides: room is taken there before a publish, and given back when jobs go. What a server that was killed in
//! between has not told, and what goes by its ttl while nobody pumps, is corrected: the queues' records are added up
//! again and again, and count if nothing has changed meanwhile. Where no namespace has a quota, nothing of this is done.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::super::core::{CompactCore, Lane};
use super::super::keys;
use super::super::partitions::Partition;
use super::super::steps::Usage;
use crate::engine::redis::connection::fault::{Fault, Outcome};
use crate::engine::redis::reply::over_quota;
use crate::engine::together;
use crate::engine::{Quota, Quotas};
use crate::error::Result;
use crate::name::{Namespace, Queue};

/// The least pause between two counts. It is ten times as long as the last one took, where that is longer.
const PAUSE: Duration = Duration::from_secs(5);
/// How many queues one step adds up.
const STEP: usize = 500;

impl CompactCore {
    /// Takes room for what is to be stored.
    pub async fn take_room(&self, namespace: &Namespace, room: Usage) -> Result<()> {
        match self.ledger::<u64>(namespace, "take", &room).await? {
            0 => Ok(()),
            used_up => Err(over_quota(used_up)),
        }
    }

    /// Gives room back. What is not told is corrected by the next count.
    pub async fn give_room(&self, namespace: &Namespace, room: Usage) {
        if room != [0; 3] {
            let _ = self.ledger::<u64>(namespace, "take", &room.map(|n| -n)).await;
        }
    }

    /// The same, of what went from a queue, if that is counted.
    pub async fn freed(&self, queue: &Queue, room: Usage) {
        if self.is_counted(&queue.namespace) {
            self.give_room(&queue.namespace, room).await;
        }
    }

    async fn ledger<T: redis::FromRedisValue>(
        &self,
        namespace: &Namespace,
        what: &str,
        of: &[i64],
    ) -> Outcome<T> {
        let partition = self.partitions.of_namespace(namespace);
        let mut cmd = self.call(&self.scripts.quota, partition);
        cmd.arg(namespace.as_str()).arg(what).arg(of);
        self.ask(partition, Lane::Other, &self.scripts.quota, cmd).await
    }

    /// Sets these quotas and no others, for all servers of this kind.
    pub async fn set_quotas(&self, quotas: &Quotas) -> Result<()> {
        let _one = self.setting_quotas.lock().await;
        // What is stored from now on is counted by this server.
        *self.quotas.write() = quotas.clone();
        let named = together::try_all(self.partitions.all().map(async |partition| {
            let key = keys::with_quota(self.partitions.base(partition));
            self.query::<Vec<String>>(partition, redis::cmd("SMEMBERS").arg(key)).await
        }));
        for name in named.await?.into_iter().flatten() {
            if let Ok(namespace) = Namespace::parse(&name)
                && !quotas.contains_key(&namespace)
            {
                self.ledger::<u64>(&namespace, "remove", &[]).await?;
            }
        }
        for (namespace, Quota { jobs, bytes, queues }) in quotas {
            let most = [*jobs, *bytes, *queues].map(|n| i64::try_from(n).unwrap_or(i64::MAX));
            let new: u64 = self.ledger(namespace, "set", &most).await?;
            if new == 1 {
                self.recount(namespace).await?;
            }
        }
        Ok(())
    }

    /// Adds up what a namespace has. It counts if nothing was stored or deleted meanwhile.
    async fn recount(&self, namespace: &Namespace) -> Outcome<bool> {
        let before: Vec<i64> = self.ledger(namespace, "read", &[]).await?;
        let [a, b, c] = before[..] else { return Ok(false) };
        let sums = together::try_all(self.partitions.all().map(|partition| self.sum(partition, namespace)));
        let sum =
            sums.await?.into_iter().fold([0; 3], |sum: Usage, of| std::array::from_fn(|n| sum[n] + of[n]));
        if sum == [a, b, c] {
            return Ok(true);
        }
        let counted: u64 = self.ledger(namespace, "correct", &[sum[0], sum[1], sum[2], a, b, c]).await?;
        Ok(counted == 1)
    }

    /// What a namespace has in a partition.
    async fn sum(&self, partition: Partition, namespace: &Namespace) -> Outcome<Usage> {
        let (mut sum, mut after): (Usage, String) = ([0; 3], String::new());
        loop {
            let mut cmd = self.call(&self.scripts.sum, partition);
            cmd.arg(namespace.as_str()).arg(&after).arg(STEP);
            let (last, jobs, bytes, queues): (String, i64, i64, i64) =
                self.ask(partition, Lane::Other, &self.scripts.sum, cmd).await?;
            sum = [sum[0] + jobs, sum[1] + bytes, sum[2] + queues];
            if last.is_empty() {
                return Ok(sum);
            }
            if last <= after {
                return Err(Fault::unreadable("sum"));
            }
            after = last;
        }
    }
}

/// The task that counts.
pub async fn run(core: Arc<CompactCore>) {
    let count = async {
        loop {
            let namespaces: Vec<Namespace> = core.quotas.read().keys().cloned().collect();
            let began = Instant::now();
            for namespace in &namespaces {
                // A Redis that is away is told of by all others that use it.
                let _ = core.recount(namespace).await;
            }
            sleep(PAUSE.max(began.elapsed() * 10)).await;
        }
    };
    core.tasks.stopping().run_until_cancelled(count).await;
}
