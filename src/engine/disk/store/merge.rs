//! Merges tables, so that reads look into few of them. A merge that finds a sector that does not read, or a full disk,
//! harms nobody: its tables stay as they are. Decides nothing about garbage: `files.rs` compacts for that.

use std::sync::Arc;

use lsm_tree::AbstractTree;
use lsm_tree::compaction::Leveled;

use super::durable::is_full;
use super::{Fatal, Space, Store, describe, is_unreadable};

/// A merge asks for room for so many bytes at most. Its tables may be larger, but on a disk that fills up most of them
/// is deleted already, and merging is what gives that back.
const LARGE: u64 = 64 << 20;
/// From so many unmerged runs on a merge is done without room,
const PRESSING: usize = 16;
/// and at so many the store fails, since nobody will merge them: a clear end instead of reads that take ever longer.
const TOO_MANY: usize = 26;
/// A start waits for merges of keyspaces up to this size.
const AT_A_START: u64 = 256 << 20;

/// What came of a look at a keyspace.
#[derive(Debug)]
pub enum Merged {
    /// There is nothing to merge.
    Nothing,
    /// Something was merged or moved: there may be more.
    Some,
    /// There is no room to merge now.
    NoRoom,
    /// The disk was full meanwhile: not to be tried again soon.
    DiskFull,
    /// A table of the keyspace cannot be read.
    Unreadable(String),
}

/// How many tables each level of a keyspace has, and their bytes: while that stays the same there is nothing new to do.
pub type Shape = ([usize; 7], u64);

impl Store {
    /// See [`Shape`].
    pub fn shape(&self, space: Space) -> Shape {
        let tree = self.trees.of(space);
        let levels = std::array::from_fn(|level| tree.level_table_count(level).unwrap_or(0));
        (levels, tree.disk_space())
    }

    /// Merges some tables of a keyspace, if there are enough to merge and `has_room` for so many bytes.
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

    /// Merges what waits so long that the store would fail at once. Answers why that cannot be done, if a table of it
    /// cannot be read. For a start, which is refused then, with what is damaged and where. What takes long is left to those
    /// who merge while the store serves.
    pub fn merge_overdue(&self) -> Option<String> {
        for (space, ..) in Space::ALL {
            let is_due = || self.too_many_unmerged(space) && self.table_bytes(space) <= AT_A_START;
            if is_due() {
                tracing::info!(
                    keyspace = space.name(),
                    "merges what has waited too long, before anything is served"
                );
            }
            while is_due() {
                match self.merge(space, |_| true) {
                    Ok(Merged::Some) => {}
                    Ok(Merged::Unreadable(reason)) => {
                        return Some(self.which_is_holed(space, &reason, || false));
                    }
                    // Whoever merges while the store serves meets the same.
                    _ => break,
                }
            }
        }
        None
    }

    /// Whether so much waits to be merged that reads take ever longer.
    pub fn too_many_unmerged(&self, space: Space) -> bool {
        self.trees.of(space).l0_run_count() >= TOO_MANY
    }
}

/// What an error of a merge or a compaction means. Nothing is lost by one that was not done.
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

    /// Guards against a merge that gives up what somebody reads who came while it waited for another.
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
            // Nothing tells that it waits. If it has not come so far, this test finds nothing, and fails nobody.
            thread::sleep(Duration::from_millis(100));
            let snapshot = store.snapshot();
            put(b"behind");
            drop(ends);
            assert!(waits.join().unwrap(), "it merges"); // it does not panic
            let read: Vec<_> =
                snapshot.range(Space::Meta, ..).map(|entry| entry.unwrap().1.to_vec()).collect(); // it can be read
            assert_eq!(read, [b"before"], "what was there when the read began");
        });
    }
}
