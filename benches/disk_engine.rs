//! Throughput and cost of the disk engine: `cargo bench --bench disk_engine [-- SECTION..]`. Sections: publish,
//! everysec, cycle, delayed, large, paced, queues, rest, verbs, list. `DELAYED=10000000` sets the number of jobs that
//! `delayed` stores, `DELAYED_BODY=20` their size in bytes. `full` fills the small disk on which `FULL` names a
//! directory, and drains it. Each section prints thousands of operations a second, processor microseconds per operation
//! (this process, user and system), and bytes on disk. Each does a fixed amount of work. `rest` also waits to see what
//! upkeep leaves on disk, and its cost. `verbs` measures the verbs that lmstfy does not have, `list` publish latency
//! while a list walks through a million jobs.

#[path = "support/disk.rs"]
mod disk;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use disk::{CALLERS, Maker, QUEUES, cpu, disk_mb, many, open, queue, rss_mb, times};
use dormouse::clock::system_now;
use dormouse::engine::disk::{DiskEngine, Sync};
use dormouse::engine::{
    Engine, Held, JobList, OnConflict, Once, Placing, Publication, Release, Released, Tries,
};
use dormouse::job::{Job, JobRef, JobState, NewJob};
use dormouse::name::{IdempotencyKey, JobKey, Queue, QueueName};
use parking_lot::Mutex;

/// Sections measured by default.
const SECTIONS: [&str; 10] =
    ["publish", "everysec", "cycle", "delayed", "large", "paced", "queues", "rest", "verbs", "list"];

/// Returns the free space on a directory's disk in MB.
fn free_mb(path: &Path) -> u64 {
    let disk = rustix::fs::statvfs(path).expect("the disk says how much is free");
    (disk.f_bavail * disk.f_frsize) >> 20
}

/// Times `ops` operations and prints the line.
async fn measure(name: &str, path: &Path, ops: u64, work: impl Future<Output = ()>) {
    let (wall, before) = (Instant::now(), cpu());
    work.await;
    let (wall, used) = (wall.elapsed().as_secs_f64(), (cpu() - before).as_secs_f64());
    let (kops, us) = (ops as f64 / wall / 1e3, used * 1e6 / ops as f64);
    println!(
        "{name:<28} {kops:>8.1} kop/s {us:>7.2} us CPU/op   {:>5} MB disk {:>5} MB RSS",
        disk_mb(path),
        rss_mb()
    );
}

/// Publishes a job, consumes one from the same queue and acks it, `ops` times.
fn cycles(engine: &Arc<DiskEngine>, maker: Arc<Maker>, ops: u64) -> impl Future<Output = ()> + use<> {
    let engine = engine.clone();
    many(ops, move |n| {
        let (engine, maker) = (engine.clone(), maker.clone());
        async move {
            engine.publish(vec![maker.job(n, Duration::ZERO)].into()).await.expect("published");
            let ttr = Duration::from_secs(600);
            let jobs = engine.consume(&queue(n).into(), &[ttr]).await.expect("consumed").jobs;
            for job in jobs {
                engine.ack(&job.queue, &[(job.id, None)]).await.expect("acked");
            }
        }
    })
}

/// Cycles per second in the section `paced`, and its seconds.
const PACE: u64 = 10_000;
const PACED: u64 = 20;

/// Publishes, consumes and acks [`PACE`] jobs a second, and prints the latency of publishes and consumes.
async fn paced(sync: Sync) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let engine = open(dir.path(), sync);
    let maker = Arc::new(Maker::new(100));
    let tasks: Vec<_> = (0..CALLERS)
        .map(|caller| {
            let (engine, maker) = (engine.clone(), maker.clone());
            tokio::spawn(async move {
                let (mut publishes, mut consumes) = (times(), times());
                let mut ticks = tokio::time::interval(Duration::from_secs(CALLERS as u64) / PACE as u32);
                for n in 0..(PACE * PACED) as usize / CALLERS {
                    ticks.tick().await;
                    let began = Instant::now();
                    engine
                        .publish(vec![maker.job(caller + n, Duration::ZERO)].into())
                        .await
                        .expect("published");
                    publishes.saturating_record(began.elapsed().as_micros() as u64);
                    let began = Instant::now();
                    let ttr = Duration::from_secs(600);
                    let jobs =
                        engine.consume(&queue(caller + n).into(), &[ttr]).await.expect("consumed").jobs;
                    consumes.saturating_record(began.elapsed().as_micros() as u64);
                    for job in jobs {
                        engine.ack(&job.queue, &[(job.id, None)]).await.expect("acked");
                    }
                }
                (publishes, consumes)
            })
        })
        .collect();
    let began = Instant::now();
    let (mut publishes, mut consumes) = (times(), times());
    for task in tasks {
        let (publish, consume) = task.await.expect("no caller panics");
        publishes.add(publish).expect("the same digits");
        consumes.add(consume).expect("the same digits");
    }
    println!("paced: {PACE} cycles/s, {sync:?}: took {:?} of {PACED} s", began.elapsed());
    for (name, times) in [("publish", publishes), ("consume", consumes)] {
        let ms = |us: u64| us as f64 / 1000.0;
        let [half, most, worst] =
            [times.value_at_quantile(0.5), times.value_at_quantile(0.99), times.max()].map(ms);
        println!("  {name}: p50 {half:.2} ms, p99 {most:.2} ms, worst {worst:.1} ms");
    }
    engine.close().await;
}

/// Returns the number of jobs in the section `delayed`.
fn delayed_jobs() -> u64 {
    std::env::var("DELAYED").ok().and_then(|text| text.parse().ok()).unwrap_or(5_000_000)
}

/// Returns the size of their bodies in bytes.
fn delayed_body() -> usize {
    std::env::var("DELAYED_BODY").ok().and_then(|text| text.parse().ok()).unwrap_or(100)
}

/// Number of queues in the section `queues`, and of jobs in each.
const BACKLOGS: usize = 10_000;
const BACKLOG: usize = 512;

/// Argument with which this program runs as a [`Filler`]'s child.
const FILL: &str = "--fill";

/// A child process that runs this program and can be killed: it fills a directory with delayed jobs.
struct Filler(std::process::Child);

impl Filler {
    fn start(path: &Path, due: u64) -> Filler {
        let program = std::env::current_exe().expect("this program is a file");
        let mut command = std::process::Command::new(program);
        command.arg(FILL).arg(path).arg(due.to_string()).stdout(std::process::Stdio::piped());
        Filler(command.spawn().expect("this program runs"))
    }

    /// Waits until the child has finished its measurement, and prints its output.
    fn filled(&mut self) {
        let mut line = String::new();
        let said = self.0.stdout.take().expect("piped");
        BufReader::new(said).read_line(&mut line).expect("the child says a line");
        print!("{line}");
    }

    fn kill(mut self) {
        self.0.kill().expect("it runs until it is killed");
        self.0.wait().expect("a child can be waited for");
    }
}

impl Drop for Filler {
    fn drop(&mut self) {
        // Only needed if the parent panics.
        let _ = self.0.kill();
    }
}

/// Runs in the child: fills the directory, reports it, and waits to be killed.
async fn fill(path: &Path, due: u64) {
    let engine = open(path, Sync::EverySecond);
    let maker = Maker::new(delayed_body());
    let work = async {
        for n in 0..delayed_jobs() / 64 {
            let delay = Duration::from_millis(due.saturating_sub(system_now()).max(1));
            let batch = (0..64).map(|i| maker.job(n as usize + i, delay)).collect::<Vec<_>>();
            engine.publish(batch.into()).await.expect("published");
        }
    };
    measure("delayed: publish by 64", path, delayed_jobs(), work).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
}

async fn publish(engine: &Arc<DiskEngine>, path: &Path, name: &str, ops: u64, delay: Duration) {
    let maker = Arc::new(Maker::new(100));
    let e = engine.clone();
    let work = many(ops, move |n| {
        let (engine, maker) = (e.clone(), maker.clone());
        async move { drop(engine.publish(vec![maker.job(n, delay)].into()).await.expect("published")) }
    });
    measure(name, path, ops, work).await;
}

/// Consumes and acks `jobs`, `count` at a time.
async fn drain(engine: &Arc<DiskEngine>, path: &Path, name: &str, jobs: u64, count: u16) {
    let left = Arc::new(AtomicU64::new(jobs));
    let tasks = (0..CALLERS).map(|n| {
        let (engine, left) = (engine.clone(), left.clone());
        async move {
            let ttrs = vec![Duration::from_secs(600); count.into()];
            let mut empty = 0;
            for at in n.. {
                if left.load(Ordering::Relaxed) == 0 || empty > QUEUES {
                    return;
                }
                let jobs = engine.consume(&queue(at).into(), &ttrs).await.expect("consumed").jobs;
                empty = if jobs.is_empty() { empty + 1 } else { 0 };
                for job in jobs {
                    engine.ack(&job.queue, &[(job.id, None)]).await.expect("acked");
                    left.fetch_sub(1, Ordering::Relaxed);
                }
            }
        }
    });
    let tasks: Vec<_> = tasks.collect();
    let work = async {
        let tasks: Vec<_> = tasks.into_iter().map(tokio::spawn).collect();
        for task in tasks {
            task.await.expect("no caller panics");
        }
    };
    measure(name, path, jobs, work).await;
    assert_eq!(left.load(Ordering::Relaxed), 0, "every job was handed out and acked");
}

/// Publishes, consumes and acks `jobs` jobs of `body` bytes with a tenth of them in the queues, drains these, and then
/// prints the disk usage for a minute.
async fn rest(jobs: u64, body: usize) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path();
    let engine = open(path, Sync::Always);
    let maker = Arc::new(Maker::new(body));
    let backlog = jobs / 10;
    for n in (0..backlog as usize).step_by(50) {
        let batch = (n..n + 50).map(|n| maker.job(n, Duration::ZERO)).collect::<Vec<_>>();
        engine.publish(batch.into()).await.expect("published");
    }
    let work = cycles(&engine, maker, jobs - backlog);
    measure(&format!("rest: {jobs} of {body} bytes"), path, jobs - backlog, work).await;
    drain(&engine, path, "rest: the backlog", backlog, 16).await;
    let before = cpu();
    for _ in 0..6 {
        tokio::time::sleep(Duration::from_secs(10)).await;
        println!("  at rest: {} MB disk", disk_mb(path));
    }
    println!("  {:?} CPU meanwhile", cpu() - before);
    engine.close().await;
    println!("  closed: {} MB disk", disk_mb(path));
}

/// Returns a publication of one job.
fn publication(job: NewJob, key: Option<&str>, once: Option<&str>) -> Publication {
    let key = key.and_then(JobKey::parse).map(|key| (key, OnConflict::Keep));
    let once = once.and_then(|name| IdempotencyKey::new(name.as_bytes()));
    let once = once.map(|key| Once::request(key, [1; 16]));
    Publication { jobs: vec![Placing { job, at: None, key }], replaces: None, once }
}

/// Measures the cost of each verb, compared with the plain ones.
async fn verbs(engine: &Arc<DiskEngine>, path: &Path) {
    const OPS: u64 = 200_000;
    let maker = Arc::new(Maker::new(100));
    publish(engine, path, "verbs: publish", OPS, Duration::ZERO).await;
    for (name, keyed, safe) in [("a key", true, false), ("an idempotency key", false, true)] {
        let (e, maker) = (engine.clone(), maker.clone());
        let work = many(OPS, move |n| {
            let (engine, job) = (e.clone(), maker.job(n, Duration::ZERO));
            async move {
                let name = format!("order-{n}");
                let publication = publication(job, keyed.then_some(&name), safe.then_some(&name));
                engine.publish(publication).await.expect("published");
            }
        });
        measure(&format!("verbs: publish with {name}"), path, OPS, work).await;
    }
    let held = Arc::new(Mutex::new(Vec::new()));
    let (e, all) = (engine.clone(), held.clone());
    let work = many(3 * OPS / 16, move |n| {
        let (engine, held) = (e.clone(), all.clone());
        async move {
            let ttrs = [Duration::from_secs(3600); 16];
            let jobs = engine.consume(&queue(n).into(), &ttrs).await.expect("consumed").jobs;
            held.lock().extend(jobs);
        }
    });
    measure("verbs: consume by 16", path, 3 * OPS, work).await;
    let held: Arc<Vec<Job>> = Arc::new(std::mem::take(&mut *held.lock()));
    let name = |job: &Job| JobRef { queue: job.queue.clone(), id: job.id };
    let share = held.len() as u64 / 6;
    let at = move |n: usize, part: u64| n + (part * share) as usize;
    let (e, h) = (engine.clone(), held.clone());
    let work = many(share, move |n| {
        let (engine, held) = (e.clone(), h.clone());
        async move {
            let job = &held[at(n, 0)];
            engine.ack(&job.queue, &[(job.id, None)]).await.expect("acked");
        }
    });
    measure("verbs: ack", path, share, work).await;
    let (e, h) = (engine.clone(), held.clone());
    let work = many(share / 100, move |n| {
        let (engine, held) = (e.clone(), h.clone());
        async move {
            // The acks are grouped by queue, since a call acks jobs of one queue.
            let hundred = &held[at(100 * n, 1)..at(100 * n + 100, 1)];
            for of in hundred.chunk_by(|a, b| a.queue == b.queue) {
                let jobs: Vec<_> = of.iter().map(|job| (job.id, Some(job.proof()))).collect();
                engine.ack(&of[0].queue, &jobs).await.expect("acked");
            }
        }
    });
    measure("verbs: ack with a receipt, of 100 (per job)", path, share, work).await;
    let (e, h) = (engine.clone(), held.clone());
    let work = many(share, move |n| {
        let (engine, job) = (e.clone(), h[at(n, 2)].clone());
        async move {
            let touched = engine.touch(&name(&job), job.proof(), Duration::from_secs(900)).await;
            assert!(matches!(touched, Ok(Held::Done(_))), "it is held: {touched:?}");
        }
    });
    measure("verbs: touch", path, share, work).await;
    for (part, what, delay) in
        [(3, "release", Duration::ZERO), (4, "release for later", Duration::from_secs(900))]
    {
        let (e, h) = (engine.clone(), held.clone());
        let work = many(share, move |n| {
            let (engine, job) = (e.clone(), h[at(n, part)].clone());
            let release = Release { delay, tries: Tries::Restore, reason: None };
            async move {
                let released = engine.release(&name(&job), job.proof(), release).await;
                assert!(matches!(released, Ok(Held::Done(_))), "it is held: {released:?}");
            }
        });
        measure(&format!("verbs: {what}"), path, share, work).await;
    }
    let (e, h) = (engine.clone(), held.clone());
    let work = many(share, move |n| {
        let (engine, job) = (e.clone(), h[at(n, 5)].clone());
        async move {
            let buried = engine.release(&name(&job), job.proof(), Release::bury(None)).await;
            assert!(matches!(buried, Ok(Held::Done(Released::Dead))), "it is held: {buried:?}");
        }
    });
    measure("verbs: bury", path, share, work).await;
}

/// Measures publish latency with and without a concurrent walk by cursor through a million jobs of another queue.
async fn list(engine: &Arc<DiskEngine>, state: JobState) {
    const JOBS: usize = 1_000_000;
    let (maker, q) = (Arc::new(Maker::new(100)), queue(0));
    let delay = if state == JobState::Delayed { Duration::from_secs(3600) } else { Duration::ZERO };
    for n in 0..JOBS / 64 {
        let batch =
            (0..64).map(|i| NewJob { queue: q.clone(), ..maker.job(n * 64 + i, delay) }).collect::<Vec<_>>();
        engine.publish(batch.into()).await.expect("published");
    }
    let took = Arc::new(Mutex::new(Vec::new()));
    let publishing = |ops: u64| {
        let (engine, maker, took) = (engine.clone(), maker.clone(), took.clone());
        many(ops, move |n| {
            let (engine, took) = (engine.clone(), took.clone());
            let job = NewJob { queue: queue(1), ..maker.job(n, Duration::ZERO) };
            async move {
                let began = Instant::now();
                engine.publish(vec![job].into()).await.expect("published");
                took.lock().push(began.elapsed());
            }
        })
    };
    let show = |what: &str| {
        let mut took = std::mem::take(&mut *took.lock());
        took.sort_unstable();
        let at = |share: f64| took[((took.len() - 1) as f64 * share) as usize];
        println!(
            "list: {} publishes, {what:<32} p50 {:?} p99 {:?} p99.9 {:?} max {:?}",
            took.len(),
            at(0.5),
            at(0.99),
            at(0.999),
            at(1.0)
        );
    };
    publishing(300_000).await;
    show("nobody lists");
    let done = Arc::new(AtomicU64::new(0));
    let walk = tokio::spawn({
        let (engine, q, done) = (engine.clone(), q.clone(), done.clone());
        async move {
            let (began, mut cursor, mut pages, mut jobs, mut longest) =
                (Instant::now(), None, 0, 0, Duration::ZERO);
            loop {
                let asked = Instant::now();
                let list = JobList { state, limit: 100, cursor, bodies: false };
                let page = engine.list_jobs(&q, list).await.expect("listed").expect("its own cursor");
                longest = longest.max(asked.elapsed());
                (pages, jobs, cursor) = (pages + 1, jobs + page.jobs.len(), page.cursor);
                if cursor.is_none() {
                    break;
                }
            }
            done.store(1, Ordering::Relaxed);
            println!(
                "list: {jobs} {state:?} jobs in {pages} pages, {:?}, a page {longest:?} at most",
                began.elapsed()
            );
        }
    });
    while done.load(Ordering::Relaxed) == 0 {
        publishing(10_000).await;
    }
    walk.await.expect("it does not panic");
    show(&format!("a list walks through {state:?} jobs"));
}

async fn section(name: &str) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path();
    match name {
        "publish" | "everysec" => {
            let sync = if name == "publish" { Sync::Always } else { Sync::EverySecond };
            let engine = open(path, sync);
            publish(&engine, path, &format!("{name}: publish 1M"), 1_000_000, Duration::ZERO).await;
            engine.close().await;
            let start = Instant::now();
            let engine = open(path, sync);
            println!("  reopen with 1M ready: {:?}", start.elapsed());
            drain(&engine, path, &format!("{name}: consume+ack 1M"), 1_000_000, 16).await;
            for _ in 0..40 {
                tokio::time::sleep(Duration::from_millis(500)).await;
                if disk_mb(path) < 100 {
                    break;
                }
            }
            println!("  after upkeep: {} MB disk, {} MB RSS", disk_mb(path), rss_mb());
            engine.close().await;
        }
        "cycle" => {
            for sync in [Sync::Always, Sync::EverySecond] {
                let dir = tempfile::tempdir().expect("a temporary directory");
                let engine = open(dir.path(), sync);
                let work = cycles(&engine, Arc::new(Maker::new(100)), 300_000);
                measure(&format!("cycle: 300k {sync:?}"), dir.path(), 300_000, work).await;
                engine.close().await;
            }
        }
        "delayed" => {
            let jobs = delayed_jobs() / 64 * 64;
            let due = system_now() + 60_000 + jobs / 100;
            let mut filler = Filler::start(path, due);
            filler.filled();
            // Killed without a clean shutdown, so the log is replayed.
            filler.kill();
            let start = Instant::now();
            let engine = open(path, Sync::EverySecond);
            println!(
                "  reopen with {jobs} delayed after kill -9: {:?}, {} MB RSS",
                start.elapsed(),
                rss_mb()
            );
            let stats = engine.stats().await.expect("figures");
            assert_eq!(stats.timers, jobs, "every job that was answered is there");
            engine.close().await;
            let start = Instant::now();
            let engine = open(path, Sync::EverySecond);
            println!(
                "  reopen with {jobs} delayed after a close: {:?}, {} MB RSS",
                start.elapsed(),
                rss_mb()
            );
            let wait = due.saturating_sub(system_now()) + 10;
            tokio::time::sleep(Duration::from_millis(wait)).await;
            let work = async { while engine.pump().await.expect("pumped").moved > 0 {} };
            measure("delayed: pump what is due", path, jobs, work).await;
            let left = engine.stats().await.expect("figures").timers;
            assert_eq!(left, 0, "all were due");
            engine.close().await;
        }
        "queues" => {
            let engine = open(path, Sync::EverySecond);
            let maker = Arc::new(Maker::new(100));
            println!("  empty: {} MB RSS", rss_mb());
            let e = engine.clone();
            // In rotation, as producers of many queues do.
            let work = many((BACKLOGS * BACKLOG / 64) as u64, move |n| {
                let (engine, maker) = (e.clone(), maker.clone());
                async move {
                    let name = QueueName::parse(&format!("backlog-{}", n % BACKLOGS))
                        .expect("letters, a dash and digits");
                    let queue = Queue { namespace: queue(0).namespace, name };
                    let job = || NewJob { queue: queue.clone(), ..maker.job(0, Duration::ZERO) };
                    engine
                        .publish((0..64).map(|_| job()).collect::<Vec<_>>().into())
                        .await
                        .expect("published");
                }
            });
            measure("queues: publish by 64", path, (BACKLOGS * BACKLOG) as u64, work).await;
            tokio::time::sleep(Duration::from_secs(10)).await;
            println!("  {BACKLOGS} queues with {BACKLOG} ready jobs each: {} MB RSS", rss_mb());
            engine.close().await;
            let start = Instant::now();
            let engine = open(path, Sync::EverySecond);
            println!("  reopen after a close: {:?}, {} MB RSS", start.elapsed(), rss_mb());
            engine.close().await;
        }
        "full" => {
            let Some(dir) = std::env::var_os("FULL").map(std::path::PathBuf::from) else {
                return println!("full: FULL should name an empty directory on a disk of its own");
            };
            let engine = open(&dir, Sync::Always);
            let maker = Maker::new(100);
            let began = Instant::now();
            let mut jobs = 0;
            let refused = loop {
                let batch = (0..64).map(|i| maker.job(jobs as usize + i, Duration::ZERO)).collect::<Vec<_>>();
                match engine.publish(batch.into()).await {
                    Ok(_) => jobs += 64,
                    Err(e) => break e,
                }
            };
            println!(
                "  refused after {jobs} jobs and {:?}: {refused}; {} MB free",
                began.elapsed(),
                free_mb(&dir)
            );
            let lowest = Arc::new(AtomicU64::new(u64::MAX));
            let (seen, watched) = (lowest.clone(), dir.clone());
            let watch = tokio::spawn(async move {
                loop {
                    seen.fetch_min(free_mb(&watched), Ordering::Relaxed);
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            });
            drain(&engine, &dir, "full: consume+ack", jobs, 16).await;
            println!(
                "  drained; at least {} MB were free, {} MB are",
                lowest.load(Ordering::Relaxed),
                free_mb(&dir)
            );
            let began = Instant::now();
            while engine.publish(vec![maker.job(0, Duration::ZERO)].into()).await.is_err() {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            println!("  a publish is taken {:?} later, with {} MB free", began.elapsed(), free_mb(&dir));
            watch.abort();
            engine.close().await;
        }
        "paced" => {
            for sync in [Sync::Always, Sync::EverySecond] {
                paced(sync).await;
            }
        }
        "large" => {
            let engine = open(path, Sync::Always);
            let maker = Maker::new(1 << 20);
            let work = async {
                for n in 0..4 {
                    let batch = (0..64).map(|i| maker.job(n + i, Duration::ZERO)).collect::<Vec<_>>();
                    engine.publish(batch.into()).await.expect("published");
                }
            };
            measure("large: publish 256 of 1 MiB", path, 256, work).await;
            drain(&engine, path, "large: consume+ack", 256, 1).await;
            engine.close().await;
        }
        "rest" => {
            rest(1_000_000, 100).await;
            rest(20_000, 16 << 10).await;
        }
        "verbs" => {
            let engine = open(path, Sync::Always);
            verbs(&engine, path).await;
            engine.close().await;
        }
        "list" => {
            for state in [JobState::Ready, JobState::Delayed] {
                let dir = tempfile::tempdir().expect("a temporary directory");
                let engine = open(dir.path(), Sync::Always);
                list(&engine, state).await;
                engine.close().await;
            }
        }
        other => println!("no section {other}: {}", SECTIONS.join(", ")),
    }
}

fn main() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let args: Vec<String> = std::env::args().collect();
    if let [_, fill_it, path, due] = &args[..]
        && fill_it == FILL
    {
        return runtime.block_on(fill(Path::new(path), due.parse().expect("a number")));
    }
    let asked: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with("--")).collect();
    if std::env::args().any(|arg| arg == "--list") {
        return;
    }
    let sections = if asked.is_empty() { SECTIONS.map(str::to_owned).to_vec() } else { asked };
    for name in sections {
        runtime.block_on(section(&name));
    }
}
