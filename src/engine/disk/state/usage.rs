//! Counts the jobs and bytes of namespaces with a quota, as their jobs are stored and deleted. Changes memory and the
//! open transaction only.

use super::WriterState;
use super::quotas::{QuotaCount, QuotaUse};
use crate::engine::Quota;
use crate::engine::disk::codec;
use crate::engine::disk::store::{Fatal, Found, Space, Store};
use crate::name::{Namespace, Queue};

impl WriterState {
    /// Loads the usage rows of the last commit. Invalid rows are deleted: their usage is counted again.
    pub fn load_used(&mut self, store: &Store) -> Result<(), Fatal> {
        for item in store.range(Space::Quotas, codec::used_keys()) {
            let (key, value) = item?;
            let read = codec::read_used_key(&key).and_then(|of| Ok((of, codec::read_used(&value)?)));
            let (namespace, (jobs, bytes)) = match read {
                Ok(read) => read,
                Err(e) => {
                    tracing::warn!(error = %e, "a namespace's usage record is unreadable; its jobs are counted again");
                    self.txn.delete(Space::Quotas, key);
                    continue;
                }
            };
            let of = QuotaUse::new(&namespace, Quota::default());
            let (jobs, bytes, count) = (jobs as i64, bytes as i64, QuotaCount::Exact);
            self.quotas.insert(namespace, QuotaUse { jobs, bytes, count, ..of });
        }
        Ok(())
    }

    /// Counts a stored job with a body of `bytes`.
    pub fn count_stored(&mut self, namespace: &Namespace, bytes: usize) {
        self.count(namespace, 1, bytes as i64);
    }

    /// Deletes a job's record.
    pub fn delete_job(&mut self, queue: &Queue, key: Vec<u8>) -> Result<(), Fatal> {
        if self.quotas.get(&queue.namespace).is_some_and(QuotaUse::is_counted) {
            match self.txn.job(&key)? {
                Found::Nothing => {}
                Found::Record(record) => self.count(&queue.namespace, -1, -(record.body.len() as i64)),
                Found::Corrupt(_) => {
                    self.count(&queue.namespace, -1, 0);
                    if let Some(of) = self.quotas.get_mut(&queue.namespace)
                        && of.is_exact()
                    {
                        of.count = QuotaCount::Stale;
                        self.txn.delete_late(&of.key);
                    }
                }
            }
        }
        self.txn.delete_job(key);
        Ok(())
    }

    fn count(&mut self, namespace: &Namespace, jobs: i64, bytes: i64) {
        if !self.quotas.is_empty()
            && let Some(of) = self.quotas.get_mut(namespace)
            && of.is_counted()
        {
            (of.jobs, of.bytes) = (of.jobs + jobs, of.bytes + bytes);
            if of.is_exact() {
                self.txn.put_late(&of.key, of.value());
            }
        }
    }
}
