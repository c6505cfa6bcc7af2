//! Options of a pool on disk. Plain values.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::clock::Clock;
use crate::engine::observer::Observer;

/// When writes are synced to the disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sync {
    /// Before the reply: acknowledged writes survive a power cut.
    #[default]
    Always,
    /// Once a second: writes survive the process, and a power cut loses at most a second.
    EverySecond,
}

/// Options for opening a [`DiskEngine`](super::DiskEngine).
#[derive(Clone, Debug)]
pub struct DiskOptions {
    /// The directory; created if missing. Only one process may have it open.
    pub path: PathBuf,
    pub sync: Sync,
    /// The machine's clocks.
    pub clock: Arc<dyn Clock>,
    /// Receives internal events.
    pub observer: Arc<dyn Observer>,
    /// Maximum calls that wait for the writer; further ones get
    /// [`Error::Overloaded`](crate::error::Error::Overloaded).
    pub waiting: usize,
    /// Maximum ready jobs per queue in memory (64 bytes each); up to twice the number after jobs were returned.
    pub ready_window: usize,
    /// Maximum ready jobs in memory over all queues. Each queue may always keep 16, and 128 while it is consumed
    /// from.
    pub ready_budget: usize,
    /// Maximum delayed jobs in memory (140 to 180 bytes each).
    pub delayed_window: usize,
    /// Maximum due jobs moved by one pump, which delays other calls by one commit.
    pub pump: usize,
    /// Maximum open table files, at least 10. Further tables are opened for each read.
    pub open_tables: usize,
    /// Bytes of table blocks that are cached.
    pub cache: u64,
    /// Free bytes on the disk below which publishes are rejected; below half of it also operations that store a body
    /// again, and below a quarter compactions that rewrite data. 0 rejects nothing.
    pub min_free: u64,
    /// A group of calls or a sync that takes longer means that the disk hangs: the store is poisoned.
    pub disk_timeout: Duration,
    /// How long dead jobs are kept; zero: forever.
    pub dead_ttl: Duration,
    /// How long the name of an empty queue is kept.
    pub forget_queues_after: Duration,
    /// Whether to sweep and compact in the background. Tests that count sweep themselves.
    pub upkeep: bool,
    /// Pause between two sweeps.
    pub upkeep_every: Duration,
}

impl DiskOptions {
    /// Returns the defaults, with [`Sync::Always`].
    pub fn new(path: impl Into<PathBuf>, clock: Arc<dyn Clock>) -> DiskOptions {
        DiskOptions {
            path: path.into(),
            sync: Sync::Always,
            clock,
            observer: Arc::new(()),
            waiting: 16384,
            ready_window: 4096,
            ready_budget: 262_144,
            delayed_window: 16384,
            pump: 500,
            open_tables: 900,
            cache: 32 << 20,
            min_free: 256 << 20,
            disk_timeout: Duration::from_secs(30),
            dead_ttl: Duration::ZERO,
            forget_queues_after: Duration::from_secs(600),
            upkeep: true,
            upkeep_every: Duration::from_secs(5),
        }
    }
}
