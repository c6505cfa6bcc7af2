//! The tables of the keyspaces: reads what can be read of those that are damaged, and compacts. For the thread that
//! sweeps and for tools, except for the figures.

use std::collections::BTreeSet;
use std::time::Duration;

use lsm_tree::{AbstractTree, Guard, SeqNo, Slice};

use super::durable::is_unreadable_io;
use super::holes::add_keys;
use super::merge::{Merged, not_merged};
use super::tend::Tended;
use super::{Fatal, Space, Store, is_unreadable, tables, trees};
use crate::engine::disk::codec::Malformed;

/// How large a table becomes that a compaction makes.
const TABLE: u64 = 64 << 20;

impl Store {
    /// How many files of the log hold groups: one, and older ones that are still needed.
    pub fn log_files(&self) -> usize {
        self.log.used()
    }

    /// Bytes on disk, those of the log included.
    pub fn disk_bytes(&self) -> u64 {
        self.trees.all().map(|(_, tree)| tree.disk_space()).sum::<u64>() + self.log.disk_bytes()
    }

    /// Bytes of a keyspace's tables.
    pub fn table_bytes(&self, space: Space) -> u64 {
        self.trees.of(space).disk_space()
    }

    /// Whether an entry of a keyspace does not read, or is none for `read`. An error says nothing of what is stored.
    pub fn is_damaged(
        &self,
        space: Space,
        read: impl Fn(&[u8], &[u8]) -> Result<(), Malformed>,
    ) -> std::io::Result<bool> {
        let now = self.trees.read();
        for entry in now.trees.of(space).range::<&[u8], _>(.., now.seqno, None) {
            match entry.into_inner() {
                Ok((key, value)) if read(&key, &value).is_ok() => {}
                Err(lsm_tree::Error::Io(e)) if !is_unreadable_io(&e) => return Err(e),
                _ => return Ok(true),
            }
        }
        Ok(false)
    }

    /// Shows the entries of a keyspace that can be read, whatever stands between them. One whose newest value may be in a
    /// block that cannot be read is left out, although an older value can be read. For a store that nobody else uses:
    /// memory is written out first.
    pub fn readable(
        &self,
        space: Space,
        mut each: impl FnMut(Slice, Slice) -> Result<(), Fatal>,
    ) -> Result<(), Fatal> {
        self.move_to_tables()?;
        let tree = self.trees.of(space);
        let mut keys = BTreeSet::new();
        for table in tree.current_version().iter_tables() {
            add_keys(table, .., &mut keys)?;
        }
        for key in keys {
            match tree.get(&key, SeqNo::MAX) {
                Ok(Some(value)) => each(key, value)?,
                Ok(None) => {}
                Err(e) if is_unreadable(&e) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }

    /// Deletes all entries of a keyspace, also those that cannot be read. For a store that nobody else uses.
    pub fn clear(&self, space: Space) -> Result<(), Fatal> {
        self.move_to_tables()?;
        Ok(self.trees.clear(space)?)
    }

    /// Writes all that is in memory out, and has the log forget it: it brings nothing of it back.
    pub(super) fn move_to_tables(&self) -> Result<(), Fatal> {
        self.write_out_all()?;
        Ok(self.log.forget(self.log.last() + 1)?)
    }

    /// Deletes the tables of a keyspace, also those that cannot be read. What was put since it was
    /// [read](Store::readable) stays in memory and in the log, but for what was written out meanwhile. For a store that
    /// nobody else uses.
    pub fn drop_tables(&self, space: Space) -> Result<(), Fatal> {
        Ok(self.trees.of(space).drop_range::<&[u8], _>(..)?)
    }

    /// Writes all that is in memory out as tables.
    pub fn write_out_all(&self) -> Result<(), Fatal> {
        match self.write_out(Duration::MAX)? {
            Tended::Done => Ok(()),
            Tended::NotDone => Err(Fatal("there is no room to write out what is in memory".into())),
        }
    }

    /// How many entries a keyspace has, with those that were deleted or written over and are still stored, and
    /// with the notes that say so.
    pub fn items(&self, space: Space) -> u64 {
        self.trees.of(space).approximate_len() as u64
    }

    /// Rewrites all tables of a keyspace without what was deleted. Takes as long as the tables are large. The
    /// old tables take their space until nobody reads them.
    pub fn compact(&self, space: Space) -> Result<Merged, Fatal> {
        let tree = self.trees.of(space);
        self.make_tables(space, || tree.major_compact(TABLE, self.trees.forgettable()).map(|()| Merged::Some))
    }

    /// Merges or compacts. What a full disk has left of new tables is deleted.
    pub fn make_tables(
        &self,
        space: Space,
        make: impl FnOnce() -> lsm_tree::Result<Merged>,
    ) -> Result<Merged, Fatal> {
        let _merging = self.trees.merging(space);
        let files = self.files.read();
        let next = self.trees.of(space).next_table_id();
        let made = make().or_else(not_merged);
        drop(files);
        if let Ok(Merged::DiskFull) = made {
            self.delete_partial(space, next);
        }
        made
    }

    /// Deletes what is left of tables that could not be made, those with this number and above: lsm-tree does so only when
    /// it is opened. Not while another table is made; what is left then goes at the next start.
    pub fn delete_partial(&self, space: Space, from: u64) {
        const PATIENCE: Duration = Duration::from_millis(100);
        let Some(_files) = self.files.try_write_for(PATIENCE) else { return };
        let dir = self.pool.join(trees::DIR).join(space.name());
        // By the list on the disk: it may be one that lsm-tree does not know to be there, since the sync of its name failed.
        let Ok(listed) = tables::files(&dir) else { return };
        for entry in std::fs::read_dir(dir.join(tables::TABLES)).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.parse::<u64>().is_ok_and(|id| id >= from)
                && !listed.contains(&format!("{}/{name}", tables::TABLES))
                && let Err(e) = std::fs::remove_file(entry.path())
            {
                tracing::warn!(error = %e, "what is left of a table that could not be made stays until the next start");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::txn::Txn;
    use super::super::{StoreLimits, open};
    use super::*;

    #[test]
    fn what_a_compaction_has_replaced_is_deleted_at_once() {
        let dir = tempfile::tempdir().unwrap(); // the temporary directory can be written
        let (store, _mark) = open::open(dir.path(), StoreLimits::OF_A_TOOL).unwrap(); // new directory
        let mut txn = Txn::new(store.clone());
        for n in 0..100u64 {
            txn.put(Space::Ready, n.to_be_bytes(), [7; 1000]);
        }
        txn.settle(false).unwrap(); // nothing is wrong with the disk
        store.write_out_all().unwrap(); // as above
        assert_eq!(store.items(Space::Ready), 100, "entries");
        for n in 0..100u64 {
            txn.delete(Space::Ready, n.to_be_bytes());
        }
        txn.settle(false).unwrap(); // as above
        store.write_out_all().unwrap(); // as above
        store.compact(Space::Ready).unwrap(); // as above
        assert_eq!(store.items(Space::Ready), 0, "all was deleted, and the compaction knows");
        let tables = dir.path().join(trees::DIR).join("ready/tables");
        let left = std::fs::read_dir(tables).unwrap().count(); // made with the store
        assert_eq!(left, 0, "files of tables that nobody reads");
    }

    /// Guards against a table that is deleted although the list on the disk names it: the store would not open again.
    #[test]
    fn what_is_left_of_a_table_goes_and_what_the_list_on_the_disk_names_stays() {
        let dir = tempfile::tempdir().unwrap(); // the temporary directory can be written
        let (store, _mark) = open::open(dir.path(), StoreLimits::OF_A_TOOL).unwrap(); // new directory
        let mut txn = Txn::new(store.clone());
        txn.put(Space::Ready, b"one", b"1");
        txn.settle(true).unwrap(); // nothing is wrong with the disk
        store.write_out_all().unwrap(); // as above
        // As after a list that was renamed into its place, and could not be synced there: lsm-tree goes on with the one
        // before.
        let (ready, dead) = (dir.path().join("trees/ready"), dir.path().join("trees/dead"));
        for name in tables::files(&ready).unwrap() {
            std::fs::copy(ready.join(&name), dead.join(&name)).unwrap(); // as above
        }
        let left = dead.join(tables::TABLES).join("4711");
        std::fs::write(&left, "half a table").unwrap(); // as above
        store.delete_partial(Space::Dead, 0);
        assert!(!left.exists(), "no list names it");
        assert_eq!(tables::damage(&dead).unwrap(), None, "the list on the disk and its tables"); // it can be read
    }

    #[test]
    fn what_was_put_before_the_tables_were_dropped_stays() {
        let dir = tempfile::tempdir().unwrap(); // the temporary directory can be written
        let (store, mark) = open::open(dir.path(), StoreLimits::OF_A_TOOL).unwrap(); // new directory
        let put = |key: &[u8], value: &[u8]| {
            let mut txn = Txn::new(store.clone());
            txn.put(Space::Push, key, value);
            txn.settle(true).unwrap(); // nothing is wrong with the disk
        };
        put(b"kept", b"1");
        put(b"damaged", b"2");
        let mut rows = 0;
        let read = store.readable(Space::Push, |_, _| {
            rows += 1;
            Ok(())
        });
        read.unwrap(); // as above
        assert_eq!(rows, 2, "rows");
        put(b"kept", b"1");
        store.drop_tables(Space::Push).unwrap(); // as above
        // As after a kill: nothing is closed in order.
        drop((store, mark));
        let (store, _mark) = open::open(dir.path(), StoreLimits::OF_A_TOOL).unwrap(); // nothing is damaged
        assert!(store.get(Space::Push, b"kept").unwrap().is_some(), "it was in the log"); // as above
        assert_eq!(store.get(Space::Push, b"damaged").unwrap(), None, "its table was dropped"); // as above
    }

    /// Guards against entries that go into a memtable which the tree has given up: a rebuilt list would lack them, and once
    /// they were written out the log would forget them.
    #[test]
    fn what_is_put_after_a_clear_is_there_and_stays() {
        let dir = tempfile::tempdir().unwrap(); // the temporary directory can be written
        let (store, mark) = open::open(dir.path(), StoreLimits::OF_A_TOOL).unwrap(); // new directory
        let mut txn = Txn::new(store.clone());
        txn.put(Space::Ready, b"old", b"1");
        txn.settle(true).unwrap(); // nothing is wrong with the disk
        store.clear(Space::Ready).unwrap(); // as above
        txn.put(Space::Ready, b"new", b"2");
        txn.settle(true).unwrap(); // as above
        let keys = |store: &Store| -> Vec<Vec<u8>> {
            store.all(Space::Ready).map(|entry| entry.unwrap().0.to_vec()).collect() // as above
        };
        assert_eq!(keys(&store), [b"new"], "what was put after the clear");
        // So much that no file of the log is left that had it.
        for round in 0..3u8 {
            (0..10u8).for_each(|n| txn.put(Space::Dead, [round, n], vec![n; 1 << 20]));
            txn.settle(true).unwrap(); // as above
            store.write_out_all().unwrap(); // as above
        }
        assert_eq!(keys(&store), [b"new"], "it was written out");
        drop((txn, store, mark));
        let (store, _mark) = open::open(dir.path(), StoreLimits::OF_A_TOOL).unwrap(); // nothing is damaged
        assert_eq!(keys(&store), [b"new"], "it is there after another start");
    }

    #[test]
    fn what_was_cleared_does_not_come_back_from_the_log() {
        let dir = tempfile::tempdir().unwrap(); // the temporary directory can be written
        for end in [true, false] {
            let (store, mark) = open::open(dir.path(), StoreLimits::OF_A_TOOL).unwrap(); // nothing is damaged
            let mut txn = Txn::new(store.clone());
            txn.put(Space::Ready, b"one", b"1");
            txn.put(Space::Meta, b"other", b"2");
            txn.settle(end).unwrap(); // nothing is wrong with the disk
            store.clear(Space::Ready).unwrap(); // as above
            drop((txn, store, mark));
            let (store, _mark) = open::open(dir.path(), StoreLimits::OF_A_TOOL).unwrap(); // nothing is damaged
            assert_eq!(store.get(Space::Ready, b"one").unwrap(), None, "it was cleared");
            assert!(store.get(Space::Meta, b"other").unwrap().is_some(), "another keyspace was not");
        }
    }
}
