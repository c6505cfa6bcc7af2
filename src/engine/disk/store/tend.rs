//! Background work that the writer never waits for: flushes full memtables, preallocates log files and reuses them.
//! Without a background thread, as in tools, the committing thread does it.

use std::time::{Duration, Instant};

use lsm_tree::AbstractTree;

use super::durable::is_full;
use super::log::group::Draft;
use super::tender::Tender;
use super::trees::Written;
use super::{Fatal, Space, Store, describe};

/// With more log files than this, the entries of the older half are flushed.
const FILES: usize = 8;
/// Maximum number of unmerged tables of a keyspace: lsm-tree's lists count up to 255.
const MOST_RUNS: usize = 200;

/// Result of background work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tended {
    Done,
    /// There is more to do, but no time or disk space now.
    NotDone,
}

impl Store {
    /// Registers the calling thread as the one that does the background work.
    pub fn tender(&self) -> Tender<'_> {
        self.tending.tender()
    }

    /// Wakes the background thread.
    pub fn call_tender(&self) {
        self.tending.call();
    }

    /// Appends a group to the log and adds its entries to memory.
    pub(super) fn commit(
        &self,
        draft: &mut Draft,
        entries: impl IntoIterator<Item = Written>,
    ) -> Result<(), Fatal> {
        let group = self.log.append(draft).map_err(|e| Fatal(format!("a write failed: {e}")))?;
        let is_full = self.trees.commit(group, entries);
        if is_full || self.log.wants_tending() {
            if !self.tending.is_tended() {
                return self.tend().map(drop);
            }
            self.call_tender();
            if is_full {
                self.trees.wait_for_room(|| !self.tending.is_tended());
            }
        }
        Ok(())
    }

    /// Does the work that is due.
    pub fn tend(&self) -> Result<Tended, Fatal> {
        let old = self.log.too_old(FILES);
        if old.is_some() {
            self.trees.settle();
        }
        self.write_out_some(self.trees.due(old.unwrap_or(0)), None)
    }

    /// Flushes the memory of all keyspaces to tables, so that no older log file is needed. Stops between two keyspaces
    /// once `patience` has passed.
    pub fn write_out(&self, patience: Duration) -> Result<Tended, Fatal> {
        self.trees.settle();
        self.write_out_some(self.trees.due(u64::MAX), Instant::now().checked_add(patience))
    }

    fn write_out_some(&self, spaces: Vec<Space>, until: Option<Instant>) -> Result<Tended, Fatal> {
        let files = self.files.read();
        let (mut done, mut partial) = (Tended::Done, Vec::new());
        for space in spaces {
            if until.is_some_and(|until| Instant::now() >= until) {
                done = Tended::NotDone;
                break;
            }
            if self.trees.of(space).l0_run_count() >= MOST_RUNS {
                return Err(Fatal(format!("the tables of {space:?} could not be merged for too long")));
            }
            let next = self.trees.of(space).next_table_id();
            match self.trees.flush(space, |group| self.log.secure(group)) {
                Ok(()) => {}
                Err(lsm_tree::Error::Io(e)) if is_full(&e) => partial.push((space, next)),
                Err(e) => {
                    return Err(Fatal(format!(
                        "{space:?} could not be flushed to a table: {}",
                        describe(&e)
                    )));
                }
            }
        }
        let tended = self.log.tend(self.trees.first_needed());
        drop(files);
        for (space, next) in partial {
            self.delete_partial(space, next);
            done = Tended::NotDone;
        }
        match tended {
            Ok(()) => Ok(done),
            Err(e) if is_full(&e) => Ok(Tended::NotDone),
            Err(e) => Err(Fatal(format!("the next log file could not be prepared: {e}"))),
        }
    }
}
