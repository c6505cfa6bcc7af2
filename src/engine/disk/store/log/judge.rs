//! Checks the files of a log and distinguishes corruption from a torn tail left by a power cut. Synced groups are
//! intact unless corrupted. Later groups may be missing in several places, and no request was acknowledged for them.
//! Read-only.

use std::io::{ErrorKind, Result};
use std::ops::Range;
use std::path::Path;

use super::group::{self, FILE_HEAD, FileHead, Group};
use super::manifest::Manifest;
use super::slots::{self, FILE, name};

/// Result of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// Corruption that a power cut cannot explain, one line each.
    pub damage: Vec<String>,
    /// Whether a power cut or kill tore the log, leaving valid groups behind its end that no longer count.
    pub is_torn: bool,
    /// The last group that counts.
    pub last: Group,
    /// End of the last group: index of its file in the manifest, and offset.
    pub end: (usize, usize),
    /// First group of each file up to the end.
    pub firsts: Vec<u64>,
}

/// A range of bytes that is not a valid group.
struct Problem {
    file: usize,
    start: usize,
    /// Number of the expected group, up to that of the next valid group, if there is one.
    groups: Range<u64>,
    /// The last group before the range, and its end.
    before: Group,
    end: (usize, usize),
}

/// Checks the log in `dir`.
pub fn judge(dir: &Path, manifest: &Manifest) -> Result<Findings> {
    judge_each(dir, manifest, |_, _| Ok(()))
}

/// Like [`judge`], and calls `each` with the number of every valid group and the bytes from its start, even after a
/// gap.
pub fn judge_each(
    dir: &Path,
    manifest: &Manifest,
    mut each: impl FnMut(u64, &[u8]) -> Result<()>,
) -> Result<Findings> {
    let mut findings = Findings::default();
    // Upper bound on the number of groups in the files; a group with a later number is not ours.
    let len = |(slot, _): &(u32, u64)| {
        // A missing or truncated file may have held groups too.
        std::fs::metadata(dir.join(slot.to_string())).map_or(FILE, |file| file.len().max(FILE))
    };
    let most = manifest.files.iter().map(len).sum::<u64>() / (group::HEAD + group::CHECK) as u64;
    let mut reader = Reader {
        pool: manifest.pool,
        // Groups before the first file are in tables.
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
    /// The last group read. Its `check` is 0 if unknown.
    last: Group,
    /// Whether the last problem has not ended yet.
    open: bool,
    problems: Vec<Problem>,
    synced: u64,
    /// Upper bound on the number of groups.
    most: u64,
    /// End of the last group.
    end: (usize, usize),
}

impl Reader {
    /// Reads the next file's header.
    fn begin(&mut self, file: usize, bytes: &[u8], turn: u64) {
        let head = FileHead::read(bytes).filter(|head| (head.pool, head.turn) == (self.pool, turn));
        match head {
            Some(head) if file == 0 || head.first == self.last.number + 1 => {
                self.last.number = head.first.saturating_sub(1);
                // The previous file ended because the group did not fit.
                if std::mem::take(&mut self.open) {
                    self.problems.pop();
                }
                self.end = (file, FILE_HEAD);
            }
            _ if !self.open => self.problem(file, 0),
            _ => {}
        }
    }

    /// Reads the file's groups.
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

    /// Classifies the problems.
    fn judge(self, manifest: &Manifest, findings: &mut Findings) {
        (findings.last, findings.end) = (self.last, self.end);
        // A problem without a later group is the end of the log.
        let is_end = |problem: &Problem| problem.groups.end == u64::MAX;
        let is_torn = |problem: &Problem| problem.groups.start > self.synced;
        if let Some(first) = self.problems.first().filter(|first| !is_end(first) && is_torn(first)) {
            findings.is_torn = true;
            (findings.last, findings.end) = (first.before, first.end);
            return;
        }
        for problem in self.problems.iter().filter(|problem| !is_end(problem) || !is_torn(problem)) {
            let Range { start, end } = problem.groups;
            // The index is one of this list.
            let at = format!("{}: data from byte {} on", name(manifest.files[problem.file].0), problem.start);
            let lost = match end.min(self.synced + 1).saturating_sub(start) {
                0 => "no synced group is known to be in it".to_owned(),
                1 => format!("it contains group {start}, which was synced"),
                n => format!("it contains {n} groups, {start} to {}", start + n - 1),
            };
            findings.damage.push(format!("{at} cannot be read; {lost}"));
        }
    }
}
