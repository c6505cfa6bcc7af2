//! Opening: finds out whose directory it is, locks it, and opens the store.

use std::fs::{DirBuilder, File, TryLockError};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use ahash::HashMap;
use lsm_tree::{AbstractTree, SeqNo};

use super::aside::Aside;
use super::durable::{is_full, is_unreadable_io, sync};
use super::log::group::{self, Item};
use super::log::judge::{self, Findings};
use super::log::manifest::Manifest;
use super::log::{self, Log, start};
use super::mark::{CUT_OFF, MARK, Mark, OpenError, Said, lock};
use super::trees::{self, Trees, Written};
use super::{Slice, Space, Store, StoreLimits, describe, or_walk, tables};

/// Where a copy is made that is sent away, in the pool's directory.
pub const COPY: &str = "copy";

/// Removes a copy that was not removed: its process was killed.
pub fn remove_copy(pool: &Path) -> std::io::Result<()> {
    match std::fs::remove_dir_all(pool.join(COPY)) {
        Err(e) if e.kind() != ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}

/// What is wrong with the files of a pool, and what its log holds.
#[derive(Debug, Default)]
pub struct Judged {
    /// What is damaged, each in a line.
    pub damage: Vec<String>,
    /// Damaged keyspaces.
    pub trees: Vec<Space>,
    /// The log, if its manifest can be read.
    pub log: Option<(Manifest, Findings)>,
}

impl Judged {
    /// What is damaged, in a line.
    fn summary(&self) -> String {
        const MOST: usize = 4;
        let mut all: Vec<String> = self.damage.iter().take(MOST).cloned().collect();
        if self.damage.len() > MOST {
            all.push(format!("and {} more, which `dormouse repair` lists", self.damage.len() - MOST));
        }
        all.join("; ")
    }
}

/// Judges the files of a pool that was whole once. `closed` is the last group, if its end was in order. Changes nothing.
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
            // A close syncs.
            manifest.synced = manifest.synced.max(closed.unwrap_or(0));
            let findings = judge::judge(&dir, &manifest)?;
            judged.damage.extend_from_slice(&findings.damage);
            judged.log = Some((manifest, findings));
        }
        Err(e) => {
            let what = match e.kind() {
                ErrorKind::NotFound => "is missing",
                ErrorKind::InvalidData => "is not what was written",
                _ if is_unreadable_io(&e) => "cannot be read",
                _ => return Err(e),
            };
            judged.damage.push(format!("log/manifest {what}"));
        }
    }
    Ok(judged)
}

/// Opens `path`, made if it is not there.
pub fn open(path: &Path, limits: StoreLimits) -> Result<(Store, Mark), OpenError> {
    let mark = lock(path)?;
    if mark.said().repairing {
        return Err(OpenError::Damaged(path.to_owned(), CUT_OFF.to_owned()));
    }
    open_locked(path, limits, mark, false)
}

/// As [`open`], also while a repair has not ended: for who goes on with it. With `mends` what does not read in tables is
/// put into memory, as far as the log still has it.
pub fn open_locked(
    path: &Path,
    limits: StoreLimits,
    mut mark: Mark,
    mends: bool,
) -> Result<(Store, Mark), OpenError> {
    let io = |e| OpenError::Io(path.to_owned(), e);
    remove_copy(path).map_err(io)?;
    if !mark.said().made {
        // Nobody was ever answered for what is in there.
        make(path, limits).map_err(io)?;
    }
    let store = open_whole(path, limits, &mark, mends)?;
    mark.write_opened().map_err(io)?;
    Ok((store, mark))
}

/// Opens a store that was whole once, if nothing in it is damaged.
pub fn open_whole(path: &Path, limits: StoreLimits, mark: &Mark, mends: bool) -> Result<Store, OpenError> {
    let io = |e: std::io::Error| match e.kind() {
        ErrorKind::InvalidData => OpenError::Damaged(path.to_owned(), e.to_string()),
        _ => OpenError::Io(path.to_owned(), e),
    };
    let judged = judge(path, mark.said().closed).map_err(io)?;
    let summary = judged.summary();
    let (Some((manifest, findings)), true) = (judged.log, judged.damage.is_empty()) else {
        return Err(OpenError::Damaged(path.to_owned(), summary));
    };
    let trees = open_trees(path, limits)?;
    if let Some(damage) = behind(&trees, &findings) {
        return Err(OpenError::Damaged(path.to_owned(), damage));
    }
    // Nothing is damaged: from here on the log is changed.
    let dir = path.join(log::DIR);
    if findings.is_torn {
        set_torn_aside(path, &manifest, &findings).map_err(io)?;
    }
    let again = mark.said().closed != Some(findings.last.number);
    let mut filler = Filler::new(&trees, &manifest, mends);
    start::replay(&dir, &manifest, &findings, again, |number, group| filler.group(number, group))
        .map_err(io)?;
    trees.commit(findings.last.number, []);
    let log = Log::open(&dir, &manifest, &findings).map_err(io)?;
    sync_names(path).map_err(io)?;
    Ok(Store::new(path, trees, log))
}

/// What is damaged, if tables have what the log has lost.
pub fn behind(trees: &Trees, findings: &Findings) -> Option<String> {
    let (tables, last) = (trees.newest(), findings.last.number);
    (tables > last)
        .then(|| format!("tables have group {tables} of requests, and the log ends with group {last}"))
}

/// Makes a store that holds nothing. What a start that was cut off has left is set aside.
fn make(path: &Path, limits: StoreLimits) -> std::io::Result<()> {
    let mut aside = Aside::new(path)?;
    for name in [trees::DIR, log::DIR] {
        if path.join(name).exists() {
            aside.take(&path.join(name))?;
        }
    }
    Trees::open(path, limits).map_err(|e| std::io::Error::other(describe(&e)))?;
    DirBuilder::new().mode(0o700).create(path.join(log::DIR))?;
    Log::create(&path.join(log::DIR), 1, 1)?;
    sync_names(path)
}

/// Opens the trees, which were judged to be whole.
pub fn open_trees(path: &Path, limits: StoreLimits) -> Result<Trees, OpenError> {
    Trees::open(path, limits).map_err(|e| failed(path, e))
}

/// What an error of lsm-tree's means where no damage was found.
pub fn failed(path: &Path, e: lsm_tree::Error) -> OpenError {
    match e {
        lsm_tree::Error::Io(e) if !is_unreadable_io(&e) => OpenError::Io(path.to_owned(), e),
        e => OpenError::Damaged(path.to_owned(), describe(&e)),
    }
}

/// Puts what the log has into memory, but for what tables have.
pub struct Filler<'a> {
    trees: &'a Trees,
    /// The first group that is needed.
    first: u64,
    /// Of which keys the tables cannot be read, and of which they can. `None` where nobody mends that.
    unread: Option<HashMap<(Space, Slice), bool>>,
}

impl<'a> Filler<'a> {
    /// With `mends` it also puts what does not read in tables. To repeat that changes nothing: what came after it is
    /// repeated, too.
    pub fn new(trees: &'a Trees, manifest: &Manifest, mends: bool) -> Filler<'a> {
        Filler { trees, first: manifest.first, unread: mends.then(HashMap::default) }
    }

    /// Puts the entries of the next group.
    pub fn group(&mut self, number: u64, group: &[u8]) -> std::io::Result<()> {
        let Filler { trees, first, unread } = self;
        if number < *first && unread.is_none() {
            return Ok(());
        }
        let items: Option<Vec<Item<'_>>> = group::items(group).collect();
        let items = items.ok_or_else(|| {
            std::io::Error::new(ErrorKind::InvalidData, format!("group {number} cannot be read"))
        })?;
        let is_missing = |(space, key, _): &Item<'_>| {
            // What stands before the first group that is needed was in tables, of which some may be lost.
            ((number >= *first || trees.lacks(*space)) && !trees.had(*space, number))
                || unread.as_mut().is_some_and(|unread| {
                    // Once and for all: from then on memory has it.
                    *unread.entry((*space, Slice::from(*key))).or_insert_with(|| {
                        let tree = trees.of(*space);
                        or_walk(tree, key, SeqNo::MAX, tree.get(key, SeqNo::MAX)).is_err()
                    })
                })
        };
        let written = |(space, key, value): Item<'_>| {
            // It may be there, of another group.
            Written { space, key: Slice::from(key), value: value.map(Slice::from), is_new: false }
        };
        trees.commit(number, items.into_iter().filter(is_missing).map(written));
        Ok(())
    }
}

/// Keeps a copy of what stands behind the end of a torn log, and clears it.
fn set_torn_aside(path: &Path, manifest: &Manifest, findings: &Findings) -> std::io::Result<()> {
    let dir = path.join(log::DIR);
    let (mut aside, mut total) = (Aside::new(path)?, 0);
    start::clear_torn(&dir, manifest, findings, |slot, bytes| {
        let end = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        total += end;
        match aside.copy(&dir.join(slot.to_string()), &bytes[..end]) {
            // Whoever has no room must be able to open the store and drain it.
            Err(e) if is_full(&e) => tracing::warn!(error = %e, "no room to set the log's torn end aside"),
            done => done?,
        }
        Ok(())
    })?;
    let path = path.display().to_string();
    tracing::warn!(path, bytes = total, "the log's torn end, which nobody was answered for, was set aside");
    Ok(())
}

/// Makes the names last that the store relies on, whoever made them and when: a power cut may take a file whose
/// name was never synced, with all that was synced in it.
fn sync_names(path: &Path) -> std::io::Result<()> {
    for dir in [&path.join(trees::DIR), &path.join(log::DIR), path] {
        sync(dir)?;
    }
    // `path` may have been made with some of these. One that this process may not read was there before.
    for dir in path.canonicalize()?.ancestors().skip(1) {
        let _ = sync(dir);
    }
    Ok(())
}

/// What a look at a directory finds that is no error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// It is not there, or holds nothing: the first start makes it.
    New,
    /// A server has it open.
    InUse,
    /// It is whole.
    Whole,
}

/// Looks whether a directory can be opened. Makes and changes nothing.
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
    // Held for a moment only: a start need not wait for what is read here. Each start writes the mark.
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
    if said.repairing {
        return Err(OpenError::Damaged(path.to_owned(), CUT_OFF.to_owned()));
    }
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

    /// Guards against a start that is refused, since somebody looks at the directory.
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

    /// Guards against groups that are given up as a torn end of a log that is damaged.
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
            // A table without the sync that comes before it.
            store.trees.settle();
            store.trees.flush(Space::Ready, |_| Ok(())).unwrap(); // as above
        }
        let log = dir.path().join("log/0");
        let mut bytes = std::fs::read(&log).unwrap(); // it was written
        bytes[2500] ^= 0x55;
        std::fs::write(&log, &bytes).unwrap(); // as above
        let refused = open(dir.path(), StoreLimits::OF_A_TOOL).map(drop);
        let why = refused.expect_err("a table has what the log has lost").to_string();
        assert!(why.contains("tables have group 5"), "it says what is damaged: {why}");
        assert!(std::fs::read(&log).unwrap() == bytes, "the log is as it was"); // it is there
        assert!(!dir.path().join("aside").exists(), "nothing was set aside");
    }
}
