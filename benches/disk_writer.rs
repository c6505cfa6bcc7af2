//! Cost of the disk engine's writer, waiting times it causes, and the time to open a directory: `cargo bench --bench
//! disk_writer [-- SECTION..]`. Calls the engine only, so all stores are measured alike.
//!
//! - `stalls`: 32 callers publish, consume and ack as fast as possible for `STALLS_SECONDS=40` with a million delayed
//!   jobs, with each kind of sync: latency, processor time by thread, bytes written.
//! - `opening`: `DELAYED=1000000` jobs of `DELAYED_BODY=20` bytes over a day, closed and opened; 100,000 more, killed
//!   and opened: seconds, bytes on disk, memory.

#[path = "support/disk.rs"]
mod disk;

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use disk::{Maker, cpu, disk_bytes, many, mixed, open, queue, rss_mb, threads, times, written};
use dormouse::engine::Engine;
use dormouse::engine::disk::Sync;
use dormouse::job::NewJob;
use hdrhistogram::Histogram;
use rustix::process::{Signal, getpid, kill_process};

/// Number of callers in `stalls`.
const LOAD: usize = 32;
/// Number of delayed jobs beside them.
const BACKLOG: u64 = 1_000_000;
const KINDS: [&str; 3] = ["publish", "consume", "ack"];
/// Seconds per window. The maximum of each window is reported.
const WINDOW: u64 = 10;

/// Returns a number from the environment.
fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).map_or(otherwise, |text| text.parse().expect("a number"))
}

/// Returns a job with a unique body, so that compression does not help.
fn job(maker: &Maker, n: usize, body: usize, delay: Duration) -> NewJob {
    let words = (0..body.div_ceil(8)).flat_map(|i| mixed((n * 64 + i) as u64).to_le_bytes());
    let ttl = Some(Duration::from_secs(2 * 86400));
    NewJob { body: words.take(body).collect::<Vec<u8>>().into(), ttl, ..maker.job(n, delay) }
}

/// Publishes jobs in bulks of 64, numbered from `first` on. They are due between an hour and 25 hours from now.
async fn delayed(engine: &Arc<dyn Engine>, first: u64, jobs: u64, body: usize) {
    let (engine, maker) = (engine.clone(), Arc::new(Maker::new(0)));
    let bulk = move |n: usize| {
        let from = first + 64 * n as u64;
        let delay = |n| Duration::from_millis(3_600_000 + mixed(n) % 86_400_000);
        let numbers = from..(from + 64).min(first + jobs);
        let batch: Vec<_> = numbers.map(|n| job(&maker, n as usize, body, delay(n))).collect();
        let engine = engine.clone();
        async move { drop(engine.publish(batch.into()).await.expect("published")) }
    };
    many(jobs.div_ceil(64), bulk).await;
}

/// Latency of each kind of call, and its maximum per [`WINDOW`], in microseconds.
struct Met {
    times: [Histogram<u64>; 3],
    worst: Vec<[u64; 3]>,
}

impl Met {
    fn new(seconds: u64) -> Met {
        Met { times: [times(), times(), times()], worst: vec![[0; 3]; seconds.div_ceil(WINDOW) as usize] }
    }

    /// Waits for a call, and records it in the window of its start.
    async fn timed<T>(&mut self, kind: usize, began: Instant, call: impl Future<Output = T>) -> T {
        let (asked, window) = (Instant::now(), (began.elapsed().as_secs() / WINDOW) as usize);
        let answer = call.await;
        let took = asked.elapsed().as_micros() as u64;
        self.times[kind].saturating_record(took);
        let window = window.min(self.worst.len() - 1);
        self.worst[window][kind] = self.worst[window][kind].max(took);
        answer
    }

    fn add(&mut self, other: &Met) {
        for kind in 0..3 {
            self.times[kind].add(&other.times[kind]).expect("the same digits");
            for (all, one) in self.worst.iter_mut().zip(&other.worst) {
                all[kind] = all[kind].max(one[kind]);
            }
        }
    }
}

/// Runs one caller of the load.
async fn cycles(engine: Arc<dyn Engine>, caller: usize, began: Instant, seconds: u64) -> Met {
    let (maker, queue, mut met) = (Maker::new(0), queue(caller), Met::new(seconds));
    let mut n = caller;
    while began.elapsed().as_secs() < seconds {
        n += LOAD;
        let job = NewJob { queue: queue.clone(), ..job(&maker, n, 100, Duration::ZERO) };
        met.timed(0, began, engine.publish(vec![job].into())).await.expect("published");
        let (list, ttr) = (queue.clone().into(), [Duration::from_secs(600)]);
        let jobs = met.timed(1, began, engine.consume(&list, &ttr)).await.expect("consumed").jobs;
        assert_eq!(jobs.len(), 1, "each caller leaves a job for each that it takes");
        met.timed(2, began, engine.ack(&queue, &[(jobs[0].id, None)])).await.expect("acked");
    }
    met
}

async fn stalls(sync: Sync) {
    let (dir, seconds) = (tempfile::tempdir().expect("a temporary directory"), number("STALLS_SECONDS", 40));
    let engine: Arc<dyn Engine> = open(dir.path(), sync);
    delayed(&engine, 0, BACKLOG, 100).await;
    let (before, used, io, began) = (threads(), cpu(), written(), Instant::now());
    let callers = (0..LOAD).map(|n| tokio::spawn(cycles(engine.clone(), n, began, seconds)));
    let mut met = Met::new(seconds);
    for caller in callers.collect::<Vec<_>>() {
        met.add(&caller.await.expect("no caller panics"));
    }
    let (wall, used, after, io_after) = (began.elapsed(), cpu() - used, threads(), written());
    let calls: u64 = met.times.iter().map(|times| times.len()).sum();
    let (each, rate) = (|us: f64| us / calls as f64, calls as f64 / wall.as_secs_f64());
    println!("stalls: {sync:?}, {calls} calls in {wall:.1?}, {rate:.0} a second");
    let ms = |us: u64| us as f64 / 1000.0;
    for (kind, name) in KINDS.iter().enumerate() {
        let at = |share| ms(met.times[kind].value_at_quantile(share));
        let worst: Vec<_> = met.worst.iter().map(|worst| format!("{:.1}", ms(worst[kind]))).collect();
        let ([p50, p99, p9999, max], worst) = ([0.5, 0.99, 0.9999, 1.0].map(at), worst.join(" "));
        print!("  {name:<8} p50 {p50:.2} p99 {p99:.2} p99.99 {p9999:.1} worst {max:.1} ms; ");
        println!("of each {WINDOW} s: {worst}");
    }
    println!("  {:.2} us of processor a call; by thread:", each(used.as_secs_f64() * 1e6));
    for (name, ticks) in after {
        let ticks = ticks.saturating_sub(before.get(&name).copied().unwrap_or(0));
        println!("    {name:<16} {:.2}", each(ticks as f64 * 1e4));
    }
    let [given, reached] = [0, 1].map(|of| each((io_after[of] - io[of]) as f64));
    println!("  {given:.0} bytes written a call, {reached:.0} of a disk; {} MB RSS", rss_mb());
    engine.close().await;
}

/// Argument with which this program runs as a child of `opening`.
const CHILD: &str = "--opening";

/// Runs in a child: opens a directory with `had` jobs, publishes `more`, and closes it or is killed.
async fn child(path: &Path, had: u64, more: u64, killed: bool) {
    let began = Instant::now();
    let engine: Arc<dyn Engine> = open(path, Sync::EverySecond);
    let opened = began.elapsed();
    assert_eq!(engine.stats().await.expect("figures").timers, had, "every job that was answered is there");
    println!("  opened with {had}: {opened:.2?}, counted {:.2?}, {} MB RSS", began.elapsed(), rss_mb());
    let show = |what: &str, took: Duration| {
        let bytes = disk_bytes(path) / (had + more);
        println!("  {what}: {took:.2?}, {bytes} bytes of disk a job, {} MB RSS", rss_mb());
    };
    if more > 0 {
        let began = Instant::now();
        delayed(&engine, had, more, number("DELAYED_BODY", 20) as usize).await;
        show(&format!("published {more}"), began.elapsed());
    }
    if killed {
        kill_process(getpid(), Signal::KILL).expect("a process may kill itself");
    }
    let began = Instant::now();
    engine.close().await;
    show("closed", began.elapsed());
}

fn opening() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let (jobs, more) = (number("DELAYED", 1_000_000), 100_000);
    println!("opening: {jobs} delayed jobs of {} bytes", number("DELAYED_BODY", 20));
    for (had, more, killed) in [(0, jobs, false), (jobs, more, true), (jobs + more, 0, false)] {
        let mut command = Command::new(std::env::current_exe().expect("this program is a file"));
        command.arg(CHILD).arg(dir.path()).args([had, more, u64::from(killed)].map(|n| n.to_string()));
        let ended = command.status().expect("this program runs");
        assert_eq!(ended.success(), !killed, "it ends as it was told to: {ended}");
    }
}

fn main() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let [child_it, path, had, more, killed] = &args[..]
        && child_it == CHILD
    {
        let [had, more, killed] = [had, more, killed].map(|n| n.parse::<u64>().expect("a number"));
        return runtime.block_on(child(Path::new(path), had, more, killed == 1));
    }
    if args.iter().any(|arg| arg == "--list") {
        return;
    }
    let is_asked =
        |name: &str| args.iter().all(|arg| arg.starts_with("--")) || args.iter().any(|arg| arg == name);
    if is_asked("stalls") {
        for sync in [Sync::Always, Sync::EverySecond] {
            runtime.block_on(stalls(sync));
        }
    }
    if is_asked("opening") {
        opening();
    }
}
