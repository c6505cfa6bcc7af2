//! Quotas of namespaces. For each namespace whose jobs or bytes are bounded the writer keeps its usage: every step
//! that stores or deletes a record changes the counts in memory, and a row of `quotas` in the same commit. So they
//! stay exact over restarts and crashes, and a namespace without a quota costs nothing. For a new quota, existing
//! jobs are counted on another thread, from a snapshot; changes after that snapshot are counted meanwhile, and added.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ahash::HashMap;

use crate::clock::Micros;
use crate::engine::disk::codec;
use crate::engine::disk::state::WriterState;
use crate::engine::disk::state::quotas::{QuotaCount, QuotaUse};
use crate::engine::disk::step::{Step, StepError, StepResult};
use crate::engine::disk::store::{Fatal, Found, Snapshot, Space};
use crate::engine::disk::writer::handle::Handle;
use crate::engine::disk::writer::threads::Stop;
use crate::engine::{Quotas, Usage};
use crate::error::Error;
use crate::job::{JobRef, NewJob};
use crate::name::Namespace;

/// Records that a count reads between checks for the end of the engine.
const LOOK_EVERY: u64 = 1024;

/// Replaces all quotas.
pub struct SetQuotas {
    pub quotas: Quotas,
}

/// Reply to [`SetQuotas`].
pub struct QuotasSet {
    pub usage: BTreeMap<Namespace, Usage>,
    /// Of these namespaces the usage is incomplete.
    pub to_count: Option<ToCount>,
}

/// Namespaces to be counted.
pub struct ToCount {
    /// Lives until the result was reported.
    count: Arc<()>,
    /// The store when the count began.
    snapshot: Snapshot,
    namespaces: Vec<Namespace>,
}

/// Pause before a result is reported again to a writer with too many calls.
const TOLD_AGAIN: Duration = Duration::from_millis(50);

/// Result of a count.
#[derive(Clone)]
struct Used {
    count: Arc<()>,
    used: Vec<(Namespace, (i64, i64))>,
}

impl Step for SetQuotas {
    type Reply = QuotasSet;
    const MUST_LAST: bool = false;

    fn run(self, state: &mut WriterState, _: Micros) -> StepResult<QuotasSet> {
        let mut counted = std::mem::take(&mut state.quotas);
        let (count, mut namespaces) = (Arc::new(()), Vec::new());
        for (namespace, quota) in self.quotas {
            let new = || QuotaUse::new(&namespace, quota);
            let mut of = counted.remove(&namespace).unwrap_or_else(new);
            of.quota = quota;
            let goes_on = match &of.count {
                QuotaCount::UnderWay(count) => count.strong_count() > 0,
                QuotaCount::Exact => true,
                QuotaCount::None | QuotaCount::Stale => false,
            };
            if quota.counts_jobs() && !goes_on {
                (of.jobs, of.bytes, of.count) = (0, 0, QuotaCount::UnderWay(Arc::downgrade(&count)));
                namespaces.push(namespace.clone());
            } else if !quota.counts_jobs() && of.is_counted() {
                state.txn.delete_late(&of.key);
                of.count = QuotaCount::None;
            }
            state.quotas.insert(namespace, of);
        }
        for (_, of) in counted {
            state.txn.delete_late(&of.key);
        }
        let counted = state.quotas.iter().filter(|(_, of)| of.is_counted());
        let usage = counted.map(|(namespace, of)| (namespace.clone(), of.usage())).collect();
        if namespaces.is_empty() {
            return Ok(QuotasSet { usage, to_count: None });
        }
        // Other threads read only committed data.
        state.txn.flush()?;
        let to_count = Some(ToCount { count, snapshot: state.txn.store().snapshot(), namespaces });
        Ok(QuotasSet { usage, to_count })
    }
}

impl ToCount {
    /// Counts, and reports the result to the writer. Blocks.
    pub fn run(self, handle: &Handle, stop: &Stop) -> Result<(), Fatal> {
        if let Some(used) = self.count(stop)? {
            // A writer that has ended needs no result. A writer with too many calls gets it later.
            while let Err(Error::Overloaded) = handle.ask_blocking(used.clone()) {
                if stop.stopped_within(TOLD_AGAIN) {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Reads all jobs of the store. `None` when the engine ends.
    fn count(self, stop: &Stop) -> Result<Option<Used>, Fatal> {
        let mut used: HashMap<Vec<u8>, (i64, i64)> = HashMap::default();
        for namespace in &self.namespaces {
            used.insert(codec::namespace_key(namespace).to_vec(), (0, 0));
        }
        let mut read = 0;
        for item in self.snapshot.range(Space::Jobs, ..) {
            read += 1;
            if read % LOOK_EVERY == 0 && stop.is_stopped() {
                return Ok(None);
            }
            let (key, value) = item?;
            let Some(used) = used.get_mut(codec::namespace_of_job(&key)?) else { continue };
            // An unreadable record counts as a job without a body.
            let bytes = codec::read_record(&key, &value).map_or(0, |record| record.body.len());
            *used = (used.0 + 1, used.1 + bytes as i64);
        }
        let found = |namespace: Namespace| {
            let used = used.get(&codec::namespace_key(&namespace)[..]).copied().unwrap_or_default();
            (namespace, used)
        };
        Ok(Some(Used { count: self.count, used: self.namespaces.into_iter().map(found).collect() }))
    }
}

impl Step for Used {
    type Reply = ();
    const MUST_LAST: bool = false;

    fn run(self, state: &mut WriterState, _: Micros) -> StepResult<()> {
        for (namespace, (jobs, bytes)) in self.used {
            let Some(of) = state.quotas.get_mut(&namespace) else { continue };
            if matches!(&of.count, QuotaCount::UnderWay(count) if count.as_ptr() == Arc::as_ptr(&self.count))
            {
                (of.jobs, of.bytes, of.count) = (of.jobs + jobs, of.bytes + bytes, QuotaCount::Exact);
                state.txn.put(Space::Quotas, &of.key, of.value());
            }
        }
        Ok(())
    }
}

impl WriterState {
    /// Checks whether these jobs may be stored in the step that deletes `gone`.
    pub fn admit<'a>(
        &self,
        new: impl Iterator<Item = &'a NewJob> + Clone,
        gone: &[JobRef],
    ) -> Result<(), StepError> {
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
}

impl WriterState {
    /// Checks whether a call that stores no job may store its record: not once the jobs or the bytes are used up.
    pub fn admit_record(&self, namespace: &Namespace) -> Result<(), StepError> {
        let Some(of) = self.quotas.get(namespace) else { return Ok(()) };
        match of.refuses(1, 1, (0, 0)) {
            Some(what) => Err(Error::OverQuota(what).into()),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::clock::ManualClock;
    use crate::engine::disk::state::{Windows, load};
    use crate::engine::disk::store::txn::Txn;
    use crate::engine::disk::store::{StoreLimits, open};
    use crate::engine::disk::upkeep::repair::{RepairTo, repair};
    use crate::engine::disk::{DiskEngine, DiskOptions};
    use crate::engine::{Engine, Publication, Quota, Release};
    use crate::job::JobId;
    use crate::name::{Queue, QueueName};

    /// Guards against a step that forgets to count, or whose counts are not in its commit.
    #[tokio::test]
    async fn the_last_commit_says_what_there_is() {
        let dir = tempfile::tempdir().unwrap(); // the temporary directory can be written
        let options = DiskOptions::new(dir.path().join("jobs"), Arc::new(ManualClock::new(1_000_000)));
        let engine = DiskEngine::open(options.clone()).unwrap(); // new directory
        let queue =
            Queue { namespace: Namespace::parse("ns").unwrap(), name: QueueName::parse("q").unwrap() };
        let job = |n: u64| NewJob {
            queue: queue.clone(),
            id: JobId::from_parts(1_000_000, n, 0, false),
            body: vec![7; n as usize].into(),
            attributes: Default::default(),
            ttl: None,
            delay: Duration::from_secs(n / 7 * 60),
            tries: std::num::NonZeroU16::MIN,
        };
        let name = |n| JobRef { queue: queue.clone(), id: job(n).id };
        engine.publish(vec![job(1), job(2)].into()).await.unwrap(); // here and below nothing is wrong with the disk
        let quota = Quota { jobs: 100, bytes: 100, queues: 0 };
        engine.set_quotas(&Quotas::from([(queue.namespace.clone(), quota)])).await.unwrap();
        engine.publish((3..9).map(job).collect::<Vec<_>>().into()).await.unwrap();
        let taken = engine.consume(&queue.clone().into(), &[Duration::from_secs(60); 3]).await.unwrap();
        let running: Vec<u64> = taken.jobs.iter().map(|job| job.body.len() as u64).collect();
        assert_eq!(running, [1, 2, 3], "the jobs that run");
        engine.release(&name(1), taken.jobs[0].proof(), Release::bury(None)).await.unwrap();
        for gone in [2, 4, 7] {
            engine.ack(&queue, &[(job(gone).id, None)]).await.unwrap();
        }
        let republish = Publication { replaces: Some(name(5)), ..vec![job(10)].into() };
        engine.publish(republish).await.unwrap();
        engine.delete_dead(&queue, 1).await.unwrap();
        engine.close().await;
        drop(engine);
        let windows =
            Windows { ready: 9, ready_budget: 9, delayed: 9, idle: Duration::ZERO, dead: Duration::ZERO };
        let loaded = || {
            let (store, mark) = open::open(&options.path, StoreLimits::OF_A_TOOL).unwrap(); // nobody has it open
            (load::load(store, options.clock.clone(), windows, None).unwrap(), mark) // it reads
        };
        let (state, mark) = loaded();
        let used = state.quotas.get(&queue.namespace).map(|of| (of.jobs, of.bytes, of.is_exact()));
        assert_eq!(used, Some((4, 3 + 6 + 8 + 10, true)), "one runs, one is ready, two are delayed");
        drop((state, mark));
        std::fs::remove_file(options.path.join("trees/ready/current")).unwrap(); // it is there
        let told = repair(&options.path, Some(RepairTo::Beside)).unwrap(); // it can be repaired
        assert!(told.written.is_some(), "{told}");
        let (state, _mark) = loaded();
        assert!(state.quotas.is_empty(), "where jobs may be lost they are counted anew");
    }

    /// Guards against a pool that does not open because of an invalid count, which can be repeated.
    #[test]
    fn a_count_that_means_nothing_is_deleted() {
        let dir = tempfile::tempdir().unwrap(); // the temporary directory can be written
        let (store, _mark) = open::open(dir.path(), StoreLimits::OF_A_TOOL).unwrap(); // new directory
        let good = Namespace::parse("good").unwrap(); // a name
        let rows: [(&[u8], &[u8]); 4] = [
            (&codec::used_key(&good), &codec::used(1, 2)),
            (b"ubad", b"short"),
            (b"u\xff", &[0; 16]),
            (b"x", b""),
        ];
        let mut txn = Txn::new(store.clone());
        for (key, value) in rows {
            txn.put(Space::Quotas, key, value);
        }
        txn.settle(false).unwrap(); // here and below nothing is wrong with the disk
        let windows =
            Windows { ready: 9, ready_budget: 9, delayed: 9, idle: Duration::ZERO, dead: Duration::ZERO };
        let mut state = load::load(store.clone(), Arc::new(ManualClock::new(0)), windows, None).unwrap();
        assert_eq!(state.quotas.keys().collect::<Vec<_>>(), [&good], "the others are counted anew");
        state.txn.settle(false).unwrap();
        let left: Vec<_> = store.all(Space::Quotas).map(|row| row.unwrap().0.to_vec()).collect();
        assert_eq!(left, [codec::used_key(&good)], "they are met once");
    }
}
