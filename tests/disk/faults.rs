//! A disk that is full, that has a bad sector, that fails and that hangs. The faults are made by a library that is
//! loaded before the C library (tests/support/faults.c, compiled when a test needs it) or by a small disk of its own;
//! each runs in a process of its own. Tests whose fault cannot be made on this machine say so and end well.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU16;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::*;
use crate::support::faults::{EIO, HANGS, fail, heal, shim};
use crate::support::wait::until;
use dormouse::engine::disk::{DiskEngine, DiskOptions, OpenError, RawStore, RepairTo, Sync, repair};
use dormouse::engine::{
    Engine, Held, How, Listing, OnConflict, Placing, Publication, Published, Release, Revival, Tries,
};
use dormouse::error::Error;
use dormouse::job::{JobRef, NewJob, Reason};
use dormouse::name::{JobKey, Queue};

/// How long a test waits for what a healthy store does within a second.
const PATIENCE: Duration = Duration::from_secs(60);
/// In a child: its directory.
const DIR: &str = "DISK_FAULTS_DIR";
const TTR: Duration = Duration::from_secs(600);

/// The number of this error, as Linux has it.
const EROFS: i32 = 30;
const ENOSPC: i32 = 28;
const EMFILE: i32 = 24;

/// Runs the test `child` of this program with the shim, in a directory of its own. It must end well.
fn with_faults(child: &str) {
    let library = match shim() {
        Ok(library) => library,
        Err(why) => return eprintln!("skipped: {why}"),
    };
    let dir = tempfile::tempdir().expect("a directory");
    let me = std::env::current_exe().expect("a test knows its own path");
    let mut command = Command::new(me);
    command.args(["--exact", &format!("faults::{child}"), "--nocapture"]);
    command.env("LD_PRELOAD", library).env("FAULTS", dir.path().join("faults")).env(DIR, dir.path());
    ends_well(command, child);
}

/// Runs the test `child` of this program where it may mount, after `mounts`, a script with a directory of its own.
fn in_mounts(child: &str, mounts: &str) {
    let dir = tempfile::tempdir().expect("a directory");
    let in_namespace = |script: &str| {
        let mut command = Command::new("unshare");
        let me = std::env::current_exe().expect("a test knows its own path");
        command.args(["-rm", "sh", "-c", script]).arg(me).arg(dir.path()).env(DIR, dir.path());
        command
    };
    let can = in_namespace(r#"mount -t tmpfs -o size=1m none "$1""#).output();
    if !can.is_ok_and(|can| can.status.success()) {
        return eprintln!("skipped: this user may not mount a disk");
    }
    let script = format!(r#"{mounts} || exit 77; exec "$0" --exact faults::{child} --nocapture"#);
    ends_well(in_namespace(&script), child);
}

fn ends_well(mut command: Command, child: &str) {
    let run = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("this program runs");
    let run = run.wait_with_output().expect("a child can be waited for");
    let (out, err) = (String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr));
    assert!(run.status.success(), "{child} should end well:\n{out}\n{err}");
    assert!(out.contains("1 passed"), "{child} should have run:\n{out}\n{err}");
}

/// The directory of a child, and `None` in a run that is no child's.
fn child() -> Option<PathBuf> {
    std::env::var_os(DIR).map(PathBuf::from)
}

async fn publish(engine: &DiskEngine, queue: &Queue, numbers: std::ops::Range<u64>, len: usize) {
    for n in numbers {
        engine.publish(vec![NewJob { body: body(n, len), ..job(queue, n) }].into()).await.expect("published");
    }
}

/// Consumes and acks all jobs, checking their bodies. Returns their numbers.
async fn drain(engine: &DiskEngine, queue: &Queue, len: usize) -> BTreeSet<u64> {
    let mut seen = BTreeSet::new();
    loop {
        let jobs = take(engine, queue, 32, TTR).await;
        if jobs.is_empty() {
            return seen;
        }
        for one in jobs {
            let n = (0..100_000).find(|n| id(*n) == one.id).expect("a job of this test");
            assert!(one.body == body(n, len), "job {n} has another body");
            assert!(seen.insert(n), "job {n} came twice");
            engine.ack_job(job_ref(queue, n)).await.expect("acked");
        }
    }
}

/// The largest table of the keyspace that holds the most: jobs.
fn largest_table(dir: &Path) -> (PathBuf, u64) {
    fn walk(dir: &Path, found: &mut Vec<(u64, PathBuf)>) {
        for entry in std::fs::read_dir(dir).expect("listed").flatten() {
            if entry.path().is_dir() {
                walk(&entry.path(), found);
            } else if entry.path().to_string_lossy().contains("/tables/") {
                found.push((entry.metadata().expect("it is there").len(), entry.path()));
            }
        }
    }
    let mut found = Vec::new();
    walk(dir, &mut found);
    let (len, path) = found.into_iter().max().expect("there are tables");
    (path, len)
}

/// The largest table of this keyspace.
fn table_of(path: &Path, keyspace: &str) -> PathBuf {
    let dir = path.join("trees").join(keyspace).join("tables");
    let tables = std::fs::read_dir(dir).expect("listed").flatten().map(|entry| entry.path());
    tables.max_by_key(|path| path.metadata().expect("it is there").len()).expect("a table")
}

fn disk_options(path: &Path) -> DiskOptions {
    options(path, &clock())
}

fn is_full<T: std::fmt::Debug>(result: Result<T, Error>) -> bool {
    matches!(result, Err(Error::Full { .. }))
}

/// Free bytes of the disk that `path` is on.
fn free(path: &Path) -> u64 {
    let disk = rustix::fs::statvfs(path).expect("the disk says how much is free");
    disk.f_bavail * disk.f_frsize
}

async fn gauge(engine: &DiskEngine, name: &str) -> f64 {
    let gauges = engine.stats().await.expect("figures").gauges;
    gauges.iter().find(|(gauge, _)| *gauge == name).unwrap_or_else(|| panic!("no gauge {name}: {gauges:?}")).1
}

#[tokio::test]
async fn below_the_mark_publishes_are_refused_and_the_rest_goes_on() {
    let dir = tempfile::tempdir().expect("a directory");
    let (q, path) = (queue("q"), dir.path());
    let with =
        |min_free: u64| DiskEngine::open(DiskOptions { min_free, ..disk_options(path) }).expect("it opens");
    let engine = with(0);
    publish(&engine, &q, 0..10, 100).await;
    assert_eq!(gauge(&engine, "disk_full").await, 0.0, "without a mark no disk is full");
    engine.close().await;

    let engine = with(free(path) / 2 * 3);
    assert!(is_full(engine.publish(vec![job(&q, 10)].into()).await), "below the mark a publish is refused");
    assert_eq!(gauge(&engine, "disk_full").await, 1.0, "and an operator is told");
    engine.check().await.expect("consumers must still be sent here");
    engine.republish(job_ref(&q, 0), job(&q, 11)).await.expect("above half of the mark a republish is taken");
    engine.close().await;

    let engine = with(u64::MAX);
    assert!(is_full(engine.republish(job_ref(&q, 11), job(&q, 12)).await), "below half of it it is not");
    let jobs = take(&engine, &q, 20, TTR).await;
    assert_eq!(jobs.len(), 10, "a consume is never refused, and refused calls have changed nothing");
    for one in jobs {
        engine.ack_job(JobRef { queue: one.queue, id: one.id }).await.expect("an ack is never refused");
    }
    engine.pump().await.expect("a pump is never refused");
    assert_eq!(engine.ready(&q).await.expect("size"), 0, "all were consumed");
    engine.close().await;
}

/// A publication of one job, number `n`, which may have a key.
fn publication(queue: &Queue, n: u64, key: Option<&str>) -> Publication {
    let key = key.map(|key| (JobKey::parse(key).expect("a key"), OnConflict::Fail));
    let job = NewJob { body: body(n, 20), ..job(queue, n) };
    Publication { jobs: vec![Placing { job, at: None, key }], replaces: None, once: None }
}

/// What takes space for long is refused; what moves a job, or a few bytes, is not.
#[tokio::test]
async fn on_a_full_disk_workers_go_on_as_long_as_they_store_no_body_again() {
    let dir = tempfile::tempdir().expect("a directory");
    let (q, path) = (queue("q"), dir.path());
    let with =
        |min_free: u64| DiskEngine::open(DiskOptions { min_free, ..disk_options(path) }).expect("it opens");
    let engine = with(0);
    engine.publish(publication(&q, 0, Some("key"))).await.expect("there is room");
    publish(&engine, &q, 1..3, 20).await;
    engine.close().await;

    let engine = with(free(path) / 2 * 3);
    assert!(is_full(engine.publish(publication(&q, 3, Some("other"))).await), "it is a publish");
    let moved = Publication { replaces: Some(job_ref(&q, 2)), ..publication(&q, 4, None) };
    engine.publish(moved).await.expect("above half of the mark a republish is taken");
    engine.close().await;

    let engine = with(u64::MAX);
    let moved = Publication { replaces: Some(job_ref(&q, 4)), ..publication(&q, 5, None) };
    assert!(is_full(engine.publish(moved).await), "below half of it it is not");
    let jobs = take(&engine, &q, 1, TTR).await;
    let (name, receipt) = (job_ref(&q, 0), jobs[0].proof());
    let touched = engine.touch(&name, receipt, TTR).await.expect("a touch is never refused");
    let Held::Done(touched) = touched else { panic!("it is held: {touched:?}") };
    let receipt = touched.receipt;
    let now = Release { delay: Duration::ZERO, tries: Tries::Restore, reason: None };
    let later = Release { delay: TTR, ..now.clone() };
    let because = Release { reason: Reason::new("no room"), ..now.clone() };
    assert!(is_full(engine.release(&name, receipt, later).await), "a delay is stored with the body");
    assert!(is_full(engine.release(&name, receipt, because).await), "and so is a reason");
    assert!(is_full(engine.bury(&name, receipt, None).await), "and a burial");
    let revival = Revival { tries: NonZeroU16::MIN, delay: Duration::ZERO, ttl: None };
    assert!(is_full(engine.respawn_jobs(&q, &[name.id], revival).await), "and a respawn");
    let released = engine.release(&name, receipt, now).await.expect("back to the head costs nothing");
    assert!(matches!(released, Held::Done(_)), "refused calls have changed nothing: {released:?}");
    let jobs = take(&engine, &q, 9, TTR).await;
    assert_eq!(jobs.len(), 3, "all are handed out");
    let acks: Vec<_> = jobs[1..].iter().map(|one| (one.id, Some(one.proof()))).collect();
    assert_eq!(engine.ack(&q, &acks).await.expect("an ack is never refused"), [], "all were held");
    let key = JobKey::parse("key").expect("a key");
    assert!(engine.cancel_key(&q, &key).await.expect("a cancel is an ack"), "it was there");
    engine.close().await;
}

/// Fills a disk of 192 MiB, drains it, and fills it again.
#[tokio::test]
async fn child_small_disk() {
    const LEN: usize = 16 << 10;
    let Some(dir) = child() else { return };
    let q = queue("q");
    let mut options = disk_options(&dir.join("pool"));
    (options.min_free, options.upkeep, options.upkeep_every) = (64 << 20, true, Duration::from_millis(200));
    let (mut engine, mut first) = (DiskEngine::open(options.clone()).expect("it opens"), 0);
    for round in 0..3 {
        let mut n = first;
        let refused = loop {
            match engine.publish(vec![NewJob { body: body(n, LEN), ..job(&q, n) }].into()).await {
                Ok(_) => n += 1,
                Err(e) => break e,
            }
        };
        assert!(
            matches!(refused, Error::Full { .. }),
            "round {round}, job {n}: it should say that the disk is full: {refused}"
        );
        // In later rounds the disk may hold what upkeep has not yet deleted.
        let least = if round == 0 { 3000 } else { 1 };
        assert!(n - first >= least, "round {round}: only {} jobs were taken", n - first);
        engine.check().await.expect("a store on a full disk serves consumers");
        if round == 1 {
            // It opens on a full disk as well.
            engine.close().await;
            engine = DiskEngine::open(options.clone()).expect("it opens on a full disk");
        }
        let seen = drain(&engine, &q, LEN).await;
        assert_eq!(
            seen,
            (first..n).collect(),
            "round {round}: what was taken is handed out, and nothing else"
        );
        let began = Instant::now();
        while is_full(engine.publish(vec![job(&q, n)].into()).await) {
            assert!(
                began.elapsed() < PATIENCE,
                "round {round}: {} bytes are free after all was acked",
                free(&dir)
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        engine.ack_job(job_ref(&q, n)).await.expect("acked");
        first = n + 1;
    }
    engine.close().await;
}

#[test]
fn a_full_disk_can_be_drained_and_takes_publishes_again() {
    in_mounts("child_small_disk", r#"mount -t tmpfs -o size=192m none "$1""#);
}

#[tokio::test]
async fn child_bad_sector() {
    const JOBS: u64 = 1500;
    const LEN: usize = 8 << 10;
    let Some(dir) = child() else { return };
    let (q, path) = (queue("q"), dir.join("pool"));
    let engine = DiskEngine::open(disk_options(&path)).expect("it opens");
    publish(&engine, &q, 0..JOBS, LEN).await;
    engine.close().await;
    let (table, len) = largest_table(&path);
    assert!(len > 4 << 20, "the jobs should be in a table, and the largest has {len} bytes");
    fail(&dir, "pread", EIO, table.to_str().expect("UTF-8"), Some(len / 2));
    let engine = DiskEngine::open(disk_options(&path)).expect("it opens with a bad sector");
    let mut seen = drain(&engine, &q, LEN).await;
    let bad: Vec<u64> = (0..JOBS).filter(|n| !seen.contains(n)).collect();
    assert!(
        (1..=2).contains(&bad.len()),
        "one sector holds one job or two, every other is handed out: {bad:?}"
    );
    assert_eq!(gauge(&engine, "disk_quarantined_jobs").await, bad.len() as f64, "they are counted");
    publish(&engine, &q, JOBS..JOBS + 10, LEN).await;
    engine.close().await;

    let told = repair(&path, None).expect("it can be judged");
    for n in &bad {
        let named = format!("job {} of {q} is in quarantine: ", id(*n));
        assert!(told.notes.iter().any(|note| note.starts_with(&named)), "a repair lists them, too: {told}");
    }
    // After a restart they stay in quarantine and affect no other jobs.
    let engine = DiskEngine::open(disk_options(&path)).expect("it opens again");
    assert_eq!(gauge(&engine, "disk_quarantined_jobs").await, bad.len() as f64, "the quarantine lasts");
    seen.extend(drain(&engine, &q, LEN).await);
    assert_eq!(seen.len() + bad.len(), JOBS as usize + 10, "the store works as before");
    let one = job_ref(&q, bad[0]);
    let peeked = engine.inspect_stored(&one).await;
    assert!(matches!(peeked, Err(Error::Corrupt(_))), "a peek reports the corruption: {peeked:?}");
    engine.ack_job(one).await.expect("it can be acked");
    assert_eq!(
        gauge(&engine, "disk_quarantined_jobs").await,
        bad.len() as f64 - 1.0,
        "and has left quarantine"
    );
    engine.close().await;
}

#[test]
fn a_bad_sector_is_a_job_in_quarantine_and_nothing_else() {
    with_faults("child_bad_sector");
}

/// A merge that meets a bad sector leaves the tables as they are.
#[tokio::test]
async fn child_bad_sector_in_a_merge() {
    const LEN: usize = 8 << 10;
    let Some(dir) = child() else { return };
    let (q, path) = (queue("q"), dir.join("pool"));
    let mut options = disk_options(&path);
    (options.upkeep, options.upkeep_every) = (true, Duration::from_millis(50));
    let engine = DiskEngine::open(options.clone()).expect("it opens");
    publish(&engine, &q, 0..1500, LEN).await;
    engine.close().await;
    let (table, len) = largest_table(&path);
    fail(&dir, "pread", EIO, table.to_str().expect("UTF-8"), Some(len / 2));
    let engine = DiskEngine::open(options).expect("it opens with a bad sector");
    let seen = drain(&engine, &q, LEN).await;
    // Most of the table is garbage now: upkeep asks for a compaction, which cannot read it.
    for n in 2000..2300 {
        publish(&engine, &q, n..n + 1, LEN).await;
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(drain(&engine, &q, LEN).await.len(), 300, "the store works, after {} jobs", seen.len());
    engine.close().await;
}

#[test]
fn a_bad_sector_does_not_stop_the_store_when_tables_are_merged() {
    with_faults("child_bad_sector_in_a_merge");
}

/// The number of the last synced group, as the manifest of the log has it.
fn synced(path: &Path) -> u64 {
    let manifest = std::fs::read(path.join("log/manifest")).expect("it is replaced as a whole");
    u64::from_be_bytes(manifest[24..32].try_into().expect("eight bytes"))
}

/// A store whose write or sync fails: every later call is refused, and acknowledged jobs exist after a restart.
async fn poisoned_by(call: &str, errno: i32, part: &str) {
    let Some(dir) = child() else { return };
    let (q, path) = (queue("q"), dir.join("pool"));
    let engine = DiskEngine::open(disk_options(&path)).expect("it opens");
    publish(&engine, &q, 0..10, 100).await;
    // An idle store records its last synced group once. That must not be what fails first.
    until("the last of ten groups is recorded", async || synced(&path) == 10).await;
    fail(&dir, call, errno, part, None);
    let failed = engine.publish(vec![NewJob { body: body(10, 100), ..job(&q, 10) }].into()).await;
    assert!(
        matches!(failed, Err(Error::Away(_))),
        "after a failed {call} it may have been stored: {failed:?}"
    );
    heal(&dir);
    let later = engine.publish(vec![job(&q, 11)].into()).await;
    assert!(matches!(later, Err(Error::Poisoned(_))), "a failed store is not retried: {later:?}");
    let why = engine.check().await.expect_err("the store has failed").to_string();
    assert!(why.contains(&format!("os error {errno}")) || why.contains("error"), "it says why: {why}");
    engine.close().await;
    let engine = DiskEngine::open(disk_options(&path)).expect("it opens anew");
    let seen = drain(&engine, &q, 100).await;
    let answered: BTreeSet<u64> = (0..10).collect();
    assert!(seen.is_superset(&answered), "after a failed {call} {:?} are gone", answered.difference(&seen));
    assert!(seen.iter().all(|n| *n <= 10), "after a failed {call} there is what was never stored: {seen:?}");
    engine.close().await;
}

#[tokio::test]
async fn child_sync_eio() {
    poisoned_by("sync", EIO, "/log/").await;
}

#[tokio::test]
async fn child_write_eio() {
    poisoned_by("write", EIO, "/log/").await;
}

#[tokio::test]
async fn child_write_erofs() {
    poisoned_by("write", EROFS, "pool").await;
}

#[test]
fn a_failed_sync_poisons_and_is_not_tried_again() {
    with_faults("child_sync_eio");
}

#[test]
fn a_failed_write_poisons() {
    with_faults("child_write_eio");
}

#[test]
fn a_disk_that_turned_read_only_poisons() {
    with_faults("child_write_erofs");
}

/// A bad sector in data that is read completely on open: the store is refused, and a repair loses only the sector's
/// contents.
#[tokio::test]
async fn child_bad_sector_at_the_start() {
    let Some(dir) = child() else { return };
    let (q, path) = (queue("q"), dir.join("pool"));
    let engine = DiskEngine::open(disk_options(&path)).expect("it opens");
    for n in 0..100 {
        publish(&engine, &q, n..n + 1, 1000).await;
    }
    engine.close().await;
    let damage_of = |part: &str, offset| {
        fail(&dir, "pread", EIO, path.join(part).to_str().expect("a path of this test"), offset);
        let refused = DiskEngine::open(disk_options(&path)).map(drop);
        assert!(matches!(refused, Err(OpenError::Damaged(..))), "{part}: it is refused: {refused:?}");
        let told = repair(&path, None).expect("it can be judged").damage.concat();
        heal(&dir);
        told
    };
    for part in ["log/manifest", "trees/ready/current"] {
        let told = damage_of(part, None);
        assert!(told.contains("cannot be read"), "{part}: {told}");
    }
    // In the middle of the groups.
    let offset = Some(40_000);
    assert!(damage_of("log/0", offset).contains("cannot be read"), "a part of the log");
    fail(&dir, "pread", EIO, "pool/log/0", offset);
    let told = repair(&path, Some(RepairTo::Beside)).expect("it can be repaired");
    assert!(told.written.is_some(), "{told}");
    let engine = DiskEngine::open(disk_options(&path)).expect("it was repaired");
    let gone = 100 - drain(&engine, &q, 1000).await.len();
    assert!(gone < 20, "{gone} of 100 jobs are lost for one sector");
    engine.close().await;
}

#[test]
fn a_bad_sector_in_what_an_open_reads_can_be_repaired() {
    with_faults("child_bad_sector_at_the_start");
}

/// What a killed process or a failed sync has left only in the system's memory, and what an open relies on, is written
/// and synced first.
#[tokio::test]
async fn child_syncs_at_the_start() {
    let Some(dir) = child() else { return };
    let path = dir.join("pool");
    let engine = DiskEngine::open(disk_options(&path)).expect("it opens");
    publish(&engine, &queue("q"), 0..10, 100).await;
    engine.close().await;
    // As after a kill.
    let mark = std::fs::read_to_string(path.join("dormouse")).expect("a mark");
    let (whole, _) = mark.split_once("closed ").expect("it was closed");
    std::fs::write(path.join("dormouse"), whole).expect("written");
    for part in ["pool/dormouse", "pool/trees/jobs", "pool/trees/ready", "pool/log/0"] {
        fail(&dir, "sync", EIO, part, None);
        let opened = DiskEngine::open(disk_options(&path)).map(drop);
        assert!(matches!(opened, Err(OpenError::Io(..))), "{part} was not synced: {opened:?}");
        heal(&dir);
    }
    // Where a sync has failed the system shows what no later sync writes.
    for part in ["pool/dormouse", "pool/log/0"] {
        fail(&dir, "write", EIO, part, None);
        let opened = DiskEngine::open(disk_options(&path)).map(drop);
        assert!(matches!(opened, Err(OpenError::Io(..))), "{part} was not written once more: {opened:?}");
        heal(&dir);
    }
    DiskEngine::open(disk_options(&path)).expect("it opens").close().await;
}

#[test]
fn a_start_writes_and_syncs_what_it_relies_on() {
    with_faults("child_syncs_at_the_start");
}

/// Makes a pool with ten jobs whose list of tables is missing.
async fn damaged_pool(q: &Queue, path: &Path) {
    let engine = DiskEngine::open(disk_options(path)).expect("it opens");
    publish(&engine, q, 0..10, 100).await;
    engine.close().await;
    std::fs::remove_file(path.join("trees/jobs/current")).expect("it is there");
}

/// A full disk during a repair, which needs space for everything intact.
#[tokio::test]
async fn child_full_during_a_repair() {
    let Some(dir) = child() else { return };
    let (q, path) = (queue("q"), dir.join("pool"));
    damaged_pool(&q, &path).await;
    let list = || {
        let names = std::fs::read_dir(&dir).expect("listed").flatten().map(|entry| entry.file_name());
        names.filter(|name| name != "faults").collect::<Vec<_>>()
    };
    let before = (list(), files_of(&path));
    for part in [
        "pool.repairing/trees/jobs",
        "pool.repairing/log/0",
        "pool.repairing/log/manifest",
        "pool.repairing/dormouse",
    ] {
        fail(&dir, "write", ENOSPC, part, None);
        let full = repair(&path, Some(RepairTo::Beside)).map(drop).expect_err("the disk is full").to_string();
        heal(&dir);
        let says = full.contains("is unchanged") && full.contains("No space left on device");
        assert!(says, "{part}: it says: {full}");
        assert!((list(), files_of(&path)) == before, "{part}: everything is as it was, not {:?}", list());
    }
    let told = repair(&path, Some(RepairTo::Beside)).expect("it can be repaired");
    assert!(told.opens(), "{told}");
    let engine = DiskEngine::open(disk_options(&path)).expect("it was repaired");
    assert_eq!(drain(&engine, &q, 100).await.len(), 10, "all jobs are in the log");
    engine.close().await;
}

/// Returns every file below a directory with its bytes.
fn files_of(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(dir).expect("listed").flatten() {
        match entry.path().is_dir() {
            true => found.extend(files_of(&entry.path())),
            false => drop(found.insert(entry.path(), std::fs::read(entry.path()).expect("read"))),
        }
    }
    found
}

#[test]
fn a_repair_on_a_full_disk_leaves_everything_as_it_was() {
    with_faults("child_full_during_a_repair");
}

/// A directory that cannot be replaced: a mount point, and one on a disk that has turned read-only.
#[tokio::test]
async fn child_not_replaceable() {
    let Some(dir) = child() else { return };
    let (q, path) = (queue("q"), dir.join("disk"));
    damaged_pool(&q, &path).await;
    let refused = |path: &Path, says: &str| {
        let refused = repair(path, Some(RepairTo::Beside)).map(drop).expect_err(says).to_string();
        assert!(refused.contains(says) && refused.contains("--into"), "expected {says}: {refused}");
    };
    refused(&path, "it is a mount point");
    let copied = Command::new("cp").arg("-a").arg(&path).arg(dir.join("ro/pool")).status();
    assert!(copied.is_ok_and(|status| status.success()), "copied");
    let bound = Command::new("mount").args(["-o", "remount,ro"]).arg(dir.join("ro")).status();
    assert!(bound.is_ok_and(|status| status.success()), "remounted");
    refused(&dir.join("ro/pool"), "Read-only file system");
    for (from, to) in [(path, "one"), (dir.join("ro/pool"), "two")] {
        let to = dir.join(to);
        let told = repair(&from, Some(RepairTo::Into(&to))).expect("it can be repaired");
        assert!(told.opens() && told.to_string().contains("the undamaged part opens now: /"), "{told}");
        assert!(!repair(&from, None).expect("it can be judged").opens(), "the damaged one is unchanged");
        let engine = DiskEngine::open(disk_options(&to)).expect("it was repaired");
        assert_eq!(drain(&engine, &q, 100).await.len(), 10, "all jobs are in the log");
        engine.close().await;
        let again = repair(&from, Some(RepairTo::Into(&to))).map(drop).expect_err("it exists").to_string();
        assert!(again.contains("File exists"), "a directory is never overwritten: {again}");
    }
}

#[test]
fn a_directory_that_cannot_be_replaced_is_repaired_elsewhere() {
    in_mounts(
        "child_not_replaceable",
        r#"mkdir "$1/disk" "$1/ro" && mount -t tmpfs -o size=1g none "$1/disk" && mount -t tmpfs -o size=1g none "$1/ro""#,
    );
}

/// Guards against a list that is discarded, with all its jobs' tries, because the machine could open no more files.
#[tokio::test]
async fn child_too_many_open_files() {
    let Some(dir) = child() else { return };
    let (q, path) = (queue("q"), dir.join("pool"));
    let engine = DiskEngine::open(disk_options(&path)).expect("it opens");
    let many = NewJob { tries: NonZeroU16::new(7).expect("not 0"), ..job(&q, 0) };
    for from in (0..600).step_by(60) {
        let jobs = (from..from + 60).map(|n| NewJob { id: id(n), ..many.clone() });
        engine.publish(jobs.collect::<Vec<_>>().into()).await.expect("published");
    }
    engine.close().await;
    RawStore::open(&path).expect("it was closed").write_out().expect("written out");
    let table = table_of(&path, "ready");
    let middle = table.metadata().expect("it is there").len() / 3;
    fail(&dir, "pread", EMFILE, table.to_str().expect("UTF-8"), Some(middle));
    let repaired = repair(&path, Some(RepairTo::Beside));
    assert!(matches!(repaired, Err(OpenError::Io(..))), "the list is not damaged: {repaired:?}");
    heal(&dir);
    let engine = DiskEngine::open(disk_options(&path)).expect("nothing is damaged");
    let first = take(&engine, &q, 1, TTR).await;
    assert_eq!(first[0].tries_left, 6, "the list is as it was");
    assert_eq!(engine.ready(&q).await.expect("size"), 599, "so are the other jobs");
    engine.close().await;
}

#[test]
fn a_repair_takes_no_other_error_for_damage() {
    with_faults("child_too_many_open_files");
}

/// A disk that is full when the store is opened.
#[tokio::test]
async fn child_full_at_the_start() {
    let Some(dir) = child() else { return };
    let (q, path) = (queue("q"), dir.join("pool"));
    let engine = DiskEngine::open(disk_options(&path)).expect("it opens");
    publish(&engine, &q, 0..10, 100).await;
    engine.close().await;
    fail(&dir, "write", ENOSPC, "manifest.new", None);
    let engine =
        DiskEngine::open(disk_options(&path)).expect("a store on a full disk must open, to be drained");
    assert_eq!(drain(&engine, &q, 100).await.len(), 10, "jobs of a full disk");
    heal(&dir);
    engine.close().await;
    let engine = DiskEngine::open(disk_options(&path)).expect("it opens");
    assert_eq!(engine.ready(&q).await.expect("size"), 0, "acked jobs stay deleted");
    engine.close().await;
}

#[test]
fn a_store_on_a_full_disk_opens_and_is_drained() {
    with_faults("child_full_at_the_start");
}

/// A disk that never completes a sync.
#[tokio::test]
async fn child_hangs() {
    let Some(dir) = child() else { return };
    let q = queue("q");
    let open = |name: &str, sync: Sync, disk_timeout: Duration| {
        DiskEngine::open(DiskOptions { disk_timeout, sync, ..disk_options(&dir.join(name)) })
            .expect("it opens")
    };
    // Longer than a busy disk takes for a sync.
    const LIMIT: Duration = Duration::from_secs(5);
    let (hangs, lazy) = (open("hangs", Sync::Always, LIMIT), open("lazy", Sync::EverySecond, LIMIT));
    let well = open("well", Sync::Always, PATIENCE);
    for engine in [&hangs, &well, &lazy] {
        publish(engine, &q, 0..1, 100).await;
    }
    let faults = ["hangs", "lazy"].map(|part| format!("sync {HANGS} {part}/log\n")).concat();
    std::fs::write(dir.join("faults"), faults).expect("written");
    let is_noticed = async |engine: &DiskEngine, part: &str, n: u64| {
        // In the group that hangs, and behind it.
        let (first, second) =
            (engine.publish(vec![job(&q, 1)].into()), engine.publish(vec![job(&q, 2)].into()));
        let poisoned = async {
            let first = first.await;
            let reason = engine.poisoned().await;
            (first, second.await, reason)
        };
        let (first, second, reason) =
            tokio::time::timeout(PATIENCE, poisoned).await.expect("a disk that hangs is noticed");
        if part == "hangs" {
            assert!(matches!(first, Err(Error::Away(_))), "a call in flight fails: {first:?}");
        }
        assert!(matches!(second, Err(Error::Poisoned(_))), "{part}: a later call fails: {second:?}");
        assert!(reason.contains("the disk hangs"), "{part}: it says why: {reason}");
        publish(&well, &q, n..n + 1, 100).await;
        well.ack_job(job_ref(&q, n)).await.expect("another pool works");
        // A thread stays blocked in the disk; close does not wait for it.
        let closed = tokio::time::timeout(PATIENCE, engine.close()).await;
        closed.unwrap_or_else(|_| panic!("{part}: a close must not wait for a disk that hangs"));
        // When the disk recovers, that thread must not write to files that another process has opened.
        let again = DiskEngine::open(disk_options(&dir.join(part))).map(drop);
        assert!(matches!(again, Err(OpenError::Locked(_))), "{part}: its thread lives, and: {again:?}");
    };
    tokio::join!(is_noticed(&hangs, "hangs", 5), is_noticed(&lazy, "lazy", 6));
    well.close().await;
    println!("test child_hangs ... ok\n\ntest result: ok. 1 passed");
    // The threads that hang would keep the process.
    std::process::exit(0);
}

#[test]
fn a_disk_that_hangs_is_noticed_and_stops_no_other_pool() {
    with_faults("child_hangs");
}

/// The flushing thread fails, so memory is never flushed again.
#[tokio::test]
async fn child_flush() {
    let Some(dir) = child() else { return };
    let (q, path) = (queue("q"), dir.join("pool"));
    let engine = DiskEngine::open(disk_options(&path)).expect("it opens");
    fail(&dir, "write", EIO, "/tables/", None);
    let writes = async {
        for n in 0.. {
            let large = NewJob { body: body(n, 1 << 20), ..job(&q, n) };
            if engine.publish(vec![large].into()).await.is_err() {
                return n;
            }
        }
        0
    };
    let answered = tokio::time::timeout(PATIENCE, writes).await.expect("a commit must not wait for ever");
    let why = engine.check().await.expect_err("the store has failed");
    assert!(matches!(why, Error::Poisoned(_)), "expected Poisoned: {why:?}");
    let closed = tokio::time::timeout(PATIENCE, engine.close()).await;
    closed.expect("a close must not wait for a writer that waits for ever");
    println!("{answered} answered\ntest child_flush ... ok\n\ntest result: ok. 1 passed");
    std::process::exit(0);
}

#[test]
fn a_thread_that_writes_out_and_fails_poisons_the_store() {
    with_faults("child_flush");
}

/// Ten bytes in the middle of a table of this keyspace are another's.
fn damage(path: &Path, keyspace: &str) {
    RawStore::open(path).expect("it was closed").write_out().expect("written out");
    let table = table_of(path, keyspace);
    let mut bytes = std::fs::read(&table).expect("read");
    let middle = bytes.len() / 3;
    bytes[middle..middle + 10].iter_mut().for_each(|byte| *byte ^= 0x55);
    std::fs::write(&table, bytes).expect("written");
}

#[tokio::test]
async fn a_list_that_cannot_be_read_is_rebuilt_from_the_jobs() {
    const JOBS: u64 = 600;
    let keyspaces = ["ready", "delayed", "dead", "running"];
    for (keyspace, is_logged) in keyspaces.into_iter().flat_map(|of| [(of, false), (of, true)]) {
        let (dir, clock) = (tempfile::tempdir().expect("a directory"), clock());
        let path = dir.path().join("pool");
        let open = || DiskEngine::open(DiskOptions { sync: Sync::EverySecond, ..options(&path, &clock) });
        let engine = open().expect("a new directory opens");
        let [ready, delayed, dead, running] = ["ready", "delayed", "dead", "running"].map(queue);
        let hour = Duration::from_secs(3600);
        // The jobs of the queue `dead` first: only they are due at the first pump.
        for (queue, delay) in
            [(&dead, Duration::ZERO), (&ready, Duration::ZERO), (&running, Duration::ZERO), (&delayed, hour)]
        {
            for from in (0..JOBS).step_by(60) {
                let jobs = (from..from + 60).map(|n| NewJob { delay, body: body(n, 20), ..job(queue, n) });
                engine.publish(jobs.collect::<Vec<_>>().into()).await.expect("published");
            }
            let ttr = match queue.name.as_str() {
                "dead" => Duration::from_millis(10),
                "running" => 2 * hour,
                _ => continue,
            };
            for _ in 0..JOBS / 100 {
                assert_eq!(take(&engine, queue, 100, ttr).await.len(), 100, "handed out");
            }
            clock.advance(Duration::from_millis(20));
            while engine.pump().await.expect("pumped").moved > 0 {}
        }
        if !is_logged {
            // The files of the log are used again.
            let other = queue("other");
            publish(&engine, &other, 0..40, 1 << 20).await;
            assert_eq!(drain(&engine, &other, 1 << 20).await.len(), 40, "acked");
        }
        engine.close().await;
        damage(&path, keyspace);
        assert!(
            open().is_err() || ["ready", "dead", "delayed"].contains(&keyspace),
            "{keyspace} is read at the start"
        );
        let told = repair(&path, Some(RepairTo::Beside)).expect("it can be rebuilt");
        let said = " jobs missing from all lists were added to one, with one try left";
        let lost = told.notes.iter().find_map(|note| note.strip_suffix(said)?.parse().ok());
        let lost: usize = lost.unwrap_or_else(|| panic!("entries of {keyspace} in one block: {told}"));
        assert_eq!(lost == 0, is_logged, "the log has the contents of the block of {keyspace}: {told}");
        assert!(lost < JOBS as usize / 2, "entries of {keyspace} in one block: {told}");
        let told = repair(&path, Some(RepairTo::Beside)).expect("nothing is wrong");
        assert_eq!((told.damage.len(), told.notes.len()), (0, 0), "not twice: {told}");

        let engine = open().unwrap_or_else(|e| panic!("{keyspace}: it should open: {e}"));
        let all: BTreeSet<u64> = (0..JOBS).collect();
        assert_eq!(drain(&engine, &ready, 20).await, all, "after {keyspace} was rebuilt: ready jobs");
        assert_eq!(
            engine.dead_letter(&dead).await.expect("read").jobs,
            JOBS,
            "after {keyspace} was rebuilt: dead jobs"
        );
        assert_eq!(
            engine.delete_dead(&dead, JOBS).await.expect("deleted"),
            JOBS,
            "after {keyspace} was rebuilt"
        );
        clock.advance(hour);
        while engine.pump().await.expect("pumped").moved > 0 {}
        assert_eq!(drain(&engine, &delayed, 20).await, all, "after {keyspace} was rebuilt: delayed jobs");
        // A running job whose entry was lost is ready at once, any other dead after its ttr.
        clock.advance(2 * hour);
        while engine.pump().await.expect("pumped").moved > 0 {}
        let again = drain(&engine, &running, 20).await.len();
        assert_eq!(again, if keyspace == "running" { lost } else { 0 }, "after {keyspace}: ready again");
        let size = engine.dead_letter(&running).await.expect("read").jobs;
        assert_eq!(size + again as u64, JOBS, "after {keyspace} was rebuilt: jobs that ran");
        engine.close().await;
    }
}

/// Guards against a key that stays taken forever, and against an unreadable job that takes the key of a readable one
/// with it.
#[tokio::test]
async fn a_job_in_quarantine_does_not_keep_its_key() {
    const JOBS: u64 = 600;
    let (dir, clock) = (tempfile::tempdir().expect("a directory"), clock());
    let open = || DiskEngine::open(DiskOptions { sync: Sync::EverySecond, ..options(dir.path(), &clock) });
    let (q, key) = (queue("q"), |n: u64| format!("key-{n}"));
    let engine = open().expect("a new directory opens");
    for n in 0..JOBS {
        engine.publish(publication(&q, n, Some(&key(n)))).await.expect("published");
    }
    engine.close().await;
    damage(dir.path(), "jobs");
    let engine = open().expect("a record is read when it is needed");
    let seen = drain(&engine, &q, 20).await;
    let bad: Vec<u64> = (0..JOBS).filter(|n| !seen.contains(n)).collect();
    let quarantined = gauge(&engine, "disk_quarantined_jobs").await;
    assert!(!bad.is_empty() && quarantined == bad.len() as f64, "{quarantined} of {bad:?}");
    for n in &bad {
        let published = engine.publish(publication(&q, JOBS + n, Some(&key(*n)))).await.expect("published");
        let is_new = matches!(&published, Published::Done(placed) if placed[0].how == How::New);
        assert!(is_new, "the key of the unreadable job {n} is free: {published:?}");
        engine.ack_job(job_ref(&q, *n)).await.expect("acked");
        let name = JobKey::parse(&key(*n)).expect("a key");
        let holder = engine.inspect_by_key(&q, &name).await.expect("answered").map(|view| view.id);
        assert_eq!(holder, Some(id(JOBS + n)), "the ack of job {n} leaves the key to the new one");
    }
    assert_eq!(gauge(&engine, "disk_quarantined_jobs").await, 0.0, "they were acked");
    engine.close().await;
}

/// Guards against unreachable records without entry or quarantine row, which would stay forever.
#[tokio::test]
async fn a_destroy_deletes_jobs_that_cannot_be_read() {
    const JOBS: u64 = 600;
    let (dir, clock) = (tempfile::tempdir().expect("a directory"), clock());
    let open = || DiskEngine::open(DiskOptions { sync: Sync::EverySecond, ..options(dir.path(), &clock) });
    let q = queue("q");
    let engine = open().expect("a new directory opens");
    publish(&engine, &q, 0..JOBS, 20).await;
    engine.close().await;
    damage(dir.path(), "jobs");
    let engine = open().expect("a record is read when it is needed");
    let mut bad = 0;
    for n in 0..JOBS {
        bad += u64::from(engine.inspect_stored(&job_ref(&q, n)).await.is_err());
    }
    assert!((1..JOBS).contains(&bad), "{bad} of {JOBS} cannot be read");
    engine.destroy(&q, Listing::Keep).await.expect("destroyed");
    for n in 0..JOBS {
        let found = engine.inspect_stored(&job_ref(&q, n)).await;
        assert!(matches!(found, Ok(None)), "job {n} is deleted: {found:?}");
    }
    engine.close().await;
}

/// A repair rebuilds lists and keys, and leaves other data alone.
#[tokio::test]
async fn a_repair_rebuilds_the_list_of_keys() {
    const JOBS: u64 = 600;
    for keyspace in ["keys", "ready"] {
        let (dir, clock) = (tempfile::tempdir().expect("a directory"), clock());
        let path = dir.path().join("pool");
        let open = || DiskEngine::open(DiskOptions { sync: Sync::EverySecond, ..options(&path, &clock) });
        let (q, key) = (queue("q"), |n: u64| format!("key-{n}"));
        let engine = open().expect("a new directory opens");
        for n in 0..JOBS {
            engine.publish(publication(&q, n, Some(&key(n)))).await.expect("published");
        }
        engine.close().await;
        damage(&path, keyspace);
        let told = repair(&path, None).expect("it can be judged");
        assert_eq!(told.damage.len(), 1, "the list {keyspace}: {told}");
        let told = repair(&path, Some(RepairTo::Beside)).expect("it can be repaired");
        assert!(told.written.is_some(), "the list {keyspace}: {told}");
        let told = repair(&path, None).expect("it can be judged");
        assert_eq!(told.damage, [""; 0], "the list {keyspace} is whole again: {told}");
        let engine = open().unwrap_or_else(|e| panic!("{keyspace}: it should open: {e}"));
        for n in [0, JOBS / 3, JOBS - 1] {
            let again = engine.publish(publication(&q, JOBS + n, Some(&key(n)))).await.expect("answered");
            assert_eq!(again, Published::Conflict { index: 0, id: id(n) }, "{keyspace}: key {n} is taken");
        }
        assert_eq!(drain(&engine, &q, 20).await.len(), JOBS as usize, "{keyspace}: no job is missing");
        for n in [0, JOBS / 3, JOBS - 1] {
            let again = engine.publish(publication(&q, JOBS + n, Some(&key(n)))).await.expect("answered");
            assert!(matches!(again, Published::Done(_)), "{keyspace}: key {n} is free: {again:?}");
        }
        engine.close().await;
    }
}
