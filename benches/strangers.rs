//! Resources used by one tenant's unread replies and unfinished bulks, and their effect on another tenant.
//! docs/benchmarks.md says how to run it.

mod support;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use serde::Deserialize;
use support::client::{Client, Consumed, Target};
use support::ledger::Spread;
use support::proc::memory;
use support::report::Bench;
use support::setup::{Server, Setup, Store};
use support::{Outcome, report};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{sleep, sleep_until};

const MIB: usize = 1 << 20;
/// Number of the attacker's connections.
const CONNECTIONS: usize = 60;
/// Interval of each of the other tenant's requests.
const PACE: Duration = Duration::from_millis(50);
/// Size of its jobs: large enough to be counted as body memory.
const BODY: usize = 48 * 1024;
/// Interval of measuring the server.
const LOOK: Duration = Duration::from_millis(50);
/// Pause before a refused connection is retried.
const AGAIN: Duration = Duration::from_millis(100);

fn main() -> ExitCode {
    report::run(async |bench| {
        for (name, attack) in [
            ("lists: readers of lists that do not read", Attack::Reads(LIST, None)),
            ("consumes: readers of consumes that do not read", Attack::Reads(CONSUME, None)),
            ("bulks: senders that do not end", Attack::Sends),
            ("trickle: readers that read a byte now and then", Attack::Reads(LIST, Some(AGAIN))),
        ] {
            let time = bench.seconds_or_said(20.0, 3.0);
            let longest = 2 * time + Duration::from_secs(120);
            bench.long_section(name, longest, under(bench, attack, time)).await;
        }
    })
}

/// Behavior of each of the attacker's connections.
#[derive(Clone, Copy)]
enum Attack {
    /// Requests this path, and reads nothing of the reply, or a byte now and then.
    Reads(&'static str, Option<Duration>),
    /// Sends an incomplete bulk.
    Sends,
}

const LIST: &str = "/api/greedy/large/jobs?data=1&limit=100";
const CONSUME: &str = "/api/greedy/large?count=100&ttr=2";

async fn under(bench: &Bench, attack: Attack, time: Duration) -> Outcome {
    let setup = Setup::one_in(Store::Disk, &[("DORMOUSE_MAX_BODY_MEMORY", "16")]).await?;
    let server = setup.first();
    let greedy = token(server, "greedy").await?;
    let (mut client, body) = (greedy.connect().await?, vec![b'x'; MIB]);
    for _ in 0..64 {
        client.expect(201, &greedy.put("/api/greedy/large?tries=65535&ttl=0", &body)).await?;
    }
    let before = tenant(&server.api, time).await?;
    let (quiet, _) = memory(server.pid())?;
    let mut attackers = JoinSet::new();
    for _ in 0..CONNECTIONS {
        attackers.spawn(attacker(greedy.clone(), attack));
    }
    let mut worst = Worst::default();
    let meanwhile = tokio::select! {
        meanwhile = tenant(&server.api, time) => meanwhile?,
        failed = watch(server.pid(), &mut worst) => return failed,
    };
    attackers.shutdown().await;
    bench.figure("server memory, before", quiet / 1024.0, "MB");
    bench.figure("server memory, its highest", worst.memory / 1024.0, "MB");
    bench.figure("open files, the most", worst.files as f64, "");
    bench.figure("threads, the most", worst.threads as f64, "");
    for (verb, name) in VERBS.iter().enumerate() {
        for (what, seen) in [("before", &before), ("meanwhile", &meanwhile)] {
            bench.figure(&format!("{name}, {what}: p50"), seen.times[verb].ms(0.5), "ms");
            bench.figure(&format!("{name}, {what}: p99"), seen.times[verb].ms(0.99), "ms");
        }
    }
    for (what, seen) in [("before", &before), ("meanwhile", &meanwhile)] {
        bench.none(&format!("answers that were 5xx, {what}"), seen.refused, seen.asked);
    }
    Ok(())
}

/// Returns a target with a token for this namespace.
async fn token(server: &Server, namespace: &str) -> Outcome<Target> {
    #[derive(Deserialize)]
    struct Made {
        token: String,
    }
    let request = server.admin.bare("POST", &format!("/token/{namespace}?description=bench"));
    let answer = server.admin.connect().await?.expect(201, &request).await?;
    let made: Made = serde_json::from_slice(&answer.body)?;
    Ok(Target::new(server.api.addr, Some(&made.token)))
}

const VERBS: [&str; 3] = ["publish", "consume", "list"];
const CONSUME_VERB: usize = 1;

/// Results of the other tenant.
#[derive(Default)]
struct Seen {
    /// By verb.
    times: [Spread; 3],
    asked: usize,
    /// Failed with 5xx, or disconnected.
    refused: usize,
}

/// Publishes two jobs, consumes them and lists another queue, at an even rate.
async fn tenant(api: &Target, time: Duration) -> Outcome<Seen> {
    let mut seen = Seen::default();
    let job = format!("\"{}\"", "x".repeat(BODY));
    let mut client = api.connect().await?;
    client.publish("shown", "ttl=0", job.as_bytes()).await?;
    let requests = [
        api.put("/api/bench/q/bulk", format!("[{job},{job}]").as_bytes()),
        api.bare("GET", "/api/bench/q?count=2"),
        api.bare("GET", "/api/bench/shown/jobs?data=1&limit=1"),
    ];
    let began = Instant::now();
    for turn in 0.. {
        let at = began + PACE * turn;
        if at >= began + time {
            break;
        }
        sleep_until(at.into()).await;
        for (verb, request) in requests.iter().enumerate() {
            let began = Instant::now();
            let answer = client.call(request).await;
            seen.times[verb].add(began.elapsed());
            seen.asked += 1;
            let answer = match answer {
                Ok(answer) if answer.status < 500 => answer,
                _ => {
                    seen.refused += 1;
                    client = api.connect().await?;
                    continue;
                }
            };
            if verb == CONSUME_VERB && answer.status == 200 {
                ack(&mut client, &answer.body).await?;
            }
        }
    }
    Ok(seen)
}

/// Acks the delivered jobs.
async fn ack(client: &mut Client, jobs: &[u8]) -> Outcome {
    let jobs: Vec<Consumed> = serde_json::from_slice(jobs)?;
    for job in jobs {
        client.ack("q", &job.job_id).await?;
    }
    Ok(())
}

/// Opens one connection after the other.
async fn attacker(greedy: Target, attack: Attack) {
    loop {
        // The outcome does not matter.
        let _ = match attack {
            Attack::Reads(path, pace) => read(&greedy, path, pace).await,
            Attack::Sends => send(&greedy).await,
        };
        sleep(AGAIN).await;
    }
}

/// Opens a connection with a small receive buffer.
async fn connect(target: &Target) -> std::io::Result<TcpStream> {
    let socket = if target.addr.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    socket.set_recv_buffer_size(4096)?;
    socket.connect(target.addr).await
}

/// Reads the status, and then nothing more, or a byte now and then, until the server closes the connection.
async fn read(target: &Target, path: &str, pace: Option<Duration>) -> std::io::Result<()> {
    let mut stream = connect(target).await?;
    stream.write_all(&target.bare("GET", path)).await?;
    let mut status = [0; 12];
    stream.read_exact(&mut status).await?;
    if status.ends_with(b"200") {
        let mut byte = [0];
        loop {
            match pace {
                Some(pace) => {
                    sleep(pace).await;
                    if stream.read(&mut byte).await? == 0 {
                        break;
                    }
                }
                None => {
                    // There is no event for the end of a connection with unread bytes, so it is polled.
                    sleep(AGAIN).await;
                    if stream.ready(tokio::io::Interest::READABLE).await?.is_read_closed() {
                        break;
                    }
                }
            }
        }
    }
    Ok(())
}

/// Sends an incomplete bulk as far as the server reads it.
async fn send(target: &Target) -> std::io::Result<()> {
    let mut stream = connect(target).await?;
    let whole = target.put("/api/greedy/large/bulk", &[]);
    let head = String::from_utf8_lossy(&whole).replace("Length: 0", &format!("Length: {}", 60 * MIB));
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(b"[").await?;
    let piece = vec![b' '; MIB];
    for _ in 0..59 {
        stream.write_all(&piece).await?;
    }
    // The server closes the connection.
    stream.read_exact(&mut [0]).await.map(drop)
}

/// Maximum resource usage of the server.
#[derive(Debug, Default)]
struct Worst {
    /// KB.
    memory: f64,
    files: usize,
    threads: usize,
}

/// Samples the server until something fails.
async fn watch(pid: u32, worst: &mut Worst) -> Outcome {
    loop {
        worst.memory = worst.memory.max(memory(pid)?.0);
        let count = |what| Outcome::Ok(std::fs::read_dir(format!("/proc/{pid}/{what}"))?.count());
        worst.files = worst.files.max(count("fd")?);
        worst.threads = worst.threads.max(count("task")?);
        sleep(LOOK).await;
    }
}
