//! What a start does with the files of a log that was judged: clears a torn end, shows the groups, and writes them once
//! more. Decides nothing.

use std::io::{Error, ErrorKind, Result};
use std::path::Path;

use super::group::{self, FILE_HEAD};
use super::judge::Findings;
use super::manifest::Manifest;
use super::slots;

/// Overwrites what stands behind the end of a torn log with zeros, so that nobody takes a group in it for one of those
/// that will be written there. `keep` gets the bytes of each file before.
pub fn clear_torn(
    dir: &Path,
    manifest: &Manifest,
    findings: &Findings,
    mut keep: impl FnMut(u32, &[u8]) -> Result<()>,
) -> Result<()> {
    let (last, end) = findings.end;
    // From behind: as long as it is not done, the rest looks torn.
    for (n, (slot, _)) in manifest.files.iter().enumerate().skip(last).rev() {
        let from = if n == last { end } else { 0 };
        let bytes = slots::read(dir, *slot)?;
        let torn = bytes.get(from..).unwrap_or_default();
        keep(*slot, torn)?;
        slots::write(dir, *slot, from as u64, &vec![0; torn.len()])?;
    }
    Ok(())
}

/// Shows the groups of the log, one after the other. Each that the judge has found must be there.
///
/// `again` writes the bytes of each file in its place once more, synced. After an unclean end the system may show bytes
/// that never reached the disk: when a sync has failed they stay in memory, and no later sync writes them.
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
                    format!("{}: group {number} of requests read once, and does not now", slots::name(*slot));
                return Err(Error::new(ErrorKind::InvalidData, what));
            };
            each(number, &bytes[at..])?;
            at = end;
        }
        if again {
            // A part that does not read is written as zeros. No group is in it, and then it reads again.
            slots::write(dir, *slot, 0, &bytes)?;
        }
    }
    Ok(())
}
