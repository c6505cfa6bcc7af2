//! The fjall database: its keyspaces, and the transaction through which the writer thread reads and writes.
//! The only file that knows fjall. Knows keys and values as bytes; what they mean is codec.rs's.

use std::collections::HashMap;
use std::path::Path;

use bytes::Bytes;
use fjall::config::BlockSizePolicy;
use fjall::{Database, Keyspace, KeyspaceCreateOptions, OwnedWriteBatch, PersistMode, Slice};
use xxhash_rust::xxh3::Xxh3DefaultBuilder;

use super::codec::{self, Malformed, Record};

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

impl Space {
    /// Each, with its name on disk and how large its part in memory may grow before it is written out as a
    /// table. Small enough that a busy server stays under a hundred megabytes, large enough that entries
    /// which live for seconds mostly die before they are written out.
    const ALL: [(Space, &'static str, u64); 9] = [
        (Space::Meta, "meta", MIB),
        (Space::Jobs, "jobs", 32 * MIB),
        (Space::Delayed, "delayed", 16 * MIB),
        (Space::Running, "running", 16 * MIB),
        (Space::Ready, "ready", 16 * MIB),
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
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Store(..)")
    }
}

impl Store {
    /// Opens or creates the database in `path`.
    pub fn open(path: &Path) -> fjall::Result<Store> {
        let db = Database::builder(path)
            // The writer decides when bytes go to the machine and to the disk.
            .manual_journal_persist(true)
            .worker_threads(2)
            .cache_size(32 * MIB)
            .max_journaling_size(256 * MIB)
            .open()?;
        let mut spaces = Vec::with_capacity(Space::ALL.len());
        for (_, name, memtable) in Space::ALL {
            spaces.push(db.keyspace(name, || {
                KeyspaceCreateOptions::default()
                    .manual_journal_persist(true)
                    .max_memtable_size(memtable)
                    .data_block_size_policy(BlockSizePolicy::all(4096))
            })?);
        }
        let spaces = spaces.try_into().map_err(|_| fjall::Error::Unrecoverable)?;
        Ok(Store { db, spaces })
    }

    fn space(&self, space: Space) -> &Keyspace {
        // ALL lists the spaces in the order of the enum, which `store_order` in the tests holds.
        &self.spaces[space as usize]
    }

    /// Makes everything committed so far survive the machine.
    pub fn sync(&self) -> fjall::Result<()> {
        self.db.persist(PersistMode::SyncData)
    }

    /// Reads one key.
    pub fn get(&self, space: Space, key: &[u8]) -> Result<Option<Bytes>, Fatal> {
        Ok(self.space(space).get(key)?.map(Bytes::from))
    }

    /// Walks a range of committed keys.
    pub fn range(
        &self,
        space: Space,
        range: impl std::ops::RangeBounds<Bytes>,
    ) -> Box<dyn Iterator<Item = Result<(Slice, Slice), Fatal>>> {
        let range = (range.start_bound().cloned(), range.end_bound().cloned());
        let walk = self.space(space).range::<Bytes, _>(range);
        Box::new(walk.map(|guard| guard.into_inner().map_err(Fatal::from)))
    }

    /// Bytes on disk, journals included.
    pub fn disk_bytes(&self) -> Result<u64, Fatal> {
        Ok(self.db.disk_space()?)
    }

    /// Writes what a keyspace keeps in memory out as a table, and rewrites all its tables without what was
    /// deleted. Takes as long as the live data is large; for a thread of its own.
    pub fn compact(&self, space: Space) -> fjall::Result<()> {
        let keyspace = self.space(space);
        keyspace.rotate_memtable_and_wait()?;
        keyspace.major_compact()
    }
}

/// Reads and writes of the writer thread: writes gather in one batch until [`flush`](Txn::flush), and point
/// reads of jobs see them before that. Ranges do not: flush first.
#[derive(Debug)]
pub struct Txn {
    store: Store,
    batch: Batch,
    /// Job records written or deleted in `batch`.
    jobs: HashMap<Bytes, Option<Bytes>, Xxh3DefaultBuilder>,
    /// Bytes of values in `batch`.
    bytes: usize,
    /// Whether something was committed since the last `settle`.
    unsettled: bool,
    /// Deletions per keyspace since someone asked.
    deleted: [u64; 9],
}

/// Beyond this a batch is flushed early. It bounds memory, not atomicity: see [`Txn::relieve`].
const BATCH_BYTES: usize = 8 << 20;

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
        Txn { store, batch, jobs: HashMap::default(), bytes: 0, unsettled: false, deleted: [0; 9] }
    }

    /// The store, for reads of what is committed.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Writes a key. For `jobs` use [`put_job`](Txn::put_job).
    pub fn put(&mut self, space: Space, key: Bytes, value: Bytes) {
        self.bytes += key.len() + value.len();
        self.batch.0.insert(self.store.space(space), key, value);
    }

    /// Deletes a key, there or not. For `jobs` use [`delete_job`](Txn::delete_job).
    pub fn delete(&mut self, space: Space, key: Bytes) {
        self.bytes += key.len();
        self.deleted[space as usize] += 1;
        self.batch.0.remove(self.store.space(space), key);
    }

    /// Writes a job's record.
    pub fn put_job(&mut self, key: Bytes, record: &Record) {
        let value = codec::record(&key, record);
        self.jobs.insert(key.clone(), Some(value.clone()));
        self.put(Space::Jobs, key, value);
    }

    /// Deletes a job's record.
    pub fn delete_job(&mut self, key: Bytes) {
        self.jobs.insert(key.clone(), None);
        self.delete(Space::Jobs, key);
    }

    /// Reads a job's record, as this transaction left it.
    pub fn job(&self, key: &[u8]) -> Result<Found, Fatal> {
        let value = match self.jobs.get(key) {
            Some(written) => written.clone(),
            None => match self.store.space(Space::Jobs).get(key) {
                Ok(value) => value.map(Bytes::from),
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
        self.jobs.clear();
        self.bytes = 0;
        if self.batch.0.is_empty() {
            return Ok(());
        }
        self.unsettled = true;
        let batch = std::mem::replace(&mut self.batch.0, self.store.db.batch());
        Ok(batch.commit()?)
    }

    /// Flushes when the batch has grown large. Between steps only.
    pub fn relieve(&mut self) -> Result<(), Fatal> {
        if self.bytes >= BATCH_BYTES { self.flush() } else { Ok(()) }
    }

    /// Commits, and makes it survive: the process always, the machine if `sync`.
    pub fn settle(&mut self, sync: bool) -> Result<(), Fatal> {
        self.flush()?;
        if std::mem::take(&mut self.unsettled) {
            self.store.db.persist(if sync { PersistMode::SyncData } else { PersistMode::Buffer })?;
        }
        Ok(())
    }

    /// How many deletions each keyspace has seen since the last call.
    pub fn take_deleted(&mut self) -> [u64; 9] {
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
        let store = Store::open(dir.path()).unwrap(); // new directory
        let mut txn = Txn::new(store.clone());
        let (a, b) = (Bytes::from_static(b"a"), Bytes::from_static(b"b"));
        txn.put(Space::Ready, a.clone(), a.clone());
        txn.delete(Space::Ready, a.clone());
        txn.delete(Space::Ready, b.clone());
        txn.put(Space::Ready, b.clone(), b.clone());
        txn.settle(false).unwrap(); // nothing is wrong with the disk
        assert_eq!(store.get(Space::Ready, &a).unwrap(), None, "a was deleted last");
        assert_eq!(store.get(Space::Ready, &b).unwrap(), Some(b.clone()), "b was written last");
        drop((txn, store));
        let store = Store::open(dir.path()).unwrap(); // closed just now
        assert_eq!(store.get(Space::Ready, &a).unwrap(), None, "a was deleted last, after recovery");
        assert_eq!(store.get(Space::Ready, &b).unwrap(), Some(b), "b was written last, after recovery");
    }
}
