//! Creates a consistent copy of an open store: everything committed before the copy began. The copy is a directory on
//! the same file system that opens as a pool. Tables are immutable, so they are hard-linked; the log is copied.

use std::fs::{self, DirBuilder};
use std::io::Result;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::durable::{self, sync};
use super::{Store, log, mark, open, tables, trees};

/// Timeout of each attempt to lock the table files, and pause between attempts.
const TRY: Duration = Duration::from_millis(5);

impl Store {
    /// Copies the store into the pool's directory and returns the path. Leaves nothing behind on error.
    pub fn copy_inside(&self) -> Result<PathBuf> {
        open::remove_copy(&self.pool)?;
        let to = self.pool.join(open::COPY);
        let done = self.copy_to(&to);
        if done.is_err() {
            let _ = fs::remove_dir_all(&to);
        }
        done.map(|()| to)
    }

    /// Copies the store to `to`, which must not exist. Requests are served meanwhile, but tables are not created or
    /// replaced.
    pub fn copy_to(&self, to: &Path) -> Result<()> {
        let make = |dir: &Path| DirBuilder::new().mode(0o700).create(dir);
        make(to)?;
        make(&to.join(trees::DIR))?;
        make(&to.join(log::DIR))?;
        {
            // A merge may take long, and flushes must not wait behind this lock.
            let _files = loop {
                if let Some(files) = self.files.try_write_for(TRY) {
                    break files;
                }
                std::thread::sleep(TRY);
            };
            // Commits from here on are in the part of the log that is not copied.
            self.log.copy_to(&to.join(log::DIR))?;
            for (space, _) in self.trees.all() {
                let (from, to) = (self.pool.join(trees::DIR), to.join(trees::DIR));
                let (from, to) = (from.join(space.name()), to.join(space.name()));
                make(&to)?;
                make(&to.join(tables::TABLES))?;
                for name in tables::files(&from)? {
                    match name.starts_with(tables::TABLES) {
                        true => fs::hard_link(from.join(&name), to.join(&name))?,
                        false => durable::write(&to.join(&name), &fs::read(from.join(&name))?)?,
                    }
                }
                sync(&to.join(tables::TABLES))?;
                sync(&to)?;
            }
        }
        sync(&to.join(trees::DIR))?;
        // A directory without a mark does not open as a pool, so an interrupted copy is not mistaken for one.
        mark::write_mark_of_copy(to)?;
        to.parent().map_or(Ok(()), sync)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::super::txn::Txn;
    use super::super::{Space, StoreLimits, open};

    #[test]
    fn a_copy_holds_all_that_was_committed_before_and_opens_beside_the_store() {
        let dir = tempfile::tempdir().unwrap(); // the temporary directory can be written
        let (pool, to) = (dir.path().join("pool"), dir.path().join("copy"));
        let (store, _mark) = open::open(&pool, StoreLimits::OF_A_TOOL).unwrap(); // new directory
        let mut txn = Txn::new(store.clone());
        let mut put = |n: u64| {
            // Two keys of one group: both are copied or neither.
            txn.put(Space::Ready, n.to_be_bytes(), [7; 3000]);
            txn.put(Space::Dead, n.to_be_bytes(), [8; 3000]);
            txn.settle(n.is_multiple_of(7)).unwrap(); // nothing is wrong with the disk
        };
        (0..5000).for_each(&mut put);
        store.write_out(std::time::Duration::MAX).unwrap(); // as above
        (5000..6000).for_each(&mut put);
        let is_copied = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let copied = scope.spawn(|| {
                let done = store.copy_to(&to);
                is_copied.store(true, Ordering::Release);
                done
            });
            let mut n = 6000;
            while !is_copied.load(Ordering::Acquire) && n < 20_000 {
                put(n);
                n += 1;
            }
            copied.join().unwrap().unwrap(); // it does not panic, and nothing is wrong with the disk
        });
        let (copy, _mark) = open::open(&to, StoreLimits::OF_A_TOOL).unwrap(); // it was copied just now
        let keys = |space| -> Vec<u64> {
            let key = |entry: Result<(super::super::Slice, _), super::super::Fatal>| {
                u64::from_be_bytes(entry.unwrap().0.as_ref().try_into().unwrap()) // as they were written
            };
            copy.all(space).map(key).collect()
        };
        let ready = keys(Space::Ready);
        assert!(ready.len() >= 6000, "{} entries copied, expected the 6000 committed before", ready.len());
        assert_eq!(ready, (0..ready.len() as u64).collect::<Vec<_>>(), "a copy has no gap");
        assert_eq!(ready, keys(Space::Dead), "groups are copied whole");
        assert!(store.copy_to(&to).is_err(), "an existing directory is not overwritten");
    }
}
