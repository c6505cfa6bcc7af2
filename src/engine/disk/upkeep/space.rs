//! Free disk space, and the writes refused when there is little. The store needs space to shrink: consumes and acks
//! write a few bytes each, and a compaction writes live entries before it deletes the rest. So publishes are refused
//! long before the disk is full.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::error::{Error, Result};

/// Number of times a stored byte is counted: once for the log, once for a table.
const COPIES: u64 = 2;
/// Bytes counted per stored job besides its body: its record, entries and keys.
const JOB: u64 = 400;

/// Free space of one disk. With less than `least` bytes free, publishes are refused; with less than half of it, other
/// writes of a body (republish, respawn, bury, release with a delay or reason); with less than a quarter, compactions
/// with live entries.
#[derive(Debug)]
pub struct FreeSpace {
    path: PathBuf,
    /// 0 disables the limit.
    least: u64,
    /// Free space when last measured, minus the bytes stored since.
    free: AtomicU64,
    /// Whether publishes were refused when last measured; for logging changes.
    low: AtomicBool,
}

impl FreeSpace {
    /// Measures the file system of `path`.
    pub fn new(path: &Path, least: u64) -> Arc<FreeSpace> {
        let (free, low) = (AtomicU64::new(u64::MAX), AtomicBool::new(false));
        let room = Arc::new(FreeSpace { path: path.to_owned(), least, free, low });
        room.measure();
        room
    }

    /// Measures free space. If this fails, the last value is kept.
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
            tracing::info!(path = %self.path.display(), free, "the disk has space again: publishes are accepted");
        }
    }

    /// Returns the estimated free bytes.
    pub fn free(&self) -> u64 {
        self.free.load(Ordering::Relaxed)
    }

    /// Returns whether publishes are refused.
    pub fn is_low(&self) -> bool {
        self.free() < self.least
    }

    /// Reserves space for new jobs with bodies of `bytes` in total.
    pub fn publish(&self, jobs: usize, bytes: usize) -> Result<()> {
        self.take(self.least, jobs, bytes)
    }

    /// Reserves space for rewriting a job with a body of `bytes`.
    pub fn rewrite(&self, bytes: usize) -> Result<()> {
        self.take(self.least / 2, 1, bytes)
    }

    /// Returns whether a compaction may write `bytes` before it deletes others.
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
        // Bounds the data stored between two measurements, which correct it.
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
        assert!(low.is_low() && refused(low.publish(1, 9)), "below the limit publishes are refused");
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
        assert!(refused(room.publish(1, 1)), "the previous publish used all space");
        room.measure();
        assert!(room.publish(1, 1).is_ok(), "measuring corrects the estimate, since nothing was stored");
    }
}
