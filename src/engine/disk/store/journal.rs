//! Syncs fjall's journal through a file of our own. fjall syncs it under the lock that every commit takes; here
//! nobody waits for a sync but who asked for it. Also gives a journal its blocks before they are needed, and writes
//! journals anew after an unclean end. Knows where fjall keeps its journals and how it numbers them, and nothing of
//! what is in them.

use std::fs::{File, OpenOptions};
use std::io::{Read, Result, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, SeekFrom, openat, seek};
use rustix::io::Errno;

use super::guard::names;

/// How many bytes get their blocks at a time. The next sync writes them too, in some tenths of a millisecond.
const AHEAD: u64 = 256 << 10;
/// Who writes more between two syncs gains nothing by it: the blocks of a large write are found once.
const LARGE: u64 = 64 << 10;

/// The journal that is written now, or an older one until the next sync.
#[derive(Debug)]
pub struct Journal {
    /// The database's directory.
    database: File,
    number: u64,
    /// Kept open, so that no failed write goes unnoticed: the system tells each open file of it once.
    file: File,
    /// The name of the one after it.
    next: String,
    /// What [`prepare`](Journal::prepare) knows of this journal.
    blocks: Option<Blocks>,
}

/// A journal's blocks.
#[derive(Debug)]
struct Blocks {
    file: File,
    zeros: Box<[u8]>,
    /// Where the next batch will be written, about.
    at: u64,
    /// Up to here, there are blocks.
    end: u64,
    /// Where the file ends.
    len: u64,
}

impl Journal {
    /// The current journal of an open database.
    pub fn of(database: &Path) -> Result<Journal> {
        let number = names::journals(database)?.pop_last().ok_or(std::io::ErrorKind::NotFound)?;
        let database = File::open(database)?;
        let file = open(&database, &names::name(number), OFlags::RDONLY)?;
        Ok(Journal { database, number, file, next: names::name(number + 1), blocks: None })
    }

    /// Makes everything last that was given to the system before. fjall syncs a journal before it makes the next one, so
    /// the newest is enough.
    pub fn sync(&mut self) -> Result<()> {
        loop {
            self.file = match open(&self.database, &self.next, OFlags::RDONLY) {
                Ok(next) => next,
                Err(Errno::NOENT) => break,
                Err(e) => return Err(e.into()),
            };
            self.number += 1;
            self.next = names::name(self.number + 1);
            self.blocks = None;
        }
        self.file.sync_data()
    }

    /// Gives blocks to what will be written next. fjall makes a journal as one large hole, and a sync of bytes that were
    /// written into a hole has to write where they are besides, one after the other; with blocks it takes two thirds of
    /// the time. `written` is how much was written since the last call, about.
    ///
    /// Writes zeros where nothing was ever written, and nothing else: whatever goes wrong, the journal holds the same
    /// bytes as before. Only for the thread that commits, and between two commits.
    pub fn prepare(&mut self, written: u64) {
        let blocks = match &mut self.blocks {
            Some(blocks) => {
                blocks.at += written;
                blocks
            }
            new => match Blocks::of(&self.database, self.number) {
                Ok(blocks) => new.insert(blocks),
                Err(_) => return,
            },
        };
        if written <= LARGE && blocks.at + AHEAD / 2 > blocks.end && blocks.add().is_err() {
            // A full disk, most likely: whoever commits will hear of it. The next journal is another try.
            blocks.end = u64::MAX;
        }
    }
}

impl Blocks {
    fn of(database: &File, number: u64) -> Result<Blocks> {
        let file = open(database, &names::name(number), OFlags::RDWR)?;
        let len = file.metadata()?.len();
        // Every file has a hole at its end. A journal that was there when the database was opened has no other: it
        // grows with what is written.
        let hole = seek(&file, SeekFrom::Hole(0)).unwrap_or(len);
        Ok(Blocks { file, zeros: vec![0; AHEAD as usize].into(), at: hole, end: hole, len })
    }

    fn add(&mut self) -> Result<()> {
        const PAGE: u64 = 4096;
        let from = self.end.max(self.at.next_multiple_of(PAGE));
        let to = (from + AHEAD).min(self.len);
        if from >= to {
            return Ok(());
        }
        // The place is a guess. What is there already has its blocks.
        if data_after(&self.file, from)?.is_none_or(|data| data >= to) {
            self.file.write_all_at(&self.zeros[..(to - from) as usize], from)?;
        }
        self.end = to;
        Ok(())
    }
}

/// Where the first byte stands, from there on, that is in no hole.
fn data_after(file: &File, from: u64) -> Result<Option<u64>> {
    match seek(file, SeekFrom::Data(from)) {
        Ok(data) => Ok(Some(data)),
        Err(Errno::NXIO) => Ok(None),
        Err(e) => Err(e.into()),
    }
}

fn open(database: &File, name: &str, how: OFlags) -> std::result::Result<File, Errno> {
    openat(database, name, how | OFlags::CLOEXEC, Mode::empty()).map(File::from)
}

fn path(database: &Path, number: u64) -> PathBuf {
    database.join(names::name(number))
}

/// Writes each journal into a new file in its place, synced. After an unclean end the system may show bytes that never
/// reached the disk: when a sync has failed, they stay in memory, and no later sync writes them. Only before the
/// database is opened. A disk without room for it is left as it is, so that the store can be opened and drained.
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
    use std::os::unix::fs::MetadataExt;

    use super::*;

    /// A journal of so many bytes, all of them a hole, and its file.
    fn hole(database: &Path, len: u64) -> (Journal, File) {
        let file = File::create_new(path(database, 0)).expect("the temporary directory can be written");
        file.set_len(len).expect("a hole takes no room");
        (Journal::of(database).expect("it is there"), file)
    }

    /// How many bytes have blocks.
    fn blocks(file: &File) -> u64 {
        file.sync_all().expect("nothing is wrong with the disk");
        file.metadata().expect("it is open").blocks() * 512
    }

    #[test]
    fn what_is_written_next_has_blocks_and_the_bytes_stay() {
        let dir = tempfile::tempdir().unwrap(); // the temporary directory can be written
        let (mut journal, file) = hole(dir.path(), 8 * AHEAD);
        let mut at = 0;
        while at < 8 * AHEAD {
            let before = blocks(&file);
            let len = (LARGE / 2).min(8 * AHEAD - at);
            file.write_all_at(&vec![7; len as usize], at).unwrap(); // nothing is wrong with the disk
            at += len;
            let gained = blocks(&file) - before;
            assert!(
                gained == 0 || at == LARGE / 2,
                "{gained} bytes of blocks for the {len} bytes before {at}"
            );
            journal.sync().unwrap(); // likewise
            journal.prepare(len);
            let bytes = std::fs::read(path(dir.path(), 0)).unwrap(); // it is there
            assert_eq!(bytes.len() as u64, 8 * AHEAD, "the length after {at} bytes");
            let wrong =
                bytes.iter().enumerate().find(|(n, byte)| **byte != if (*n as u64) < at { 7 } else { 0 });
            assert_eq!(wrong, None, "a byte that is not as it was, after {at} bytes");
        }
    }

    #[test]
    fn what_stands_where_a_guess_puts_the_end_is_not_touched() {
        let dir = tempfile::tempdir().unwrap(); // the temporary directory can be written
        let (mut journal, file) = hole(dir.path(), 8 * AHEAD);
        journal.prepare(0);
        // More than it is told.
        file.write_all_at(&vec![7; 3 * AHEAD as usize], 0).unwrap(); // nothing is wrong with the disk
        for _ in 0..64 {
            journal.prepare(AHEAD / 8);
        }
        let bytes = std::fs::read(path(dir.path(), 0)).unwrap(); // it is there
        let (written, rest) = bytes.split_at(3 * AHEAD as usize);
        assert!(written.iter().all(|byte| *byte == 7), "what was written is there");
        assert!(rest.iter().all(|byte| *byte == 0), "the rest is zeros");
        assert_eq!(bytes.len() as u64, 8 * AHEAD, "the length");
        assert!(blocks(&file) >= 8 * AHEAD, "{} bytes have blocks in the end", blocks(&file));
    }

    #[test]
    fn large_writes_and_a_journal_that_grows_are_left_alone() {
        let dir = tempfile::tempdir().unwrap(); // the temporary directory can be written
        let (mut journal, file) = hole(dir.path(), 8 * AHEAD);
        journal.prepare(LARGE + 1);
        assert_eq!(blocks(&file), 0, "after a large write");
        let dir = tempfile::tempdir().unwrap(); // likewise
        let (mut journal, file) = hole(dir.path(), 0);
        for _ in 0..8 {
            journal.prepare(LARGE);
        }
        assert_eq!(file.metadata().unwrap().len(), 0, "the end of a journal is where its last batch ends"); // it is open
    }

    #[test]
    fn a_rewritten_journal_has_the_same_bytes_in_another_file() {
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
