//! Throughput and cost of push, compared with polling workers in the same run; the delay from due to request; and the
//! cost of an endpoint that is down for a minute. docs/benchmarks.md says how to run it.

mod support;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use support::client::{Client, Target};
use support::ledger::Ledger;
use support::load::{self, Plan};
use support::proc::Meter;
use support::receiver::Receiver;
use support::report::Bench;
use support::setup::{Server, Setup, Store};
use support::{Outcome, report};
use tokio::task::JoinSet;

/// Number of requests in flight, and of polling connections.
const CONCURRENCY: usize = 50;
const BULK: usize = 64;
/// Allows push to call this machine.
const LOCAL: &[(&str, &str)] = &[("DORMOUSE_PUSH_ALLOW", "127.0.0.0/8")];

fn main() -> ExitCode {
    report::run(async |bench| {
        for store in [Store::Disk, Store::Redis] {
            let name = format!("deliver {store}: 100,000 jobs, {CONCURRENCY} at a time");
            bench.section(&name, deliver(bench, store)).await;
        }
        for store in [Store::Disk, Store::Redis] {
            bench
                .section(&format!("due {store}: from due to the request's arrival"), due(bench, store))
                .await;
        }
        for store in [Store::Disk, Store::Redis] {
            let name = format!("down {store}: an endpoint is away for a minute under 200 jobs/s");
            bench.section(&name, down(bench, store)).await;
        }
    })
}

/// Sends a PUT or a POST to a route of push.
async fn tell(server: &Server, method: &str, path: &str, body: &str) -> Outcome {
    let request = match method {
        "PUT" => server.admin.put(path, body.as_bytes()),
        _ => server.admin.bare(method, path),
    };
    server.admin.connect().await?.expect(200, &request).await.map(drop)
}

/// Pushes a queue to a receiver.
async fn push(server: &Server, queue: &str, receiver: &Receiver) -> Outcome {
    let setting = format!(r#"{{"url":"{}","concurrency":{CONCURRENCY}}}"#, receiver.url());
    tell(server, "PUT", &format!("/push/bench/{queue}"), &setting).await
}

/// Publishes jobs whose bodies are the numbers from 0.
async fn fill(api: &Target, queue: &str, jobs: usize) -> Outcome {
    let mut client = api.connect().await?;
    for first in (0..jobs).step_by(BULK) {
        let numbers: Vec<usize> = (first..jobs.min(first + BULK)).collect();
        let body = serde_json::to_vec(&numbers)?;
        let request = client.target.put(&format!("/api/bench/{queue}/bulk?tries=3"), &body);
        client.expect(201, &request).await?;
    }
    Ok(())
}

/// Consumes and acks until the queue is empty.
async fn poll(mut client: Client) -> Outcome {
    while let Some(job) = client.consume("polled", "ttr=600").await? {
        client.ack("polled", &job.job_id).await?;
    }
    Ok(())
}

async fn deliver(bench: &Bench, store: Store) -> Outcome {
    let jobs = bench.size(100_000, 2_000);
    let setup = Setup::one_in(store, LOCAL).await?;
    let server = setup.first();

    fill(&server.api, "polled", jobs).await?;
    let mut pollers = JoinSet::new();
    let (meter, began) = (Meter::start(setup.processes())?, Instant::now());
    for _ in 0..CONCURRENCY {
        pollers.spawn(poll(server.api.connect().await?));
    }
    load::all(pollers).await?;
    bench.figure("polled: consume and ack", jobs as f64 / began.elapsed().as_secs_f64(), "/s");
    print_cpu(bench, "polled", &meter, jobs)?;

    let ledger = Arc::new(Ledger::new(jobs));
    let receiver = Receiver::start(ledger.clone()).await?;
    push(server, "pushed", &receiver).await?;
    tell(server, "POST", "/push/bench/pushed/pause", "").await?;
    fill(&server.api, "pushed", jobs).await?;
    let (meter, began) = (Meter::start(setup.processes())?, Instant::now());
    tell(server, "POST", "/push/bench/pushed/resume", "").await?;
    ledger.complete(1, Duration::from_secs(150)).await;
    let ended = receiver.arrived().last().map_or(began, |(at, _)| *at);
    bench.none("pushed: lost", jobs - ledger.count(1), jobs);
    bench.figure("pushed: deliveries", jobs as f64 / (ended - began).as_secs_f64(), "/s");
    print_cpu(bench, "pushed", &meter, jobs)?;
    bench.figure("pushed: sent more than once", (receiver.arrived().len() - ledger.count(1)) as f64, "");
    Ok(())
}

fn print_cpu(bench: &Bench, what: &str, meter: &Meter, jobs: usize) -> Outcome {
    for (name, used) in meter.used()? {
        let us = used.as_micros() as f64 / jobs.max(1) as f64;
        bench.figure(&format!("{what}: processor time, {name}"), us, "us/job");
    }
    Ok(())
}

/// Measures the time from due to request, for delayed jobs at an even rate and with free slots.
async fn due(bench: &Bench, store: Store) -> Outcome {
    let setup = Setup::one_in(store, LOCAL).await?;
    let server = setup.first();
    let jobs = bench.size(3000, 150);
    let ledger = Arc::new(Ledger::new(jobs));
    let receiver = Receiver::start(ledger.clone()).await?;
    push(server, "delayed", &receiver).await?;
    let plan = Plan {
        ledger: ledger.clone(),
        jobs,
        per_second: 150.0,
        connections: 16,
        job: |number| ("delayed".into(), 1 + number as u64 % 3, ""),
    };
    load::publish(&[&server.api], plan).await?;
    ledger.complete(1, Duration::from_secs(15)).await;
    ledger.lateness(bench);
    Ok(())
}

const PER_SECOND: f64 = 200.0;

/// Measures an endpoint that refuses connections for a while. Its jobs have three tries each.
async fn down(bench: &Bench, store: Store) -> Outcome {
    let setup = Setup::one_in(store, LOCAL).await?;
    let server = setup.first();
    let (before, away, after) = (bench.seconds(5.0, 1.0), bench.seconds(60.0, 4.0), bench.seconds(30.0, 5.0));
    let jobs = ((before + away + after).as_secs_f64() * PER_SECOND) as usize;
    let ledger = Arc::new(Ledger::new(jobs));
    let mut receiver = Receiver::start(ledger.clone()).await?;
    push(server, "down", &receiver).await?;
    let plan = Plan {
        ledger: ledger.clone(),
        jobs,
        per_second: PER_SECOND,
        connections: 16,
        job: |_| ("down".into(), 0, "&tries=3"),
    };
    let outage = async {
        tokio::time::sleep(before).await;
        let attempts = server.push_attempts().await?;
        receiver.down().await?;
        tokio::time::sleep(away).await;
        let attempts = server.push_attempts().await? - attempts;
        receiver.up().await?;
        Outcome::Ok((attempts, Instant::now()))
    };
    let targets = [&server.api];
    let ((attempts, back), ()) = tokio::try_join!(outage, load::publish(&targets, plan))?;
    ledger.complete(1, Duration::from_secs(60)).await;

    let dead = server.api.connect().await?.ready("down/deadletter").await?;
    bench.none("dead", dead, jobs);
    bench.none("lost", jobs - ledger.count(1) - dead, jobs);
    bench.figure("requests begun while it was away", attempts, "");
    let arrived: Vec<(Instant, usize)> =
        receiver.arrived().into_iter().filter(|(at, _)| *at > back).collect();
    let since = |at: Option<Instant>| at.map_or(f64::NAN, |at| (at - back).as_secs_f64());
    bench.figure("from its return to the first request", since(arrived.first().map(|(at, _)| *at)), "s");
    // The number of jobs published in a tenth of a second.
    let window = (PER_SECOND / 10.0) as usize;
    let full =
        arrived.windows(window).find(|some| some[window - 1].0 - some[0].0 < Duration::from_millis(100));
    bench.figure("from its return to full rate", since(full.map(|some| some[window - 1].0)), "s");
    let waiting = ((before + away).as_secs_f64() * PER_SECOND) as usize;
    let last = arrived.iter().filter(|(_, job)| *job < waiting).map(|(at, _)| *at).max();
    bench.figure("from its return until none waits that came before it", since(last), "s");
    bench.figure("sent more than once", (receiver.arrived().len() - ledger.count(1)) as f64, "");
    Ok(())
}
