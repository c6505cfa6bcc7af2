//! The fjall database and its keyspaces. Only this folder knows fjall. This file knows keys and values as bytes; what
//! they mean is known to codec. [`txn`] is the transaction through which the writer thread reads and writes.

pub mod codec;
mod files;
pub mod guard;
pub mod journal;
pub mod memtables;
pub mod merge;
pub mod open;
pub mod repair;
pub mod txn;

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use fjall::Slice;
use fjall::compaction::Leveled;
use fjall::config::{BlockSizePolicy, BloomConstructionPolicy, FilterPolicy, FilterPolicyEntry};
use fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode, Readable};
use parking_lot::Mutex;
use rustix::io::Errno;

use self::codec::{Malformed, Record};
use self::guard::DATABASE;
use self::guard::groups::Groups;
use self::journal::Journal;

/// A keyspace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Space {
    Meta,
    Jobs,
    Delayed,
    Running,
    Ready,
    Dead,
    Queues,
    Tokens,
    Limits,
    Quotas,
    Push,
    Quarantine,
    Keys,
    Once,
}

/// How many keyspaces there are.
const SPACES: usize = 14;
/// One number per keyspace.
pub type PerSpace = [u64; SPACES];

impl Space {
    /// Each, with its name on disk and how large its part in memory may grow before it is written out as a
    /// table. Small enough that a busy server stays near two hundred megabytes, large enough that entries which
    /// live for seconds mostly die before they are written out, and that this happens seldom: whenever a table
    /// is added fjall syncs its list under a lock, and the writer waits for 5 to 10 ms. With 16 MiB for delayed
    /// and ready a million due jobs made the slowest publishes of other queues take 50 ms, with 32 MiB 30 ms, when
    /// memory was still freed under that lock too. Each batch writes the newest group into `meta`, which takes about
    /// 100 bytes in memory, and of which one is left when it is written out; where there are quotas, into `quotas` too.
    pub const ALL: [(Space, &'static str, u64); SPACES] = [
        (Space::Meta, "meta", 16 * MIB),
        (Space::Jobs, "jobs", 32 * MIB),
        (Space::Delayed, "delayed", 32 * MIB),
        (Space::Running, "running", 16 * MIB),
        (Space::Ready, "ready", 32 * MIB),
        (Space::Dead, "dead", 4 * MIB),
        (Space::Queues, "queues", 4 * MIB),
        (Space::Tokens, "tokens", MIB),
        (Space::Limits, "limits", MIB),
        (Space::Quotas, "quotas", 16 * MIB),
        (Space::Push, "push", 8 * MIB),
        (Space::Quarantine, "quarantine", MIB),
        (Space::Keys, "keys", 8 * MIB),
        (Space::Once, "once", 8 * MIB),
    ];
}

const MIB: u64 = 1 << 20;

/// The store cannot go on: it must be poisoned.
#[derive(Debug)]
pub struct Fatal(pub String);

impl From<fjall::Error> for Fatal {
    fn from(e: fjall::Error) -> Fatal {
        Fatal(describe(&e))
    }
}

impl From<Malformed> for Fatal {
    fn from(e: Malformed) -> Fatal {
        Fatal(format!("an entry cannot be read: {e}"))
    }
}

/// One line about a fjall error; its own `Display` is its `Debug`.
pub fn describe(e: &fjall::Error) -> String {
    match e {
        fjall::Error::Io(e) => e.to_string(),
        fjall::Error::Storage(fjall::LsmError::Io(e)) => e.to_string(),
        other => other.to_string(),
    }
}

/// Whether an error says that bytes on the disk cannot be read or are not what was written. That harms whatever lies in
/// the same block. Any other error says something of the whole store.
pub fn is_unreadable(e: &fjall::Error) -> bool {
    const UNREADABLE: [Errno; 5] = [Errno::IO, Errno::BADMSG, Errno::UCLEAN, Errno::NODATA, Errno::ILSEQ];
    match e {
        fjall::Error::Storage(fjall::LsmError::Io(e)) => {
            e.kind() == ErrorKind::UnexpectedEof
                || Errno::from_io_error(e).is_some_and(|e| UNREADABLE.contains(&e))
        }
        fjall::Error::Storage(_) => true,
        _ => false,
    }
}

/// What a point read found.
#[derive(Debug)]
pub enum Found {
    Nothing,
    Record(Record),
    /// Something is there, and it is not what was written.
    Corrupt(String),
}

/// The open database. Clones share it; it closes with the last clone.
#[derive(Clone)]
pub struct Store {
    db: Database,
    spaces: [Keyspace; SPACES],
    groups: Arc<Groups>,
    /// The pool's directory.
    pool: PathBuf,
    /// Held while the second names of journals are seen to.
    keeping: Arc<Mutex<()>>,
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Store(..)")
    }
}

/// fjall takes no fewer.
const FEWEST_OPEN_TABLES: usize = 10;

impl StoreLimits {
    /// For a tool that opens a store, does one thing and ends.
    pub const OF_A_TOOL: StoreLimits = StoreLimits { open_tables: 64, cache: 32 * MIB };
}

impl Found {
    fn of(key: &[u8], value: &[u8]) -> Found {
        codec::read_record(key, value).map_or_else(|e| Found::Corrupt(e.to_string()), Found::Record)
    }

    /// What a read of a job's record says.
    fn read(key: &[u8], value: fjall::Result<Option<Slice>>) -> Result<Found, Fatal> {
        match value {
            Ok(Some(value)) => Ok(Found::of(key, &value)),
            Ok(None) => Ok(Found::Nothing),
            // A block that cannot be read harms its own jobs.
            Err(e) if is_unreadable(&e) => Ok(Found::Corrupt(describe(&e))),
            Err(e) => Err(e.into()),
        }
    }
}

/// What an open database may hold of the machine.
#[derive(Clone, Copy, Debug)]
pub struct StoreLimits {
    /// How many tables may stay open.
    pub open_tables: usize,
    /// How many bytes of blocks that were read are kept.
    pub cache: u64,
}

impl Store {
    /// Opens or creates the database of a pool. open.rs calls it, when it knows that nothing in there is damaged.
    /// `groups` is made when the database is open, from `meta`.
    fn open(
        pool: &Path,
        limits: StoreLimits,
        groups: impl FnOnce(&Keyspace) -> fjall::Result<Groups>,
    ) -> fjall::Result<Store> {
        let db = Database::builder(pool.join(DATABASE))
            .max_cached_files(Some(limits.open_tables.max(FEWEST_OPEN_TABLES)))
            // The writer decides when bytes go to the machine and to the disk.
            .manual_journal_persist(true)
            // They only write memtables out: `merge.rs` merges. Fewer could wait for each other: one that seals a
            // memtable waits for room in a queue that only they empty, and the first of several gives most of
            // what it takes to the others.
            .worker_threads(3)
            .cache_size(limits.cache)
            // The least that fjall takes: when a journal is full, whatever still needs an older one is written
            // out, so that there are two, seldom three.
            .max_journaling_size(64 * MIB)
            .open()?;
        let mut spaces = Vec::with_capacity(Space::ALL.len());
        for (space, name, memtable) in Space::ALL {
            spaces.push(db.keyspace(name, || {
                // Only these are looked up by key; everywhere else a filter would never be asked.
                let filter = match space {
                    Space::Jobs | Space::Keys | Space::Once => {
                        FilterPolicyEntry::Bloom(BloomConstructionPolicy::BitsPerKey(10.0))
                    }
                    _ => FilterPolicyEntry::None,
                };
                // The engine merges (`merge.rs`), and fjall's threads never. It is kept in the database with the
                // keyspace.
                let never = Leveled::default().with_l0_threshold(u8::MAX).with_table_target_size(1 << 40);
                KeyspaceCreateOptions::default()
                    .compaction_strategy(Arc::new(never))
                    .manual_journal_persist(true)
                    .max_memtable_size(memtable)
                    .filter_policy(FilterPolicy::all(filter))
                    .data_block_size_policy(BlockSizePolicy::all(4096))
            })?);
        }
        let spaces: [Keyspace; SPACES] = spaces.try_into().map_err(|_| fjall::Error::Unrecoverable)?;
        let groups = Arc::new(groups(&spaces[Space::Meta as usize])?);
        Ok(Store { db, spaces, groups, pool: pool.to_owned(), keeping: Arc::default() })
    }

    fn space(&self, space: Space) -> &Keyspace {
        // ALL lists the spaces in the order of the enum, which `store_order` in the tests holds.
        &self.spaces[space as usize]
    }

    /// Makes everything committed so far survive the process. Fails once a thread of fjall's has failed.
    pub fn to_system(&self) -> Result<(), Fatal> {
        Ok(self.db.persist(PersistMode::Buffer)?)
    }

    /// Makes everything committed so far survive the machine. Who syncs keeps the journal, for the next time. Once it
    /// has failed it must not be tried again: the system may have forgotten what it did not write.
    pub fn sync(&self, journal: &mut Option<Journal>) -> Result<(), Fatal> {
        let last = self.groups.last();
        self.to_system()?;
        let failed = |e: std::io::Error| Fatal(format!("a sync failed: {e}"));
        let mut current = match journal.take() {
            Some(current) => current,
            None => Journal::of(&self.pool.join(DATABASE)).map_err(failed)?,
        };
        current.sync().map_err(failed)?;
        *journal = Some(current);
        self.groups.synced(last, self.db.seqno()).map_err(failed)
    }

    /// Sees to the second names of journals, unless somebody does so now.
    pub fn keep_journals(&self) -> Result<(), Fatal> {
        let Some(_held) = self.keeping.try_lock() else { return Ok(()) };
        guard::names::link_journals(&self.pool, &self.pool.join(DATABASE), &self.groups)
            .map_err(|e| Fatal(format!("the journals cannot be given second names: {e}")))
    }

    /// The store as it is now.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot { store: self.clone(), snapshot: self.db.snapshot() }
    }

    /// Reads one key.
    pub fn get(&self, space: Space, key: &[u8]) -> Result<Option<Slice>, Fatal> {
        Ok(self.space(space).get(key)?)
    }

    /// Reads a job's committed record.
    pub fn job(&self, key: &[u8]) -> Result<Found, Fatal> {
        Found::read(key, self.space(Space::Jobs).get(key))
    }

    /// Reads a number of `meta`.
    pub fn number(&self, name: &[u8]) -> Result<Option<u64>, Fatal> {
        Ok(self.get(Space::Meta, name)?.map(|value| codec::read_number(&value)).transpose()?)
    }

    /// Walks a range of committed keys.
    pub fn range<K: AsRef<[u8]>>(
        &self,
        space: Space,
        range: impl std::ops::RangeBounds<K>,
    ) -> impl Iterator<Item = Result<(Slice, Slice), Fatal>> {
        self.space(space).range(range).map(|guard| guard.into_inner().map_err(Fatal::from))
    }

    /// Walks all committed keys.
    pub fn all(&self, space: Space) -> impl Iterator<Item = Result<(Slice, Slice), Fatal>> + use<> {
        self.space(space).iter().map(|guard| guard.into_inner().map_err(Fatal::from))
    }

    /// The first and the last committed key.
    pub fn ends(&self, space: Space) -> Result<Option<(Slice, Slice)>, Fatal> {
        let space = self.space(space);
        let (Some(first), Some(last)) = (space.first_key_value(), space.last_key_value()) else {
            return Ok(None);
        };
        Ok(Some((first.key()?, last.key()?)))
    }

    /// Walks a range of committed keys, without their values.
    pub fn keys_in<K: AsRef<[u8]>>(
        &self,
        space: Space,
        range: impl std::ops::RangeBounds<K>,
    ) -> impl Iterator<Item = Result<Slice, Fatal>> {
        self.space(space).range(range).map(|guard| guard.key().map_err(Fatal::from))
    }
}

/// The store as it was at one moment. Reads what was committed by then, for who reads beside the writer.
pub struct Snapshot {
    store: Store,
    snapshot: fjall::Snapshot,
}

impl Snapshot {
    /// Walks a range of keys.
    pub fn range(
        &self,
        space: Space,
        range: impl std::ops::RangeBounds<Vec<u8>>,
    ) -> impl Iterator<Item = Result<(Slice, Slice), Fatal>> {
        let walk = self.snapshot.range(self.store.space(space), range);
        walk.map(|guard| guard.into_inner().map_err(Fatal::from))
    }

    /// Reads a job's record.
    pub fn job(&self, key: &[u8]) -> Result<Found, Fatal> {
        Found::read(key, self.snapshot.get(self.store.space(Space::Jobs), key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn store_order() {
        for (at, (space, name, _)) in Space::ALL.into_iter().enumerate() {
            assert_eq!(space as usize, at, "keyspace {name} is found by its place in the list");
        }
    }
}
