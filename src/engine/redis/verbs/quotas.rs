//! Quotas. The scripts that store and delete jobs count them, in the same step, as long as a namespace of the pool has a
//! quota; where none has, they are other scripts, which know nothing of it (lua/quotas.lua). What no script of ours
//! does, they do not see: the end of a ttl, and what lmstfy's servers store and delete. So one server at a time counts
//! all keys again, in parts, and corrects the figures by what it has found.
//!
//! While a count goes on others store and delete. A change of a key that the count has passed must be added to what it
//! found; one of a key that it comes to must not. Keys lie in a random order: a change is added by the share of all
//! keys that was counted before it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

use crate::engine::redis::connection::fault::{Fault, Outcome};
use crate::engine::redis::core::PartitionCore;
use crate::engine::redis::link::Lane;
use crate::engine::{Quota, Quotas, Usage};
use crate::error::Result;
use crate::name::Namespace;

/// About how many keys one step looks at: some hundred microseconds of the Redis.
const PART: usize = 500;
/// How many times as long as a part took is rested after it, so that a count takes a tenth of the Redis at most.
const REST: u32 = 10;
const LEAST_REST: Duration = Duration::from_millis(1);
const MOST_REST: Duration = Duration::from_millis(200);
/// The least pause between two counts. It is three times as long as the last one took, where that is longer.
const PAUSE: Duration = Duration::from_secs(5);
/// The same after a count that a new quota has asked for.
const SOON: Duration = Duration::from_secs(1);
/// How long the turn of a server lasts that says nothing.
const TURN: Duration = Duration::from_secs(15);
/// How long a new quota waits for the count of what was there. A small store is counted by then.
const PATIENCE: Duration = Duration::from_millis(800);
/// The same in a cluster, whose partitions are counted one after the other.
const PATIENCE_IN_CLUSTER: Duration = Duration::from_secs(3);
/// How many namespaces one script call sets or corrects.
pub const CHUNK: usize = 250;

/// Jobs and bytes.
pub type Used = [i64; 2];

impl PartitionCore {
    /// Sets these quotas and no others, for all servers of this kind. Whether scripts refuse new queues too: a partition of
    /// a cluster does not know them all.
    pub async fn set_quotas(
        &self,
        quotas: &Quotas,
        knows_queues: bool,
    ) -> Result<BTreeMap<Namespace, Usage>> {
        let _one = self.quotas.setting.lock().await;
        let mut most: BTreeMap<String, String> = BTreeMap::new();
        for name in self.namespaces_with_quota().await? {
            most.insert(name, String::new());
        }
        for (name, quota) in quotas {
            let Quota { jobs, bytes, queues } = *quota;
            let queues = if knows_queues { queues } else { 0 };
            most.insert(name.to_string(), format!("{jobs} {bytes} {queues}"));
        }
        // Before it is written down, so that what is counted from now on is not done uncounted.
        self.scripts.count(!quotas.is_empty());
        let mut new = 0;
        for chunk in most.iter().collect::<Vec<_>>().chunks(CHUNK) {
            let mut call = self.call(&self.scripts.set_quotas);
            call.key(&self.keys.used);
            for (name, most) in chunk {
                call.arg(name).arg(most);
            }
            new += self.run::<u64>(Lane::Other, &call).await?;
        }
        let counted = quotas.iter().filter(|(_, quota)| quota.counts_jobs()).map(|(name, _)| name.clone());
        let counted: Vec<Namespace> = counted.collect();
        let before = std::mem::replace(&mut *self.quotas.namespaces.lock(), counted.clone());
        // It may be the turn of this server, although another one has set the quota.
        if before != counted {
            self.quotas.changed.notify_one();
        }
        if new > 0 {
            let mut done = self.quotas.done.subscribe();
            self.quotas.asked.send_modify(|asked| *asked += 1);
            let asked = *self.quotas.asked.borrow();
            self.quotas.changed.notify_one();
            // A large store takes longer, and another server may have its turn.
            let patience = if knows_queues { PATIENCE } else { PATIENCE_IN_CLUSTER };
            let _ = timeout(patience, done.wait_for(|done| *done >= asked)).await;
        }
        Ok(self.usage(&counted).await?)
    }

    /// Returns the usage of namespaces in this partition.
    async fn usage(&self, namespaces: &[Namespace]) -> Outcome<BTreeMap<Namespace, Usage>> {
        let mut all = BTreeMap::new();
        for chunk in namespaces.chunks(CHUNK) {
            let mut cmd = redis::cmd("HMGET");
            cmd.arg(&self.keys.used);
            for name in chunk {
                cmd.arg(format!("{name}/jobs")).arg(format!("{name}/bytes"));
            }
            let used: Vec<Option<i64>> = self.query(&cmd).await?;
            let used = used.into_iter().map(|number| number.unwrap_or(0).max(0).unsigned_abs());
            let used: Vec<u64> = used.collect();
            let usage = used.as_chunks().0.iter().map(|[jobs, bytes]| Usage { jobs: *jobs, bytes: *bytes });
            all.extend(chunk.iter().cloned().zip(usage));
        }
        Ok(all)
    }

    /// Says what other partitions have of these namespaces.
    pub async fn set_elsewhere(&self, namespaces: impl Iterator<Item = (&Namespace, Used)>) -> Result<()> {
        let mut call = self.call(&self.scripts.sampled);
        call.key(&self.keys.used);
        for (name, [jobs, bytes]) in namespaces {
            call.arg(name.as_str()).arg(format!("{} {}", jobs.max(0), bytes.max(0)));
        }
        Ok(self.run::<u64>(Lane::Other, &call).await.map(drop)?)
    }

    /// The namespaces that have a quota by what is written down.
    async fn namespaces_with_quota(&self) -> Outcome<Vec<String>> {
        let mut names = Vec::new();
        let each = |field, _| names.extend(String::from_utf8(field).ok().filter(|name| !name.contains('/')));
        self.scan(Lane::Other, &self.keys.used, each).await?;
        Ok(names)
    }

    /// Counts all keys once for [`CHUNK`] namespaces at most, and corrects what is written down. `false`: it is another
    /// server's turn.
    async fn recount(&self, namespaces: &[Namespace]) -> Outcome<bool> {
        let (mut cursor, mut counted) = (0_u64, 0.0);
        // Per namespace: what was found and is to be added to it, and what is written down.
        let mut all: Vec<([f64; 2], Option<Used>)> = vec![([0.0; 2], None); namespaces.len()];
        loop {
            let began = Instant::now();
            let mut call = self.call(&self.scripts.recount);
            call.key(&self.keys.used).key(&self.keys.used_turn);
            call.arg(&self.quotas.server).arg(TURN.as_millis() as u64);
            call.arg(cursor).arg(PART);
            for name in namespaces {
                call.arg(name.as_str());
            }
            let answer: Vec<i128> = self.run(Lane::Other, &call).await?;
            let Some((next, of_each)) = answer.split_first() else { return Ok(false) };
            let (of_each, []) = of_each.as_chunks::<4>() else { return Err(Fault::unreadable("recount")) };
            for ((estimate, last), of) in all.iter_mut().zip(of_each) {
                let [jobs, bytes, now_jobs, now_bytes] = of.map(|number| number as i64);
                let now = [now_jobs, now_bytes];
                for (i, found) in [jobs, bytes].into_iter().enumerate() {
                    let changed = last.map_or(0, |last| now[i] - last[i]);
                    estimate[i] += found as f64 + changed as f64 * counted;
                }
                *last = Some(now);
            }
            // SCAN counts its cursor up from the highest bit.
            cursor = u64::try_from(*next).map_err(|_| Fault::unreadable("recount"))?;
            counted = cursor.reverse_bits() as f64 / 2_f64.powi(64);
            if cursor == 0 {
                break;
            }
            sleep((began.elapsed() * REST).clamp(LEAST_REST, MOST_REST)).await;
        }
        let mut call = self.call(&self.scripts.recounted);
        call.key(&self.keys.used).key(&self.keys.used_turn).arg(&self.quotas.server);
        for (name, (estimate, last)) in namespaces.iter().zip(all) {
            call.arg(name.as_str());
            for (estimate, last) in estimate.iter().zip(last.unwrap_or_default()) {
                call.arg(estimate.round() as i64 - last);
            }
        }
        self.run(Lane::Other, &call).await
    }
}

/// The task that counts.
pub async fn run(core: Arc<PartitionCore>) {
    let count = async {
        let mut pause = Duration::MAX;
        loop {
            // Without quotas nobody counts, and nothing is asked.
            let woken = timeout(pause, core.quotas.changed.notified()).await.is_ok();
            let (namespaces, asked) = (core.quotas.namespaces.lock().clone(), *core.quotas.asked.borrow());
            if namespaces.is_empty() {
                core.quotas.done.send_replace(asked);
                pause = Duration::MAX;
                continue;
            }
            // Partitions of one node share its time.
            let _one = core.counting.acquire().await;
            let began = Instant::now();
            let mut all = true;
            for chunk in namespaces.chunks(CHUNK) {
                // A Redis that is away is told of by all others that use it.
                all &= matches!(core.recount(chunk).await, Ok(true));
            }
            if all {
                core.quotas.done.send_replace(asked);
            }
            // Other servers hear of a first quota a moment later, and count from then on only.
            pause = if woken { SOON } else { PAUSE }.max(began.elapsed() * 3);
        }
    };
    core.tasks.stopping().run_until_cancelled(count).await;
}
