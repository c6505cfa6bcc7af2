//! The sweep: deletes ready entries that stand for nothing, and jobs whose ttl has ended, and forgets queues long
//! empty and requests that need not be remembered any more. Only queues that may hold such entries are looked at: the
//! writer knows since when. The lists and the records are read beside the writer, which then checks what is to be
//! deleted and deletes it.

use std::ops::Bound;

use crate::clock::{Micros, micros};
use crate::engine::disk::codec::{self, Entry};
use crate::engine::disk::state::WriterState;
use crate::engine::disk::state::garbage::Upkeep;
use crate::engine::disk::state::queues::ToSweep;
use crate::engine::disk::step::{Step, StepResult};
use crate::engine::disk::store::{Fatal, Found, Space, Store};
use crate::name::Queue;

/// How many entries or requests are read at a time, and how many empty queues a step checks.
const CHECKS: usize = 256;

/// Asks for the next queue to sweep, and what is to be done about the files.
pub struct SweepPlan {
    /// Whether a queue is asked for. Else only queues long empty are forgotten.
    pub queue: bool,
    /// What became of the last upkeep, if it is asked for again.
    pub upkeep: Option<UpkeepReport>,
}

/// What became of the work on the files that was asked for last.
#[derive(Clone, Debug, Default)]
pub struct UpkeepReport {
    /// Keyspaces that were compacted.
    pub compacted: Vec<Space>,
    /// Whether it is too soon after the last compaction for one that has live entries to rewrite.
    pub too_soon: bool,
    /// Whether the disk is almost full.
    pub is_low: bool,
}

/// What there is to do.
#[derive(Debug)]
pub struct Work {
    pub sweep: Option<Scan>,
    /// What is to be done about the files now.
    pub upkeep: Upkeep,
    /// From when on requests have ended that were not forgotten yet, if some have.
    pub requests: Option<Micros>,
    /// Whether more empty queues wait to be forgotten.
    pub more: bool,
}

/// One queue's ready list, read part by part.
#[derive(Clone, Debug)]
pub struct Scan {
    /// Its `after` is the last number that was read.
    at: ToSweep,
    /// When the first of the jobs that live expires.
    next: Micros,
}

/// What one part of a scan found.
pub struct Part {
    /// What should be deleted.
    pub remove: Remove,
    /// Whether this was the last part.
    pub done: bool,
}

impl Scan {
    /// Reads on.
    pub fn read(&mut self, store: &Store, now: Micros) -> Result<Part, Fatal> {
        let prefix = &self.at.key;
        // No entry has the number 0.
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
                // Consume says what is wrong with it when it gets there.
                Found::Corrupt(_) => {}
                Found::Record(_) | Found::Nothing => stale.push((seq, entry)),
            }
        }
        Ok(Part { remove: Remove { queue: self.at.queue.clone(), stale }, done: read < CHECKS })
    }

    /// The scan has come to the end.
    pub fn done(self) -> Done {
        Done(self)
    }
}

/// Deletes those of the entries that still are in the list, and stand for nothing or for an expired job.
pub struct Remove {
    queue: Queue,
    stale: Vec<(u64, Entry)>,
}

impl Remove {
    /// Whether there is nothing to delete.
    pub fn is_empty(&self) -> bool {
        self.stale.is_empty()
    }
}

/// Notes when the queue is to be swept again.
pub struct Done(Scan);

/// Forgets requests that need not be remembered any more.
pub struct Forget {
    /// When each ended, and its name.
    ended: Vec<(Micros, Vec<u8>)>,
    /// No request that is not forgotten ends earlier, but for those that are still remembered.
    from: Micros,
}

impl Forget {
    /// Reads which requests have ended between `from` and `now`. Their rows are read here, so that the writer finds
    /// them in memory.
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

    /// Whether there may be more.
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

/// Lends the store to who reads beside the writer.
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
        // What is read beside the writer is what was committed.
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
                    state.observers.tell(|observer| observer.expired(1));
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
    /// Forgets queues that have been empty for long. Answers how many it checked.
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
