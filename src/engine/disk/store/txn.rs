//! The transaction through which the writer thread reads and writes. Keys and values are bytes here; codec gives them
//! meaning.

use std::cell::Cell;

use ahash::HashMap;
use lsm_tree::Slice;

use super::log::group::Draft;
use super::trees::Written;
use super::{Fatal, Found, PerSpace, Space, Store};
use crate::engine::disk::codec::{self, Record};

/// Reads and writes of the writer thread. Writes gather in a batch until [`flush`](Txn::flush). Point reads of jobs see
/// the batch; range reads do not, so flush first.
#[derive(Debug)]
pub struct Txn {
    store: Store,
    /// The batch in the format of the log.
    draft: Draft,
    /// The batch in the format of memory.
    batch: Vec<Written>,
    /// Job records that this batch has written or deleted.
    jobs: HashMap<Slice, Option<Slice>>,
    /// Bytes of keys and values in `batch`.
    bytes: usize,
    /// Bytes of all earlier batches.
    written: u64,
    /// Whether anything was committed since the last `settle`.
    unsettled: bool,
    /// Rows in this batch that are read back: see [`row`](Txn::row).
    rows: HashMap<(Space, Vec<u8>), Option<Slice>>,
    /// Rows of `quotas`, written last in each batch: they change in every step, and only the last value matters.
    late: HashMap<Vec<u8>, [u8; 16]>,
    /// Number of consecutive unreadable records.
    unreadable: Cell<u32>,
}

/// This many consecutive unreadable records are not a bad sector: the disk has failed.
const UNREADABLE_IN_A_ROW: u32 = 4096;

/// Size of a batch beyond which it is flushed early. Bounds memory, does not affect atomicity: see [`Txn::relieve`].
const BATCH_BYTES: usize = 8 << 20;
/// Capacity kept for rows and jobs that a batch reads back.
const KEPT: usize = 1 << 8;

impl Txn {
    /// Creates an empty transaction.
    pub fn new(store: Store) -> Txn {
        Txn {
            store,
            draft: Draft::default(),
            batch: Vec::new(),
            jobs: HashMap::default(),
            bytes: 0,
            written: 0,
            unsettled: false,
            rows: HashMap::default(),
            late: HashMap::default(),
            unreadable: Cell::new(0),
        }
    }

    /// Returns the store, for reads of committed data.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Writes a key. For `jobs` use [`put_job`](Txn::put_job).
    pub fn put(&mut self, space: Space, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) {
        // List entries have unique keys.
        self.add(space, key.as_ref().into(), Some(value.as_ref().into()), space.is_list());
    }

    fn add(&mut self, space: Space, key: Slice, value: Option<Slice>, is_new: bool) {
        self.bytes += key.len() + value.as_ref().map_or(0, |value| value.len());
        self.draft.add(space, &key, value.as_deref());
        self.batch.push(Written { space, key, value, is_new });
    }

    /// Deletes a key, which need not exist. For `jobs` use [`delete_job`](Txn::delete_job).
    pub fn delete(&mut self, space: Space, key: impl AsRef<[u8]>) {
        self.add(space, key.as_ref().into(), None, false);
    }

    /// Writes the record of an existing job.
    pub fn put_job(&mut self, key: Vec<u8>, record: &Record) {
        self.write_job(key, record, false);
    }

    /// Writes the record of a new job.
    pub fn put_new_job(&mut self, key: Vec<u8>, record: &Record) {
        self.write_job(key, record, true);
    }

    fn write_job(&mut self, key: Vec<u8>, record: &Record, is_new: bool) {
        let (value, key) = (Slice::from(codec::record(&key, record)), Slice::from(key));
        self.jobs.insert(key.clone(), Some(value.clone()));
        self.add(Space::Jobs, key, Some(value), is_new);
    }

    /// Deletes a job's record.
    pub fn delete_job(&mut self, key: Vec<u8>) {
        let key = Slice::from(key);
        self.jobs.insert(key.clone(), None);
        self.add(Space::Jobs, key, None, false);
    }

    /// Reads a job's record, including changes in this batch.
    pub fn job(&self, key: &[u8]) -> Result<Found, Fatal> {
        if let Some(written) = self.jobs.get(key) {
            return Ok(written.as_ref().map_or(Found::Nothing, |value| Found::of(key, value)));
        }
        let found = Found::read(key, self.store.last(Space::Jobs, key))?;
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
        self.add(space, Slice::from(&key[..]), Some(value.clone()), false);
        self.rows.insert((space, key), Some(value));
    }

    /// Deletes a row of `keys` or `once`.
    pub fn delete_row(&mut self, space: Space, key: Vec<u8>) {
        self.delete(space, &key);
        self.rows.insert((space, key), None);
    }

    /// Writes a row of `quotas` whose value may change again before the batch is committed. The batch must contain
    /// another write too.
    pub fn put_late(&mut self, key: &[u8], value: [u8; 16]) {
        match self.late.get_mut(key) {
            Some(late) => *late = value,
            None => drop(self.late.insert(key.to_vec(), value)),
        }
    }

    /// Deletes a row of `quotas`.
    pub fn delete_late(&mut self, key: &[u8]) {
        self.late.remove(key);
        self.delete(Space::Quotas, key);
    }

    /// Reads a row of `keys` or `once`, including changes in this batch.
    pub fn row(&self, space: Space, key: Vec<u8>) -> Result<Option<Slice>, Fatal> {
        let key = (space, key);
        match self.rows.get(&key) {
            Some(written) => Ok(written.clone()),
            None => Ok(self.store.last(space, &key.1)?),
        }
    }

    /// Commits the batch without a sync, so that ranges see it. Only between steps or before a step's first write,
    /// since separate batches are not atomic together.
    pub fn flush(&mut self) -> Result<(), Fatal> {
        if self.batch.is_empty() {
            return Ok(());
        }
        for (key, value) in std::mem::take(&mut self.late) {
            self.put(Space::Quotas, key, value);
        }
        self.written += std::mem::take(&mut self.bytes) as u64;
        self.unsettled = true;
        self.store.commit(&mut self.draft, self.batch.drain(..))?;
        // Shrunk too, since clearing a large table takes time proportional to its capacity.
        self.rows.clear();
        self.rows.shrink_to(KEPT);
        self.jobs.clear();
        self.jobs.shrink_to(KEPT);
        Ok(())
    }

    /// Flushes if the batch has grown large. Only between steps.
    pub fn relieve(&mut self) -> Result<(), Fatal> {
        if self.bytes >= BATCH_BYTES { self.flush() } else { Ok(()) }
    }

    /// Commits; also makes the commits durable if `sync`. Returns whether a sync was necessary.
    pub fn settle(&mut self, sync: bool) -> Result<bool, Fatal> {
        self.flush()?;
        let sync = sync && std::mem::take(&mut self.unsettled);
        if sync {
            self.store.sync()?;
        }
        Ok(sync)
    }

    /// Returns the bytes of keys and values committed since the store was opened.
    pub fn written(&self) -> u64 {
        self.written
    }

    /// Returns the number of deletions, by keyspace, of entries that may be in tables, since the last call.
    pub fn take_deleted(&mut self) -> PerSpace {
        self.store.trees.take_deleted()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::disk::store::{StoreLimits, open};

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
