//! Quotas in a cluster. In each partition scripts record the usage of namespaces with a quota. Every ten seconds each
//! server adds up the partitions' usage, and stores in each partition the usage of the others, so that its scripts
//! enforce the quota by that sample. Publishes that any partition may take are checked here, against the last sum plus
//! later publishes of this process. So a namespace may exceed its quota by the jobs published within ten seconds.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use super::Router;
use crate::engine::redis::cluster::map::Partition;
use crate::engine::redis::verbs::quotas::{CHUNK, Used};
use crate::engine::{Publication, Quota, Quotas, Usage, together};
use crate::error::Result;
use crate::name::{Namespace, Queue};

/// Interval between samples.
const PERIOD: Duration = Duration::from_secs(10);

impl Router {
    /// Replaces all quotas, for all servers of this kind.
    pub async fn set_quotas(&self, quotas: &Quotas) -> Result<BTreeMap<Namespace, Usage>> {
        if let Some(only) = self.only() {
            return only.set_quotas(quotas, true).await;
        }
        together::try_all(self.parts.iter().map(|part| part.set_quotas(quotas, false))).await?;
        {
            let mut samples = self.samples.lock();
            samples.retain(|namespace, _| quotas.contains_key(namespace));
            for (namespace, quota) in quotas {
                samples.entry(namespace.clone()).or_default().quota = *quota;
            }
        }
        self.sample().await?;
        let samples = self.samples.lock();
        let counted = samples.iter().filter(|(_, of)| of.quota.counts_jobs());
        Ok(counted.map(|(name, of)| (name.clone(), Usage { jobs: of.jobs, bytes: of.bytes })).collect())
    }

    /// Rejects a publication that creates more queues than its namespace's quota allows, and one that any partition may
    /// take if it exceeds the quota. Other publications are checked by their partition.
    pub async fn admit(&self, publication: &Publication) -> Result<()> {
        if self.samples.is_empty() {
            return Ok(());
        }
        let queues: BTreeSet<&Queue> = publication.jobs.iter().map(|of| &of.job.queue).collect();
        for queue in queues {
            if self.samples.bounds_queues(&queue.namespace) && !self.is_known(queue).await? {
                self.samples.admit_queue(&queue.namespace)?;
            }
        }
        if self.is_free(publication) { self.samples.admit(publication) } else { Ok(()) }
    }

    /// Whether jobs have been published to a queue before.
    async fn is_known(&self, queue: &Queue) -> Result<bool> {
        if self.parts_of(queue).iter().any(|part| part.recorded_queues.has(part.partition, queue)) {
            return Ok(true);
        }
        let parts: Vec<Partition> = self.parts_of(queue).iter().map(|part| part.partition).collect();
        let known = self.read_each::<bool>(&parts, true, |part| {
            redis::Cmd::hexists(part.keys.queues_of(&queue.namespace), queue.name.as_str())
        });
        for (_, known) in known.await {
            if known? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Adds up the usage of namespaces with a quota, and stores in each partition the usage of the others.
    async fn sample(&self) -> Result<()> {
        let all = self.samples.lock().iter().map(|(name, of)| (name.clone(), of.quota)).collect::<Vec<_>>();
        for chunk in all.chunks(CHUNK) {
            self.sample_jobs(chunk).await?;
        }
        for (namespace, _) in all.iter().filter(|(_, quota)| quota.queues > 0) {
            let queues = self.count_queues(namespace).await?;
            if let Some(of) = self.samples.lock().get_mut(namespace) {
                of.queues = queues;
            }
        }
        Ok(())
    }

    async fn sample_jobs(&self, namespaces: &[(Namespace, Quota)]) -> Result<()> {
        let parts: Vec<Partition> = self.partitions.all().collect();
        let used = self.read_each::<Vec<Option<i64>>>(&parts, true, |part| {
            let mut cmd = redis::cmd("HMGET");
            cmd.arg(&part.keys.used);
            for (name, _) in namespaces {
                cmd.arg(format!("{name}/jobs")).arg(format!("{name}/bytes"));
            }
            cmd
        });
        let mut of_parts: Vec<(Partition, Vec<Used>)> = Vec::with_capacity(parts.len());
        for (partition, used) in used.await {
            let used: Vec<i64> = used?.into_iter().map(|number| number.unwrap_or(0).max(0)).collect();
            of_parts.push((partition, used.as_chunks().0.to_vec()));
        }
        let mut sums: Vec<Used> = vec![[0; 2]; namespaces.len()];
        for used in of_parts.iter().map(|(_, used)| used) {
            for (sum, used) in sums.iter_mut().zip(used) {
                *sum = [sum[0] + used[0], sum[1] + used[1]];
            }
        }
        let told = of_parts.iter().map(|(partition, used)| {
            let others = sums.iter().zip(used).map(|(sum, own)| [sum[0] - own[0], sum[1] - own[1]]);
            self.part(*partition).set_elsewhere(namespaces.iter().map(|(name, _)| name).zip(others))
        });
        together::try_all(told).await?;
        let mut samples = self.samples.lock();
        for ((namespace, _), [jobs, bytes]) in namespaces.iter().zip(sums) {
            if let Some(of) = samples.get_mut(namespace) {
                (of.jobs, of.bytes) = (jobs.unsigned_abs(), bytes.unsigned_abs());
            }
        }
        Ok(())
    }

    /// Returns the number of queues of a namespace. Several partitions may know a spread queue.
    async fn count_queues(&self, namespace: &Namespace) -> Result<u64> {
        let parts: Vec<Partition> = self.partitions.all().collect();
        let names = self.read_each::<BTreeMap<Vec<u8>, Vec<u8>>>(&parts, true, |part| {
            redis::Cmd::hgetall(part.keys.queues_of(namespace))
        });
        let mut all = BTreeSet::new();
        for (_, names) in names.await {
            all.extend(names?.into_keys());
        }
        Ok(all.len() as u64)
    }
}

/// Takes samples periodically until the engine closes.
pub async fn run(router: Arc<Router>) {
    let samples = async {
        loop {
            sleep(PERIOD).await;
            if !router.samples.is_empty() {
                // After a failure the last sample stays in use.
                let _ = router.sample().await;
            }
        }
    };
    router.pool.tasks.stopping().run_until_cancelled(samples).await;
}
