//! Cost of waiting consumers: thousands of parked polls, disconnected polls, wake-ups by other servers and by an lmstfy
//! server, and the work of an idle server. docs/benchmarks.md says how to run it.

mod support;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dormouse::clock::system_now;
use dormouse::job::JobIds;
use support::ledger::Ledger;
use support::load::{self, Plan};
use support::park::park;
use support::proc::{Meter, memory};
use support::report::Bench;
use support::setup::{Setup, Store, command_counts, info};
use support::{Outcome, report};

fn main() -> ExitCode {
    report::run(async |bench| {
        let parked = [
            (Store::Disk, 1, one as fn(usize) -> _),
            (Store::Disk, 1000, thousand),
            (Store::Redis, 1, one),
            (Store::Redis, 1000, thousand),
        ];
        for (store, queues, job) in parked {
            let name = format!("parked {store}: polls on {queues} queue(s)");
            bench.section(&name, crowd(bench, store, queues, job)).await;
        }
        for store in [Store::Disk, Store::Redis] {
            bench.section(&format!("closed {store}: polls cut off"), closed(bench, store)).await;
        }
        bench.section("across redis: publishes on one server, polls on another", across(bench)).await;
        bench.section("lpush redis: jobs pushed by a third party", pushed(bench)).await;
        for store in [Store::Disk, Store::Redis] {
            bench.section(&format!("idle {store}: nothing happens"), idle(bench, store)).await;
        }
    })
}

type Job = (String, u64, &'static str);

fn one(_: usize) -> Job {
    ("park-0".into(), 0, "")
}

fn thousand(number: usize) -> Job {
    (format!("park-{}", number % 1000), 0, "")
}

/// Parks polls, waits, and then publishes 500 jobs a second.
async fn crowd(bench: &Bench, store: Store, queues: usize, job: fn(usize) -> Job) -> Outcome {
    let setup = Setup::one(store).await?;
    let server = setup.first();
    let polls = bench.size(15_000, 1_000);
    let jobs = bench.size(5_000, 250);
    let ledger = Arc::new(Ledger::new(jobs));
    server.api.connect().await?.consume("warm-up", "").await?;
    let (before, _) = memory(server.pid())?;
    let began = Instant::now();
    let parked = park(server, polls, queues, &ledger, false).await?;
    bench.figure(&format!("parking {polls} polls"), began.elapsed().as_secs_f64(), "s");
    let (after, peak) = memory(server.pid())?;
    bench.at_most("server memory for each", (after - before) / polls as f64, 12.0, "KB");
    bench.figure("server memory", after / 1024.0, "MB");
    if let Some(redis) = &setup.redis {
        // Excludes the connection of this query.
        bench.at_most(
            "Redis connections",
            info::<f64>(redis, "clients", "connected_clients")? - 1.0,
            16.0,
            "",
        );
    }
    bench.figure("server memory, peak until here", peak / 1024.0, "MB");
    quiet(bench, &setup, bench.seconds(5.0, 1.0)).await?;

    let meter = Meter::start(setup.processes())?;
    let plan = Plan { ledger: ledger.clone(), jobs, per_second: 500.0, connections: 16, job };
    load::publish(&[&server.api], plan).await?;
    ledger.complete(1, Duration::from_secs(15)).await;
    for (name, used) in meter.used()? {
        bench.figure(&format!("processor time, {name}"), used.as_micros() as f64 / jobs as f64, "us/job");
    }
    bench.none("lost", jobs - ledger.count(1), jobs);
    bench.figure("publish to delivery p50", ledger.delivery().ms(0.5), "ms");
    bench.at_most("publish to delivery p99", ledger.delivery().ms(0.99), 10.0, "ms");
    bench.figure("publish to delivery, the slowest", ledger.delivery().ms(1.0), "ms");
    bench.figure("server memory, peak", memory(server.pid())?.1 / 1024.0, "MB");
    load::end(parked).await
}

/// Measures the work of the processes while nothing happens.
async fn quiet(bench: &Bench, setup: &Setup, time: Duration) -> Outcome {
    let counts = || setup.redis.as_ref().map(command_counts).transpose();
    let (before, meter) = (counts()?, Meter::start(setup.processes())?);
    tokio::time::sleep(time).await;
    let (used, after) = (meter.used()?, counts()?);
    for (name, used) in used {
        bench.figure(
            &format!("idle: processor, {name}"),
            100.0 * used.as_secs_f64() / time.as_secs_f64(),
            "%",
        );
    }
    let (Some(before), Some(after)) = (before, after) else { return Ok(()) };
    let mut rates: Vec<(f64, &str)> = after
        .iter()
        .map(|(name, calls)| (calls - before.get(name).unwrap_or(&0), name.as_str()))
        .filter(|(calls, _)| *calls > 0)
        .map(|(calls, name)| (calls as f64 / time.as_secs_f64(), name))
        .collect();
    rates.sort_by(|a, b| b.0.total_cmp(&a.0));
    // Commands within scripts are counted too.
    bench.figure(
        "idle: Redis commands, those within scripts too",
        rates.iter().map(|(rate, _)| rate).sum(),
        "/s",
    );
    let shown: Vec<String> = rates.iter().take(6).map(|(rate, name)| format!("{name} {rate:.1}")).collect();
    bench.note(format_args!("      {}", shown.join(", ")));
    Ok(())
}

/// Disconnects all polls at once, half of them by a reset, and immediately publishes jobs with one try.
async fn closed(bench: &Bench, store: Store) -> Outcome {
    let setup = Setup::one(store).await?;
    let server = setup.first();
    let jobs = bench.size(2_000, 200);
    let ledger = Arc::new(Ledger::new(jobs));
    let gone = Arc::new(Ledger::new(jobs));
    let mut parked = park(server, jobs, 1, &gone, true).await?;
    let live = load::consumers(&server.api, 50, "park-0", 600, &ledger, 1).await?;
    server.wait_parked(jobs + 50).await?;
    let plan = Plan {
        ledger: ledger.clone(),
        jobs,
        per_second: 20_000.0,
        connections: 16,
        job: |n| (one(n).0, 0, "&tries=1"),
    };
    parked.abort_all();
    let targets = [&server.api];
    let publishing = load::publish(&targets, plan);
    // The client's tasks and their sockets end while the first jobs are published.
    let (published, ()) = tokio::join!(publishing, async { while parked.join_next().await.is_some() {} });
    published?;
    ledger.complete(1, Duration::from_secs(20)).await;
    bench.none("given to polls that were cut off, or lost", jobs - ledger.count(1), jobs);
    let mut asker = server.api.connect().await?;
    let answer = asker.expect(200, &server.api.bare("GET", "/api/bench/park-0/deadletter/size")).await?;
    bench.note(format_args!("dead letter: {}", String::from_utf8_lossy(&answer.body)));
    load::end(live).await
}

/// Measures delivery from one server to consumers of another, on one Redis.
async fn across(bench: &Bench) -> Outcome {
    let setup = Setup::redis(&[&[], &[]]).await?;
    let jobs = bench.size(2_000, 100);
    let ledger = Arc::new(Ledger::new(jobs));
    let live = load::consumers(&setup.last().api, 16, "park-0", 120, &ledger, 1).await?;
    setup.last().wait_parked(16).await?;
    let plan = Plan { ledger: ledger.clone(), jobs, per_second: 200.0, connections: 4, job: one };
    load::publish(&[&setup.first().api], plan).await?;
    ledger.complete(1, Duration::from_secs(15)).await;
    bench.none("lost", jobs - ledger.count(1), jobs);
    bench.at_most("publish to delivery p50", ledger.delivery().ms(0.5), 2.0, "ms");
    bench.figure("publish to delivery p99", ledger.delivery().ms(0.99), "ms");
    bench.figure("publish to delivery, the slowest", ledger.delivery().ms(1.0), "ms");
    load::end(live).await
}

/// Stores jobs like an lmstfy server: the body, then a plain LPUSH without a notification.
async fn pushed(bench: &Bench) -> Outcome {
    let setup = Setup::one(Store::Redis).await?;
    let redis = setup.redis.as_ref().ok_or("a setup on Redis has one")?;
    let jobs = bench.size(200, 20);
    let ledger = Arc::new(Ledger::new(jobs));
    let live = load::consumers(&setup.first().api, 4, "park-0", 120, &ledger, 1).await?;
    setup.first().wait_parked(4).await?;
    let (mut connection, noted) = (redis.connection(), ledger.clone());
    let pushing = tokio::task::spawn_blocking(move || -> Outcome {
        let ids = JobIds::default();
        for number in 0..jobs {
            let id = ids.make(system_now(), 0, false).to_string();
            // struct.pack("<HHc0", tries, #id, id)
            let mut member = [1u16.to_le_bytes(), u16::try_from(id.len())?.to_le_bytes()].concat();
            member.extend_from_slice(id.as_bytes());
            noted.sent(number, Duration::ZERO);
            let () = redis::cmd("SET")
                .arg(format!("j/bench/park-0/{id}"))
                .arg(number)
                .arg("EX")
                .arg(600)
                .query(&mut connection)?;
            let () = redis::cmd("LPUSH").arg("q/bench/park-0").arg(member).query(&mut connection)?;
            noted.answered(number);
            std::thread::sleep(Duration::from_millis(23));
        }
        Ok(())
    });
    pushing.await??;
    ledger.complete(1, Duration::from_secs(15)).await;
    bench.none("lost", jobs - ledger.count(1), jobs);
    bench.figure("push to delivery p50", ledger.delivery().ms(0.5), "ms");
    bench.at_most("push to delivery, the slowest", ledger.delivery().ms(1.0), 60.0, "ms");
    load::end(live).await
}

/// Measures an idle server with no poll, one, and ten thousand.
async fn idle(bench: &Bench, store: Store) -> Outcome {
    let setup = Setup::one(store).await?;
    let ledger = Arc::new(Ledger::new(0));
    let time = bench.seconds(10.0, 1.0);
    for (polls, queues) in [(0, 1), (1, 1), (bench.size(10_000, 500), 100)] {
        bench.note(format_args!("{polls} parked polls, {queues} queue(s)"));
        let parked = park(setup.first(), polls, queues, &ledger, false).await?;
        quiet(bench, &setup, time).await?;
        load::end(parked).await?;
        setup.first().wait_parked(0).await?;
    }
    Ok(())
}
