//! Processes whose time of day is set while they run. What the clocks do in virtual time is in the tests of
//! src/engine/disk/state/clock.rs and of src/engine/redis/clock.rs.

use std::time::{Duration, Instant};

use crate::faketime::Faketime;
use crate::support::client::{Response, create_token, request, send};
use crate::support::process::Process;
use crate::support::redis_server::RedisServer;
use crate::support::servers::{TestServer, redis_toml};
use crate::support::wait::until;
use tempfile::TempDir;

const HOUR: i64 = 3600;
/// How late a job may be here. A stopped clock would make it an hour late.
const LATE: Duration = Duration::from_secs(10);

/// A server process with a clock of its own.
struct Server {
    clock: Faketime,
    api: String,
    admin: String,
    token: String,
    _process: Process,
    _dir: TempDir,
}

impl Server {
    async fn start(toml: &str) -> Server {
        let (clock, dir) = (Faketime::new(), TempDir::new().expect("a temporary directory"));
        std::fs::write(dir.path().join("dormouse.toml"), toml).expect("the file can be written");
        let env = clock.env();
        let env: Vec<(&str, &str)> = env.iter().map(|(key, value)| (*key, value.as_str())).collect();
        let mut process = Process::start(dir.path(), &["-c", "dormouse.toml"], &env);
        let (api, admin) = (process.address("api"), process.address("admin"));
        let token = create_token(&admin, "ns").await;
        Server { clock, api, admin, token, _process: process, _dir: dir }
    }

    async fn call(&self, method: &str, path: &str) -> Response {
        send(request(method, &format!("http://{}/api/ns/{path}", self.api), &self.token).body("x")).await
    }

    /// Publishes a job with a delay of 2 s, sets the clock, and says how long the job took to come.
    async fn delayed_over_a_step(&self, seconds: i64) -> Duration {
        // Before the request: the delay may be running for a while when its response comes.
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
    // Each is set from what was set before. The last but one is before 1970 or near it.
    for seconds in [-1, -HOUR, -2 * HOUR, -10 * 365 * 24 * HOUR, -55 * 365 * 24 * HOUR, -HOUR] {
        let took = server.delayed_over_a_step(seconds).await;
        let expected = Duration::from_secs(2)..Duration::from_secs(2) + LATE;
        assert!(expected.contains(&took), "a delay of 2 s took {took:?} with the clock at {seconds} s");
    }
    // A hand-over ends too.
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
    // Back again: what comes from here on has its whole delay.
    let took = server.delayed_over_a_step(0).await;
    assert!(took >= Duration::from_secs(2), "a delay of 2 s took {took:?}");
}

#[tokio::test]
async fn a_limit_on_disk_ends_when_the_clock_is_set_back() {
    let server = Server::start("[Pool.default]\nPath = \"jobs\"\n").await;
    let limit = format!("http://{}/token/ns/{}/limit", server.admin, server.token);
    let body = r#"{"read":0,"write":1,"interval":2}"#;
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
    // Accepted once more, so that it is believed from here on.
    stepped.call("GET", "q").await.expect(404);
    send(other.admin("DELETE", &format!("/token/ns/{}", stepped.token))).await.expect(204);
    let deleted = Instant::now();
    until("it is refused", async || stepped.call("GET", "q").await.status == 401).await;
    assert!(deleted.elapsed() < Duration::from_secs(3), "refused after {:?}", deleted.elapsed());
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
        // The first answer tells the server of the step.
        server.put(&token, "/api/ns/q", "at once").await.expect(201);
        let job = server.get(&token, "/api/ns/q?timeout=20&ttr=1000000").await.expect(200);
        ids.push(job.job_id());
        let began = Instant::now();
        server.put(&token, "/api/ns/q?delay=1", "delayed").await.expect(201);
        let job = server.get(&token, "/api/ns/q?timeout=20&ttr=1000000").await.expect(200);
        let took = began.elapsed();
        let expected = Duration::from_secs(1)..Duration::from_secs(1) + LATE;
        assert!(expected.contains(&took), "a delay of 1 s took {took:?} with the Redis at {seconds} s");
        let elapsed = job.json["elapsed_ms"].as_u64().expect("a number");
        let told = 1000..1000 + LATE.as_millis() as u64;
        assert!(told.contains(&elapsed), "a job of 1 s is {elapsed} ms old with the Redis at {seconds} s");
        ids.push(job.job_id());
    }
    let all = ids.len();
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), all, "every id is another one");
}
