//! Time from the end of a fault of Redis until each verb works again. Each verb is probed continuously on a separate
//! connection, during the fault and after it. docs/benchmarks.md says how to run it.

mod support;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use support::client::Target;
use support::redis_server::RedisServer;
use support::report::Bench;
use support::setup::Setup;
use support::{Outcome, report};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// The promised maximum, in seconds.
const BOUND: f64 = 2.0;
/// How long verbs are probed after the end of the fault. A verb that does not work by then counts as not recovered.
const LONGEST: Duration = Duration::from_secs(15);
/// Timeout of each probe.
const PATIENCE: Duration = Duration::from_secs(8);
/// Pause between two probes of a verb.
const PAUSE: Duration = Duration::from_millis(10);

/// A fault caused by an operator, a machine or a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Killed,
    Stalled,
    ClientsKilled,
    Readonly,
    HandedOver,
    /// By REPLICAOF, which interrupts no call, while the only requests are consumes, so that no other verb detects it.
    HandedOverConsuming,
    NoReplicas,
    MisConf,
    Full,
}

const FAULTS: [(Fault, &str); 9] = [
    (Fault::Killed, "killed: kill -9, started again"),
    (Fault::Stalled, "stalled: SIGSTOP, SIGCONT"),
    (Fault::ClientsKilled, "clients: CLIENT KILL of every connection"),
    (Fault::Readonly, "readonly: REPLICAOF in place, back to NO ONE"),
    (Fault::HandedOver, "handed-over: FAILOVER behind a proxy, connections stay"),
    (Fault::HandedOverConsuming, "handed-over to consumers: by REPLICAOF, nothing but consumes is asked"),
    (Fault::NoReplicas, "noreplicas: min-replicas-to-write 1, back to 0"),
    (Fault::MisConf, "misconf: BGSAVE fails, writes are stopped and allowed again"),
    (Fault::Full, "full: maxmemory reached, lifted again"),
];

fn main() -> ExitCode {
    report::run(async |bench| {
        let rows = Mutex::new(Vec::new());
        for (fault, name) in FAULTS {
            bench.section(name, recover(bench, fault, name, &rows)).await;
        }
        let rows = rows.into_inner();
        // Empty if the sections are only listed, as a test runner does.
        if rows.is_empty() {
            return;
        }
        println!(
            "\n| fault | slowest verb | seconds until it worked | the others at most |\n|---|---|---|---|"
        );
        for row in rows {
            println!("{row}");
        }
    })
}

/// Returns the probes: the verb, the request, and the statuses that show that the store was involved.
fn verbs(api: &Target, admin: &Target) -> Vec<(&'static str, Target, Vec<u8>, &'static [u16])> {
    let id = "01ARZ3NDEKTSV4RRFFQ69G5FAV";
    let put = |path: &str| api.put(path, b"x");
    let bare = |method: &str, path: &str| api.bare(method, path);
    vec![
        ("publish", api.clone(), put("/api/bench/q"), &[201]),
        ("publish with a delay", api.clone(), put("/api/bench/later?delay=60"), &[201]),
        ("bulk", api.clone(), api.put("/api/bench/q/bulk", b"[1,2,3]"), &[201]),
        ("consume", api.clone(), bare("GET", "/api/bench/q?ttr=1"), &[200]),
        ("consume that waits", api.clone(), bare("GET", "/api/bench/due?timeout=6&ttr=60"), &[200]),
        ("ack", api.clone(), bare("DELETE", &format!("/api/bench/q/job/{id}")), &[204]),
        ("republish", api.clone(), put(&format!("/api/bench/q/job/{id}")), &[201]),
        ("peek", api.clone(), bare("GET", "/api/bench/q/peek"), &[200]),
        ("peek by id", api.clone(), bare("GET", &format!("/api/bench/q/job/{id}")), &[404]),
        ("size", api.clone(), bare("GET", "/api/bench/q/size"), &[200]),
        ("dead letter", api.clone(), bare("GET", "/api/bench/q/deadletter"), &[200]),
        ("respawn", api.clone(), bare("PUT", "/api/bench/q/deadletter"), &[200]),
        ("delete dead", api.clone(), bare("DELETE", "/api/bench/q/deadletter"), &[204]),
        ("destroy", api.clone(), bare("DELETE", "/api/bench/gone"), &[204]),
        ("a wrong token", Target::new(api.addr, Some("nobody")), Vec::new(), &[401]),
        ("create a token", admin.clone(), admin.bare("POST", "/token/bench?description=x"), &[201]),
        ("list limits", admin.clone(), admin.bare("GET", "/limits?force_update=1"), &[200]),
        ("ready", admin.clone(), admin.bare("GET", "/ready"), &[200]),
    ]
}

/// Results of one verb.
#[derive(Default)]
struct Met {
    /// Failures while the fault lasted.
    refused: usize,
    /// Time of the first success after the cause has ended.
    worked: Option<Instant>,
    /// The last failure after that moment.
    failed: Option<Instant>,
}

/// Probes one verb until the task is aborted.
async fn probe(
    target: Target,
    request: Vec<u8>,
    good: &'static [u16],
    over: Arc<Mutex<Option<Instant>>>,
    met: Arc<Mutex<Met>>,
) {
    let mut client = None;
    loop {
        let asked = Instant::now();
        let gone = *over.lock();
        let ask = async {
            if client.is_none() {
                client = Some(target.connect().await.ok()?);
            }
            client.as_mut()?.call(&request).await.ok()
        };
        let answer = tokio::time::timeout(PATIENCE, ask).await.ok().flatten();
        if answer.is_none() {
            client = None;
        }
        let worked = answer.is_some_and(|answer| good.contains(&answer.status));
        {
            let mut met = met.lock();
            match (gone, worked) {
                (None, false) => met.refused += 1,
                (Some(_), false) => met.failed = Some(Instant::now()),
                (Some(gone), true) if asked >= gone => drop(met.worked.get_or_insert_with(Instant::now)),
                (_, true) => {}
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
}

async fn recover(bench: &Bench, fault: Fault, name: &str, rows: &Mutex<Vec<String>>) -> Outcome {
    let hands_over = matches!(fault, Fault::HandedOver | Fault::HandedOverConsuming);
    let (mut setup, second) = if hands_over {
        let (first, second) = (RedisServer::start(), RedisServer::start());
        let proxy = Proxy::start(first.addr())?;
        let setup = Setup::behind(&proxy.addr, first).await?;
        (setup, Some((second, proxy)))
    } else {
        (Setup::redis(&[&[]]).await?, None)
    };
    let (api, admin) = (setup.first().api.clone(), setup.first().admin.clone());
    // One job is due each second: the pump must move it, and a waiting consumer must be woken.
    let mut client = api.connect().await?;
    for delay in 1..=60 {
        client.publish("due", &format!("delay={delay}"), b"due").await?;
    }
    // More jobs than are consumed while publishes fail: a queue that looks empty is a fault.
    for _ in 0..200 {
        let full = format!("[{}]", vec!["1"; 64].join(","));
        client.expect(201, &api.put("/api/bench/q/bulk", full.as_bytes())).await?;
    }
    if let Some((second, _)) = &second {
        let redis = setup.redis.as_ref().ok_or("there is one")?;
        follow(second, redis).await?;
    }
    let over = Arc::new(Mutex::new(None));
    let (mut probes, mut mets) = (JoinSet::new(), Vec::new());
    for (verb, target, request, good) in verbs(&api, &admin) {
        if fault == Fault::HandedOverConsuming && verb != "consume" {
            continue;
        }
        let request = if request.is_empty() { target.bare("GET", "/api/bench/q") } else { request };
        let met = Arc::new(Mutex::new(Met::default()));
        probes.spawn(probe(target, request, good, over.clone(), met.clone()));
        mets.push((verb, met));
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    let before: Vec<usize> = mets.iter().map(|(_, met)| met.lock().refused).collect();
    if let Some((verb, _)) = mets.iter().zip(&before).find(|(_, refused)| **refused > 0).map(|(met, _)| met) {
        return Err(format!("{verb} should work before the fault").into());
    }

    let redis = setup.redis.as_mut().ok_or("there is one")?;
    let lasts = bench.seconds(7.0, 1.5);
    match &second {
        Some((second, proxy)) if fault == Fault::HandedOverConsuming => {
            run(second, &["REPLICAOF", "NO", "ONE"])?;
            *proxy.to.lock() = second.addr();
            let addr = second.addr();
            let (host, port) = addr.split_once(':').ok_or("host:port")?;
            run(redis, &["REPLICAOF", host, port])?;
        }
        Some((second, proxy)) => delivery(redis, second, proxy).await?,
        None => {
            begin(fault, redis).await?;
            if fault != Fault::ClientsKilled {
                tokio::time::sleep(lasts).await;
            }
            end(fault, redis)?;
        }
    }
    let gone = Instant::now();
    *over.lock() = Some(gone);
    // All verbs must work, and keep working for a second.
    loop {
        tokio::time::sleep(Duration::from_millis(50)).await;
        let settled = mets.iter().all(|(_, met)| {
            let met = met.lock();
            met.worked.is_some() && met.failed.is_none_or(|at| at.elapsed() > Duration::from_secs(1))
        });
        if (settled && gone.elapsed() > Duration::from_secs(2)) || gone.elapsed() > LONGEST {
            break;
        }
    }
    probes.abort_all();

    let mut times: Vec<(f64, &str)> = Vec::new();
    for (verb, met) in &mets {
        let met = met.lock();
        let worked = met.worked.map_or(f64::INFINITY, |at| (at - gone).as_secs_f64());
        let failed = met.failed.map_or(0.0, |at| (at - gone).as_secs_f64());
        let resumed = worked.max(failed);
        bench.at_most(&format!("{verb} ({} refused meanwhile)", met.refused), resumed, BOUND, "s");
        times.push((resumed, verb));
    }
    times.sort_by(|a, b| b.0.total_cmp(&a.0));
    let shown = |seconds: f64| {
        if seconds.is_finite() {
            format!("{seconds:.2}")
        } else {
            format!("not within {}", LONGEST.as_secs())
        }
    };
    let others = times.get(1).map_or("–".to_owned(), |(seconds, _)| shown(*seconds));
    rows.lock().push(format!("| {name} | {} | {} | {others} |", times[0].1, shown(times[0].0)));
    Ok(())
}

fn run(redis: &RedisServer, words: &[&str]) -> Outcome {
    let mut command = redis::cmd(words[0]);
    for word in &words[1..] {
        command.arg(*word);
    }
    Ok(command.exec(&mut redis.connection())?)
}

fn signal(redis: &RedisServer, name: &str) -> Outcome {
    let status = std::process::Command::new("kill").args([name, &redis.pid().to_string()]).status()?;
    if status.success() { Ok(()) } else { Err(format!("kill {name} failed").into()) }
}

/// Returns the path that BGSAVE writes to, to be occupied by a directory.
fn obstacle(redis: &RedisServer) -> Outcome<std::path::PathBuf> {
    let (_, dir): (String, String) =
        redis::cmd("CONFIG").arg("GET").arg("dir").query(&mut redis.connection())?;
    Ok(std::path::Path::new(&dir).join("dump.rdb"))
}

async fn begin(fault: Fault, redis: &mut RedisServer) -> Outcome {
    match fault {
        Fault::Killed => redis.kill(),
        Fault::Stalled => signal(redis, "-STOP")?,
        Fault::ClientsKilled => run(redis, &["CLIENT", "KILL", "TYPE", "normal"])?,
        Fault::Readonly => run(redis, &["REPLICAOF", "127.0.0.1", "1"])?,
        Fault::HandedOver | Fault::HandedOverConsuming => {}
        Fault::NoReplicas => run(redis, &["CONFIG", "SET", "min-replicas-to-write", "1"])?,
        Fault::MisConf => {
            std::fs::create_dir(obstacle(redis)?)?;
            run(redis, &["CONFIG", "SET", "save", "3600 1"])?;
            run(redis, &["BGSAVE"])?;
            until("a BGSAVE has failed", || {
                Ok(info(redis, "persistence")?.contains("rdb_last_bgsave_status:err"))
            })
            .await?;
        }
        Fault::Full => run(redis, &["CONFIG", "SET", "maxmemory", "1"])?,
    }
    Ok(())
}

fn end(fault: Fault, redis: &mut RedisServer) -> Outcome {
    match fault {
        Fault::Killed => redis.restart(),
        Fault::Stalled => signal(redis, "-CONT")?,
        Fault::ClientsKilled | Fault::HandedOver | Fault::HandedOverConsuming => {}
        Fault::Readonly => run(redis, &["REPLICAOF", "NO", "ONE"])?,
        Fault::NoReplicas => run(redis, &["CONFIG", "SET", "min-replicas-to-write", "0"])?,
        Fault::MisConf => run(redis, &["CONFIG", "SET", "stop-writes-on-bgsave-error", "no"])?,
        Fault::Full => run(redis, &["CONFIG", "SET", "maxmemory", "0"])?,
    }
    Ok(())
}

fn info(redis: &RedisServer, section: &str) -> Outcome<String> {
    Ok(redis::cmd("INFO").arg(section).query(&mut redis.connection())?)
}

async fn until(what: &str, done: impl Fn() -> Outcome<bool>) -> Outcome {
    let began = Instant::now();
    while !done()? {
        if began.elapsed() > Duration::from_secs(20) {
            return Err(format!("this should have happened: {what}").into());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

/// Makes `second` a replica of `first`, and waits until it is in sync.
async fn follow(second: &RedisServer, first: &RedisServer) -> Outcome {
    run(first, &["CONFIG", "SET", "repl-diskless-sync-delay", "0"])?;
    let addr = first.addr();
    let (host, port) = addr.split_once(':').ok_or("host:port")?;
    run(second, &["REPLICAOF", host, port])?;
    until("the replica follows", || Ok(info(second, "replication")?.contains("master_link_status:up"))).await
}

/// Makes the second the master and the first its replica. New connections go to the second; those to the first stay
/// open.
async fn delivery(first: &RedisServer, second: &RedisServer, proxy: &Proxy) -> Outcome {
    run(first, &["FAILOVER"])?;
    until("the second is the master", || Ok(info(second, "replication")?.contains("role:master"))).await?;
    *proxy.to.lock() = second.addr();
    until("the first is a replica", || Ok(info(first, "replication")?.contains("role:slave"))).await
}

/// A virtual IP: the destination of new connections can be changed, and existing ones stay.
struct Proxy {
    addr: String,
    to: Arc<Mutex<String>>,
}

impl Proxy {
    fn start(to: String) -> Outcome<Proxy> {
        let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
        listener.set_nonblocking(true)?;
        let (addr, to) = (listener.local_addr()?.to_string(), Arc::new(Mutex::new(to)));
        let current = to.clone();
        // On a separate thread, since starting a server blocks the caller's. It ends with the benchmark.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        std::thread::spawn(move || runtime.block_on(forward(listener, current)));
        Ok(Proxy { addr, to })
    }
}

async fn forward(listener: std::net::TcpListener, to: Arc<Mutex<String>>) -> std::io::Result<()> {
    let listener = TcpListener::from_std(listener)?;
    loop {
        let (mut near, _) = listener.accept().await?;
        let to = to.lock().clone();
        tokio::spawn(async move {
            if let Ok(mut far) = TcpStream::connect(to).await {
                let _ = near.set_nodelay(true);
                let _ = far.set_nodelay(true);
                let _ = tokio::io::copy_bidirectional(&mut near, &mut far).await;
            }
        });
    }
}
