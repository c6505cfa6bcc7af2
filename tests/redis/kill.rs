//! Repeatedly kills (kill -9) a server whose workers touch and release jobs on one Redis. Checks that every published
//! job that was not acked exists, that acked jobs do not, and that each job has the tries that its workers were given.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::num::NonZeroU16;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::common::{TTR, engine, job, queue};
use crate::support::redis_server::RedisServer;
use crate::support::wait::until;
use dormouse::engine::redis::{RedisAddress, RedisEngine};
use dormouse::engine::{Engine, Held, Release, Tries};
use dormouse::job::{Job, JobId, JobIds, JobRef, NewJob};
use dormouse::name::PoolName;

const CHILD: &str = "REDIS_KILL_ADDR";
const ROUNDS: usize = 6;
/// Lines that the child prints before it is killed; more in each round.
const LINES: usize = 800;
/// Enough that no job dies.
const TRIES: u16 = 1000;
/// A ttr that ends while the child is working.
const SHORT: Duration = Duration::from_millis(80);

/// Prints a line in one write, so that every line printed before the kill is complete.
fn tell(what: &str, id: JobId) {
    let mut out = std::io::stdout().lock();
    // The parent may have stopped reading, and is about to kill this process.
    let _ = out.write_all(format!("{what} {id}\n").as_bytes());
    let _ = out.flush();
}

/// Handles one delivery, printed as `h` by the caller. Prints `a` before an ack and `A` after it, `r` before a release
/// that restores the try and `R` after it.
async fn work_on(engine: &RedisEngine, job: Job, n: u64) {
    let name = JobRef { queue: job.queue.clone(), id: job.id };
    let mut receipt = job.proof();
    if n.is_multiple_of(3) {
        match engine.touch(&name, receipt, SHORT).await.expect("touch is answered") {
            Held::Done(touched) => receipt = touched.receipt,
            _ => return,
        }
    }
    match n % 5 {
        0 => {
            tell("a", job.id);
            let stale = engine.ack(&job.queue, &[(job.id, Some(receipt))]).await.expect("ack is answered");
            if stale.is_empty() {
                tell("A", job.id);
            }
        }
        1 | 2 => {
            tell("r", job.id);
            let delay = Duration::from_millis(n % 2 * 5);
            let release = Release { delay, tries: Tries::Restore, reason: None };
            let released = engine.release(&name, receipt, release).await.expect("release is answered");
            tell(if matches!(released, Held::Done(_)) { "R" } else { "x" }, job.id);
        }
        3 => {
            engine.release(&name, receipt, Release::default()).await.expect("release is answered");
        }
        // Lets the ttr end.
        _ => {}
    }
}

/// The child process, which runs until it is killed. Prints `p` before a publish, `P` after it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn child_under_load() {
    let Ok(addr) = std::env::var(CHILD) else { return };
    let address = RedisAddress { addrs: vec![addr], ..RedisAddress::default() };
    let engine = RedisEngine::connect(address, &PoolName::default_pool()).await.expect("the server is there");
    let (ids, count) = (Arc::new(JobIds::default()), Arc::new(AtomicU64::new(0)));
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..8 {
        let (engine, ids, count) = (engine.clone(), ids.clone(), count.clone());
        tasks.spawn(async move {
            let q = queue("q");
            loop {
                if n == 0 {
                    engine.pump().await.expect("pumped");
                }
                let new = NewJob {
                    tries: NonZeroU16::new(TRIES).expect("not 0"),
                    ttl: None,
                    ..job(&q, ids.make(engine.now(), 0, false), "x")
                };
                let id = new.id;
                tell("p", id);
                engine.publish(vec![new].into()).await.expect("published");
                tell("P", id);
                let jobs = engine.consume(&q.clone().into(), &[SHORT; 4]).await.expect("consumed").jobs;
                jobs.iter().for_each(|job| tell("h", job.id));
                for job in jobs {
                    work_on(&engine, job, count.fetch_add(1, Ordering::Relaxed)).await;
                }
            }
        });
    }
    while tasks.join_next().await.is_some() {}
}

/// The lines printed about one job.
#[derive(Debug, Default)]
struct Told {
    published: bool,
    acking: bool,
    acked: bool,
    deliveries: u16,
    releasing: u16,
    released: u16,
    not_released: u16,
}

/// Runs the child until it has printed `lines` lines, and kills it.
fn run_and_kill(server: &RedisServer, lines: usize, told: &mut BTreeMap<JobId, Told>) {
    let me = std::env::current_exe().expect("a test knows its own path");
    let mut child = Command::new(me)
        .args(["--exact", "kill::child_under_load", "--nocapture"])
        .env(CHILD, server.addr())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the child starts");
    let mut out = BufReader::new(child.stdout.take().expect("it is piped"));
    let (mut line, mut seen) = (String::new(), 0);
    while out.read_line(&mut line).expect("the pipe can be read") > 0 {
        if let Some((what, id)) = line.trim_end().split_once(' ')
            && let Some(id) = JobId::parse(id).filter(|_| line.ends_with('\n'))
        {
            let job = told.entry(id).or_default();
            match what {
                "P" => job.published = true,
                "a" => job.acking = true,
                "A" => job.acked = true,
                "h" => job.deliveries += 1,
                "r" => job.releasing += 1,
                "R" => job.released += 1,
                "x" => job.not_released += 1,
                _ => {}
            }
            seen += 1;
            if seen == lines {
                child.kill().expect("SIGKILL");
            }
        }
        line.clear();
    }
    child.wait().expect("it was killed");
    assert!(seen >= lines, "the child ended by itself after {seen} lines");
}

#[tokio::test]
async fn kill_9_loses_no_job_and_no_try_of_workers_that_touch_and_release() {
    let server = RedisServer::start();
    let mut told = BTreeMap::new();
    for round in 0..ROUNDS {
        run_and_kill(&server, LINES + 371 * round, &mut told);
    }
    let engine = engine(&server).await;
    let q = queue("q");
    let mut left = BTreeMap::new();
    until("all timers have ended", async || {
        while engine.pump().await.expect("pumped").moved > 0 {}
        engine.stats().await.expect("stats").timers == 0
    })
    .await;
    loop {
        let consumed = engine.consume(&q.clone().into(), &[TTR; 100]).await.expect("consumed");
        if consumed.jobs.is_empty() && !consumed.more {
            break;
        }
        for job in consumed.jobs {
            assert!(left.insert(job.id, job.tries_left).is_none(), "{} is there twice", job.id);
        }
    }
    let (mut acked, mut restored) = (0, 0);
    for (id, job) in &told {
        let there = left.get(id);
        if job.acked {
            assert_eq!(there, None, "{id} was acked: {job:?}");
            acked += 1;
        } else if job.published && !job.acking {
            assert!(there.is_some(), "{id} is lost: {job:?}");
        }
        let Some(tries_left) = there else { continue };
        // The last try was spent by this test's own delivery.
        let spent = TRIES - tries_left - 1;
        // A kill hides the results of unfinished releases, and at most one delivery of a job per round.
        let unknown = job.releasing - job.released - job.not_released;
        let least = job.deliveries.saturating_sub(job.released + unknown);
        let most = job.deliveries - job.released + ROUNDS as u16;
        assert!((least..=most).contains(&spent), "{id} has spent {spent} of {least} to {most}: {job:?}");
        restored += job.released;
    }
    assert!(acked > 50 && restored > 50 && left.len() > 50, "a load: {acked} {restored} {}", left.len());
}
