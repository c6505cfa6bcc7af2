//! Estimates the garbage in each keyspace, and decides what upkeep should do about it. Knows sizes, and no job.

use crate::engine::disk::store::txn::Txn;
use crate::engine::disk::store::{PerSpace, Space, Store};

/// Minimum bytes of garbage for compacting a keyspace while the store is busy,
const GARBAGE: u64 = 64 << 20;
/// and while it is idle.
const GARBAGE_AT_REST: u64 = 2 << 20;
/// The store is idle if fewer bytes than this were written since the last call of upkeep. Not zero, because the clock
/// is written all the time.
const REST: u64 = 64 << 10;
/// After this number of bytes, memory is flushed when the store is next idle.
const WRITE_OUT: u64 = 4 << 20;

/// The garbage on disk, as far as counted.
#[derive(Debug, Default)]
pub struct Garbage {
    /// Deletions per keyspace since its last compaction; at the start, the garbage found.
    entries: PerSpace,
    /// Value of `entries` when a compaction was last requested: it may not include later garbage.
    asked: PerSpace,
    /// Value of [`Txn::written`](crate::engine::disk::store::txn::Txn::written) at the last call of upkeep,
    asked_at: u64,
    /// and at the last flush of memory.
    written_out_at: u64,
}

/// Work on the files in the background.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Upkeep {
    /// Whether to flush memory: before a compaction, and to free files of the log while idle.
    pub write_out: bool,
    /// Keyspaces that are mostly garbage, each with the approximate bytes of live entries to rewrite. Requested again
    /// until reported as compacted.
    pub compact: Vec<(Space, u64)>,
}

/// Number of live entries, for each keyspace that is worth compacting.
pub type Live = [(Space, u64); 8];

impl Garbage {
    /// Initializes the counts: stored entries that are not live are garbage.
    pub fn count(&mut self, live: &Live, store: &Store) {
        for (space, live) in live {
            self.entries[*space as usize] = store.items(*space).saturating_sub(*live);
        }
    }

    /// Records that a keyspace was compacted.
    pub fn compacted(&mut self, space: Space) {
        let asked = std::mem::take(&mut self.asked[space as usize]);
        let entries = &mut self.entries[space as usize];
        *entries = entries.saturating_sub(asked);
    }

    /// Decides what to do now. `too_soon`: the last compaction has just ended; `is_low`: the disk is almost full, so
    /// that less garbage is worth a compaction.
    pub fn upkeep(&mut self, live: &Live, txn: &mut Txn, too_soon: bool, is_low: bool) -> Upkeep {
        for (total, new) in self.entries.iter_mut().zip(txn.take_deleted()) {
            *total += new;
        }
        let written = txn.written();
        let rests = written - std::mem::replace(&mut self.asked_at, written) < REST;
        let least = if rests || is_low { GARBAGE_AT_REST } else { GARBAGE };
        let mut compact = Vec::new();
        for (space, live) in live.iter().copied() {
            let garbage = self.entries[space as usize];
            // Without live entries nothing is rewritten, and it is never too soon.
            let most_live = if is_low { garbage.saturating_mul(4) } else { garbage / 2 };
            if garbage == 0 || live > most_live || (too_soon && live > 0 && !is_low) {
                continue;
            }
            // Compares bytes, since a thousand entries may be tiny or a gigabyte; entries that were never flushed
            // take none. Deleted and live entries are assumed to be of equal size.
            let share = garbage as f64 / (garbage + live) as f64;
            let bytes = txn.store().table_bytes(space) as f64;
            if bytes * share >= least as f64 {
                self.asked[space as usize] = garbage;
                compact.push((space, (bytes * (1.0 - share)) as u64));
            }
        }
        let write_out = !compact.is_empty() || (rests && self.should_write_out(txn));
        if write_out {
            self.written_out_at = written;
        }
        Upkeep { write_out, compact }
    }

    /// Whether much was written since the last flush, or an older file of the log is left.
    pub fn should_write_out(&self, txn: &Txn) -> bool {
        txn.written() - self.written_out_at >= WRITE_OUT || txn.store().log_files() > 1
    }
}
