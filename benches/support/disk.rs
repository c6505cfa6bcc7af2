//! A disk engine without a server: how the benchmarks open and fill it, and its resource usage.
#![allow(dead_code)] // each benchmark compiles all of this and calls some of it

use std::collections::BTreeMap;
use std::num::NonZeroU16;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use dormouse::clock::{SystemClock, system_now};
use dormouse::engine::disk::{DiskEngine, DiskOptions, Sync};
use dormouse::job::{Attributes, JobIds, NewJob};
use dormouse::name::{Namespace, Queue, QueueName};
use hdrhistogram::Histogram;

/// Number of concurrent callers. Each waits for its reply before the next call.
pub const CALLERS: usize = 64;
pub const QUEUES: usize = 16;

pub fn queue(n: usize) -> Queue {
    let name = QueueName::parse(&format!("queue-{}", n % QUEUES)).expect("letters, a dash and digits");
    Queue { namespace: Namespace::parse("bench").expect("letters"), name }
}

pub fn open(path: &Path, sync: Sync) -> Arc<DiskEngine> {
    let mut options = DiskOptions::new(path, Arc::new(SystemClock::default()));
    options.sync = sync;
    DiskEngine::open(options).expect("the benchmark's directory is its own")
}

pub struct Maker {
    ids: JobIds,
    body: Vec<u8>,
}

impl Maker {
    pub fn new(body: usize) -> Maker {
        // Incompressible bytes.
        let body = (0..body as u64).map(|i| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect();
        Maker { ids: JobIds::default(), body }
    }

    pub fn job(&self, n: usize, delay: Duration) -> NewJob {
        NewJob {
            queue: queue(n),
            id: self.ids.make(system_now(), delay.as_secs() as u32, false),
            body: self.body.clone().into(),
            attributes: Attributes::new(),
            ttl: Some(Duration::from_secs(86400)),
            delay,
            tries: NonZeroU16::MIN,
        }
    }
}

/// Returns the CPU time of this process.
pub fn cpu() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("Linux shows a process its own times");
    let after = stat.rsplit(')').next().expect("the name is in brackets");
    let ticks: u64 = after.split_whitespace().skip(11).take(2).map(|n| n.parse::<u64>().unwrap_or(0)).sum();
    Duration::from_millis(ticks * 10)
}

/// Returns the processor time of each thread, in ticks of 10 ms, by name.
pub fn threads() -> BTreeMap<String, u64> {
    let mut ticks = BTreeMap::new();
    for task in std::fs::read_dir("/proc/self/task").expect("Linux shows a process its threads").flatten() {
        // A thread that has just ended has no times.
        let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
        let Some((front, rest)) = stat.rsplit_once(')') else { continue };
        let name = front.split_once('(').map_or("", |(_, name)| name).to_owned();
        let used = rest.split_whitespace().skip(11).take(2).filter_map(|n| n.parse::<u64>().ok());
        *ticks.entry(name).or_default() += used.sum::<u64>();
    }
    ticks
}

/// Returns the bytes written by this process, and the part that reached a disk.
pub fn written() -> [u64; 2] {
    let io = std::fs::read_to_string("/proc/self/io").expect("Linux shows a process its own bytes");
    ["wchar: ", "write_bytes: "].map(|name| {
        let line = io.lines().find_map(|line| line.strip_prefix(name)).expect("it stands there");
        line.parse().expect("a number")
    })
}

pub fn rss_mb() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find(|l| l.starts_with("VmRSS")).unwrap_or_default();
    line.split_whitespace().nth(1).and_then(|n| n.parse::<u64>().ok()).unwrap_or(0) / 1024
}

/// Returns the disk usage of a directory in bytes.
pub fn disk_bytes(path: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(path) else { return 0 };
    let sizes = entries.flatten().map(|entry| match entry.metadata() {
        Ok(found) if found.is_dir() => disk_bytes(&entry.path()),
        Ok(found) => found.blocks() * 512,
        Err(_) => 0,
    });
    sizes.sum()
}

/// Returns the disk usage of a directory in MB.
pub fn disk_mb(path: &Path) -> u64 {
    disk_bytes(path) >> 20
}

/// Returns a pseudo-random number, the same in each run: splitmix64.
pub fn mixed(n: u64) -> u64 {
    let n = n.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let n = (n ^ (n >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let n = (n ^ (n >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    n ^ (n >> 31)
}

/// Runs `each(n)` for n below `ops` from [`CALLERS`] tasks.
pub async fn many<F>(ops: u64, each: impl Fn(usize) -> F + Clone + Send + 'static)
where
    F: Future<Output = ()> + Send,
{
    let next = Arc::new(AtomicU64::new(0));
    let tasks: Vec<_> = (0..CALLERS)
        .map(|_| {
            let (next, each) = (next.clone(), each.clone());
            tokio::spawn(async move {
                loop {
                    let n = next.fetch_add(1, Ordering::Relaxed);
                    if n >= ops {
                        return;
                    }
                    each(n as usize).await;
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("no caller panics");
    }
}

/// Returns a histogram of microseconds up to a minute; higher values are recorded as its maximum.
pub fn times() -> Histogram<u64> {
    Histogram::new_with_max(60_000_000, 3).expect("three digits of a minute fit")
}
