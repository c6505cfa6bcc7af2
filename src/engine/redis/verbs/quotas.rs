//! Quotas. While a namespace of the pool has a quota, the scripts that store and delete jobs update its usage in the
//! same step; without quotas, variants of the scripts without this code run (lua/quotas.lua). The scripts do not see
//! expiry and the writes of lmstfy's servers. So one server at a time recounts all keys, in parts, and corrects the
//! usage.
//!
//! During a recount other calls store and delete jobs. A change to a key that was already scanned must be added to the
//! result; a change to a key that is yet to be scanned must not. Keys are scanned in random order, so each change is
//! weighted by the fraction of keys scanned before it.

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

/// Approximate number of keys scanned per step: these take Redis some hundred microseconds.
const PART: usize = 500;
/// Ratio of the rest after a part to the time of the part, so that a recount uses less than a tenth of Redis's time,
/// while [`MOST_REST`] does not limit the rest.
const REST: u32 = 10;
const LEAST_REST: Duration = Duration::from_millis(1);
const MOST_REST: Duration = Duration::from_millis(200);
/// Minimum pause between two recounts. The pause is also at least three times the duration of the previous recount.
const PAUSE: Duration = Duration::from_secs(5);
/// Minimum pause after a recount that was requested by a new quota.
const SOON: Duration = Duration::from_secs(1);
/// Lease of the server that counts, renewed with each part.
const TURN: Duration = Duration::from_secs(15);
/// Time that a new quota waits for the first count. It is enough for a small store.
const PATIENCE: Duration = Duration::from_millis(800);
/// Like `PATIENCE`, in a cluster, where the partitions of a node are counted one after the other.
const PATIENCE_IN_CLUSTER: Duration = Duration::from_secs(8);
/// Maximum namespaces updated per script call.
pub const CHUNK: usize = 250;

/// Usage: jobs and bytes.
pub type Used = [i64; 2];

impl PartitionCore {
    /// Replaces all quotas, for all servers of this kind. `knows_queues`: whether scripts also refuse new queues; a
    /// partition of a cluster does not know all queues.
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
        // Before the quotas are stored, so that every later change is counted.
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
        let mut done = self.quotas.done.subscribe();
        if new > 0 {
            // Before the notification, so that one count is enough.
            self.quotas.asked.send_modify(|asked| *asked += 1);
        }
        let asked = *self.quotas.asked.borrow();
        // This server may hold the lease even if another server has set the quota.
        if new > 0 || before != counted {
            self.quotas.changed.notify_one();
        }
        if new > 0 {
            // A large store takes longer, and another server may hold the lease.
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

    /// Stores the usage of these namespaces in the other partitions.
    pub async fn set_elsewhere(&self, namespaces: impl Iterator<Item = (&Namespace, Used)>) -> Result<()> {
        let mut call = self.call(&self.scripts.sampled);
        call.key(&self.keys.used);
        for (name, [jobs, bytes]) in namespaces {
            call.arg(name.as_str()).arg(format!("{} {}", jobs.max(0), bytes.max(0)));
        }
        Ok(self.run::<u64>(Lane::Other, &call).await.map(drop)?)
    }

    /// Returns the namespaces with a stored quota.
    async fn namespaces_with_quota(&self) -> Outcome<Vec<String>> {
        let mut names = Vec::new();
        let each = |field, _| names.extend(String::from_utf8(field).ok().filter(|name| !name.contains('/')));
        self.scan(Lane::Other, &self.keys.used, each).await?;
        Ok(names)
    }

    /// Recounts all keys for at most [`CHUNK`] namespaces, and corrects their usage. Returns `false` if another server
    /// holds the lease.
    async fn recount(&self, namespaces: &[Namespace]) -> Outcome<bool> {
        let (mut cursor, mut counted) = (0_u64, 0.0);
        // Per namespace: the estimated usage, and the last recorded usage.
        let mut all: Vec<([f64; 2], Option<Used>)> = vec![([0.0; 2], None); namespaces.len()];
        loop {
            let began = Instant::now();
            let mut call = self.call(&self.scripts.recount);
            call.key(&self.keys.used).key(&self.keys.used_turn).key(&self.keys.buckets);
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
            // SCAN increments its cursor from the highest bit.
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

/// Recounts periodically until the engine closes.
pub async fn run(core: Arc<PartitionCore>) {
    let count = async {
        let mut pause = Duration::MAX;
        loop {
            // Without quotas there is nothing to count.
            let woken = timeout(pause, core.quotas.changed.notified()).await.is_ok();
            let (namespaces, asked) = (core.quotas.namespaces.lock().clone(), *core.quotas.asked.borrow());
            if namespaces.is_empty() {
                core.quotas.done.send_replace(asked);
                pause = Duration::MAX;
                continue;
            }
            // Partitions of one node are counted one after the other.
            let _one = core.counting.acquire().await;
            let began = Instant::now();
            let mut all = true;
            for chunk in namespaces.chunks(CHUNK) {
                // Other calls log an outage.
                all &= matches!(core.recount(chunk).await, Ok(true));
            }
            if all {
                core.quotas.done.send_replace(asked);
            }
            // Other servers learn of a first quota a moment later, and only then start counting their changes.
            pause = if woken { SOON } else { PAUSE }.max(began.elapsed() * 3);
        }
    };
    core.tasks.stopping().run_until_cancelled(count).await;
}
