//! What the tests of the disk engine share: jobs by number, opening, a copy of a directory.
#![allow(dead_code)] // each test binary uses a part

use std::num::NonZeroU16;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use dormouse::clock::ManualClock;
use dormouse::engine::disk::{DiskEngine, DiskOptions};
use dormouse::job::{Attributes, Job, JobId, JobRef, NewJob};
use dormouse::name::Queue;

pub use crate::support::stage::{consume, queue};

/// When virtual time begins.
pub const START: u64 = 1_000_000;

/// Id number `n`, published at the start.
pub fn id(n: u64) -> JobId {
    JobId::from_parts(START, n, 0, n.is_multiple_of(2))
}

pub fn job_ref(queue: &Queue, n: u64) -> JobRef {
    JobRef { queue: queue.clone(), id: id(n) }
}

/// A job that is ready at once, never expires, and has one try.
pub fn job(queue: &Queue, n: u64) -> NewJob {
    NewJob {
        queue: queue.clone(),
        id: id(n),
        body: format!("body {n}").into(),
        attributes: Attributes::new(),
        ttl: None,
        delay: Duration::ZERO,
        tries: NonZeroU16::MIN,
    }
}

pub fn options(path: &Path, clock: &Arc<ManualClock>) -> DiskOptions {
    let mut options = DiskOptions::new(path, clock.clone());
    options.upkeep = false;
    options
}

pub fn open(path: &Path, clock: &Arc<ManualClock>) -> Arc<DiskEngine> {
    DiskEngine::open(options(path, clock)).unwrap_or_else(|e| panic!("the store should open: {e}"))
}

pub fn clock() -> Arc<ManualClock> {
    Arc::new(ManualClock::new(START))
}

/// Hands out up to `count` jobs of one queue.
pub async fn take(engine: &DiskEngine, queue: &Queue, count: u16, ttr: Duration) -> Vec<Job> {
    let jobs = consume(engine, &queue.clone().into(), &vec![ttr; count.into()]).await;
    jobs.expect("consume should answer")
}

/// Copies a directory while it is in use, as a crash would leave it.
pub fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("a directory is made");
    for entry in std::fs::read_dir(from).expect("the store's directory can be read") {
        let entry = entry.expect("the store's directory can be read");
        let target = to.join(entry.file_name());
        if entry.file_type().expect("a file has a type").is_dir() {
            copy(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).expect("a file can be copied");
        }
    }
}
