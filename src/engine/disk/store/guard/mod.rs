//! Judges a pool's directory before fjall opens it. fjall goes on without what it cannot read, and cuts or deletes
//! the rest; so it may open only what was found whole.
//!
//! - [`journal`] reads the batches in fjall's journals, [`keyspaces`] the lists of its tables.
//! - [`order`] reads all journals, and notes where batches do not follow each other.
//! - [`groups`] numbers the batches, and remembers which of them were synced.
//! - [`names`] gives journals second names, and sets files aside.
//! - [`judge`] here says what is damaged, and what is a torn end that a power cut left; [`Findings::prepare`]
//!   makes the directory ready for fjall. Nothing is deleted: what is in the way is set aside.

pub mod groups;
pub mod journal;
pub mod keyspaces;
pub mod names;
mod order;

use std::collections::BTreeSet;
use std::fmt;
use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Result};
use std::ops::Range;
use std::path::{Path, PathBuf};

use groups::{GroupRecord, GroupState};
use keyspaces::KEYSPACES;
use names::{Aside, SECOND};
use order::Reader;

/// The database, in the pool's directory.
pub const DATABASE: &str = "db";
/// fjall writes this file last, and syncs it, before it makes the first keyspace.
pub const VERSION: &str = "version";
/// What stands in it.
pub const VERSION_TEXT: &[u8] = b"FJL\x03";
/// The file that fjall locks. It holds nothing.
const LOCK: &str = "lock";

/// One thing that is not as it was written, and cannot be the work of a power cut.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Damage {
    /// Bytes of a journal that are no batch. `groups` were lost by it.
    Unreadable { journal: u64, bytes: Range<usize>, groups: Range<u64> },
    /// Batches are missing between two that read, or at the end.
    Missing { journal: u64, groups: Range<u64> },
    /// A journal is not there.
    NoJournal { name: String },
    /// The file that says which format of fjall's it is.
    Version,
    /// A keyspace is not as it should be.
    Keyspace { id: u32, what: String },
    /// A directory that is always there is missing.
    Directory { what: String },
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let groups = |groups: &Range<u64>| match groups.end.saturating_sub(groups.start) {
            0 => "no group of requests is known to be in them".to_owned(),
            1 => format!("group {} of requests is in them, which was on the disk", groups.start),
            n => format!("{n} groups of requests are in them, {} to {}", groups.start, groups.end - 1),
        };
        match self {
            Damage::Unreadable { journal, bytes, groups: lost } => write!(
                f,
                "{}: {} bytes from byte {} on cannot be read; {}",
                names::name(*journal),
                bytes.len(),
                bytes.start,
                groups(lost)
            ),
            Damage::Missing { journal, groups } if groups.is_empty() => write!(
                f,
                "{}: what follows group {} of requests is not what was written after it",
                names::name(*journal),
                groups.start - 1
            ),
            Damage::Missing { journal, groups } => write!(
                f,
                "{}: {} groups of requests are missing, {} to {}",
                names::name(*journal),
                groups.end - groups.start,
                groups.start,
                groups.end - 1
            ),
            Damage::NoJournal { name } => write!(f, "{name} is missing"),
            Damage::Version => write!(f, "the file {DATABASE}/{VERSION} is missing, or not what was written"),
            Damage::Keyspace { what, .. } | Damage::Directory { what } => f.write_str(what),
        }
    }
}

/// The end of the newest journal, which a power cut or a kill tore. Nobody was answered for what stands in it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Torn {
    journal: u64,
    from: usize,
}

/// A journal, and the parts of it that are no batch.
#[derive(Clone, Debug)]
pub struct Journal {
    pub id: u64,
    path: PathBuf,
    pub unreadable: Vec<Range<usize>>,
}

/// What was found.
#[derive(Debug, Default)]
pub struct Findings {
    pub damage: Vec<Damage>,
    torn: Option<Torn>,
    pub journals: Vec<Journal>,
    /// The newest batch that counts, if the journals hold any.
    pub last: Option<GroupRecord>,
    /// All up to this were synced.
    pub synced: u64,
    /// Journals that must get their first names back.
    restore: Vec<u64>,
    /// Journals that are no longer needed, and directories that are no keyspace of ours.
    in_the_way: Vec<PathBuf>,
}

/// Judges a pool's directory. Changes nothing. `state` is what the file `groups` holds.
pub fn judge(pool: &Path, state: &GroupState) -> Result<Findings> {
    let mut findings = Findings { synced: state.synced, ..Findings::default() };
    let database = pool.join(DATABASE);
    if !database.is_dir() {
        findings.damage.push(Damage::Directory { what: format!("the directory {DATABASE} is missing") });
        return Ok(findings);
    }
    match fs::read(database.join(VERSION)) {
        Ok(text) if text == VERSION_TEXT => {}
        Ok(_) => findings.damage.push(Damage::Version),
        Err(e) if e.kind() == ErrorKind::NotFound => findings.damage.push(Damage::Version),
        Err(e) => return Err(e),
    }
    judge_keyspaces(&database, state, &mut findings)?;
    judge_journals(pool, &database, state, &mut findings)?;
    Ok(findings)
}

fn judge_keyspaces(database: &Path, state: &GroupState, findings: &mut Findings) -> Result<()> {
    let dir = database.join(KEYSPACES);
    let (there, others) = match keyspaces::list(database) {
        Ok(listed) => listed,
        Err(e) if e.kind() == ErrorKind::NotFound => {
            let what = format!("the directory {DATABASE}/{KEYSPACES} is missing");
            findings.damage.push(Damage::Directory { what });
            return Ok(());
        }
        Err(e) => return Err(e),
    };
    let ours: BTreeSet<u32> = state.keyspaces.iter().copied().collect();
    // A keyspace whose making was cut off, or a stranger. fjall stops at the one and deletes the other.
    findings.in_the_way.extend(others.iter().map(|name| dir.join(name)));
    findings.in_the_way.extend(there.difference(&ours).map(|id| dir.join(id.to_string())));
    for id in ours {
        let what = match there.contains(&id) {
            true => keyspaces::damage(database, id)?,
            false => Some(format!("keyspace {id} is missing")),
        };
        findings.damage.extend(what.map(|what| Damage::Keyspace { id, what }));
    }
    Ok(())
}

fn judge_journals(pool: &Path, database: &Path, state: &GroupState, findings: &mut Findings) -> Result<()> {
    let first = names::journals(database)?;
    // Where not every journal has a second name, those that have one say nothing.
    let (oldest, second) = match state.oldest {
        Some(oldest) => (oldest, names::journals(&pool.join(SECOND))?),
        None => (0, BTreeSet::new()),
    };
    let needed = first.union(&second).copied().filter(|id| *id >= oldest);
    for id in needed {
        let is_there = first.contains(&id);
        if !is_there {
            findings.restore.push(id);
        }
        let dir = if is_there { database.to_owned() } else { pool.join(SECOND) };
        findings.journals.push(Journal { id, path: dir.join(names::name(id)), unreadable: Vec::new() });
    }
    // They came back by a power cut.
    findings.in_the_way.extend(first.range(..oldest).map(|id| database.join(names::name(*id))));
    let Some(newest) = findings.journals.last().map(|journal| journal.id) else {
        findings.damage.push(Damage::NoJournal { name: "the journal".to_owned() });
        return Ok(());
    };
    let from = state.oldest.or(findings.journals.first().map(|journal| journal.id)).unwrap_or(newest);
    let there: BTreeSet<u64> = findings.journals.iter().map(|journal| journal.id).collect();
    let missing = (from..newest).filter(|id| !there.contains(id));
    findings.damage.extend(missing.map(|id| Damage::NoJournal { name: names::name(id) }));

    let mut reader = Reader::new(state);
    for (n, journal) in findings.journals.iter().enumerate() {
        reader.read(n, &journal.path)?;
    }
    findings.synced = reader.synced;
    if let Some(torn) = reader.torn(findings.journals.len() - 1) {
        findings.torn = Some(Torn { journal: newest, from: torn.bytes.start });
        findings.last = torn.before;
        return Ok(());
    }
    findings.last = reader.last;
    if let Some(last) = reader.last
        && last.number < reader.synced
        && reader.problems.is_empty()
    {
        let groups = last.number + 1..reader.synced + 1;
        findings.damage.push(Damage::Missing { journal: newest, groups });
    }
    for problem in reader.problems {
        let journal = &mut findings.journals[problem.journal];
        let end = problem.groups.end.min(reader.synced + 1).max(problem.groups.start);
        let groups = problem.groups.start..end;
        findings.damage.push(match problem.bytes.is_empty() {
            true => Damage::Missing { journal: journal.id, groups },
            false => Damage::Unreadable { journal: journal.id, bytes: problem.bytes.clone(), groups },
        });
        if !problem.bytes.is_empty() {
            journal.unreadable.push(problem.bytes);
        }
    }
    Ok(())
}

impl Findings {
    /// Makes the directory ready for fjall, as far as it is undamaged. What was in the way is in `aside`.
    pub fn prepare(&self, pool: &Path, aside: &mut Aside) -> Result<()> {
        let database = pool.join(DATABASE);
        for path in &self.in_the_way {
            aside.take(path)?;
        }
        for id in &self.restore {
            fs::hard_link(pool.join(SECOND).join(names::name(*id)), database.join(names::name(*id)))?;
            names::sync(&database)?;
        }
        if let Some(Torn { journal, from }) = &self.torn {
            let path = database.join(names::name(*journal));
            let bytes = journal::read(&path)?;
            let end = journal::used(&bytes, *from).unwrap_or(*from);
            match aside.copy(&path, &bytes[*from..end]) {
                // Whoever has no room must be able to open the store and drain it.
                Err(e) if names::is_full(&e) => {
                    tracing::warn!(path = %path.display(), error = %e, "no room to set the journal's torn end aside");
                }
                done => done?,
            }
            let file = OpenOptions::new().write(true).open(&path)?;
            file.set_len(*from as u64)?;
            file.sync_all()?;
            let bytes = end - from;
            tracing::warn!(path = %path.display(), bytes, "the journal's torn end, which nobody was answered for, was set aside");
        }
        // It holds nothing.
        OpenOptions::new().create(true).append(true).open(database.join(LOCK))?;
        Ok(())
    }

    /// What is as it may be after a power cut, and worth a line.
    pub fn notes(&self) -> Vec<String> {
        let torn = |torn: &Torn| {
            let name = names::name(torn.journal);
            format!(
                "{name}: it ends in a torn batch, from byte {} on, which nobody was answered for",
                torn.from
            )
        };
        let restored = |id: &u64| {
            format!("{}: it has its second name only, and gets its first one back", names::name(*id))
        };
        self.torn.iter().map(torn).chain(self.restore.iter().map(restored)).collect()
    }

    /// What is damaged, in a line.
    pub fn summary(&self) -> String {
        const MOST: usize = 4;
        let mut all: Vec<String> = self.damage.iter().take(MOST).map(Damage::to_string).collect();
        if self.damage.len() > MOST {
            all.push(format!("and {} more, which `dormouse repair` lists", self.damage.len() - MOST));
        }
        all.join("; ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::disk::store::open::{self, OpenError};
    use crate::engine::disk::store::txn::Txn;
    use crate::engine::disk::store::{Space, StoreLimits};

    /// A store of one batch for each number, which is synced if `synced` says so. Answers what `kill -9` leaves.
    fn killed(groups: std::ops::RangeInclusive<u64>, synced: impl Fn(u64) -> bool) -> tempfile::TempDir {
        let home = tempfile::tempdir().unwrap(); // the temporary directory can be written
        let (store, _mark) = open::open(home.path(), StoreLimits::OF_A_TOOL).unwrap(); // new directory
        let mut txn = Txn::new(store);
        for n in groups {
            txn.put(Space::Ready, n.to_be_bytes(), [n as u8; 3000]);
            txn.settle(synced(n)).unwrap(); // nothing is wrong with the disk
        }
        let left = tempfile::tempdir().unwrap(); // as above
        copy(home.path(), left.path());
        left
    }

    fn copy(from: &Path, to: &Path) {
        fs::create_dir_all(to).unwrap(); // below a temporary directory
        for entry in fs::read_dir(from).unwrap().flatten() {
            let target = to.join(entry.file_name());
            if entry.path().is_dir() {
                copy(&entry.path(), &target);
            } else {
                let mut bytes = fs::read(entry.path()).unwrap(); // it was listed
                if entry.path().extension().is_some_and(|extension| extension == "jnl") {
                    bytes.truncate(journal::used(&bytes, 0).unwrap_or(0));
                }
                fs::write(target, bytes).unwrap();
            }
        }
    }

    const JOURNAL: &str = "db/0.jnl";

    /// Where each batch of the journal is.
    fn batches(pool: &Path) -> Vec<Range<usize>> {
        let bytes = fs::read(pool.join(JOURNAL)).unwrap(); // every store has it
        let mut found = Vec::new();
        while let Some(batch) = journal::batch(&bytes, found.last().map_or(0, |last: &Range<usize>| last.end))
        {
            found.push(found.last().map_or(0, |last| last.end)..batch.end);
        }
        found
    }

    /// Zeros bytes in the middle of these batches, as if it had not come to the disk.
    fn tear(pool: &Path, which: &[usize]) {
        let batches = batches(pool);
        let mut bytes = fs::read(pool.join(JOURNAL)).unwrap(); // every store has it
        for n in which {
            bytes[batches[*n].start + 200..][..300].fill(0);
        }
        fs::write(pool.join(JOURNAL), bytes).unwrap(); // as above
    }

    fn judged(pool: &Path) -> Findings {
        let state = GroupState::read(pool).unwrap().unwrap(); // the store was made
        judge(pool, &state).unwrap() // nothing is wrong with the disk
    }

    /// How many batches count after the directory was opened.
    fn opened(pool: &Path) -> u64 {
        let (store, _mark) =
            open::open(pool, StoreLimits::OF_A_TOOL).unwrap_or_else(|e| panic!("it should open: {e}"));
        store.groups.last()
    }

    #[test]
    fn what_was_not_synced_may_be_torn_anywhere() {
        for torn in [vec![5], vec![5, 7], vec![9], vec![4, 5, 6, 7, 8, 9]] {
            // Groups 1 to 4 are synced: those are the first four batches.
            let left = killed(1..=10, |n| n == 4);
            tear(left.path(), &torn);
            let findings = judged(left.path());
            assert_eq!(findings.damage, [], "batches {torn:?} were not synced");
            assert_eq!(findings.notes().len(), 1, "batches {torn:?}: {:?}", findings.notes());
            let bytes = fs::read(left.path().join(JOURNAL)).unwrap(); // it is there
            let from = batches(left.path()).last().map_or(0, |last| last.end);
            assert_eq!(opened(left.path()), torn[0] as u64, "what stands before {torn:?} counts");
            let aside = fs::read(left.path().join("aside/1/0.jnl")).unwrap(); // what was cut
            assert_eq!(aside, bytes[from..], "what was cut is set aside");
        }
    }

    #[test]
    fn what_was_synced_is_not_torn() {
        for (torn, groups) in [(3, 4..5), (0, 1..2), (9, 10..11)] {
            let left = killed(1..=10, |n| n == 10);
            let bytes = batches(left.path())[torn].clone();
            tear(left.path(), &[torn]);
            let before = fs::read(left.path().join(JOURNAL)).unwrap(); // it is there
            let expected = Damage::Unreadable { journal: 0, bytes, groups };
            assert_eq!(judged(left.path()).damage, [expected], "batch {torn}");
            let opened = open::open(left.path(), StoreLimits::OF_A_TOOL).map(drop);
            assert!(matches!(opened, Err(OpenError::Damaged(..))), "expected Damaged: {opened:?}");
            assert!(
                fs::read(left.path().join(JOURNAL)).unwrap() == before,
                "a refused journal is not changed"
            );
        }
    }

    /// After a power cut the file may be old, but the batches tell.
    #[test]
    fn a_batch_tells_what_was_synced_before_it() {
        let left = killed(1..=10, |n| n == 6);
        let old = killed(1..=1, |_| false);
        // That of another store: its own number is put in, so that this one's batches are its own.
        let ours = GroupState::read(left.path()).unwrap().unwrap(); // the store was made
        fs::copy(old.path().join(groups::FILE), left.path().join(groups::FILE)).unwrap(); // both are there
        let file = groups::Groups::open(
            left.path(),
            GroupState { synced: 0, seqno: 0, ..ours },
            GroupRecord::default(),
        );
        file.and_then(|file| file.change(|_| {})).unwrap(); // nothing is wrong with the disk
        tear(left.path(), &[7]);
        assert_eq!(judged(left.path()).damage, [], "group 8 was not synced");
        tear(left.path(), &[4]);
        let bytes = batches(left.path()).last().map_or(0, |last| last.end);
        let damage = judged(left.path()).damage;
        assert!(
            matches!(&damage[..], [Damage::Unreadable { bytes: at, groups, .. }, ..]
                if at.start == bytes && *groups == (5..6)),
            "group 7 says that group 5 was synced: {damage:?}"
        );
    }

    #[test]
    fn a_batch_that_is_missing_is_missed() {
        let left = killed(1..=10, |_| true);
        let (batches, bytes) = (batches(left.path()), fs::read(left.path().join(JOURNAL)).unwrap());
        let without = |n: usize| [&bytes[..batches[n].start], &bytes[batches[n].end..]].concat();
        for (n, lost) in [(4, 5..6), (9, 10..11)] {
            fs::write(left.path().join(JOURNAL), without(n)).unwrap(); // it is there
            let expected = Damage::Missing { journal: 0, groups: lost };
            assert_eq!(judged(left.path()).damage, [expected], "without batch {n}");
        }
        fs::write(left.path().join(JOURNAL), b"").unwrap(); // as above
        let opened = open::open(left.path(), StoreLimits::OF_A_TOOL).map(drop);
        assert!(matches!(opened, Err(OpenError::Damaged(..))), "an empty journal: {opened:?}");
    }

    /// Whoever publishes a body that looks like a batch must not be able to have a torn end refused.
    #[test]
    fn a_body_does_not_pass_for_a_batch() {
        let other = killed(1..=40, |_| true);
        let forged = fs::read(other.path().join(JOURNAL)).unwrap(); // it is there
        let forged = &forged[batches(other.path())[39].clone()];
        let home = tempfile::tempdir().unwrap(); // the temporary directory can be written
        let (store, _mark) = open::open(home.path(), StoreLimits::OF_A_TOOL).unwrap(); // new directory
        let mut txn = Txn::new(store);
        txn.put(Space::Ready, b"first", b"synced");
        txn.settle(true).unwrap(); // nothing is wrong with the disk
        txn.put(Space::Ready, b"second", [&[7; 700], forged].concat());
        txn.settle(false).unwrap(); // as above
        let left = tempfile::tempdir().unwrap();
        copy(home.path(), left.path());
        tear(left.path(), &[1]);
        assert_eq!(judged(left.path()).damage, [], "the torn batch was not synced, whatever its body says");
        assert_eq!(opened(left.path()), 1, "the first one counts");
    }
}
