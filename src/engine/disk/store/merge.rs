//! Merges tables, so that reads consult few of them. A merge that meets an unreadable sector or a full disk changes
//! nothing. Garbage is left to compaction in `files.rs`.

use std::sync::Arc;

use lsm_tree::AbstractTree;
use lsm_tree::compaction::Leveled;

use super::durable::is_full;
use super::{Fatal, Space, Store, describe, is_unreadable};

/// Upper bound on the free space required for a merge. Its tables may be larger, but on a disk that fills up most of
/// their entries are already deleted, and merging frees that space.
const LARGE: u64 = 64 << 20;
/// Number of unmerged runs beyond which a merge does not check free space.
const PRESSING: usize = 16;
/// Number of unmerged runs that makes the store fail: a clear end instead of ever slower reads.
const TOO_MANY: usize = 26;
/// Keyspaces up to this size are merged before a start completes.
const AT_A_START: u64 = 256 << 20;

/// Result of one merge attempt.
#[derive(Debug)]
pub enum Merged {
    /// Nothing to merge.
    Nothing,
    /// Something was merged or moved; there may be more.
    Some,
    /// Not enough free space now.
    NoRoom,
    /// The disk filled up during the merge; do not retry soon.
    DiskFull,
    /// A table of the keyspace cannot be read.
    Unreadable(String),
}

/// Number of tables per level of a keyspace, and their total bytes. While this is unchanged there is nothing new to
/// merge.
pub type Shape = ([usize; 7], u64);

impl Store {
    /// Returns the keyspace's [`Shape`].
    pub fn shape(&self, space: Space) -> Shape {
        let tree = self.trees.of(space);
        let levels = std::array::from_fn(|level| tree.level_table_count(level).unwrap_or(0));
        (levels, tree.disk_space())
    }

    /// Merges some tables of a keyspace if there are enough to merge and `has_room` accepts the bytes required.
    pub fn merge(&self, space: Space, has_room: impl Fn(u64) -> bool) -> Result<Merged, Fatal> {
        let (tree, before) = (self.trees.of(space), self.shape(space));
        if !has_room(before.1.min(LARGE)) && tree.l0_run_count() < PRESSING {
            return Ok(Merged::NoRoom);
        }
        self.make_tables(space, || {
            tree.compact(Arc::new(Leveled::default()), self.trees.forgettable())?;
            Ok(if self.shape(space) == before { Merged::Nothing } else { Merged::Some })
        })
    }

    /// Merges keyspaces with so many unmerged runs that the store would fail at once. Returns the reason if a table is
    /// unreadable, so that the start can be refused with its location. Long merges are left to the background thread.
    pub fn merge_overdue(&self) -> Option<String> {
        for (space, ..) in Space::ALL {
            let is_due = || self.too_many_unmerged(space) && self.table_bytes(space) <= AT_A_START;
            if is_due() {
                tracing::info!(keyspace = space.name(), "merging overdue tables before serving requests");
            }
            while is_due() {
                match self.merge(space, |_| true) {
                    Ok(Merged::Some) => {}
                    Ok(Merged::Unreadable(reason)) => {
                        return Some(self.which_is_holed(space, &reason, || false));
                    }
                    // The background merge meets the same error.
                    _ => break,
                }
            }
        }
        None
    }

    /// Returns whether reads become ever slower because of unmerged runs.
    pub fn too_many_unmerged(&self, space: Space) -> bool {
        self.trees.of(space).l0_run_count() >= TOO_MANY
    }
}

/// Interprets an error of a merge or compaction. A failed merge loses nothing.
pub fn not_merged(e: lsm_tree::Error) -> Result<Merged, Fatal> {
    match &e {
        lsm_tree::Error::Io(io) if is_full(io) => Ok(Merged::DiskFull),
        e if is_unreadable(e) => Ok(Merged::Unreadable(describe(e))),
        _ => Err(e.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    use super::super::txn::Txn;
    use super::super::{StoreLimits, open};
    use super::*;

    /// Guards against a merge that drops entries visible to a snapshot taken while it waited for another merge.
    #[test]
    fn a_merge_that_waited_gives_up_nothing_that_is_read() {
        let dir = tempfile::tempdir().unwrap(); // the temporary directory can be written
        let (store, _mark) = open::open(dir.path(), StoreLimits::OF_A_TOOL).unwrap(); // new directory
        let mut txn = Txn::new(store.clone());
        let mut put = |value: &[u8]| {
            txn.put(Space::Meta, b"key", value);
            txn.settle(true).unwrap(); // nothing is wrong with the disk
            store.write_out_all().unwrap(); // as above
        };
        put(b"before");
        let ((begins, begun), (ends, ended)) = (mpsc::channel(), mpsc::channel::<()>());
        thread::scope(|scope| {
            let other = move || {
                let _ = begins.send(());
                let _ = ended.recv();
                Ok(Merged::Nothing)
            };
            let store = &store;
            scope.spawn(move || store.make_tables(Space::Meta, other).is_ok());
            begun.recv().unwrap(); // it sends before it waits
            let waits = scope.spawn(|| store.compact(Space::Meta).is_ok());
            // There is no event for waiting. If the thread has not got there yet, this test passes without checking
            // anything.
            thread::sleep(Duration::from_millis(100));
            let snapshot = store.snapshot();
            put(b"behind");
            drop(ends);
            assert!(waits.join().unwrap(), "it merges"); // it does not panic
            let read: Vec<_> =
                snapshot.range(Space::Meta, ..).map(|entry| entry.unwrap().1.to_vec()).collect(); // it can be read
            assert_eq!(read, [b"before"], "the snapshot's entry");
        });
    }
}
