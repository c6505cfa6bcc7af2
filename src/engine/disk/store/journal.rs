//! Syncs fjall's journal through a file of our own. fjall syncs it under the lock that every commit takes; here
//! nobody waits for a sync but who asked for it. Also writes journals anew after an unclean end. Knows where fjall
//! keeps its journals and how it numbers them, and nothing of what is in them.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Result, Write};
use std::path::{Path, PathBuf};

use super::guard::names;

/// The journal that is written now, or an older one until the next sync.
#[derive(Debug)]
pub struct Journal {
    database: PathBuf,
    number: u64,
    /// Kept open, so that no failed write goes unnoticed: the system tells each open file of it once.
    file: File,
}

impl Journal {
    /// The current journal of an open database.
    pub fn of(database: &Path) -> Result<Journal> {
        let number = names::journals(database)?.pop_last().ok_or(ErrorKind::NotFound)?;
        let file = File::open(path(database, number))?;
        Ok(Journal { database: database.to_owned(), number, file })
    }

    /// Makes everything last that was given to the system before. fjall syncs a journal before it makes the next one, so
    /// the newest is enough.
    pub fn sync(&mut self) -> Result<()> {
        loop {
            match File::open(path(&self.database, self.number + 1)) {
                Ok(next) => (self.file, self.number) = (next, self.number + 1),
                Err(e) if e.kind() == ErrorKind::NotFound => break,
                Err(e) => return Err(e),
            }
        }
        self.file.sync_data()
    }
}

fn path(database: &Path, number: u64) -> PathBuf {
    database.join(names::name(number))
}

/// Writes each journal into a new file in its place, synced. After an unclean end the system may show bytes that never
/// reached the disk: when a sync has failed, they stay in memory, and no later sync writes them. Only before the database
/// is opened. A disk without room for it is left as it is, so that the store can be opened and drained.
pub fn rewrite(database: &Path) -> Result<()> {
    for number in names::journals(database)? {
        let (old, new) = (path(database, number), database.join(format!("{number}.new")));
        if let Err(e) = copy(&old, &new) {
            let _ = std::fs::remove_file(&new);
            if names::is_full(&e) {
                tracing::warn!(path = %old.display(), error = %e, "no room to write the journal anew");
                return Ok(());
            }
            return Err(e);
        }
        std::fs::rename(&new, &old)?;
    }
    File::open(database)?.sync_all()
}

/// Copies by reading and writing: the system's own copy may share what is on the disk. Zeros at the end are left out,
/// not the length.
fn copy(from: &Path, to: &Path) -> Result<()> {
    let mut from = File::open(from)?;
    let mut to = OpenOptions::new().write(true).create(true).truncate(true).open(to)?;
    to.set_permissions(from.metadata()?.permissions())?;
    let mut buffer = vec![0; 1 << 20];
    let (mut zeros, mut len) = (0u64, 0u64);
    loop {
        let read = from.read(&mut buffer)?;
        if read == 0 {
            break;
        }
        len += read as u64;
        let part = &buffer[..read];
        if part.iter().all(|byte| *byte == 0) {
            zeros += read as u64;
            continue;
        }
        std::io::copy(&mut std::io::repeat(0).take(std::mem::take(&mut zeros)), &mut to)?;
        to.write_all(part)?;
    }
    to.set_len(len)?;
    to.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rewritten_journal_has_the_same_bytes_in_another_file() {
        use std::os::unix::fs::MetadataExt;
        let dir = tempfile::tempdir().unwrap(); // the temporary directory can be written
        let mut bytes = vec![7; 5];
        bytes.resize(3 << 20, 0);
        bytes.extend([1, 2, 3]);
        bytes.resize(6 << 20, 0);
        let (journal, other) = (path(dir.path(), 12), dir.path().join("lock"));
        std::fs::write(&journal, &bytes).unwrap();
        std::fs::write(&other, "x").unwrap();
        let inode = |path: &Path| std::fs::metadata(path).unwrap().ino(); // it is there
        let before = (inode(&journal), inode(&other));
        // Holds the old file, so that its number is not used again.
        let _old = File::open(&journal).unwrap();
        rewrite(dir.path()).unwrap();
        assert!(std::fs::read(&journal).unwrap() == bytes, "the journal holds other bytes");
        assert_ne!(inode(&journal), before.0, "the journal is the old file");
        assert_eq!(inode(&other), before.1, "what is no journal was touched");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2, "something is left beside them");
    }
}
