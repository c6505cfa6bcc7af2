//! Reads the files of a log, and says what is damaged, and what is a torn end that a power cut left. What was synced is
//! whole unless it was damaged; what was written later may be missing, at several places, and nobody was answered for
//! it. Changes nothing.

use std::io::{ErrorKind, Result};
use std::ops::Range;
use std::path::Path;

use super::group::{self, FILE_HEAD, FileHead, Group};
use super::manifest::Manifest;
use super::slots::{self, FILE, name};

/// What was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// What is not as it was written, and cannot be the work of a power cut, each in a line.
    pub damage: Vec<String>,
    /// Whether a power cut or a kill tore the log: whole groups stand behind its end, which count no more.
    pub is_torn: bool,
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
    start: usize,
    /// The number that was expected there, and, once a later group was found, that one's.
    groups: Range<u64>,
    /// The last group before it, and where that ends.
    before: Group,
    end: (usize, usize),
}

/// Judges the log in `dir`.
pub fn judge(dir: &Path, manifest: &Manifest) -> Result<Findings> {
    judge_each(dir, manifest, |_, _| Ok(()))
}

/// As [`judge`]. Shows each group that is whole, by its number and the bytes from its begin on, whatever is missing
/// before it.
pub fn judge_each(
    dir: &Path,
    manifest: &Manifest,
    mut each: impl FnMut(u64, &[u8]) -> Result<()>,
) -> Result<Findings> {
    let mut findings = Findings::default();
    // Of so many groups the files may hold parts: one with a later number was written by nobody.
    let len = |(slot, _): &(u32, u64)| {
        // One that is missing, or cut, had groups too.
        std::fs::metadata(dir.join(slot.to_string())).map_or(FILE, |file| file.len().max(FILE))
    };
    let most = manifest.files.iter().map(len).sum::<u64>() / (group::HEAD + group::CHECK) as u64;
    let mut reader = Reader {
        pool: manifest.pool,
        // What stands before the first file is in tables.
        last: Group { number: manifest.first.saturating_sub(1), ..Group::default() },
        open: false,
        problems: Vec::new(),
        synced: manifest.synced,
        most,
        end: (0, FILE_HEAD),
    };
    for (n, (slot, turn)) in manifest.files.iter().enumerate() {
        let bytes = match slots::read(dir, *slot) {
            Err(e) if e.kind() == ErrorKind::NotFound => {
                findings.damage.push(format!("{} is missing", name(*slot)));
                Vec::new()
            }
            bytes => bytes?,
        };
        reader.begin(n, &bytes, *turn);
        findings.firsts.push(reader.last.number + 1);
        reader.read(n, &bytes, &mut each)?;
    }
    reader.judge(manifest, &mut findings);
    findings.firsts.truncate(findings.end.0 + 1);
    Ok(findings)
}

struct Reader {
    pool: u64,
    /// The last group that was read. Its `check` is 0 while it is not known.
    last: Group,
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
    /// Reads the head of the next file.
    fn begin(&mut self, file: usize, bytes: &[u8], turn: u64) {
        let head = FileHead::read(bytes).filter(|head| (head.pool, head.turn) == (self.pool, turn));
        match head {
            Some(head) if file == 0 || head.first == self.last.number + 1 => {
                self.last.number = head.first.saturating_sub(1);
                // The rest of the file before had no room for the group.
                if std::mem::take(&mut self.open) {
                    self.problems.pop();
                }
                self.end = (file, FILE_HEAD);
            }
            _ if !self.open => self.problem(file, 0),
            _ => {}
        }
    }

    /// Reads the groups in it.
    fn read(
        &mut self,
        file: usize,
        bytes: &[u8],
        each: &mut impl FnMut(u64, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let mut at = if self.open { 0 } else { FILE_HEAD };
        loop {
            let low = self.last.number + 1;
            let next = match self.open {
                true => group::find(bytes, at, self.pool, low..=low.saturating_add(self.most)),
                false => group::read(bytes, at, self.pool)
                    .filter(|(group, _)| self.follows(group))
                    .map(|(group, end)| (at, group, end)),
            };
            let Some((from, group, end)) = next else {
                if self.open {
                    return Ok(());
                }
                self.problem(file, at);
                continue;
            };
            if std::mem::take(&mut self.open)
                && let Some(problem) = self.problems.last_mut()
            {
                problem.groups.end = group.number;
            }
            self.synced = self.synced.max(group.synced);
            (self.last, self.end, at) = (group, (file, end), end);
            each(group.number, &bytes[from..])?;
        }
    }

    fn follows(&self, group: &Group) -> bool {
        group.number == self.last.number + 1 && (self.last.check == 0 || group.previous == self.last.check)
    }

    fn problem(&mut self, file: usize, start: usize) {
        let groups = self.last.number + 1..u64::MAX;
        self.problems.push(Problem { file, start, groups, before: self.last, end: self.end });
        self.open = true;
    }

    /// What the problems mean.
    fn judge(self, manifest: &Manifest, findings: &mut Findings) {
        (findings.last, findings.end) = (self.last, self.end);
        // The one that no group follows is the end of the log.
        let is_end = |problem: &Problem| problem.groups.end == u64::MAX;
        let is_torn = |problem: &Problem| problem.groups.start > self.synced;
        if let Some(first) = self.problems.first().filter(|first| !is_end(first) && is_torn(first)) {
            findings.is_torn = true;
            (findings.last, findings.end) = (first.before, first.end);
            return;
        }
        for problem in self.problems.iter().filter(|problem| !is_end(problem) || !is_torn(problem)) {
            let Range { start, end } = problem.groups;
            // The place comes from this list.
            let at = format!(
                "{}: what stands from byte {} on",
                name(manifest.files[problem.file].0),
                problem.start
            );
            let lost = match end.min(self.synced + 1).saturating_sub(start) {
                0 => "no group of requests is known to be in it".to_owned(),
                1 => format!("group {start} of requests is in it, which was on the disk"),
                n => format!("{n} groups of requests are in it, {start} to {}", start + n - 1),
            };
            findings.damage.push(format!("{at} cannot be read; {lost}"));
        }
    }
}
