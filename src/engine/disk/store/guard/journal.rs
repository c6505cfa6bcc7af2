//! fjall's journal files, read as bytes: batches, one after the other, each with a checksum. Pure functions: changes
//! no file, and knows of our own records only where they stand in a batch.
//!
//! The format is that of fjall 3.1.13 (`journal/entry.rs` there); integers are little-endian:
//!
//! ```text
//! batch = 1 items:4 seqno:8, item*, 3 checksum:8 "FJL" 3
//! item  = 2 kind:1 compression:1 keyspace:8 keylen:2 len:4 storedlen:4 key stored
//!       | 4 keyspace:8                                         (a keyspace is emptied: we never do that)
//! ```
//!
//! `checksum` is XXH3-64 of the items. It does not cover what stands before them, so the number of items and the
//! seqno are held by the order of the batches. A new file is 64 MiB of zeros; what follows the last batch is zeros.

use xxhash_rust::xxh3::xxh3_64;

use super::groups::RECORD_LEN;
use crate::engine::disk::store::codec::META_GROUP;

const START: u8 = 1;
const ITEM: u8 = 2;
const END: u8 = 3;
const MAGIC: &[u8] = b"FJL\x03";
const VALUE: u8 = 0;
const TOMBSTONE: u8 = 1;
/// The bytes before the first item.
const HEAD: usize = 13;
/// The bytes of an item before its key.
const ITEM_HEAD: usize = 21;
/// The bytes behind the last item.
const TAIL: usize = 13;

/// A batch that is whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batch {
    /// Where the next one begins.
    pub end: usize,
    pub seqno: u64,
    /// Our record, if the batch ends with one.
    pub record: Option<[u8; RECORD_LEN]>,
    /// How many items it has beside the record.
    pub items: u64,
    /// The bytes of their keys and values.
    pub bytes: u64,
    /// Whether it only deletes keys of one byte, which stand for nothing: upkeep does that (files.rs).
    pub is_upkeep: bool,
}

fn number<const N: usize>(bytes: &[u8], at: usize) -> Option<u64> {
    let bytes = bytes.get(at..at.checked_add(N)?)?;
    Some(bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
}

/// Reads the batch that begins at `at`; `None` if none does, or if it is not whole.
pub fn batch(bytes: &[u8], at: usize) -> Option<Batch> {
    if *bytes.get(at)? != START {
        return None;
    }
    let count = number::<4>(bytes, at + 1)?;
    let seqno = number::<8>(bytes, at + 5)?;
    let first = at + HEAD;
    let (mut next, mut batch) =
        (first, Batch { end: 0, seqno, record: None, items: 0, bytes: 0, is_upkeep: true });
    for n in 1..=count {
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
pub fn find(bytes: &[u8], at: usize, accept: impl Fn(&Batch) -> bool) -> Option<(usize, Batch)> {
    (at..bytes.len()).find_map(|at| {
        // Cheap to see, and seldom true of what is none.
        if bytes[at] != START || *bytes.get(at + HEAD)? != ITEM {
            return None;
        }
        batch(bytes, at).filter(|batch| accept(batch)).map(|batch| (at, batch))
    })
}
