//! The files of the database: writes memory out as tables, compacts, and has fjall delete the files that it has
//! replaced. For the thread that sweeps, except for the figures. Reads and writes no entry: the parent module does.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use fjall::{AbstractTree, Keyspace, Slice};

use super::merge::{Merged, not_merged};
use super::{Fatal, Space, Store, is_unreadable};

/// How often [`Store::write_out`] checks whether it is done.
const WRITE_OUT_CHECK: Duration = Duration::from_millis(5);
/// A key of one byte, which no keyspace has (codec): it is only ever deleted.
const NO_KEY: [u8; 1] = [0];
/// After so many blocks in a row that cannot be read a table is given up: its index may fail for ever.
const BAD_BLOCKS: usize = 4096;
/// Where fjall keeps a keyspace's tables, in the keyspace's directory.
const TABLES: &str = "tables";

impl Store {
    /// How many journals there are: one, and older ones that are still needed or were not yet checked.
    pub fn journals(&self) -> usize {
        self.db.journal_count()
    }

    /// Bytes on disk, journals included.
    pub fn disk_bytes(&self) -> Result<u64, Fatal> {
        Ok(self.db.disk_space()?)
    }

    /// Bytes of a keyspace's tables.
    pub fn table_bytes(&self, space: Space) -> u64 {
        self.space(space).disk_space()
    }

    /// The entries of a keyspace that can be read, whatever stands between them. One whose newest value may be in a
    /// block that cannot be read is left out, although an older value can be read. For a store that nobody else uses:
    /// memory is written out first, within `patience`.
    pub fn readable(&self, space: Space, patience: Duration) -> Result<Vec<(Slice, Slice)>, Fatal> {
        if !self.write_out(patience)? {
            return Err(Fatal("what is in memory could not be written out in time".into()));
        }
        let keyspace = self.space(space);
        // A walk over the keyspace ends at the first bad block, one over a table goes on behind it.
        let mut keys = BTreeSet::new();
        for table in keyspace.tree.current_version().iter_tables() {
            let mut bad = 0;
            for item in table.iter().map(|item| item.map_err(fjall::Error::from)) {
                match item {
                    Ok(item) => {
                        bad = 0;
                        keys.insert(item.key.user_key);
                    }
                    Err(e) if is_unreadable(&e) && bad < BAD_BLOCKS => bad += 1,
                    Err(e) if is_unreadable(&e) => break,
                    Err(e) => return Err(e.into()),
                }
            }
        }
        let mut rows = Vec::new();
        for key in keys {
            match keyspace.get(&key) {
                Ok(value) => rows.extend(value.map(|value| (key, value))),
                Err(e) if is_unreadable(&e) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(rows)
    }

    /// Deletes all entries of a keyspace, also those that cannot be read.
    pub fn clear(&self, space: Space) -> Result<(), Fatal> {
        Ok(self.space(space).clear()?)
    }

    /// How many entries a keyspace has, with those that were deleted or written over and are still stored, and
    /// with the notes that say so.
    pub fn items(&self, space: Space) -> u64 {
        self.space(space).approximate_len() as u64
    }

    /// Writes what is in memory out as tables, all keyspaces', so that no older journal is needed. Waits for
    /// `patience` at most, and answers whether it is done; if not it goes on by itself.
    pub fn write_out(&self, patience: Duration) -> Result<bool, Fatal> {
        let began = Instant::now();
        for keyspace in &self.spaces {
            // A journal goes when each keyspace has tables as new as it. One that was emptied has none, so it
            // gets one, with nothing in it but this.
            keyspace.remove(NO_KEY)?;
        }
        for keyspace in &self.spaces {
            keyspace.rotate_memtable()?;
        }
        loop {
            // Fails when a worker of fjall has failed: nobody would write out any more.
            self.to_system()?;
            if self.spaces.iter().all(|keyspace| keyspace.sealed_memtable_count() == 0) {
                return Ok(true);
            }
            if began.elapsed() >= patience {
                return Ok(false);
            }
            std::thread::sleep(WRITE_OUT_CHECK);
        }
    }

    /// Rewrites all tables of a keyspace without what was deleted. Takes as long as the tables are large. The
    /// old tables take their space until [`delete_replaced`](Store::delete_replaced).
    pub fn compact(&self, space: Space) -> Result<Merged, Fatal> {
        self.space(space).major_compact().map_or_else(not_merged, |()| Ok(Merged::Some))
    }

    /// Has the files deleted whose tables a compaction has replaced, if there are any: one of ours, or one that
    /// fjall did by itself. fjall keeps them for those who may still read them, and checks again only when a
    /// memtable is written out: at rest that would be never.
    pub fn delete_replaced(&self) -> Result<(), Fatal> {
        if self.spaces.iter().any(has_replaced) {
            let smallest = self.space(Space::Meta);
            // fjall keeps what was current at the last write before it checks.
            smallest.remove(NO_KEY)?;
            smallest.rotate_memtable()?;
        }
        Ok(())
    }
}

/// Whether a keyspace has files that are no tables of it any more. One whose table is being made counts too:
/// then deleting does nothing. One whose directory cannot be listed counts as having none: upkeep asks again.
fn has_replaced(keyspace: &Keyspace) -> bool {
    let Ok(files) = std::fs::read_dir(keyspace.path().join(TABLES)) else { return false };
    // In this order, so that a table that is finished between the two is not taken for a replaced one.
    files.count() > keyspace.table_count()
}

#[cfg(test)]
mod tests {
    use super::super::txn::Txn;
    use super::super::{StoreLimits, open};
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(30);

    /// Files and tables of the ready lists.
    fn files(store: &Store) -> (usize, usize) {
        let keyspace = store.space(Space::Ready);
        let dir = std::fs::read_dir(keyspace.path().join(TABLES)).unwrap(); // made with the keyspace
        (dir.count(), keyspace.table_count())
    }

    /// Waits for what fjall's own threads have begun.
    fn eventually(what: &str, is_so: impl Fn() -> bool) {
        for _ in 0..6000 {
            if is_so() {
                return;
            }
            std::thread::sleep(WRITE_OUT_CHECK);
        }
        panic!("{what}: it is not so after half a minute");
    }

    #[test]
    fn what_a_compaction_has_replaced_is_deleted_without_more_writes() {
        let dir = tempfile::tempdir().unwrap(); // the temporary directory can be written
        let (store, _mark) = open::open(dir.path(), StoreLimits::OF_A_TOOL).unwrap(); // new directory
        let mut txn = Txn::new(store.clone());
        for n in 0..100u64 {
            txn.put(Space::Ready, n.to_be_bytes(), [7; 1000]);
        }
        txn.settle(false).unwrap(); // nothing is wrong with the disk
        assert!(store.write_out(PATIENCE).unwrap(), "100 kB are written out within seconds");
        assert_eq!(store.items(Space::Ready), 101, "entries, and the key that is only ever deleted");
        for n in 0..100u64 {
            txn.delete(Space::Ready, n.to_be_bytes());
        }
        txn.settle(false).unwrap();
        assert!(store.write_out(PATIENCE).unwrap(), "100 deletions are written out within seconds");
        store.compact(Space::Ready).unwrap();
        assert_eq!(store.items(Space::Ready), 0, "all was deleted, and the compaction knows");
        let (files_left, tables) = files(&store);
        assert_eq!(tables, 0, "there is nothing to keep a table for");
        assert!(files_left > 0, "fjall deletes replaced tables at once: delete_replaced is needed no more");
        store.delete_replaced().unwrap();
        eventually("the files of replaced tables are deleted", || files(&store) == (0, 0));
        // It comes to an end: the tables that this makes do not ask for the next call.
        eventually("deleting replaced files leaves nothing to delete", || {
            store.delete_replaced().unwrap();
            !store.spaces.iter().any(has_replaced)
        });
    }
}
