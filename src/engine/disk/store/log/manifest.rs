//! The manifest: the files of the log, in order, and the first group that is needed. A small checksummed file,
//! replaced atomically.
//!
//! `magic:8 pool:8 first:8 synced:8 count:4 (slot:4 turn:8)* check:8`.

use std::fs;
use std::io::{Error, ErrorKind, Result};
use std::path::Path;

use xxhash_rust::xxh3::xxh3_64;

use crate::engine::disk::store::durable;

/// Directory of the log within the pool's.
pub const DIR: &str = "log";
/// Name of the manifest within the log's directory.
pub const NAME: &str = "manifest";
/// Name of a new manifest until it is renamed.
const NEW: &str = "manifest.new";
const MAGIC: &[u8; 8] = b"dormman1";
const HEAD: usize = 36;
const ENTRY: usize = 12;
const CHECK: usize = 8;

/// Contents of the manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    /// Random number that identifies the pool.
    pub pool: u64,
    /// The first group needed; earlier groups are in tables.
    pub first: u64,
    /// Number of the last group that was synced when the manifest was written.
    pub synced: u64,
    /// Files that may hold groups, as slot and turn, in writing order.
    pub files: Vec<(u32, u64)>,
}

impl Manifest {
    fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        for number in [self.pool, self.first, self.synced] {
            bytes.extend(number.to_be_bytes());
        }
        bytes.extend((self.files.len() as u32).to_be_bytes());
        for (slot, turn) in &self.files {
            bytes.extend(slot.to_be_bytes());
            bytes.extend(turn.to_be_bytes());
        }
        let check = xxh3_64(&bytes);
        bytes.extend(check.to_be_bytes());
        bytes
    }

    fn from_bytes(bytes: &[u8]) -> Option<Manifest> {
        let (text, check) = bytes.split_last_chunk::<CHECK>()?;
        if xxh3_64(text).to_be_bytes() != *check || text.len() < HEAD || &text[..8] != MAGIC {
            return None;
        }
        let number = |at: usize| Some(u64::from_be_bytes(text.get(at..at + 8)?.try_into().ok()?));
        let count = u32::from_be_bytes(text[32..HEAD].try_into().ok()?) as usize;
        let entries = text[HEAD..].chunks_exact(ENTRY);
        if entries.len() != count || !entries.remainder().is_empty() || count == 0 {
            return None;
        }
        let entry = |bytes: &[u8]| {
            let (slot, turn) = bytes.split_first_chunk::<4>()?;
            Some((u32::from_be_bytes(*slot), u64::from_be_bytes(turn.try_into().ok()?)))
        };
        let files = entries.map(entry).collect::<Option<_>>()?;
        Some(Manifest { pool: number(8)?, first: number(16)?, synced: number(24)?, files })
    }

    /// Reads the manifest of a log directory. Fails with [`ErrorKind::NotFound`] if it is missing and with
    /// [`ErrorKind::InvalidData`] if it is corrupt.
    pub fn read(dir: &Path) -> Result<Manifest> {
        Manifest::from_bytes(&fs::read(dir.join(NAME))?).ok_or_else(|| Error::from(ErrorKind::InvalidData))
    }

    /// Replaces the manifest atomically and syncs it.
    pub fn write(&self, dir: &Path) -> Result<()> {
        durable::write(&dir.join(NEW), &self.to_bytes())?;
        fs::rename(dir.join(NEW), dir.join(NAME))?;
        durable::sync(dir)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_manifest_survives_and_a_flipped_byte_is_noticed(
            pool: u64, first: u64, synced: u64, files in proptest::collection::vec(any::<(u32, u64)>(), 1..9),
            at: prop::sample::Index, bits in 1u8..,
        ) {
            let manifest = Manifest { pool, first, synced, files };
            let mut bytes = manifest.to_bytes();
            prop_assert_eq!(Manifest::from_bytes(&bytes), Some(manifest));
            let at = at.index(bytes.len());
            bytes[at] ^= bits;
            prop_assert_eq!(Manifest::from_bytes(&bytes), None);
            prop_assert_eq!(Manifest::from_bytes(&bytes[..at]), None);
        }
    }

    #[test]
    fn the_file_is_replaced_as_a_whole() {
        let dir = tempfile::tempdir().unwrap(); // the temporary directory can be written
        let missing = Manifest::read(dir.path()).map_err(|e| e.kind());
        assert_eq!(missing, Err(ErrorKind::NotFound), "nothing was written yet");
        for turn in 0..3 {
            let manifest = Manifest { pool: 1, first: turn, synced: turn, files: vec![(0, turn)] };
            manifest.write(dir.path()).unwrap(); // nothing is wrong with the disk
            assert_eq!(Manifest::read(dir.path()).ok(), Some(manifest), "the last manifest written");
        }
        fs::write(dir.path().join(NAME), "x").unwrap(); // as above
        let read = Manifest::read(dir.path()).map_err(|e| e.kind());
        assert_eq!(read, Err(ErrorKind::InvalidData), "the checksum does not match");
    }
}
