//! The sweep: deletes stale ready entries and jobs whose ttl has ended, removes queues empty for long, and deletes
//! expired idempotency keys. It visits only queues that may have such entries, as recorded by the writer. Lists and
//! records are read beside the writer, which then checks and deletes the candidates.

use std::ops::Bound;

use crate::clock::{Micros, micros};
use crate::engine::disk::codec::{self, Entry};
use crate::engine::disk::state::WriterState;
use crate::engine::disk::state::garbage::Upkeep;
use crate::engine::disk::state::queues::ToSweep;
use crate::engine::disk::step::{Step, StepResult};
use crate::engine::disk::store::{Fatal, Found, Space, Store};
use crate::name::Queue;

/// Number of entries or idempotency keys read at a time, and of empty queues checked per step.
const CHECKS: usize = 256;

/// Requests the next queue to sweep, and the file maintenance to do.
pub struct SweepPlan {
    /// Whether to return a queue to sweep; if not, only queues empty for long are removed.
    pub queue: bool,
    /// Result of the last file maintenance, if more is requested.
    pub upkeep: Option<UpkeepReport>,
}

/// Result of the last file maintenance.
#[derive(Clone, Debug, Default)]
pub struct UpkeepReport {
    /// Compacted keyspaces.
    pub compacted: Vec<Space>,
    /// Whether the last compaction is too recent to start another with live entries.
    pub too_soon: bool,
    /// Whether the disk is almost full.
    pub is_low: bool,
}

/// Work for the sweeper thread.
#[derive(Debug)]
pub struct Work {
    pub sweep: Option<Scan>,
    /// File maintenance to do now.
    pub upkeep: Upkeep,
    /// The earliest expiry of idempotency keys that may not have been processed, if expired ones may exist.
    pub requests: Option<Micros>,
    /// Whether more empty queues can be removed.
    pub more: bool,
}

/// A scan of one queue's ready list, in parts.
#[derive(Clone, Debug)]
pub struct Scan {
    /// Its `after` is the last number read.
    at: ToSweep,
    /// Earliest expiry of the live jobs.
    next: Micros,
}

/// Result of reading one part.
pub struct Part {
    /// Entries to delete.
    pub remove: Remove,
    /// Whether this was the last part.
    pub done: bool,
}

impl Scan {
    /// Reads the next part.
    pub fn read(&mut self, store: &Store, now: Micros) -> Result<Part, Fatal> {
        let prefix = &self.at.key;
        // Numbers start above 0.
        let from = Bound::Excluded(codec::list_key(prefix, self.at.after));
        let to = Bound::Included(codec::list_key(prefix, u64::MAX));
        let (mut stale, mut read) = (Vec::new(), 0);
        for item in store.range(Space::Ready, (from, to)).take(CHECKS) {
            let (key, value) = item?;
            let seq = codec::split_list_key(&key)?.1;
            let (entry, _) = codec::read_list_value(seq, &value)?;
            (self.at.after, read) = (seq, read + 1);
            match store.job(&codec::job_key(prefix, entry.id))? {
                Found::Record(record) if record.generation == entry.generation && !record.expired(now) => {
                    self.next = self.next.min(record.expires.unwrap_or(Micros::MAX));
                }
                // Reported when it is consumed.
                Found::Corrupt(_) => {}
                Found::Record(_) | Found::Nothing => stale.push((seq, entry)),
            }
        }
        Ok(Part { remove: Remove { queue: self.at.queue.clone(), stale }, done: read < CHECKS })
    }

    /// Completes the scan.
    pub fn done(self) -> Done {
        Done(self)
    }
}

/// Deletes those entries that are still in the list and are stale or belong to an expired job.
pub struct Remove {
    queue: Queue,
    stale: Vec<(u64, Entry)>,
}

impl Remove {
    /// Returns whether there is nothing to delete.
    pub fn is_empty(&self) -> bool {
        self.stale.is_empty()
    }
}

/// Records when the queue is to be swept again.
pub struct Done(Scan);

/// Deletes expired idempotency keys.
pub struct Forget {
    /// Expiry and key of each.
    ended: Vec<(Micros, Vec<u8>)>,
    /// No idempotency key expires earlier, except ones renewed since.
    from: Micros,
}

impl Forget {
    /// Reads the idempotency keys that expired between `from` and `now`. Also reads their rows, so that the writer
    /// finds them in the block cache.
    pub fn read(store: &Store, from: Micros, now: Micros) -> Result<Forget, Fatal> {
        let mut ended = Vec::new();
        for item in store.range(Space::Once, codec::once_ends_at(from)..codec::once_ends_at(now)).take(CHECKS)
        {
            let (until, name) = codec::read_once_end(&item?.0)?;
            store.get(Space::Once, &name)?;
            ended.push((until, name));
        }
        let from = ended.last().filter(|_| ended.len() == CHECKS).map_or(now, |(until, _)| *until);
        Ok(Forget { ended, from })
    }

    /// Returns whether there may be more.
    pub fn more(&self) -> bool {
        self.ended.len() == CHECKS
    }
}

impl Step for Forget {
    type Reply = ();
    const MUST_LAST: bool = false;

    fn run(self, state: &mut WriterState, now: Micros) -> StepResult<()> {
        Ok(state.forget_requests(self.ended, self.from.min(now))?)
    }
}

/// Returns the store, for readers beside the writer.
pub struct ShareStore;

impl Step for ShareStore {
    type Reply = Store;
    const MUST_LAST: bool = false;

    fn run(self, state: &mut WriterState, _: Micros) -> StepResult<Store> {
        Ok(state.txn.store().clone())
    }
}

impl Step for SweepPlan {
    type Reply = Work;
    const MUST_LAST: bool = false;

    fn run(self, state: &mut WriterState, now: Micros) -> StepResult<Work> {
        let more = state.forget_queues(now) == CHECKS;
        let upkeep = self.upkeep.map(|report| {
            report.compacted.iter().for_each(|space| state.garbage.compacted(*space));
            state.upkeep(report.too_soon, report.is_low)
        });
        let found = if self.queue { state.queues.take_sweep(now) } else { None };
        // Readers beside the writer see only committed data.
        state.txn.flush()?;
        let sweep = found.map(|at| Scan { at, next: Micros::MAX });
        let requests = state.requests_ended(now);
        Ok(Work { sweep, upkeep: upkeep.unwrap_or_default(), requests, more })
    }
}

impl Step for Remove {
    type Reply = ();
    const MUST_LAST: bool = false;

    fn run(self, state: &mut WriterState, now: Micros) -> StepResult<()> {
        let Remove { queue, stale } = self;
        let Some(prefix) = state.queues.get(&queue).map(|q| q.key.clone()) else { return Ok(()) };
        state.txn.flush()?;
        for (seq, entry) in stale {
            let key = codec::list_key(&prefix, seq);
            if state.txn.store().get(Space::Ready, &key)?.is_none() {
                continue;
            }
            match state.read_entry(&queue, &entry)? {
                Some(Ok(record)) if record.expired(now) => {
                    state.observer.expired(1);
                    state.forget(&queue, entry.id, &record)?;
                }
                Some(_) => continue,
                None => {}
            }
            state.txn.delete(Space::Ready, key);
            if let Some(queue) = state.queues.get_mut(&queue) {
                queue.remove(seq);
            }
        }
        state.queues.note_idle(&queue, now);
        Ok(())
    }
}

impl Step for Done {
    type Reply = ();
    const MUST_LAST: bool = false;

    fn run(self, state: &mut WriterState, _: Micros) -> StepResult<()> {
        let Done(Scan { at, next }) = self;
        state.queues.swept(&at.queue, at.after, next);
        Ok(())
    }
}

impl WriterState {
    /// Removes queues that have been empty for long. Returns the number checked.
    fn forget_queues(&mut self, now: Micros) -> usize {
        let Some(since) = now.checked_sub(micros(self.windows.idle)) else { return 0 };
        for checked in 0..CHECKS {
            let Some(idle) = self.queues.forget(since) else { return checked };
            if let Some(state) = idle {
                self.txn.delete(Space::Queues, &state.key);
            }
        }
        CHECKS
    }
}
