//! Usage of namespaces with a quota: counts in memory, whose rows change in the same commit as the jobs. Knows no
//! step.

use std::sync::Weak;

use crate::engine::disk::codec;
use crate::engine::{Quota, Usage};
use crate::name::Namespace;

/// Quota and usage of one namespace.
#[derive(Debug)]
pub struct QuotaUse {
    pub quota: Quota,
    /// Number of jobs, and bytes of their bodies, without the result of a running count.
    pub jobs: i64,
    pub bytes: i64,
    pub count: QuotaCount,
    /// Of the row in `quotas`.
    pub key: Vec<u8>,
}

#[derive(Clone, Debug)]
pub enum QuotaCount {
    /// Neither jobs nor bytes are bounded.
    None,
    /// A count is running, if this is alive; its result is still missing.
    UnderWay(Weak<()>),
    Exact,
    /// An unreadable record was deleted. Counted again when quotas are next set.
    Stale,
}

impl QuotaUse {
    pub fn new(namespace: &Namespace, quota: Quota) -> QuotaUse {
        QuotaUse { quota, jobs: 0, bytes: 0, count: QuotaCount::None, key: codec::used_key(namespace) }
    }

    pub fn value(&self) -> [u8; 16] {
        let Usage { jobs, bytes } = self.usage();
        codec::used(jobs, bytes)
    }

    pub fn usage(&self) -> Usage {
        Usage { jobs: self.jobs.max(0).unsigned_abs(), bytes: self.bytes.max(0).unsigned_abs() }
    }

    pub fn is_counted(&self) -> bool {
        !matches!(self.count, QuotaCount::None)
    }

    pub fn is_exact(&self) -> bool {
        matches!(self.count, QuotaCount::Exact)
    }

    /// Returns the exceeded limit, if `jobs` and `bytes` more would exceed the quota.
    pub fn refuses(&self, jobs: i64, bytes: i64, (queues, new): (u64, u64)) -> Option<&'static str> {
        let over = |bound: u64, used: u64, more: i64| {
            bound > 0 && more > 0 && used.saturating_add(more.unsigned_abs()) > bound
        };
        let used = self.usage();
        if over(self.quota.jobs, used.jobs, jobs) {
            Some("jobs")
        } else if over(self.quota.bytes, used.bytes, bytes) {
            Some("bytes")
        } else if self.quota.queues > 0 && new > 0 && queues + new > self.quota.queues {
            Some("queues")
        } else {
            None
        }
    }
}
