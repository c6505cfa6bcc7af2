//! Tables of the keyspaces: flushing and compaction. Used by the sweeper thread and by tools; any thread may query
//! sizes.

use std::time::Duration;

use lsm_tree::AbstractTree;

use super::merge::{Merged, not_merged};
use super::tend::Tended;
use super::{Fatal, Space, Store, tables, trees};

/// Target size of a compacted table.
const TABLE: u64 = 64 << 20;

impl Store {
    /// Returns the number of log files with groups: the current one and older ones still needed.
    pub fn log_files(&self) -> usize {
        self.log.used()
    }

    /// Returns the bytes on disk, including the log.
    pub fn disk_bytes(&self) -> u64 {
        self.trees.all().map(|(_, tree)| tree.disk_space()).sum::<u64>() + self.log.disk_bytes()
    }

    /// Returns the bytes of a keyspace's tables.
    pub fn table_bytes(&self, space: Space) -> u64 {
        self.trees.of(space).disk_space()
    }

    /// Flushes everything in memory to tables.
    pub fn write_out_all(&self) -> Result<(), Fatal> {
        match self.write_out(Duration::MAX)? {
            Tended::Done => Ok(()),
            Tended::NotDone => Err(Fatal("not enough disk space to flush memory to tables".into())),
        }
    }

    /// Returns the approximate number of entries of a keyspace, including overwritten and deleted entries still stored,
    /// and tombstones.
    pub fn items(&self, space: Space) -> u64 {
        self.trees.of(space).approximate_len() as u64
    }

    /// Rewrites all tables of a keyspace without deleted entries. Takes time proportional to their size. The old tables
    /// use space until no reader needs them.
    pub fn compact(&self, space: Space) -> Result<Merged, Fatal> {
        let tree = self.trees.of(space);
        self.make_tables(space, || tree.major_compact(TABLE, self.trees.forgettable()).map(|()| Merged::Some))
    }

    /// Merges or compacts. If the disk fills up, deletes the partial new tables.
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

    /// Deletes partial tables numbered `from` or above, left by a failed merge: lsm-tree does so only when it opens.
    /// Does nothing while other tables are being created; the next start deletes them then.
    pub fn delete_partial(&self, space: Space, from: u64) {
        const PATIENCE: Duration = Duration::from_millis(100);
        let Some(_files) = self.files.try_write_for(PATIENCE) else { return };
        let dir = self.pool.join(trees::DIR).join(space.name());
        // Read from disk, since lsm-tree may not know the newest list: syncing its name may have failed.
        let Ok(listed) = tables::files(&dir) else { return };
        for entry in std::fs::read_dir(dir.join(tables::TABLES)).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.parse::<u64>().is_ok_and(|id| id >= from)
                && !listed.contains(&format!("{}/{name}", tables::TABLES))
                && let Err(e) = std::fs::remove_file(entry.path())
            {
                tracing::warn!(error = %e, "a partial table could not be deleted; the next start deletes it");
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
        assert_eq!(store.items(Space::Ready), 0, "the compaction removed all deleted entries");
        let tables = dir.path().join(trees::DIR).join("ready/tables");
        let left = std::fs::read_dir(tables).unwrap().count(); // made with the store
        assert_eq!(left, 0, "table files without readers");
    }

    /// Guards against deleting a table that the list on disk names: the store would not open again.
    #[test]
    fn what_is_left_of_a_table_goes_and_what_the_list_on_the_disk_names_stays() {
        let dir = tempfile::tempdir().unwrap(); // the temporary directory can be written
        let (store, _mark) = open::open(dir.path(), StoreLimits::OF_A_TOOL).unwrap(); // new directory
        let mut txn = Txn::new(store.clone());
        txn.put(Space::Ready, b"one", b"1");
        txn.settle(true).unwrap(); // nothing is wrong with the disk
        store.write_out_all().unwrap(); // as above
        // As if a new list was renamed into place but its directory sync failed: lsm-tree continues with the previous
        // list.
        let (ready, dead) = (dir.path().join("trees/ready"), dir.path().join("trees/dead"));
        for name in tables::files(&ready).unwrap() {
            std::fs::copy(ready.join(&name), dead.join(&name)).unwrap(); // as above
        }
        let left = dead.join(tables::TABLES).join("4711");
        std::fs::write(&left, "half a table").unwrap(); // as above
        store.delete_partial(Space::Dead, 0);
        assert!(!left.exists(), "the partial table is deleted, since no list names it");
        assert_eq!(tables::damage(&dead).unwrap(), None, "the list on disk and its tables are intact"); // it can be read
    }
}
