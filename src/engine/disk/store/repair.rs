//! Says what is damaged in the files of a pool's directory, and on request sets that aside, so that the rest opens. For
//! a directory that no server has open. Deletes nothing.

use std::fmt;
use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::codec::{FIRST_SEQ, META_SEQ};
use super::guard::groups::{self, GroupState};
use super::guard::journal;
use super::guard::keyspaces::{self, KEYSPACES};
use super::guard::names::{self, Aside};
use super::guard::{self, DATABASE, Damage, Findings};
use super::open::{self, Mark, OpenError};
use super::txn::Txn;
use super::{Fatal, Space, StoreLimits};

/// What was found in a directory, and what was done.
#[derive(Debug, Default)]
pub struct RepairReport {
    /// What is damaged, each in a line.
    pub damage: Vec<String>,
    /// What is as it may be, and worth a line.
    pub notes: Vec<String>,
    /// What was set aside: from where, and where it is.
    pub aside: Vec<(PathBuf, PathBuf)>,
    /// Whether the rest opens now.
    pub accepted: bool,
    /// Whether it holds nothing yet.
    pub is_new: bool,
}

impl RepairReport {
    /// Whether a server opens the directory now.
    pub fn opens(&self) -> bool {
        self.damage.is_empty() || self.accepted
    }
}

impl fmt::Display for RepairReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
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
            (false, true) => writeln!(f, "the rest opens now"),
            (false, false) => writeln!(
                f,
                "nothing was changed. Restore a copy; or stop here, copy the directory, and give up what is damaged \
                 with --accept-loss"
            ),
        }
    }
}

/// What was lost may have reserved numbers (state/mod.rs), not more than this. There are 2^23 times as many.
const SEQS_LOST: u64 = 1 << 40;
/// How often memory is written out until no older journal is left, and how long that may take each time.
const WRITE_OUTS: u32 = 40;
const WRITE_OUT: Duration = Duration::from_secs(3);

/// Judges the files of the directory, and changes nothing but for `accept_loss`.
pub fn repair(path: &Path, accept_loss: bool) -> Result<RepairReport, OpenError> {
    if !path.join(open::MARK).exists() {
        return Err(OpenError::NotOurs(path.to_owned()));
    }
    let io = |e| OpenError::Io(path.to_owned(), e);
    let mut mark = open::lock(path)?;
    let mut report = RepairReport::default();
    let state = match open::state(path, &mark) {
        Ok(Some(state)) => state,
        Ok(None) => {
            report.is_new = true;
            report.notes.push("it holds nothing yet: its first start was cut off".to_owned());
            return Ok(report);
        }
        Err(OpenError::Damaged(_, what)) => {
            report.damage.push(what);
            match keyspaces::list(&path.join(DATABASE)) {
                Ok((ids, _)) => GroupState::behind_all(ids),
                Err(e) if e.kind() == ErrorKind::NotFound => GroupState::new(),
                Err(e) => return Err(io(e)),
            }
        }
        Err(e) => return Err(e),
    };
    let findings = guard::judge(path, &state).map_err(io)?;
    report.damage.extend(findings.damage.iter().map(Damage::to_string));
    report.notes.extend(findings.notes());
    if accept_loss && !report.damage.is_empty() {
        let aside = accept(path, &mut mark, state, &findings)?;
        report.aside = aside.moved().map(|(from, to)| (from.to_owned(), to.to_owned())).collect();
        report.accepted = true;
    }
    Ok(report)
}

/// Sets aside what is damaged, and opens the rest once, so that it can be judged again.
fn accept(
    path: &Path,
    mark: &mut Mark,
    mut state: GroupState,
    findings: &Findings,
) -> Result<Aside, OpenError> {
    let io = |e| OpenError::Io(path.to_owned(), e);
    let fatal = |Fatal(e)| OpenError::Damaged(path.to_owned(), e);
    let database = path.join(DATABASE);
    let mut aside = Aside::new(path).map_err(io)?;
    let names_lost = |damage: &Damage| matches!(damage, Damage::Keyspace { id: 0, .. });
    if !database.join(KEYSPACES).is_dir() || findings.damage.iter().any(names_lost) {
        // No keyspace can be found any more.
        for name in [DATABASE, groups::FILE, names::SECOND] {
            if path.join(name).exists() {
                aside.take(&path.join(name)).map_err(io)?;
            }
        }
        mark.write_made(false).map_err(io)?;
        return Ok(aside);
    }
    findings.prepare(path, &mut aside).map_err(io)?;
    for damage in &findings.damage {
        match damage {
            Damage::Version => {
                let version = database.join(guard::VERSION);
                if version.exists() {
                    aside.take(&version).map_err(io)?;
                }
                write_new(&version, guard::VERSION_TEXT).map_err(io)?;
                names::sync(&database).map_err(io)?;
            }
            Damage::Keyspace { id, .. } => keyspaces::mend(&database, *id, &mut aside).map_err(io)?,
            _ => {}
        }
    }
    if names::journals(&database).map_err(io)?.is_empty() {
        // Without any journal fjall begins to count at 0, so that what is written then is older than what is in
        // tables. An empty one is as good as any.
        let id = state.oldest.map_or(0, |oldest| oldest + 1);
        write_new(&database.join(names::name(id)), b"").map_err(io)?;
        names::sync(&database).map_err(io)?;
    }
    for journal in &findings.journals {
        if !journal.unreadable.is_empty() {
            let path = database.join(names::name(journal.id));
            let bytes = journal::read(&path).map_err(io)?;
            let mut kept = Vec::with_capacity(bytes.len());
            let mut at = 0;
            for bad in &journal.unreadable {
                kept.extend_from_slice(&bytes[at..bad.start]);
                at = bad.end;
            }
            kept.extend_from_slice(&bytes[at..]);
            let mended = path.with_extension("mended");
            write_new(&mended, &kept).map_err(io)?;
            aside.take(&path).map_err(io)?;
            fs::rename(&mended, &path).map_err(io)?;
            names::sync(&database).map_err(io)?;
        }
    }
    if GroupState::read(path).is_err() {
        aside.take(&path.join(groups::FILE)).map_err(io)?;
    }
    // All that is there counts, whatever its numbers.
    state.base = GroupState::BEHIND_ALL;
    state.oldest = None;
    let store = open::open_whole(path, StoreLimits::OF_A_TOOL, state, &Findings::default())?;
    let mut txn = Txn::new(store.clone());
    let seq = store.number(META_SEQ).map_err(fatal)?.unwrap_or(FIRST_SEQ);
    txn.put(Space::Meta, META_SEQ, (seq + SEQS_LOST).to_be_bytes());
    txn.settle(true).map_err(fatal)?;
    // Journals that are not there, or have a gap, are judged at every start: none must be needed.
    for _ in 0..WRITE_OUTS {
        if store.journals() == 1 {
            break;
        }
        store.write_out(WRITE_OUT).map_err(fatal)?;
    }
    store.keep_journals().map_err(fatal)?;
    drop((txn, store));
    mark.write_made(true).map_err(io)?;
    Ok(aside)
}

/// Writes a new file, and syncs it.
fn write_new(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}
