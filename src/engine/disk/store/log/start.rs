//! What a start does with the files of a log that was judged: writes them once more, clears a torn end, shows the groups.
//! Decides nothing.

use std::io::Result;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::group::{self, FILE_HEAD, FileHead};
use super::judge::{Findings, Torn};
use super::manifest::Manifest;
use super::slots;

/// Writes the bytes of each file in its place once more, synced. After an unclean end the system may show bytes that
/// never reached the disk: when a sync has failed they stay in memory, and no later sync writes them.
pub fn rewrite(dir: &Path, manifest: &Manifest, findings: &Findings) -> Result<()> {
    let (last, at) = findings.end;
    // A part that does not read is written as zeros. The judge has found no group in it, and then it reads again.
    write_again(|slot| slots::read(dir, slot), dir, &manifest.files[..=last], at)
}

/// Writes the bytes of these files into files of the same names, synced; of the last one those before `end`.
pub fn write_again(
    read: impl Fn(u32) -> Result<Vec<u8>>,
    to: &Path,
    files: &[(u32, u64)],
    end: usize,
) -> Result<()> {
    for (n, (slot, _)) in files.iter().enumerate() {
        let mut bytes = read(*slot)?;
        if n + 1 == files.len() {
            bytes.truncate(end);
        }
        let file = slots::open(to, *slot)?;
        file.write_all_at(&bytes, 0)?;
        file.sync_data()?;
    }
    Ok(())
}

/// The bytes of a torn end, and those of all files behind it.
pub fn torn_bytes(dir: &Path, manifest: &Manifest, torn: &Torn) -> Result<Vec<(u32, u64, Vec<u8>)>> {
    let mut parts = Vec::new();
    for (n, (slot, _)) in manifest.files.iter().enumerate().skip(torn.file) {
        let from = if n == torn.file { torn.bytes.start } else { 0 };
        let bytes = slots::read(dir, *slot)?;
        parts.push((*slot, from as u64, bytes.get(from..).unwrap_or_default().to_vec()));
    }
    Ok(parts)
}

/// Overwrites a torn end with zeros, so that nobody takes a group in it for one of those that will be written there.
pub fn clear_torn(dir: &Path, manifest: &Manifest, torn: &Torn) -> Result<()> {
    // From behind: as long as it is not done, the rest looks torn.
    for (slot, from, bytes) in torn_bytes(dir, manifest, torn)?.into_iter().rev() {
        let file = slots::open(dir, slot)?;
        file.write_all_at(&vec![0; bytes.len()], from)?;
        file.sync_data()?;
    }
    Ok(())
}

/// Shows the groups of the log from `first` on, one after the other, as the manifest and `findings` say.
pub fn replay(
    dir: &Path,
    manifest: &Manifest,
    findings: &Findings,
    mut each: impl FnMut(u64, &[u8]) -> Result<()>,
) -> Result<()> {
    for (slot, _) in manifest.files.iter().take(findings.end.0 + 1) {
        let bytes = slots::read(dir, *slot)?;
        let (mut at, mut next) = (FILE_HEAD, FileHead::read(&bytes).map_or(0, |head| head.first));
        while let Some((group, end)) = group::read(&bytes, at, manifest.pool) {
            // Behind the last one there may be one of an earlier turn.
            if group.number != next || group.number > findings.last.number {
                break;
            }
            if group.number >= manifest.first {
                each(group.number, &bytes[at..])?;
            }
            (at, next) = (end, next + 1);
        }
    }
    Ok(())
}
