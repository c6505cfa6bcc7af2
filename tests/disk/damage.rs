//! Damage to the files of a disk pool: flipped bytes and missing files, after a clean shutdown and after `kill -9`. No
//! job is lost silently: the store refuses to open, or reports later which job is unreadable, or the damage has no
//! effect.
//!
//! `DISK_FLIPS=200` tries that many flips per store, and removes every file even of the largest store;
//! `DISK_FLIPS_SEED=7` changes the random seed.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::FileExt;
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::common::*;
use bytes::Bytes;
use dormouse::clock::ManualClock;
use dormouse::engine::Engine;
use dormouse::engine::disk::{DiskEngine, OpenError, RawStore, RepairTo, repair};
use dormouse::error::Error;
use dormouse::job::{Job, JobRef, NewJob};
use dormouse::name::Queue;
use rustix::fs::{SeekFrom, seek};

/// What a store must have: jobs that are stored, and jobs that were acked.
struct Account {
    queue: Queue,
    stored: BTreeMap<u64, Bytes>,
    acked: BTreeSet<u64>,
    clock: Arc<ManualClock>,
}

/// The tables of the keyspace that holds the jobs.
const JOBS: &str = "trees/jobs/tables";
/// Begins with the number of the list of these tables.
const JOBS_LIST: &str = "trees/jobs/current";

/// A number from the environment.
fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().expect("a number"))
}

/// Numbers that differ from run to run by the seed alone.
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
}

/// Returns an incompressible body, different for each `n`.
fn body(n: u64, len: usize) -> Bytes {
    let mut rng = Rng(n);
    std::iter::repeat_with(|| rng.next().to_le_bytes()).flatten().take(len).collect()
}

/// How a store ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Closed,
    Killed,
}

/// Makes a store of this kind in `dir`: jobs of many groups, ready, delayed and acked, in the log and in tables.
/// `large` fills several files of the log.
async fn make(dir: &Path, end: End, large: bool) -> Account {
    let clock = clock();
    let mut account =
        Account { queue: queue("q"), stored: BTreeMap::new(), acked: BTreeSet::new(), clock: clock.clone() };
    let home = tempfile::tempdir().expect("a directory");
    let mut options = options(home.path(), &clock);
    options.upkeep = true;
    options.upkeep_every = Duration::from_millis(50);
    let engine = DiskEngine::open(options).expect("an empty directory opens");
    let mut n = 0;
    let mut publish = async |account: &mut Account, count: u64, len: usize| {
        for _ in 0..count {
            n += 1;
            let delay = Duration::from_secs(if n % 3 == 0 { 60 } else { 0 });
            let new = NewJob { body: body(n, len), delay, ..job(&account.queue, n) };
            account.stored.insert(n, new.body.clone());
            engine.publish(vec![new].into()).await.expect("published");
        }
    };
    let ack = async |account: &mut Account, count: u16| {
        for job in take(&engine, &account.queue.clone(), count, Duration::from_secs(3600)).await {
            engine.ack_job(JobRef { queue: job.queue.clone(), id: job.id }).await.expect("acked");
            let n = number_of(&job);
            account.stored.remove(&n);
            account.acked.insert(n);
        }
    };
    publish(&mut account, 300, 20_000).await;
    ack(&mut account, 40).await;
    // An idle store flushes its memory to tables.
    // The first list of tables is empty.
    let has_tables = || std::fs::read(home.path().join(JOBS_LIST)).is_ok_and(|list| list.first() > Some(&0));
    for _ in 0..3000 {
        if has_tables() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(has_tables(), "upkeep writes tables out within a minute");
    if large {
        publish(&mut account, 1000, 80_000).await;
    }
    publish(&mut account, 300, 1000).await;
    ack(&mut account, 40).await;
    publish(&mut account, 30, 10).await;
    if end == End::Closed {
        engine.close().await;
        copy_store(home.path(), dir);
    } else {
        // The files as the system has them at this moment: what `kill -9` leaves.
        copy_store(home.path(), dir);
        engine.close().await;
    }
    account
}

/// The number of a job: `id` made its id from it.
fn number_of(job: &Job) -> u64 {
    (0..10_000).find(|n| id(*n) == job.id).unwrap_or_else(|| panic!("{:?} is a job of this test", job.id))
}

fn is_table(path: &Path) -> bool {
    path.components().any(|part| part.as_os_str() == "tables")
}

/// Whether this is a file of the log that holds groups.
fn is_log(path: &Path) -> bool {
    let is_numbered = path.file_name().is_some_and(|name| name.to_string_lossy().parse::<u32>().is_ok());
    is_numbered && path.parent().is_some_and(|dir| dir.ends_with("log"))
}

fn files(path: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(path).into_iter().flatten().flatten() {
        if entry.path().is_dir() { found.extend(files(&entry.path())) } else { found.push(entry.path()) }
    }
    found.sort();
    found
}

/// The bytes of a file up to the last that were written: files of the log are made ahead.
fn used(path: &Path) -> std::io::Result<Vec<u8>> {
    let file = std::fs::File::open(path)?;
    let (mut bytes, mut at) = (Vec::new(), 0);
    while let Ok(from) = seek(&file, SeekFrom::Data(at)) {
        at = seek(&file, SeekFrom::Hole(from)).expect("behind data there is a hole, or the end");
        bytes.resize(at as usize, 0);
        file.read_exact_at(&mut bytes[from as usize..], from)?;
    }
    while bytes.len() > 4096 && bytes.ends_with(&[0; 4096]) {
        bytes.truncate(bytes.len() - 4096);
    }
    Ok(bytes)
}

/// Copies a directory, with trailing zeros of files as holes.
fn copy_store(from: &Path, to: &Path) {
    copy_as_is(from, to, copy_files);
}

fn copy_files(from: &Path, to: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(to)?;
    for file in files(from) {
        let target = to.join(file.strip_prefix(from).expect("below it"));
        std::fs::create_dir_all(target.parent().expect("it has one"))?;
        let len = std::fs::metadata(&file)?.len();
        std::fs::write(&target, used(&file)?)?;
        std::fs::OpenOptions::new().write(true).open(&target)?.set_len(len)?;
    }
    Ok(())
}

/// What became of a damaged store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Outcome {
    Refused,
    FoundLater,
    NoEffect,
}

/// Every file with its bytes.
fn contents(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    files(dir).into_iter().map(|path| (path.clone(), used(&path).expect("it can be read"))).collect()
}

/// Opens a damaged store and takes everything out. Fails if something is lost, wrong or back without a word.
async fn judge(dir: &Path, account: &Account, what: &str) -> Outcome {
    // A damaged file may make lsm-tree panic: that is a refusal, if an ugly one.
    let opened =
        std::panic::catch_unwind(AssertUnwindSafe(|| DiskEngine::open(options(dir, &account.clock))));
    let engine = match opened {
        Ok(Ok(engine)) => engine,
        Ok(Err(OpenError::Locked(_))) => panic!("{what}: no other process has it open"),
        Ok(Err(_)) => return Outcome::Refused,
        Err(_) => panic!("{what}: it panicked"),
    };
    let outcome = account_for(&engine, account, what).await;
    engine.close().await;
    outcome
}

async fn account_for(engine: &DiskEngine, account: &Account, what: &str) -> Outcome {
    let mut unread = BTreeSet::new();
    for n in account.stored.keys().chain(&account.acked) {
        match (engine.inspect_stored(&job_ref(&account.queue, *n)).await, account.stored.get(n)) {
            (Ok(Some(job)), Some(body)) => assert!(job.body == *body, "{what}: job {n} has another body"),
            (Ok(None), None) => {}
            (Ok(None), Some(_)) => panic!("{what}: job {n} is lost in silence"),
            (Ok(Some(_)), None) => panic!("{what}: job {n} was acked and is back"),
            (Err(Error::Corrupt(_)), _) => drop(unread.insert(*n)),
            // It reports that it cannot continue, and why.
            (Err(Error::Poisoned(_)), _) => return Outcome::FoundLater,
            (Err(e), _) => panic!("{what}: {e}"),
        }
    }
    account.clock.advance(Duration::from_secs(3700));
    let mut handed_out = BTreeSet::new();
    loop {
        let pumped = engine.pump().await;
        let jobs = consume(engine, &account.queue.clone().into(), &[Duration::from_secs(1 << 20); 100]).await;
        match (pumped, jobs) {
            (Ok(pumped), Ok(jobs)) if pumped.moved == 0 && jobs.is_empty() => break,
            (Ok(_), Ok(jobs)) => handed_out.extend(jobs.iter().map(number_of)),
            _ => return Outcome::FoundLater,
        }
    }
    for n in account.stored.keys() {
        let is_told = handed_out.contains(n) || unread.contains(n);
        assert!(is_told, "{what}: job {n} is never handed out, and nobody says why");
    }
    let back: Vec<_> = handed_out.iter().filter(|n| !account.stored.contains_key(n)).collect();
    assert!(back.is_empty(), "{what}: jobs {back:?} were acked and came again");
    if unread.is_empty() { Outcome::NoEffect } else { Outcome::FoundLater }
}

/// Flips 16 bytes at random places of a store's log and tables, one place at a time.
async fn flips(end: End, large: bool, count: u64) {
    let original = tempfile::tempdir().expect("a directory");
    let account = make(original.path(), end, large).await;
    let candidates: Vec<(PathBuf, usize)> = files(original.path())
        .into_iter()
        .map(|path| (path.clone(), used(&path).expect("it can be read").len()))
        .filter(|(path, used)| *used > 0 && (is_table(path) || is_log(path)))
        .collect();
    let logs = candidates.iter().filter(|(path, _)| is_log(path)).count();
    assert!(logs > 0 && logs < candidates.len(), "the log and tables: {candidates:?}");
    let mut rng = Rng(number("DISK_FLIPS_SEED", 1));
    let mut outcomes: BTreeMap<(bool, Outcome), usize> = BTreeMap::new();
    for n in 0..count {
        // Half of them in the log, however much larger the tables are.
        let of_kind: Vec<_> =
            candidates.iter().filter(|(path, _)| is_log(path) == n.is_multiple_of(2)).collect();
        let sum: usize = of_kind.iter().map(|(_, used)| used).sum();
        let mut at = rng.below(sum);
        let (path, _) = of_kind
            .iter()
            .find(|(_, used)| {
                let is_here = at < *used;
                at -= if is_here { 0 } else { *used };
                is_here
            })
            .expect("within the sum");
        let dir = tempfile::tempdir().expect("a directory");
        copy_store(original.path(), dir.path());
        let below = path.strip_prefix(original.path()).expect("below it");
        flip(&dir.path().join(below), at);
        let before = contents(dir.path());
        let what = format!("{end:?}, 16 bytes at {at} of {}", below.display());
        let outcome = judge(dir.path(), &account, &what).await;
        if outcome == Outcome::Refused && is_log(path) {
            assert!(contents(dir.path()) == before, "{what}: refused, and files were changed before");
        }
        *outcomes.entry((is_log(path), outcome)).or_default() += 1;
    }
    println!("{end:?}, {count} flips of 16 bytes; (in the log, outcome) and how many: {outcomes:?}; lost 0");
    let refused = outcomes.get(&(true, Outcome::Refused)).copied().unwrap_or(0);
    assert!(refused > 0, "a damaged log is refused: {outcomes:?}");
}

fn flip(path: &Path, at: usize) {
    let file = std::fs::OpenOptions::new().read(true).write(true).open(path).expect("opened");
    let mut bytes = [0; 16];
    let read = file.read_at(&mut bytes, at as u64).expect("read");
    bytes[..read].iter_mut().for_each(|byte| *byte ^= 0x5a);
    file.write_all_at(&bytes[..read], at as u64).expect("written");
}

#[tokio::test]
async fn flipped_bytes_after_a_close_lose_nothing_in_silence() {
    flips(End::Closed, false, number("DISK_FLIPS", 10)).await;
}

#[tokio::test]
async fn flipped_bytes_after_kill_9_lose_nothing_in_silence() {
    flips(End::Killed, false, number("DISK_FLIPS", 10)).await;
}

#[tokio::test]
async fn flipped_bytes_of_a_long_log_lose_nothing_in_silence() {
    // Most bytes of its files are no longer needed.
    flips(End::Killed, true, number("DISK_FLIPS", 16)).await;
}

/// Removes each file and each directory of a store, one at a time.
async fn removals(end: End, large: bool) {
    let original = tempfile::tempdir().expect("a directory");
    let account = make(original.path(), end, large).await;
    let mut outcomes: BTreeMap<Outcome, usize> = BTreeMap::new();
    let all = files(original.path());
    let dirs: BTreeSet<PathBuf> =
        all.iter().flat_map(|path| path.ancestors().skip(1)).map(Path::to_owned).collect();
    let dirs = dirs.into_iter().filter(|dir| dir.starts_with(original.path()) && *dir != original.path());
    // For a long log, only its newest files are removed; the long form removes all.
    let is_long = std::env::var_os("DISK_FLIPS").is_some();
    let chosen =
        all.iter().cloned().chain(dirs).filter(|path| !large || is_long || path.is_dir() || is_log(path));
    for path in chosen {
        let below = path.strip_prefix(original.path()).expect("below it");
        let dir = tempfile::tempdir().expect("a directory");
        copy_store(original.path(), dir.path());
        let gone = dir.path().join(below);
        if gone.is_dir() { std::fs::remove_dir_all(&gone) } else { std::fs::remove_file(&gone) }
            .expect("removed");
        let before = contents(dir.path());
        let what = format!("{end:?}, {} is gone", below.display());
        let outcome = judge(dir.path(), &account, &what).await;
        if outcome == Outcome::Refused {
            let after = contents(dir.path());
            assert!(after == before, "{what}: refused, and files were changed before");
        }
        println!("{what}: {outcome:?}");
        *outcomes.entry(outcome).or_default() += 1;
    }
    println!(
        "{end:?}, {} names removed one at a time: {outcomes:?}; lost 0",
        outcomes.values().sum::<usize>()
    );
    assert!(
        outcomes.get(&Outcome::Refused) > outcomes.get(&Outcome::NoEffect),
        "most are needed: {outcomes:?}"
    );
}

#[tokio::test]
async fn no_file_that_is_missing_after_a_close_loses_a_job_in_silence() {
    removals(End::Closed, false).await;
}

#[tokio::test]
async fn no_file_that_is_missing_after_kill_9_loses_a_job_in_silence() {
    removals(End::Killed, false).await;
}

#[tokio::test]
async fn no_file_that_is_missing_of_a_long_log_loses_a_job_in_silence() {
    removals(End::Killed, true).await;
}

/// A path behind the name of a store's directory.
fn below_of(path: &Path, parent: &Path) -> PathBuf {
    path.strip_prefix(parent).expect("below it").components().skip(1).collect()
}

/// Damage is reported, and nothing changes until the loss is accepted. Then everything else is intact.
#[tokio::test]
async fn a_repair_gives_up_what_is_damaged_and_nothing_else() {
    let original = tempfile::tempdir().expect("a directory");
    let account = make(original.path(), End::Killed, false).await;
    let file = files(original.path()).into_iter().find(|path| is_log(path)).expect("one");
    let middle = used(&file).expect("it can be read").len() / 2;
    let below = |path: &Path| path.strip_prefix(original.path()).expect("below it").to_owned();
    type Harm = Box<dyn Fn(&Path)>;
    let remove = |name: PathBuf| -> Harm {
        Box::new(move |dir| std::fs::remove_file(dir.join(&name)).expect("removed"))
    };
    let flipped = below(&file);
    let harms: [(&str, Harm, &str); 5] = [
        ("a flip in the log", Box::new(move |dir| flip(&dir.join(&flipped), middle)), "cannot be read"),
        ("no current", remove(PathBuf::from("trees/jobs/current")), "the file current is missing"),
        (
            "no table",
            Box::new(|dir| {
                files(&dir.join(JOBS)).iter().for_each(|path| std::fs::remove_file(path).expect("removed"))
            }),
            "is missing",
        ),
        ("no manifest", remove(PathBuf::from("log/manifest")), "log/manifest is missing"),
        (
            "no log",
            Box::new(|dir| {
                for path in files(dir).into_iter().filter(|path| is_log(path)) {
                    std::fs::remove_file(path).expect("removed");
                }
            }),
            "log/0 is missing",
        ),
    ];
    for (what, harm, says) in harms {
        let parent = tempfile::tempdir().expect("a directory");
        let dir = parent.path().join("pool");
        copy_store(original.path(), &dir);
        harm(&dir);
        // Any open would delete these.
        std::fs::write(dir.join("trees/ready/v4711"), "an older list").expect("written");
        std::fs::write(dir.join("trees/ready/tables/4711"), "a table in no list").expect("written");
        let before = contents(&dir);
        let refused = DiskEngine::open(options(&dir, &account.clock));
        assert!(matches!(refused, Err(OpenError::Damaged(..))), "{what}: expected Damaged: {refused:?}");
        let report = repair(&dir, None).expect("it can be judged");
        assert!(report.to_string().contains(says) && !report.opens(), "{what}: {report}");
        assert!(contents(&dir) == before, "{what}: a repair that accepts no loss changed something");
        let report = repair(&dir, Some(RepairTo::Beside)).expect("it can be repaired");
        assert!(report.opens(), "{what}: {report}");
        let kept = contents(&parent.path().join("pool.damaged-1"));
        let kept = kept.into_iter().map(|(path, bytes)| (below_of(&path, parent.path()), bytes));
        let was = before.iter().map(|(path, bytes)| (below_of(path, parent.path()), bytes.clone()));
        assert!(kept.eq(was), "{what}: the damaged directory is kept as it was");
        let names =
            std::fs::read_dir(parent.path()).expect("listed").flatten().map(|entry| entry.file_name());
        let names: BTreeSet<_> = names.collect();
        assert!(
            names.iter().eq(["pool", "pool.damaged-1"].iter()),
            "{what}: nothing else is left: {names:?}"
        );
        let again = repair(&dir, None).expect("it can be judged");
        assert!(again.damage.is_empty(), "{what}: damaged after the repair: {again}");
        let engine =
            DiskEngine::open(options(&dir, &account.clock)).unwrap_or_else(|e| panic!("{what}: {e}"));
        let mut there = 0;
        for (n, body) in &account.stored {
            if let Some(job) = engine.inspect_stored(&job_ref(&account.queue, *n)).await.expect("answered") {
                assert!(job.body == *body, "{what}: job {n} has another body");
                there += 1;
            }
        }
        println!("{what}: {there} of {} jobs are left\n{report}", account.stored.len());
        let least = match what {
            "a flip in the log" => account.stored.len() - 2,
            "no current" | "no manifest" => account.stored.len(),
            _ => 0,
        };
        assert!(there >= least, "{what}: {there} jobs are left, at least {least} were expected");
        // It takes jobs, and has them after the next start.
        engine.publish(vec![job(&account.queue, 9_999)].into()).await.expect("published");
        engine.close().await;
        let engine =
            DiskEngine::open(options(&dir, &account.clock)).unwrap_or_else(|e| panic!("{what}: {e}"));
        let new = engine.inspect_stored(&job_ref(&account.queue, 9_999)).await.expect("answered");
        assert!(new.is_some(), "{what}: a job that was published after the repair");
        engine.close().await;
    }
}

/// Guards against a job that is lost although its record is intact, or lost and not named, when much is damaged.
#[tokio::test]
async fn with_damage_of_each_kind_every_job_is_there_or_named() {
    const ALL: [&str; 7] = ["keys", "ready", "delayed", "queues", "meta", "quotas", "settings"];
    let parent = tempfile::tempdir().expect("a directory");
    let dir = parent.path().join("pool");
    let account = make(&dir, End::Killed, false).await;
    RawStore::open(&dir).expect("it was copied").write_out().expect("written out");
    // In the middle of the jobs' largest table; the log has some of them.
    let tables = files(&dir.join(JOBS));
    let largest = tables.iter().max_by_key(|path| path.metadata().expect("it is there").len()).expect("one");
    flip(largest, largest.metadata().expect("it is there").len() as usize / 2);
    for name in ALL {
        let of = dir.join("trees").join(name);
        match name {
            "meta" => std::fs::remove_dir_all(of).expect("removed"),
            "ready" | "queues" => files(&of.join("tables"))
                .iter()
                .for_each(|table| std::fs::remove_file(table).expect("removed")),
            _ => std::fs::remove_file(of.join("current")).expect("removed"),
        }
    }
    std::fs::remove_file(dir.join("log/manifest")).expect("removed");
    let report = repair(&dir, Some(RepairTo::Beside)).expect("it can be repaired");
    let said = report.to_string();
    assert!(report.opens() && report.damage.len() >= ALL.len(), "it says: {said}");
    let engine = DiskEngine::open(options(&dir, &account.clock)).expect("it was repaired");
    let mut expected = BTreeSet::new();
    for (n, body) in &account.stored {
        match engine.inspect_stored(&job_ref(&account.queue, *n)).await.expect("answered") {
            Some(job) => {
                assert!(job.body == *body, "job {n} has another body");
                expected.insert(*n);
            }
            None => assert!(
                said.contains(&format!("job {} of {} is lost", id(*n), account.queue)),
                "job {n}: {said}"
            ),
        }
    }
    let lost = account.stored.len() - expected.len();
    assert!(lost < 10, "{lost} of {} jobs are lost for one block", account.stored.len());
    account.clock.advance(Duration::from_secs(3700));
    let mut delivered = BTreeSet::new();
    loop {
        let moved = engine.pump().await.expect("pumped").moved;
        let jobs = take(&engine, &account.queue, 100, Duration::from_secs(1 << 20)).await;
        if moved == 0 && jobs.is_empty() {
            break;
        }
        for job in &jobs {
            assert!(delivered.insert(number_of(job)), "job {} came twice", number_of(job));
        }
    }
    let back: Vec<_> = delivered.difference(&expected).collect();
    assert!(back.iter().all(|n| !account.acked.contains(n)), "acked jobs came again: {back:?}");
    assert!(delivered.is_superset(&expected), "never delivered: {:?}", expected.difference(&delivered));
    engine.close().await;
}
