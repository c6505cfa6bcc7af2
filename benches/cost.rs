//! Processor time of operations by process, compared with that of any request: nginx's constant 201 on the same
//! connections. Rounds alternate, so that a machine that becomes slower affects all equally; the table shows medians.
//! Also the cost of a quota, the growth of cost with connections, queues and a backlog, a server at half of its maximum
//! rate, and over many minutes (`SOAK=20`). docs/benchmarks.md says how to run it.

mod support;

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use support::client::{Client, Target};
use support::ledger::Spread;
use support::nginx::Nginx;
use support::proc::Meter;
use support::redis_cluster::RedisCluster;
use support::report::Bench;
use support::setup::{Setup, Store, command_counts};
use support::{Outcome, report};
use tokio::task::JoinSet;

/// Kept-alive connections, each with one request at a time.
const CONNECTIONS: [usize; 3] = [32, 64, 256];
const BODY: &[u8; 100] =
    b"a job of exactly one hundred bytes, as many are: an id, a kind, and a few numbers {1,2,3,4,5,6,7,89}";
const BULK: usize = 64;
const BATCH: usize = 100;
/// Long enough that no job is redelivered during the measurement.
const TTR: &str = "ttr=3600";

fn main() -> ExitCode {
    report::run(async |bench| {
        for connections in CONNECTIONS {
            let name = format!("cost: {connections} connections");
            let stores = [Store::Disk, Store::Redis];
            bench.section(&name, table(bench, connections, &stores)).await;
        }
        let stores = [Store::Redis, Store::Cluster, Store::Spread];
        bench.section("cluster: a Redis beside three masters", table(bench, CONNECTIONS[0], &stores)).await;
        bench.long_section("causes: what a cluster adds", Duration::from_secs(900), causes(bench)).await;
        for store in [Store::Disk, Store::Redis] {
            let name = format!("quota {store}: none, of another namespace, of this one");
            bench.section(&name, quota(bench, store)).await;
        }
        for store in [Store::Disk, Store::Redis] {
            let name = format!("growth {store}: connections, queues, backlog");
            bench.long_section(&name, Duration::from_secs(400), growth(bench, store)).await;
        }
        for store in [Store::Disk, Store::Redis] {
            bench.section(&format!("half {store}: at half of the top rate"), half(bench, store)).await;
        }
        for store in [Store::Disk, Store::Redis] {
            let minutes = minutes();
            let name = format!("soak {store}: 5,000 jobs/s beside a backlog, {minutes} minutes");
            let longest = Duration::from_secs(60 * minutes as u64 + 300);
            bench.long_section(&name, longest, soak(bench, store, minutes)).await;
        }
    })
}

/// The operation that a connection repeats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Publish,
    Cycle,
    /// Publishes jobs with a delay of a second, then polls and acks each.
    Life,
    Bulk,
    /// Publishes a bulk that is due tomorrow.
    Backlog,
    /// Consumes a batch, and acks its jobs one by one.
    Batch,
    /// nginx's constant 201.
    Constant,
}

impl Step {
    /// Returns the number of jobs per turn.
    fn jobs(self) -> usize {
        match self {
            Step::Bulk | Step::Backlog | Step::Life => BULK,
            Step::Batch => BATCH,
            Step::Publish | Step::Cycle | Step::Constant => 1,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Step::Publish => "publish",
            Step::Cycle => "publish, consume, ack",
            Step::Life => "a delayed life",
            Step::Bulk => "bulk of 64, a job",
            Step::Backlog => "bulk of 64 with a delay, a job",
            Step::Batch => "100 consumed, acked singly, a job",
            Step::Constant => "constant 201",
        }
    }
}

/// A step, and the number of queues that it rotates over.
#[derive(Clone, Copy, Debug)]
struct Load {
    step: Step,
    queues: usize,
}

impl Load {
    fn of(step: Step) -> Load {
        Load { step, queues: 1 }
    }

    /// Returns the queue of a connection's n-th turn. Connections start at distant queues.
    fn queue(self, connection: usize, n: usize) -> String {
        // Cycles use separate queues: each connection consumes one job per publish, so there is always one.
        let name = match self.step {
            Step::Cycle => "cycle",
            Step::Life => "life",
            _ => "queue",
        };
        match self.queues {
            1 => name.to_owned(),
            queues => format!("{name}-{}", (connection * 7919 + n) % queues),
        }
    }
}

/// A measurement: operations per second, and microseconds of each process per operation.
struct Cost {
    rate: f64,
    done: usize,
    spread: Spread,
    processor: Vec<(&'static str, f64)>,
}

async fn table(bench: &Bench, connections: usize, stores_of: &[Store]) -> Outcome {
    let rounds = bench.size(5, 1);
    let time = bench.seconds(2.0, 0.2);
    let nginx = Nginx::start()?;
    let mut constant = connect(&nginx.target(), connections).await?;
    let mut stores = Vec::new();
    for store in stores_of {
        let setup = Setup::one(*store).await?;
        let clients = connect(&setup.first().api, connections).await?;
        stores.push((store, setup, clients));
    }
    let mut units = Vec::new();
    let mut costs: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for _ in 0..rounds {
        let (floor, unit) = floor(&nginx, &mut constant, time).await?;
        units.push(unit);
        note(&mut costs, "nginx", Step::Constant, &floor, unit);
        for (store, setup, clients) in &mut stores {
            // The batch consumes the remaining jobs.
            for step in [Step::Publish, Step::Cycle, Step::Bulk, Step::Batch] {
                let cost = measure(setup.processes(), clients, Load::of(step), time).await?;
                note(&mut costs, &store.to_string(), step, &cost, unit);
            }
        }
    }
    bench.figure("nginx's constant 201: the unit", median(&mut units), "us");
    medians(bench, costs);
    Ok(())
}

/// Separates the reasons why a job on a cluster costs other processor time than one on a single Redis: nodes, replicas,
/// spreading. Besides processor time, prints values that are independent of the machine's load: scripts and commands of
/// all masters per operation, and bytes sent to replicas and the append-only file.
async fn causes(bench: &Bench) -> Outcome {
    let spread = "Spread = [\"*/*\"]";
    let nginx = Nginx::start()?;
    let mut constant = connect(&nginx.target(), CONNECTIONS[0]).await?;
    let mut setups = Vec::new();
    for replicas in [0, 1] {
        let with = if replicas > 0 { ", replicas" } else { "" };
        let one = async |more: &str| Setup::one_redis(&[], replicas, more).await;
        setups.push((format!("one Redis{with}"), one("").await?));
        for (name, more) in [("at home", ""), ("spread", spread)] {
            let cluster = RedisCluster::start_of(3 + 3 * replicas, replicas).quick();
            let setup = Setup::on_cluster(cluster, &[&[]], more).await?;
            setups.push((format!("cluster, {name}{with}"), setup));
        }
    }
    let (time, mut costs): (_, BTreeMap<String, Vec<f64>>) = (bench.seconds(1.5, 0.2), BTreeMap::new());
    for _ in 0..bench.size(5, 1) {
        for connections in [CONNECTIONS[0], 3 * CONNECTIONS[0]] {
            for (name, setup) in &setups {
                let (_, unit) = floor(&nginx, &mut constant, time / 3).await?;
                let mut clients = connect(&setup.first().api, connections).await?;
                for step in [Step::Publish, Step::Cycle, Step::Life] {
                    if step == Step::Life && connections > CONNECTIONS[0] {
                        continue;
                    }
                    let before = done(setup)?;
                    let mut processes = setup.processes();
                    for replica in setup.replicas() {
                        processes.push(("replica", replica.pid()));
                    }
                    let cost = measure(processes, &mut clients, Load::of(step), time).await?;
                    let name = format!("{name}, {connections} connections");
                    note(&mut costs, &name, step, &cost, unit);
                    for ((what, before), (_, after)) in before.into_iter().zip(done(setup)?) {
                        let figure = (after - before) / cost.done as f64;
                        costs.entry(format!("{name}: {}: {what}|", step.name())).or_default().push(figure);
                    }
                }
            }
        }
    }
    medians(bench, costs);
    Ok(())
}

/// Returns the work of a setup's masters.
fn done(setup: &Setup) -> Outcome<[(&'static str, f64); 3]> {
    let (mut scripts, mut commands) = (0, 0);
    for master in setup.masters() {
        for (name, count) in command_counts(master)? {
            *if name == "evalsha" { &mut scripts } else { &mut commands } += count;
        }
    }
    let bytes = setup.info_of_masters("persistence", "aof_current_size")?;
    Ok([("scripts", scripts as f64), ("commands", commands as f64), ("bytes written", bytes)])
}

/// Measures nginx's constant 201. Also returns its microseconds per request, the unit of costs.
async fn floor(nginx: &Nginx, clients: &mut Vec<Client>, time: Duration) -> Outcome<(Cost, f64)> {
    let floor = measure(nginx.processes()?, clients, Load::of(Step::Constant), time).await?;
    let unit = floor.processor.iter().find(|(name, _)| *name == "nginx").map_or(0.0, |(_, us)| *us);
    Ok((floor, unit))
}

/// Adds a round's results to the table, except for the client's own time.
fn note(costs: &mut BTreeMap<String, Vec<f64>>, store: &str, step: Step, cost: &Cost, unit: f64) {
    let name = step.name();
    let mut add = |what: String, value| costs.entry(what).or_default().push(value);
    add(format!("{store}: {name}|/s"), cost.rate);
    for (process, us) in cost.processor.iter().filter(|(process, _)| *process != "client") {
        add(format!("{store}: {name}: {process}|us"), *us);
        add(format!("{store}: {name}: {process}|units"), us / unit.max(f64::MIN_POSITIVE));
    }
}

/// Prints the medians of the results.
fn medians(bench: &Bench, costs: BTreeMap<String, Vec<f64>>) {
    for (name, mut values) in costs {
        let (name, unit) = name.rsplit_once('|').unwrap_or((&name, ""));
        bench.figure(name, median(&mut values), unit);
    }
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}

async fn connect(target: &Target, connections: usize) -> Outcome<Vec<Client>> {
    let mut clients = Vec::new();
    for _ in 0..connections {
        clients.push(target.connect().await?);
    }
    Ok(clients)
}

/// Repeats one step on every connection for `time`.
async fn measure(
    processes: Vec<(&'static str, u32)>,
    clients: &mut Vec<Client>,
    load: Load,
    time: Duration,
) -> Outcome<Cost> {
    let meter = Meter::start(processes)?;
    let (began, done) = (Instant::now(), Arc::new(AtomicUsize::new(0)));
    let mut tasks = JoinSet::new();
    for (connection, mut client) in clients.drain(..).enumerate() {
        let done = done.clone();
        tasks.spawn(async move {
            let (mut spread, mut turn) = (Spread::default(), 0);
            while began.elapsed() < time {
                once(&mut client, load.step, &load.queue(connection, turn), &mut spread).await?;
                turn += 1;
                done.fetch_add(load.step.jobs(), Ordering::Relaxed);
            }
            Outcome::Ok((client, spread))
        });
    }
    let spread = gather(tasks, clients).await?;
    let (took, done) = (began.elapsed(), done.load(Ordering::Relaxed).max(1));
    let mut processor: Vec<(&'static str, f64)> = Vec::new();
    for (name, used) in meter.used()? {
        let us = used.as_micros() as f64 / done as f64;
        match processor.iter_mut().find(|(known, _)| *known == name) {
            Some((_, sum)) => *sum += us,
            None => processor.push((name, us)),
        }
    }
    Ok(Cost { rate: done as f64 / took.as_secs_f64(), done, spread, processor })
}

/// Waits for the connections' tasks. Returns the connections and merges their measurements.
async fn gather(mut tasks: JoinSet<Outcome<(Client, Spread)>>, clients: &mut Vec<Client>) -> Outcome<Spread> {
    let mut spread = Spread::default();
    while let Some(ended) = tasks.join_next().await {
        let (client, met) = ended??;
        spread.merge(&met);
        clients.push(client);
    }
    Ok(spread)
}

/// Runs one turn of a step. Records the time of each request; for a batch, the total.
async fn once(client: &mut Client, step: Step, queue: &str, spread: &mut Spread) -> Outcome {
    let mut at = Instant::now();
    match step {
        Step::Publish => client.publish(queue, "tries=3", BODY).await.map(drop)?,
        Step::Constant => {
            let request = client.target.put("/api/bench/queue?tries=3", BODY);
            client.expect(201, &request).await.map(drop)?;
        }
        Step::Cycle => {
            client.publish(queue, "tries=3", BODY).await?;
            spread.add(at.elapsed());
            at = Instant::now();
            let job = client.consume(queue, TTR).await?.ok_or("a published job is gone")?;
            spread.add(at.elapsed());
            at = Instant::now();
            client.ack(queue, &job.job_id).await?;
        }
        Step::Life => {
            for _ in 0..BULK {
                client.publish(queue, "tries=3&delay=1", BODY).await?;
            }
            for _ in 0..BULK {
                let query = format!("{TTR}&timeout=20");
                let job = client.consume(queue, &query).await?.ok_or("a published job is gone")?;
                client.ack(queue, &job.job_id).await?;
            }
        }
        Step::Bulk | Step::Backlog => {
            let delay = if step == Step::Backlog { "&delay=86400" } else { "" };
            let body = serde_json::to_vec(&vec![std::str::from_utf8(BODY)?; BULK])?;
            let request = client.target.put(&format!("/api/bench/{queue}/bulk?tries=3{delay}"), &body);
            client.expect(201, &request).await.map(drop)?;
        }
        Step::Batch => {
            let jobs = client.consume_many(queue, &format!("count={BATCH}&{TTR}")).await?;
            if jobs.len() < BATCH {
                return Err("the backlog is used up".into());
            }
            for job in jobs {
                client.ack(queue, &job.job_id).await?;
            }
        }
    }
    spread.add(at.elapsed());
    Ok(())
}

/// Measures publishes and cycles without a quota, with a quota of another namespace, and with one of their own,
/// alternating between a server for each.
async fn quota(bench: &Bench, store: Store) -> Outcome {
    const QUOTA: &[u8] = br#"{"jobs":1000000000,"bytes":1000000000000,"queues":1000000}"#;
    let time = bench.seconds(2.0, 0.2);
    let nginx = Nginx::start()?;
    let mut constant = connect(&nginx.target(), CONNECTIONS[0]).await?;
    let mut servers = Vec::new();
    for (name, namespace) in [("no quota", None), ("a stranger's", Some("other")), ("its own", Some("bench"))]
    {
        let setup = Setup::one(store).await?;
        if let Some(namespace) = namespace {
            let admin = &setup.first().admin;
            let request = admin.put(&format!("/quota/{namespace}"), QUOTA);
            admin.connect().await?.expect(200, &request).await?;
        }
        let clients = connect(&setup.first().api, CONNECTIONS[0]).await?;
        servers.push((name, setup, clients));
    }
    let mut costs: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for _ in 0..bench.size(7, 1) {
        let (_, unit) = floor(&nginx, &mut constant, time / 2).await?;
        for step in [Step::Publish, Step::Cycle, Step::Bulk, Step::Batch] {
            for (name, setup, clients) in &mut servers {
                let cost = measure(setup.processes(), clients, Load::of(step), time).await?;
                note(&mut costs, name, step, &cost, unit);
            }
        }
    }
    medians(bench, costs);
    Ok(())
}

/// Measures publishes and cycles with more connections, over more queues, and beside a backlog of delayed jobs.
async fn growth(bench: &Bench, store: Store) -> Outcome {
    let nginx = Nginx::start()?;
    let few = bench.size(1000, 40);
    for (connections, queues) in [
        (CONNECTIONS[0], 1),
        (few, 1),
        (bench.size(10_000, 80), 1),
        (CONNECTIONS[0], few),
        (CONNECTIONS[0], bench.size(100_000, 80)),
    ] {
        let setup = Setup::one(store).await?;
        let mut clients = connect(&setup.first().api, connections).await?;
        if queues > 1 {
            // Creates all queues before the measurement.
            for step in [Step::Publish, Step::Cycle] {
                turns(&mut clients, Load { step, queues }, queues).await?;
            }
        }
        let name = format!("{connections} connections, {queues} queues");
        grown(bench, &name, &nginx, &setup, &mut clients, queues).await?;
    }
    let setup = Setup::one(store).await?;
    let mut clients = connect(&setup.first().api, CONNECTIONS[0]).await?;
    let backlog = bench.size(10_000_000, 6_400);
    turns(&mut clients, Load::of(Step::Backlog), backlog / BULK).await?;
    let name = format!("{} connections, 1 queue, {backlog} delayed jobs", CONNECTIONS[0]);
    grown(bench, &name, &nginx, &setup, &mut clients, 1).await
}

/// Runs `turns` turns in total, divided among the connections; each turn uses the next queue.
async fn turns(clients: &mut Vec<Client>, load: Load, turns: usize) -> Outcome {
    let (next, mut tasks) = (Arc::new(AtomicUsize::new(0)), JoinSet::new());
    for mut client in clients.drain(..) {
        let next = next.clone();
        tasks.spawn(async move {
            loop {
                let n = next.fetch_add(1, Ordering::Relaxed);
                if n >= turns {
                    return Outcome::Ok((client, Spread::default()));
                }
                once(&mut client, load.step, &load.queue(0, n), &mut Spread::default()).await?;
            }
        });
    }
    gather(tasks, clients).await.map(drop)
}

/// Prints the medians of three rounds, each next to a round of nginx's constant 201 on 32 connections.
async fn grown(
    bench: &Bench,
    name: &str,
    nginx: &Nginx,
    setup: &Setup,
    clients: &mut Vec<Client>,
    queues: usize,
) -> Outcome {
    let time = bench.seconds(2.0, 0.2);
    // New connections, since nginx closes idle ones.
    let mut constant = connect(&nginx.target(), CONNECTIONS[0]).await?;
    let mut costs: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for _ in 0..bench.size(3, 1) {
        let (_, unit) = floor(nginx, &mut constant, time / 2).await?;
        for step in [Step::Publish, Step::Cycle] {
            let cost = measure(setup.processes(), clients, Load { step, queues }, time).await?;
            note(&mut costs, name, step, &cost, unit);
        }
    }
    medians(bench, costs);
    let (memory, _) = support::proc::memory(setup.first().pid())?;
    bench.figure(&format!("{name}: memory"), memory / 1024.0, "MB");
    Ok(())
}

/// Measures latency at half of the maximum rate of the same connections.
async fn half(bench: &Bench, store: Store) -> Outcome {
    let setup = Setup::one(store).await?;
    let connections = CONNECTIONS[0];
    let mut clients = connect(&setup.first().api, connections).await?;
    for step in [Step::Publish, Step::Cycle] {
        let top = measure(setup.processes(), &mut clients, Load::of(step), bench.seconds(3.0, 0.2)).await?;
        let (time, began) = (bench.seconds(5.0, 0.3), Instant::now());
        // Each connection sends at a fixed interval, with phases spread evenly.
        let beat = Duration::from_secs_f64(2.0 * connections as f64 / top.rate);
        let mut tasks = JoinSet::new();
        for (i, mut client) in clients.drain(..).enumerate() {
            tasks.spawn(async move {
                let mut spread = Spread::default();
                let mut due = began + beat.mul_f64(i as f64 / connections as f64);
                while began.elapsed() < time {
                    let wait = due.saturating_duration_since(Instant::now());
                    if !wait.is_zero() {
                        async_io::Timer::after(wait).await;
                    }
                    once(&mut client, step, &Load::of(step).queue(i, 0), &mut spread).await?;
                    due += beat;
                }
                Outcome::Ok((client, spread))
            });
        }
        let spread = gather(tasks, &mut clients).await?;
        bench.figure(&format!("{}: top", step.name()), top.rate, "/s");
        bench.figure(&format!("{}: p99 at the top", step.name()), top.spread.ms(0.99), "ms");
        bench.figure(&format!("{}: p50 at half of it", step.name()), spread.ms(0.5), "ms");
        bench.at_most(&format!("{}: p99 at half of it", step.name()), spread.ms(0.99), 3.0, "ms");
    }
    Ok(())
}

/// Returns the minutes in `SOAK`, by default two.
fn minutes() -> usize {
    std::env::var("SOAK").ok().and_then(|text| text.parse().ok()).unwrap_or(2)
}

/// Publishes, consumes and acks at a steady rate beside a backlog of a million jobs, and reports whether anything
/// grows.
async fn soak(bench: &Bench, store: Store, minutes: usize) -> Outcome {
    const RATE: f64 = 5000.0;
    let setup = Setup::one(store).await?;
    let connections = CONNECTIONS[0];
    let mut clients = connect(&setup.first().api, connections).await?;
    let backlog = bench.size(1_000_000, 6_400);
    let body = serde_json::to_vec(&vec![std::str::from_utf8(BODY)?; BULK])?;
    let request = clients[0].target.put("/api/bench/backlog/bulk?tries=3", &body);
    for _ in 0..backlog / BULK {
        clients[0].expect(201, &request).await?;
    }
    let beat = Duration::from_secs_f64(connections as f64 / RATE);
    for minute in 1..=minutes {
        let (time, began) = (bench.seconds(60.0, 0.5), Instant::now());
        let meter = Meter::start(setup.processes())?;
        let mut tasks = JoinSet::new();
        for (i, mut client) in clients.drain(..).enumerate() {
            tasks.spawn(async move {
                let mut spreads = [Spread::default(), Spread::default(), Spread::default()];
                let mut due = began + beat.mul_f64(i as f64 / connections as f64);
                let mut done = 0;
                while began.elapsed() < time {
                    let wait = due.saturating_duration_since(Instant::now());
                    if !wait.is_zero() {
                        async_io::Timer::after(wait).await;
                    }
                    let at = Instant::now();
                    client.publish("cycle", "tries=3", BODY).await?;
                    spreads[0].add(at.elapsed());
                    let at = Instant::now();
                    let job = client.consume("cycle", TTR).await?.ok_or("a published job is gone")?;
                    spreads[1].add(at.elapsed());
                    let at = Instant::now();
                    client.ack("cycle", &job.job_id).await?;
                    spreads[2].add(at.elapsed());
                    due += beat;
                    done += 1;
                }
                Outcome::Ok((client, spreads, done))
            });
        }
        let mut spreads = [Spread::default(), Spread::default(), Spread::default()];
        let mut done = 0;
        while let Some(ended) = tasks.join_next().await {
            let (client, met, some) = ended??;
            for (all, met) in spreads.iter_mut().zip(&met) {
                all.merge(met);
            }
            done += some;
            clients.push(client);
        }
        let [publish, consume, ack] = spreads.map(|spread| (spread.ms(0.99), spread.ms(1.0)));
        let used: Vec<String> = meter
            .used()?
            .iter()
            .map(|(name, used)| format!("{name} {:.0} %", used.as_secs_f64() / time.as_secs_f64() * 100.0))
            .collect();
        bench.note(format_args!(
            "{minute:>3}: {:>5.0} /s; p99, worst in ms: publish {:.1}, {:.0}; consume {:.1}, {:.0}; ack {:.1}, {:.0}; \
             {:.0} MB of memory; {}; {}",
            done as f64 / began.elapsed().as_secs_f64(),
            publish.0, publish.1, consume.0, consume.1, ack.0, ack.1,
            support::proc::memory(setup.first().pid())?.0 / 1024.0,
            setup.first().on_disk()?,
            used.join(", ")
        ));
    }
    Ok(())
}
