//! Push during outages: of the endpoint, of one of two servers, of the only server. And what a fleet shares.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::pushed::{LOCAL, Pushed, seconds_until};
use crate::receiver::{Answer, Arrived, Receiver};
use crate::support::client::{create_token, request, send};
use crate::support::process::Process;
use crate::support::redis_server::RedisServer;
use crate::support::servers::{Store, TestServer, on_each_store, redis_toml};
use crate::support::wait::until;
use serde_json::{Value, json};
use tempfile::TempDir;

/// Returns how many tries the jobs of a queue have used together, and how many jobs are dead.
async fn spent(pushed: &Pushed, queue: &str, ids: &[String], tries: i64) -> (i64, usize) {
    let (mut spent, mut dead) = (0, 0);
    for id in ids {
        let Some(job) = pushed.job(queue, id).await else { continue };
        // A running job has one try less, until it is returned.
        let running = i64::from(job["state"] == "running");
        spent += tries - job["remain_tries"].as_i64().unwrap_or_default() - running;
        dead += usize::from(job["state"] == "dead");
    }
    (spent, dead)
}

/// The breaker: an outage uses no tries except in the first ten requests and those in flight, and after it everything
/// is delivered.
async fn an_outage_costs_few_tries(store: Store) {
    const TRIES: i64 = 3;
    const CONCURRENCY: i64 = 5;
    let pushed = Pushed::on(store).await;
    let receiver = Receiver::start().await;
    receiver.answer(|_| Answer::status(503));
    let setting = json!({"concurrency": CONCURRENCY, "retry": [0], "timeout": 5});
    pushed.push_to(&receiver, "q", setting).await;
    let mut ids = Vec::new();
    for n in 0..40 {
        ids.push(pushed.publish("q", &format!("tries={TRIES}"), &n.to_string()).await);
    }
    pushed.until_state("q", "open").await;
    receiver.until_so("none in flight", |receiver| receiver.in_flight() == 0).await;
    let sent = receiver.count();
    // The first pause is a second, less the time of requests that were in flight.
    const PAUSE: Duration = Duration::from_millis(800);
    let pauses = |arrived: &[Arrived]| -> Vec<Duration> {
        arrived.windows(2).map(|two| two[1].at - two[0].at).collect()
    };
    receiver
        .until_so("three probes", |receiver| {
            pauses(&receiver.arrived()).iter().filter(|pause| **pause >= PAUSE).count() >= 3
        })
        .await;
    let pauses = pauses(&receiver.arrived());
    assert!((10..10 + CONCURRENCY as usize).contains(&sent), "{sent} requests until it opened: {pauses:?}");
    let probes = &pauses[sent - 1..];
    // Each pause begins with the failure of the probe before, which arrived earlier.
    let least = (0..).map(|n| PAUSE * 2u32.pow(n));
    assert!(
        probes.iter().zip(least).all(|(pause, least)| *pause >= least),
        "one probe at a time, each pause twice the one before: {probes:?}"
    );
    let (tries, dead) = spent(&pushed, "q", &ids, TRIES).await;
    assert!(tries < 10 + CONCURRENCY, "{tries} tries were spent");
    assert!(dead <= (10 + CONCURRENCY as usize) / TRIES as usize, "{dead} jobs died of {tries} tries");
    let metric = r#"dormouse_push_breaker_open{namespace="ns",pool="default",queue="q"} 1"#;
    assert!(pushed.metrics().await.contains(metric), "{metric}");

    receiver.answer(|_| Answer::status(200));
    for id in &ids {
        until(&format!("{id} is delivered or dead"), async || {
            pushed.job("q", id).await.is_none_or(|job| job["state"] == "dead")
        })
        .await;
    }
    pushed.until_state("q", "on").await;
}

/// An outage without a listener, and enough tries that no job dies.
async fn an_endpoint_that_is_down_loses_nothing(store: Store) {
    let pushed = Pushed::on(store).await;
    let mut receiver = Receiver::start().await;
    receiver.down().await;
    pushed.push_to(&receiver, "q", json!({"concurrency": 2, "retry": [1], "timeout": 5})).await;
    let mut ids = Vec::new();
    for n in 0..30 {
        ids.push(pushed.publish("q", "tries=20", &n.to_string()).await);
    }
    pushed.until_state("q", "open").await;
    let shown = pushed.shown("q").await;
    assert!((0.0..60.0).contains(&-seconds_until(&shown["since"])), "since when: {shown}");
    assert!(shown["why"].as_str().is_some_and(|why| why.contains("down")), "why: {shown}");
    receiver.up().await;
    for id in &ids {
        pushed.until_gone("q", id).await;
    }
    pushed.until_state("q", "on").await;
    let mut bodies: Vec<u32> =
        receiver.arrived().iter().map(|one| one.text().parse().expect("a number")).collect();
    bodies.sort_unstable();
    assert_eq!(bodies, (0..30).collect::<Vec<u32>>(), "each came once");
    assert_eq!(pushed.size("q/deadletter").await, 0);
}

/// Error responses of the application do not show an outage: 500 and 404 do not open the breaker.
async fn answers_of_the_receiver_open_no_breaker(store: Store) {
    let pushed = Pushed::on(store).await;
    let receiver = Receiver::start().await;
    receiver.answer(|request| Answer::status(request.text().parse().expect("a status")));
    pushed.push_to(&receiver, "q", json!({"concurrency": 1})).await;
    let mut last = String::new();
    for _ in 0..6 {
        for status in [500, 404, 400, 302] {
            last = pushed.publish("q", "", &status.to_string()).await;
        }
    }
    pushed.until_job("q", &last, "dead").await;
    assert_eq!((pushed.state("q").await.as_str(), receiver.count()), ("on", 24));
    // Nine failures, a success, nine failures: not ten in a row.
    for status in [[503; 9].as_slice(), &[200], &[503; 9], &[200]].concat() {
        last = pushed.publish("q", "", &status.to_string()).await;
    }
    pushed.until_gone("q", &last).await;
    let text = pushed.metrics().await;
    let opened =
        text.lines().any(|line| line.starts_with("dormouse_push_breaker_open") && line.ends_with(" 1"));
    assert!(!opened, "{text}");
}

on_each_store!(
    an_outage_costs_few_tries,
    an_endpoint_that_is_down_loses_nothing,
    answers_of_the_receiver_open_no_breaker,
);

/// Starts a server process on a Redis, which may push to this machine.
async fn server(dir: &TempDir, redis: &RedisServer) -> (Process, String) {
    std::fs::write(dir.path().join("c.toml"), format!("{LOCAL}{}", redis_toml(redis))).expect("a file");
    let mut process = Process::start(dir.path(), &["-c", "c.toml"], &[]);
    let admin = process.address("admin");
    (process, admin)
}

/// Returns how often each job was delivered, by its body.
fn deliveries(receiver: &Receiver) -> BTreeMap<String, usize> {
    let mut times = BTreeMap::new();
    for request in receiver.arrived() {
        *times.entry(request.text()).or_default() += 1;
    }
    times
}

/// Returns how many requests this server has begun, from its metrics.
async fn begun(admin: &str) -> u64 {
    let text = send(request("GET", &format!("http://{admin}/metrics"), "")).await.expect(200).text;
    let attempts = text.lines().filter(|line| line.starts_with("dormouse_push_attempts_total{"));
    attempts.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum()
}

/// Two servers share four slots; one is killed by kill -9 with requests in flight. The other gets its slots within 15
/// seconds, and every job is delivered.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_dies_gives_its_slots_back_and_loses_no_job() {
    let redis = RedisServer::start();
    let (dir_a, dir_b) = (TempDir::new().expect("a directory"), TempDir::new().expect("a directory"));
    let ((mut a, admin_a), (b, admin_b)) = (server(&dir_a, &redis).await, server(&dir_b, &redis).await);
    let pushed = Pushed::process(&mut a).await;
    let receiver = Receiver::start().await;
    let gate = receiver.answer_when_told();
    pushed.push_to(&receiver, "q", json!({"concurrency": 4, "timeout": 20, "retry": [0]})).await;
    let mut ids = Vec::new();
    let mut publish = async || {
        let body = ids.len().to_string();
        ids.push(pushed.publish("q", "tries=20&ttl=0", &body).await);
    };
    until("both servers push", async || {
        publish().await;
        begun(&admin_a).await > 20 && begun(&admin_b).await > 20
    })
    .await;
    gate.close();
    for _ in 0..40 {
        publish().await;
    }
    receiver.until_so("four in flight", |receiver| receiver.in_flight() == 4).await;
    b.kill();
    let died = Instant::now();
    receiver.until_so("fewer in flight without B", |receiver| receiver.in_flight() < 4).await;
    // Its connections do not end at the same moment, and its slots become free much later.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let left = receiver.in_flight();
    receiver.until_so("four in flight from one server", |receiver| receiver.in_flight() == 4).await;
    let back = died.elapsed();
    println!("{} of 4 slots of a killed server came back after {back:?}", 4 - left);
    assert!(back < Duration::from_secs(17), "they came back after {back:?}, not 15 s");
    gate.open();
    for _ in 0..20 {
        publish().await;
    }
    // Jobs that the dead server had in flight are redelivered when their ttr ends: thirty seconds after they were
    // sent.
    let all = ids.len();
    for id in ids {
        pushed.until_gone("q", &id).await;
    }
    assert_eq!(deliveries(&receiver).len(), all, "every job was delivered");
    assert_eq!(receiver.most_in_flight(), 4, "the most ever in flight at the receiver");
    assert_eq!(pushed.size("q/deadletter").await, 0, "no job died");
    let twice = deliveries(&receiver).values().filter(|times| **times > 1).count();
    println!("of {all} jobs {twice} were sent more than once");
    assert_eq!(twice, 4 - left, "those in flight at the kill are sent again, and no others");
}

/// Each server has a part of the rate, and lends it to the other server while it has nothing to send.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rate_holds_over_two_servers() {
    const RATE: usize = 6;
    let redis = RedisServer::start();
    let toml = format!("{LOCAL}{}", redis_toml(&redis));
    let (a, b) = (TestServer::start(&toml, ()).await, TestServer::start(&toml, ()).await);
    let (a, b) = (Pushed::by(a).await, Pushed::by(b).await);
    let receiver = Receiver::start().await;
    a.push_to(&receiver, "q", json!({"rate": RATE, "per": 4, "concurrency": 100})).await;
    for n in 0..9 {
        a.publish("q", "", &n.to_string()).await;
        b.publish("q", "", &n.to_string()).await;
    }
    let arrived = receiver.until(18).await;
    for some in arrived.windows(RATE + 1) {
        let took = some[RATE].at - some[0].at;
        // At most six begin in four seconds; they may arrive closer together.
        assert!(took > Duration::from_secs(3), "{} requests came within {took:?}", RATE + 1);
    }
}

/// Without the store of settings no lease is renewed: leased slots are used until their end, and push resumes when
/// the store is back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pushes_go_on_when_the_store_of_settings_is_back() {
    // Otherwise a kill may lose the token and the setting.
    let (store, mut redis) = (Store::disk(), RedisServer::start_with(None, &["--appendfsync", "always"]));
    let toml = format!("{LOCAL}[Pool.default]\n{}[AdminRedis]\n{}", store.keys(), redis.keys());
    let pushed = Pushed::by(TestServer::start(&toml, store).await).await;
    let receiver = Receiver::start().await;
    pushed.push_to(&receiver, "q", json!({"concurrency": 3})).await;
    let first = pushed.publish("q", "", "before").await;
    pushed.until_gone("q", &first).await;
    redis.kill();
    let second = pushed.publish("q", "", "while it is away").await;
    pushed.until_gone("q", &second).await;
    pushed.admin("GET", "/push/ns/q", "").await.expect(500);
    redis.restart();
    let third = pushed.publish("q", "", "after").await;
    pushed.until_gone("q", &third).await;
    until("the setting is shown again", async || pushed.admin("GET", "/push/ns/q", "").await.status == 200)
        .await;
    let bodies: Vec<String> = receiver.arrived().iter().map(Arrived::text).collect();
    assert_eq!(bodies, ["before", "while it is away", "after"]);
}

/// Guards against a full Redis that cannot be drained: a lease that cannot be renewed ends after ten seconds, and
/// nothing more would be sent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_redis_is_drained_by_push() {
    const JOBS: usize = 50;
    let redis = RedisServer::start();
    let toml = format!("{LOCAL}{}", redis_toml(&redis));
    let pushed = Pushed::by(TestServer::start(&toml, ()).await).await;
    let receiver = Receiver::start().await;
    // Sends one job after another, for longer than a lease.
    receiver.answer(|_| Answer::status(200).after(Duration::from_millis(300)));
    pushed.push_to(&receiver, "q", json!({"concurrency": 1})).await;
    pushed.admin("POST", "/push/ns/q/pause", "").await.expect(200);
    for n in 0..JOBS {
        pushed.publish("q", "", &n.to_string()).await;
    }
    let conn = &mut redis.connection();
    redis::cmd("CONFIG").arg("SET").arg("maxmemory").arg(1).exec(conn).expect("CONFIG SET");
    let refused = pushed.api("PUT", "/api/ns/other", "x").await;
    assert_eq!(refused.status, 500, "it is full: {refused:?}");
    // Existing settings can be changed, since operators must be able to resume push.
    pushed.admin("POST", "/push/ns/q/resume", "").await.expect(200);
    until("all jobs are delivered", async || receiver.count() >= JOBS && pushed.size("q").await == 0).await;
    until("counts are told", async || pushed.shown("q").await["counts"]["delivered"] == JOBS).await;
    assert_eq!(receiver.count(), JOBS, "each was sent once");
    // The endpoint's 410 is stored, and settings can be deleted.
    pushed.admin("DELETE", "/push/ns/q", "").await.expect(204);
    pushed.admin("GET", "/push/ns/q", "").await.expect(404);
    let new = json!({"url": receiver.url("/")});
    assert_eq!(
        pushed.admin("PUT", "/push/ns/q", new.clone()).await.status,
        500,
        "a new setting needs memory"
    );
    redis::cmd("CONFIG").arg("SET").arg("maxmemory").arg(0).exec(conn).expect("CONFIG SET");
    pushed.admin("PUT", "/push/ns/q", new).await.expect(200);
}

/// Guards against a log line per dead job while Redis has no free memory.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_dropped_by_a_full_redis_are_logged_once() {
    const JOBS: usize = 5;
    let redis = RedisServer::start();
    let dir = TempDir::new().expect("a temporary directory");
    std::fs::write(dir.path().join("c.toml"), format!("{LOCAL}{}", redis_toml(&redis))).expect("a file");
    let mut server = Process::start(dir.path(), &["-c", "c.toml"], &[]);
    let pushed = Pushed::process(&mut server).await;
    let receiver = Receiver::start().await;
    receiver.answer(|_| Answer::with(422, &[("Dormouse-Retry", "no")], ""));
    // The ttr is eleven seconds.
    pushed.push_to(&receiver, "q", json!({"timeout": 1, "concurrency": JOBS, "on_dead": "failed"})).await;
    pushed.admin("POST", "/push/ns/q/pause", "").await.expect(200);
    let mut ids = Vec::new();
    for n in 0..JOBS {
        ids.push(pushed.publish("q", "tries=9", &n.to_string()).await);
    }
    let conn = &mut redis.connection();
    redis::cmd("CONFIG").arg("SET").arg("maxmemory").arg(1).exec(conn).expect("CONFIG SET");
    pushed.admin("POST", "/push/ns/q/resume", "").await.expect(200);
    for id in &ids {
        pushed.until_job("q", id, "dead").await;
    }
    redis::cmd("CONFIG").arg("SET").arg("maxmemory").arg(0).exec(conn).expect("CONFIG SET");
    pushed.publish("q", "tries=9", "with a message").await;
    until("the last job has a message", async || pushed.size("failed").await == 1).await;
    let again = server.line_with("published again");
    assert!(again.contains(&format!("dropped={JOBS}")), "the number of dropped messages: {again}");
    server.signal("TERM");
    let said = server.ended().said;
    let lines: Vec<&str> = said.lines().filter(|line| line.contains("about dead jobs")).collect();
    assert_eq!(lines.len(), 2, "a line when it begins and one when it ends, not {lines:#?}");
}

/// Guards against a server that calls an endpoint with a job that another server returned after a 410.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_410_no_other_server_calls_the_endpoint_with_the_job() {
    let redis = RedisServer::start();
    let toml = format!("{LOCAL}{}", redis_toml(&redis));
    let (a, b) = (TestServer::start(&toml, ()).await, TestServer::start(&toml, ()).await);
    let (a, b) = (Pushed::by(a).await, Pushed::by(b).await);
    let receiver = Receiver::start().await;
    a.push_to(&receiver, "q", json!({"concurrency": 2})).await;
    // Both servers push, and know of each other.
    for pushed in [&a, &b, &a, &b] {
        let id = pushed.publish("q", "", "first").await;
        pushed.until_gone("q", &id).await;
        tokio::time::sleep(Duration::from_millis(600)).await;
    }
    receiver.answer(|_| Answer::status(410));
    let id = a.publish("q", "tries=2", "gone").await;
    a.until_state("q", "off").await;
    let job = a.until_job("q", &id, "ready").await;
    assert_eq!(job["remain_tries"], json!(2), "it costs no try: {job}");
    b.until_state("q", "off").await;
    tokio::time::sleep(Duration::from_millis(600)).await;
    let times = deliveries(&receiver).get("gone").copied();
    assert_eq!(times, Some(1), "requests with the job");
}

/// A server dies between the response and the ack: the job is sent again, with the same id, after its ttr.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_whose_ack_was_lost_is_sent_again_with_its_id() {
    let dir = TempDir::new().expect("a temporary directory");
    std::fs::write(dir.path().join("c.toml"), format!("{LOCAL}[Pool.default]\nPath = \"jobs\"\n"))
        .expect("a file");
    let mut first = Process::start(dir.path(), &["-c", "c.toml"], &[]);
    let receiver = Receiver::start().await;
    receiver.answer_in_turn([Answer::Hang, Answer::status(200)]);
    let pushed = Pushed::process(&mut first).await;
    pushed.push_to(&receiver, "q", json!({"timeout": 3})).await;
    let published = Instant::now();
    let id = pushed.publish("q", "tries=2", "x").await;
    receiver.until(1).await;
    first.kill();
    let mut second = Process::start(dir.path(), &["-c", "c.toml"], &[]);
    let pushed = Pushed::process(&mut second).await;
    let arrived = receiver.until(2).await;
    pushed.until_gone("q", &id).await;
    let after = arrived[1].at - published;
    assert!(after >= Duration::from_secs(13), "its ttr is the timeout and ten seconds, not {after:?}");
    assert_eq!((arrived[0].job_id(), arrived[1].job_id()), (id.as_str(), id.as_str()));
}

/// A regular stop waits for requests in flight within the grace period, and returns the rest.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_in_order_sends_nothing_twice() {
    let store = Store::redis();
    let toml = format!("{LOCAL}{}", store.toml());
    let receiver = Receiver::start().await;
    receiver.answer(|_| Answer::status(200).held());
    let server = TestServer::start(&toml, ()).await;
    let (api, admin) = (server.api_addr, server.admin_addr);
    let token = create_token(admin, "ns").await;
    let setting: Value = json!({"url": receiver.url("/"), "concurrency": 3, "timeout": 10});
    let put = server.admin("PUT", "/push/ns/q").body(setting.to_string());
    send(put).await.expect(200);
    for n in 0..3 {
        let put = request("PUT", &format!("http://{api}/api/ns/q?tries=5"), &token);
        send(put.body(n.to_string())).await.expect(201);
    }
    receiver.until(3).await;
    let stopping = tokio::spawn(server.stop());
    receiver.release(3);
    stopping.await.expect("it stops");
    receiver.answer(|_| Answer::status(200));
    let pushed = Pushed::with(LOCAL, store).await;
    let marker = pushed.publish("q", "", "marker").await;
    pushed.until_gone("q", &marker).await;
    assert_eq!(deliveries(&receiver), ["0", "1", "2", "marker"].map(|body| (body.to_owned(), 1)).into());
}
