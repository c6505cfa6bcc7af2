//! What a start does with the files of a log that was judged: clears a torn end, shows the groups, and writes them once
//! more. Decides nothing.

use std::io::{Error, ErrorKind, Result};
use std::path::Path;

use super::group::{self, FILE_HEAD};
use super::judge::{Findings, Torn};
use super::manifest::Manifest;
use super::slots;

/// The bytes of a torn end, and those of all files behind it: of each file its slot, from where on, and what stands there.
pub fn torn_bytes(dir: &Path, manifest: &Manifest, torn: &Torn) -> Result<Vec<(u32, u64, Vec<u8>)>> {
    let mut parts = Vec::new();
    for (n, (slot, _)) in manifest.files.iter().enumerate().skip(torn.file) {
        let from = if n == torn.file { torn.bytes.start } else { 0 };
        let bytes = slots::read(dir, *slot)?;
        parts.push((*slot, from as u64, bytes.get(from..).unwrap_or_default().to_vec()));
    }
    Ok(parts)
}

/// Overwrites the bytes of a torn end with zeros, so that nobody takes a group in it for one of those that will be
/// written there.
pub fn clear_torn(dir: &Path, parts: &[(u32, u64, Vec<u8>)]) -> Result<()> {
    // From behind: as long as it is not done, the rest looks torn.
    parts
        .iter()
        .rev()
        .try_for_each(|(slot, from, bytes)| slots::write(dir, *slot, *from, &vec![0; bytes.len()]))
}

/// Shows the groups of the log that are needed, one after the other. Each that the judge has found must be there.
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
            if number >= manifest.first {
                each(number, &bytes[at..])?;
            }
            at = end;
        }
        if again {
            // A part that does not read is written as zeros. No group is in it, and then it reads again.
            slots::write(dir, *slot, 0, &bytes)?;
        }
    }
    Ok(())
}
