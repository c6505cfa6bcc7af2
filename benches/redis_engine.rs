//! Cost of the Redis engine's calls for the Redis: `cargo bench --bench redis_engine [-- SECTION..]`. Sections: calls,
//! longest (how long one script blocks the Redis), pump (a million due jobs), idle (10,000 watched queues and nothing
//! else), busy (a watched queue that changes all the time), verbs (keyed publishes, touches, releases, acks of a
//! hundred), lists (a walk through a million jobs, and publishes meanwhile), memory and turns (both layouts: bytes per
//! job; processor time of the Redis and of this process, alternating). Each does a fixed amount of work on its own
//! Redis servers; `JOBS` sets the number of jobs for memory, `LAYOUT` the layouts, `ROUNDS` the number of turns.

#[allow(dead_code)] // only attached here
#[path = "../tests/support/notified.rs"]
mod notified;
#[path = "../tests/support/redis_connection.rs"]
mod redis_connection;
#[path = "../tests/support/redis_server.rs"]
mod redis_server;

use std::future::Future;
use std::num::NonZeroU16;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use dormouse::engine::redis::{RedisAddress, RedisEngine};
use dormouse::engine::{Engine, JobList, Listing, OnConflict, Placing, Publication, Release, Respawn, Tries};
use dormouse::job::{Attributes, JobIds, JobRef, JobState, NewJob};
use dormouse::name::{JobKey, Namespace, PoolName, Queue, QueueName};
use hdrhistogram::Histogram;
use notified::Notified;
use redis_server::RedisServer;

const JOBS: usize = 64_000;

fn queue(name: &str) -> Queue {
    Queue {
        namespace: Namespace::parse("shop").expect("a name"),
        name: QueueName::parse(name).expect("a name"),
    }
}

async fn engine(server: &RedisServer) -> Arc<RedisEngine> {
    let address = RedisAddress { addrs: vec![server.addr()], ..RedisAddress::default() };
    RedisEngine::connect(address, &PoolName::default_pool()).await.expect("the server is there")
}

/// Returns the CPU time used by the server, in microseconds.
fn cpu(server: &RedisServer) -> f64 {
    let info: redis::InfoDict = redis::cmd("INFO").arg("cpu").query(&mut server.connection()).expect("INFO");
    let read = |field| info.get::<f64>(field).unwrap_or(0.0);
    (read("used_cpu_user") + read("used_cpu_sys")) * 1e6
}

/// Runs `JOBS` calls from `callers` callers and prints their cost.
async fn phase<F, Fut>(what: &str, server: &RedisServer, callers: usize, call: F)
where
    F: Fn(usize) -> Fut + Clone + Send + 'static,
    Fut: Future<Output = ()> + Send,
{
    let (begun, before) = (Instant::now(), cpu(server));
    let jobs = if callers == 1 { JOBS / 16 } else { JOBS };
    let each = jobs / callers;
    let tasks: Vec<_> = (0..callers)
        .map(|c| {
            let call = call.clone();
            tokio::spawn(async move {
                let mut times = Histogram::<u64>::new(3).expect("3 digits");
                for i in 0..each {
                    let sent = Instant::now();
                    call(c * each + i).await;
                    times.record(sent.elapsed().as_micros() as u64).expect("it grows");
                }
                times
            })
        })
        .collect();
    let mut times = Histogram::<u64>::new(3).expect("3 digits");
    for task in tasks {
        times.add(task.await.expect("the caller ends")).expect("of one kind");
    }
    let (took, used) = (begun.elapsed(), cpu(server) - before);
    println!(
        "{what:8} {callers:3} callers: {:7.0}/s  {:5.1} us of Redis each  p50 {:5} us  p99 {:6} us",
        jobs as f64 / took.as_secs_f64(),
        used / jobs as f64,
        times.value_at_quantile(0.5),
        times.value_at_quantile(0.99),
    );
}

async fn calls() {
    for n in 1..=3 {
        println!("time {n}");
        for callers in [1, 64] {
            let server = RedisServer::start();
            let (engine, q) = (engine(&server).await, queue("orders"));
            let ids = Arc::new(JobIds::default());
            let body = Bytes::from(vec![b'x'; 100]);
            let jobs = if callers == 1 { JOBS / 16 } else { JOBS };
            let made: Arc<Vec<_>> = Arc::new((0..jobs).map(|_| ids.make(engine.now(), 0, false)).collect());
            let (e, all, queue) = (engine.clone(), made.clone(), q.clone());
            phase("publish", &server, callers, move |i| {
                let (e, queue, id, body) = (e.clone(), queue.clone(), all[i], body.clone());
                async move {
                    let job = NewJob {
                        queue,
                        id,
                        body,
                        attributes: Attributes::new(),
                        ttl: Some(Duration::from_secs(86_400)),
                        delay: Duration::ZERO,
                        tries: NonZeroU16::MIN,
                    };
                    e.publish(vec![job].into()).await.expect("published");
                }
            })
            .await;
            let (e, queue) = (engine.clone(), q.clone());
            phase("consume", &server, callers, move |_| {
                let (e, list) = (e.clone(), queue.clone().into());
                async move {
                    let got = e.consume(&list, &[Duration::from_secs(120)]).await.expect("consumed");
                    assert_eq!(got.jobs.len(), 1, "there is one for everybody");
                }
            })
            .await;
            let (e, queue) = (engine.clone(), q.clone());
            phase("ack", &server, callers, move |i| {
                let (e, job) = (e.clone(), JobRef { queue: queue.clone(), id: made[i] });
                async move { drop(e.ack(&job.queue, &[(job.id, None)]).await.expect("acked")) }
            })
            .await;
            engine.close().await;
        }
    }
}

async fn idle() {
    for watched in [0, 10_000] {
        let server = RedisServer::start();
        let engine = engine(&server).await;
        let queues: Vec<_> = (0..watched).map(|n| queue(&format!("q{n}"))).collect();
        let _notified = Notified::attach(&*engine, &queues);
        tokio::time::sleep(Duration::from_secs(1)).await;
        let commands = || {
            let info: redis::InfoDict =
                redis::cmd("INFO").arg("stats").query(&mut server.connection()).expect("INFO");
            info.get::<u64>("total_commands_processed").unwrap_or(0)
        };
        let (before, used) = (commands(), cpu(&server));
        tokio::time::sleep(Duration::from_secs(4)).await;
        let own = 4; // the questions themselves: each connection says HELLO or CLIENT SETINFO, and INFO
        println!(
            "{watched} watched: {:.1} commands/s (of which {own} or so in all are this question's), {:.0} us of Redis/s",
            (commands() - before) as f64 / 4.0,
            (cpu(&server) - used) / 4.0
        );
        engine.close().await;
    }
}

/// Stores `jobs` jobs, 64 per call.
async fn fill(engine: &RedisEngine, q: &Queue, jobs: usize, delay: Duration) {
    let ids = JobIds::default();
    let body = Bytes::from(vec![b'x'; 100]);
    for first in (0..jobs).step_by(64) {
        let some = (first..jobs.min(first + 64)).map(|_| NewJob {
            queue: q.clone(),
            id: ids.make(engine.now(), 0, false),
            body: body.clone(),
            attributes: Attributes::new(),
            ttl: Some(Duration::from_secs(86_400)),
            delay,
            tries: NonZeroU16::MIN,
        });
        engine.publish(some.collect::<Vec<_>>().into()).await.expect("published");
    }
}

/// Clears the slow log, and logs calls from now on, except for the shortest: commands within scripts are logged too,
/// and would push the scripts out of the log.
fn log_all(conn: &mut redis::Connection) {
    redis::cmd("CONFIG")
        .arg(&["SET", "slowlog-log-slower-than", "30", "slowlog-max-len", "20000"])
        .exec(conn)
        .expect("CONFIG SET");
    redis::cmd("SLOWLOG").arg("RESET").exec(conn).expect("SLOWLOG RESET");
}

/// Prints how long the scripts ran within Redis since `log_all`.
fn print_log(what: &str, conn: &mut redis::Connection) {
    type Entry = (u64, u64, u64, Vec<Vec<u8>>, redis::Value, redis::Value);
    let entries: Vec<Entry> = redis::cmd("SLOWLOG").arg("GET").arg(20_000).query(conn).expect("SLOWLOG GET");
    let mut times = Histogram::<u64>::new(3).expect("3 digits");
    for (_, _, micros, args, _, _) in entries {
        if args.first().is_some_and(|command| command == b"EVALSHA") {
            times.record(micros).expect("it grows");
        }
    }
    println!(
        "{what:30} {:5} calls inside Redis: p50 {:5} us  p99 {:5} us  longest {:5} us",
        times.len(),
        times.value_at_quantile(0.5),
        times.value_at_quantile(0.99),
        times.max()
    );
}

async fn longest() {
    for name in ["orders".to_owned(), "q".repeat(255)] {
        let server = RedisServer::start();
        let (engine, q) = (engine(&server).await, queue(&name));
        let conn = &mut server.connection();
        println!("a queue's name of {} bytes", name.len());
        log_all(conn);
        fill(&engine, &q, 64_000, Duration::ZERO).await;
        print_log("publish, 64 ready", conn);
        log_all(conn);
        let ttrs = [Duration::from_millis(1); 128];
        let list = q.clone().into();
        let mut taken = Vec::new();
        for _ in 0..500 {
            let got = engine.consume(&list, &ttrs[..64]).await.expect("consumed");
            taken.extend(got.jobs);
        }
        print_log("consume, 64 jobs", conn);
        log_all(conn);
        for _ in 0..200 {
            engine.consume(&list, &ttrs).await.expect("consumed");
        }
        print_log("consume, 128 jobs", conn);
        log_all(conn);
        while engine.pump().await.expect("pumped").moved > 0 {}
        print_log("pump, 200 without tries", conn);
        log_all(conn);
        let all = Respawn::Oldest { limit: u64::MAX, ttl: None };
        engine.respawn(&q, all).await.expect("respawned");
        print_log("respawn, one step", conn);
        // Deleted without the engine, as by an lmstfy server: elements of deleted jobs at the head.
        for some in taken.chunks(1000) {
            let keys: Vec<_> = some.iter().map(|job| format!("j/shop/{name}/{}", job.id)).collect();
            redis::cmd("DEL").arg(keys).exec(conn).expect("DEL");
        }
        log_all(conn);
        engine.peek(&q).await.expect("peeked");
        print_log("peek behind dead ones", conn);
        log_all(conn);
        engine.consume(&list, &ttrs[..1]).await.expect("consumed");
        print_log("consume behind dead ones", conn);
        log_all(conn);
        engine.destroy(&q, Listing::Keep).await.expect("destroyed");
        print_log("destroy, one step", conn);
        fill(&engine, &q, 64_000, Duration::from_millis(1)).await;
        log_all(conn);
        while engine.pump().await.expect("pumped").moved > 0 {}
        print_log("pump, 200 delayed", conn);
        engine.close().await;
    }
}

async fn pump() {
    let server = RedisServer::start();
    let engine = engine(&server).await;
    fill(&engine, &queue("orders"), 1_000_000, Duration::from_millis(1)).await;
    let conn = &mut server.connection();
    log_all(conn);
    let (begun, before, mut moved) = (Instant::now(), cpu(&server), 0);
    loop {
        let pumped = engine.pump().await.expect("pumped");
        moved += pumped.moved;
        if pumped.moved == 0 {
            break;
        }
    }
    let (took, used) = (begun.elapsed(), cpu(&server) - before);
    println!(
        "{moved} jobs in {took:?}: {:.0} jobs/s, {:.2} us of Redis each",
        moved as f64 / took.as_secs_f64(),
        used / moved as f64
    );
    print_log("pump, 200", conn);
    engine.close().await;
}

async fn busy() {
    for (watched, servers) in [(0, 1), (1, 1), (1, 4), (10_000, 1)] {
        let server = RedisServer::start();
        let mut engines = Vec::new();
        let mut notified = Vec::new();
        let queues: Vec<_> = (0..watched).map(|n| queue(&format!("q{n}"))).collect();
        for _ in 0..servers {
            let engine = engine(&server).await;
            notified.push(Notified::attach(&*engine, &queues));
            engines.push(engine);
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
        let calls = || {
            let info: redis::InfoDict =
                redis::cmd("INFO").arg("commandstats").query(&mut server.connection()).expect("INFO");
            let stat = info.get::<String>("cmdstat_exists").unwrap_or_default();
            let calls = stat.split(['=', ',']).nth(1).and_then(|n| n.parse::<u64>().ok());
            calls.unwrap_or(0)
        };
        // EXISTS calls within scripts are counted too: one per publish.
        let (q, e) = (queue("q0"), &engines[0]);
        let (begun, before, used) = (Instant::now(), calls(), cpu(&server));
        let mut published = 0_u64;
        while begun.elapsed() < Duration::from_secs(2) {
            fill(e, &q, 1, Duration::ZERO).await;
            published += 1;
        }
        let arms = (calls() - before).saturating_sub(published);
        println!(
            "{watched} watched by {servers}: {} publishes/s, {} arming EXISTS/s, {:.1} us of Redis per publish",
            published / 2,
            arms / 2,
            (cpu(&server) - used) / published as f64
        );
        for engine in engines {
            engine.close().await;
        }
    }
}

async fn verbs() {
    for callers in [1, 64] {
        let server = RedisServer::start();
        let (engine, q) = (engine(&server).await, queue("orders"));
        let (ids, ttr) = (Arc::new(JobIds::default()), Duration::from_secs(120));
        let (e, queue) = (engine.clone(), q.clone());
        phase("keyed", &server, callers, move |i| {
            let job = NewJob {
                queue: queue.clone(),
                id: ids.make(e.now(), 0, false),
                body: Bytes::from(vec![b'x'; 100]),
                attributes: Attributes::new(),
                ttl: Some(Duration::from_secs(86_400)),
                delay: Duration::ZERO,
                tries: NonZeroU16::MAX,
            };
            let key = JobKey::parse(&format!("order-{i}")).expect("a key");
            let placing = Placing { job, at: None, key: Some((key, OnConflict::Keep)) };
            let e = e.clone();
            async move {
                let publication = Publication { jobs: vec![placing], replaces: None, once: None };
                e.publish(publication).await.expect("published");
            }
        })
        .await;
        let mut held = Vec::new();
        let count = if callers == 1 { JOBS / 16 } else { JOBS };
        while held.len() < count {
            held.extend(engine.consume(&q.clone().into(), &[ttr; 128]).await.expect("consumed").jobs);
        }
        let held = Arc::new(held);
        let (e, all) = (engine.clone(), held.clone());
        phase("touch", &server, callers, move |i| {
            let (e, job) = (e.clone(), all[i].clone());
            async move {
                let name = JobRef { queue: job.queue.clone(), id: job.id };
                e.touch(&name, job.proof(), ttr).await.expect("touched");
            }
        })
        .await;
        // The receipts are no longer valid, so new jobs are needed.
        fill(&engine, &q, count, Duration::ZERO).await;
        let mut held = Vec::new();
        while held.len() < count {
            held.extend(engine.consume(&q.clone().into(), &[ttr; 128]).await.expect("consumed").jobs);
        }
        let held = Arc::new(held);
        let (e, all) = (engine.clone(), held.clone());
        phase("release", &server, callers, move |i| {
            let (e, job) = (e.clone(), all[i].clone());
            async move {
                let name = JobRef { queue: job.queue.clone(), id: job.id };
                let release = Release { tries: Tries::Restore, ..Release::default() };
                e.release(&name, job.proof(), release).await.expect("released");
            }
        })
        .await;
        let mut held = Vec::new();
        while held.len() < count {
            held.extend(engine.consume(&q.clone().into(), &[ttr; 128]).await.expect("consumed").jobs);
        }
        let (begun, before) = (Instant::now(), cpu(&server));
        for jobs in held.chunks(100) {
            let named: Vec<_> = jobs.iter().map(|job| (job.id, Some(job.proof()))).collect();
            let stale = engine.ack(&q, &named).await.expect("acked");
            assert!(stale.is_empty(), "each is held");
        }
        let calls = held.len().div_ceil(100) as f64;
        let (took, used) = (begun.elapsed().as_micros() as f64, cpu(&server) - before);
        println!("ack of 100: {:.0} us of Redis, {:.0} us each", used / calls, took / calls);
        engine.close().await;
    }
}

/// Publishes sequentially until `stop`. Returns the latencies.
async fn publish_meanwhile(engine: Arc<RedisEngine>, q: Queue, stop: Arc<AtomicBool>) -> Histogram<u64> {
    let mut times = Histogram::<u64>::new(3).expect("3 digits");
    while !stop.load(Ordering::Relaxed) {
        let sent = Instant::now();
        fill(&engine, &q, 1, Duration::from_secs(7200)).await;
        times.record(sent.elapsed().as_micros() as u64).expect("it grows");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    times
}

async fn lists() {
    let server = RedisServer::start();
    let (engine, q) = (engine(&server).await, queue("orders"));
    for (name, jobs, delay) in [
        ("orders", 250_000, Duration::from_secs(3600)),
        ("others", 500_000, Duration::from_secs(3600)),
        ("orders", 250_000, Duration::ZERO),
    ] {
        fill(&engine, &queue(name), jobs, delay).await;
    }
    let conn = &mut server.connection();
    for state in [None, Some(JobState::Delayed), Some(JobState::Ready), Some(JobState::Running)] {
        log_all(conn);
        let stop = Arc::new(AtomicBool::new(false));
        let meanwhile = tokio::spawn(publish_meanwhile(engine.clone(), queue("meanwhile"), stop.clone()));
        let (begun, mut calls, mut shown, mut scanned) = (Instant::now(), 0, 0, 0);
        let mut times = Histogram::<u64>::new(3).expect("3 digits");
        match state {
            None => tokio::time::sleep(Duration::from_secs(5)).await,
            Some(state) => {
                let mut cursor = None;
                loop {
                    let list = JobList { state, limit: 100, cursor, bodies: false };
                    let asked = Instant::now();
                    let page = engine.list_jobs(&q, list).await.expect("listed").expect("its own cursor");
                    times.record(asked.elapsed().as_micros() as u64).expect("it grows");
                    (calls, shown, scanned) = (calls + 1, shown + page.jobs.len(), scanned + page.scanned);
                    cursor = page.cursor;
                    if cursor.is_none() {
                        break;
                    }
                }
            }
        }
        let took = begun.elapsed();
        stop.store(true, Ordering::Relaxed);
        let publishes = meanwhile.await.expect("the publisher ends");
        let what = state.map_or("no list", JobState::as_str);
        println!(
            "{what}: {calls} calls in {took:?} show {shown} and look at {scanned}, p50 {} us p99 {} us each; {} publishes \
             meanwhile: p50 {} us p99 {} us longest {} us",
            times.value_at_quantile(0.5),
            times.value_at_quantile(0.99),
            publishes.len(),
            publishes.value_at_quantile(0.5),
            publishes.value_at_quantile(0.99),
            publishes.max()
        );
        print_log(what, conn);
    }
    engine.close().await;
}

async fn open(server: &RedisServer) -> Arc<dyn Engine> {
    let address = RedisAddress { addrs: vec![server.addr()], ..RedisAddress::default() };
    RedisEngine::connect(address, &PoolName::default_pool()).await.expect("the server is there")
}

/// Returns a job with a body of 100 bytes that lives for a day after it is due.
fn job_of(engine: &dyn Engine, ids: &JobIds, queue: &Queue, delay: Duration) -> NewJob {
    NewJob {
        queue: queue.clone(),
        id: engine.make_id(ids, queue, delay, false),
        body: Bytes::from_static(&[b'x'; 100]),
        attributes: Attributes::new(),
        ttl: Some(delay + Duration::from_secs(86_400)),
        delay,
        tries: NonZeroU16::MIN,
    }
}

/// Returns the memory that the server uses for its data.
fn used_memory(server: &RedisServer) -> f64 {
    let info: redis::InfoDict =
        redis::cmd("INFO").arg("memory").query(&mut server.connection()).expect("INFO");
    info.get::<f64>("used_memory").unwrap_or(0.0)
}

fn from_env(name: &str, default: usize) -> usize {
    std::env::var(name).ok().and_then(|n| n.parse().ok()).unwrap_or(default)
}

async fn memory() {
    let jobs = from_env("JOBS", 1_000_000);
    type Of = fn(usize, usize) -> (Queue, Duration);
    let kinds: [(&str, usize, Of); 3] = [
        ("delayed over a day", jobs, |n, all| {
            let delay = Duration::from_secs_f64(86_400.0 * (n * 7919 % all) as f64 / all as f64);
            (queue(&format!("orders-{}", n / 64 % 1000)), delay)
        }),
        ("ready", jobs, |n, _| (queue(&format!("orders-{}", n / 64 % 1000)), Duration::ZERO)),
        ("a delayed job in each of so many queues", jobs / 10, |n, all| {
            (
                queue(&format!("queue-{n}")),
                Duration::from_secs_f64(86_400.0 * (n * 7919 % all) as f64 / all as f64),
            )
        }),
    ];
    for (what, count, of) in kinds {
        let server = RedisServer::start();
        let (engine, ids) = (open(&server).await, JobIds::default());
        let before = used_memory(&server);
        for first in (0..count).step_by(64) {
            let some = (first..count.min(first + 64)).map(|n| {
                let (queue, delay) = of(n, count);
                job_of(&*engine, &ids, &queue, delay)
            });
            // One queue per call, as over HTTP.
            let some: Vec<NewJob> = some.collect();
            for part in some.chunk_by(|a, b| a.queue == b.queue) {
                engine.publish(part.to_vec().into()).await.expect("published");
            }
        }
        while engine.pump().await.expect("pumped").next.is_zero() {}
        println!("{count} {what}: {:.0} bytes each", (used_memory(&server) - before) / count as f64);
        engine.close().await;
    }
}

/// Returns the processor time of this process, in microseconds.
fn own_cpu() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("Linux");
    let ticks = |n: usize| -> f64 {
        let field = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(n));
        field.and_then(|n| n.parse().ok()).unwrap_or(0.0)
    };
    (ticks(11) + ticks(12)) * 10_000.0
}

/// Runs one turn of `what` from 32 callers.
async fn turn(engine: &Arc<dyn Engine>, what: &str, each: usize) {
    let callers = (0..32).map(|_| {
        let (engine, what) = (engine.clone(), what.to_owned());
        tokio::spawn(async move {
            let (ids, q, ttr) = (JobIds::default(), queue("orders"), Duration::from_secs(120));
            for _ in 0..each {
                let delay = match &*what {
                    "delayed life" => Duration::from_millis(40),
                    "delayed a day" => Duration::from_secs(86_400),
                    _ => Duration::ZERO,
                };
                let job = job_of(&*engine, &ids, &q, delay);
                engine.publish(vec![job].into()).await.expect("published");
                let mut wanted = usize::from(what == "cycle" || what == "delayed life");
                while wanted > 0 {
                    let got = engine.consume(&q.clone().into(), &[ttr]).await.expect("consumed").jobs;
                    for job in got {
                        engine.ack(&job.queue, &[(job.id, None)]).await.expect("acked");
                        wanted -= 1;
                    }
                    if wanted > 0 {
                        // A job becomes ready a little later.
                        tokio::time::sleep(Duration::from_millis(20)).await;
                    }
                }
            }
        })
    });
    for caller in callers.collect::<Vec<_>>() {
        caller.await.expect("the caller ends");
    }
}

async fn turns() {
    let (rounds, steps) = (from_env("ROUNDS", 5), ["publish", "delayed a day", "cycle", "delayed life"]);
    let mut stores = Vec::new();
    for name in ["first", "second"] {
        let server = RedisServer::start();
        let engine = open(&server).await;
        let notified = Notified::attach(&*engine, &[]);
        let pump = tokio::spawn({
            let engine = engine.clone();
            async move {
                while let Ok(pumped) = engine.pump().await {
                    let rest = tokio::time::sleep(pumped.next.max(Duration::from_millis(2)));
                    tokio::select! { () = rest => {}, () = notified.due_earlier() => tokio::time::sleep(Duration::from_millis(2)).await }
                }
            }
        });
        stores.push((name, server, engine, pump));
    }
    for step in steps {
        let mut all: Vec<(Vec<f64>, Vec<f64>)> = vec![Default::default(); stores.len()];
        for _ in 0..rounds {
            for ((_, server, engine, _), (redis, own)) in stores.iter().zip(&mut all) {
                let each = if step == "delayed life" { 50 } else { 500 };
                let (before, own_before) = (cpu(server), own_cpu());
                turn(engine, step, each).await;
                let jobs = (32 * each) as f64;
                redis.push((cpu(server) - before) / jobs);
                own.push((own_cpu() - own_before) / jobs);
                if step == "publish" {
                    engine.destroy(&queue("orders"), Listing::Keep).await.expect("destroyed");
                }
            }
        }
        for ((name, ..), (redis, own)) in stores.iter().zip(&mut all) {
            [&mut *redis, &mut *own].into_iter().for_each(|times| times.sort_by(f64::total_cmp));
            println!(
                "{step}: {name}: {:.1} us of Redis, {:.1} us of this process",
                redis[redis.len() / 2],
                own[own.len() / 2]
            );
        }
    }
    for (_, _, engine, pump) in stores {
        engine.close().await;
        pump.abort();
    }
}

const SECTIONS: [&str; 9] = ["calls", "longest", "pump", "idle", "busy", "verbs", "lists", "memory", "turns"];

async fn section(name: &str) {
    match name {
        "calls" => calls().await,
        "longest" => longest().await,
        "pump" => pump().await,
        "idle" => idle().await,
        "busy" => busy().await,
        "verbs" => verbs().await,
        "lists" => lists().await,
        "memory" => memory().await,
        "turns" => turns().await,
        other => println!("no section {other}: {}", SECTIONS.join(", ")),
    }
}

fn main() {
    if std::env::args().any(|arg| arg == "--list") {
        return;
    }
    let asked: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with("--")).collect();
    let sections = if asked.is_empty() { SECTIONS.map(str::to_owned).to_vec() } else { asked };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.expect("a runtime");
    for name in sections {
        println!("\n{name}");
        runtime.block_on(section(&name));
    }
}
