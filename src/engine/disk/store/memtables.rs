//! Frees what fjall kept in memory, where nobody waits for it. fjall lets go of a memtable that is written out under the
//! lock that every read and write of its keyspace takes, and to free its hundreds of thousands of entries takes 10 to
//! 55 ms. So a thread of the engine keeps a reference of its own, and frees a memtable when that is the last one. Reads
//! and writes no entry.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use fjall::AbstractTree;

use super::Store;

/// References to memtables: those that are filled now, and older ones that fjall still needs.
#[derive(Default)]
pub struct Memtables(Vec<Arc<dyn Any + Send + Sync>>);

impl fmt::Debug for Memtables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Memtables({})", self.0.len())
    }
}

impl Memtables {
    /// Takes references to the memtables that are filled now, and frees those that fjall has let go of. To be called
    /// more often than a memtable is filled: one that was not seen is freed by fjall.
    pub fn free_unused(&mut self, store: &Store) {
        for keyspace in &store.spaces {
            let now: Arc<dyn Any + Send + Sync> = keyspace.tree.active_memtable();
            if !self.0.iter().any(|known| Arc::ptr_eq(known, &now)) {
                self.0.push(now);
            }
        }
        // Nobody can take another reference to one of which this is the last.
        self.0.retain(|memtable| Arc::strong_count(memtable) > 1);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::txn::Txn;
    use super::super::{SPACES, Space, StoreLimits, open};
    use super::*;

    #[test]
    fn a_memtable_that_was_written_out_is_freed_by_who_looks_and_not_by_fjall() {
        let dir = tempfile::tempdir().unwrap(); // the temporary directory can be written
        let (store, _mark) = open::open(dir.path(), StoreLimits::OF_A_TOOL).unwrap(); // new directory
        let mut txn = Txn::new(store.clone());
        let mut memtables = Memtables::default();
        memtables.free_unused(&store);
        assert_eq!(memtables.0.len(), SPACES, "each keyspace has one");
        let first: Vec<_> = memtables.0.iter().map(Arc::downgrade).collect();
        let mut write_out = |n: u8| {
            for (space, ..) in Space::ALL {
                txn.put(space, [1, n], [n; 100]);
            }
            txn.settle(false).unwrap(); // nothing is wrong with the disk
            assert!(store.write_out(Duration::from_secs(30)).unwrap(), "a kilobyte is written out at once");
        };
        // fjall keeps a memtable that it has written out until something else is.
        let mut n = 0;
        while first.iter().any(|memtable| memtable.strong_count() > 1) {
            n += 1;
            assert!(n < 100, "fjall has let go of what was written out long ago");
            write_out(n);
        }
        assert!(
            first.iter().all(|memtable| memtable.strong_count() == 1),
            "this is the last reference to each"
        );
        memtables.free_unused(&store);
        assert!(first.iter().all(|memtable| memtable.strong_count() == 0), "a look has freed them");
        assert!(memtables.0.len() >= SPACES, "those that are filled now are held");
    }
}
