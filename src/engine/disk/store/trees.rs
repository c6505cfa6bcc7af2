//! The keyspaces, each a tree of lsm-tree, which has entries in a memtable that is written out as a table once it is
//! large. lsm-tree has no log, no threads and no sequence numbers of its own; they come from here.
//!
//! What is committed stands in [`recent`](super::recent) for a while, where most of it ends. The rest goes into the
//! memtables that [`Trees`] holds. Whoever commits takes no lock that anybody holds while the disk is written: a full
//! memtable is exchanged in a moment, by the thread that writes it out.
//!
//! lsm-tree numbers its lists of tables by the counter that it is given, and reads through the newest list whose number
//! is below that of the read. Here each tree counts its lists for itself, from 0 on, and entries have numbers above
//! [`BASE`]: so every read goes through the newest list, and an older one, with its memtables and tables, is given up
//! as soon as no read holds it.

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

/// The directory of the trees, in the pool's.
pub const DIR: &str = "trees";
/// Group 0 of the log, as a number of lsm-tree's.
const BASE: SeqNo = 1 << 32;
/// A memtable may grow to so many times its size while the one before it is written out. Then commits wait.
const WAITING: u64 = 3;
/// How often a commit that waits looks whether it waits in vain.
const WAITING_CHECK: Duration = Duration::from_millis(10);

/// What an open store may hold of the machine.
#[derive(Clone, Copy, Debug)]
pub struct StoreLimits {
    /// How many tables may stay open.
    pub open_tables: usize,
    /// How many bytes of blocks that were read are kept.
    pub cache: u64,
}

impl StoreLimits {
    /// For a tool that opens a store, does one thing and ends.
    pub const OF_A_TOOL: StoreLimits = StoreLimits { open_tables: 64, cache: 32 << 20 };
}

/// The number of the entries of a group.
fn seqno(group: u64) -> SeqNo {
    BASE + group
}

/// The trees of an open store.
pub struct Trees {
    trees: [AnyTree; SPACES],
    memory: Mutex<Memory>,
    /// Says that a memtable was written out.
    written_out: Condvar,
    /// The last group whose entries are all in memory.
    committed: AtomicU64,
    /// Up to which number each keyspace's tables had everything when they were opened.
    persisted: [SeqNo; SPACES],
    /// Which keyspaces have lost tables since then.
    lacking: [bool; SPACES],
    /// How many reads of earlier moments there are.
    reads: AtomicUsize,
    /// Held while a tree's tables are merged or compacted: see [`merging`](Trees::merging).
    merging: [Mutex<()>; SPACES],
}

/// A key that is written, or deleted if there is no value.
#[derive(Clone, Debug)]
pub struct Written {
    pub space: Space,
    pub key: Slice,
    pub value: Option<Slice>,
    /// Whether the key was not there before.
    pub is_new: bool,
}

/// What was committed and is in no table.
struct Memory {
    recent: Recent,
    active: [Active; SPACES],
    /// Deletions of what is below, since somebody asked.
    deleted: PerSpace,
}

impl Memory {
    /// Puts entries into the memtables.
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

/// What is filled now, of one tree.
struct Active {
    memtable: Arc<Memtable>,
    /// The first group with entries in it; 0 if there is none.
    first: u64,
    /// The same of those that are being written out.
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
    /// Opens or makes the trees below `pool`, without what is in the log.
    pub fn open(pool: &Path, limits: StoreLimits) -> lsm_tree::Result<Trees> {
        let cache = Arc::new(Cache::with_capacity_bytes(limits.cache));
        let tables = Arc::new(DescriptorTable::new(limits.open_tables));
        let mut trees = Vec::with_capacity(SPACES);
        for (space, name, _) in Space::ALL {
            let dir = pool.join(DIR).join(name);
            // Whoever was killed between the rename of the newest list of tables and the sync of its name has left one
            // that a power cut may take. lsm-tree deletes the older one here, and the log gives up what the newer one has.
            if dir.is_dir() {
                // What fails here says nothing of what stands there.
                sync(&dir).map_err(std::io::Error::other)?;
            }
            // Only these are looked up by key; everywhere else a filter would never be asked.
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
                .data_block_size_policy(BlockSizePolicy::all(4096))
                .data_block_restart_interval_policy(RestartIntervalPolicy::new([10, 16]))
                // What is merged again soon is not compressed.
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
            lacking: [false; SPACES],
            written_out: Condvar::new(),
            committed: AtomicU64::new(0),
            reads: AtomicUsize::new(0),
            merging: Default::default(),
        })
    }

    /// A tree. `Space::ALL` lists the spaces in the order of the enum, which a test holds.
    pub fn of(&self, space: Space) -> &AnyTree {
        &self.trees[space as usize]
    }

    /// Each, with its keyspace.
    pub fn all(&self) -> impl Iterator<Item = (Space, &AnyTree)> {
        spaces().zip(&self.trees)
    }

    /// Takes the entries of a group. Reads see them then, all at once. For who commits, and nobody else. Answers whether
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

    /// Whether memtables and tables have no such key.
    fn is_absent(&self, space: Space, key: &[u8]) -> bool {
        !matches!(self.of(space).get(key, SeqNo::MAX), Ok(Some(_)))
    }

    /// What the last commit left of a key.
    pub fn last(&self, space: Space, key: &[u8]) -> lsm_tree::Result<Option<Slice>> {
        let recent = self.memory.lock().recent.get(space, key);
        recent.map_or_else(|| self.of(space).get(key, SeqNo::MAX), Ok)
    }

    /// Puts what was committed lately into the memtables, some at a time, so that nobody waits for long. Answers with
    /// the lock when nothing is left.
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

    /// Puts what was committed lately into the memtables.
    pub fn settle(&self) {
        drop(self.settled());
    }

    /// How many entries that may be in tables were deleted since the last call, in each keyspace.
    pub fn take_deleted(&self) -> PerSpace {
        std::mem::take(&mut self.memory.lock().deleted)
    }

    /// From now on nothing counts as being in the tables of a keyspace: some of them may be lost, and the log may have
    /// what was in them. To repeat groups that other tables have changes nothing.
    pub fn lack(&mut self, space: Space) {
        self.lacking[space as usize] = true;
    }

    /// Whether it may be that tables of a keyspace are lost.
    pub fn lacks(&self, space: Space) -> bool {
        self.lacking[space as usize]
    }

    /// To be held while tables of a keyspace are merged, and until then: [`forgettable`](Trees::forgettable) tells of
    /// the moment at which the merge begins, and lsm-tree would have one merge wait for another.
    pub fn merging(&self, space: Space) -> MutexGuard<'_, ()> {
        self.merging[space as usize].lock()
    }

    /// The newest group of which a table had an entry when they were opened.
    pub fn newest(&self) -> u64 {
        self.persisted.iter().map(|seqno| seqno.saturating_sub(BASE)).max().unwrap_or(0)
    }

    /// Whether the tables of a keyspace had the entries of a group when they were opened.
    pub fn had(&self, space: Space, group: u64) -> bool {
        !self.lacks(space) && seqno(group) <= self.persisted[space as usize]
    }

    /// Waits until no memtable is much too full, or `gave_up`.
    pub fn wait_for_room(&self, gave_up: impl Fn() -> bool) {
        let is_too_full = |(space, of): (Space, &Active)| of.bytes > WAITING * space.memtable();
        let mut memory = self.memory.lock();
        while !gave_up() && spaces().zip(memory.active.iter()).any(is_too_full) {
            self.written_out.wait_for(&mut memory, WAITING_CHECK);
        }
    }

    /// The keyspaces whose memtables are full, or were not written out when they were last tried, or hold entries of
    /// groups before `old`.
    pub fn due(&self, old: u64) -> Vec<Space> {
        let active = &self.memory.lock().active;
        let is_due = |(space, of): &(Space, &Active)| {
            of.bytes > space.memtable() || of.sealed.is_some() || (of.first != 0 && of.first < old)
        };
        spaces().zip(active.iter()).filter(is_due).map(|(space, _)| space).collect()
    }

    /// The first group that is not in tables as a whole.
    pub fn first_needed(&self) -> u64 {
        let mut memory = self.memory.lock();
        let recent = memory.recent.first();
        let firsts =
            memory.active.iter().flat_map(|of| [Some(of.first), of.sealed]).chain([recent]).flatten();
        let next = self.committed.load(Ordering::Acquire) + 1;
        firsts.filter(|first| *first != 0).min().map_or(next, |first| first.min(next))
    }

    /// Writes what is in the memtable of a keyspace out as a table. Reads and commits go on meanwhile. `sync` makes the
    /// groups up to the one that it is told survive the machine: a table that outlives a power cut holds nothing that
    /// the log may lose, and nothing was left out of it for the sake of a group that the log may lose.
    pub fn flush(&self, space: Space, sync: impl Fn(u64) -> std::io::Result<()>) -> lsm_tree::Result<()> {
        let tree = self.of(space);
        let flushing = tree.get_flush_lock();
        // What could not be written out before, and then what is filled now.
        if self.memory.lock().active[space as usize].sealed.is_some() {
            self.flush_sealed(space, &flushing, &sync)?;
        }
        if self.memory.lock().active[space as usize].first == 0 {
            return Ok(());
        }
        // From here on the writer fills a sealed memtable, until it gets the new one.
        tree.rotate_memtable();
        let new = tree.active_memtable();
        let full = {
            let of = &mut self.memory.lock().active[space as usize];
            (of.sealed, of.first, of.bytes) = (Some(of.first), 0, 0);
            std::mem::replace(&mut of.memtable, new)
        };
        self.flush_sealed(space, &flushing, &sync)?;
        // Here, since nobody waits for this thread: to free hundreds of thousands of entries takes 10 to 55 ms.
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

    /// Makes reads of what is committed now possible for as long as the answer lives.
    pub fn read(self: &Arc<Self>) -> Read {
        let _memory = self.settled();
        self.reads.fetch_add(1, Ordering::AcqRel);
        Read { trees: self.clone(), seqno: seqno(self.committed.load(Ordering::Acquire)) + 1 }
    }

    /// Values before this that were written over may be given up. None while somebody reads what was committed at an
    /// earlier moment: lsm-tree gives up a value that is old enough although the one that was written over it is not, and
    /// each read goes through the newest list.
    pub fn forgettable(&self) -> SeqNo {
        match self.reads.load(Ordering::Acquire) {
            0 => seqno(self.committed.load(Ordering::Acquire)) + 1,
            _ => 0,
        }
    }
}

/// A read of what was committed at one moment.
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
