//! Cost of the dashboard: each page with ten thousand queues and millions of jobs, twenty open pages, the sampler
//! alone, and an action on a million dead jobs beside other requests. docs/benchmarks.md says how to run it.

mod support;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use support::client::{Answer, Client, Target};
use support::ledger::Spread;
use support::proc::{Meter, cpu, memory};
use support::report::Bench;
use support::setup::{Setup, Store};
use support::{Outcome, load, report};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

const BULK: usize = 64;
const CONNECTIONS: usize = 16;
const LONG: Duration = Duration::from_secs(900);
/// Number of queues on the pages.
const QUEUES: usize = 10_000;

fn main() -> ExitCode {
    report::run(async |bench| {
        for store in [Store::Disk, Store::Redis] {
            let name = format!("pages {store}: 10,000 queues, 1,000 publishes a second");
            bench.long_section(&name, LONG, pages(bench, store)).await;
        }
        for store in [Store::Disk, Store::Redis] {
            bench.long_section(&format!("sampler {store}: nobody looks"), LONG, sampler(bench, store)).await;
        }
        for store in [Store::Disk, Store::Redis] {
            bench
                .long_section(&format!("bulk {store}: a million dead jobs respawn"), LONG, bulk(bench, store))
                .await;
        }
    })
}

/// Returns a bulk of jobs with JSON bodies.
fn many() -> String {
    let job =
        "{\"order\":\"A-1042\",\"customer\":\"ann@example.com\",\"lines\":[{\"sku\":\"x\",\"count\":3}]}";
    format!("[{}]", [job; BULK].join(","))
}

/// Publishes one job to each of `queues` queues, and `delayed` delayed ones to the first.
async fn fill(setup: &Setup, queues: usize, delayed: usize) -> Outcome {
    let api = &setup.first().api;
    load::send(api, CONNECTIONS, queues, 201, |api, n| {
        api.put(&format!("/api/bench/queue-{n}"), b"{\"n\":1}")
    })
    .await?;
    load::send(api, CONNECTIONS, delayed / BULK, 201, |api, n| {
        let path = format!("/api/bench/queue-{}/bulk?delay={}", n % 10, 7200 + n % 70_000);
        api.put(&path, many().as_bytes())
    })
    .await
}

/// Publishes at this rate until `stop`. Returns the latencies, counted from when each publish should have begun.
async fn publishes(target: Target, per_second: f64, stop: CancellationToken) -> Outcome<Spread> {
    let mut tasks = JoinSet::new();
    for n in 0..CONNECTIONS {
        let (mut client, stop) = (target.connect().await?, stop.clone());
        tasks.spawn(async move {
            let mut due = tokio::time::interval(Duration::from_secs_f64(CONNECTIONS as f64 / per_second));
            let mut met = Spread::default();
            loop {
                let at = tokio::select! {
                    () = stop.cancelled() => return Outcome::Ok(met),
                    at = due.tick() => at,
                };
                client.publish(&format!("queue-{n}"), "delay=3600", b"{\"n\":2}").await?;
                met.add(at.elapsed());
            }
        });
    }
    let mut all = Spread::default();
    while let Some(ended) = tasks.join_next().await {
        all.merge(&ended??);
    }
    Ok(all)
}

/// Returns the pages by their names in the table.
fn paths(id: &str) -> Vec<(&'static str, String)> {
    let queue = "default/bench/queue-0";
    [
        ("overview", String::new()),
        ("queues", "queues".into()),
        ("queues by name", "queues?sort=name".into()),
        ("queues, a part of a name", "queues?q=queue-99".into()),
        ("namespace", "namespaces/default/bench".into()),
        ("queue, ready", format!("queues/{queue}?state=ready")),
        ("queue, delayed", format!("queues/{queue}?state=delayed")),
        ("job", format!("jobs/{queue}/{id}")),
        ("push", format!("push/{queue}")),
        ("dead", "dead".into()),
        ("schedules", "schedules".into()),
        ("tokens", "tokens/default/bench".into()),
        ("bulk", "bulk".into()),
        ("server", "server".into()),
    ]
    .into_iter()
    .map(|(name, path)| (name, format!("/ui/{path}")))
    .collect()
}

fn etag(answer: &Answer) -> Option<String> {
    let mut headers = answer.head.lines().filter_map(|line| line.split_once(": "));
    headers.find(|(name, _)| name.eq_ignore_ascii_case("etag")).map(|(_, tag)| tag.to_owned())
}

/// Requests a page `times` times. Returns the latency, the size, and the ETag.
async fn ask(client: &mut Client, path: &str, times: usize) -> Outcome<(Spread, usize, Option<String>)> {
    let (mut met, mut size, mut tag) = (Spread::default(), 0, None);
    for _ in 0..times {
        let (request, began) = (client.target.bare("GET", path), Instant::now());
        let answer = client.expect(200, &request).await?;
        met.add(began.elapsed());
        size = answer.body.len();
        tag = etag(&answer);
    }
    Ok((met, size, tag))
}

/// Returns the request with the ETag of an earlier reply.
fn again(target: &Target, path: &str, tag: &str) -> Vec<u8> {
    let mut request = target.bare("GET", path);
    request.truncate(request.len() - 2);
    request.extend_from_slice(format!("If-None-Match: {tag}\r\n\r\n").as_bytes());
    request
}

async fn pages(bench: &Bench, store: Store) -> Outcome {
    let setup = Setup::one(store).await?;
    let (server, queues) = (setup.first(), bench.size(QUEUES, 500));
    let delayed = match store {
        Store::Disk => bench.size(10_000_000, 20_000),
        _ => bench.size(1_000_000, 20_000),
    };
    fill(&setup, queues, delayed).await?;
    let mut client = server.admin.connect().await?;
    let id = server.api.connect().await?.publish("queue-0", "delay=82000", b"{\"n\":3}").await?;
    let id: Value = serde_json::from_slice(&id.body)?;
    let paths = paths(id["job_id"].as_str().ok_or("a publish answers an id")?);
    tokio::time::sleep(bench.seconds(21.0, 11.0)).await;
    let times = bench.size(100, 5);
    // Processor time is measured page by page on an otherwise idle server; latency during publishes.
    let base = {
        let (before, time) = (cpu(server.pid())?, bench.seconds(20.0, 2.0));
        tokio::time::sleep(time).await;
        (cpu(server.pid())? - before).as_secs_f64() / time.as_secs_f64()
    };
    for (name, path) in &paths {
        let (before, began) = (cpu(server.pid())?, Instant::now());
        let (_, size, tag) = ask(&mut client, path, times).await?;
        let used = (cpu(server.pid())? - before).as_secs_f64() - base * began.elapsed().as_secs_f64();
        bench.at_most(&format!("{name}: processor time"), used.max(0.0) * 1000.0 / times as f64, 2.5, "ms");
        bench.at_most(&format!("{name}: size"), size as f64 / 1024.0, 500.0, "KB");
        let Some(tag) = tag else { continue };
        let (request, before, began) = (again(&server.admin, path, &tag), cpu(server.pid())?, Instant::now());
        let mut unchanged = 0;
        for _ in 0..times {
            unchanged += usize::from(client.call(&request).await?.status == 304);
        }
        let used = (cpu(server.pid())? - before).as_secs_f64() - base * began.elapsed().as_secs_f64();
        bench.figure(&format!("{name}: of {times} asked again, unchanged"), unchanged as f64, "");
        bench.figure(
            &format!("{name}: processor time asked again"),
            used.max(0.0) * 1000.0 / times as f64,
            "ms",
        );
    }
    let time = bench.seconds(20.0, 2.0);
    let quiet = beside(&setup, time, async { Ok(()) }).await?;
    bench.figure("publishes p99, nobody looks", quiet.0.ms(0.99), "ms");
    let mut all = Vec::new();
    let asked = async {
        for (name, path) in &paths {
            all.push((name, ask(&mut client, path, times).await?.0));
        }
        Ok(())
    };
    let each = beside(&setup, time, asked).await?.0;
    for (name, met) in &all {
        bench.at_most(&format!("{name}: p99 beside publishes"), met.ms(0.99), 100.0, "ms");
        bench.figure(&format!("{name}: p50"), met.ms(0.5), "ms");
    }
    bench.figure("publishes p99, one page after the other", each.ms(0.99), "ms");
    let looked = beside(&setup, time, looking(&server.admin, 20, &paths, time)).await?;
    bench.figure("publishes p99, 20 pages open", looked.0.ms(0.99), "ms");
    bench.at_most("20 pages open: of a core", 100.0 * (looked.1 - quiet.1), 1.0, "%");
    let search = async {
        let (mut client, end) = (server.admin.connect().await?, Instant::now() + time);
        while Instant::now() < end {
            let path = "/ui/queues/default/bench/queue-0?state=delayed&contains=nowhere";
            client.expect(200, &server.admin.bare("GET", path)).await?;
        }
        Ok(())
    };
    let searched = beside(&setup, time, search).await?;
    bench.figure("publishes p99, a search after the other", searched.0.ms(0.99), "ms");
    let (bound, mut took) = (if store == Store::Disk { 10.0 } else { 5.0 }, Duration::ZERO);
    let (used, due) = (cpu(server.pid())?, async {
        let began = Instant::now();
        let request = server.admin.bare("GET", "/info/delays?pool=default&by=hour");
        server.admin.connect().await?.expect(200, &request).await?;
        took = began.elapsed();
        Ok(())
    });
    let counted = beside(&setup, Duration::ZERO, due).await?;
    bench.at_most("when all delayed jobs fall due", took.as_secs_f64(), bound, "s");
    bench.figure("the same: processor time, publishes too", (cpu(server.pid())? - used).as_secs_f64(), "s");
    bench.figure("publishes p99 meanwhile", counted.0.ms(0.99), "ms");
    bench.figure("memory of the server", memory(server.pid())?.0 / 1024.0, "MB");
    Ok(())
}

/// Runs `work` beside 1,000 publishes a second. Returns their latencies, and the server's use of a core.
async fn beside(
    setup: &Setup,
    time: Duration,
    work: impl Future<Output = Outcome>,
) -> Outcome<(Spread, f64)> {
    let (server, stop) = (setup.first(), CancellationToken::new());
    let publishing = tokio::spawn(publishes(server.api.clone(), 1000.0, stop.clone()));
    let (before, began) = (cpu(server.pid())?, Instant::now());
    work.await?;
    tokio::time::sleep(time.saturating_sub(began.elapsed())).await;
    let used = (cpu(server.pid())? - before).as_secs_f64() / began.elapsed().as_secs_f64();
    stop.cancel();
    Ok((publishing.await??, used))
}

/// Simulates `browsers` browsers that revalidate their page every five seconds.
async fn looking(
    admin: &Target,
    browsers: usize,
    paths: &[(&'static str, String)],
    time: Duration,
) -> Outcome {
    let mut tasks = JoinSet::new();
    for n in 0..browsers {
        let (mut client, path) = (admin.connect().await?, paths[n % 6].1.clone());
        tasks.spawn(async move {
            let (began, mut tag) = (Instant::now(), None::<String>);
            tokio::time::sleep(Duration::from_millis(250 * n as u64)).await;
            while began.elapsed() < time {
                let request = match &tag {
                    Some(tag) => again(&client.target, &path, tag),
                    None => client.target.bare("GET", &path),
                };
                let answer = client.call(&request).await?;
                if answer.status == 200 {
                    tag = etag(&answer);
                }
                tokio::time::sleep(Duration::from_secs(5)).await;
            }
            Outcome::Ok(())
        });
    }
    load::all(tasks).await
}

/// Measures the idle server's processor time by the number of queues.
async fn sampler(bench: &Bench, store: Store) -> Outcome {
    for queues in [100, bench.size(QUEUES, 500), bench.size(100_000, 1000)] {
        let setup = Setup::one(store).await?;
        let (before, _) = memory(setup.first().pid())?;
        fill(&setup, queues, 0).await?;
        tokio::time::sleep(bench.seconds(25.0, 11.0)).await;
        let (meter, time) = (Meter::start(setup.processes())?, bench.seconds(60.0, 11.0));
        tokio::time::sleep(time).await;
        for (name, used) in meter.used()?.into_iter().filter(|(name, _)| *name != "client") {
            let part = 100.0 * used.as_secs_f64() / time.as_secs_f64();
            bench.at_most(&format!("{queues} queues: {name}: of a core"), part, 0.5, "%");
        }
        bench.figure(
            &format!("{queues} queues: memory, more than before"),
            (memory(setup.first().pid())?.0 - before) / 1024.0,
            "MB",
        );
    }
    Ok(())
}

async fn bulk(bench: &Bench, store: Store) -> Outcome {
    let setup = Setup::one(store).await?;
    let (server, dead) = (setup.first(), bench.size(1_000_000, 12_800));
    load::send(&server.api, CONNECTIONS, dead / BULK, 201, |api, _| {
        api.put("/api/bench/mail/bulk?tries=1", many().as_bytes())
    })
    .await?;
    load::send(&server.api, CONNECTIONS, dead / 100, 200, |api, _| {
        api.bare("GET", "/api/bench/mail?count=100&ttr=1")
    })
    .await?;
    let (mut api, began) = (server.api.connect().await?, Instant::now());
    let mut size = 0;
    // Jobs that do not fill a reply stay ready.
    while size < dead / 100 * 100 && began.elapsed() < Duration::from_secs(120) {
        tokio::time::sleep(Duration::from_millis(200)).await;
        let request = server.api.bare("GET", "/api/bench/mail/deadletter/size");
        let answer: Value = serde_json::from_slice(&api.expect(200, &request).await?.body)?;
        size = usize::try_from(answer["size"].as_u64().unwrap_or_default())?;
    }
    bench.figure("dead jobs", size as f64, "");
    let (stop, time) = (CancellationToken::new(), bench.seconds(10.0, 1.0));
    let light = tokio::spawn(load::light(server.api.clone(), 200.0, stop.clone()));
    tokio::time::sleep(time).await;
    stop.cancel();
    let before = light.await??;
    let stop = CancellationToken::new();
    let light = tokio::spawn(load::light(server.api.clone(), 200.0, stop.clone()));
    let (mut admin, began) = (server.admin.connect().await?, Instant::now());
    let body = json!({ "namespace": "bench", "queue": "mail", "action": "respawn" }).to_string();
    let answer = admin.expect(202, &server.admin.with_body("POST", "/bulk", body.as_bytes())).await?;
    let answer: Value = serde_json::from_slice(&answer.body)?;
    let request = server.admin.bare("GET", &format!("/bulk/{}", answer["id"].as_str().unwrap_or_default()));
    let ended = loop {
        let now: Value = serde_json::from_slice(&admin.expect(200, &request).await?.body)?;
        if now["status"] != "running" {
            break now;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    };
    bench.figure("until all were back", began.elapsed().as_secs_f64(), "s");
    stop.cancel();
    let during = light.await??;
    bench.note(format_args!("{} of {}: {}", ended["done"], ended["total"], ended["status"]));
    let ready = api.ready("mail").await?;
    bench.figure("ready afterwards", ready as f64, "");
    for (name, before, during) in
        [("publishes", &before.publish, &during.publish), ("consumes", &before.consume, &during.consume)]
    {
        bench.figure(&format!("{name} on other queues p99, before"), before.ms(0.99), "ms");
        bench.figure(&format!("{name} p99, meanwhile"), during.ms(0.99), "ms");
    }
    Ok(())
}
