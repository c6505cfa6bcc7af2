//! Merges tables, so that reads look into few of them. fjall's own threads would do it, but a merge of theirs that finds
//! a sector that does not read, or a full disk, ends the whole database; so they are told never to, and a thread of the
//! engine does it here. Decides nothing about garbage: `files.rs` compacts for that.

use std::sync::Arc;

use fjall::AbstractTree;
use fjall::compaction::Leveled;

use super::{Fatal, Space, Store, describe, is_unreadable};

/// A merge asks for room for so many bytes at most. Its tables may be larger, but on a disk that fills up most of them
/// is deleted already, and merging is what gives that back.
const LARGE: u64 = 64 << 20;
/// fjall slows writers down at 20 unmerged runs and stops them at 30. From so many on a merge is done without room,
const PRESSING: usize = 16;
/// and at so many the store fails, since nobody will merge them: a clear end instead of a writer that waits for ever.
const TOO_MANY: usize = 26;

/// What came of a look at a keyspace.
#[derive(Debug)]
pub enum Merged {
    /// There is nothing to merge.
    Nothing,
    /// Something was merged or moved: there may be more.
    Some,
    /// There is no room to merge now.
    NoRoom,
    /// The disk was full meanwhile. What was written stays there until the store is opened anew: not to be tried again
    /// soon.
    DiskFull,
    /// A table of the keyspace cannot be read.
    Unreadable(String),
}

/// How many tables each level of a keyspace has, and their bytes: while that stays the same there is nothing new to do.
pub type Shape = ([usize; 7], u64);

impl Store {
    /// See [`Shape`].
    pub fn shape(&self, space: Space) -> Shape {
        let tree = &self.space(space).tree;
        let levels = std::array::from_fn(|level| tree.level_table_count(level).unwrap_or(0));
        (levels, tree.disk_space())
    }

    /// Merges some tables of a keyspace, if there are enough to merge and `has_room` for so many bytes.
    pub fn merge(&self, space: Space, has_room: impl Fn(u64) -> bool) -> Result<Merged, Fatal> {
        let (keyspace, before) = (self.space(space), self.shape(space));
        if !has_room(before.1.min(LARGE)) && keyspace.tree.l0_run_count() < PRESSING {
            return Ok(Merged::NoRoom);
        }
        let safe_to_forget = self.db.supervisor.snapshot_tracker.get_seqno_safe_to_gc();
        match keyspace.tree.compact(Arc::new(Leveled::default()), safe_to_forget) {
            Ok(()) if self.shape(space) == before => Ok(Merged::Nothing),
            Ok(()) => Ok(Merged::Some),
            Err(e) => not_merged(e.into()),
        }
    }

    /// Whether so much waits to be merged that the writer will soon wait for it for ever.
    pub fn too_many_unmerged(&self, space: Space) -> bool {
        self.space(space).tree.l0_run_count() >= TOO_MANY
    }
}

/// What an error of a merge or a compaction means. Nothing is lost by one that was not done.
pub fn not_merged(e: fjall::Error) -> Result<Merged, Fatal> {
    match &e {
        e if is_unreadable(e) => Ok(Merged::Unreadable(describe(e))),
        fjall::Error::Io(io) | fjall::Error::Storage(fjall::LsmError::Io(io))
            if io.kind() == std::io::ErrorKind::StorageFull =>
        {
            Ok(Merged::DiskFull)
        }
        _ => Err(e.into()),
    }
}
