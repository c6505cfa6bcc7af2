//! The store: lsm-tree trees for the keyspaces, and a log of commits until the trees have flushed them. Only this
//! folder knows lsm-tree and the files. Keys and values are bytes here; codec gives them meaning.
//!
//! - [`txn`] is the transaction through which the writer thread reads and writes.
//! - [`log`] holds commits; [`trees`] holds them in memory, first in [`recent`]. One background thread maintains both
//!   ([`tend`]), another the tables ([`merge`]). [`holes`] finds unreadable blocks.
//! - [`mark`] identifies and locks a directory. [`open`] opens it after [`tables`] and [`log::judge`] have found no
//!   corruption, and keeps [`aside`] what it removes. [`contents`] reads a corrupt one, and [`fresh`] writes the
//!   directory that replaces it.
//! - [`copy`] creates a consistent copy of an open store; [`durable`] does durable writes.

mod aside;
pub mod contents;
pub mod copy;
mod durable;
mod files;
pub mod fresh;
mod holes;
pub mod log;
pub mod mark;
pub mod merge;
pub mod open;
pub mod recent;
mod space;
pub mod tables;
pub mod tend;
mod tender;
pub mod trees;
pub mod txn;

use std::ops::RangeBounds;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use lsm_tree::Slice;
use lsm_tree::{AbstractTree, AnyTree, Guard, SeqNo};
use parking_lot::RwLock;

use self::durable::{is_full, is_unreadable_io};
use self::log::Log;
pub use self::space::{PerSpace, Space};
use self::tender::Tending;
pub use self::trees::StoreLimits;
use self::trees::{Read, Trees};
use crate::engine::disk::codec::{self, Malformed, Record};

/// The store cannot continue and must be poisoned.
#[derive(Debug)]
pub struct Fatal(pub String);

impl From<lsm_tree::Error> for Fatal {
    fn from(e: lsm_tree::Error) -> Fatal {
        Fatal(describe(&e))
    }
}

impl From<std::io::Error> for Fatal {
    fn from(e: std::io::Error) -> Fatal {
        Fatal(e.to_string())
    }
}

impl From<Malformed> for Fatal {
    fn from(e: Malformed) -> Fatal {
        Fatal(format!("an entry cannot be read: {e}"))
    }
}

/// Describes an lsm-tree error in one line; its own `Display` is its `Debug`.
pub fn describe(e: &lsm_tree::Error) -> String {
    match e {
        lsm_tree::Error::Io(e) => e.to_string(),
        other => other.to_string(),
    }
}

/// Returns whether an error means that bytes on disk are unreadable or corrupt, which affects only their block. Any
/// other error concerns the whole store.
pub fn is_unreadable(e: &lsm_tree::Error) -> bool {
    match e {
        lsm_tree::Error::Io(e) => is_unreadable_io(e),
        _ => true,
    }
}

/// Result of a point read.
#[derive(Debug)]
pub enum Found {
    Nothing,
    Record(Record),
    /// There is an entry, but it is corrupt.
    Corrupt(String),
}

/// The open store. Clones share it; it closes with the last clone.
#[derive(Clone)]
pub struct Store {
    trees: Arc<Trees>,
    log: Arc<Log>,
    tending: Arc<Tending>,
    /// Read-locked while tables are created or replaced, or log files reused.
    files: Arc<RwLock<()>>,
    /// Directory of the pool.
    pool: PathBuf,
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Store(..)")
    }
}

impl Found {
    fn of(key: &[u8], value: &[u8]) -> Found {
        codec::read_record(key, value).map_or_else(|e| Found::Corrupt(e.to_string()), Found::Record)
    }

    /// Interprets a read of a job's record.
    fn read(key: &[u8], value: lsm_tree::Result<Option<Slice>>) -> Result<Found, Fatal> {
        match value {
            Ok(Some(value)) => Ok(Found::of(key, &value)),
            Ok(None) => Ok(Found::Nothing),
            // An unreadable block affects only its own jobs.
            Err(e) if is_unreadable(&e) => Ok(Found::Corrupt(describe(&e))),
            Err(e) => Err(e.into()),
        }
    }
}

impl Store {
    fn new(pool: &Path, trees: Trees, log: Log) -> Store {
        let (trees, log) = (Arc::new(trees), Arc::new(log));
        Store { trees, log, tending: Arc::default(), files: Arc::default(), pool: pool.to_owned() }
    }

    /// Makes everything committed so far durable. After an error it must not be retried: the kernel may have dropped
    /// the unwritten pages.
    pub fn sync(&self) -> Result<(), Fatal> {
        self.log.sync().map_err(|e| Fatal(format!("a sync failed: {e}")))
    }

    /// Returns the number of the last commit.
    pub fn last_group(&self) -> u64 {
        self.log.last()
    }

    /// Records the last synced group in the log, after a period without commits. Not essential, so a full disk is
    /// ignored.
    pub fn attest(&self) -> Result<(), Fatal> {
        match self.log.attest() {
            Err(e) if !is_full(&e) => Err(Fatal(format!("a sync failed: {e}"))),
            _ => Ok(()),
        }
    }

    /// Returns a snapshot of the current state.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot(self.trees.read())
    }

    /// Reads one key.
    pub fn get(&self, space: Space, key: &[u8]) -> Result<Option<Slice>, Fatal> {
        Ok(self.last(space, key)?)
    }

    /// Reads a job's committed record.
    pub fn job(&self, key: &[u8]) -> Result<Found, Fatal> {
        Found::read(key, self.last(Space::Jobs, key))
    }

    /// Returns the last committed value of a key.
    fn last(&self, space: Space, key: &[u8]) -> lsm_tree::Result<Option<Slice>> {
        or_walk(self.trees.of(space), key, SeqNo::MAX, self.trees.last(space, key))
    }

    /// Reads a number from `meta`.
    pub fn number(&self, name: &[u8]) -> Result<Option<u64>, Fatal> {
        Ok(self.get(Space::Meta, name)?.map(|value| codec::read_number(&value)).transpose()?)
    }

    /// Iterates over a range of committed keys.
    pub fn range<K: AsRef<[u8]>, R: RangeBounds<K>>(
        &self,
        space: Space,
        range: R,
    ) -> impl DoubleEndedIterator<Item = Result<(Slice, Slice), Fatal>> + use<K, R> {
        walk(&self.trees.read(), space, range)
    }

    /// Iterates over all committed keys.
    pub fn all(
        &self,
        space: Space,
    ) -> impl DoubleEndedIterator<Item = Result<(Slice, Slice), Fatal>> + use<> {
        self.range::<&[u8], _>(space, ..)
    }

    /// Returns the first and the last committed key.
    pub fn ends(&self, space: Space) -> Result<Option<(Slice, Slice)>, Fatal> {
        let mut all = self.all(space);
        let Some(first) = all.next().transpose()? else { return Ok(None) };
        let last = all.next_back().transpose()?.map_or(first.0.clone(), |(key, _)| key);
        Ok(Some((first.0, last)))
    }
}

/// The state of the store at one moment, for readers beside the writer.
pub struct Snapshot(Read);

impl Snapshot {
    /// Iterates over a range of keys.
    pub fn range(
        &self,
        space: Space,
        range: impl RangeBounds<Vec<u8>>,
    ) -> impl Iterator<Item = Result<(Slice, Slice), Fatal>> {
        walk(&self.0, space, range)
    }

    /// Reads a job's record.
    pub fn job(&self, key: &[u8]) -> Result<Found, Fatal> {
        let (tree, seqno) = (self.0.trees.of(Space::Jobs), self.0.seqno);
        Found::read(key, or_walk(tree, key, seqno, tree.get(key, seqno)))
    }
}

/// Returns the result of a point read. If it was unreadable, reads the key with an iterator instead, which uses no
/// filter: then an unreadable filter block has no effect.
fn or_walk(
    tree: &AnyTree,
    key: &[u8],
    seqno: SeqNo,
    read: lsm_tree::Result<Option<Slice>>,
) -> lsm_tree::Result<Option<Slice>> {
    match read {
        Err(e) if is_unreadable(&e) => {
            tree.range(key..=key, seqno, None).next().map(|found| Ok(found.into_inner()?.1)).transpose()
        }
        read => read,
    }
}

/// Iterates over a range of keys as of `read`. The iterator keeps the tables it needs.
fn walk<K: AsRef<[u8]>, R: RangeBounds<K>>(
    read: &Read,
    space: Space,
    range: R,
) -> impl DoubleEndedIterator<Item = Result<(Slice, Slice), Fatal>> + use<K, R> {
    let walk = read.trees.of(space).range(range, read.seqno, None);
    walk.map(|entry| entry.into_inner().map_err(Fatal::from))
}
