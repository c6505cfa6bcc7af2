//! Reports corruption in a pool's directory, and on request moves corrupt files aside so that the rest opens. The
//! directory must not be open in a server. Deletes nothing.

use std::fmt;
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use super::aside::Aside;
use super::log::group::FileHead;
use super::log::manifest::Manifest;
use super::log::{self, Log, slots};
use super::mark::{CUT_OFF, FORMAT, MARK, Mark, OpenError, lock};
use super::open::{self, Filler, Judged};
use super::trees::{self, Trees};
use super::txn::Txn;
use super::{Fatal, Space, Store, StoreLimits, tables};
use crate::engine::disk::codec::{self, FIRST_SEQ, META_NEWEST, META_SEQ};

/// Damage found in a directory, and actions taken.
#[derive(Debug, Default)]
pub struct RepairReport {
    /// Corruption, one line each.
    pub damage: Vec<String>,
    /// Remarks that are not errors.
    pub notes: Vec<String>,
    /// Original and new path of everything moved aside.
    pub aside: Vec<(PathBuf, PathBuf)>,
    /// Whether the corruption was accepted, so that the rest opens.
    pub accepted: bool,
    /// Whether the store is empty because its creation was interrupted.
    pub is_new: bool,
}

impl RepairReport {
    /// Returns whether a server can open the directory.
    pub fn opens(&self) -> bool {
        self.damage.is_empty() || self.accepted
    }
}

impl fmt::Display for RepairReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "format {}", FORMAT)?;
        for line in &self.damage {
            writeln!(f, "damaged: {line}")?;
        }
        for line in &self.notes {
            writeln!(f, "note: {line}")?;
        }
        for (from, to) in &self.aside {
            writeln!(f, "set aside: {} is {}", from.display(), to.display())?;
        }
        match (self.damage.is_empty(), self.accepted) {
            (true, _) => writeln!(f, "nothing is damaged"),
            (false, true) => writeln!(f, "the undamaged part opens now"),
            (false, false) => writeln!(
                f,
                "nothing was changed. Restore a backup; or copy the directory, then give up the damaged parts \
                 with --accept-loss"
            ),
        }
    }
}

/// Upper bound on the job sequence numbers that lost data may have reserved (state/mod.rs). There are 2^24 times as
/// many numbers.
const SEQS_LOST: u64 = 1 << 40;
/// Upper bound on the number of groups lost.
const NUMBERS_LOST: u64 = 1 << 31;

/// Checks the files of the directory. Read-only unless `accept_loss`.
pub fn repair(path: &Path, accept_loss: bool) -> Result<RepairReport, OpenError> {
    if !path.join(MARK).exists() {
        return Err(OpenError::NotOurs(path.to_owned()));
    }
    let io = |e| OpenError::Io(path.to_owned(), e);
    let mut mark = lock(path)?;
    let mut report = RepairReport::default();
    if !mark.said().made {
        report.is_new = true;
        report.notes.push("it is empty: its creation was interrupted".to_owned());
        return Ok(report);
    }
    let mut judged = open::judge(path, mark.said().closed).map_err(io)?;
    // lsm-tree deletes only files that no list names, and every list passed its check.
    if judged.damage.is_empty() {
        let trees = open::open_trees(path, StoreLimits::OF_A_TOOL)?;
        if let Some((_, findings)) = &mut judged.log
            && let Some(damage) = open::behind(&trees, findings)
        {
            judged.damage.push(damage.clone());
            findings.damage.push(damage);
        }
    }
    report.damage.clone_from(&judged.damage);
    report.damage.extend(mark.said().repairing.then(|| CUT_OFF.to_owned()));
    if judged.log.as_ref().is_some_and(|(_, findings)| findings.is_torn) {
        report.notes.push("the log ends in torn groups, which were never acknowledged".to_owned());
    }
    if accept_loss && !report.damage.is_empty() {
        let aside = accept(path, &mut mark, &judged)?;
        report.aside = aside.moved().map(|(from, to)| (from.to_owned(), to.to_owned())).collect();
        report.accepted = true;
    }
    Ok(report)
}

/// Moves corrupt files aside and builds a store from the rest. The mark says that a repair is in progress until the
/// caller records its end: if killed at any moment, it leaves a store that does not open and can be repaired.
fn accept(path: &Path, mark: &mut Mark, judged: &Judged) -> Result<Aside, OpenError> {
    let io = |e| OpenError::Io(path.to_owned(), e);
    let fatal = |Fatal(e)| OpenError::Damaged(path.to_owned(), e);
    // An interrupted repair may have dropped tables without restoring their entries from the log.
    let again = mark.said().repairing;
    mark.write_repairing(true).map_err(io)?;
    let mut aside = Aside::new(path).map_err(io)?;
    for space in &judged.trees {
        tables::mend(&path.join(trees::DIR).join(space.name()), &mut aside).map_err(io)?;
    }
    let mut trees = open::open_trees(path, StoreLimits::OF_A_TOOL)?;
    let newest = trees.newest();
    // The log may still have entries of the lost tables.
    let lacking = Space::ALL.iter().map(|(space, ..)| *space);
    lacking.filter(|space| again || judged.trees.contains(space)).for_each(|space| trees.lack(space));
    // Flush every valid group to tables and start a new log.
    let old = path.join(log::DIR);
    let is_log_damaged = judged.log.as_ref().is_none_or(|(_, findings)| !findings.damage.is_empty());
    if is_log_damaged || !judged.trees.is_empty() || again {
        let (next, turn) = fill_from(&old, judged, &trees).map_err(io)?;
        trees.settle();
        for (space, _) in trees.all() {
            trees.flush(space, |_| Ok(())).map_err(|e| open::failed(path, e))?;
        }
        let next = next.max(newest + 1);
        if old.exists() {
            aside.take(&old).map_err(io)?;
        }
        DirBuilder::new().mode(0o700).create(&old).map_err(io)?;
        Log::create(&old, next, turn).map_err(io)?;
    }
    drop(trees);
    mark.forget_close();
    let store = open::open_whole(path, StoreLimits::OF_A_TOOL, mark, false)?;
    // If `meta` is unreadable, the caller raises them after dropping those tables.
    if store.holed(Space::Meta).map_err(io)?.is_empty() {
        raise_numbers(&store).map_err(fatal)?;
    }
    drop(store);
    Ok(aside)
}

/// Raises the numbers in `meta` above all that were ever assigned, since their last values may be lost.
pub fn raise_numbers(store: &Store) -> Result<(), Fatal> {
    let mut txn = Txn::new(store.clone());
    let seq = store.number(META_SEQ)?.unwrap_or(FIRST_SEQ);
    txn.put(Space::Meta, META_SEQ, (seq + SEQS_LOST).to_be_bytes());
    // A publish with a larger id does not check whether the id exists. If the last job is unreadable, no list is
    // rebuilt.
    if let Ok(Some((_, last))) = store.ends(Space::Jobs) {
        let last = codec::read_job_key(&last)?.0;
        let newest = store.get(Space::Meta, META_NEWEST)?;
        if newest.and_then(|id| codec::read_newest(&id).ok()).is_none_or(|newest| newest < last) {
            txn.put(Space::Meta, META_NEWEST, last.to_bytes());
        }
    }
    txn.settle(true).map(drop)
}

/// Loads every valid group of a damaged log into memory. Returns the first number and turn of a new log, above all that
/// may have existed.
fn fill_from(dir: &Path, judged: &Judged, trees: &Trees) -> std::io::Result<(u64, u64)> {
    let manifest = match &judged.log {
        Some((manifest, _)) => manifest.clone(),
        None => match manifest_of_heads(dir)? {
            Some(manifest) => manifest,
            None => return Ok((NUMBERS_LOST, NUMBERS_LOST)),
        },
    };
    // Groups behind the end of an undamaged log were not synced and are not part of it.
    let undamaged = judged.log.as_ref().filter(|(_, findings)| findings.damage.is_empty());
    let high = undamaged.map_or(u64::MAX, |(_, findings)| findings.last.number);
    let mut last = manifest.synced.max(manifest.first);
    // A table with an unreadable block does not count as corrupt yet, and the new log has none of its entries.
    let mut filler = Filler::new(trees, &manifest, true);
    log::judge::judge_each(dir, &manifest, |number, group| {
        if number > high {
            return Ok(());
        }
        last = last.max(number);
        filler.group(number, group)
    })?;
    let turn = manifest.files.last().map_or(0, |(_, turn)| *turn);
    Ok((last + NUMBERS_LOST, turn + 1))
}

/// Reconstructs a lost manifest from the headers of the files: the last run of consecutive turns belongs together. Some
/// groups that are in tables are then replayed, which is harmless, since all later groups are replayed too.
fn manifest_of_heads(dir: &Path) -> std::io::Result<Option<Manifest>> {
    let mut heads = Vec::new();
    let there = if dir.is_dir() { slots::list(dir)? } else { Vec::new() };
    for slot in there {
        heads.extend(FileHead::read(&slots::read(dir, slot)?).map(|head| (head, slot)));
    }
    heads.sort_by_key(|(head, _)| head.turn);
    let gap = heads.windows(2).rposition(|pair| pair[0].0.turn + 1 != pair[1].0.turn);
    heads.drain(..gap.map_or(0, |gap| gap + 1));
    let Some((head, _)) = heads.first() else { return Ok(None) };
    let files = heads.iter().map(|(head, slot)| (*slot, head.turn)).collect();
    Ok(Some(Manifest { pool: head.pool, first: head.first, synced: 0, files }))
}
