//! Usage of namespaces with a quota in all partitions of a cluster: the last sample plus this process's later
//! publishes. Uses no connection.

use std::collections::BTreeMap;

use parking_lot::{Mutex, MutexGuard};

use crate::engine::redis::reply::over_quota;
use crate::engine::{Publication, Quota};
use crate::error::Result;
use crate::name::Namespace;

/// Known usage of namespaces with a quota.
#[derive(Debug, Default)]
pub struct Samples(Mutex<BTreeMap<Namespace, Sample>>);

#[derive(Clone, Copy, Debug, Default)]
pub struct Sample {
    pub quota: Quota,
    pub jobs: u64,
    pub bytes: u64,
    pub queues: u64,
}

impl Samples {
    pub fn lock(&self) -> MutexGuard<'_, BTreeMap<Namespace, Sample>> {
        self.0.lock()
    }

    /// Refuses a publish that would exceed the quota of a namespace, and counts any other.
    pub fn admit(&self, publication: &Publication) -> Result<()> {
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

    /// Whether no namespace has a quota.
    pub fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }

    /// Whether the queues of a namespace are bounded.
    pub fn bounds_queues(&self, namespace: &Namespace) -> bool {
        self.0.lock().get(namespace).is_some_and(|of| of.quota.queues > 0)
    }

    /// Reserves quota for a new queue.
    pub fn admit_queue(&self, namespace: &Namespace) -> Result<()> {
        let mut samples = self.0.lock();
        let Some(of) = samples.get_mut(namespace) else { return Ok(()) };
        if of.quota.queues > 0 && of.queues >= of.quota.queues {
            return Err(over_quota(3));
        }
        of.queues += 1;
        Ok(())
    }
}
