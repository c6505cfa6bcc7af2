//! Repeated kill -9 under load: acknowledged jobs exist, acked jobs do not, and no job exists twice. Some jobs have
//! keys, and workers touch and release before they ack.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::common::*;
use dormouse::clock::{ManualClock, SystemClock, system_now};
use dormouse::engine::disk::{DiskEngine, DiskOptions};
use dormouse::engine::{
    Engine, Held, OnConflict, Placing, Publication, Published, Quota, Quotas, Release, Tries,
};
use dormouse::error::Error;
use dormouse::job::{Job, JobId, JobIds, JobRef, JobState, NewJob, Reason};
use dormouse::name::JobKey;

const CHILD: &str = "DISK_CRASH_DIR";
const ROUNDS: usize = 8;
/// Lines that the child prints before it is killed, more in each round.
const LINES: usize = 1500;
const QUEUES: [&str; 3] = ["a", "b", "c"];

/// Each line is one write, so lines printed before the kill are complete.
fn tell(what: char, id: JobId) {
    let mut out = std::io::stdout().lock();
    // The parent may have stopped reading because it is about to kill this process.
    let _ = out.write_all(format!("{what} {id}\n").as_bytes());
    let _ = out.flush();
}

/// Sets the namespace's quota to `jobs` jobs of the size used here.
async fn bound(engine: &DiskEngine, jobs: u64) {
    let bytes = jobs * job(&queue("a"), 0).body.len() as u64;
    let quotas = Quotas::from([(queue("a").namespace, Quota { jobs, bytes, queues: 0 })]);
    engine.set_quotas(&quotas).await.expect("quotas are set");
}

/// Checks that the usage counted before the kill is right: exactly one more job fits.
async fn check_quota(engine: &DiskEngine, jobs: u64) {
    bound(engine, jobs + 1).await;
    let body = job(&queue("a"), 0).body;
    let new = |n| NewJob { body: body.clone(), ..job(&queue("a"), n) };
    let two = [new(u64::MAX - 1), new(u64::MAX)];
    let refused = engine.publish(two.to_vec().into()).await;
    assert!(
        matches!(refused, Err(Error::OverQuota(_))),
        "two jobs beside {jobs} of {}: {refused:?}",
        jobs + 1
    );
    engine.publish(two[..1].to_vec().into()).await.expect("one job fits");
    engine.ack_job(JobRef { queue: queue("a"), id: two[0].id }).await.expect("acked");
    engine.set_quotas(&Quotas::new()).await.expect("quotas are set");
}

/// Publishes a job under its id for a key.
async fn publish_keyed(engine: &DiskEngine, job: NewJob) {
    let key = JobKey::parse(&job.id.to_string()).expect("an id is a key");
    let jobs = vec![Placing { job, at: None, key: Some((key, OnConflict::Fail)) }];
    let published = engine.publish(Publication { jobs, replaces: None, once: None }).await;
    assert!(matches!(published, Ok(Published::Done(_))), "nobody has its key: {published:?}");
}

/// Touches, and then releases, acks, or leaves the job to its ttr.
async fn work_on(engine: &DiskEngine, job: Job, n: u64) {
    let name = JobRef { queue: job.queue.clone(), id: job.id };
    let touched = engine.touch(&name, job.proof(), Duration::from_millis(20)).await.expect("answered");
    // On a busy machine its ttr may have ended.
    let Held::Done(touched) = touched else { return };
    if n.is_multiple_of(4) {
        let release = Release {
            delay: Duration::from_millis(n % 3),
            tries: if n.is_multiple_of(8) { Tries::Restore } else { Tries::Spend },
            reason: Reason::new("not now"),
        };
        tell('r', job.id);
        if let Held::Done(_) = engine.release(&name, touched.receipt, release).await.expect("answered") {
            tell('R', job.id);
        }
    } else {
        tell('a', job.id);
        let stale = engine.ack(&job.queue, &[(job.id, Some(touched.receipt))]).await.expect("answered");
        if stale.is_empty() {
            tell('A', job.id);
        }
    }
}

/// Runs in a process of its own, until it is killed: `p` before a publish, `P` after, `a` and `A` for acks, `r` and
/// `R` for releases.
#[tokio::test]
async fn child_under_load() {
    let Some(path) = std::env::var_os(CHILD) else { return };
    let options = DiskOptions::new(path, Arc::new(SystemClock::default()));
    let engine = DiskEngine::open(options).expect("the last one was killed");
    // Nothing is refused, and everything is counted.
    bound(&engine, 1 << 40).await;
    let ids = Arc::new(JobIds::default());
    let count = Arc::new(AtomicU64::new(0));
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..8usize {
        let (engine, ids, count) = (engine.clone(), ids.clone(), count.clone());
        tasks.spawn(async move {
            // Far more than the parent waits for.
            while count.fetch_add(1, Ordering::Relaxed) < 1_000_000 {
                let q = queue(QUEUES[count.load(Ordering::Relaxed) as usize % QUEUES.len()]);
                let now = engine.now();
                let jobs: Vec<NewJob> = (0..3)
                    .map(|i| NewJob {
                        id: ids.make(now, 0, false),
                        delay: Duration::from_millis(if i == 0 { 3 } else { 0 }),
                        tries: std::num::NonZeroU16::new(2).expect("two"),
                        ..job(&q, 0)
                    })
                    .collect();
                let made: Vec<JobId> = jobs.iter().map(|job| job.id).collect();
                made.iter().for_each(|id| tell('p', *id));
                let mut jobs = jobs.into_iter();
                publish_keyed(&engine, jobs.next().expect("there are three")).await;
                engine.publish(jobs.collect::<Vec<_>>().into()).await.expect("published");
                made.iter().for_each(|id| tell('P', *id));
                if n == 0 {
                    engine.pump().await.expect("pumped");
                }
                let taken = take(&engine, &q, 2, Duration::from_millis(20)).await;
                for job in taken {
                    work_on(&engine, job, count.load(Ordering::Relaxed)).await;
                }
            }
        });
    }
    while tasks.join_next().await.is_some() {}
}

#[derive(Default)]
struct Told {
    published: BTreeSet<String>,
    begun: BTreeSet<String>,
    acking: BTreeSet<String>,
    acked: BTreeSet<String>,
    releasing: BTreeSet<String>,
    released: BTreeSet<String>,
}

/// Runs the child until it has printed enough, and kills it.
fn run_and_kill(path: &Path, lines: usize, told: &mut Told) {
    let me = std::env::current_exe().expect("a test knows its own path");
    let mut child = Command::new(me)
        .args(["--exact", "crash::child_under_load", "--nocapture"])
        .env(CHILD, path)
        .stdout(Stdio::piped())
        .spawn()
        .expect("the child starts");
    let mut out = BufReader::new(child.stdout.take().expect("it is piped"));
    let mut line = String::new();
    let mut seen = 0;
    loop {
        line.clear();
        if out.read_line(&mut line).expect("the pipe can be read") == 0 {
            break;
        }
        if let Some((what, id)) = line.trim_end().split_once(' ')
            && line.ends_with('\n')
        {
            let set = match what {
                "p" => &mut told.begun,
                "P" => &mut told.published,
                "a" => &mut told.acking,
                "A" => &mut told.acked,
                "r" => &mut told.releasing,
                "R" => &mut told.released,
                _ => continue,
            };
            set.insert(id.to_owned());
            seen += 1;
            if seen == lines {
                child.kill().expect("SIGKILL");
            }
        }
    }
    child.wait().expect("it was killed");
    assert!(seen >= lines, "the child ended by itself after {seen} lines");
}

#[tokio::test]
async fn kill_9_loses_nothing_and_brings_nothing_back() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut told = Told::default();
    for round in 0..ROUNDS {
        run_and_kill(dir.path(), LINES + 371 * round, &mut told);
        check(dir.path(), &told).await;
    }
}

/// Checks that a job has its key while it lives, and a deleted one does not.
async fn check_keys(engine: &DiskEngine, told: &Told) {
    let mut keyed = 0;
    for id in &told.begun {
        let key = JobKey::parse(id).expect("an id is a key");
        for name in QUEUES {
            let job = JobRef { queue: queue(name), id: JobId::parse(id).expect("it was an id") };
            let view = engine.inspect_job(&job).await.expect("inspected");
            let holder =
                engine.inspect_by_key(&job.queue, &key).await.expect("looked up").map(|view| view.id);
            keyed += usize::from(holder.is_some());
            let Some(view) = view else {
                assert_eq!(holder, None, "{id} was deleted, but its key is not free");
                continue;
            };
            let has = view.key.as_ref() == Some(&key);
            assert_eq!(holder, has.then_some(job.id), "{id} and its key: {view:?}");
            assert!(!has || view.state != Some(JobState::Dead), "{id} is dead and has a key");
            if told.released.contains(id) {
                let reason = view.reason.as_ref().map(Reason::as_str);
                assert_eq!(reason, Some("not now"), "{id} was released, and its reason is lost");
            }
            assert!(view.reason.is_none() || told.releasing.contains(id), "{id} was not released: {view:?}");
        }
    }
    assert!(keyed > 0, "no job has a key: nothing was tested");
}

/// Takes everything out of a copy of the store.
async fn check(path: &Path, told: &Told) {
    let copied = tempfile::tempdir().expect("a directory");
    copy(path, copied.path());
    let clock = Arc::new(ManualClock::new(system_now() + 60_000));
    let engine = open(copied.path(), &clock);
    // Jobs acked while ready leave stale entries.
    engine.sweep().await.expect("swept");
    check_keys(&engine, told).await;
    let stats = engine.stats().await.expect("stats");
    let counted = stats.timers + stats.queues.iter().map(|q| q.ready + q.dead).sum::<u64>();
    check_quota(&engine, counted).await;
    engine.sweep().await.expect("swept");
    while engine.pump().await.expect("pumped").moved > 0 {}
    let mut found = BTreeSet::new();
    for name in QUEUES {
        let q = queue(name);
        engine.respawn_oldest(&q, u64::MAX, None).await.expect("respawned");
        loop {
            let jobs = take(&engine, &q, 100, Duration::from_secs(3600)).await;
            if jobs.is_empty() {
                break;
            }
            for job in jobs {
                assert!(found.insert(job.id.to_string()), "{} exists twice", job.id);
            }
        }
    }
    assert_eq!(found.len() as u64, counted, "ready, timers and dead together are the jobs");
    for id in &told.published {
        assert!(found.contains(id) || told.acking.contains(id), "{id} was published and is lost");
    }
    for id in &found {
        assert!(told.begun.contains(id), "{id} was never published");
        assert!(!told.acked.contains(id), "{id} was acked and is back");
    }
    engine.close().await;
}
