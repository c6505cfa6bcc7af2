//! Schedules: ten thousand due in the same millisecond, and the effect on others; the cost of many idle ones; two
//! servers on one Redis that are killed repeatedly. docs/benchmarks.md says how to run it.

mod support;

use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use support::client::Target;
use support::report::Bench;
use support::setup::{Setup, Store};
use support::{Outcome, report};
use tokio_util::sync::CancellationToken;

/// Schedules per set.
const SET: usize = 5000;
/// Settings without limits on schedules.
const UNBOUNDED: [(&str, &str); 2] =
    [("DORMOUSE_MAXSCHEDULESPERNAMESPACE", "1000000"), ("DORMOUSE_MAXSCHEDULES", "1000000")];

fn main() -> ExitCode {
    report::run(async |bench| {
        for store in [Store::Disk, Store::Redis] {
            bench.section(&format!("together {store}: due in one millisecond"), together(bench, store)).await;
        }
        for store in [Store::Disk, Store::Redis] {
            bench.section(&format!("idle {store}: none is due"), idle(bench, store)).await;
        }
        for store in [Store::Disk, Store::Redis] {
            bench.section(&format!("steady {store}: each second"), steady(bench, store)).await;
        }
    })
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

/// Stores `count` schedules, in sets.
async fn put_all(api: &Target, count: usize, setting: impl Fn(usize) -> Value) -> Outcome {
    let mut client = api.connect().await?;
    for from in (0..count).step_by(SET) {
        let set = (from..count.min(from + SET)).map(|n| {
            let mut one = setting(n);
            one["name"] = json!(format!("s{n:06}"));
            one
        });
        let body = json!({ "schedules": set.collect::<Vec<_>>() }).to_string();
        client.expect(200, &api.put("/api/bench/_schedules", body.as_bytes())).await?;
    }
    Ok(())
}

/// Returns the lateness of each schedule's last occurrence in milliseconds, sorted. Schedules without one are omitted.
async fn lateness(api: &Target) -> Outcome<Vec<f64>> {
    let (mut client, mut late, mut cursor) = (api.connect().await?, Vec::new(), String::new());
    loop {
        let request = api.bare("GET", &format!("/api/bench/_schedules{cursor}"));
        let page: Value = serde_json::from_slice(&client.expect(200, &request).await?.body)?;
        for one in page["schedules"].as_array().into_iter().flatten() {
            let at = |name: &str| -> Option<jiff::Timestamp> { one["last"][name].as_str()?.parse().ok() };
            if let (Some(due), Some(placed)) = (at("due"), at("placed_at")) {
                late.push((placed.as_millisecond() - due.as_millisecond()) as f64);
            }
        }
        match page["cursor"].as_str() {
            Some(next) => cursor = format!("?cursor={next}"),
            None => break,
        }
    }
    late.sort_by(f64::total_cmp);
    Ok(late)
}

fn percentile(sorted: &[f64], part: f64) -> f64 {
    let at = (sorted.len() as f64 * part) as usize;
    sorted.get(at.min(sorted.len().saturating_sub(1))).copied().unwrap_or(f64::NAN)
}

/// Publishes sequentially, and returns the start and latency of each.
async fn publishes(api: Target, stop: CancellationToken) -> Outcome<Vec<(u64, f64)>> {
    let (mut client, mut took) = (api.connect().await?, Vec::new());
    while !stop.is_cancelled() {
        let (at, began) = (now(), Instant::now());
        client.publish("other", "ttl=60", b"x").await?;
        took.push((at, began.elapsed().as_secs_f64() * 1000.0));
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    Ok(took)
}

async fn together(bench: &Bench, store: Store) -> Outcome {
    let setup = Setup::one(store).await?;
    let (api, count) = (&setup.first().api, bench.size(10_000, 500));
    let due = (now() / 1000 + bench.seconds(40.0, 10.0).as_secs()) * 1000;
    let start = due / 1000;
    put_all(api, count, |_| json!({ "queue": "q", "every": 86400, "start": start, "text": "{}" })).await?;
    bench.figure("milliseconds left when all were set", due as f64 - now() as f64, "ms");
    let stop = CancellationToken::new();
    let others: Vec<_> = (0..4).map(|_| tokio::spawn(publishes(api.clone(), stop.clone()))).collect();
    tokio::time::sleep(Duration::from_millis((due + 5000).saturating_sub(now()))).await;
    stop.cancel();
    let mut took = Vec::new();
    for other in others {
        took.extend(
            other.await??.into_iter().filter(|(at, _)| (due..due + 600).contains(at)).map(|(_, ms)| ms),
        );
    }
    took.sort_by(f64::total_cmp);
    let late = lateness(api).await?;
    bench.none("not placed", count - late.len(), count);
    bench.figure("the first is late by", percentile(&late, 0.0), "ms");
    bench.figure("the median", percentile(&late, 0.5), "ms");
    bench.at_most("the last", percentile(&late, 1.0), 500.0, "ms");
    bench.figure("other publishes meanwhile, median", percentile(&took, 0.5), "ms");
    bench.at_most("p99", percentile(&took, 0.99), 50.0, "ms");
    Ok(())
}

async fn idle(bench: &Bench, store: Store) -> Outcome {
    let setup = Setup::one_in(store, &UNBOUNDED).await?;
    let (api, count) = (&setup.first().api, bench.size(100_000, 5000));
    let before = support::proc::memory(setup.first().pid())?.0;
    let began = Instant::now();
    let setting = |n: usize| json!({ "queue": "q", "cron": format!("{} 3 1 1 *", n % 60), "text": "{}" });
    put_all(api, count, setting).await?;
    bench.figure("set", count as f64 / began.elapsed().as_secs_f64(), "schedules/s");
    let began = Instant::now();
    put_all(api, count, setting).await?;
    bench.figure("the same set again", began.elapsed().as_secs_f64(), "s");
    tokio::time::sleep(Duration::from_secs(3)).await;
    let meter = support::proc::Meter::start(setup.processes())?;
    let time = bench.seconds(60.0, 5.0);
    tokio::time::sleep(time).await;
    for (name, used) in meter.used()? {
        bench.figure(&format!("{name}: of a core"), used.as_secs_f64() / time.as_secs_f64() * 100.0, "%");
    }
    let memory = support::proc::memory(setup.first().pid())?;
    bench.at_most("memory of the server, more than before", (memory.0 - before) / 1024.0, 100.0, "MB");
    if let Some(redis) = &setup.redis {
        let used: f64 = support::setup::info(redis, "memory", "used_memory")?;
        bench.figure("memory of the Redis", used / f64::from(1 << 20), "MB");
    }
    let began = Instant::now();
    lateness(api).await?;
    bench.figure("to list them all", began.elapsed().as_secs_f64(), "s");
    Ok(())
}

/// Measures a thousand schedules, each due once a second, spread over the second.
async fn steady(bench: &Bench, store: Store) -> Outcome {
    let setup = Setup::one(store).await?;
    let (api, count) = (&setup.first().api, bench.size(1000, 100));
    let first = now() / 1000 + 5;
    let setting = |n: usize| json!({ "queue": "q", "every": 1, "start": format!("{first}.{:03}", n % 1000), "text": "{}", "ttl": 20 });
    put_all(api, count, setting).await?;
    tokio::time::sleep(Duration::from_secs(8)).await;
    let meter = support::proc::Meter::start(setup.processes())?;
    let time = bench.seconds(20.0, 5.0);
    tokio::time::sleep(time).await;
    for (name, used) in meter.used()? {
        let each = used.as_secs_f64() * 1e6 / (count as f64 * time.as_secs_f64());
        bench.figure(&format!("{name}: of each occurrence"), each, "us");
    }
    let late = lateness(api).await?;
    bench.figure("late, median", percentile(&late, 0.5), "ms");
    bench.at_most("p99", percentile(&late, 0.99), 10.0, "ms");
    bench.figure("latest", percentile(&late, 1.0), "ms");
    Ok(())
}
