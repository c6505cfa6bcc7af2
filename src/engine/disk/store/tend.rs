//! What is done beside the writer, so that it never waits: full memtables are written out, and files of the log are made
//! ready and used again. A store that no thread tends, as a tool's, is tended by who commits.

use std::time::{Duration, Instant};

use lsm_tree::AbstractTree;

use super::durable::is_full;
use super::log::group::Draft;
use super::tender::Tender;
use super::trees::Written;
use super::{Fatal, Space, Store, describe};

/// From so many files of the log on, what keeps the older half of them is written out.
const FILES: usize = 8;
/// So many tables of a keyspace may wait to be merged: lsm-tree's lists count up to 255.
const MOST_RUNS: usize = 200;

/// What came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tended {
    Done,
    /// There is more to do, and no time or no room for it now.
    NotDone,
}

impl Store {
    /// From now on the caller's thread tends the store.
    pub fn tender(&self) -> Tender<'_> {
        self.tending.tender()
    }

    /// Calls the thread that tends the store.
    pub fn call_tender(&self) {
        self.tending.call();
    }

    /// Appends a group to the log and puts its entries into memory.
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

    /// Does what there is to do.
    pub fn tend(&self) -> Result<Tended, Fatal> {
        let old = self.log.too_old(FILES);
        if old.is_some() {
            self.trees.settle();
        }
        self.write_out_some(self.trees.due(old.unwrap_or(0)), None)
    }

    /// Writes what is in memory out as tables, all keyspaces', so that no older file of the log is needed. Stops after
    /// `patience`, between two keyspaces.
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
                Err(e) => return Err(Fatal(format!("{space:?} could not be written out: {}", describe(&e)))),
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
            Err(e) => Err(Fatal(format!("the log could not be made ready: {e}"))),
        }
    }
}
