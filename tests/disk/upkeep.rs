//! Space is reclaimed: from jobs that are not consumed, acked jobs, and queues used once.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::common::*;
use dormouse::clock::ManualClock;
use dormouse::engine::Engine;
use dormouse::engine::disk::{DiskEngine, RawStore};
use dormouse::job::NewJob;
use dormouse::name::Queue;

/// Keys left in a closed store, by keyspace; `meta` always has some.
fn keys(path: &Path) -> Vec<(&'static str, usize)> {
    let store = RawStore::open(path).expect("it was closed");
    ["jobs", "delayed", "running", "ready", "dead", "queues"]
        .into_iter()
        .map(|name| (name, store.keys(name).expect("they read").len()))
        .filter(|(_, count)| *count > 0)
        .collect()
}

#[tokio::test]
async fn jobs_that_nobody_consumes_leave_nothing_behind() {
    let (dir, clock) = (tempfile::tempdir().expect("a directory"), clock());
    let engine = open(dir.path(), &clock);
    let q = queue("unread");
    for batch in 0..157u64 {
        let jobs = (0..64).map(|i| NewJob {
            ttl: Some(Duration::from_secs(1)),
            delay: Duration::from_millis(if i % 2 == 0 { 0 } else { 500 }),
            ..job(&q, batch * 64 + i)
        });
        engine.publish(jobs.collect::<Vec<_>>().into()).await.expect("published");
    }
    clock.advance(Duration::from_millis(700));
    while engine.pump().await.expect("pumped").moved > 0 {}
    assert_eq!(engine.ready(&q).await.expect("size"), 157 * 64, "all are ready");
    clock.advance(Duration::from_secs(1));
    engine.sweep().await.expect("swept");
    assert_eq!(engine.ready(&q).await.expect("size"), 0, "all have expired");
    clock.advance(Duration::from_secs(3600));
    engine.sweep().await.expect("swept");
    assert_eq!(engine.queues().await.expect("queues"), [], "the queue was empty for an hour");
    engine.close().await;
    assert_eq!(keys(dir.path()), [], "keys are left");
}

#[tokio::test]
async fn a_queue_per_job_does_not_grow_the_store() {
    let (dir, clock) = (tempfile::tempdir().expect("a directory"), clock());
    let engine = open(dir.path(), &clock);
    for n in 0..300 {
        let q = queue(&format!("answer-{n}"));
        engine.publish(vec![job(&q, n)].into()).await.expect("published");
        let taken = take(&engine, &q, 1, Duration::from_secs(9)).await;
        assert_eq!(taken.len(), 1, "the reply exists");
        engine.ack_job(job_ref(&q, n)).await.expect("acked");
    }
    clock.advance(Duration::from_secs(3600));
    engine.sweep().await.expect("swept");
    assert_eq!(engine.queues().await.expect("queues"), [], "all have been empty for an hour");
    engine.close().await;
    assert_eq!(keys(dir.path()), [], "keys are left");
}

#[tokio::test]
async fn jobs_acked_in_their_queue_are_passed_over_and_swept() {
    let (dir, clock) = (tempfile::tempdir().expect("a directory"), clock());
    let engine = open(dir.path(), &clock);
    let q = queue("cancelled");
    // More than one step of a consume passes over, and beyond the window.
    for n in 0..6000 {
        engine.publish(vec![job(&q, n)].into()).await.expect("published");
    }
    for n in 0..5999 {
        engine.ack_job(job_ref(&q, n)).await.expect("acked");
    }
    let taken = take(&engine, &q, 5, Duration::from_secs(9)).await;
    assert_eq!(taken.iter().map(|job| job.id).collect::<Vec<_>>(), [id(5999)], "the one that is left");
    engine.ack_job(job_ref(&q, 5999)).await.expect("acked");
    clock.advance(Duration::from_secs(3600));
    engine.sweep().await.expect("swept");
    engine.close().await;
    let left = keys(dir.path());
    assert!(left.is_empty() || left == [("queues", 1)], "keys are left: {left:?}");
}

/// MiB that a directory takes on disk.
fn mib(path: &Path) -> u64 {
    fn bytes(path: &Path) -> u64 {
        use std::os::unix::fs::MetadataExt;
        let of_entry = |entry: std::fs::DirEntry| match entry.metadata() {
            Ok(meta) if meta.is_dir() => bytes(&entry.path()),
            Ok(meta) => meta.blocks() * 512,
            // Deleted since it was listed.
            Err(_) => 0,
        };
        std::fs::read_dir(path).map_or(0, |entries| entries.flatten().map(of_entry).sum())
    }
    bytes(path) >> 20
}

/// MiB that the tables take: all but the log.
fn tables(path: &Path) -> u64 {
    mib(&path.join("trees"))
}

/// Waits for upkeep until `size`, in MiB, satisfies `is_right`.
async fn until(size: impl Fn(&Path) -> u64, path: &Path, is_right: impl Fn(u64) -> bool, expected: &str) {
    for _ in 0..6000 {
        if is_right(size(path)) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("{expected}, and after two minutes there are {} MiB", size(path));
}

/// Waits until it is at most `most` MiB.
async fn shrunk(size: impl Fn(&Path) -> u64, path: &Path, most: u64, when: &str) {
    until(size, path, |now| now <= most, &format!("{when}: it should shrink to {most} MiB")).await;
}

/// So large that a few of them matter.
const LARGE: usize = 24 << 10;

/// Publishes large jobs that do not compress.
async fn publish_large(engine: &DiskEngine, queue: &Queue, jobs: u64) {
    let mut x = 1u32;
    let noise = std::iter::repeat_with(|| {
        x ^= x << 13;
        x ^= x >> 17;
        x ^= x << 5;
        x as u8
    });
    let body: bytes::Bytes = noise.take(LARGE).collect();
    for batch in 0..jobs / 64 {
        let jobs = (0..64).map(|i| NewJob { body: body.clone(), ..job(queue, batch * 64 + i) });
        engine.publish(jobs.collect::<Vec<_>>().into()).await.expect("published");
    }
}

fn with_upkeep(path: &Path, clock: &Arc<ManualClock>) -> Arc<DiskEngine> {
    let mut options = options(path, clock);
    options.upkeep = true;
    options.upkeep_every = Duration::from_millis(200);
    DiskEngine::open(options).unwrap_or_else(|e| panic!("the store should open: {e}"))
}

#[tokio::test]
async fn a_store_that_was_emptied_shrinks_to_its_log() {
    const JOBS: u64 = 4096;
    // So few that a count of them says nothing, and 14 MiB.
    const LAST: u64 = 600;
    let (dir, clock) = (tempfile::tempdir().expect("a directory"), clock());
    let engine = with_upkeep(dir.path(), &clock);
    let q = queue("busy");
    publish_large(&engine, &q, JOBS).await;
    let full = mib(dir.path());
    assert!(full >= 96, "96 MiB of bodies take {full} MiB on disk");
    // An idle store flushes its memory.
    until(tables, dir.path(), |now| now > 45, "more than 45 MiB should be in tables, to shrink").await;
    for n in 0..JOBS - LAST {
        engine.ack_job(job_ref(&q, n)).await.expect("acked");
    }
    // Up to twice as much garbage as live data may stay.
    shrunk(tables, dir.path(), 45, "14 MiB of jobs are left").await;
    for n in JOBS - LAST..JOBS {
        engine.ack_job(job_ref(&q, n)).await.expect("acked");
    }
    shrunk(tables, dir.path(), 3, "all jobs were acked").await;
    // The current file, the next and a spare one.
    shrunk(mib, dir.path(), 27, "three files of the log and nearly nothing else should be left").await;
    engine.close().await;
}

#[tokio::test]
async fn what_was_emptied_before_a_start_shrinks_after_it() {
    const JOBS: u64 = 2048;
    let (dir, clock) = (tempfile::tempdir().expect("a directory"), clock());
    let engine = open(dir.path(), &clock);
    let q = queue("busy");
    publish_large(&engine, &q, JOBS).await;
    for n in 0..JOBS {
        engine.ack_job(job_ref(&q, n)).await.expect("acked");
    }
    engine.close().await;
    let before = tables(dir.path());
    assert!(before > 3, "the tables take {before} MiB: there is nothing to shrink");
    let engine = with_upkeep(dir.path(), &clock);
    shrunk(tables, dir.path(), 3, "all jobs were acked before the start").await;
    engine.close().await;
}

#[tokio::test]
async fn calls_of_one_group_see_each_other() {
    let (dir, clock) = (tempfile::tempdir().expect("a directory"), clock());
    let engine = open(dir.path(), &clock);
    let q = queue("group");
    // All are queued before the writer replies to the first: most of them are in one group.
    for round in 0..50u64 {
        let n = round * 10;
        let (a, b, c, taken, d, e) = tokio::join!(
            engine.publish(vec![job(&q, n)].into()),
            engine.ack_job(job_ref(&q, n)),
            engine.publish(vec![job(&q, n), job(&q, n + 1)].into()),
            take(&engine, &q, 5, Duration::from_secs(9)),
            engine.ack_job(job_ref(&q, n)),
            engine.republish(job_ref(&q, n + 1), job(&q, n + 2)),
        );
        let (a, c) = (a.map(drop), c.map(drop));
        for (what, answer) in [("publish", a), ("ack", b), ("publish again", c), ("ack", d), ("republish", e)]
        {
            answer.unwrap_or_else(|e| panic!("{what} in round {round}: {e}"));
        }
        let got: Vec<_> = taken.iter().map(|job| job.id).collect();
        assert_eq!(got, [id(n), id(n + 1)], "round {round}: each once, though {n} was acked and came again");
        engine.give_back(taken).await.expect("given back");
        let left = take(&engine, &q, 5, Duration::from_secs(9)).await;
        let got: Vec<_> = left.iter().map(|job| job.id).collect();
        assert_eq!(got, [id(n + 2)], "round {round}: acked hand-overs are not given back");
        engine.ack_job(job_ref(&q, n + 2)).await.expect("acked");
    }
    let stats = engine.stats().await.expect("stats");
    assert_eq!(stats.timers, 0, "nothing runs any more");
}

async fn gauge(engine: &DiskEngine, name: &str) -> f64 {
    let gauges = engine.stats().await.expect("figures").gauges;
    gauges.iter().find(|(gauge, _)| *gauge == name).unwrap_or_else(|| panic!("no gauge {name}: {gauges:?}")).1
}

/// Each queue had a window of its own: ten thousand of them took 2 GB.
#[tokio::test]
async fn the_ready_jobs_in_memory_have_one_budget_over_all_queues() {
    const QUEUES: u64 = 60;
    const EACH: u64 = 192;
    let (dir, clock) = (tempfile::tempdir().expect("a directory"), clock());
    let mut options = options(dir.path(), &clock);
    options.ready_budget = 1000;
    let engine = DiskEngine::open(options).unwrap_or_else(|e| panic!("the store should open: {e}"));
    let name = |n: u64| queue(&format!("q-{n}"));
    for n in 0..QUEUES {
        for from in (0..EACH).step_by(64) {
            engine
                .publish((from..from + 64).map(|i| job(&name(n), n * EACH + i)).collect::<Vec<_>>().into())
                .await
                .expect("published");
        }
    }
    let held = gauge(&engine, "disk_ready_in_memory").await;
    assert!(held <= (1000 + 16 * QUEUES) as f64, "{held} of {} jobs are in memory", QUEUES * EACH);
    // In order, from memory and from disk, even if some jobs are returned in between.
    for n in 0..QUEUES {
        let first = take(&engine, &name(n), 20, Duration::from_secs(600)).await;
        engine.give_back(first).await.expect("given back");
        let mut seen = Vec::new();
        while seen.len() < EACH as usize {
            let jobs = take(&engine, &name(n), 50, Duration::from_secs(600)).await;
            assert!(!jobs.is_empty(), "queue {n} ended after {} jobs", seen.len());
            seen.extend(jobs.into_iter().map(|job| job.id));
        }
        assert_eq!(seen, (0..EACH).map(|i| id(n * EACH + i)).collect::<Vec<_>>(), "the order of queue {n}");
    }
    assert_eq!(gauge(&engine, "disk_ready_in_memory").await, 0.0, "all were handed out");
    engine.close().await;
}

/// A job that became ready after its queue was swept must be found later, also over a restart.
#[tokio::test]
async fn a_delayed_job_that_expires_in_its_queue_is_swept() {
    for reopens in [false, true] {
        let (dir, clock) = (tempfile::tempdir().expect("a directory"), clock());
        let mut engine = open(dir.path(), &clock);
        let q = queue("unread");
        let second = Duration::from_secs(1);
        let soon = NewJob { ttl: Some(second), ..job(&q, 1) };
        let late = NewJob { ttl: Some(30 * second), delay: 10 * second, ..job(&q, 2) };
        let lasting = job(&q, 3);
        engine.publish(vec![soon, late, lasting].into()).await.expect("published");
        clock.advance(2 * second);
        engine.sweep().await.expect("swept");
        assert_eq!(engine.ready(&q).await.expect("size"), 1, "the first has expired, the second is delayed");
        clock.advance(10 * second);
        assert_eq!(engine.pump().await.expect("pumped").moved, 1, "the second is ready");
        assert_eq!(engine.ready(&q).await.expect("size"), 2, "two are ready");
        if reopens {
            engine.close().await;
            engine = open(dir.path(), &clock);
        }
        for _ in 0..2 {
            clock.advance(60 * second);
            engine.sweep().await.expect("swept");
        }
        assert_eq!(engine.ready(&q).await.expect("size"), 1, "the second has expired (reopened: {reopens})");
        assert_eq!(take(&engine, &q, 9, second).await.len(), 1, "the third has no ttl");
        engine.close().await;
    }
}
