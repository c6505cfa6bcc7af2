//! fjall's journal files, read as bytes: batches, one after the other, each with a checksum. Changes no file, and
//! knows of our own records only where they stand in a batch.
//!
//! The format is that of fjall 3.1.13 (`journal/entry.rs` there); integers are little-endian:
//!
//! ```text
//! batch = 1 items:4 seqno:8, item*, 3 checksum:8 "FJL" 3
//! item  = 2 kind:1 compression:1 keyspace:8 keylen:2 len:4 storedlen:4 key stored
//!       | 4 keyspace:8                                         (a keyspace is emptied, in a batch of its own: rebuild.rs does that)
//! ```
//!
//! `checksum` is XXH3-64 of the items. It does not cover what stands before them, so the number of items and the
//! seqno are held by the order of the batches. A new file is 64 MiB of zeros; what follows the last batch is zeros.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;
use xxhash_rust::xxh3::xxh3_64;

use super::groups::RECORD_LEN;
use crate::engine::disk::store::codec::META_GROUP;

const START: u8 = 1;
const ITEM: u8 = 2;
const END: u8 = 3;
const CLEAR: u8 = 4;
const MAGIC: &[u8] = b"FJL\x03";
const VALUE: u8 = 0;
const TOMBSTONE: u8 = 1;
/// The bytes before the first item.
const HEAD: usize = 13;
/// The bytes of an item before its key.
const ITEM_HEAD: usize = 21;
/// The bytes of an item that empties a keyspace.
const CLEAR_LEN: usize = 9;
/// The bytes behind the last item.
const TAIL: usize = 13;

/// A batch that is whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JournalBatch {
    /// Where the next one begins.
    pub end: usize,
    pub seqno: u64,
    /// Our record, if the batch ends with one.
    pub record: Option<[u8; RECORD_LEN]>,
    /// How many items it has beside the record.
    pub items: u64,
    /// The bytes of their keys and values.
    pub bytes: u64,
    /// Whether it only deletes keys of one byte, which stand for nothing: upkeep does that (files.rs). Or whether it
    /// empties a keyspace.
    pub is_upkeep: bool,
}

/// The bytes of a journal up to the last that were written: a new one is mostly a hole.
pub fn read(path: &Path) -> std::io::Result<Vec<u8>> {
    let file = File::open(path)?;
    let (mut bytes, mut at) = (Vec::new(), 0);
    loop {
        let from = match seek(&file, SeekFrom::Data(at)) {
            Ok(from) => from,
            // Nothing but a hole follows.
            Err(Errno::NXIO) => return Ok(bytes),
            Err(e) => return Err(e.into()),
        };
        at = seek(&file, SeekFrom::Hole(from))?;
        bytes.resize(at as usize, 0);
        file.read_exact_at(&mut bytes[from as usize..], from)?;
    }
}

fn number<const N: usize>(bytes: &[u8], at: usize) -> Option<u64> {
    let bytes = bytes.get(at..at.checked_add(N)?)?;
    Some(bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
}

/// Reads the batch that begins at `at`; `None` if none does, or if it is not whole.
pub fn batch(bytes: &[u8], at: usize) -> Option<JournalBatch> {
    if *bytes.get(at)? != START {
        return None;
    }
    let count = number::<4>(bytes, at + 1)?;
    let seqno = number::<8>(bytes, at + 5)?;
    let first = at + HEAD;
    let (mut next, mut batch) =
        (first, JournalBatch { end: 0, seqno, record: None, items: 0, bytes: 0, is_upkeep: true });
    for n in 1..=count {
        if count == 1 && *bytes.get(next)? == CLEAR {
            next += CLEAR_LEN;
            batch.items += 1;
            break;
        }
        if *bytes.get(next)? != ITEM {
            return None;
        }
        let (kind, compression) = (*bytes.get(next + 1)?, *bytes.get(next + 2)?);
        let (key_len, len) = (number::<2>(bytes, next + 11)? as usize, number::<4>(bytes, next + 13)?);
        let stored = number::<4>(bytes, next + 17)? as usize;
        let key = bytes.get(next + ITEM_HEAD..)?.get(..key_len)?;
        let value = bytes.get(next + ITEM_HEAD + key_len..)?.get(..stored)?;
        if kind > TOMBSTONE || compression > 1 || (compression == 0 && stored as u64 != len) {
            return None;
        }
        next += ITEM_HEAD + key_len + stored;
        if n == count && kind == VALUE && key == META_GROUP && compression == 0 && stored == RECORD_LEN {
            batch.record = value.try_into().ok();
            batch.is_upkeep = false;
        } else {
            batch.items += 1;
            batch.bytes += key_len as u64 + len;
            batch.is_upkeep &= kind == TOMBSTONE && key_len == 1;
        }
    }
    let tail = bytes.get(next..next + TAIL)?;
    let is_whole = count > 0
        && tail[0] == END
        && number::<8>(tail, 1)? == xxh3_64(&bytes[first..next])
        && &tail[9..] == MAGIC;
    batch.end = next + TAIL;
    is_whole.then_some(batch)
}

/// Where the bytes end that are not zero, from `at` on; `None` if there are none.
pub fn used(bytes: &[u8], at: usize) -> Option<usize> {
    const ZEROS: [u8; 4096] = [0; 4096];
    let mut end = bytes.len();
    // A new journal is 64 MiB of zeros: they are passed over by the page.
    while end - at >= ZEROS.len() && bytes[end - ZEROS.len()..end] == ZEROS {
        end -= ZEROS.len();
    }
    bytes[at..end].iter().rposition(|byte| *byte != 0).map(|last| at + last + 1)
}

/// Where, behind `at`, a batch begins that `accept`s, and that batch.
pub fn find(
    bytes: &[u8],
    at: usize,
    accept: impl Fn(&JournalBatch) -> bool,
) -> Option<(usize, JournalBatch)> {
    (at..bytes.len()).find_map(|at| {
        // Cheap to see, and seldom true of what is none.
        if bytes[at] != START || *bytes.get(at + HEAD)? != ITEM {
            return None;
        }
        batch(bytes, at).filter(|batch| accept(batch)).map(|batch| (at, batch))
    })
}

#[cfg(test)]
mod tests {
    use fjall::{Database, KeyspaceCreateOptions, PersistMode};

    use super::*;

    const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/fjall-3.1.13.jnl");

    /// A journal with everything that we write, as the fjall in use writes it.
    fn written() -> Vec<u8> {
        let dir = tempfile::tempdir().unwrap(); // the temporary directory can be written
        let db = Database::builder(dir.path()).manual_journal_persist(true).open().unwrap(); // it is empty
        let spaces = ["meta", "jobs"].map(|name| {
            db.keyspace(name, || KeyspaceCreateOptions::default().manual_journal_persist(true)).unwrap()
        });
        let mut batch = db.batch();
        batch.insert(&spaces[1], b"a job", b"its body");
        // fjall compresses from 4096 bytes on.
        batch.insert(&spaces[1], b"a large job", [7; 5000]);
        batch.remove(&spaces[1], b"another job");
        batch.insert(&spaces[0], META_GROUP, [9; RECORD_LEN]);
        batch.commit().unwrap(); // nothing is wrong with the disk
        spaces[0].remove([0]).unwrap(); // upkeep does that
        db.persist(PersistMode::Buffer).unwrap();
        let mut bytes = std::fs::read(dir.path().join("0.jnl")).unwrap(); // every database has it
        assert_eq!(bytes.len(), 64 << 20, "a new journal has this length");
        bytes.truncate(used(&bytes, 0).unwrap_or(0));
        bytes
    }

    /// Guards against a fjall that writes another format. `GOLDEN=write cargo test golden` writes the file anew,
    /// for a version that was read and found to be the same, or for which this module was changed.
    #[test]
    fn golden_journals_are_written_and_read_as_ever() {
        let now = written();
        if std::env::var_os("GOLDEN").is_some() {
            std::fs::write(GOLDEN, &now).unwrap(); // the repository can be written
        }
        let golden = std::fs::read(GOLDEN).unwrap(); // it is in the repository
        assert!(now == golden, "this fjall writes {now:02x?}, and the one before wrote {golden:02x?}");
        let first = batch(&golden, 0).unwrap(); // it is whole
        assert_eq!((first.items, first.bytes), (3, (5 + 8) + (11 + 5000) + 11), "beside the record");
        assert_eq!((first.record, first.is_upkeep), (Some([9; RECORD_LEN]), false));
        let second = batch(&golden, first.end).unwrap(); // it is whole
        assert_eq!((second.items, second.record, second.is_upkeep), (1, None, true));
        assert!(second.seqno > first.seqno, "seqnos grow");
        assert_eq!(second.end, golden.len(), "nothing follows");
    }

    #[test]
    fn a_keyspace_that_is_emptied_is_a_batch_of_upkeep() {
        let dir = tempfile::tempdir().unwrap(); // the temporary directory can be written
        let db = Database::builder(dir.path()).manual_journal_persist(true).open().unwrap(); // it is empty
        let space = db.keyspace("ready", || KeyspaceCreateOptions::default().manual_journal_persist(true));
        let space = space.unwrap(); // as above
        space.clear().unwrap(); // nothing is wrong with the disk
        space.remove([0]).unwrap(); // as above
        db.persist(PersistMode::Buffer).unwrap();
        let bytes = std::fs::read(dir.path().join("0.jnl")).unwrap(); // every database has it
        let mut at = 0;
        let mut seen = Vec::new();
        while let Some(batch) = batch(&bytes, at) {
            at = batch.end;
            seen.push((batch.items, batch.is_upkeep));
        }
        // The first one is the keyspace's own name.
        assert!(seen.ends_with(&[(1, true), (1, true)]), "emptied, and then a deletion: {seen:?}");
        assert_eq!(used(&bytes, at), None, "nothing follows that does not read");
    }

    #[test]
    fn a_batch_with_a_changed_byte_is_none_or_has_another_place_in_the_order() {
        let golden = std::fs::read(GOLDEN).unwrap(); // it is in the repository
        let whole = batch(&golden, 0).unwrap(); // it is whole
        for at in 0..whole.end {
            let mut changed = golden.clone();
            changed[at] ^= 0x5a;
            match batch(&changed, 0) {
                None => {}
                // fjall's checksum does not cover it; the order does.
                Some(batch) => {
                    assert!((5..HEAD).contains(&at) && batch.seqno != whole.seqno, "byte {at}: {batch:?}")
                }
            }
        }
    }
}
