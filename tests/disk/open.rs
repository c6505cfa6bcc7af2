//! Opening what should not be opened, and what a damaged or failing disk must and must not do.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::common::*;
use dormouse::clock::{Clock, ManualClock};
use dormouse::engine::Engine;
use dormouse::engine::disk::{DiskEngine, DiskOptions, OpenError, RawStore};
use dormouse::error::Error;
use dormouse::job::NewJob;

#[tokio::test]
async fn a_directory_in_use_is_refused_and_free_after_close() {
    let (dir, clock) = (tempfile::tempdir().expect("a directory"), clock());
    let engine = open(dir.path(), &clock);
    let second = DiskEngine::open(options(dir.path(), &clock));
    assert!(matches!(second, Err(OpenError::Locked(_))), "expected Locked: {second:?}");
    engine.close().await;
    let closed = engine.check().await;
    assert!(matches!(closed, Err(Error::Closed)), "expected Closed: {closed:?}");
    open(dir.path(), &clock).check().await.expect("the directory is free after close");
}

#[tokio::test]
async fn an_engine_that_is_dropped_frees_its_directory() {
    let (dir, clock) = (tempfile::tempdir().expect("a directory"), clock());
    for round in 0..3 {
        let engine = open(dir.path(), &clock);
        engine.publish(vec![job(&queue("q"), round)].into()).await.expect("published");
    }
    let size = open(dir.path(), &clock).ready(&queue("q")).await.expect("size");
    assert_eq!(size, 3, "one job from each round");
}

#[test]
fn what_is_not_ours_is_refused() {
    let (dir, clock) = (tempfile::tempdir().expect("a directory"), clock());
    std::fs::write(dir.path().join("precious"), "data").expect("written");
    let opened = DiskEngine::open(options(dir.path(), &clock));
    assert!(matches!(opened, Err(OpenError::NotOurs(_))), "expected NotOurs: {opened:?}");
    let left: Vec<_> = std::fs::read_dir(dir.path()).expect("listed").flatten().collect();
    assert_eq!(left.len(), 1, "nothing is written into a foreign directory: {left:?}");

    let (dir, file) = (tempfile::tempdir().expect("a directory"), "not a dormouse at all");
    std::fs::write(dir.path().join("dormouse"), file).expect("written");
    let opened = DiskEngine::open(options(dir.path(), &clock));
    assert!(matches!(opened, Err(OpenError::NotOurs(_))), "expected NotOurs: {opened:?}");
}

#[test]
fn another_format_is_refused_and_left_as_it_is() {
    let (dir, clock) = (tempfile::tempdir().expect("a directory"), clock());
    let mark = dir.path().join("dormouse");
    let open = |format: u32| {
        let text = format!("dormouse disk pool, format {format}\n");
        std::fs::write(&mark, &text).expect("written");
        let opened = DiskEngine::open(options(dir.path(), &clock)).map(drop);
        assert_eq!(std::fs::read_to_string(&mark).expect("it is there"), text, "the mark is not changed");
        opened
    };
    let newer = open(11);
    assert!(matches!(newer, Err(OpenError::Newer(_, 11))), "expected Newer(11): {newer:?}");
    // Formats before the first release. One of them counts milliseconds: read as microseconds, every job would be due.
    for format in [1, 9] {
        let older = open(format);
        assert!(matches!(older, Err(OpenError::Older(_, found)) if found == format), "{format}: {older:?}");
    }
}

#[tokio::test]
async fn a_first_start_that_was_cut_off_does_not_stand_in_the_way() {
    let clock = clock();
    let mark = "dormouse disk pool, format 10\n";
    // The contents of the mark, and the log's manifest, which completes the creation of the store. A power cut may
    // leave a length without the bytes.
    for (cut, manifest) in [
        ("", None),
        ("\0\0\0", None),
        (mark, None),
        (mark, Some("")),
        (mark, Some("dormman1")),
        (mark, Some("\0\0\0\0")),
        // The line that says that the store is whole was begun.
        ("dormouse disk pool, format 10\nma", Some("x")),
        ("dormouse disk pool, format 10\n\0\0\0\0\0", Some("x")),
    ] {
        let dir = tempfile::tempdir().expect("a directory");
        std::fs::write(dir.path().join("dormouse"), cut).expect("written");
        if cut.starts_with(mark) {
            std::fs::create_dir_all(dir.path().join("trees/meta/tables")).expect("made");
            std::fs::create_dir(dir.path().join("log")).expect("made");
            std::fs::write(dir.path().join("log/0"), "").expect("written");
        }
        if let Some(manifest) = manifest {
            std::fs::create_dir_all(dir.path().join("log")).expect("made");
            std::fs::write(dir.path().join("log/manifest"), manifest).expect("written");
        }
        open(dir.path(), &clock).check().await.expect("a directory without data opens anew");
    }
}

/// Counting ten million jobs takes seconds: after a clean close the store knows how many there are. Takes an entry
/// away behind its back, to see whether it counts.
#[tokio::test]
async fn only_an_unclean_end_is_counted_anew() {
    let (dir, clock) = (tempfile::tempdir().expect("a directory"), clock());
    let (q, other) = (queue("q"), queue("other"));
    let engine = open(dir.path(), &clock);
    for n in 0..10 {
        engine.publish(vec![job(&q, n)].into()).await.expect("published");
    }
    let delayed = (10..15).map(|n| NewJob { delay: Duration::from_secs(60), ..job(&other, n) });
    engine.publish(delayed.collect::<Vec<_>>().into()).await.expect("published");
    assert_eq!(take(&engine, &q, 2, Duration::from_secs(60)).await.len(), 2, "two run");
    engine.close().await;
    {
        let store = RawStore::open(dir.path()).expect("it was closed");
        let last = store.keys("ready").expect("they read").pop().expect("eight are ready");
        store.delete("ready", &last).expect("deleted");
    }
    let sizes = async |engine: &DiskEngine| {
        let stats = engine.stats().await.expect("figures");
        (stats.timers, stats.queues.iter().map(|size| size.ready).collect::<Vec<_>>())
    };
    let engine = open(dir.path(), &clock);
    assert_eq!(sizes(&engine).await, (7, vec![0, 8]), "after a clean close: as the close has written down");
    // Another close was never in order: the copy has no mark of it.
    let copied = tempfile::tempdir().expect("a directory");
    copy(dir.path(), copied.path());
    engine.close().await;
    let engine = open(copied.path(), &clock);
    assert_eq!(sizes(&engine).await, (7, vec![0, 7]), "after an unclean end: as there are");
    let seen = take(&engine, &q, 9, Duration::from_secs(60)).await;
    assert_eq!(
        seen.iter().map(|job| job.id).collect::<Vec<_>>(),
        (2..9).map(id).collect::<Vec<_>>(),
        "in order"
    );
    engine.close().await;
}

#[tokio::test]
async fn time_does_not_fall_back_over_a_restart() {
    let (dir, ahead) = (tempfile::tempdir().expect("a directory"), clock());
    ahead.advance(Duration::from_secs(7200));
    let engine = open(dir.path(), &ahead);
    let q = queue("q");
    let delayed = NewJob { delay: Duration::from_secs(10), ..job(&q, 1) };
    engine.publish(vec![delayed].into()).await.expect("published");
    engine.close().await;
    let back = clock();
    let engine = open(dir.path(), &back);
    assert!(engine.now() >= ahead.now() - 1000, "{} fell behind {}", engine.now(), ahead.now());
    let next = engine.pump().await.expect("pumped").next;
    assert!(next > Duration::from_secs(8) && next <= Duration::from_secs(11), "due in {next:?}, not in 10 s");
    back.advance(next);
    assert_eq!(engine.pump().await.expect("pumped").moved, 1, "due after its delay");
}

#[tokio::test]
async fn a_machine_that_learns_the_time_late_fires_no_job_early() {
    let (dir, right) = (tempfile::tempdir().expect("a directory"), clock());
    let engine = open(dir.path(), &right);
    let q = queue("q");
    let delayed = NewJob { delay: Duration::from_secs(3600), ..job(&q, 1) };
    engine.publish(vec![delayed].into()).await.expect("published");
    engine.close().await;
    // The machine restarts without the time, and gets it only after the store was opened.
    let wrong = Arc::new(ManualClock::new(0));
    let engine = open(dir.path(), &wrong);
    wrong.advance(Duration::from_secs(10));
    wrong.step_wall(START as i64);
    let next = engine.pump().await.expect("pumped").next;
    let expected = Duration::from_secs(3585)..=Duration::from_secs(3600);
    assert!(expected.contains(&next), "an hour's delay has 3590 s left, and the pump says {next:?}");
}

#[tokio::test]
async fn a_clock_that_is_set_back_holds_up_nothing() {
    let (dir, clock) = (tempfile::tempdir().expect("a directory"), clock());
    let engine = open(dir.path(), &clock);
    let q = queue("q");
    let delay = Duration::from_secs(10);
    engine.publish(vec![NewJob { delay, ..job(&q, 1) }].into()).await.expect("published");
    for (n, step) in [(2, 1000), (3, 3_600_000), (4, 400 * 24 * 3_600_000), (5, 100 * 366 * 24 * 3_600_000)] {
        clock.step_wall(-step);
        clock.advance(delay / 2);
        assert_eq!(engine.pump().await.expect("pumped").moved, 0, "due in 5 s, after {step} ms back");
        clock.advance(delay / 2);
        assert_eq!(engine.pump().await.expect("pumped").moved, 1, "due now, after {step} ms back");
        engine.publish(vec![NewJob { delay, ..job(&q, n) }].into()).await.expect("published");
    }
    assert_eq!(take(&engine, &q, 10, delay).await.len(), 4, "ready jobs");
}

fn files(path: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(path).expect("listed").flatten() {
        if entry.path().is_dir() { found.extend(files(&entry.path())) } else { found.push(entry.path()) }
    }
    found.sort();
    found
}

#[tokio::test]
async fn no_flipped_bytes_are_served_as_a_body() {
    const JOBS: u64 = 640;
    const LEN: usize = 64 << 10;
    let (dir, clock) = (tempfile::tempdir().expect("a directory"), clock());
    let q = queue("q");
    let engine = open(dir.path(), &clock);
    for n in 0..JOBS {
        let large = NewJob { body: body(n, LEN), ..job(&q, n) };
        engine.publish(vec![large].into()).await.expect("published");
    }
    engine.close().await;
    let (mut refused, mut corrupt, mut whole) = (0, 0, 0);
    let originals = files(dir.path());
    // One flip at a time, at two places of each large file; put back afterwards.
    for (at, file) in originals.iter().enumerate() {
        let len = std::fs::metadata(file).expect("it is there").len();
        if len < 1 << 20 {
            continue;
        }
        for part in 0..2u64 {
            let copied = tempfile::tempdir().expect("a directory");
            copy(dir.path(), copied.path());
            let target = copied.path().join(file.strip_prefix(dir.path()).expect("it is inside"));
            let mut bytes = std::fs::read(&target).expect("read");
            // Files of the log are made ahead: their end is empty.
            let used = bytes.iter().rposition(|b| *b != 0).map_or(0, |p| p as u64);
            let place = (used * (2 * part + 1) / 4 + at as u64) as usize;
            for byte in &mut bytes[place..place + 16] {
                *byte ^= 0x5a;
            }
            std::fs::write(&target, bytes).expect("written");
            let engine = match DiskEngine::open(options(copied.path(), &clock)) {
                Ok(engine) => engine,
                Err(OpenError::Damaged(..)) => {
                    refused += 1;
                    continue;
                }
                Err(other) => panic!("expected Damaged: {other}"),
            };
            let mut bad = 0;
            for n in 0..JOBS {
                match engine.inspect_stored(&job_ref(&q, n)).await {
                    Ok(Some(job)) => assert!(job.body == body(n, LEN), "job {n} has another body: {file:?}"),
                    Ok(None) => panic!("job {n} is missing without an error: {file:?} at {place}"),
                    Err(Error::Corrupt(_)) => bad += 1,
                    Err(other) => panic!("expected Corrupt: {other}"),
                }
            }
            // The queue works without the unreadable jobs.
            let mut taken = 0;
            loop {
                let jobs = take(&engine, &q, 100, Duration::from_secs(60)).await;
                if jobs.is_empty() {
                    break;
                }
                taken += jobs.len() as u64;
            }
            assert_eq!(taken + bad, JOBS, "each job is handed out or reported");
            if bad > 0 {
                corrupt += 1
            } else {
                whole += 1
            }
            engine.close().await;
        }
    }
    // A file of the log whose groups are all in tables by then is not read. tests/disk/damage.rs has logs that are
    // needed.
    assert!(corrupt > 0, "refused {refused}, corrupt {corrupt}, without effect {whole}");
}

/// Panics in the writer thread on request.
#[derive(Debug, Default)]
struct FaultyClock {
    panics: AtomicBool,
}

impl Clock for FaultyClock {
    fn wall_micros(&self) -> u64 {
        START * 1000
    }

    fn now_micros(&self) -> u64 {
        let writer = std::thread::current().name() == Some("disk-writer");
        assert!(!writer || !self.panics.load(Ordering::SeqCst), "on purpose");
        START * 1000
    }
}

#[tokio::test]
async fn a_panic_of_the_writer_poisons_the_store() {
    let (dir, clock) = (tempfile::tempdir().expect("a directory"), Arc::new(FaultyClock::default()));
    let engine =
        DiskEngine::open(DiskOptions::new(dir.path(), clock.clone())).expect("an empty directory opens");
    let q = queue("q");
    engine.publish(vec![job(&q, 0)].into()).await.expect("published");
    clock.panics.store(true, Ordering::SeqCst);
    // Calls in the group that panics, and later calls.
    let answers = tokio::join!(engine.publish(vec![job(&q, 1)].into()), engine.ready(&q), engine.check());
    for (call, e) in [("publish", answers.0.err()), ("size", answers.1.err()), ("check", answers.2.err())] {
        // `Away`: they may have been executed.
        let told = matches!(e, Some(Error::Away(_) | Error::Poisoned(_)));
        assert!(told, "{call} should say that the store has failed, and answers {e:?}");
    }
    let later = engine.ready(&q).await;
    assert!(matches!(later, Err(Error::Poisoned(_))), "later calls fail: {later:?}");
    let reason = tokio::time::timeout(Duration::from_secs(10), engine.poisoned()).await;
    assert_eq!(reason.expect("poisoned() returns"), "the thread disk-writer panicked");
    engine.close().await;
    clock.panics.store(false, Ordering::SeqCst);
    let engine = DiskEngine::open(DiskOptions::new(dir.path(), clock)).expect("the directory is free");
    assert_eq!(engine.ready(&q).await.expect("size"), 1, "only the acknowledged job exists");
}

const CHILD: &str = "DISK_OPEN_FULL_DIR";

/// Runs in a process of its own that may not write files beyond 64 MiB, as on a full disk.
#[tokio::test]
async fn child_full_disk() {
    let Some(path) = std::env::var_os(CHILD) else { return };
    let clock = Arc::new(ManualClock::new(START));
    let engine = open(Path::new(&path), &clock);
    let q = queue("q");
    engine.publish(vec![job(&q, 0)].into()).await.expect("there is room for one");
    let large = (1..65).map(|n| NewJob { body: body(n, 1 << 20), ..job(&q, n) }).collect::<Vec<_>>();
    let failed = engine.publish(large.into()).await;
    assert!(matches!(failed, Err(Error::Away(_))), "it may have been stored: {failed:?}");
    let reason = tokio::time::timeout(Duration::from_secs(10), engine.poisoned()).await;
    assert!(!reason.expect("poisoned() returns").is_empty(), "the reason is not empty");
    let later = engine.publish(vec![job(&q, 99)].into()).await;
    assert!(matches!(later, Err(Error::Poisoned(_))), "a small one, expected Poisoned: {later:?}");
    assert!(engine.check().await.is_err(), "check says no");
    engine.close().await;
}

#[tokio::test]
async fn a_failed_write_poisons_the_store_and_loses_nothing() {
    let (dir, clock) = (tempfile::tempdir().expect("a directory"), clock());
    let me = std::env::current_exe().expect("a test knows its own path");
    // XFSZ ignored, the write fails with EFBIG instead of killing. `ulimit -f` of sh counts 512 bytes, of
    // bash in its own mode 1024.
    let script = r#"trap "" XFSZ; ulimit -f 131072; exec "$0" --exact open::child_full_disk --nocapture"#;
    let run = Command::new("sh")
        .args(["-c", script])
        .arg(me)
        .env(CHILD, dir.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .output()
        .expect("sh runs");
    let told = String::from_utf8_lossy(&run.stdout).into_owned() + &String::from_utf8_lossy(&run.stderr);
    assert!(run.status.success() && told.contains("1 passed"), "the child failed: {told}");
    let engine = open(dir.path(), &clock);
    assert_eq!(engine.ready(&queue("q")).await.expect("size"), 1, "only the acknowledged job exists");
}
