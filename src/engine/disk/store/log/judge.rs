//! Reads the files of a log, and says what is damaged, and what is a torn end that a power cut left. What was synced is
//! whole unless it was damaged; what was written later may be missing, at several places, and nobody was answered for
//! it. Changes nothing.

use std::fmt;
use std::io::{ErrorKind, Result};
use std::ops::Range;
use std::path::Path;

use super::group::{self, FILE_HEAD, FileHead, Group};
use super::manifest::Manifest;
use super::slots::{self, FILE, name};

/// One thing that is not as it was written, and cannot be the work of a power cut.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogDamage {
    /// Bytes that are no group. `groups` were lost by it.
    Unreadable { slot: u32, bytes: Range<usize>, groups: Range<u64> },
    /// A file is not there.
    NoFile { slot: u32 },
    /// The log ends before a group of which tables have entries.
    Behind { tables: u64, last: u64 },
}

impl fmt::Display for LogDamage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LogDamage::Unreadable { slot, bytes, groups } => {
                let lost = groups.end.saturating_sub(groups.start);
                write!(f, "{}: what stands from byte {} on cannot be read; ", name(*slot), bytes.start)?;
                match lost {
                    0 => write!(f, "no group of requests is known to be in it"),
                    1 => write!(f, "group {} of requests is in it, which was on the disk", groups.start),
                    n => {
                        write!(f, "{n} groups of requests are in it, {} to {}", groups.start, groups.end - 1)
                    }
                }
            }
            LogDamage::NoFile { slot } => write!(f, "{} is missing", name(*slot)),
            LogDamage::Behind { tables, last } => {
                write!(f, "tables have group {tables} of requests, and the log ends with group {last}")
            }
        }
    }
}

/// The end of the log that a power cut or a kill tore: a file by its place in the manifest, and its bytes. Whatever
/// stands in the files behind it is torn too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Torn {
    pub file: usize,
    pub bytes: Range<usize>,
}

/// What was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    pub damage: Vec<LogDamage>,
    pub torn: Option<Torn>,
    /// The last group that counts.
    pub last: Group,
    /// Where that ends: a file, by its place in the manifest, and the byte in it.
    pub end: (usize, usize),
    /// The first group of each file up to there.
    pub firsts: Vec<u64>,
}

/// A stretch that is no group.
struct Problem {
    file: usize,
    bytes: Range<usize>,
    /// The number that was expected there, and, once a later group was found, that one's.
    groups: Range<u64>,
    /// The last group before it, and where that ends.
    before: Group,
    end: (usize, usize),
}

/// Judges the log in `dir`.
pub fn judge(dir: &Path, manifest: &Manifest) -> Result<Findings> {
    let mut reader = Reader {
        pool: manifest.pool,
        // What stands before the first file is in tables.
        last: Group { number: manifest.first.saturating_sub(1), ..Group::default() },
        firsts: Vec::new(),
        open: false,
        problems: Vec::new(),
        synced: manifest.synced,
        most: 0,
        end: (0, FILE_HEAD),
    };
    let mut findings = Findings::default();
    // Of so many groups the files may hold parts: one with a later number was written by nobody.
    let len = |(slot, _): &(u32, u64)| {
        // One that is missing, or cut, had groups too.
        std::fs::metadata(dir.join(slot.to_string())).map_or(FILE, |file| file.len().max(FILE))
    };
    reader.most = manifest.files.iter().map(len).sum::<u64>() / (group::HEAD + group::CHECK) as u64;
    for (n, (slot, turn)) in manifest.files.iter().enumerate() {
        match slots::read(dir, *slot) {
            Ok(bytes) => reader.read(n, &bytes, *turn),
            Err(e) if e.kind() == ErrorKind::NotFound => {
                findings.damage.push(LogDamage::NoFile { slot: *slot });
                reader.read(n, &[], *turn);
            }
            Err(e) => return Err(e),
        }
    }
    let mut firsts = std::mem::take(&mut reader.firsts);
    reader.judge(manifest, &mut findings);
    firsts.truncate(findings.end.0 + 1);
    Ok(Findings { firsts, ..findings })
}

struct Reader {
    pool: u64,
    /// The last group that was read. Its `check` is 0 while it is not known.
    last: Group,
    /// The first group of each file that was begun.
    firsts: Vec<u64>,
    /// Whether the last problem has not ended yet.
    open: bool,
    problems: Vec<Problem>,
    synced: u64,
    /// How many groups there may be.
    most: u64,
    /// Behind the last group.
    end: (usize, usize),
}

impl Reader {
    /// Reads the next file.
    fn read(&mut self, file: usize, bytes: &[u8], turn: u64) {
        let head = FileHead::read(bytes).filter(|head| (head.pool, head.turn) == (self.pool, turn));
        let mut at = 0;
        match head {
            Some(head) if file == 0 || head.first == self.last.number + 1 => {
                at = FILE_HEAD;
                self.last.number = head.first.saturating_sub(1);
                // The rest of the file before had no room for the group.
                if std::mem::take(&mut self.open) {
                    self.problems.pop();
                }
                self.end = (file, at);
            }
            _ if !self.open => self.problem(file, at),
            _ => {}
        }
        self.firsts.push(self.last.number + 1);
        loop {
            if !self.open {
                match group::read(bytes, at, self.pool).filter(|(group, _)| self.follows(group)) {
                    Some((group, end)) => {
                        self.take(file, group, end);
                        at = end;
                    }
                    None => self.problem(file, at),
                }
                continue;
            }
            let low = self.last.number + 1;
            let found =
                group::find(bytes, at, self.pool, |n| (low..=low.saturating_add(self.most)).contains(&n));
            let end = found.map_or(bytes.len(), |(at, ..)| at);
            if let Some(problem) = self.problems.last_mut() {
                if problem.file == file {
                    problem.bytes.end = end.max(problem.bytes.start);
                }
                if let Some((_, group, _)) = found {
                    problem.groups.end = group.number;
                }
            }
            let Some((_, group, end)) = found else { return };
            self.open = false;
            self.take(file, group, end);
            at = end;
        }
    }

    fn follows(&self, group: &Group) -> bool {
        group.number == self.last.number + 1 && (self.last.check == 0 || group.previous == self.last.check)
    }

    fn take(&mut self, file: usize, group: Group, end: usize) {
        self.synced = self.synced.max(group.synced);
        (self.last, self.end) = (group, (file, end));
    }

    fn problem(&mut self, file: usize, at: usize) {
        let groups = self.last.number + 1..u64::MAX;
        self.problems.push(Problem { file, bytes: at..at, groups, before: self.last, end: self.end });
        self.open = true;
    }

    /// What the problems mean.
    fn judge(self, manifest: &Manifest, findings: &mut Findings) {
        (findings.last, findings.end) = (self.last, self.end);
        // The one that no group follows is the end of the log.
        let torn = |problem: &Problem| problem.groups.start > self.synced;
        if let Some(first) = self.problems.first()
            && first.groups.end != u64::MAX
            && torn(first)
        {
            findings.torn = Some(Torn { file: first.file, bytes: first.bytes.clone() });
            (findings.last, findings.end) = (first.before, first.end);
            return;
        }
        for problem in self.problems.iter().filter(|problem| problem.groups.end != u64::MAX || !torn(problem))
        {
            let end = problem.groups.end.min(self.synced + 1).max(problem.groups.start);
            findings.damage.push(LogDamage::Unreadable {
                slot: manifest.files[problem.file].0, // the place comes from this list
                bytes: problem.bytes.clone(),
                groups: problem.groups.start..end,
            });
        }
    }
}
