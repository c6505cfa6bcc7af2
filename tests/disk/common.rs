//! Shared by tests of the disk engine: numbered jobs, opening, copying a directory.

use std::collections::BTreeMap;
use std::num::NonZeroU16;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use dormouse::clock::ManualClock;
use dormouse::engine::disk::{DiskEngine, DiskOptions};
use dormouse::job::{Attributes, Job, JobId, JobRef, NewJob};
use dormouse::name::{Namespace, Queue, QueueName};

pub use crate::support::consume::consume;
pub use crate::support::engine_ext::EngineExt;

/// When virtual time begins.
pub const START: u64 = 1_000_000;

/// Id number `n`, published at the start.
pub fn id(n: u64) -> JobId {
    JobId::from_parts(START, n, 0, n.is_multiple_of(2))
}

/// The queue `name` of namespace `ns`.
pub fn queue(name: &str) -> Queue {
    Queue {
        namespace: Namespace::parse("ns").expect("a name"),
        name: QueueName::parse(name).expect("a name"),
    }
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

/// Consumes up to `count` jobs of one queue.
pub async fn take(engine: &DiskEngine, queue: &Queue, count: u16, ttr: Duration) -> Vec<Job> {
    let jobs = consume(engine, &queue.clone().into(), &vec![ttr; count.into()]).await;
    jobs.expect("consume should answer")
}

/// Copies a directory while it is in use, as a crash would leave it.
pub fn copy(from: &Path, to: &Path) {
    copy_as_is(from, to, copy_files);
}

fn copy_files(from: &Path, to: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_files(&entry.path(), &target)?;
        } else {
            std::fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}

/// Copies again until nothing has changed meanwhile: the store's own threads write tables out and merge them, and a
/// copy of two moments is nothing that a crash leaves.
pub fn copy_as_is(from: &Path, to: &Path, copy: impl Fn(&Path, &Path) -> std::io::Result<()>) {
    for _ in 0..1000 {
        let before = contents(from);
        let copied = copy(from, to);
        if before.is_some() && contents(from) == before {
            return copied.expect("what stays as it is can be copied");
        }
        std::fs::remove_dir_all(to).expect("it was made");
        std::thread::sleep(Duration::from_millis(20));
    }
    panic!("{} changes all the time", from.display());
}

/// Each file, how long it is, and when it was written. `None` when one went away meanwhile.
fn contents(dir: &Path) -> Option<BTreeMap<PathBuf, (u64, SystemTime)>> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(dir).ok()? {
        let path = entry.ok()?.path();
        if path.is_dir() {
            found.extend(contents(&path)?);
        } else {
            let metadata = path.metadata().ok()?;
            found.insert(path, (metadata.len(), metadata.modified().ok()?));
        }
    }
    Some(found)
}

/// Returns an incompressible body, different for each `n`.
pub fn body(n: u64, len: usize) -> Bytes {
    let mut x = n.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let bytes = std::iter::repeat_with(|| {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x.to_le_bytes()
    });
    bytes.flatten().take(len).collect()
}
