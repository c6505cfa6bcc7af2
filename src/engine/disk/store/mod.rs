//! The fjall database: its keyspaces, and the transaction through which the writer thread reads and writes.
//! Only this folder knows fjall. This file knows keys and values as bytes; what they mean is known to codec.rs.

pub mod codec;
mod files;
pub mod guard;
pub mod open;
pub mod repair;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fjall::config::{BlockSizePolicy, BloomConstructionPolicy, FilterPolicy, FilterPolicyEntry};
use fjall::{Database, Keyspace, KeyspaceCreateOptions, OwnedWriteBatch, PersistMode, Slice};
use parking_lot::Mutex;
use xxhash_rust::xxh3::Xxh3DefaultBuilder;

use codec::{META_GROUP, Malformed, Record};
use guard::DATABASE;
use guard::groups::Groups;

/// A keyspace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
}

/// One number per keyspace.
pub type PerSpace = [u64; 9];

impl Space {
    /// Each, with its name on disk and how large its part in memory may grow before it is written out as a
    /// table. Small enough that a busy server stays near two hundred megabytes, large enough that entries which
    /// live for seconds mostly die before they are written out, and that this happens seldom: whenever a table
    /// is added fjall syncs its list under a lock, and the writer waits for 20 to 50 ms. With 16 MiB for delayed
    /// and ready a million due jobs made the slowest publishes of other queues take 50 ms, with 32 MiB 30 ms. Each
    /// batch writes the newest group into `meta`, which takes about 100 bytes in memory, and of which one is left
    /// when it is written out.
    const ALL: [(Space, &'static str, u64); 9] = [
        (Space::Meta, "meta", 16 * MIB),
        (Space::Jobs, "jobs", 32 * MIB),
        (Space::Delayed, "delayed", 32 * MIB),
        (Space::Running, "running", 16 * MIB),
        (Space::Ready, "ready", 32 * MIB),
        (Space::Dead, "dead", 4 * MIB),
        (Space::Queues, "queues", 4 * MIB),
        (Space::Tokens, "tokens", MIB),
        (Space::Limits, "limits", MIB),
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
    spaces: [Keyspace; 9],
    groups: Arc<Groups>,
    /// The pool's directory; held while the second names of journals are seen to.
    pool: Arc<Mutex<PathBuf>>,
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Store(..)")
    }
}

/// fjall takes no fewer.
const FEWEST_OPEN_TABLES: usize = 10;

impl Store {
    /// Opens or creates the database of a pool. `open_tables` of its tables may stay open. open.rs calls it, when
    /// it knows that nothing in there is damaged. `groups` is made when the database is open, from `meta`.
    fn open(
        pool: &Path,
        open_tables: usize,
        groups: impl FnOnce(&Keyspace) -> fjall::Result<Groups>,
    ) -> fjall::Result<Store> {
        let db = Database::builder(pool.join(DATABASE))
            .max_cached_files(Some(open_tables.max(FEWEST_OPEN_TABLES)))
            // The writer decides when bytes go to the machine and to the disk.
            .manual_journal_persist(true)
            // One of them only writes memtables out, and spins while all others compact: with three that is
            // seldom, with two it burns a core.
            .worker_threads(3)
            .cache_size(32 * MIB)
            // The least that fjall takes: when a journal is full, whatever still needs an older one is written
            // out, so that there are two, seldom three.
            .max_journaling_size(64 * MIB)
            .open()?;
        let mut spaces = Vec::with_capacity(Space::ALL.len());
        for (space, name, memtable) in Space::ALL {
            spaces.push(db.keyspace(name, || {
                // Only jobs are looked up by key; everywhere else a filter would never be asked.
                let filter = match space {
                    Space::Jobs => FilterPolicyEntry::Bloom(BloomConstructionPolicy::BitsPerKey(10.0)),
                    _ => FilterPolicyEntry::None,
                };
                KeyspaceCreateOptions::default()
                    .manual_journal_persist(true)
                    .max_memtable_size(memtable)
                    .filter_policy(FilterPolicy::all(filter))
                    .data_block_size_policy(BlockSizePolicy::all(4096))
            })?);
        }
        let spaces: [Keyspace; 9] = spaces.try_into().map_err(|_| fjall::Error::Unrecoverable)?;
        let groups = Arc::new(groups(&spaces[Space::Meta as usize])?);
        Ok(Store { db, spaces, groups, pool: Arc::new(Mutex::new(pool.to_owned())) })
    }

    fn space(&self, space: Space) -> &Keyspace {
        // ALL lists the spaces in the order of the enum, which `store_order` in the tests holds.
        &self.spaces[space as usize]
    }

    /// Makes everything committed so far survive the machine.
    pub fn sync(&self) -> fjall::Result<()> {
        let last = self.groups.last();
        self.db.persist(PersistMode::SyncData)?;
        Ok(self.groups.synced(last, self.db.seqno())?)
    }

    /// Sees to the second names of journals, unless somebody does so now.
    pub fn keep_journals(&self) -> Result<(), Fatal> {
        match self.pool.try_lock() {
            Some(pool) => guard::names::keep(&pool, &pool.join(DATABASE), &self.groups)
                .map_err(|e| Fatal(format!("the journals cannot be given second names: {e}"))),
            None => Ok(()),
        }
    }

    /// Reads one key.
    pub fn get(&self, space: Space, key: &[u8]) -> Result<Option<Slice>, Fatal> {
        Ok(self.space(space).get(key)?)
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

    /// Walks all committed keys, without their values.
    pub fn keys(&self, space: Space) -> impl Iterator<Item = Result<Slice, Fatal>> + use<> {
        self.space(space).iter().map(|guard| guard.key().map_err(Fatal::from))
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
    recent: HashMap<Slice, Option<Slice>, Xxh3DefaultBuilder>,
    /// Bytes in `recent`, deleted ones included.
    recent_bytes: usize,
    /// Bytes of keys and values in `batch`.
    bytes: usize,
    /// The same of all batches, this one not yet.
    written: u64,
    /// Of `written`, what was when the journals' second names were last seen to.
    kept: u64,
    /// Whether something was committed since the last `settle`.
    unsettled: bool,
    /// Deletions per keyspace since someone asked.
    deleted: PerSpace,
}

/// Beyond this a batch is flushed early. It bounds memory, not atomicity: see [`Txn::relieve`].
const BATCH_BYTES: usize = 8 << 20;
/// Beyond this the recent records are forgotten, between batches.
const RECENT_BYTES: usize = 4 << 20;
/// A journal is full after 64 MB: after so many bytes it is seen long before that.
const KEEP_BYTES: u64 = 16 << 20;
/// What a recent record is counted for beside its bytes.
const RECENT_ENTRY: usize = 64;

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
            kept: 0,
            unsettled: false,
            deleted: [0; 9],
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
        let value = match self.recent.get(key) {
            Some(written) => written.clone(),
            None => match self.store.space(Space::Jobs).get(key) {
                Ok(value) => value,
                // A block that does not match its checksum harms its own jobs. Anything else is the disk's.
                Err(fjall::Error::Storage(e)) if !matches!(e, fjall::LsmError::Io(_)) => {
                    return Ok(Found::Corrupt(e.to_string()));
                }
                Err(e) => return Err(e.into()),
            },
        };
        Ok(match value {
            None => Found::Nothing,
            Some(value) => match codec::read_record(key, &value) {
                Ok(record) => Found::Record(record),
                Err(e) => Found::Corrupt(e.to_string()),
            },
        })
    }

    /// Commits the batch, without a sync: ranges see it from now on. Only between steps, or before a step's
    /// first write: what is flushed apart is not atomic together.
    pub fn flush(&mut self) -> Result<(), Fatal> {
        if self.batch.0.is_empty() {
            return Ok(());
        }
        let bytes = std::mem::take(&mut self.bytes);
        self.written += bytes as u64;
        self.unsettled = true;
        let mut batch = std::mem::replace(&mut self.batch.0, self.store.db.batch());
        let record = self.store.groups.next(batch.len(), bytes);
        batch.insert(self.store.space(Space::Meta), META_GROUP, record.to_bytes());
        batch.commit()?;
        self.store.groups.committed(record);
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
            if sync { self.store.sync()? } else { self.store.db.persist(PersistMode::Buffer)? }
        }
        if self.written - self.kept > KEEP_BYTES {
            self.kept = self.written;
            self.store.keep_journals()?;
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
        let (store, mark) = open::open(dir.path(), 64).unwrap(); // new directory
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
        let (store, _mark) = open::open(dir.path(), 64).unwrap(); // closed just now
        assert_eq!(store.get(Space::Ready, a).unwrap(), None, "a was deleted last, after recovery");
        assert_eq!(
            store.get(Space::Ready, b).unwrap().as_deref(),
            Some(&b[..]),
            "b was written last, after recovery"
        );
    }
}
