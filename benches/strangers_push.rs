//! Effect on other tenants while one tenant's pushes use all they can: very many endpoints, hanging names, slow
//! endpoints, a cycle of `on_dead`. One server on a disk. `--seconds 600` runs each attack for ten minutes.
//! docs/benchmarks.md says how to run it.

mod support;

use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use support::client::Target;
use support::fake_names::FakeNames;
use support::report::Bench;
use support::setup::{Server, Setup, Store};
use support::{Outcome, proc, report};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{sleep, sleep_until};

/// Allows push to call this machine.
const LOCAL: (&str, &str) = ("DORMOUSE_PUSH_ALLOW", "127.0.0.0/8");
/// Open-file limit of a server with very many endpoints.
const FILES: usize = 1024;
const ENDPOINTS: usize = 150;
const NAMES: usize = 60;
const SLOW: usize = 6;
/// Requests of each kind that the tenant sends per second.
const PER_SECOND: f64 = 20.0;
/// Maximum p99 of the tenant's requests in milliseconds. A delayed tenant takes seconds.
const P99: f64 = 100.0;

fn main() -> ExitCode {
    report::run(async |bench| {
        let time = Duration::from_secs_f64(bench.number("--seconds").unwrap_or(20.0));
        let longest = time * 2 + Duration::from_secs(120);
        let name = format!("endpoints: {ENDPOINTS} that keep connections, {FILES} open files");
        bench.long_section(&name, longest, Box::pin(endpoints(bench, time))).await;
        let name = format!("names: {NAMES} that hang or are unknown");
        bench.long_section(&name, longest, Box::pin(names(bench, time))).await;
        let name = format!("slow: {SLOW} endpoints that answer after a minute, 1,000 at a time each");
        bench.long_section(&name, longest, Box::pin(slow(bench, time))).await;
        bench
            .long_section("circle: on_dead from one queue to another and back", longest, circle(bench, time))
            .await;
    })
}

/// Behavior of an endpoint: its delay and its reply.
#[derive(Clone, Copy)]
struct Does {
    takes: Duration,
    says: &'static [u8],
}

const OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
const NEVER: &[u8] = b"HTTP/1.1 422 No\r\nDormouse-Retry: no\r\nContent-Length: 0\r\n\r\n";

/// Starts an endpoint, which serves until the set is dropped.
async fn endpoint(serving: &mut JoinSet<()>, at: &str, does: Does) -> Outcome<SocketAddr> {
    let listener = TcpListener::bind(at).await?;
    let addr = listener.local_addr()?;
    serving.spawn(async move {
        let mut talks = JoinSet::new();
        while let Ok((stream, _)) = listener.accept().await {
            talks.spawn(talk(stream, does));
            while talks.try_join_next().is_some() {}
        }
    });
    Ok(addr)
}

async fn talk(mut stream: TcpStream, does: Does) -> Option<()> {
    let mut read = Vec::with_capacity(4096);
    loop {
        if stream.read_buf(&mut read).await.ok()? == 0 {
            return None;
        }
        while let Some(used) = whole(&read) {
            read.drain(..used);
            sleep(does.takes).await;
            stream.write_all(does.says).await.ok()?;
        }
    }
}

/// Returns the length of the first request; `None` if it is incomplete.
fn whole(read: &[u8]) -> Option<usize> {
    let end = read.windows(4).position(|four| four == b"\r\n\r\n")? + 4;
    let head = std::str::from_utf8(&read[..end]).ok()?.to_ascii_lowercase();
    let length =
        head.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse::<usize>().ok())?;
    (read.len() >= end + length).then_some(end + length)
}

/// Pushes a queue of the attacker. Returns the status.
async fn push(server: &Server, queue: &str, url: &str, more: &str) -> Outcome<u16> {
    let setting = format!(r#"{{"url":"{url}"{more}}}"#);
    let request = server.admin.put(&format!("/push/bench/{queue}"), setting.as_bytes());
    Ok(server.admin.connect().await?.call(&request).await?.status)
}

/// Publishes to the attacker's queues in turn, `each` jobs of `size` bytes at a time, `per_second` times a second,
/// until dropped. Continues when the pool refuses.
async fn flood(api: Target, queues: Vec<String>, each: usize, size: usize, per_second: f64) -> Outcome {
    let mut client = api.connect().await?;
    let bodies = vec!["x".repeat(size); each];
    let bulk = serde_json::to_vec(&bodies)?;
    let began = Instant::now();
    for (turn, queue) in queues.iter().cycle().enumerate() {
        sleep_until((began + Duration::from_secs_f64(turn as f64 / per_second)).into()).await;
        let request = api.put(&format!("/api/bench/{queue}/bulk?tries=3&ttl=120"), &bulk);
        client.call(&request).await?;
    }
    Ok(())
}

/// Results of the tenant: milliseconds of each request, by kind.
type Seen = Arc<Mutex<[Vec<f64>; 3]>>;
const KINDS: [&str; 3] = ["publish", "consume", "list"];

/// Sends requests of one kind at an even rate. A failed request counts as infinitely long.
async fn tenant(target: Target, kind: usize, seen: Seen) {
    let request = match kind {
        0 => target.put("/api/tenant/work?ttl=60", b"a job of somebody else"),
        1 => target.bare("GET", "/api/tenant/work?ttr=60"),
        _ => target.bare("GET", "/api/tenant/work/jobs?limit=20"),
    };
    let (began, mut client) = (Instant::now(), target.connect().await.ok());
    for turn in 0.. {
        sleep_until((began + Duration::from_secs_f64(f64::from(turn) / PER_SECOND)).into()).await;
        let asked = Instant::now();
        let answer = match &mut client {
            Some(client) => client.call(&request).await.ok(),
            None => None,
        };
        let good = answer.as_ref().is_some_and(|answer| answer.status < 500);
        let took = asked.elapsed().as_secs_f64() * 1000.0;
        seen.lock()[kind].push(if good { took } else { f64::INFINITY });
        if answer.is_none() {
            client = target.connect().await.ok();
        }
    }
}

/// Maximum resource usage of a server.
#[derive(Clone, Copy, Default)]
struct Worst {
    memory_mb: f64,
    files: usize,
    threads: usize,
    sockets: usize,
}

fn count(path: String, only: &str) -> usize {
    let Ok(entries) = std::fs::read_dir(path) else { return 0 };
    let named = |link: std::io::Result<std::path::PathBuf>| {
        link.is_ok_and(|to| to.to_string_lossy().starts_with(only))
    };
    entries.flatten().filter(|entry| only.is_empty() || named(std::fs::read_link(entry.path()))).count()
}

async fn watch(pid: u32, worst: Arc<Mutex<Worst>>) -> Outcome {
    loop {
        let memory = proc::memory(pid)?.0 / 1024.0;
        let files = count(format!("/proc/{pid}/fd"), "");
        let sockets = count(format!("/proc/{pid}/fd"), "socket");
        let threads = count(format!("/proc/{pid}/task"), "");
        {
            let mut worst = worst.lock();
            worst.memory_mb = worst.memory_mb.max(memory);
            worst.files = worst.files.max(files);
            worst.threads = worst.threads.max(threads);
            worst.sockets = worst.sockets.max(sockets);
        }
        sleep(Duration::from_millis(200)).await;
    }
}

fn percentile(times: &mut [f64], of: f64) -> f64 {
    times.sort_by(f64::total_cmp);
    let at = (times.len() as f64 * of) as usize;
    times.get(at.min(times.len().saturating_sub(1))).copied().unwrap_or(f64::NAN)
}

/// Runs the tenant alone, then during the attack: prints its results and the server's maximum resource usage.
async fn measure(
    bench: &Bench,
    server: &Server,
    time: Duration,
    attack: impl Future<Output = Outcome>,
) -> Outcome {
    let request = server.admin.bare("POST", "/token/tenant?description=tenant");
    let made = server.admin.connect().await?.expect(201, &request).await?;
    let made: serde_json::Value = serde_json::from_slice(&made.body)?;
    let target = Target::new(server.api.addr, Some(made["token"].as_str().ok_or("a token")?));
    let (seen, worst) = (Seen::default(), Arc::new(Mutex::new(Worst::default())));
    let mut tasks = JoinSet::new();
    for kind in 0..KINDS.len() {
        tasks.spawn(tenant(target.clone(), kind, seen.clone()));
    }
    let (pid, watched) = (server.pid(), worst.clone());
    tasks.spawn(async move { drop(watch(pid, watched).await) });
    sleep((time / 4).clamp(Duration::from_secs(2), Duration::from_secs(30))).await;
    let mut before = std::mem::take(&mut *seen.lock());
    let calm = std::mem::take(&mut *worst.lock());
    let attacked = server.push_attempts().await?;
    tokio::select! {
        ended = attack => ended?,
        () = sleep(time) => {}
    }
    let mut during = std::mem::take(&mut *seen.lock());
    for (kind, (before, during)) in KINDS.iter().zip(before.iter_mut().zip(&mut during)) {
        let failed = during.iter().filter(|took| took.is_infinite()).count();
        bench.figure(&format!("{kind} before: p50"), percentile(before, 0.5), "ms");
        bench.figure(&format!("{kind} before: p99"), percentile(before, 0.99), "ms");
        bench.figure(&format!("{kind} during: p50"), percentile(during, 0.5), "ms");
        bench.at_most(&format!("{kind} during: p99"), percentile(during, 0.99), P99, "ms");
        bench.none(&format!("{kind} during: failed"), failed, during.len());
    }
    let worst = *worst.lock();
    bench.figure("attempts of the attack", server.push_attempts().await? - attacked, "");
    for (name, before, worst) in [
        ("memory", calm.memory_mb, worst.memory_mb),
        ("open files", calm.files as f64, worst.files as f64),
        ("… of them sockets", calm.sockets as f64, worst.sockets as f64),
        ("threads", calm.threads as f64, worst.threads as f64),
    ] {
        let unit = if name == "memory" { "MB" } else { "" };
        bench.figure(&format!("{name} before"), before, unit);
        bench.figure(&format!("{name} at the worst"), worst, unit);
    }
    Ok(())
}

async fn endpoints(bench: &Bench, time: Duration) -> Outcome {
    let setup = Setup::with_open_files(FILES, &[LOCAL]).await?;
    let (server, mut serving, mut queues) = (setup.first(), JoinSet::new(), Vec::new());
    for n in 0..ENDPOINTS {
        let does = Does { takes: Duration::from_millis(20), says: OK };
        let addr = endpoint(&mut serving, &format!("127.0.0.{}:0", 2 + n % 250), does).await?;
        push(server, &format!("a{n}"), &format!("http://{addr}/"), r#","concurrency":100"#).await?;
        queues.push(format!("a{n}"));
    }
    measure(bench, server, time, flood(server.api.clone(), queues, 20, 100, 100.0)).await
}

async fn names(bench: &Bench, time: Duration) -> Outcome {
    let hosts: Vec<String> = (0..NAMES).map(|n| format!("n{n}.test")).collect();
    // A quarter of the names are unknown at once, the others hang.
    let answers: Vec<(&str, &[&str])> = hosts
        .iter()
        .enumerate()
        .map(|(n, host)| (host.as_str(), if n % 4 == 0 { &["none"][..] } else { &["hangs"][..] }))
        .collect();
    let faked = FakeNames::new(&answers)?;
    let env = faked.env();
    let env: Vec<(&str, &str)> =
        env.iter().map(|(name, value)| (*name, value.as_str())).chain([LOCAL]).collect();
    let setup = Setup::one_in(Store::Disk, &env).await?;
    let (server, mut queues) = (setup.first(), Vec::new());
    for (n, host) in hosts.iter().enumerate() {
        let more = r#","concurrency":100,"timeout":60,"retry":[1]"#;
        push(server, &format!("a{n}"), &format!("http://{host}/"), more).await?;
        queues.push(format!("a{n}"));
    }
    measure(bench, server, time, flood(server.api.clone(), queues, 60, 100, 20.0)).await
}

async fn slow(bench: &Bench, time: Duration) -> Outcome {
    let setup = Setup::one_in(Store::Disk, &[LOCAL]).await?;
    let (server, mut serving, mut queues) = (setup.first(), JoinSet::new(), Vec::new());
    for n in 0..SLOW {
        let does = Does { takes: Duration::from_secs(60), says: OK };
        let addr = endpoint(&mut serving, &format!("127.0.0.{}:0", 2 + n), does).await?;
        let more =
            r#","concurrency":1000,"timeout":300,"ok_when":{"pointer":"","equals":0},"on_dead":"dead""#;
        push(server, &format!("a{n}"), &format!("http://{addr}/"), more).await?;
        queues.push(format!("a{n}"));
    }
    // Another queue is pushed at the same time.
    let addr = endpoint(&mut serving, "127.0.0.1:0", Does { takes: Duration::ZERO, says: OK }).await?;
    push(server, "quick", &format!("http://{addr}/"), "").await?;
    let flood = flood(server.api.clone(), queues, 20, 32 << 10, 20.0);
    let late: Mutex<Vec<f64>> = Mutex::default();
    let quick = async {
        let mut client = server.api.connect().await?;
        for n in 0.. {
            let asked = Instant::now();
            let answer = client.publish("quick", "", n.to_string().as_bytes()).await?;
            let made: serde_json::Value = serde_json::from_slice(&answer.body)?;
            let path = format!("/api/bench/quick/job/{}", made["job_id"].as_str().unwrap_or_default());
            let job = server.api.bare("GET", &path);
            while client.call(&job).await?.status != 404 {
                sleep(Duration::from_millis(2)).await;
            }
            late.lock().push(asked.elapsed().as_secs_f64() * 1000.0);
            sleep(Duration::from_millis(100)).await;
        }
        Outcome::Ok(())
    };
    let both = async { tokio::try_join!(flood, quick).map(drop) };
    measure(bench, server, time, both).await?;
    let mut late = late.into_inner();
    bench.figure("another pushed queue: delivered and acked, p50", percentile(&mut late, 0.5), "ms");
    bench.at_most("another pushed queue: p99", percentile(&mut late, 0.99), 1000.0, "ms");
    Ok(())
}

async fn circle(bench: &Bench, time: Duration) -> Outcome {
    let setup = Setup::one_in(Store::Disk, &[LOCAL]).await?;
    let (server, mut serving) = (setup.first(), JoinSet::new());
    let addr = endpoint(&mut serving, "127.0.0.1:0", Does { takes: Duration::ZERO, says: NEVER }).await?;
    let url = format!("http://{addr}/");
    let first = push(server, "a", &url, r#","on_dead":"b""#).await?;
    let second = push(server, "b", &url, r#","on_dead":"a""#).await?;
    bench.note(format_args!("from a to b: {first}, and back: {second}"));
    if second != 200 {
        push(server, "b", &url, "").await?;
    }
    let began = Instant::now();
    measure(bench, server, time, flood(server.api.clone(), vec!["a".into()], 1, 1024, 10.0)).await?;
    let published = (began.elapsed().as_secs_f64() * 10.0).max(1.0);
    let mut client = server.api.connect().await?;
    let dead = client.ready("a/deadletter").await? + client.ready("b/deadletter").await?;
    bench.at_most("dead jobs for each that was published", dead as f64 / published, 2.0, "");
    Ok(())
}
