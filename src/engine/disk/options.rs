//! How a pool on disk is opened. Plain values: what they are used for is known to the engine.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::clock::Clock;

/// When what was written reaches the disk itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sync {
    /// Before it is answered: what was answered survives the machine.
    #[default]
    Always,
    /// Each second: it survives the process, and a failing machine loses a second at most.
    EverySecond,
}

/// How to open a [`DiskEngine`](super::DiskEngine).
#[derive(Clone, Debug)]
pub struct DiskOptions {
    /// The directory; made if it is not there. Only one process may have it open.
    pub path: PathBuf,
    pub sync: Sync,
    /// The machine's clocks.
    pub clock: Arc<dyn Clock>,
    /// How many calls may wait for the writer; the next gets [`Error::Overloaded`](crate::error::Error::Overloaded).
    pub waiting: usize,
    /// How many ready jobs of each queue are kept in memory (64 bytes each); up to twice as many after jobs were
    /// given back.
    pub ready_window: usize,
    /// How many of all queues together. Each queue may keep 16 whatever it is, and 128 while it is consumed from.
    pub ready_budget: usize,
    /// How many delayed jobs are kept in memory (140 to 180 bytes each).
    pub delayed_window: usize,
    /// How many due jobs one pump moves: other calls wait so long for one commit.
    pub pump: usize,
    /// How many files of tables may stay open; at least 10. Those beyond it are opened when they are read.
    pub open_tables: usize,
    /// How many bytes of blocks that were read from tables are kept.
    pub cache: u64,
    /// Below so many free bytes on the disk publishes are refused, below half of it what stores a body again too, and
    /// below a quarter compactions that have something to rewrite. 0 refuses nothing.
    pub min_free: u64,
    /// A group of calls, or a sync, that takes longer is a disk that hangs: the store is poisoned.
    pub disk_timeout: Duration,
    /// For how long dead jobs are kept; zero: forever.
    pub dead_ttl: Duration,
    /// How long an empty queue's name is remembered.
    pub forget_queues_after: Duration,
    /// Whether to sweep and compact in the background. Tests that count sweep by hand.
    pub upkeep: bool,
    /// How long upkeep rests between two sweeps.
    pub upkeep_every: Duration,
}

impl DiskOptions {
    /// The defaults, synced always.
    pub fn new(path: impl Into<PathBuf>, clock: Arc<dyn Clock>) -> DiskOptions {
        DiskOptions {
            path: path.into(),
            sync: Sync::Always,
            clock,
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
