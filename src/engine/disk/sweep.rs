//! The sweep, in small steps: deletes ready entries that stand for nothing, and jobs whose ttl has ended, and
//! forgets queues long empty and requests that need not be remembered any more. Each sweep ends with the question what is to be done about the files.

use std::ops::Bound;

use bytes::Bytes;

use super::state::WriterState;
use super::state::garbage::Upkeep;
use super::step::{Outcome, Step};
use super::store::{Fatal, Space, codec};
use crate::clock::{Micros, micros};
use crate::name::Queue;

/// How many ready entries, empty queues and requests a step checks; an entry costs one read of a record.
const CHECKS: usize = 256;
/// Upkeep is asked for at the end of a sweep, and after so many steps of a longer one: some seconds.
const STEPS: u32 = 64;

/// One step of the sweep.
pub struct Sweep {
    /// Where the last step ended.
    pub from: Position,
    pub report: Report,
}

/// How far a sweep has come.
#[derive(Clone, Debug, Default)]
pub struct Position {
    /// The last key of `ready` that was checked; `None` at the beginning.
    key: Option<Bytes>,
    /// Steps since upkeep was last asked for.
    steps: u32,
}

/// What became of the work on the files that the last step asked for.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Keyspaces that were compacted.
    pub compacted: Vec<Space>,
    /// Whether it is too soon after the last compaction for one that has live entries to rewrite.
    pub too_soon: bool,
}

/// What a step of the sweep did.
#[derive(Debug)]
pub struct Swept {
    /// Where the next step begins.
    pub next: Position,
    /// Whether the sweep has come to the end; the next one begins anew.
    pub done: bool,
    /// How many entries and queues it took out.
    pub removed: usize,
    /// What is to be done about the files now.
    pub upkeep: Upkeep,
}

impl Step for Sweep {
    type Reply = Swept;
    const MUST_LAST: bool = false;

    fn run(self, state: &mut WriterState, now: Micros) -> Outcome<Swept> {
        let Sweep { from, report } = self;
        report.compacted.iter().for_each(|space| state.compacted(*space));
        let (checked, mut removed) = state.forget_queues(now);
        let (last, entries) = state.sweep_ready(from.key, now)?;
        removed += entries;
        let requests = state.forget_requests(now, CHECKS)?;
        removed += requests;
        let done = last.is_none() && checked < CHECKS && requests < CHECKS;
        let mut next = Position { key: last, steps: from.steps + 1 };
        let mut upkeep = Upkeep::default();
        if done || next.steps >= STEPS {
            upkeep = state.upkeep(report.too_soon);
            next.steps = 0;
        }
        Ok(Swept { next, done, removed, upkeep })
    }
}

impl WriterState {
    /// Checks some ready entries behind the key `after`. Answers the last key, if there may be more behind it,
    /// and how many entries it deleted.
    fn sweep_ready(&mut self, after: Option<Bytes>, now: Micros) -> Result<(Option<Bytes>, usize), Fatal> {
        self.txn.flush()?;
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let walk = self.txn.store().range(Space::Ready, (from, Bound::Unbounded)).take(CHECKS);
        let items = walk.collect::<Result<Vec<_>, Fatal>>()?;
        let mut current: Option<(&[u8], Queue)> = None;
        let mut removed = 0;
        for (key, value) in &items {
            let (prefix, seq) = codec::split_list_key(key)?;
            let (entry, _) = codec::read_list_value(seq, value)?;
            // Neighbours mostly are of one queue: its name is read once.
            let queue = match current.take() {
                Some((same, queue)) if same == prefix => queue,
                _ => codec::read_queue_key(prefix)?,
            };
            let (_, queue) = &*current.insert((prefix, queue));
            match self.read_entry(queue, &entry)? {
                Some(Ok(record)) if record.expired(now) => {
                    self.forget(queue, entry.id, &record);
                }
                // Consume says what is wrong with it when it gets there.
                Some(_) => continue,
                None => {}
            }
            removed += 1;
            self.txn.delete(Space::Ready, codec::list_key(prefix, seq));
            if let Some(state) = self.queues.get_mut(queue) {
                state.remove(seq);
            }
            self.queues.note_idle(queue, now);
        }
        let last = items.last().filter(|_| items.len() == CHECKS);
        Ok((last.map(|(key, _)| Bytes::copy_from_slice(key)), removed))
    }

    /// Forgets queues that have been empty for long. Answers how many it checked, and how many it forgot.
    fn forget_queues(&mut self, now: Micros) -> (usize, usize) {
        let Some(since) = now.checked_sub(micros(self.windows.idle)) else { return (0, 0) };
        let mut forgotten = 0;
        for checked in 0..CHECKS {
            let Some(idle) = self.queues.forget(since) else { return (checked, forgotten) };
            if let Some(state) = idle {
                self.txn.delete(Space::Queues, state.key);
                forgotten += 1;
            }
        }
        (CHECKS, forgotten)
    }
}
