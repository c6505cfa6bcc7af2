//! How much garbage lies in each keyspace, and what upkeep should do about it. Knows sizes, and no job.

use crate::engine::disk::store::txn::Txn;
use crate::engine::disk::store::{PerSpace, Space, Store};

/// A keyspace is not compacted for fewer bytes of garbage than this while the store is busy,
const GARBAGE: u64 = 64 << 20;
/// and for fewer than this while it rests.
const GARBAGE_AT_REST: u64 = 2 << 20;
/// The store rests when fewer bytes than this were written since upkeep was last asked for. Not none, because
/// the clock is written all the time.
const REST: u64 = 64 << 10;
/// Once so many bytes were written since memory was last written out, it is written out at the next rest.
const WRITE_OUT: u64 = 4 << 20;

/// The garbage on disk, as far as it was counted.
#[derive(Debug, Default)]
pub struct Garbage {
    /// Deletions per keyspace since it was compacted; at the start what they left behind.
    entries: PerSpace,
    /// What `entries` was when a compaction was last asked for: what came later may not be seen by it.
    asked: PerSpace,
    /// What [`Txn::written`](crate::engine::disk::store::txn::Txn::written) said when upkeep was last asked for,
    asked_at: u64,
    /// and when upkeep last said that memory is to be written out.
    written_out_at: u64,
}

/// Work on the files, beside the writer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Upkeep {
    /// Whether to write out what is in memory: before a compaction, and to be rid of files of the log at rest.
    pub write_out: bool,
    /// Keyspaces of which most is garbage, with about how many bytes of each live and are written anew. They are asked
    /// for again until they are reported as compacted.
    pub compact: Vec<(Space, u64)>,
}

/// How many entries live, in each keyspace that is worth a compaction.
pub type Live = [(Space, u64); 8];

impl Garbage {
    /// At the start: everything stored that does not live is garbage, whoever left it behind.
    pub fn count(&mut self, live: &Live, store: &Store) {
        for (space, live) in live {
            self.entries[*space as usize] = store.items(*space).saturating_sub(*live);
        }
    }

    /// A keyspace was compacted.
    pub fn compacted(&mut self, space: Space) {
        let asked = std::mem::take(&mut self.asked[space as usize]);
        let entries = &mut self.entries[space as usize];
        *entries = entries.saturating_sub(asked);
    }

    /// What to do about the garbage now. `too_soon` is whether the last compaction ended just now; `is_low` whether
    /// the disk is almost full, so that less garbage is worth a compaction.
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
            // Where nothing lives nothing is rewritten, and it is never too soon.
            let most_live = if is_low { garbage.saturating_mul(4) } else { garbage / 2 };
            if garbage == 0 || live > most_live || (too_soon && live > 0 && !is_low) {
                continue;
            }
            // Bytes, for a thousand entries may be nothing or a gigabyte; those that were never written out are
            // none. What is deleted and what lives are taken to be of one size.
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

    /// Whether much was written since memory was last written out, or an older file of the log is left.
    pub fn should_write_out(&self, txn: &Txn) -> bool {
        txn.written() - self.written_out_at >= WRITE_OUT || txn.store().log_files() > 1
    }
}
