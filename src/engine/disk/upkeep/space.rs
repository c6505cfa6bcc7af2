//! How much room the disk has, and what is refused while there is little. The store needs room to shrink: a consume
//! and an ack write a few bytes each, and a compaction writes what lives before it deletes the rest. So what is new is
//! refused long before the disk is full. Knows no job and no file.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::error::{Error, Result};

/// A stored byte is counted so many times: once in the log, once in a table.
const COPIES: u64 = 2;
/// What a stored job is counted for beside its body: its record, its entries, and their keys.
const JOB: u64 = 400;

/// The free space of one disk. Below `least` free bytes publishes are refused, below a half of it whatever else stores a body
/// again (republish, respawn, bury, a release with a delay or a reason), and below a quarter compactions that have
/// something to rewrite.
#[derive(Debug)]
pub struct FreeSpace {
    path: PathBuf,
    /// 0 is no bound.
    least: u64,
    /// What was free at the last look, less what was stored since.
    free: AtomicU64,
    /// Whether publishes were refused at the last look. For the log.
    low: AtomicBool,
}

impl FreeSpace {
    /// That of the disk that `path` lies on.
    pub fn new(path: &Path, least: u64) -> Arc<FreeSpace> {
        let (free, low) = (AtomicU64::new(u64::MAX), AtomicBool::new(false));
        let room = Arc::new(FreeSpace { path: path.to_owned(), least, free, low });
        room.measure();
        room
    }

    /// Asks the system. A disk that does not say is taken to be as it was.
    pub fn measure(&self) {
        let Ok(disk) = rustix::fs::statvfs(&self.path) else { return };
        let free = disk.f_bavail.saturating_mul(disk.f_frsize);
        self.free.store(free, Ordering::Relaxed);
        let low = free < self.least;
        if low && !self.low.swap(true, Ordering::Relaxed) {
            let path = self.path.display().to_string();
            tracing::error!(path, free, least = self.least, "the disk is almost full: publishes are refused");
        } else if free >= self.least.saturating_add(self.least / 8) && self.low.swap(false, Ordering::Relaxed)
        {
            tracing::info!(path = %self.path.display(), free, "the disk has room again: publishes are taken");
        }
    }

    /// Free bytes, as far as known.
    pub fn free(&self) -> u64 {
        self.free.load(Ordering::Relaxed)
    }

    /// Whether publishes are refused now.
    pub fn is_low(&self) -> bool {
        self.free() < self.least
    }

    /// Takes room for new jobs with bodies of so many bytes.
    pub fn publish(&self, jobs: usize, bytes: usize) -> Result<()> {
        self.take(self.least, jobs, bytes)
    }

    /// Takes room for a job that is stored again, with a body of so many bytes.
    pub fn rewrite(&self, bytes: usize) -> Result<()> {
        self.take(self.least / 2, 1, bytes)
    }

    /// Whether a compaction may write so many bytes before it deletes others.
    pub fn compact(&self, bytes: u64) -> bool {
        self.measure();
        self.least == 0 || self.free().saturating_sub(bytes) >= self.least / 4
    }

    fn take(&self, least: u64, jobs: usize, bytes: usize) -> Result<()> {
        let free = self.free();
        if free < least {
            return Err(Error::Full { free, least });
        }
        let bytes = (bytes as u64).saturating_add(JOB * jobs as u64).saturating_mul(COPIES);
        // Between two looks this alone bounds what is stored. The look corrects it.
        let _ = self
            .free
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |free| Some(free.saturating_sub(bytes)));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(result: Result<()>) -> bool {
        matches!(result, Err(Error::Full { .. }))
    }

    #[test]
    fn the_less_room_there_is_the_more_is_refused() {
        let dir = tempfile::tempdir().unwrap(); // the temporary directory can be written
        let free = FreeSpace::new(dir.path(), 0).free();
        assert!(free > 1 << 20, "a test needs some room, and {free} bytes are free");
        let with = |least: u64| FreeSpace::new(dir.path(), least);
        let enough = with(free / 64);
        assert!(
            !enough.is_low() && enough.publish(1, 9).is_ok() && enough.rewrite(9).is_ok(),
            "there is enough"
        );
        let low = with(free / 2 * 3);
        assert!(low.is_low() && refused(low.publish(1, 9)), "below the mark nothing new is stored");
        assert!(low.rewrite(9).is_ok(), "above half of the mark a job is stored again");
        let lower = with(free.saturating_mul(3));
        assert!(refused(lower.rewrite(9)), "below half of the mark it is not");
        assert!(lower.compact(0) && !lower.compact(free), "a compaction must leave a quarter");
        assert!(!with(u64::MAX).compact(0), "below a quarter nothing is compacted");
        assert!(with(0).compact(u64::MAX), "without a mark nothing is refused");
    }

    #[test]
    fn what_is_stored_between_two_looks_is_counted() {
        let dir = tempfile::tempdir().unwrap(); // the temporary directory can be written
        let free = FreeSpace::new(dir.path(), 0).free();
        let room = FreeSpace::new(dir.path(), free / 2);
        room.publish(1, (free / 2) as usize).unwrap(); // there was room when it was asked
        assert!(refused(room.publish(1, 1)), "all room was taken by the one before");
        room.measure();
        assert!(room.publish(1, 1).is_ok(), "it was not stored: the look sees the room");
    }
}
