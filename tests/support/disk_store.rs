//! An empty disk engine.

use std::sync::Arc;

use dormouse::clock::Clock;
use dormouse::engine::disk::{DiskEngine, DiskOptions};
use tempfile::TempDir;

/// Returns a disk engine that uses `clock`, and its directory.
pub fn open_disk(clock: Arc<dyn Clock>) -> (Arc<DiskEngine>, TempDir) {
    let dir = TempDir::new().expect("a temporary directory");
    let options = DiskOptions::new(dir.path().join("jobs"), clock);
    (DiskEngine::open(options).expect("an empty directory opens"), dir)
}
