//! Pauses: written into every partition, so that each consume sees them in its own. One of them decides how many queues of
//! a namespace may be paused.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use super::super::core::{CompactCore, Lane};
use super::super::keys;
use super::super::partitions::Partition;
use crate::clock::Millis;
use crate::engine::redis::cluster::ask;
use crate::engine::redis::connection::fault::Outcome;
use crate::engine::redis::layout::times::micros;
use crate::engine::together;
use crate::engine::{MAX_PAUSED, Pause, Pausing};
use crate::error::{Error, Result};
use crate::name::{Namespace, Queue, QueueName};

/// In place of a time.
const RESUMED: i64 = -1;
const TOO_MANY: i64 = -2;

impl CompactCore {
    /// Pauses a queue, or ends its pause; its earlier pause is forgotten.
    pub async fn pause(self: &Arc<Self>, queue: &Queue, pausing: Pausing) -> Result<Option<Pause>> {
        let first = self.partitions.of_namespace(&queue.namespace);
        let (till, time) = match pausing {
            Pausing::For(time) => (0, micros(time).to_string()),
            Pausing::UntilResumed => (0, String::new()),
            Pausing::Resumed => (RESUMED, String::new()),
        };
        let most = MAX_PAUSED.to_string();
        let decide = |partition| self.pause_in(partition, queue, till, &time, &most);
        let till = match decide(first).await {
            Ok(till) => till,
            Err(fault) => {
                // It is paused where it can be; who is told of the fault repeats it.
                let next = self.partitions.all().find(|of| self.try_link(*of, Lane::Other).is_ok());
                if let Some(next) = next.filter(|next| *next != first)
                    && let Ok(till @ RESUMED..) = decide(next).await
                {
                    let _ = self.pause_others(queue, till, &[first, next]).await;
                }
                return Err(fault.into());
            }
        };
        if till == TOO_MANY {
            return Err(Error::TooManyPaused(MAX_PAUSED));
        }
        self.pause_others(queue, till, &[first]).await?;
        let pause = Millis::try_from(till).ok().map(|till| Pause { until: (till > 0).then_some(till) });
        match pause {
            None => self.look_again(queue),
            Some(Pause { until: Some(until) }) => self.notify_at(queue, until),
            Some(Pause { until: None }) => {}
        }
        Ok(pause)
    }

    /// As one partition has decided, in all but these.
    async fn pause_others(&self, queue: &Queue, till: i64, but: &[Partition]) -> Outcome<()> {
        let others = self.partitions.all().filter(|partition| !but.contains(partition));
        let each = others.map(|partition| self.pause_in(partition, queue, till, "", ""));
        together::try_all(each).await.map(drop)
    }

    async fn pause_in(
        &self,
        partition: Partition,
        queue: &Queue,
        till: i64,
        time: &str,
        most: &str,
    ) -> Outcome<i64> {
        let mut cmd = self.call(&self.scripts.pause, partition);
        cmd.arg(keys::name(queue)).arg(till).arg(time).arg(most);
        let sent = Instant::now();
        let (now, till): (u64, i64) = self.ask(partition, Lane::Other, &self.scripts.pause, cmd).await?;
        self.learn(partition, sent, now);
        Ok(till)
    }

    /// Every queue that is paused now. Each partition knows all of them; each namespace's is asked.
    pub async fn pauses(&self) -> Result<BTreeMap<Queue, Pause>> {
        let now = self.now();
        let mut all = BTreeMap::new();
        // A namespace's own partition has them first.
        let each = together::try_all(self.partitions.all().map(async |partition| {
            let base = self.partitions.base(partition);
            let names: Vec<String> =
                self.query(partition, redis::cmd("SMEMBERS").arg(keys::with_pauses(base))).await?;
            let mut found = Vec::new();
            for namespace in names.iter().filter_map(|name| Namespace::parse(name).ok()) {
                if self.partitions.of_namespace(&namespace) != partition {
                    continue;
                }
                found.extend(self.scan_pauses(partition, &namespace).await?);
            }
            Outcome::Ok(found)
        }));
        for (queue, pause) in each.await?.into_iter().flatten().filter(|(_, pause)| pause.lasts(now)) {
            all.insert(queue, pause);
        }
        Ok(all)
    }

    /// The paused queues of a namespace.
    pub async fn pauses_of(&self, namespace: &Namespace) -> Outcome<BTreeMap<Queue, Pause>> {
        let (partition, now) = (self.partitions.of_namespace(namespace), self.now());
        let all = self.scan_pauses(partition, namespace).await?;
        Ok(all.into_iter().filter(|(_, pause)| pause.lasts(now)).collect())
    }

    async fn scan_pauses(&self, partition: Partition, namespace: &Namespace) -> Outcome<Vec<(Queue, Pause)>> {
        let key = keys::pauses(self.partitions.base(partition), namespace.as_str());
        ask!(self.attempts(partition, Lane::Other), |link| async {
            let mut found = Vec::new();
            let each = |name: Vec<u8>, until: Vec<u8>| found.extend(read_pause(namespace, &name, &until));
            link.shared.scan(&key, each).await?;
            Ok(found)
        })
    }
}

fn read_pause(namespace: &Namespace, name: &[u8], until: &[u8]) -> Option<(Queue, Pause)> {
    let name = QueueName::parse_for_consume(std::str::from_utf8(name).ok()?).ok()?;
    let until: Millis = std::str::from_utf8(until).ok()?.parse().ok()?;
    Some((Queue { namespace: namespace.clone(), name }, Pause { until: (until > 0).then_some(until) }))
}
