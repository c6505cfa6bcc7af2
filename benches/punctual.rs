//! Punctuality: lateness of delays and of ttr expiry, a million jobs due in one second, and whether servers with
//! different clocks ever deliver early. docs/benchmarks.md says how to run it.

mod support;

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use support::client::Target;
use support::ledger::Ledger;
use support::load::{self, Plan};
use support::report::Bench;
use support::setup::{Setup, Store};
use support::{Outcome, report};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

fn main() -> ExitCode {
    report::run(async |bench| {
        for store in [Store::Disk, Store::Redis] {
            bench.section(&format!("lateness {store}: light load"), lateness(bench, store)).await;
        }
        for store in [Store::Disk, Store::Redis, Store::Cluster, Store::Spread] {
            bench.section(&format!("million {store}: due in the same second"), million(bench, store)).await;
        }
        bench.section("skew redis: two servers, clocks 10 s apart", skew(bench)).await;
    })
}

/// Maximum number of publishing connections.
const PUBLISHERS: usize = 16;
const CONSUMERS: usize = 32;

/// Measures the lateness of delayed jobs, and of jobs consumed without an ack, beside a light load. On Redis there are
/// two servers: both publish, one consumes.
async fn lateness(bench: &Bench, store: Store) -> Outcome {
    let setup = match store {
        Store::Redis => Setup::redis(&[&[], &[]]).await?,
        _ => Setup::one(store).await?,
    };
    let targets: Vec<&Target> = setup.servers.iter().map(|server| &server.api).collect();
    let consume_at = &setup.last().api;
    let stop = CancellationToken::new();
    let light = tokio::spawn(load::light(setup.first().api.clone(), 40.0, stop.clone()));

    let jobs = bench.size(3000, 150);
    let ledger = Arc::new(Ledger::new(jobs));
    let consumers = load::consumers(consume_at, CONSUMERS, "delayed", 120, &ledger, 1).await?;
    let plan = Plan {
        ledger: ledger.clone(),
        jobs,
        per_second: 150.0,
        connections: PUBLISHERS,
        job: |number| ("delayed".into(), 1 + number as u64 % 3, ""),
    };
    load::publish(&targets, plan).await?;
    ledger.complete(1, Duration::from_secs(15)).await;
    load::end(consumers).await?;
    ledger.lateness(bench);

    let jobs = bench.size(1000, 100);
    let ledger = Arc::new(Ledger::new(jobs));
    let consumers = load::consumers(consume_at, CONSUMERS, "running", 1, &ledger, 2).await?;
    let plan = Plan {
        ledger: ledger.clone(),
        jobs,
        per_second: 150.0,
        connections: PUBLISHERS,
        job: |_| ("running".into(), 0, "&tries=2"),
    };
    load::publish(&targets, plan).await?;
    ledger.complete(2, Duration::from_secs(15)).await;
    load::end(consumers).await?;
    ledger.ttr_lateness(bench, Duration::from_secs(1));
    stop.cancel();
    light.await?.map(drop)
}

/// Loads jobs that are all due at one instant, until two seconds before it, and measures how fast they become ready.
async fn million(bench: &Bench, store: Store) -> Outcome {
    let setup = Setup::one(store).await?;
    let api = &setup.first().api;
    let wanted = bench.size(1_000_000, 20_000);
    let began = Instant::now();
    let instant = began + bench.seconds(60.0, 5.0);
    let meter = support::proc::Meter::start(setup.processes())?;
    let loaded = fill(api, wanted, instant).await?;
    bench.figure("jobs loaded", loaded as f64, "");
    bench.figure("loading them in bulks of 64", loaded as f64 / began.elapsed().as_secs_f64(), "jobs/s");
    print_cpu(bench, &meter, loaded)?;

    let stop = CancellationToken::new();
    tokio::time::sleep_until((instant - Duration::from_secs(1)).into()).await;
    let light = tokio::spawn(load::light(api.clone(), 200.0, stop.clone()));
    tokio::time::sleep_until((instant - Duration::from_millis(10)).into()).await;
    let meter = support::proc::Meter::start(setup.processes())?;
    let mut watcher = api.connect().await?;
    // Polls the number of ready jobs every few milliseconds, with a plain GET, which costs the store little.
    let (mut first, mut ready) = (None, 0);
    let end = instant + Duration::from_secs(90);
    while ready < loaded && Instant::now() < end {
        ready = watcher.ready("million").await?;
        if ready > 0 && first.is_none() {
            first = Some(Instant::now());
            if Instant::now() < instant {
                bench.fail(format_args!("{ready} jobs were ready before the first was due"));
            }
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // They fall due during the second that begins at `instant`, which is included.
    let took = instant.elapsed();
    stop.cancel();
    let light = light.await??;
    bench.none("lost", loaded - ready.min(loaded), loaded);
    let bound = if store == Store::Disk { 200_000.0 } else { 150_000.0 };
    bench.figure("from the first due to all ready", took.as_secs_f64(), "s");
    bench.at_least(
        "ready, the second in which they fall due included",
        loaded as f64 / took.as_secs_f64(),
        bound,
        "jobs/s",
    );
    print_cpu(bench, &meter, loaded)?;
    bench.figure("requests on other queues meanwhile", 3.0 * light.publish.len() as f64, "");
    bench.figure("publish on other queues p50", light.publish.ms(0.5), "ms");
    bench.at_most("publish on other queues p99", light.publish.ms(0.99), 50.0, "ms");
    bench.at_most("consume on other queues p99", light.consume.ms(0.99), 50.0, "ms");
    bench.figure("publish on other queues, the slowest", light.publish.ms(1.0), "ms");
    let (now, peak) = support::proc::memory(setup.first().pid())?;
    bench.figure("server memory", now / 1024.0, "MB");
    bench.figure("server memory, peak", peak / 1024.0, "MB");
    Ok(())
}

fn print_cpu(bench: &Bench, meter: &support::proc::Meter, jobs: usize) -> Outcome {
    for (name, used) in meter.used()? {
        bench.figure(
            &format!("processor time, {name}"),
            used.as_micros() as f64 / jobs.max(1) as f64,
            "us/job",
        );
    }
    Ok(())
}

/// Publishes bulks whose jobs are due within the second after `instant`. Returns the number of jobs.
async fn fill(api: &Target, wanted: usize, instant: Instant) -> Outcome<usize> {
    const BULK: usize = 64;
    const CONNECTIONS: usize = 16;
    let body = format!("[{}]", ["\"forty bytes of a job that does not matter\""; BULK].join(","));
    let mut tasks = JoinSet::new();
    for n in 0..CONNECTIONS {
        let (mut client, body) = (api.connect().await?, body.clone());
        tasks.spawn(async move {
            let mut loaded = 0;
            for _ in (n * BULK..wanted).step_by(CONNECTIONS * BULK) {
                let left = instant.saturating_duration_since(Instant::now());
                if left < Duration::from_secs(2) {
                    break;
                }
                // Delays are whole seconds. Rounding up puts the job into the second after the instant.
                let delay = left.as_secs() + 1;
                let request =
                    client.target.put(&format!("/api/bench/million/bulk?delay={delay}"), body.as_bytes());
                client.expect(201, &request).await?;
                loaded += BULK;
            }
            Outcome::Ok(loaded)
        });
    }
    let mut loaded = 0;
    while let Some(ended) = tasks.join_next().await {
        loaded += ended??;
    }
    Ok(loaded)
}

/// Paths of the library that shifts a process's clock, on Debian and others.
const FAKETIME: [&str; 3] = [
    "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1",
    "/usr/lib/aarch64-linux-gnu/faketime/libfaketimeMT.so.1",
    "/usr/lib64/faketime/libfaketimeMT.so.1",
];

/// Publishes jobs through each of two servers, and consumes them through the other.
async fn skew(bench: &Bench) -> Outcome {
    let Some(library) = FAKETIME.into_iter().find(|path| Path::new(path).exists()) else {
        bench.note(format_args!("skipped: install libfaketime (Debian's package faketime) to shift clocks"));
        return Ok(());
    };
    let shifted = |by| [("LD_PRELOAD", library), ("FAKETIME", by), ("FAKETIME_DONT_FAKE_MONOTONIC", "1")];
    let setup = Setup::redis(&[&shifted("+5s"), &shifted("-5s")]).await?;
    for (server, by) in setup.servers.iter().zip([5, -5]) {
        let off = clock_off(&server.api).await?;
        bench.figure("a server's clock is off by", off as f64, "s");
        if (off - by).abs() > 1 {
            return Err(format!("the clock should be off by {by} s").into());
        }
    }
    let jobs = bench.size(600, 60);
    for (publish_at, consume_at) in [(0, 1), (1, 0)] {
        let (publish_at, consume_at) = (&setup.servers[publish_at].api, &setup.servers[consume_at].api);
        let ledger = Arc::new(Ledger::new(jobs));
        let consumers = load::consumers(consume_at, CONSUMERS, "skewed", 120, &ledger, 1).await?;
        let plan = Plan {
            ledger: ledger.clone(),
            jobs,
            per_second: 200.0,
            connections: PUBLISHERS,
            job: |number| ("skewed".into(), 1 + number as u64 % 2, ""),
        };
        load::publish(&[publish_at], plan).await?;
        ledger.complete(1, Duration::from_secs(20)).await;
        load::end(consumers).await?;
        ledger.lateness(bench);
    }
    Ok(())
}

/// Returns by how many seconds a server's clock is ahead of ours, from the `Date` of a reply. Both as the second of the
/// day; runs across midnight must be repeated.
async fn clock_off(api: &Target) -> Outcome<i64> {
    let answer = api.connect().await?.call(&api.bare("GET", "/ping")).await?;
    let date =
        answer.head.lines().find_map(|line| line.strip_prefix("date: ")).ok_or("no Date in the answer")?;
    let time = date.split_whitespace().nth(4).ok_or("a Date without a time")?;
    let mut theirs = 0;
    for part in time.split(':') {
        theirs = theirs * 60 + part.parse::<i64>()?;
    }
    let ours = i64::try_from(dormouse::clock::system_now() / 1000)? % (24 * 3600);
    Ok(theirs - ours)
}
