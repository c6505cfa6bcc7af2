//! The groups: each batch that is committed has a number, says which batch is before it, and up to which number all
//! was synced when it was written. The newest synced number stands in a small file besides. Thus whoever reads the
//! journals can tell what must be there. Knows no fjall.
//!
//! ```text
//! record = number:8 behind:4 previous:4 check:4      in meta, the last item of each batch
//! ```
//!
//! `number - behind` is synced. `check` is of the record, of the sizes of its batch, and of the pool's secret
//! number, so that nobody can publish a job whose body passes for a batch of ours. `previous` is the `check` of the
//! batch before.

use std::fs::{File, OpenOptions};
use std::io::{Error, ErrorKind, Result};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use parking_lot::Mutex;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// Bytes of a record: as many as fjall keeps without an allocation.
pub const RECORD_LEN: usize = 20;
/// The file, in the pool's directory.
pub const FILE: &str = "groups";

/// What stands in `meta` under `group`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupRecord {
    /// The first is 1, and each is one more than the one before.
    pub number: u64,
    /// All up to this were synced when it was written.
    pub synced: u64,
    pub previous: u32,
    pub check: u32,
}

impl GroupRecord {
    /// As it is stored.
    pub fn to_bytes(self) -> [u8; RECORD_LEN] {
        let behind = u32::try_from(self.number - self.synced.min(self.number)).unwrap_or(u32::MAX);
        let mut bytes = [0; RECORD_LEN];
        bytes[..8].copy_from_slice(&self.number.to_be_bytes());
        bytes[8..12].copy_from_slice(&behind.to_be_bytes());
        bytes[12..16].copy_from_slice(&self.previous.to_be_bytes());
        bytes[16..].copy_from_slice(&self.check.to_be_bytes());
        bytes
    }

    /// Reads it. Any 20 bytes are a record; [`is_of`](GroupRecord::is_of) tells ours.
    pub fn read(bytes: &[u8; RECORD_LEN]) -> GroupRecord {
        let at = |at: usize| bytes[at..at + 4].iter().fold(0u32, |n, byte| n << 8 | u32::from(*byte));
        let number = u64::from(at(0)) << 32 | u64::from(at(4));
        // So far behind that it is not told how far.
        let synced = if at(8) == u32::MAX { 0 } else { number.saturating_sub(at(8).into()) };
        GroupRecord { number, synced, previous: at(12), check: at(16) }
    }

    fn sealed(mut self, pool: u64, items: u64, bytes: u64) -> GroupRecord {
        self.check = 0;
        let mut text = [0; RECORD_LEN + 16];
        text[..RECORD_LEN].copy_from_slice(&self.to_bytes());
        text[RECORD_LEN..RECORD_LEN + 8].copy_from_slice(&items.to_be_bytes());
        text[RECORD_LEN + 8..].copy_from_slice(&bytes.to_be_bytes());
        self.check = xxh3_64_with_seed(&text, pool) as u32;
        self
    }

    /// Whether it was written for this pool, in a batch of these sizes.
    pub fn is_of(self, pool: u64, items: u64, bytes: u64) -> bool {
        self.sealed(pool, items, bytes) == self
    }
}

/// What the file holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupState {
    /// A number that only this pool has; whoever cannot read the directory does not know it.
    pub pool: u64,
    /// Batches before this one are not held to their numbers: a repair has judged them.
    pub base: u64,
    /// All up to this were synced.
    pub synced: u64,
    /// Their seqnos are below this.
    pub seqno: u64,
    /// The oldest journal that may be needed; `None` where journals have no second names.
    pub oldest: Option<u64>,
    /// No batch below this is in that journal.
    pub first: u64,
    /// The numbers of fjall's keyspaces.
    pub keyspaces: Vec<u32>,
}

/// Each of the two copies has a sector of its own, in a page of its own.
const SLOT: usize = 512;
const SECOND: u64 = 4096;
const HEAD: usize = 8 * 8;
/// As many keyspaces as a slot has room for.
const MOST_KEYSPACES: usize = (SLOT - HEAD - 8) / 4;

impl GroupState {
    /// A base behind all numbers that the database holds. It is replaced when the database is open.
    pub const BEHIND_ALL: u64 = u64::MAX;

    /// Of a pool that holds nothing yet.
    pub fn new() -> GroupState {
        // The library's maps need a number that nobody can guess, and so do we.
        let pool = std::hash::BuildHasher::hash_one(&std::collections::hash_map::RandomState::new(), FILE);
        GroupState { pool, base: 1, synced: 0, seqno: 0, oldest: None, first: 1, keyspaces: Vec::new() }
    }

    /// Of a database with these keyspaces, whose numbers cannot be trusted.
    pub fn behind_all(keyspaces: impl IntoIterator<Item = u32>) -> GroupState {
        let base = GroupState::BEHIND_ALL;
        let keyspaces = keyspaces.into_iter().collect();
        GroupState { base, first: base, synced: base - 1, keyspaces, ..GroupState::new() }
    }

    fn to_slot(&self, turn: u64) -> [u8; SLOT] {
        let mut slot = [0; SLOT];
        let oldest = self.oldest.unwrap_or(u64::MAX);
        let numbers = [turn, self.pool, self.base, self.synced, self.seqno, oldest, self.first];
        for (n, number) in numbers.into_iter().enumerate() {
            slot[8 + 8 * n..16 + 8 * n].copy_from_slice(&number.to_be_bytes());
        }
        slot[HEAD..HEAD + 8].copy_from_slice(&(self.keyspaces.len() as u64).to_be_bytes());
        for (n, id) in self.keyspaces.iter().take(MOST_KEYSPACES).enumerate() {
            slot[HEAD + 8 + 4 * n..HEAD + 12 + 4 * n].copy_from_slice(&id.to_be_bytes());
        }
        let checksum = xxh3_64(&slot[8..]);
        slot[..8].copy_from_slice(&checksum.to_be_bytes());
        slot
    }

    fn from_slot(slot: &[u8; SLOT]) -> Option<(u64, GroupState)> {
        let number = |at: usize| slot[at..at + 8].iter().fold(0, |n, byte| n << 8 | u64::from(*byte));
        let count = number(HEAD) as usize;
        if number(0) != xxh3_64(&slot[8..]) || count > MOST_KEYSPACES {
            return None;
        }
        let ids = slot[HEAD + 8..].chunks_exact(4).take(count);
        let state = GroupState {
            pool: number(16),
            base: number(24),
            synced: number(32),
            seqno: number(40),
            oldest: Some(number(48)).filter(|oldest| *oldest != u64::MAX),
            first: number(56),
            keyspaces: ids.map(|id| id.iter().fold(0, |n, byte| n << 8 | u32::from(*byte))).collect(),
        };
        Some((number(8), state))
    }

    /// Reads the file in the pool's directory. `None` if there is none; [`ErrorKind::InvalidData`] if neither copy
    /// is whole.
    pub fn read(pool: &Path) -> Result<Option<GroupState>> {
        match std::fs::read(pool.join(FILE)) {
            Ok(bytes) => match newest(&bytes) {
                Some((_, state)) => Ok(Some(state)),
                None => Err(Error::new(ErrorKind::InvalidData, "the file groups cannot be read")),
            },
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e),
        }
    }
}

/// The newer one of the two copies.
fn newest(file: &[u8]) -> Option<(u64, GroupState)> {
    let slot = |at: u64| GroupState::from_slot(file.get(at as usize..)?.get(..SLOT)?.try_into().ok()?);
    [slot(0), slot(SECOND)].into_iter().flatten().max_by_key(|(turn, _)| *turn)
}

/// The groups of an open store.
#[derive(Debug)]
pub struct Groups {
    /// The newest one.
    last: Mutex<GroupRecord>,
    kept: Mutex<Kept>,
}

#[derive(Debug)]
struct Kept {
    state: GroupState,
    turn: u64,
    file: File,
}

impl Groups {
    /// Goes on after `last`, and keeps the file in the pool's directory, made if it is not there.
    pub fn open(pool: &Path, state: GroupState, last: GroupRecord) -> Result<Groups> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let file = options.open(pool.join(FILE))?;
        let turn = newest(&std::fs::read(pool.join(FILE))?).map_or(0, |(turn, _)| turn);
        Ok(Groups { last: Mutex::new(last), kept: Mutex::new(Kept { state, turn, file }) })
    }

    /// The record of the next batch, which has so many items and bytes beside it.
    pub fn next(&self, items: usize, bytes: usize) -> GroupRecord {
        let (pool, synced) = {
            let kept = self.kept.lock();
            (kept.state.pool, kept.state.synced)
        };
        let last = self.last.lock();
        let next = GroupRecord { number: last.number + 1, synced, previous: last.check, check: 0 };
        next.sealed(pool, items as u64, bytes as u64)
    }

    /// That batch is committed.
    pub fn committed(&self, record: GroupRecord) {
        *self.last.lock() = record;
    }

    /// The newest committed number.
    pub fn last(&self) -> u64 {
        self.last.lock().number
    }

    /// All up to this number are synced, and their seqnos are below `seqno`. It survives the process.
    pub fn synced(&self, number: u64, seqno: u64) -> Result<()> {
        let mut kept = self.kept.lock();
        if number <= kept.state.synced {
            return Ok(());
        }
        (kept.state.synced, kept.state.seqno) = (number, seqno);
        kept.write()
    }

    /// What the file holds.
    pub fn state(&self) -> GroupState {
        self.kept.lock().state.clone()
    }

    /// Changes it, so that it survives the machine.
    pub fn change(&self, change: impl FnOnce(&mut GroupState)) -> Result<()> {
        let mut kept = self.kept.lock();
        change(&mut kept.state);
        kept.write()?;
        kept.file.sync_all()
    }
}

impl Kept {
    fn write(&mut self) -> Result<()> {
        self.turn += 1;
        let at = if self.turn.is_multiple_of(2) { 0 } else { SECOND };
        self.file.write_all_at(&self.state.to_slot(self.turn), at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn records_are_read_as_they_were_written(number: u64, behind: u32, previous: u32, pool: u64, items: u64) {
            prop_assume!(behind != u32::MAX && number >= behind.into());
            let record = GroupRecord { number, synced: number - u64::from(behind), previous, check: 0 };
            let record = record.sealed(pool, items, 7);
            let read = GroupRecord::read(&record.to_bytes());
            prop_assert_eq!(read, record);
            prop_assert!(read.is_of(pool, items, 7) && !read.is_of(pool, items, 8) && !read.is_of(pool ^ 1, items, 7));
        }

        #[test]
        fn a_copy_with_a_changed_byte_is_not_read(at in 0..SLOT, by in 1..=255u8) {
            let state = GroupState { keyspaces: vec![0, 1, 9], oldest: Some(3), synced: 17, ..GroupState::new() };
            let mut slot = state.to_slot(5);
            prop_assert_eq!(GroupState::from_slot(&slot), Some((5, state)));
            slot[at] ^= by;
            prop_assert_eq!(GroupState::from_slot(&slot), None);
        }
    }

    #[test]
    fn the_older_copy_is_read_when_the_newer_one_is_torn() {
        let dir = tempfile::tempdir().unwrap(); // the temporary directory can be written
        let groups = Groups::open(dir.path(), GroupState::new(), GroupRecord::default()).unwrap(); // it is empty
        for number in 1..=4 {
            groups.synced(number, number).unwrap(); // nothing is wrong with the disk
        }
        let synced = || GroupState::read(dir.path()).map(|state| state.map(|state| state.synced));
        assert_eq!(synced().unwrap(), Some(4)); // both copies are whole
        let file = OpenOptions::new().write(true).open(dir.path().join(FILE)).unwrap(); // it is there
        file.write_all_at(&[1; 100], 0).unwrap(); // turn 4
        assert_eq!(synced().unwrap(), Some(3), "of the other copy");
        file.write_all_at(&[1; 100], SECOND).unwrap();
        assert_eq!(synced().map_err(|e| e.kind()), Err(ErrorKind::InvalidData), "neither copy is whole");
    }
}
