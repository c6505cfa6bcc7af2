//! Quotas in a cluster. Each partition counts what its scripts store and delete of namespaces with a quota; every server adds
//! these figures up each ten seconds, and admits publishes by the last sum and by what it has published since. So a namespace
//! may exceed its quota by what all servers publish within ten seconds.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::sleep;

use super::Router;
use crate::engine::redis::cluster::map::Partition;
use crate::engine::redis::reply::over_quota;
use crate::engine::{Placing, Publication, Quota, Quotas, together};
use crate::error::Result;
use crate::name::{Namespace, Queue};

/// How old a sample may be.
const PERIOD: Duration = Duration::from_secs(10);

/// What namespaces with a quota have, as far as this process knows.
#[derive(Debug, Default)]
pub struct Samples(Mutex<BTreeMap<Namespace, Sample>>);

#[derive(Clone, Copy, Debug, Default)]
struct Sample {
    quota: Quota,
    jobs: u64,
    bytes: u64,
    queues: u64,
}

impl Samples {
    /// Refuses a publication for which the quota of a namespace leaves no room, and counts any other.
    fn admit(&self, publication: &Publication) -> Result<()> {
        let mut samples = self.0.lock();
        let mut needs: BTreeMap<&Namespace, (u64, u64)> = BTreeMap::new();
        for placing in &publication.jobs {
            let need = needs.entry(&placing.job.queue.namespace).or_default();
            (need.0, need.1) = (need.0 + 1, need.1 + placing.job.body.len() as u64);
        }
        for (namespace, (jobs, bytes)) in &needs {
            let Some(of) = samples.get(*namespace) else { continue };
            let is_full = |most: u64, has: u64, needs: u64| most > 0 && has + needs > most;
            if is_full(of.quota.jobs, of.jobs, *jobs) {
                return Err(over_quota(1));
            }
            if is_full(of.quota.bytes, of.bytes, *bytes) {
                return Err(over_quota(2));
            }
        }
        for (namespace, (jobs, bytes)) in needs {
            if let Some(of) = samples.get_mut(namespace) {
                (of.jobs, of.bytes) = (of.jobs + jobs, of.bytes + bytes);
            }
        }
        Ok(())
    }

    fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }

    /// Whether a namespace may have no more queues than it has.
    fn has_all_queues(&self, namespace: &Namespace) -> bool {
        self.0.lock().get(namespace).is_some_and(|of| of.quota.queues > 0 && of.queues >= of.quota.queues)
    }
}

impl Router {
    /// Sets these quotas and no others, for all servers of this kind.
    pub async fn set_quotas(&self, quotas: &Quotas) -> Result<()> {
        if let Some(only) = self.only() {
            return only.set_quotas(quotas, true).await;
        }
        // Partitions count, and refuse nothing.
        together::try_all(self.parts.iter().map(|part| part.set_quotas(quotas, false))).await?;
        {
            let mut samples = self.samples.0.lock();
            samples.retain(|namespace, _| quotas.contains_key(namespace));
            for (namespace, quota) in quotas {
                samples.entry(namespace.clone()).or_default().quota = *quota;
            }
        }
        self.sample().await
    }

    /// Refuses a publication for which the quota of a namespace leaves no room.
    pub async fn admit(&self, publication: &Publication) -> Result<()> {
        if self.samples.is_empty() {
            return Ok(());
        }
        for Placing { job, .. } in &publication.jobs {
            if self.samples.has_all_queues(&job.queue.namespace) && !self.is_known(&job.queue).await? {
                return Err(over_quota(3));
            }
        }
        self.samples.admit(publication)
    }

    /// Whether jobs were published to a queue before.
    async fn is_known(&self, queue: &Queue) -> Result<bool> {
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

    /// Adds up what namespaces with a quota have.
    async fn sample(&self) -> Result<()> {
        let namespaces: Vec<Namespace> = self.samples.0.lock().keys().cloned().collect();
        let parts: Vec<Partition> = self.partitions.all().collect();
        for namespace in namespaces {
            let used = self.read_each::<Vec<Option<i64>>>(&parts, true, |part| {
                let mut cmd = redis::cmd("HMGET");
                cmd.arg(&part.keys.used).arg(format!("{namespace}/jobs")).arg(format!("{namespace}/bytes"));
                cmd
            });
            let names =
                self.read_each::<u64>(&parts, true, |part| redis::Cmd::hlen(part.keys.queues_of(&namespace)));
            let (used, names) = tokio::join!(used, names);
            let (mut jobs, mut bytes, mut queues) = (0, 0, 0);
            for (_, used) in used {
                let used = used?;
                let field = |n: usize| used.get(n).copied().flatten().unwrap_or(0);
                (jobs, bytes) = (jobs + field(0), bytes + field(1));
            }
            for (_, of_part) in names {
                queues += of_part?;
            }
            if let Some(of) = self.samples.0.lock().get_mut(&namespace) {
                (of.jobs, of.bytes) = (jobs.max(0) as u64, bytes.max(0) as u64);
                of.queues = queues;
            }
        }
        Ok(())
    }
}

/// The task that samples.
pub async fn run(router: Arc<Router>) {
    let samples = async {
        loop {
            sleep(PERIOD).await;
            if !router.samples.is_empty() {
                // Without an answer the last sample stays.
                let _ = router.sample().await;
            }
        }
    };
    router.pool.tasks.stopping().run_until_cancelled(samples).await;
}
