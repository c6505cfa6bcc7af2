//! Second names of journals, and files that are set aside. fjall deletes a journal when all that stands in it is in
//! tables, and nobody can see afterwards whether fjall did it. So each journal has a second name until we have
//! noted, on disk, that it is not needed: one that is missing by its first name is put back.
//!
//! To put back one that fjall has deleted is harmless: what is in tables is skipped, and the rest is done once more,
//! in order, up to where it was.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{Error, ErrorKind, Result};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::groups::{GroupRecord, Groups};
use super::journal;

/// The second names, in the pool's directory.
pub const SECOND: &str = "journals";
/// What was set aside, in the pool's directory.
pub const ASIDE: &str = "aside";

/// The file name of a journal.
pub fn name(id: u64) -> String {
    format!("{id}.jnl")
}

/// The journals in a directory; none if it is not there.
pub fn journals(dir: &Path) -> Result<BTreeSet<u64>> {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(BTreeSet::new()),
        Err(e) => return Err(e),
    };
    let mut ids = BTreeSet::new();
    for entry in entries {
        let name = entry?.file_name();
        ids.extend(name.to_str().and_then(|name| name.strip_suffix(".jnl")?.parse::<u64>().ok()));
    }
    Ok(ids)
}

/// Syncs a directory: the names in it survive the machine.
pub fn sync(dir: &Path) -> Result<()> {
    File::open(dir)?.sync_all()
}

/// Gives new journals a second name, and takes it from those that fjall has deleted, once that is noted.
pub fn link_journals(pool: &Path, database: &Path, groups: &Groups) -> Result<()> {
    let second = pool.join(SECOND);
    // In this order: what is synced now is in a journal's file already, if it is in that journal at all.
    let synced = groups.state().synced;
    let (mut needed, known) = (journals(database)?, journals(&second)?);
    if known.is_empty() {
        DirBuilder::new().recursive(true).mode(0o700).create(&second)?;
        sync(pool)?;
    }
    let mut is_new = false;
    for id in needed.clone() {
        let (from, to) = (database.join(name(id)), second.join(name(id)));
        match link(&from, &to) {
            Ok(is_linked) => is_new |= is_linked,
            // fjall was faster.
            Err(e) if e.kind() == ErrorKind::NotFound => drop(needed.remove(&id)),
            // A file system without second names, or a full one: from now on nothing is said of old journals.
            Err(e) => {
                if groups.state().oldest.is_some() {
                    tracing::warn!(error = %e, "a journal gets no second name: if the oldest one is lost, nobody will notice");
                    groups.change(|state| state.oldest = None)?;
                }
                return Ok(());
            }
        }
    }
    let Some(oldest) = needed.first().copied() else { return Ok(()) };
    let is_old = groups.state().oldest == Some(oldest);
    if is_new || !is_old {
        sync(&second)?;
    }
    if !is_old {
        // By its second name: fjall may delete it now.
        let begins = begin(&second.join(name(oldest)))?.map_or(synced + 1, |record| record.number);
        groups.change(|state| (state.oldest, state.first) = (Some(oldest), begins))?;
    }
    for id in known.range(..oldest) {
        remove_in_parts(&second.join(name(*id)))?;
    }
    Ok(())
}

/// How much of a journal is given back at a time, and the pause after each part.
const PART: u64 = 4 << 20;
const PAUSE: Duration = Duration::from_millis(2);

/// Removes a file. If this is its only name its bytes are given back in parts: a file system that tells the disk of each
/// freed block (mounted with `discard`) does 64 MiB in 30 ms, and a sync waits for that.
fn remove_in_parts(path: &Path) -> Result<()> {
    let parts = |file: File| -> Result<()> {
        let metadata = file.metadata()?;
        let mut len = metadata.len();
        while metadata.nlink() == 1 && len > PART {
            len -= PART;
            file.set_len(len)?;
            std::thread::sleep(PAUSE);
        }
        Ok(())
    };
    // Whatever goes wrong here, the last call says so.
    let _ = OpenOptions::new().write(true).open(path).and_then(parts);
    fs::remove_file(path)
}

/// Gives a file a second name, if it does not have that already: `to` may be a file of its own, in a copy of the
/// directory or because the journals were written anew. At each moment `to` is one of the two, or what there was: `from`
/// may be deleted meanwhile.
fn link(from: &Path, to: &Path) -> Result<bool> {
    if let (Ok(a), Ok(b)) = (fs::metadata(from), fs::metadata(to))
        && (a.dev(), a.ino()) == (b.dev(), b.ino())
    {
        return Ok(false);
    }
    let new = to.with_extension("new");
    match fs::remove_file(&new) {
        Err(e) if e.kind() != ErrorKind::NotFound => return Err(e),
        // A kill in between left it.
        _ => fs::hard_link(from, &new)?,
    }
    fs::rename(&new, to)?;
    Ok(true)
}

/// The record of the first batch in a journal that has one, as far as it is written.
fn begin(path: &Path) -> Result<Option<GroupRecord>> {
    let bytes = journal::read(path)?;
    let mut at = 0;
    while let Some(batch) = journal::batch(&bytes, at) {
        if let Some(record) = batch.record {
            return Ok(Some(GroupRecord::read(&record)));
        }
        at = batch.end;
    }
    Ok(None)
}

/// Whether there is no room for what was to be written.
pub fn is_full(e: &Error) -> bool {
    matches!(e.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded)
}

/// Files that are set aside, in a directory of their own for each time.
#[derive(Debug)]
pub struct Aside {
    dir: PathBuf,
    moved: BTreeMap<PathBuf, PathBuf>,
}

impl Aside {
    /// Makes the directory when it is needed.
    pub fn new(pool: &Path) -> Result<Aside> {
        let all = pool.join(ASIDE);
        let mut n = 1;
        while all.join(n.to_string()).exists() {
            n += 1;
        }
        Ok(Aside { dir: all.join(n.to_string()), moved: BTreeMap::new() })
    }

    /// A free name there for what has this name now.
    fn place(&self, from: &Path) -> Result<PathBuf> {
        if !self.dir.exists() {
            DirBuilder::new().recursive(true).mode(0o700).create(&self.dir)?;
            // The directory's own name, and that of the one that holds it.
            for dir in self.dir.ancestors().skip(1).take(2) {
                sync(dir)?;
            }
        }
        let name = from.file_name().unwrap_or_default();
        let mut to = self.dir.join(name);
        let mut n = 1;
        while to.exists() {
            to = self.dir.join(format!("{}.{n}", Path::new(name).display()));
            n += 1;
        }
        Ok(to)
    }

    /// Moves a file or a directory there.
    pub fn take(&mut self, from: &Path) -> Result<()> {
        let to = self.place(from)?;
        fs::rename(from, &to)?;
        sync(&self.dir)?;
        if let Some(parent) = from.parent() {
            sync(parent)?;
        }
        self.moved.insert(from.to_owned(), to);
        Ok(())
    }

    /// Writes bytes there that were a part of a file.
    pub fn copy(&mut self, from: &Path, bytes: &[u8]) -> Result<()> {
        let to = self.place(from)?;
        let written = fs::write(&to, bytes).and_then(|()| File::open(&to)?.sync_all());
        if let Err(e) = written {
            // A part of it is of no use.
            let _ = fs::remove_file(&to);
            return Err(e);
        }
        sync(&self.dir)?;
        self.moved.insert(from.to_owned(), to);
        Ok(())
    }

    /// What was set aside, and where it is.
    pub fn moved(&self) -> impl Iterator<Item = (&Path, &Path)> {
        self.moved.iter().map(|(from, to)| (from.as_path(), to.as_path()))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::time::Instant;

    use super::super::groups::GroupState;
    use super::*;

    /// After an unclean end each journal is a file anew, and fjall deletes the old ones as soon as it is open.
    #[test]
    fn a_journal_that_is_deleted_meanwhile_has_a_name_or_is_not_needed() {
        for n in 0..400 {
            let pool = tempfile::tempdir().unwrap(); // the temporary directory can be written
            let (database, second) = (pool.path().join("db"), pool.path().join(SECOND));
            for dir in [&database, &second] {
                fs::create_dir(dir).unwrap(); // it is empty
                for id in 0..3 {
                    fs::write(dir.join(name(id)), []).unwrap(); // as above
                }
            }
            let state = GroupState { oldest: Some(0), ..GroupState::new() };
            let groups = Groups::open(pool.path(), state, GroupRecord::default()).unwrap(); // as above
            let barrier = Barrier::new(2);
            let kept = std::thread::scope(|scope| {
                scope.spawn(|| {
                    barrier.wait();
                    let began = Instant::now();
                    while began.elapsed() < Duration::from_micros(n) {
                        std::hint::spin_loop();
                    }
                    fs::remove_file(database.join(name(0))).unwrap(); // nobody else deletes it
                });
                barrier.wait();
                link_journals(pool.path(), &database, &groups)
            });
            assert!(kept.is_ok(), "deleted after {n} microseconds: {kept:?}");
            let oldest = groups.state().oldest.expect("the file system has second names");
            assert!(
                second.join(name(oldest)).exists(),
                "deleted after {n} microseconds: journal {oldest} counts as needed and has no name"
            );
        }
    }

    #[test]
    fn a_file_is_removed_and_its_bytes_stay_under_another_name() {
        let dir = tempfile::tempdir().unwrap(); // the temporary directory can be written
        let (one, other) = (dir.path().join("one"), dir.path().join("other"));
        let bytes = vec![7; 2 * PART as usize + 1];
        fs::write(&one, &bytes).unwrap(); // it is empty
        fs::hard_link(&one, &other).unwrap(); // as above
        remove_in_parts(&one).unwrap(); // it is there
        assert!(!one.exists(), "the name is gone");
        assert!(fs::read(&other).unwrap() == bytes, "the bytes are as they were"); // it is there
        remove_in_parts(&other).unwrap(); // it is there
        assert!(!other.exists(), "the last name is gone");
        assert!(remove_in_parts(&one).is_err(), "there is nothing to remove");
    }
}
