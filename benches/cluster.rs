//! A pool on a Redis Cluster of three masters with a replica each, compared with one Redis: memory per job, waiting
//! times, the death of a master, the addition of a fourth, how far a job of a spread queue overtakes another, faults, and
//! servers that move a pool from a directory to a Redis, to a cluster, and back. All nodes share this machine.
//! docs/benchmarks.md says how to run it.

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde_json::{Value, json};
use support::client::Target;
use support::faults::Fault;
use support::known::{Came, Known};
use support::ledger::{Ledger, Spread};
use support::load::{self, Plan};
use support::park::park;
use support::proc::{Meter, cpu};
use support::redis_cluster::{RedisCluster, cli};
use support::redis_cluster_bus::PartedCluster;
use support::redis_server::RedisServer;
use support::report::Bench;
use support::setup::{Server, Setup, Store, command_counts, info};
use support::{Outcome, report};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

const BULK: usize = 64;
const CONNECTIONS: usize = 16;
const BODY: &str =
    "a job of exactly one hundred bytes, as many are: an id, a kind, and a few numbers {1,2,3,4,5,6,7,89}";
const DAY: usize = 24 * 3600;
const LONG: Duration = Duration::from_secs(600);

fn main() -> ExitCode {
    report::run(async |bench| {
        for store in [Store::Redis, Store::Cluster, Store::Spread] {
            bench
                .long_section(&format!("memory {store}: bytes of a job of 100"), LONG, memory(bench, store))
                .await;
        }
        for store in [Store::Redis, Store::Cluster, Store::Spread] {
            bench.section(&format!("waiting {store}: 1,000 on two servers"), waiting(bench, store)).await;
        }
        for store in [Store::Redis, Store::Cluster, Store::Spread] {
            bench.section(&format!("due {store}: 2,000 a second"), due(bench, store)).await;
        }
        for store in [Store::Redis, Store::Cluster] {
            bench.long_section(&format!("idle {store}: 100,000 queues"), LONG, idle(bench, store)).await;
        }
        for store in [Store::Cluster, Store::Spread] {
            bench.section(&format!("killed {store}: a master dies"), killed(bench, store)).await;
        }
        for store in [Store::Cluster, Store::Spread] {
            bench
                .long_section(&format!("grow {store}: a fourth master comes"), LONG, grow(bench, store))
                .await;
        }
        for (name, away) in [("all masters", false), ("a master is killed", true)] {
            let name = format!("overtake spread: two servers, 32 consumers, {name}");
            bench.section(&name, overtake(bench, away)).await;
        }
        for wait in [0, 1] {
            bench
                .long_section(&format!("faults, WaitReplicas = {wait}"), 3 * LONG, faults(bench, wait))
                .await;
        }
        bench.long_section("fleet: from disk to a Redis, to a cluster, and back", LONG, fleet(bench)).await;
    })
}

/// Starts two servers on this store.
async fn two(store: Store) -> Outcome<Setup> {
    match store {
        Store::Cluster => Setup::cluster(&[&[], &[]], "").await,
        Store::Spread => Setup::cluster(&[&[], &[]], "Spread = [\"*/*\"]").await,
        _ => Setup::redis(&[&[], &[]]).await,
    }
}

/// Returns the queue of the n-th batch, and a function from a job's number to its delay.
type Batch = fn(usize) -> (String, fn(usize) -> usize);

/// Publishes `jobs` jobs of 100 bytes in batches.
async fn fill(api: &Target, jobs: usize, batch: Batch) -> Outcome {
    load::send(api, CONNECTIONS, jobs.div_ceil(BULK), 201, move |api, n| {
        let (queue, delay) = batch(n);
        let body = (0..BULK).map(|i| json!({ "text": BODY, "delay": delay(n * BULK + i) }));
        let body = Value::Array(body.collect()).to_string();
        api.with_body("POST", &format!("/api/bench/{queue}/jobs/batch"), body.as_bytes())
    })
    .await
}

/// Returns a pseudo-random number, the same in each run.
fn scattered(n: usize) -> usize {
    (n as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(31) as usize
}

async fn memory(bench: &Bench, store: Store) -> Outcome {
    let used = |setup: &Setup| setup.info_of_masters("memory", "used_memory");
    let million = bench.size(1_000_000, 20_000);
    // The spread load has a single queue, which is the purpose of spreading.
    let (delayed, ready): (Batch, Batch) = if store == Store::Spread {
        (|_| ("large".into(), |n| 120 + scattered(n) % DAY), |_| ("large".into(), |_| 0))
    } else {
        (|n| (format!("q{}", n % 1000), |n| 120 + scattered(n) % DAY), |n| (format!("q{}", n % 1000), |_| 0))
    };
    for (name, jobs, batch, bound) in
        [("delayed over 24 h", million, delayed, 150.0), ("ready", million, ready, 300.0)]
    {
        let setup = match store {
            Store::Redis => Setup::one_redis(&[], 0, "PackAfter = 600").await?,
            _ => Setup::one(store).await?,
        };
        let (before, began) = (used(&setup)?, Instant::now());
        let each: Vec<(f64, Duration)> = setup
            .masters()
            .map(|node| Ok((info(node, "memory", "used_memory")?, cpu(node.pid())?)))
            .collect::<Outcome<_>>()?;
        fill(&setup.first().api, jobs, batch).await?;
        let took = began.elapsed();
        tokio::time::sleep(Duration::from_secs(3)).await;
        bench.at_most(name, (used(&setup)? - before) / jobs as f64, bound, "bytes");
        bench.figure(&format!("{name}: published"), jobs as f64 / took.as_secs_f64(), "jobs/s");
        if store == Store::Spread {
            let mut shares = (Vec::new(), Vec::new());
            for (node, (bytes, time)) in setup.masters().zip(each) {
                shares.0.push(info::<f64>(node, "memory", "used_memory")? - bytes);
                shares.1.push((cpu(node.pid())? - time).as_secs_f64());
            }
            for (what, mut share) in [("memory", shares.0), ("processor time", shares.1)] {
                share.sort_by(f64::total_cmp);
                let (least, most) = (share.first().unwrap_or(&1.0), share.last().unwrap_or(&1.0));
                bench.at_most(&format!("{name}: {what}, most of a master by least"), most / least, 1.1, "");
            }
        }
    }
    if store != Store::Spread {
        let (setup, queues) = (Setup::one(store).await?, bench.size(100_000, 2000));
        let before = used(&setup)?;
        one_each(&setup.first().api, queues).await?;
        tokio::time::sleep(Duration::from_secs(3)).await;
        bench.at_most(
            "one delayed in each of many queues",
            (used(&setup)? - before) / queues as f64,
            400.0,
            "bytes",
        );
    }
    Ok(())
}

/// Publishes one job that is due tomorrow to each of `queues` queues.
async fn one_each(api: &Target, queues: usize) -> Outcome {
    load::send(api, 4 * CONNECTIONS, queues, 201, |api, n| {
        api.put(&format!("/api/bench/one-{n}?delay=86400"), BODY.as_bytes())
    })
    .await
}

async fn waiting(bench: &Bench, store: Store) -> Outcome {
    let setup = two(store).await?;
    let (polls, jobs) = (bench.size(500, 50), bench.size(10_000, 300));
    let ledger = Arc::new(Ledger::new(jobs));
    let mut parked = Vec::new();
    for server in &setup.servers {
        parked.push(park(server, polls, 10, &ledger, false).await?);
    }
    share(bench, &setup, "in silence", bench.seconds(10.0, 1.0)).await?;
    let plan = Plan {
        ledger: ledger.clone(),
        jobs,
        per_second: 500.0,
        connections: CONNECTIONS,
        job: |n| (format!("park-{}", n % 10), 0, ""),
    };
    load::publish(&[&setup.first().api, &setup.last().api], plan).await?;
    ledger.complete(1, Duration::from_secs(15)).await;
    bench.none("lost", jobs - ledger.count(1), jobs);
    bench.figure("publish to delivery p50", ledger.delivery().ms(0.5), "ms");
    bench.at_most("publish to delivery p99", ledger.delivery().ms(0.99), 10.0, "ms");
    bench.figure("publish to delivery, the slowest", ledger.delivery().ms(1.0), "ms");
    for set in parked {
        load::end(set).await?;
    }
    Ok(())
}

/// Reports the processor time of each process, in percent of a core.
async fn share(bench: &Bench, setup: &Setup, when: &str, time: Duration) -> Outcome {
    let meter = Meter::start(setup.processes())?;
    tokio::time::sleep(time).await;
    for (name, used) in meter.used()?.into_iter().filter(|(name, _)| *name != "client") {
        let part = 100.0 * used.as_secs_f64() / time.as_secs_f64();
        bench.figure(&format!("{name} {when}: of a core"), part, "%");
    }
    Ok(())
}

async fn due(bench: &Bench, store: Store) -> Outcome {
    let setup = two(store).await?;
    let jobs = bench.size(40_000, 400);
    let ledger = Arc::new(Ledger::new(jobs));
    let mut consumers = Vec::new();
    for server in &setup.servers {
        consumers.push(load::consumers(&server.api, 32, "delayed", 120, &ledger, 1).await?);
    }
    let plan = Plan {
        ledger: ledger.clone(),
        jobs,
        per_second: 2000.0,
        connections: 64,
        job: |n| ("delayed".into(), 2 + n as u64 % 3, ""),
    };
    let before = commands(&setup)?;
    load::publish(&[&setup.first().api, &setup.last().api], plan).await?;
    ledger.complete(1, Duration::from_secs(15)).await;
    let mut after = commands(&setup)?;
    for set in consumers {
        load::end(set).await?;
    }
    ledger.lateness(bench);
    // Explains lateness. Calls by scripts are included.
    for name in ["evalsha", "exists", "lindex"] {
        let count = after.remove(name).unwrap_or(0) - before.get(name).unwrap_or(&0);
        bench.figure(&format!("{name} of the masters for a job"), count as f64 / jobs as f64, "");
    }
    Ok(())
}

/// Returns how often the masters have run each command.
fn commands(setup: &Setup) -> Outcome<BTreeMap<String, u64>> {
    let mut sum = BTreeMap::new();
    for master in setup.masters() {
        for (name, count) in command_counts(master)? {
            *sum.entry(name).or_default() += count;
        }
    }
    Ok(sum)
}

async fn idle(bench: &Bench, store: Store) -> Outcome {
    let setup = two(store).await?;
    let queues = bench.size(100_000, 2000);
    one_each(&setup.first().api, queues).await?;
    let ledger = Arc::new(Ledger::new(0));
    let mut parked = Vec::new();
    for server in &setup.servers {
        parked.push(park(server, bench.size(500, 50), 100, &ledger, false).await?);
    }
    tokio::time::sleep(Duration::from_secs(5)).await;
    share(bench, &setup, "idle", bench.seconds(30.0, 2.0)).await?;
    let began = Instant::now();
    let seen = all_queues(&setup).await?.len();
    bench.figure("a list of all queues", began.elapsed().as_secs_f64(), "s");
    bench.none("queues that it did not show", queues - seen.min(queues), queues);
    for set in parked {
        load::end(set).await?;
    }
    Ok(())
}

/// Kills a master, and reports the longest time without a 201, by queue.
async fn killed(bench: &Bench, store: Store) -> Outcome {
    let mut setup = two(store).await?;
    let cluster = setup.cluster.as_mut().ok_or("a setup on a cluster has one")?;
    for node in &cluster.servers {
        let set = ["CONFIG", "SET", "cluster-node-timeout", "2000"];
        let () = redis::cmd(set[0]).arg(&set[1..]).query(&mut node.connection())?;
    }
    let queues = if store == Store::Spread { 1 } else { 64 };
    let (stop, mut tasks) = (CancellationToken::new(), JoinSet::new());
    for n in 0..64 {
        let (target, stop) = (setup.servers[n % 2].api.clone(), stop.clone());
        tasks.spawn(async move {
            let queue = format!("away-{}", n % queues);
            let request = target.put(&format!("/api/bench/{queue}"), BODY.as_bytes());
            let (mut client, mut good) = (target.connect().await?, Vec::new());
            while !stop.is_cancelled() {
                if client.call(&request).await?.status == 201 {
                    good.push(Instant::now());
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            Outcome::Ok((n % queues, good))
        });
    }
    tokio::time::sleep(Duration::from_secs(2)).await;
    setup.cluster.as_mut().ok_or("as above")?.servers[0].kill();
    tokio::time::sleep(bench.seconds(15.0, 12.0)).await;
    stop.cancel();
    let mut times: BTreeMap<usize, Vec<Instant>> = BTreeMap::new();
    while let Some(ended) = tasks.join_next().await {
        let (queue, good) = ended??;
        times.entry(queue).or_default().extend(good);
    }
    let mut gaps: Vec<f64> = times
        .into_values()
        .map(|mut good| {
            good.sort();
            good.windows(2).map(|two| (two[1] - two[0]).as_secs_f64()).fold(0.0, f64::max)
        })
        .collect();
    gaps.sort_by(f64::total_cmp);
    let longest = gaps.last().copied().unwrap_or_default();
    if store == Store::Spread {
        bench.at_most("longest time without a 201", longest, 1.0, "s");
    } else {
        bench.at_most("longest time without a 201, of 64 queues", longest, 5.0, "s");
        bench.figure("the same, median of the queues", gaps[gaps.len() / 2], "s");
        bench.figure(
            "queues that were without one for a second",
            gaps.iter().filter(|gap| **gap >= 1.0).count() as f64,
            "",
        );
    }
    Ok(())
}

/// Results of requests, and jobs published and delivered.
#[derive(Default)]
struct Met {
    longest: Spread,
    bad: usize,
    published: Vec<usize>,
    acked: Vec<usize>,
}

/// An entry of Redis's slow log: number, time, microseconds, command and arguments, client address, client name.
type SlowCommand = (i64, i64, i64, Vec<Vec<u8>>, String, String);

/// Adds a fourth master with its replica, which take over their share of the slots, while jobs are published, consumed
/// and acked.
async fn grow(bench: &Bench, store: Store) -> Outcome {
    let setup = two(store).await?;
    let jobs = bench.size(1_000_000, 20_000);
    fill(&setup.first().api, jobs, |n| (format!("q{}", n % 1000), |n| 7200 + scattered(n) % DAY)).await?;
    let (stop, met) = (CancellationToken::new(), Arc::new(Mutex::new(Met::default())));
    let mut tasks = JoinSet::new();
    for n in 0..CONNECTIONS {
        let (target, stop, met) = (setup.servers[n % 2].api.clone(), stop.clone(), met.clone());
        tasks.spawn(cycles(target, n, met, stop));
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    let (old, new) = (
        setup.cluster.as_ref().ok_or("there is one")?.servers[0].addr(),
        [RedisCluster::server(), RedisCluster::server()],
    );
    let began = Instant::now();
    let (fourth, replica) = (new[0].addr(), new[1].addr());
    let grown = tokio::task::spawn_blocking(move || {
        cli(&["--cluster", "add-node", &fourth, &old]);
        std::thread::sleep(Duration::from_secs(3));
        cli(&["--cluster", "add-node", &replica, &old, "--cluster-slave"]);
        std::thread::sleep(Duration::from_secs(3));
        cli(&["--cluster", "rebalance", &old, "--cluster-use-empty-masters", "--cluster-pipeline", "100"]);
    });
    grown.await?;
    bench.figure("the whole of it took", began.elapsed().as_secs_f64(), "s");
    stop.cancel();
    load::all(tasks).await?;
    let mut longest_migrate = 0;
    for node in setup.masters() {
        let log: Vec<SlowCommand> =
            redis::cmd("SLOWLOG").arg("GET").arg(1000).query(&mut node.connection())?;
        let migrates = log.iter().filter(|(.., words, _, _)| {
            words.first().is_some_and(|word| word.eq_ignore_ascii_case(b"migrate"))
        });
        longest_migrate = migrates.map(|(_, _, us, ..)| *us).fold(longest_migrate, i64::max);
    }
    let met = std::mem::take(&mut *met.lock());
    let handed: std::collections::HashSet<usize> = met.acked.iter().copied().collect();
    let lost = met.published.iter().filter(|n| !handed.contains(n)).count();
    bench.none("lost", lost, met.published.len());
    bench.none("answered with 5xx", met.bad, met.longest.len());
    bench.at_most("longest request", met.longest.ms(1.0), 1000.0, "ms");
    bench.figure("p99 of a request", met.longest.ms(0.99), "ms");
    bench.at_most("longest MIGRATE (0: none above 10 ms)", longest_migrate as f64 / 1000.0, 50.0, "ms");
    let left: u64 = all_queues(&setup).await?.iter().filter_map(|queue| queue["delayed"].as_u64()).sum();
    bench.none("delayed jobs that are gone", jobs.div_ceil(BULK) * BULK - usize::try_from(left)?, jobs);
    Ok(())
}

/// Publishes, consumes and acks about 30 times a second; after `stop` drains the queue.
async fn cycles(target: Target, first: usize, met: Arc<Mutex<Met>>, stop: CancellationToken) -> Outcome {
    let (mut client, mut n) = (target.connect().await?, first);
    loop {
        let stopped = stop.is_cancelled();
        if !stopped {
            let request = target.put("/api/bench/cycle?tries=20", n.to_string().as_bytes());
            let (began, answer) = (Instant::now(), client.call(&request).await?);
            let mut met = met.lock();
            met.longest.add(began.elapsed());
            match answer.status {
                201 => met.published.push(n),
                _ => met.bad += 1,
            }
            n += CONNECTIONS;
        }
        let timeout = if stopped { 5 } else { 0 };
        let request = target.bare("GET", &format!("/api/bench/cycle?timeout={timeout}&ttr=120"));
        let (began, answer) = (Instant::now(), client.call(&request).await?);
        if timeout == 0 {
            met.lock().longest.add(began.elapsed());
        }
        match answer.status {
            200 => {
                let job: support::client::Consumed = serde_json::from_slice(&answer.body)?;
                let request = target.bare("DELETE", &format!("/api/bench/cycle/job/{}", job.job_id));
                let (began, answer) = (Instant::now(), client.call(&request).await?);
                let mut met = met.lock();
                met.longest.add(began.elapsed());
                met.acked.push(job.number()?);
                met.bad += usize::from(answer.status != 204);
            }
            404 if stopped => return Ok(()),
            404 => {}
            _ => met.lock().bad += 1,
        }
        if !stopped {
            tokio::time::sleep(Duration::from_millis(30)).await;
        }
    }
}

/// Returns all queues, read page by page.
async fn all_queues(setup: &Setup) -> Outcome<Vec<Value>> {
    let (mut client, mut queues, mut cursor) =
        (setup.first().api.connect().await?, Vec::new(), String::new());
    loop {
        let request = client.target.bare("GET", &format!("/api/bench?limit=100{cursor}"));
        let mut page: Value = serde_json::from_slice(&client.expect(200, &request).await?.body)?;
        queues.extend(page["queues"].as_array_mut().map(std::mem::take).unwrap_or_default());
        let Some(next) = page["cursor"].as_str() else { return Ok(queues) };
        cursor = format!("&cursor={next}");
    }
}

/// Times of a job: its publish was sent and answered; the consume that delivered it was sent and answered.
type Seen = [Instant; 4];

/// Measures by how many seconds a job overtakes an older ready job; in one run a master is killed.
async fn overtake(bench: &Bench, away: bool) -> Outcome {
    let mut setup = two(Store::Spread).await?;
    let jobs = bench.size(200_000, 4000);
    let (sent, seen) = (
        Arc::new(Mutex::new(vec![None; jobs])),
        Arc::new(Mutex::new(Vec::<(usize, Instant, Instant)>::new())),
    );
    let mut tasks = JoinSet::new();
    for n in 0..32 {
        let (mut client, seen) = (setup.servers[n % 2].api.connect().await?, seen.clone());
        tasks.spawn(async move {
            loop {
                let asked = Instant::now();
                let job = match client.consume("large", "timeout=10&ttr=600").await {
                    Ok(Some(job)) => job,
                    Ok(None) => return Outcome::Ok(()),
                    Err(_) if away => continue,
                    Err(error) => return Err(error),
                };
                seen.lock().push((job.number()?, asked, Instant::now()));
                let acked = client.ack("large", &job.job_id).await;
                acked.or_else(|error| if away { Ok(()) } else { Err(error) })?;
            }
        });
    }
    for first in 0..64 {
        let (mut client, sent) = (setup.servers[first % 2].api.connect().await?, sent.clone());
        tasks.spawn(async move {
            for n in (first..jobs).step_by(64) {
                let began = Instant::now();
                while let Err(error) = client.publish("large", "", n.to_string().as_bytes()).await {
                    if !away {
                        return Err(error);
                    }
                }
                sent.lock()[n] = Some((began, Instant::now()));
            }
            Outcome::Ok(())
        });
    }
    if away {
        tokio::time::sleep(bench.seconds(2.0, 0.1)).await;
        setup.cluster.as_mut().ok_or("a store on a cluster")?.servers[0].kill();
    }
    load::all(tasks).await?;
    let (sent, seen) = (std::mem::take(&mut *sent.lock()), std::mem::take(&mut *seen.lock()));
    let lost = jobs - seen.iter().map(|(n, ..)| n).collect::<BTreeSet<_>>().len();
    if away {
        bench.figure("lost with the master, without `WaitReplicas`", lost as f64, "");
    } else {
        bench.none("lost", lost, jobs);
    }
    let mut all: Vec<Seen> = Vec::new();
    for (n, asked, came) in seen {
        let (began, answered) = sent.get(n).copied().flatten().ok_or("a job that nobody has published")?;
        all.push([began, answered, asked, came]);
    }
    // Sorted by when the consume was sent: later entries were still waiting when an earlier reply arrived.
    all.sort_by_key(|[_, _, asked, _]| *asked);
    let mut oldest_after: Vec<Instant> = all.iter().map(|[_, answered, ..]| *answered).collect();
    for i in (0..oldest_after.len().saturating_sub(1)).rev() {
        oldest_after[i] = oldest_after[i].min(oldest_after[i + 1]);
    }
    let mut by = Spread::default();
    for [began, _, _, came] in &all {
        let behind = all.partition_point(|[_, _, asked, _]| asked < came);
        let oldest = oldest_after.get(behind);
        by.add(oldest.map_or(Duration::ZERO, |oldest| began.saturating_duration_since(*oldest)));
    }
    bench.figure("a job overtakes others by p99", by.ms(0.99) / 1000.0, "s");
    bench.figure("… by at most", by.ms(1.0) / 1000.0, "s");
    Ok(())
}

/// Runs every fault three times. Reports the jobs lost, the jobs redelivered after their ack, and the longest time
/// without a 201 for a spread queue, one with its home at the fault, and one elsewhere.
async fn faults(bench: &Bench, wait: u16) -> Outcome {
    bench.note(format_args!(
        "| fault | jobs | lost | again after the ack | without a 201: spread | home there | elsewhere |"
    ));
    for fault in Fault::ALL {
        let mut runs = Vec::new();
        for _ in 0..bench.size(3, 1) {
            runs.push(fault_once(fault, wait).await?);
        }
        let all = |of: fn(&Came) -> usize| {
            let sums = runs.iter().map(|queues| queues.iter().map(of).sum::<usize>().to_string());
            sums.collect::<Vec<_>>().join(", ")
        };
        let without = |queue: usize| {
            let mut times: Vec<f64> = runs.iter().map(|queues| queues[queue].without).collect();
            times.sort_by(f64::total_cmp);
            times.iter().map(|s| format!("{s:.2}")).collect::<Vec<_>>().join(", ")
        };
        bench.note(format_args!(
            "| {} | {} | {} | {} | {} | {} | {} |",
            fault.name(),
            all(|of| of.published),
            all(|of| of.lost),
            all(|of| of.again),
            without(0),
            without(1),
            without(2)
        ));
    }
    Ok(())
}

async fn fault_once(fault: Fault, wait: u16) -> Outcome<Vec<Came>> {
    let mut parted = PartedCluster::start();
    for node in &parted.cluster.servers {
        let set = ["CONFIG", "SET", "cluster-node-timeout", "2000"];
        let () = redis::cmd(set[0]).arg(&set[1..]).query(&mut node.connection())?;
    }
    let addrs: Vec<String> =
        parted.cluster.servers[..3].iter().map(|node| format!("\"{}\"", node.addr())).collect();
    let pool = |spread: &str| {
        let addrs = addrs.join(", ");
        format!("[Pool.default]\nCluster = [{addrs}]\nWaitReplicas = {wait}\nSpread = [{spread}]\n")
    };
    let (spread, not) = (pool("\"bench/spread\""), pool(""));
    let (pool, next) = match fault {
        Fault::SpreadBegins => (not, spread),
        Fault::SpreadEnds => (spread, not),
        _ => (spread.clone(), spread),
    };
    let mut servers = vec![Server::start(&pool, &[]).await?, Server::start(&pool, &[]).await?];
    let (mut there, mut elsewhere) = (None, None);
    let mut admin = servers[0].admin.connect().await?;
    for n in 0.. {
        let queue = format!("q{n}");
        let request = admin.target.bare("GET", &format!("/cluster?namespace=bench&queue={queue}"));
        let seen: Value = serde_json::from_slice(&admin.expect(200, &request).await?.body)?;
        let home = seen["queue"]["home"].as_u64().ok_or("a queue has a home")?;
        let slot = u16::try_from(home * 256 + 128)?;
        if parted.cluster.master_of(slot).0 == 0 {
            there.get_or_insert((queue, slot));
        } else {
            elsewhere.get_or_insert(queue);
        }
        if there.is_some() && elsewhere.is_some() {
            break;
        }
    }
    let ((there, slot), elsewhere) = there.zip(elsewhere).ok_or("queues have homes on all masters")?;
    let targets = |servers: &[Server]| servers.iter().map(|server| server.api.clone()).collect::<Vec<_>>();
    let load = Known::start(targets(&servers), &["spread", &there, &elsewhere]);
    tokio::time::sleep(Duration::from_secs(2)).await;
    if fault == Fault::ServerKilled {
        // A drop kills the server without a shutdown.
        drop(servers.pop());
        load.go_to(targets(&servers));
        tokio::time::sleep(Duration::from_secs(2)).await;
        servers.push(Server::start(&pool, &[]).await?);
        load.go_to(targets(&servers));
    }
    let restarts = matches!(fault, Fault::SpreadBegins | Fault::SpreadEnds);
    if restarts {
        replace_first(&mut servers, &next, &load).await?;
    }
    fault.act(&mut parted, slot);
    if restarts {
        replace_first(&mut servers, &next, &load).await?;
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
    Ok(load.end()?.0)
}

/// Replaces the first server by a new one, as behind a load balancer: it gets no more requests before it is stopped.
async fn replace_first(servers: &mut Vec<Server>, pool: &str, load: &Known) -> Outcome {
    servers.push(Server::start(pool, &[]).await?);
    let old = servers.remove(0);
    load.go_to(servers.iter().map(|server| server.api.clone()).collect());
    tokio::time::sleep(Duration::from_millis(1500)).await;
    Ok(tokio::task::spawn_blocking(move || old.stop()).await?)
}

/// Waits until these Redises have no ready, delayed or running jobs.
async fn run_dry(nodes: &[RedisServer]) -> Outcome {
    let (began, mut left) = (Instant::now(), vec![String::new()]);
    while !left.is_empty() && began.elapsed() < Duration::from_secs(60) {
        tokio::time::sleep(Duration::from_millis(200)).await;
        left.clear();
        for (node, pattern) in nodes.iter().flat_map(|node| ["*q/*", "*timer_set"].map(|of| (node, of))) {
            left.extend(redis::cmd("KEYS").arg(pattern).query::<Vec<String>>(&mut node.connection())?);
        }
        // Names of queues stay.
        left.retain(|key| !key.contains("dormouse/"));
    }
    if left.is_empty() { Ok(()) } else { Err(format!("the old store still has {left:?}").into()) }
}

/// Moves a pool under load from a directory to a Redis, to a cluster, and back. Between Redis and cluster two servers
/// are replaced one after the other in each round of docs/upgrade-from-lmstfy.md; a directory has one server, which is
/// stopped and started.
async fn fleet(bench: &Bench) -> Outcome {
    let (tokens, one, six) = (RedisServer::start(), RedisServer::start(), RedisCluster::start().quick());
    let dir = tempfile::TempDir::new()?;
    let addrs: Vec<String> = six.servers[..3].iter().map(|node| format!("\"{}\"", node.addr())).collect();
    let disk = format!("Path = \"{}\"\n", dir.path().join("jobs").display());
    let redis = format!("Addr = \"{}\"\n", one.addr());
    // The prefix is the same under every name of the pool.
    let cluster =
        format!("Cluster = [{}]\nPrefix = \"jobs\"\nSpread = [\"bench/spread\"]\n", addrs.join(", "));
    let tokens = format!("[AdminRedis]\nAddr = \"{}\"\n", tokens.addr());
    let alone = |of: &str| format!("{tokens}[Pool.default]\n{of}");
    let moves =
        |of: &str, to: &str| format!("{tokens}[Pool.default]\n{of}MigrateTo = \"next\"\n[Pool.next]\n{to}");
    let mut servers = vec![Server::start(&alone(&disk), &[]).await?];
    let load = Known::start(vec![servers[0].api.clone()], &["spread", "home", "other"]);
    let pause = bench.seconds(3.0, 1.0);
    tokio::time::sleep(pause).await;

    restart(&mut servers, &moves(&disk, &redis), &load).await?;
    // Deliveries without an ack end within four seconds. A job left behind is reported as lost.
    tokio::time::sleep(bench.seconds(12.0, 6.0)).await;
    servers.push(Server::start(&alone(&redis), &[]).await?);
    replace_first(&mut servers, &alone(&redis), &load).await?;
    let (one, masters) = (std::slice::from_ref(&one), &six.servers[..3]);
    for (from, to, source) in [(&redis, &cluster, one), (&cluster, &redis, masters)] {
        for round in [moves(to, from), moves(from, to)] {
            for _ in 0..2 {
                replace_first(&mut servers, &round, &load).await?;
            }
            tokio::time::sleep(pause).await;
        }
        run_dry(source).await?;
        for _ in 0..2 {
            replace_first(&mut servers, &alone(to), &load).await?;
        }
        tokio::time::sleep(pause).await;
    }
    restart(&mut servers, &moves(&redis, &disk), &load).await?;
    run_dry(one).await?;
    restart(&mut servers, &alone(&disk), &load).await?;
    tokio::time::sleep(pause).await;

    let (came, requests) = load.end()?;
    let published: usize = came.iter().map(|of| of.published).sum();
    bench.note(format_args!("{requests}"));
    bench.none("lost", came.iter().map(|of| of.lost).sum(), published);
    bench.none("handed out again after the ack", came.iter().map(|of| of.again).sum(), published);
    let longest = came.iter().map(|of| of.without).fold(0.0, f64::max);
    bench.figure("longest time without a 201", longest, "s");
    Ok(())
}

/// Stops all servers, and starts one, which may have a directory.
async fn restart(servers: &mut Vec<Server>, pool: &str, load: &Known) -> Outcome {
    let old = std::mem::take(servers);
    tokio::task::spawn_blocking(move || old.into_iter().for_each(Server::stop)).await?;
    servers.push(Server::start(pool, &[]).await?);
    load.go_to(vec![servers[0].api.clone()]);
    Ok(())
}
