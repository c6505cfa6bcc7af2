//! Opening a log that was checked: clears a torn tail, replays the groups, and rewrites them. Makes no decisions.

use std::io::{Error, ErrorKind, Result};
use std::path::Path;

use super::group::{self, FILE_HEAD};
use super::judge::Findings;
use super::manifest::Manifest;
use super::slots;

/// Zeroes the bytes behind the end of a torn log, so that no group in them can be mistaken for a later one. `keep` gets
/// each file's bytes first.
pub fn clear_torn(
    dir: &Path,
    manifest: &Manifest,
    findings: &Findings,
    mut keep: impl FnMut(u32, &[u8]) -> Result<()>,
) -> Result<()> {
    let (last, end) = findings.end;
    // Backwards, so that an interrupted run leaves a log that still looks torn.
    for (n, (slot, _)) in manifest.files.iter().enumerate().skip(last).rev() {
        let from = if n == last { end } else { 0 };
        let bytes = slots::read(dir, *slot)?;
        let torn = bytes.get(from..).unwrap_or_default();
        keep(*slot, torn)?;
        slots::write(dir, *slot, from as u64, &vec![0; torn.len()])?;
    }
    Ok(())
}

/// Passes the groups of the log to `each` in order. Every group that the check found must be there.
///
/// `again` rewrites and syncs the bytes of each file. After a crash the page cache may hold bytes that never reached
/// the disk: after a failed sync they stay in memory, and no later sync writes them.
pub fn replay(
    dir: &Path,
    manifest: &Manifest,
    findings: &Findings,
    again: bool,
    mut each: impl FnMut(u64, &[u8]) -> Result<()>,
) -> Result<()> {
    let (last, end) = findings.end;
    for (n, (slot, _)) in manifest.files[..=last].iter().enumerate() {
        let mut bytes = slots::read(dir, *slot)?;
        if n == last {
            bytes.truncate(end);
        }
        let behind = findings.firsts.get(n + 1).copied().unwrap_or(findings.last.number + 1);
        let mut at = FILE_HEAD;
        for number in findings.firsts[n]..behind {
            let read = group::read(&bytes, at, manifest.pool).filter(|(group, _)| group.number == number);
            let Some((_, end)) = read else {
                let what =
                    format!("{}: group {number} was readable at first, and no longer is", slots::name(*slot));
                return Err(Error::new(ErrorKind::InvalidData, what));
            };
            each(number, &bytes[at..])?;
            at = end;
        }
        if again {
            // Unreadable sectors are written as zeros. They hold no valid group, and become readable again.
            slots::write(dir, *slot, 0, &bytes)?;
        }
    }
    Ok(())
}
