//! Processes whose time of day is set while they run. Behavior in virtual time is tested in
//! src/engine/disk/state/clock.rs and src/engine/redis/clock.rs.

use std::time::{Duration, Instant};

use crate::faketime::Faketime;
use crate::support::client::{Response, create_token, request, send};
use crate::support::process::Process;
use crate::support::redis_server::RedisServer;
use crate::support::servers::{TestServer, redis_toml};
use crate::support::wait::until;
use tempfile::TempDir;

const HOUR: i64 = 3600;
/// Maximum lateness of a job. A stopped clock would make it an hour late.
const LATE: Duration = Duration::from_secs(10);

/// A server process with its own clock.
struct Server {
    clock: Faketime,
    api: String,
    admin: String,
    token: String,
    /// `None` only during a restart.
    process: Option<Process>,
    dir: TempDir,
}

impl Server {
    async fn start(toml: &str) -> Server {
        let (clock, dir) = (Faketime::new(), TempDir::new().expect("a temporary directory"));
        std::fs::write(dir.path().join("dormouse.toml"), toml).expect("the file can be written");
        let mut process = Server::process(&clock, &dir);
        let (api, admin) = (process.address("api"), process.address("admin"));
        let token = create_token(&admin, "ns").await;
        Server { clock, api, admin, token, process: Some(process), dir }
    }

    fn process(clock: &Faketime, dir: &TempDir) -> Process {
        let env = clock.env();
        let env: Vec<(&str, &str)> = env.iter().map(|(key, value)| (*key, value.as_str())).collect();
        Process::start(dir.path(), &["-c", "dormouse.toml"], &env)
    }

    /// Kills the server, sets its clock, and restarts it on the same data.
    fn restart(&mut self, seconds: i64) {
        if let Some(process) = self.process.take() {
            process.kill();
        }
        self.clock.set(seconds);
        let mut process = Server::process(&self.clock, &self.dir);
        (self.api, self.admin) = (process.address("api"), process.address("admin"));
        self.process = Some(process);
    }

    /// Consumes the ready jobs of a queue, and returns when each was due by its schedule, in milliseconds.
    async fn scheduled(&self, queue: &str) -> Vec<i64> {
        let taken = self.call("GET", &format!("{queue}?count=100&ttr=3600")).await;
        let due = |job: &serde_json::Value| {
            let at = job["attributes"]["scheduled-at"].as_str().expect("a schedule's attribute");
            at.parse::<jiff::Timestamp>().expect("an instant").as_millisecond()
        };
        taken.json.as_array().into_iter().flatten().map(due).collect()
    }

    async fn call(&self, method: &str, path: &str) -> Response {
        send(request(method, &format!("http://{}/api/ns/{path}", self.api), &self.token).body("x")).await
    }

    /// Publishes a job with a delay of 2 s, sets the clock, and returns the time until the job is delivered.
    async fn delayed_over_a_step(&self, seconds: i64) -> Duration {
        // Before the request, since the delay may start before the reply arrives.
        let began = Instant::now();
        self.call("PUT", "q?delay=2").await.expect(201);
        self.clock.set(seconds);
        let job = self.call("GET", "q?timeout=20&ttr=3600").await.expect(200);
        let took = began.elapsed();
        let elapsed = Duration::from_millis(job.json["elapsed_ms"].as_u64().expect("a number"));
        let step = Duration::from_secs(seconds.unsigned_abs());
        assert!(elapsed < took + step + LATE, "it says that it is {elapsed:?} old after {took:?}");
        self.call("DELETE", &format!("q/job/{}", job.job_id())).await.expect(204);
        took
    }
}

#[tokio::test]
async fn a_disk_pool_goes_on_when_the_clock_is_set_back() {
    let server = Server::start("[Pool.default]\nPath = \"jobs\"\n").await;
    // Each step is relative to the previous one. The second-last sets a time before 1970 or close to it.
    for seconds in [-1, -HOUR, -2 * HOUR, -10 * 365 * 24 * HOUR, -55 * 365 * 24 * HOUR, -HOUR] {
        let took = server.delayed_over_a_step(seconds).await;
        let expected = Duration::from_secs(2)..Duration::from_secs(2) + LATE;
        assert!(expected.contains(&took), "a delay of 2 s took {took:?} with the clock at {seconds} s");
    }
    // The end of a delivery.
    server.call("PUT", "q?tries=2").await.expect(201);
    server.call("GET", "q?ttr=1").await.expect(200);
    server.clock.set(-3 * HOUR);
    server.call("GET", "q?timeout=20").await.expect(200);
}

#[tokio::test]
async fn a_disk_pool_follows_a_clock_that_is_set_ahead() {
    let server = Server::start("[Pool.default]\nPath = \"jobs\"\n").await;
    server.call("PUT", "far?delay=3000").await.expect(201);
    server.clock.set(HOUR);
    let began = Instant::now();
    server.call("GET", "far?timeout=20").await.expect(200);
    assert!(began.elapsed() < LATE, "the pump noticed after {:?}", began.elapsed());
    // Back to the machine's time: delays are complete again.
    let took = server.delayed_over_a_step(0).await;
    assert!(took >= Duration::from_secs(2), "a delay of 2 s took {took:?}");
}

/// Returns the milliseconds since the epoch by the machine's clock.
fn now() -> i64 {
    jiff::Timestamp::now().as_millisecond()
}

/// Guards against early instants and wrong timestamps forever after a clock was once ahead.
#[tokio::test]
async fn instants_on_disk_are_the_time_of_day_after_a_clock_ran_ahead() {
    let mut server = Server::start("[Pool.default]\nPath = \"jobs\"\n").await;
    server.clock.set(HOUR);
    server.call("PUT", "q?ttl=0").await.expect(201);
    server.call("GET", "q?ttr=3600").await.expect(200);
    for is_restarted in [false, true] {
        match is_restarted {
            false => server.clock.set(0),
            true => server.restart(0),
        }
        let before = now();
        let at = before + 3000;
        let placed = server.call("POST", &format!("q/jobs?at_ms={at}")).await.expect(201);
        let due = |of: &serde_json::Value, field: &str| {
            let text = of[field].as_str().unwrap_or_else(|| panic!("no {field} in {of}"));
            text.parse::<jiff::Timestamp>().expect("an instant").as_millisecond()
        };
        assert_eq!(due(&placed.json, "due_at"), at, "restarted: {is_restarted}");
        let shown = server.call("GET", &format!("q/job/{}?verbose=1", placed.job_id())).await.expect(200);
        // The time of day may be slewed between two calls, here and below.
        let shown_at = due(&shown.json, "due_at");
        assert!((at - 1..=at + 1).contains(&shown_at), "shown as due at {shown_at}, not {at}: {shown:?}");
        let job = server.call("GET", "q?timeout=20&ttr=3600").await.expect(200);
        assert!(now() >= at, "it came {} ms early, restarted: {is_restarted}", at - now());
        assert!(now() - at < LATE.as_millis() as i64, "it came {} ms late", now() - at);
        assert_eq!(job.job_id(), placed.job_id());
        let page = server.call("GET", "q/jobs?state=running").await.expect(200);
        let of = &page.json["jobs"].as_array().expect("jobs").last().cloned().expect("it runs");
        let published = due(of, "published_at");
        assert!((before..=now()).contains(&published), "published at {published}, not after {before}");
        let ends = due(of, "due_at") - 3_600_000;
        assert!(
            (at - 1..=now()).contains(&ends),
            "its ttr ends an hour after {ends}, and it was due at {at}"
        );
    }
}

/// Sets a schedule for each second, sets its clock ahead, and back again with or without a restart. Checks that the
/// schedule continues. `clock` is the store's.
async fn a_schedule_goes_on_after_a_clock_ran_ahead(server: &mut Server, clock: Option<&Faketime>) {
    let every = r#"{"queue":"q","every":1,"catch_up":"all"}"#;
    let put = |server: &Server, name: &str| {
        let url = format!("http://{}/api/ns/_schedules/{name}", server.api);
        request("PUT", &url, &server.token).body(every)
    };
    send(put(server, "before")).await.expect(201);
    let (mut seen, day) = (Vec::new(), 24 * HOUR);
    for is_restarted in [false, true] {
        clock.unwrap_or(&server.clock).set(day);
        let ahead = now() + day * 500;
        until("one is placed by the clock that is ahead", async || {
            seen.extend(server.scheduled("q").await);
            seen.iter().any(|due| *due > ahead)
        })
        .await;
        let new = format!("new{is_restarted}");
        send(put(server, &new)).await.expect(201);
        server.call("POST", "_schedules/before/pause?for=1").await.expect(200);
        clock.unwrap_or(&server.clock).set(0);
        if is_restarted {
            server.restart(0);
        }
        let right = now();
        for name in ["before", &new] {
            until(&format!("{name} goes on, restarted: {is_restarted}"), async || {
                let shown = server.call("GET", &format!("_schedules/{name}")).await.expect(200);
                seen.extend(server.scheduled("q").await);
                let last = shown.json["occurrences"][0]["due"].as_str().map(str::to_owned);
                let last = last.and_then(|due| due.parse::<jiff::Timestamp>().ok());
                last.is_some_and(|due| due.as_millisecond() >= right && due.as_millisecond() < ahead)
            })
            .await;
        }
        let deleted = format!("http://{}/api/ns/_schedules/{new}", server.api);
        send(request("DELETE", &deleted, &server.token)).await.expect(204);
    }
}

#[tokio::test]
async fn a_schedule_on_disk_goes_on_after_a_clock_ran_ahead() {
    let mut server = Server::start("[Pool.default]\nPath = \"jobs\"\n").await;
    a_schedule_goes_on_after_a_clock_ran_ahead(&mut server, None).await;
}

#[tokio::test]
async fn a_schedule_on_redis_goes_on_after_a_clock_ran_ahead() {
    let clock = Faketime::new();
    let redis = RedisServer::start_kind(None, &[], None, clock.env());
    let mut server = Server::start(&redis_toml(&redis)).await;
    a_schedule_goes_on_after_a_clock_ran_ahead(&mut server, Some(&clock)).await;
}

#[tokio::test]
async fn a_limit_on_disk_ends_when_the_clock_is_set_back() {
    let server = Server::start("[Pool.default]\nPath = \"jobs\"\n").await;
    let limit = format!("http://{}/token/ns/{}/limit", server.admin, server.token);
    let body = r#"{"read":0,"write":1,"interval":4}"#;
    send(request("POST", &limit, "").body(body)).await.expect(201);
    server.call("PUT", "q").await.expect(201);
    server.call("PUT", "q").await.expect(429);
    server.clock.set(-HOUR);
    let began = Instant::now();
    until("a publish is allowed", async || server.call("PUT", "q").await.status == 201).await;
    assert!(began.elapsed() < LATE, "the next interval began after {:?}", began.elapsed());
}

#[tokio::test]
async fn a_revoked_token_is_refused_within_a_second_when_the_clock_is_set_back() {
    let redis = RedisServer::start();
    let stepped = Server::start(&redis_toml(&redis)).await;
    let other = TestServer::start(&redis_toml(&redis), ()).await;
    stepped.call("GET", "q").await.expect(404);
    stepped.clock.set(-HOUR);
    // Accepted again, so the token is cached at the new time.
    stepped.call("GET", "q").await.expect(404);
    send(other.admin("DELETE", &format!("/token/ns/{}", stepped.token))).await.expect(204);
    let deleted = Instant::now();
    until("it is refused", async || stepped.call("GET", "q").await.status == 401).await;
    assert!(deleted.elapsed() < LATE, "refused after {:?}", deleted.elapsed());
}

#[tokio::test]
async fn a_redis_pool_goes_on_when_the_clock_of_its_redis_is_set() {
    let clock = Faketime::new();
    let redis = RedisServer::start_kind(None, &[], None, clock.env());
    let server = TestServer::start(&redis_toml(&redis), redis).await;
    let token = server.token("ns").await;
    let mut ids = Vec::new();
    for seconds in [0, -5, -HOUR, -2 * HOUR, HOUR, -24 * HOUR] {
        clock.set(seconds);
        // The first reply informs the server of the step. It knows the clock to within the time of a call.
        let asked = Instant::now();
        server.put(&token, "/api/ns/q", "at once").await.expect(201);
        let accuracy = asked.elapsed().as_millis() as u64;
        let job = server.get(&token, "/api/ns/q?timeout=20&ttr=1000000").await.expect(200);
        ids.push(job.job_id());
        let began = Instant::now();
        server.put(&token, "/api/ns/q?delay=1", "delayed").await.expect(201);
        let job = server.get(&token, "/api/ns/q?timeout=20&ttr=1000000").await.expect(200);
        let took = began.elapsed();
        let expected = Duration::from_secs(1)..Duration::from_secs(1) + LATE;
        assert!(expected.contains(&took), "a delay of 1 s took {took:?} with the Redis at {seconds} s");
        let elapsed = job.json["elapsed_ms"].as_u64().expect("a number");
        let told = 1000 - accuracy.min(1000)..1000 + LATE.as_millis() as u64;
        assert!(told.contains(&elapsed), "a job of 1 s is {elapsed} ms old with the Redis at {seconds} s");
        ids.push(job.job_id());
    }
    let all = ids.len();
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), all, "every id is another one");
}
