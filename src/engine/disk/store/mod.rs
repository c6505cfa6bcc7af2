//! The fjall database: its keyspaces, and the transaction through which the writer thread reads and writes.
//! Only this folder knows fjall. This file knows keys and values as bytes; what they mean is known to codec.

pub mod codec;
mod files;
pub mod guard;
pub mod journal;
pub mod memtables;
pub mod merge;
pub mod open;
pub mod repair;

use std::cell::Cell;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ahash::HashMap;

pub use fjall::Slice;
use fjall::compaction::Leveled;
use fjall::config::{BlockSizePolicy, BloomConstructionPolicy, FilterPolicy, FilterPolicyEntry};
use fjall::{Database, Keyspace, KeyspaceCreateOptions, OwnedWriteBatch, PersistMode, Readable};
use parking_lot::Mutex;
use rustix::io::Errno;

use self::codec::{META_GROUP, Malformed, Record};
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

/// So many records in a row that cannot be read are no bad sector: the disk has failed.
const UNREADABLE_IN_A_ROW: u32 = 4096;

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
                // The engine merges (`merge.rs`), and fjall's threads never. It is kept in the database with the keyspace.
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

    /// Makes everything committed so far survive the machine. Who syncs keeps the journal, for the next time. Once it has
    /// failed it must not be tried again: the system may have forgotten what it did not write.
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

/// Reads and writes of the writer thread: writes gather in one batch until [`flush`](Txn::flush), and point
/// reads of jobs see them before that. Ranges do not: flush first.
#[derive(Debug)]
pub struct Txn {
    store: Store,
    batch: Batch,
    /// Job records written or deleted lately, by this batch or those before it. What it has is what a read of
    /// the database will find once the batch is committed, since nobody else writes. A job that is consumed
    /// soon after its publish is read from here.
    recent: HashMap<Slice, Option<Slice>>,
    /// Bytes in `recent`, deleted ones included.
    recent_bytes: usize,
    /// Bytes of keys and values in `batch`.
    bytes: usize,
    /// The same of all batches, this one not yet.
    written: u64,
    /// Whether something was committed since the last `settle`.
    unsettled: bool,
    /// Rows that this batch has written or deleted and that are read back: see [`row`](Txn::row).
    rows: HashMap<(Space, Vec<u8>), Option<Slice>>,
    /// Rows of `quotas` that each batch writes last: they change with every step, and only the last value counts.
    late: HashMap<Vec<u8>, [u8; 16]>,
    /// Deletions per keyspace since someone asked.
    deleted: PerSpace,
    /// What was synced last.
    journal: Option<Journal>,
    /// Bytes that went into journals since then.
    journaled: u64,
    /// Records in a row that could not be read.
    unreadable: Cell<u32>,
}

/// Beyond this a batch is flushed early. It bounds memory, not atomicity: see [`Txn::relieve`].
const BATCH_BYTES: usize = 8 << 20;
/// Beyond this the recent records are forgotten, between batches.
const RECENT_BYTES: usize = 4 << 20;
/// What a recent record is counted for beside its bytes.
const RECENT_ENTRY: usize = 64;

/// What a journal has beside the bytes of a batch and of each key and value; with the group's record, which each batch
/// has as its last item.
const JOURNAL_BATCH: usize = 80;
const JOURNAL_ITEM: usize = 22;

struct Batch(OwnedWriteBatch);

impl std::fmt::Debug for Batch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Batch({})", self.0.len())
    }
}

impl Txn {
    /// Nothing read or written yet.
    pub fn new(store: Store) -> Txn {
        let batch = Batch(store.db.batch());
        Txn {
            store,
            batch,
            recent: HashMap::default(),
            recent_bytes: 0,
            bytes: 0,
            written: 0,
            unsettled: false,
            rows: HashMap::default(),
            late: HashMap::default(),
            deleted: [0; SPACES],
            journal: None,
            journaled: 0,
            unreadable: Cell::new(0),
        }
    }

    /// The store, for reads of what is committed.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Writes a key. For `jobs` use [`put_job`](Txn::put_job).
    pub fn put(&mut self, space: Space, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) {
        self.put_slices(space, key.as_ref().into(), value.as_ref().into());
    }

    fn put_slices(&mut self, space: Space, key: Slice, value: Slice) {
        self.bytes += key.len() + value.len();
        self.batch.0.insert(self.store.space(space), key, value);
    }

    /// Deletes a key, there or not. For `jobs` use [`delete_job`](Txn::delete_job).
    pub fn delete(&mut self, space: Space, key: impl AsRef<[u8]>) {
        self.delete_slice(space, key.as_ref().into());
    }

    fn delete_slice(&mut self, space: Space, key: Slice) {
        self.bytes += key.len();
        self.deleted[space as usize] += 1;
        self.batch.0.remove(self.store.space(space), key);
    }

    /// Writes a job's record.
    pub fn put_job(&mut self, key: Vec<u8>, record: &Record) {
        let (value, key) = (Slice::from(codec::record(&key, record)), Slice::from(key));
        self.remember(key.clone(), Some(value.clone()));
        self.put_slices(Space::Jobs, key, value);
    }

    /// Deletes a job's record.
    pub fn delete_job(&mut self, key: Vec<u8>) {
        let key = Slice::from(key);
        self.remember(key.clone(), None);
        self.delete_slice(Space::Jobs, key);
    }

    fn remember(&mut self, key: Slice, value: Option<Slice>) {
        self.recent_bytes += RECENT_ENTRY + key.len() + value.as_ref().map_or(0, |value| value.len());
        self.recent.insert(key, value);
    }

    /// Reads a job's record, as this transaction left it.
    pub fn job(&self, key: &[u8]) -> Result<Found, Fatal> {
        if let Some(written) = self.recent.get(key) {
            return Ok(written.as_ref().map_or(Found::Nothing, |value| Found::of(key, value)));
        }
        let found = self.store.job(key)?;
        let in_a_row = if matches!(found, Found::Corrupt(_)) { self.unreadable.get() + 1 } else { 0 };
        self.unreadable.set(in_a_row);
        if in_a_row >= UNREADABLE_IN_A_ROW {
            return Err(Fatal(format!("{in_a_row} jobs in a row cannot be read: {found:?}")));
        }
        Ok(found)
    }

    /// Writes a row of `keys` or `once`.
    pub fn put_row(&mut self, space: Space, key: Vec<u8>, value: Vec<u8>) {
        let value = Slice::from(value);
        self.put_slices(space, Slice::from(&key[..]), value.clone());
        self.rows.insert((space, key), Some(value));
    }

    /// Deletes a row of `keys` or `once`.
    pub fn delete_row(&mut self, space: Space, key: Vec<u8>) {
        self.delete(space, &key);
        self.rows.insert((space, key), None);
    }

    /// Writes a row of `quotas`, whose value may change again before the batch is committed. Only together with something
    /// else that is written.
    pub fn put_late(&mut self, key: &[u8], value: [u8; 16]) {
        match self.late.get_mut(key) {
            Some(late) => *late = value,
            None => drop(self.late.insert(key.to_vec(), value)),
        }
    }

    /// Deletes such a row.
    pub fn delete_late(&mut self, key: &[u8]) {
        self.late.remove(key);
        self.delete(Space::Quotas, key);
    }

    /// Reads a row of `keys` or `once`, as this transaction left it.
    pub fn row(&self, space: Space, key: Vec<u8>) -> Result<Option<Slice>, Fatal> {
        let key = (space, key);
        match self.rows.get(&key) {
            Some(written) => Ok(written.clone()),
            None => self.store.get(space, &key.1),
        }
    }

    /// Commits the batch, without a sync: ranges see it from now on. Only between steps, or before a step's
    /// first write: what is flushed apart is not atomic together.
    pub fn flush(&mut self) -> Result<(), Fatal> {
        if self.batch.0.is_empty() {
            return Ok(());
        }
        for (key, value) in std::mem::take(&mut self.late) {
            self.put(Space::Quotas, key, value);
        }
        let bytes = std::mem::take(&mut self.bytes);
        self.written += bytes as u64;
        self.unsettled = true;
        let mut batch = std::mem::replace(&mut self.batch.0, self.store.db.batch());
        self.journaled += (bytes + JOURNAL_BATCH + batch.len() * JOURNAL_ITEM) as u64;
        let record = self.store.groups.next(batch.len(), bytes);
        batch.insert(self.store.space(Space::Meta), META_GROUP, record.to_bytes());
        batch.commit()?;
        self.store.groups.committed(record);
        self.rows.clear();
        if self.recent_bytes > RECENT_BYTES {
            self.recent.clear();
            self.recent_bytes = 0;
        }
        Ok(())
    }

    /// Flushes when the batch has grown large. Between steps only.
    pub fn relieve(&mut self) -> Result<(), Fatal> {
        if self.bytes >= BATCH_BYTES { self.flush() } else { Ok(()) }
    }

    /// Commits, and makes it survive: the process always, the machine if `sync`.
    pub fn settle(&mut self, sync: bool) -> Result<(), Fatal> {
        self.flush()?;
        if std::mem::take(&mut self.unsettled) {
            if sync {
                self.store.sync(&mut self.journal)?;
                if let Some(journal) = &mut self.journal {
                    journal.prepare(std::mem::take(&mut self.journaled));
                }
            } else {
                self.store.to_system()?;
            }
        }
        Ok(())
    }

    /// How many bytes of keys and values were committed since the store was opened.
    pub fn written(&self) -> u64 {
        self.written
    }

    /// How many deletions each keyspace has seen since the last call.
    pub fn take_deleted(&mut self) -> PerSpace {
        std::mem::take(&mut self.deleted)
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

    #[test]
    fn the_last_write_of_a_key_in_one_batch_counts() {
        let dir = tempfile::tempdir().unwrap(); // the temporary directory can be written
        let (store, mark) = open::open(dir.path(), StoreLimits::OF_A_TOOL).unwrap(); // new directory
        let mut txn = Txn::new(store.clone());
        let (a, b) = (b"a", b"b");
        txn.put(Space::Ready, a, a);
        txn.delete(Space::Ready, a);
        txn.delete(Space::Ready, b);
        txn.put(Space::Ready, b, b);
        txn.settle(false).unwrap(); // nothing is wrong with the disk
        assert_eq!(store.get(Space::Ready, a).unwrap(), None, "a was deleted last");
        assert_eq!(store.get(Space::Ready, b).unwrap().as_deref(), Some(&b[..]), "b was written last");
        drop((txn, store, mark));
        let (store, _mark) = open::open(dir.path(), StoreLimits::OF_A_TOOL).unwrap(); // closed just now
        assert_eq!(store.get(Space::Ready, a).unwrap(), None, "a was deleted last, after recovery");
        assert_eq!(
            store.get(Space::Ready, b).unwrap().as_deref(),
            Some(&b[..]),
            "b was written last, after recovery"
        );
    }
}
