//! Second names of journals, and files that are set aside. fjall deletes a journal when all that stands in it is in
//! tables, and nobody can see afterwards whether fjall did it. So each journal has a second name until we have
//! noted, on disk, that it is not needed: one that is missing by its first name is put back.
//!
//! To put back one that fjall has deleted is harmless: what is in tables is skipped, and the rest is done once more,
//! in order, up to where it was.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, DirBuilder, File, Metadata};
use std::io::{Error, ErrorKind, Result};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use super::groups::{Groups, Record};
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
pub fn keep(pool: &Path, database: &Path, groups: &Groups) -> Result<()> {
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
        let same = |a: &Metadata, b: &Metadata| a.ino() == b.ino() && a.dev() == b.dev();
        match (fs::metadata(&from), fs::metadata(&to)) {
            (Ok(a), Ok(b)) if same(&a, &b) => continue,
            // A copy of the directory has two files.
            (Ok(_), Ok(_)) => fs::remove_file(&to)?,
            _ => {}
        }
        match fs::hard_link(&from, &to) {
            Ok(()) => is_new = true,
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
        fs::remove_file(second.join(name(*id)))?;
    }
    Ok(())
}

/// The record of the first batch in a journal that has one, as far as it is written.
fn begin(path: &Path) -> Result<Option<Record>> {
    let bytes = journal::read(path)?;
    let mut at = 0;
    while let Some(batch) = journal::batch(&bytes, at) {
        if let Some(record) = batch.record {
            return Ok(Some(Record::read(&record)));
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
