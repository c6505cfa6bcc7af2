//! Packed jobs: memory of a delayed job, packed and not; ten million on one Redis; how far unpacking lags when a million
//! are due within one minute. docs/benchmarks.md says how to run it.

mod support;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::Commands;
use serde_json::{Value, json};
use support::client::{Client, Consumed, Target};
use support::ledger::Ledger;
use support::load;
use support::proc::Meter;
use support::report::Bench;
use support::setup::{Setup, Store};
use support::{Outcome, report};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

const BULK: usize = 64;
const CONNECTIONS: usize = 16;
const CONSUMERS: usize = 4;
const DAY: usize = 24 * 3600;
const LONG: Duration = Duration::from_secs(1200);
/// Time before the first due time of a bucket at which it is unpacked.
const AHEAD: f64 = 60.0;

fn main() -> ExitCode {
    report::run(async |bench| {
        for store in [Store::Redis, Store::Cluster] {
            bench.long_section(&format!("bytes {store}: of a delayed job"), LONG, bytes(bench, store)).await;
        }
        bench.long_section("ten million: jobs of 20 bytes", LONG, ten_million(bench)).await;
        bench.long_section("due: a million within one minute", LONG, due(bench)).await;
    })
}

/// Starts a server whose jobs with longer delays are packed.
async fn start(store: Store, pack_after: u32) -> Outcome<Setup> {
    let more = format!("PackAfter = {pack_after}");
    match store {
        Store::Cluster => Setup::cluster(&[&[]], &more).await,
        _ => Setup::one_redis(&[], 0, &more).await,
    }
}

/// Returns a pseudo-random number, the same in each run.
fn scattered(n: usize) -> usize {
    (n as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(31) as usize
}

/// Publishes a batch of a queue: per job its body and its delay in seconds.
fn batch(api: &Target, queue: &str, jobs: impl Iterator<Item = (String, usize)>) -> Vec<u8> {
    let body = Value::Array(jobs.map(|(text, delay)| json!({ "text": text, "delay": delay })).collect());
    api.with_body("POST", &format!("/api/bench/{queue}/jobs/batch"), body.to_string().as_bytes())
}

/// Measures the memory of jobs with bodies of three lengths in one queue, due over 24 hours.
async fn bytes(bench: &Bench, store: Store) -> Outcome {
    let jobs = bench.size(1_000_000, 20_000);
    for length in [10, 100, 500] {
        for pack_after in [0, 600] {
            let setup = start(store, pack_after).await?;
            let used = || setup.info_of_masters("memory", "used_memory");
            let before = used()?;
            load::send(&setup.first().api, CONNECTIONS, jobs.div_ceil(BULK), 201, move |api, n| {
                let delay = |i| 700 + scattered(n * BULK + i) % DAY;
                batch(api, "large", (0..BULK).map(|i| ("x".repeat(length), delay(i))))
            })
            .await?;
            tokio::time::sleep(Duration::from_secs(3)).await;
            let each = (used()? - before) / jobs as f64;
            let name = format!("{length} bytes, {}", if pack_after > 0 { "packed" } else { "not packed" });
            match (length, pack_after) {
                (100, 600) if store == Store::Redis => bench.at_most(&name, each, 140.0, "bytes"),
                (100, 600) => bench.at_most(&name, each, 150.0, "bytes"),
                _ => bench.figure(&name, each, "bytes"),
            }
        }
    }
    Ok(())
}

/// Measures the memory of ten million jobs on one Redis, and what they cost while none is due.
async fn ten_million(bench: &Bench) -> Outcome {
    let setup = start(Store::Redis, 60).await?;
    let api = &setup.first().api;
    let jobs = bench.size(10_000_000, 50_000);
    let (before, began) = (setup.info_of_masters("memory", "used_memory")?, Instant::now());
    load::send(api, CONNECTIONS, jobs.div_ceil(BULK), 201, |api, n| {
        let delay = |i| 3600 + scattered(n * BULK + i) % DAY;
        batch(api, "far", (0..BULK).map(|i| ("x".repeat(20), delay(i))))
    })
    .await?;
    bench.figure("published", jobs as f64 / began.elapsed().as_secs_f64(), "jobs/s");
    let used = setup.info_of_masters("memory", "used_memory")? - before;
    bench.figure("memory of Redis", used / 1e6, "MB");
    bench.figure("… each", used / jobs as f64, "bytes");
    let (server, peak) = support::proc::memory(setup.first().pid())?;
    bench.figure("memory of the server", server / 1024.0, "MB");
    bench.figure("… at its peak", peak / 1024.0, "MB");
    idle(bench, &setup).await
}

/// Measures the processor time while no job is due.
async fn idle(bench: &Bench, setup: &Setup) -> Outcome {
    let time = bench.seconds(60.0, 3.0);
    let meter = Meter::start(setup.processes())?;
    tokio::time::sleep(time).await;
    for (name, used) in meter.used()? {
        bench.figure(&format!("idle, {name}"), used.as_secs_f64() / time.as_secs_f64() * 100.0, "%");
    }
    Ok(())
}

/// Publishes jobs that are packed and due within one minute, and consumes them.
async fn due(bench: &Bench) -> Outcome {
    let setup = start(Store::Redis, 60).await?;
    let (api, redis) = (&setup.first().api, setup.redis.as_ref().ok_or("a store on one Redis")?);
    let jobs = bench.size(1_000_000, 20_000) / BULK * BULK;
    let ledger = Arc::new(Ledger::new(jobs));
    // Publishing takes a part of the time until the minute begins.
    let begins = Instant::now() + Duration::from_secs(130);
    let mut tasks = JoinSet::new();
    for first in 0..CONNECTIONS {
        let (mut client, ledger) = (api.connect().await?, ledger.clone());
        tasks.spawn(async move {
            for from in (first * BULK..jobs).step_by(CONNECTIONS * BULK) {
                let left = begins.saturating_duration_since(Instant::now()).as_secs() as usize;
                let delay = |n: usize| left + scattered(n) % 60;
                let each = from..from + BULK;
                each.clone().for_each(|n| ledger.sent(n, Duration::from_secs(delay(n) as u64)));
                let request = batch(&client.target, "soon", each.clone().map(|n| (n.to_string(), delay(n))));
                client.expect(201, &request).await?;
                each.for_each(|n| ledger.answered(n));
            }
            Outcome::Ok(())
        });
    }
    load::all(tasks).await?;
    let left = begins.saturating_duration_since(Instant::now());
    bench.figure("published before the minute begins", left.as_secs_f64(), "s");
    let stop = CancellationToken::new();
    let light = tokio::spawn(load::light(api.clone(), 200.0, stop.clone()));
    let lag = tokio::spawn(lag(redis.connection(), stop.clone()));
    let mut tasks = JoinSet::new();
    for _ in 0..CONSUMERS {
        let (mut client, ledger, stop) = (api.connect().await?, ledger.clone(), stop.clone());
        tasks.spawn(async move {
            while !stop.is_cancelled() {
                for job in consumed(&mut client).await? {
                    ledger.received(job.number()?);
                }
            }
            Outcome::Ok(())
        });
    }
    let meter = Meter::start(setup.processes())?;
    ledger.complete(1, begins.saturating_duration_since(Instant::now()) + Duration::from_secs(120)).await;
    stop.cancel();
    load::all(tasks).await?;
    for (name, used) in meter.used()? {
        bench.figure(&format!("processor time, {name}"), used.as_micros() as f64 / jobs as f64, "us/job");
    }
    bench.figure("unpacking lags by at most", lag.await??, "s");
    let light = light.await??;
    bench.figure("publish on other queues p99", light.publish.ms(0.99), "ms");
    ledger.lateness(bench);
    Ok(())
}

/// Returns up to a hundred jobs; none if none came within two seconds.
async fn consumed(client: &mut Client) -> Outcome<Vec<Consumed>> {
    let request = client.target.bare("GET", "/api/bench/soon?timeout=2&ttr=3600&count=100");
    let answer = client.call(&request).await?;
    match answer.status {
        404 => Ok(Vec::new()),
        200 => Ok(serde_json::from_slice(&answer.body)?),
        other => Err(format!("consume answered {other}").into()),
    }
}

/// Returns by how many seconds the unpacking of a bucket was late at most, until `stop`.
async fn lag(mut conn: redis::Connection, stop: CancellationToken) -> Outcome<f64> {
    let mut most = 0.0_f64;
    while !stop.is_cancelled() {
        let first: Vec<(String, f64)> = conn.zrange_withscores("dormouse/packed", 0, 0)?;
        let (seconds, micros): (f64, f64) = redis::cmd("TIME").query(&mut conn)?;
        if let Some((_, due)) = first.first() {
            most = most.max(seconds + micros / 1e6 - (due - AHEAD));
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Ok(most)
}
