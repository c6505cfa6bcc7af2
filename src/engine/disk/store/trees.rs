//! The keyspaces, each an lsm-tree tree: entries are in a memtable, which is flushed as a table once it is large.
//! lsm-tree has no log, no threads and no sequence numbers of its own; this module supplies them.
//!
//! Commits first stay in [`recent`](super::recent), where most entries end. The rest moves to the memtables held by
//! [`Trees`]. The committing thread takes no lock that is held during disk writes: the flushing thread swaps a full
//! memtable for a new one in a moment.
//!
//! lsm-tree numbers its lists of tables from the counter it is given, and reads through the newest list with a number
//! below that of the read. Here each tree counts its lists from 0, and entries have numbers above [`BASE`]. So every
//! read uses the newest list, and an older list, with its memtables and tables, is dropped as soon as no read holds it.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use lsm_tree::config::{
    BlockSizePolicy, BloomConstructionPolicy, CompressionPolicy, FilterPolicy, FilterPolicyEntry,
    PinningPolicy, RestartIntervalPolicy,
};
use lsm_tree::{
    AbstractTree, AnyTree, Cache, CompressionType, Config, DescriptorTable, InternalValue, Memtable, SeqNo,
    SequenceNumberCounter, Slice, ValueType,
};
use parking_lot::{Condvar, Mutex, MutexGuard};

use super::durable::sync;
use super::recent::{Entry, Recent};
use super::space::{PerSpace, SPACES, Space};
use super::tables::PINNED;

/// Directory of the trees within the pool's.
pub const DIR: &str = "trees";
/// lsm-tree sequence number of group 0.
const BASE: SeqNo = 1 << 32;
/// Multiple of its size that a memtable may reach while the previous one is flushed. Beyond it commits wait.
const WAITING: u64 = 3;
/// Interval of a waiting commit's checks whether to give up.
const WAITING_CHECK: Duration = Duration::from_millis(10);

/// Resource limits of an open store.
#[derive(Clone, Copy, Debug)]
pub struct StoreLimits {
    /// Maximum number of open tables.
    pub open_tables: usize,
    /// Size of the block cache in bytes.
    pub cache: u64,
}

impl StoreLimits {
    /// For a tool that opens a store, does one thing and exits.
    pub const OF_A_TOOL: StoreLimits = StoreLimits { open_tables: 64, cache: 32 << 20 };
}

/// Returns the sequence number of a group's entries.
pub fn seqno(group: u64) -> SeqNo {
    BASE + group
}

/// Returns the group of a sequence number; 0 if there is none.
pub fn group_of(seqno: SeqNo) -> u64 {
    seqno.saturating_sub(BASE)
}

/// Trees of an open store.
pub struct Trees {
    trees: [AnyTree; SPACES],
    memory: Mutex<Memory>,
    /// Notified when a memtable has been flushed.
    written_out: Condvar,
    /// The last group whose entries are all in memory.
    committed: AtomicU64,
    /// For each keyspace, the highest sequence number in its tables when they were opened.
    persisted: [SeqNo; SPACES],
    /// Number of live snapshots.
    reads: AtomicUsize,
    /// Held while a tree is merged or compacted: see [`merging`](Trees::merging).
    merging: [Mutex<()>; SPACES],
}

/// A key to write, or to delete if there is no value.
#[derive(Clone, Debug)]
pub struct Written {
    pub space: Space,
    pub key: Slice,
    pub value: Option<Slice>,
    /// Whether the key did not exist before.
    pub is_new: bool,
}

/// Commits that are in no table.
struct Memory {
    recent: Recent,
    active: [Active; SPACES],
    /// Deletions of keys that exist below, counted since [`take_deleted`](Trees::take_deleted).
    deleted: PerSpace,
}

impl Memory {
    /// Adds entries to the memtables.
    fn fill(active: &mut [Active; SPACES], entries: impl Iterator<Item = Entry>) {
        for Entry { group, space, key, value, .. } in entries {
            let kind = if value.is_some() { ValueType::Value } else { ValueType::Tombstone };
            let value = value.unwrap_or_else(|| Slice::from([]));
            let of = &mut active[space as usize];
            of.bytes = of.memtable.insert(InternalValue::from_components(key, value, seqno(group), kind)).1;
            if of.first == 0 {
                of.first = group;
            }
        }
    }
}

/// The active memtable of one tree.
struct Active {
    memtable: Arc<Memtable>,
    /// The first group with entries in it; 0 if it is empty.
    first: u64,
    /// First group of the memtables being flushed.
    sealed: Option<u64>,
    bytes: u64,
}

impl Active {
    fn of(tree: &AnyTree) -> Active {
        Active { memtable: tree.active_memtable(), first: 0, sealed: None, bytes: 0 }
    }
}

impl fmt::Debug for Trees {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Trees(..)")
    }
}

impl Trees {
    /// Opens or creates the trees below `pool`, without the contents of the log.
    pub fn open(pool: &Path, limits: StoreLimits) -> lsm_tree::Result<Trees> {
        let cache = Arc::new(Cache::with_capacity_bytes(limits.cache));
        let tables = Arc::new(DescriptorTable::new(limits.open_tables));
        let mut trees = Vec::with_capacity(SPACES);
        for (space, name, _) in Space::ALL {
            let dir = pool.join(DIR).join(name);
            // A process killed between renaming the newest list of tables and syncing its name leaves a list that a
            // power cut may lose. lsm-tree deletes the older list here, and the log drops the groups that the newer one
            // has.
            if dir.is_dir() {
                // A failed sync does not mean corruption.
                sync(&dir).map_err(std::io::Error::other)?;
            }
            // Only these are looked up by key; elsewhere a filter would never be used.
            let filter = match space {
                Space::Jobs | Space::Keys | Space::Once => {
                    FilterPolicyEntry::Bloom(BloomConstructionPolicy::BitsPerKey(10.0))
                }
                _ => FilterPolicyEntry::None,
            };
            let (lists, visible) = (SequenceNumberCounter::default(), SequenceNumberCounter::default());
            let config = Config::new(dir, lists, visible)
                .use_cache(cache.clone())
                .use_descriptor_table(Some(tables.clone()))
                .filter_policy(FilterPolicy::all(filter))
                .index_block_pinning_policy(PinningPolicy::new(PINNED.0))
                .filter_block_pinning_policy(PinningPolicy::new(PINNED.1))
                // Of keys and values. With lengths, numbers and the last entry most blocks fit 4 KiB of memory;
                // beyond that the allocator takes 5 KiB.
                .data_block_size_policy(BlockSizePolicy::all(3584))
                .data_block_restart_interval_policy(RestartIntervalPolicy::new([10, 16]))
                // Tables that are merged again soon are not compressed.
                .data_block_compression_policy(CompressionPolicy::new([
                    CompressionType::None,
                    CompressionType::None,
                    CompressionType::Lz4,
                ]));
            trees.push(config.open()?);
        }
        let trees: [AnyTree; SPACES] = trees.try_into().map_err(|_| lsm_tree::Error::Unrecoverable)?;
        let active = std::array::from_fn(|n| Active::of(&trees[n]));
        let memory = Memory { recent: Recent::default(), active, deleted: [0; SPACES] };
        let persisted = std::array::from_fn(|n| trees[n].get_highest_persisted_seqno().unwrap_or(0));
        Ok(Trees {
            trees,
            memory: Mutex::new(memory),
            persisted,
            written_out: Condvar::new(),
            committed: AtomicU64::new(0),
            reads: AtomicUsize::new(0),
            merging: Default::default(),
        })
    }

    /// Returns a tree. A test ensures that `Space::ALL` has the order of the enum.
    pub fn of(&self, space: Space) -> &AnyTree {
        &self.trees[space as usize]
    }

    /// Returns all trees with their keyspaces.
    pub fn all(&self) -> impl Iterator<Item = (Space, &AnyTree)> {
        spaces().zip(&self.trees)
    }

    /// Adds the entries of a group, which reads see all at once. Called only by the committing thread. Returns whether
    /// a memtable is full.
    pub fn commit(&self, group: u64, entries: impl IntoIterator<Item = Written>) -> bool {
        let mut memory = self.memory.lock();
        let Memory { recent, active, deleted } = &mut *memory;
        for Written { space, key, value, is_new } in entries {
            debug_assert!(
                !is_new
                    || recent.get(space, &key).map_or_else(|| self.is_absent(space, &key), |v| v.is_none()),
                "{space:?} has the key {key:?} already"
            );
            let deletes = value.is_none();
            let is_kept = recent.add(group, space, key, value, is_new);
            deleted[space as usize] += u64::from(deletes && is_kept);
        }
        self.committed.store(group, Ordering::Release);
        Memory::fill(active, recent.surplus());
        spaces().zip(active.iter()).any(|(space, of)| of.bytes > space.memtable())
    }

    /// Returns whether memtables and tables do not contain the key.
    fn is_absent(&self, space: Space, key: &[u8]) -> bool {
        !matches!(self.of(space).get(key, SeqNo::MAX), Ok(Some(_)))
    }

    /// Returns the last committed value of a key.
    pub fn last(&self, space: Space, key: &[u8]) -> lsm_tree::Result<Option<Slice>> {
        let recent = self.memory.lock().recent.get(space, key);
        recent.map_or_else(|| self.of(space).get(key, SeqNo::MAX), Ok)
    }

    /// Moves recent entries to the memtables in steps, so that others do not wait long for the lock. Returns the lock
    /// once none are left.
    fn settled(&self) -> MutexGuard<'_, Memory> {
        loop {
            let mut memory = self.memory.lock();
            let Memory { recent, active, .. } = &mut *memory;
            Memory::fill(active, recent.oldest());
            if recent.first().is_none() {
                return memory;
            }
            MutexGuard::unlock_fair(memory);
        }
    }

    /// Moves all recent entries to the memtables.
    pub fn settle(&self) {
        drop(self.settled());
    }

    /// Returns the number of deletions, by keyspace, of entries that may be in tables, since the last call.
    pub fn take_deleted(&self) -> PerSpace {
        std::mem::take(&mut self.memory.lock().deleted)
    }

    /// Locks a keyspace for merging. To be held before reading [`forgettable`](Trees::forgettable), which is valid for
    /// the moment a merge begins, until the merge ends: lsm-tree would let one merge wait for another.
    pub fn merging(&self, space: Space) -> MutexGuard<'_, ()> {
        self.merging[space as usize].lock()
    }

    /// Returns the newest group with an entry in any table when they were opened.
    pub fn newest(&self) -> u64 {
        self.persisted.iter().map(|seqno| group_of(*seqno)).max().unwrap_or(0)
    }

    /// Returns whether the tables of a keyspace contained a group's entries when they were opened.
    pub fn had(&self, space: Space, group: u64) -> bool {
        seqno(group) <= self.persisted[space as usize]
    }

    /// Waits until no memtable is far too full or `gave_up` returns true.
    pub fn wait_for_room(&self, gave_up: impl Fn() -> bool) {
        let is_too_full = |(space, of): (Space, &Active)| of.bytes > WAITING * space.memtable();
        let mut memory = self.memory.lock();
        while !gave_up() && spaces().zip(memory.active.iter()).any(is_too_full) {
            self.written_out.wait_for(&mut memory, WAITING_CHECK);
        }
    }

    /// Returns the keyspaces whose memtables are full, failed to flush, or have entries of groups before `old`.
    pub fn due(&self, old: u64) -> Vec<Space> {
        let active = &self.memory.lock().active;
        let is_due = |(space, of): &(Space, &Active)| {
            of.bytes > space.memtable() || of.sealed.is_some() || (of.first != 0 && of.first < old)
        };
        spaces().zip(active.iter()).filter(is_due).map(|(space, _)| space).collect()
    }

    /// Returns the first group that is not completely in tables.
    pub fn first_needed(&self) -> u64 {
        let mut memory = self.memory.lock();
        let recent = memory.recent.first();
        let firsts =
            memory.active.iter().flat_map(|of| [Some(of.first), of.sealed]).chain([recent]).flatten();
        let next = self.committed.load(Ordering::Acquire) + 1;
        firsts.filter(|first| *first != 0).min().map_or(next, |first| first.min(next))
    }

    /// Flushes the memtable of a keyspace to a table, while reads and commits continue. `sync` makes the groups up to
    /// its argument durable: a table that survives a power cut must not contain entries that the log may lose, nor omit
    /// entries because of a later group that the log may lose.
    pub fn flush(&self, space: Space, sync: impl Fn(u64) -> std::io::Result<()>) -> lsm_tree::Result<()> {
        let tree = self.of(space);
        let flushing = tree.get_flush_lock();
        // First a memtable whose flush failed, then the active one.
        if self.memory.lock().active[space as usize].sealed.is_some() {
            self.flush_sealed(space, &flushing, &sync)?;
        }
        if self.memory.lock().active[space as usize].first == 0 {
            return Ok(());
        }
        // Until it gets the new one, the writer continues to fill the sealed memtable.
        tree.rotate_memtable();
        let new = tree.active_memtable();
        let full = {
            let of = &mut self.memory.lock().active[space as usize];
            (of.sealed, of.first, of.bytes) = (Some(of.first), 0, 0);
            std::mem::replace(&mut of.memtable, new)
        };
        self.flush_sealed(space, &flushing, &sync)?;
        // Freeing hundreds of thousands of entries takes 10 to 55 ms; nothing waits for this thread.
        drop(full);
        Ok(())
    }

    fn flush_sealed(
        &self,
        space: Space,
        flushing: &std::sync::MutexGuard<'_, ()>,
        sync: impl Fn(u64) -> std::io::Result<()>,
    ) -> lsm_tree::Result<()> {
        sync(self.committed.load(Ordering::Acquire))?;
        self.of(space).flush(flushing, self.forgettable())?;
        self.memory.lock().active[space as usize].sealed = None;
        self.written_out.notify_all();
        Ok(())
    }

    /// Returns a snapshot of the current commits. It is valid while the result lives.
    pub fn read(self: &Arc<Self>) -> Read {
        let _memory = self.settled();
        self.reads.fetch_add(1, Ordering::AcqRel);
        Read { trees: self.clone(), seqno: seqno(self.committed.load(Ordering::Acquire)) + 1 }
    }

    /// Returns the sequence number before which overwritten values may be dropped; 0 while there are snapshots.
    /// lsm-tree drops an old enough value even if the value that replaced it is newer, and every read uses the newest
    /// list.
    pub fn forgettable(&self) -> SeqNo {
        match self.reads.load(Ordering::Acquire) {
            0 => seqno(self.committed.load(Ordering::Acquire)) + 1,
            _ => 0,
        }
    }
}

/// A snapshot.
#[derive(Debug)]
pub struct Read {
    pub trees: Arc<Trees>,
    pub seqno: SeqNo,
}

impl Drop for Read {
    fn drop(&mut self) {
        self.trees.reads.fetch_sub(1, Ordering::AcqRel);
    }
}

fn spaces() -> impl Iterator<Item = Space> {
    Space::ALL.iter().map(|(space, ..)| *space)
}
