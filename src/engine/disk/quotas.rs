//! Quotas of namespaces. Of each namespace whose jobs or bytes are bounded the writer keeps how many there are: every
//! step that stores or deletes a record changes the figures in memory, and a row of `meta` in the same commit. So they are
//! exact over a restart and a crash, and a namespace without a quota costs nothing. When a quota is new, its jobs are
//! counted beside the writer, from a snapshot; meanwhile what changes after that snapshot is kept, and added.

use std::collections::HashMap as Map;

use ahash::HashMap;

use super::state::WriterState;
use super::step::{Failure, Outcome, Step};
use super::store::codec::{self, META_COUNTED, META_SEQ, META_USED};
use super::store::{Fatal, Found, Snapshot, Space, Store};
use super::threads::Stop;
use crate::clock::Micros;
use crate::engine::{Quota, Quotas};
use crate::error::Error;
use crate::job::{JobRef, NewJob};
use crate::name::{Namespace, Queue};

/// How many records a count reads before it looks whether the engine ends.
const LOOK_EVERY: u64 = 1024;

/// What is known of one namespace.
#[derive(Debug)]
pub struct Counted {
    quota: Quota,
    /// How many jobs it has, and the bytes of their bodies. Without what the count under way will find.
    jobs: i64,
    bytes: i64,
    count: Count,
    /// Of the row in `meta`.
    key: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Count {
    /// Neither jobs nor bytes are bounded.
    None,
    /// The count with this number will say what there was at its begin.
    UnderWay(u64),
    Exact,
    /// A record that could not be read was deleted. Counted again when quotas are set next.
    Stale,
}

impl Counted {
    fn new(namespace: &[u8], quota: Quota) -> Counted {
        Counted { quota, jobs: 0, bytes: 0, count: Count::None, key: [META_USED, namespace].concat() }
    }

    fn value(&self) -> [u8; 16] {
        codec::used(self.jobs.max(0).unsigned_abs(), self.bytes.max(0).unsigned_abs())
    }

    /// What is used up, if so much more would be more than the quota.
    fn refuses(&self, jobs: i64, bytes: i64, (queues, new): (u64, u64)) -> Option<&'static str> {
        let over = |bound: u64, used: i64, more: i64| {
            bound > 0 && more > 0 && used.max(0).saturating_add(more).unsigned_abs() > bound
        };
        if over(self.quota.jobs, self.jobs, jobs) {
            Some("jobs")
        } else if over(self.quota.bytes, self.bytes, bytes) {
            Some("bytes")
        } else if self.quota.queues > 0 && new > 0 && queues + new > self.quota.queues {
            Some("queues")
        } else {
            None
        }
    }
}

/// Takes the place of all quotas.
pub struct SetQuotas {
    pub quotas: Quotas,
}

/// Jobs that are to be counted.
pub struct ToCount {
    number: u64,
    /// The store when the count began.
    snapshot: Snapshot,
    namespaces: Vec<Namespace>,
}

/// What a count has found.
pub struct Used {
    number: u64,
    used: Map<Namespace, (i64, i64)>,
}

impl Step for SetQuotas {
    /// What is to be counted, if something is.
    type Reply = Option<ToCount>;
    const MUST_LAST: bool = false;

    fn run(self, state: &mut WriterState, _: Micros) -> Outcome<Option<ToCount>> {
        let mut counted = std::mem::take(&mut state.quotas);
        state.counts += 1;
        let (number, mut namespaces) = (state.counts, Vec::new());
        for (namespace, quota) in self.quotas {
            let mut of = counted
                .remove(&namespace)
                .unwrap_or_else(|| Counted::new(namespace.as_str().as_bytes(), quota));
            of.quota = quota;
            if quota.counts_jobs() && of.count != Count::Exact {
                (of.jobs, of.bytes, of.count) = (0, 0, Count::UnderWay(number));
                namespaces.push(namespace.clone());
            } else if !quota.counts_jobs() && of.count != Count::None {
                state.txn.delete_late(&of.key);
                of.count = Count::None;
            }
            state.quotas.insert(namespace, of);
        }
        for (_, of) in counted {
            state.txn.delete_late(&of.key);
        }
        if namespaces.is_empty() {
            return Ok(None);
        }
        // What is read beside the writer is what was committed.
        state.txn.flush()?;
        Ok(Some(ToCount { number, snapshot: state.txn.store().snapshot(), namespaces }))
    }
}

impl ToCount {
    /// Reads all jobs of the store. `None` when the engine ends.
    pub fn count(self, stop: &Stop) -> Result<Option<Used>, Fatal> {
        let mut used: HashMap<Vec<u8>, (i64, i64)> = HashMap::default();
        for namespace in &self.namespaces {
            used.insert(codec::namespace_key(namespace).to_vec(), (0, 0));
        }
        let mut read = 0;
        for item in self.snapshot.range(Space::Jobs, ..) {
            read += 1;
            if read % LOOK_EVERY == 0 && stop.told() {
                return Ok(None);
            }
            let (key, value) = item?;
            let Some(used) = used.get_mut(codec::namespace_of_job(&key)?) else { continue };
            // One that cannot be read counts as a job without a body.
            let bytes = codec::read_record(&key, &value).map_or(0, |record| record.body.len());
            *used = (used.0 + 1, used.1 + bytes as i64);
        }
        let found = |namespace: Namespace| {
            let used = used.get(&codec::namespace_key(&namespace)[..]).copied().unwrap_or_default();
            (namespace, used)
        };
        Ok(Some(Used { number: self.number, used: self.namespaces.into_iter().map(found).collect() }))
    }
}

impl Step for Used {
    type Reply = ();
    const MUST_LAST: bool = false;

    fn run(self, state: &mut WriterState, _: Micros) -> Outcome<()> {
        for (namespace, (jobs, bytes)) in self.used {
            let Some(of) = state.quotas.get_mut(&namespace) else { continue };
            if of.count == Count::UnderWay(self.number) {
                (of.jobs, of.bytes, of.count) = (of.jobs + jobs, of.bytes + bytes, Count::Exact);
                state.txn.put(Space::Meta, &of.key, of.value());
            }
        }
        Ok(())
    }
}

impl WriterState {
    /// Reads the figures that the last commit left. Those that an earlier version may have passed over go.
    pub fn load_used(&mut self, store: &Store) -> Result<(), Fatal> {
        let counted = store.number(META_COUNTED)? == store.number(META_SEQ)?;
        for item in store.range(Space::Meta, META_USED..) {
            let (key, value) = item?;
            let Some(namespace) = key.strip_prefix(META_USED) else { break };
            let name = std::str::from_utf8(namespace).ok().and_then(|name| Namespace::parse(name).ok());
            match name {
                Some(name) if counted => {
                    let (jobs, bytes) = codec::read_used(&value)?;
                    let of = Counted::new(namespace, Quota::default());
                    let (jobs, bytes, count) = (jobs as i64, bytes as i64, Count::Exact);
                    self.quotas.insert(name, Counted { jobs, bytes, count, ..of });
                }
                _ => self.txn.delete(Space::Meta, &key),
            }
        }
        Ok(())
    }

    /// Whether these jobs may be stored in the step in which those of `gone` are deleted.
    pub fn admit<'a>(
        &self,
        new: impl Iterator<Item = &'a NewJob> + Clone,
        gone: &[JobRef],
    ) -> Result<(), Failure> {
        if self.quotas.is_empty() {
            return Ok(());
        }
        let mut seen: Vec<&Namespace> = Vec::new();
        for namespace in new.clone().map(|job| &job.queue.namespace) {
            let Some(of) = self.quotas.get(namespace).filter(|_| !seen.contains(&namespace)) else {
                continue;
            };
            seen.push(namespace);
            let (mut jobs, mut bytes, mut queues) = (0, 0, Vec::new());
            for job in new.clone().filter(|job| job.queue.namespace == *namespace) {
                (jobs, bytes) = (jobs + 1, bytes + job.body.len() as i64);
                if self.queues.get(&job.queue).is_none() && !queues.contains(&&job.queue) {
                    queues.push(&job.queue);
                }
            }
            for (at, job) in gone.iter().enumerate().filter(|(_, job)| job.queue.namespace == *namespace) {
                if !gone[..at].contains(job)
                    && let Found::Record(record) = self.txn.job(&self.job_key(&job.queue, job.id))?
                {
                    (jobs, bytes) = (jobs - 1, bytes - record.body.len() as i64);
                }
            }
            let queues = (self.queues.of_namespace(namespace), queues.len() as u64);
            if let Some(what) = of.refuses(jobs, bytes, queues) {
                return Err(Error::OverQuota(what).into());
            }
        }
        Ok(())
    }

    /// A job with a body of so many bytes is stored.
    pub fn count_stored(&mut self, namespace: &Namespace, bytes: usize) {
        self.count(namespace, 1, bytes as i64);
    }

    /// Deletes a job's record.
    pub fn delete_job(&mut self, queue: &Queue, key: Vec<u8>) -> Result<(), Fatal> {
        if self.quotas.get(&queue.namespace).is_some_and(|of| of.count != Count::None) {
            match self.txn.job(&key)? {
                Found::Nothing => {}
                Found::Record(record) => self.count(&queue.namespace, -1, -(record.body.len() as i64)),
                Found::Corrupt(_) => {
                    self.count(&queue.namespace, -1, 0);
                    if let Some(of) = self.quotas.get_mut(&queue.namespace)
                        && of.count == Count::Exact
                    {
                        of.count = Count::Stale;
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
            && of.count != Count::None
        {
            (of.jobs, of.bytes) = (of.jobs + jobs, of.bytes + bytes);
            if of.count == Count::Exact {
                self.txn.put_late(&of.key, of.value());
            }
        }
    }
}
