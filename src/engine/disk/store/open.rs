//! Opens a store: identifies and locks its directory, checks it and replays the log.

use std::fs::{DirBuilder, File, TryLockError};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use lsm_tree::Slice;

use super::aside::Aside;
use super::durable::{is_full, is_unreadable_io, sync};
use super::log::group::{self, Item};
use super::log::judge::{self, Findings};
use super::log::manifest::Manifest;
use super::log::{self, Log, start};
use super::mark::{MARK, Mark, OpenError, Said, lock};
use super::trees::{self, Trees, Written};
use super::{Space, Store, StoreLimits, describe, tables};

/// Directory in the pool's for copies that are streamed away.
pub const COPY: &str = "copy";

/// Deletes a copy left behind by a killed process.
pub fn remove_copy(pool: &Path) -> std::io::Result<()> {
    match std::fs::remove_dir_all(pool.join(COPY)) {
        Err(e) if e.kind() != ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}

/// Result of checking a pool's files.
#[derive(Debug, Default)]
pub struct Judged {
    /// Corruption, one line each.
    pub damage: Vec<String>,
    /// Corrupt keyspaces.
    pub trees: Vec<Space>,
    /// Log and findings, if the manifest is readable.
    pub log: Option<(Manifest, Findings)>,
}

impl Judged {
    /// Summarizes the corruption in one line.
    fn summary(&self) -> String {
        const MOST: usize = 4;
        let mut all: Vec<String> = self.damage.iter().take(MOST).cloned().collect();
        if self.damage.len() > MOST {
            all.push(format!("and {} more, which `dormouse repair` lists", self.damage.len() - MOST));
        }
        all.join("; ")
    }
}

/// Checks the files of a completely created pool. `closed` is the last group, if the shutdown was clean. Read-only.
pub fn judge(pool: &Path, closed: Option<u64>) -> std::io::Result<Judged> {
    let mut judged = Judged::default();
    for dir in [trees::DIR, log::DIR] {
        if !pool.join(dir).is_dir() {
            judged.damage.push(format!("the directory {dir} is missing"));
        }
    }
    for (space, name, _) in Space::ALL {
        if let Some(what) = tables::damage(&pool.join(trees::DIR).join(name))? {
            judged.damage.push(format!("keyspace {name}: {what}"));
            judged.trees.push(space);
        }
    }
    let dir = pool.join(log::DIR);
    match Manifest::read(&dir) {
        Ok(mut manifest) => {
            // A clean shutdown syncs.
            manifest.synced = manifest.synced.max(closed.unwrap_or(0));
            let findings = judge::judge(&dir, &manifest)?;
            judged.damage.extend_from_slice(&findings.damage);
            judged.log = Some((manifest, findings));
        }
        Err(e) => {
            let what = match e.kind() {
                ErrorKind::NotFound => "is missing",
                ErrorKind::InvalidData => "is corrupt",
                _ if is_unreadable_io(&e) => "cannot be read",
                _ => return Err(e),
            };
            judged.damage.push(format!("log/manifest {what}"));
        }
    }
    Ok(judged)
}

/// Opens `path`, creating it if missing.
pub fn open(path: &Path, limits: StoreLimits) -> Result<(Store, Mark), OpenError> {
    let io = |e| OpenError::Io(path.to_owned(), e);
    let mut mark = lock(path)?;
    remove_copy(path).map_err(io)?;
    if !mark.said().made {
        // No request was acknowledged for its contents.
        make(path, limits).map_err(io)?;
    }
    let store = open_whole(path, limits, mark.said().closed)?;
    mark.write_opened().map_err(io)?;
    Ok((store, mark))
}

/// Opens a completely created store if it has no corruption. `closed` is the last group, if the shutdown was clean.
pub fn open_whole(path: &Path, limits: StoreLimits, closed: Option<u64>) -> Result<Store, OpenError> {
    let io = |e: std::io::Error| match e.kind() {
        ErrorKind::InvalidData => OpenError::Damaged(path.to_owned(), e.to_string()),
        _ => OpenError::Io(path.to_owned(), e),
    };
    let judged = judge(path, closed).map_err(io)?;
    let summary = judged.summary();
    let (Some((manifest, findings)), true) = (judged.log, judged.damage.is_empty()) else {
        return Err(OpenError::Damaged(path.to_owned(), summary));
    };
    let trees = open_trees(path, limits)?;
    if let Some(damage) = behind(trees.newest(), &findings) {
        return Err(OpenError::Damaged(path.to_owned(), damage));
    }
    // No corruption was found: from here on the log is changed.
    let dir = path.join(log::DIR);
    if findings.is_torn {
        set_torn_aside(path, &manifest, &findings).map_err(io)?;
    }
    let again = closed != Some(findings.last.number);
    // Earlier groups are in tables.
    let each =
        |number, group: &[u8]| if number < manifest.first { Ok(()) } else { fill(&trees, number, group) };
    start::replay(&dir, &manifest, &findings, again, each).map_err(io)?;
    trees.commit(findings.last.number, []);
    let log = Log::open(&dir, &manifest, &findings).map_err(io)?;
    sync_names(path).map_err(io)?;
    Ok(Store::new(path, trees, log))
}

/// Describes the corruption if tables have groups, up to the group `tables`, that the log has lost.
pub fn behind(tables: u64, findings: &Findings) -> Option<String> {
    let last = findings.last.number;
    (tables > last).then(|| format!("tables have group {tables}, but the log ends with group {last}"))
}

/// Creates an empty store. Moves aside the remains of an interrupted creation.
fn make(path: &Path, limits: StoreLimits) -> std::io::Result<()> {
    let aside = Aside::new(path)?;
    for name in [trees::DIR, log::DIR] {
        if path.join(name).exists() {
            aside.take(&path.join(name))?;
        }
    }
    Trees::open(path, limits).map_err(|e| std::io::Error::other(describe(&e)))?;
    make_log(path, 1)
}

/// Creates an empty log behind whole trees. `first` is the number of its first group.
pub fn make_log(path: &Path, first: u64) -> std::io::Result<()> {
    DirBuilder::new().mode(0o700).create(path.join(log::DIR))?;
    Log::create(&path.join(log::DIR), first)?;
    sync_names(path)
}

/// Opens trees that passed their check.
fn open_trees(path: &Path, limits: StoreLimits) -> Result<Trees, OpenError> {
    Trees::open(path, limits).map_err(|e| match e {
        lsm_tree::Error::Io(e) if !is_unreadable_io(&e) => OpenError::Io(path.to_owned(), e),
        e => OpenError::Damaged(path.to_owned(), describe(&e)),
    })
}

/// Loads the entries of the next group into memory, except those already in tables.
fn fill(trees: &Trees, number: u64, group: &[u8]) -> std::io::Result<()> {
    let items: Option<Vec<Item<'_>>> = group::items(group).collect();
    let items = items.ok_or_else(|| {
        std::io::Error::new(ErrorKind::InvalidData, format!("group {number} cannot be read"))
    })?;
    let missing = items.into_iter().filter(|(space, ..)| !trees.had(*space, number));
    let written = |(space, key, value): Item<'_>| {
        // The key may already exist, from another group.
        Written { space, key: Slice::from(key), value: value.map(Slice::from), is_new: false }
    };
    trees.commit(number, missing.map(written));
    Ok(())
}

/// Keeps a copy of the bytes behind the end of a torn log, and zeroes them.
fn set_torn_aside(path: &Path, manifest: &Manifest, findings: &Findings) -> std::io::Result<()> {
    let dir = path.join(log::DIR);
    let (aside, mut total) = (Aside::new(path)?, 0);
    start::clear_torn(&dir, manifest, findings, |slot, bytes| {
        let end = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        total += end;
        match aside.copy(&dir.join(slot.to_string()), &bytes[..end]) {
            // With a full disk, the store must still open so that it can be drained.
            Err(e) if is_full(&e) => {
                tracing::warn!(error = %e, "not enough disk space to keep a copy of the log's torn tail")
            }
            done => done?,
        }
        Ok(())
    })?;
    let path = path.display().to_string();
    tracing::warn!(
        path,
        bytes = total,
        "the log ended in a torn tail of unacknowledged writes, which was moved aside"
    );
    Ok(())
}

/// Makes the names that the store relies on durable: a power cut may lose a file whose name was never synced, even if
/// its contents were.
fn sync_names(path: &Path) -> std::io::Result<()> {
    for dir in [&path.join(trees::DIR), &path.join(log::DIR), path] {
        sync(dir)?;
    }
    // `path` may have been created with some of its parents. One that this process may not read existed before.
    for dir in path.canonicalize()?.ancestors().skip(1) {
        let _ = sync(dir);
    }
    Ok(())
}

/// Result of a check that found no error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// Missing or empty: the first start creates it.
    New,
    /// A server has it open.
    InUse,
    /// No corruption.
    Whole,
}

/// Checks whether a directory can be opened. Read-only.
pub fn look(path: &Path) -> Result<Look, OpenError> {
    let io = |e| OpenError::Io(path.to_owned(), e);
    let file = match File::open(path.join(MARK)) {
        Ok(file) => file,
        Err(e) if e.kind() == ErrorKind::NotFound => {
            return match std::fs::read_dir(path).map(|mut entries| entries.next().is_none()) {
                Ok(false) => Err(OpenError::NotOurs(path.to_owned())),
                Err(e) if e.kind() != ErrorKind::NotFound => Err(io(e)),
                Ok(true) | Err(_) => Ok(Look::New),
            };
        }
        Err(e) => return Err(io(e)),
    };
    // Locked only for a moment, so that a start need not wait for this check. Each start writes the mark.
    let written = || match file.try_lock_shared() {
        Ok(()) => file.metadata()?.modified().map(Some),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(e)) => Err(e),
    };
    let Some(before) = written().map_err(io)? else { return Ok(Look::InUse) };
    let mut bytes = Vec::new();
    let read = (&file).take(256).read_to_end(&mut bytes);
    file.unlock().and(read).map_err(io)?;
    let said = Said::parse(path, &bytes)?;
    if !said.made {
        return Ok(Look::New);
    }
    let judged = judge(path, said.closed);
    if written().map_err(io)? != Some(before) {
        return Ok(Look::InUse);
    }
    let judged = judged.map_err(io)?;
    if judged.damage.is_empty() {
        Ok(Look::Whole)
    } else {
        Err(OpenError::Damaged(path.to_owned(), judged.summary()))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::super::txn::Txn;
    use super::*;

    /// Guards against a start refused because of a concurrent check.
    #[test]
    fn a_look_keeps_no_start_out() {
        let dir = tempfile::tempdir().unwrap(); // the temporary directory can be written
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    let _ = look(dir.path());
                }
            });
            for n in 0..20 {
                let opened = open(dir.path(), StoreLimits::OF_A_TOOL).map(drop);
                is_over.fetch_or(n == 19 || opened.is_err(), Ordering::Relaxed);
                opened.unwrap_or_else(|e| panic!("start {n}: {e}"));
            }
        });
    }

    /// Guards against a start refused because a check was suspended while it held the lock.
    #[test]
    fn a_start_waits_for_a_slow_look() {
        let dir = tempfile::tempdir().unwrap(); // the temporary directory can be written
        let opened = || open(dir.path(), StoreLimits::OF_A_TOOL).map(drop);
        opened().unwrap(); // new directory
        let look = File::open(dir.path().join(MARK)).unwrap(); // it was just written
        look.lock_shared().unwrap(); // nobody has it
        std::thread::scope(|scope| {
            scope.spawn(move || {
                std::thread::sleep(std::time::Duration::from_millis(300));
                drop(look);
            });
            opened().unwrap_or_else(|e| panic!("a start during a look: {e}"));
        });
    }

    /// Guards against discarding groups of a corrupt log as its torn tail.
    #[test]
    fn what_is_damaged_is_refused_before_a_torn_end_is_cleared() {
        let dir = tempfile::tempdir().unwrap(); // the temporary directory can be written
        {
            let (store, _mark) = open(dir.path(), StoreLimits::OF_A_TOOL).unwrap(); // new directory
            let mut txn = Txn::new(store.clone());
            for n in 0..5u8 {
                txn.put(Space::Ready, [n], [n; 1000]);
                txn.settle(false).unwrap(); // nothing is wrong with the disk
            }
            // A table flushed without the sync that normally precedes it.
            store.trees.settle();
            store.trees.flush(Space::Ready, |_| Ok(())).unwrap(); // as above
        }
        let log = dir.path().join("log/0");
        let mut bytes = std::fs::read(&log).unwrap(); // it was written
        bytes[2500] ^= 0x55;
        std::fs::write(&log, &bytes).unwrap(); // as above
        let refused = open(dir.path(), StoreLimits::OF_A_TOOL).map(drop);
        let why = refused.expect_err("a table has a group that the log has lost").to_string();
        assert!(why.contains("tables have group 5"), "the error names the damage: {why}");
        assert!(std::fs::read(&log).unwrap() == bytes, "the log is as it was"); // it is there
        assert!(!dir.path().join("aside").exists(), "nothing was set aside");
    }
}
