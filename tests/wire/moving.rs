//! A pool that migrates by `MigrateTo`, through real restarts from the first step to the last. Every guarantee before a
//! restart still holds after it.

use std::sync::Arc;
use std::time::Duration;

use crate::cluster::pool_on;
use crate::common::until_status;
use crate::support::client::{Response, send};
use crate::support::redis_cluster::RedisCluster;
use crate::support::redis_server::RedisServer;
use crate::support::servers::{Store, TestServer};
use crate::support::wait::until;

/// Two stores for jobs, and one for tokens.
struct Pools {
    from: Store,
    to: Store,
    tokens: RedisServer,
}

impl Pools {
    fn new(from: Store, to: Store) -> Pools {
        Pools { from, to, tokens: RedisServer::start() }
    }

    /// Starts a server whose default pool is on `of`, and migrates to `to` if given.
    async fn server(&self, of: &Store, to: Option<&Store>) -> TestServer {
        let moves = match to {
            Some(to) => format!("MigrateTo = \"next\"\n[Pool.next]\n{}", to.keys()),
            None => String::new(),
        };
        let tokens = self.tokens.keys();
        TestServer::start(&format!("[Pool.default]\n{}{moves}[AdminRedis]\n{tokens}", of.keys()), ()).await
    }

    async fn before(&self) -> TestServer {
        self.server(&self.from, None).await
    }

    async fn moving(&self) -> TestServer {
        self.server(&self.from, Some(&self.to)).await
    }

    async fn after(&self) -> TestServer {
        self.server(&self.to, None).await
    }
}

/// Returns a pool in its own cluster.
fn cluster(name: &str) -> Store {
    pool_on(&Arc::new(RedisCluster::start_of(3, 0)), name)
}

/// Makes tests of each function: `NAME::redis_to_disk` and so on.
macro_rules! on_each_move {
    ($($test:ident),+ $(,)?) => {$(
        mod $test {
            use super::{Pools, Store};

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn redis_to_disk() {
                super::$test(Pools::new(Store::redis(), Store::disk())).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn disk_to_redis() {
                super::$test(Pools::new(Store::disk(), Store::redis())).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn redis_to_redis() {
                super::$test(Pools::new(Store::redis(), Store::redis())).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn there_and_back_between_redis_and_a_cluster() {
                super::$test(Pools::new(Store::redis(), super::cluster("to"))).await;
                super::$test(Pools::new(super::cluster("from"), Store::redis())).await;
            }
        }
    )+};
}

on_each_move!(
    receipts_outlive_every_restart_of_a_move,
    a_paused_queue_hands_out_nothing_in_any_part_of_a_move,
    a_repeat_is_known_in_every_part_of_a_move,
);

async fn post(server: &TestServer, token: &str, path: &str) -> Response {
    send(server.api("POST", path, token)).await
}

/// Publishes and consumes a job. Returns its path and its receipt.
async fn held(server: &TestServer, token: &str) -> (String, String) {
    server.put(token, "/api/ns/q?tries=9", "job").await.expect(201);
    let job = server.get(token, "/api/ns/q?receipt=1&ttr=600").await.expect(200);
    let receipt = job.json["receipt"].as_str().expect("it was asked for").to_owned();
    (format!("/api/ns/q/job/{}", job.job_id()), receipt)
}

/// Guards against rejecting a worker that still holds its job, which would then be processed twice.
async fn receipts_outlive_every_restart_of_a_move(pools: Pools) {
    let mut server = pools.before().await;
    let token = server.token("ns").await;
    let mut holds = Vec::new();
    for part in ["before", "moving", "after"] {
        for (given, (job, receipt)) in &mut holds {
            let touched = post(&server, &token, &format!("{job}/touch?receipt={receipt}&ttr=600")).await;
            assert_eq!(
                touched.status, 200,
                "a touch {part} the move, with a receipt of {given}: {touched:?}"
            );
            *receipt = touched.json["receipt"].as_str().expect("a new one").to_owned();
        }
        holds.extend([(part, held(&server, &token).await), (part, held(&server, &token).await)]);
        // One job of each step is acked in the next step.
        if part == "moving" {
            for (given, (job, receipt)) in holds.extract_if(.., |(given, _)| *given == "before") {
                let acked = send(server.api("DELETE", &format!("{job}?receipt={receipt}"), &token)).await;
                assert_eq!(acked.status, 204, "an ack while it moves, of a job of {given}: {acked:?}");
            }
        }
        server.stop().await;
        server = if part == "before" { pools.moving().await } else { pools.after().await };
    }
    for (given, (job, receipt)) in holds {
        let released = post(&server, &token, &format!("{job}/release?receipt={receipt}&spend=0")).await;
        assert_eq!(released.status, 200, "a release after the move, with a receipt of {given}: {released:?}");
    }
    assert_eq!(
        server.size("/api/ns/q").await,
        4,
        "two jobs of the time of the move, and two of the time after"
    );
}

/// Guards against a paused queue that resumes after a restart.
async fn a_paused_queue_hands_out_nothing_in_any_part_of_a_move(pools: Pools) {
    let mut server = pools.before().await;
    let token = server.token("ns").await;
    post(&server, &token, "/api/ns/early/pause").await.expect(200);
    post(&server, &token, "/api/ns/timed/pause?for=600").await.expect(200);
    server.stop().await;
    server = pools.moving().await;
    for queue in ["early", "timed", "late"] {
        server.put(&token, &format!("/api/ns/{queue}"), "job").await.expect(201);
    }
    post(&server, &token, "/api/ns/late/pause").await.expect(200);
    for part in ["while it moves", "after the move"] {
        for queue in ["early", "timed", "late"] {
            let got = server.get(&token, &format!("/api/ns/{queue}")).await;
            assert_eq!(got.status, 404, "{queue} is paused, {part}: {got:?}");
        }
        server.stop().await;
        server = pools.after().await;
    }
    for queue in ["early", "timed", "late"] {
        post(&server, &token, &format!("/api/ns/{queue}/resume")).await.expect(200);
        server.get(&token, &format!("/api/ns/{queue}")).await.expect(200);
    }
}

/// Guards against a producer that repeats a request whose reply was lost in the restart, and stores its job twice.
async fn a_repeat_is_known_in_every_part_of_a_move(pools: Pools) {
    let ask = async |server: &TestServer, token: &str, key: &str, body: &'static str| {
        let path = format!("/api/ns/q?key={key}");
        send(server.api("PUT", &path, token).header("Idempotency-Key", key).body(body)).await
    };
    let server = pools.before().await;
    let token = server.token("ns").await;
    let first = ask(&server, &token, "first", "x").await.expect(201).job_id();
    server.stop().await;
    let server = pools.moving().await;
    let again = ask(&server, &token, "first", "x").await.expect(201).job_id();
    assert_eq!(again, first, "a repeat while the pool moves, of a request from before");
    ask(&server, &token, "first", "another body").await.expect(422);
    // Its job has been acked.
    send(server.api("DELETE", &format!("/api/ns/q/job/{first}"), &token)).await.expect(204);
    let again = ask(&server, &token, "first", "x").await.expect(201).job_id();
    assert_eq!(again, first, "the same reply after its job was deleted");
    let second = ask(&server, &token, "second", "x").await.expect(201).job_id();
    server.stop().await;
    let server = pools.after().await;
    let again = ask(&server, &token, "second", "x").await.expect(201).job_id();
    assert_eq!(again, second, "a repeat after the move, of a request from the time of the move");
    let got = server.get(&token, "/api/ns/q").await.expect(200).job_id();
    assert_eq!(got, second, "the job of the second request");
    server.get(&token, "/api/ns/q").await.expect(404);
}

/// Guards against errors of a rolling restart behind a load balancer: a job unknown to the other server, a queue paused
/// at one server only, a request executed twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_of_two_rounds_serve_side_by_side() {
    let pools = Pools::new(Store::redis(), Store::redis());
    let rounds = [
        (&pools.from, None),
        (&pools.to, Some(&pools.from)),
        (&pools.from, Some(&pools.to)),
        (&pools.to, None),
    ];
    let mut one = pools.before().await;
    let token = one.token("ns").await;
    let mut kept = Vec::new();
    for (round, (of, to)) in rounds.into_iter().enumerate().skip(1) {
        let other = pools.server(of, to).await;
        for (here, there) in [(&one, &other), (&other, &one)] {
            let publish = async |server: &TestServer| {
                let request = server.api("PUT", "/api/ns/q?tries=9", &token).body("x");
                send(request.header("Idempotency-Key", format!("{round}"))).await.expect(201).job_id()
            };
            let published = publish(here).await;
            assert_eq!(publish(there).await, published, "round {round}: a repeat at the other server");
            // The migration in the first direction has moved it.
            if kept.iter().any(|(job, _)| *job == published) {
                continue;
            }
            let job = there.get(&token, "/api/ns/q?receipt=1&ttr=600&timeout=5").await.expect(200);
            assert_eq!(job.job_id(), published, "round {round}");
            let path = format!("/api/ns/q/job/{published}");
            let receipt = job.json["receipt"].as_str().expect("it was asked for");
            let touched =
                post(here, &token, &format!("{path}/touch?receipt={receipt}&ttr=600")).await.expect(200);
            kept.push((published, touched.json["receipt"].as_str().expect("a new one").to_owned()));
        }
        for (here, there) in [(&one, &other), (&other, &one)] {
            here.put(&token, "/api/ns/stopped", "x").await.expect(201);
            post(here, &token, "/api/ns/stopped/pause").await.expect(200);
            there.until_paused(&token, "stopped").await;
            for server in [here, there] {
                let got = server.get(&token, "/api/ns/stopped").await;
                assert_eq!(got.status, 404, "round {round}: it is paused: {got:?}");
            }
            post(there, &token, "/api/ns/stopped/resume").await.expect(200);
            let job = here.get(&token, "/api/ns/stopped?timeout=5").await.expect(200).job_id();
            send(there.api("DELETE", &format!("/api/ns/stopped/job/{job}"), &token)).await.expect(204);
        }
        one.stop().await;
        // Receipts issued by the stopped server are valid at the other server.
        for (job, receipt) in kept.drain(..) {
            let path = format!("/api/ns/q/job/{job}?receipt={receipt}");
            let acked = send(other.api("DELETE", &path, &token)).await;
            assert_eq!(acked.status, 204, "round {round}: {acked:?}");
            other.get(&token, &format!("/api/ns/q/job/{job}")).await.expect(404);
        }
        one = other;
    }
}

/// Returns a schedule of the namespace.
async fn schedule(server: &TestServer, token: &str) -> Response {
    server.get(token, "/api/ns/_schedules/tick").await
}

async fn set_schedule(server: &TestServer, token: &str, overlap: &str) {
    let setting = serde_json::json!({ "queue": "ticks", "every": 1, "text": "x", "overlap": overlap });
    let request = server.api("PUT", "/api/ns/_schedules/tick", token).body(setting.to_string());
    send(request).await.expect(201);
}

/// Guards against a schedule that stops, or whose setting changes, because its pool migrates.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_schedule_outlives_servers_of_two_rounds() {
    let pools = Pools::new(Store::redis(), Store::redis());
    let rounds = [(&pools.to, Some(&pools.from)), (&pools.from, Some(&pools.to)), (&pools.to, None)];
    let mut one = pools.before().await;
    let token = one.token("ns").await;
    set_schedule(&one, &token, "allow").await;
    let tick = async |server: &TestServer, what: &str| {
        let job = server.get(&token, "/api/ns/ticks?timeout=10").await;
        assert_eq!(job.status, 200, "{what}: a job a second: {job:?}");
        send(server.api("DELETE", &format!("/api/ns/ticks/job/{}", job.job_id()), &token)).await.expect(204);
    };
    for (round, (of, to)) in rounds.into_iter().enumerate() {
        let other = pools.server(of, to).await;
        for server in [&one, &other, &one, &other] {
            tick(server, &format!("round {}, of two servers", round + 1)).await;
        }
        one.stop().await;
        one = other;
        let shown = until_status(200, async || schedule(&one, &token).await).await;
        assert_eq!(shown.json["state"], "on", "round {}: {shown:?}", round + 1);
        assert_eq!(shown.json["revision"], 1, "round {}: no setting has changed", round + 1);
        // Jobs ready before are not evidence.
        send(one.api("DELETE", "/api/ns/ticks", &token)).await.expect(204);
        for _ in 0..2 {
            tick(&one, &format!("round {}", round + 1)).await;
        }
    }
}

/// Guards against placing a schedule's job while an earlier one lives in the other store.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_occurrence_skipped_for_a_job_of_the_source_is_placed_by_no_server() {
    let pools = Pools::new(Store::redis(), Store::redis());
    let server = pools.before().await;
    let token = server.token("ns").await;
    set_schedule(&server, &token, "skip").await;
    until("its first job exists", async || server.size("/api/ns/ticks").await == 1).await;
    server.stop().await;
    let server = pools.moving().await;
    let skipped = async || schedule(&server, &token).await.json["counts"]["skipped"].as_u64().unwrap_or(0);
    let before = skipped().await;
    until("some more were due", async || skipped().await >= before + 3).await;
    // A part of the size is missing if the old store is late.
    until("the first job is counted", async || {
        let size = server.get("", "/api/ns/ticks/size").await.json["size"].as_u64();
        assert!(size <= Some(1), "only the first job exists, not {size:?}");
        size == Some(1)
    })
    .await;
}

/// Guards against a namespace that exceeds its quota at a server of the first round, because a server of the second
/// round has removed the store's quotas.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_quota_holds_at_servers_of_two_rounds() {
    let pools = Pools::new(Store::redis(), Store::redis());
    let first = pools.server(&pools.to, Some(&pools.from)).await;
    let token = first.token("ns").await;
    send(first.admin("PUT", "/quota/ns").body(r#"{"jobs":1}"#)).await.expect(200);
    first.put(&token, "/api/ns/q", "x").await.expect(201);
    first.put(&token, "/api/ns/q", "y").await.expect(507);
    let second = pools.server(&pools.from, Some(&pools.to)).await;
    first.put(&token, "/api/ns/q", "y").await.expect(507);
    // Its publishes go to the other store, whose quota has room for one.
    second.put(&token, "/api/ns/q", "y").await.expect(201);
    second.put(&token, "/api/ns/q", "z").await.expect(507);
}

/// Starts a server whose pool migrates from this Redis to a directory, with its tokens in a third store.
async fn from_redis_to_disk(old: &RedisServer) -> TestServer {
    let (new, tokens) = (Store::disk(), RedisServer::start());
    let toml = format!(
        "[Pool.default]\n{}MigrateTo = \"disk\"\n[Pool.disk]\n{}[AdminRedis]\n{}",
        old.keys(),
        new.keys(),
        tokens.keys()
    );
    TestServer::start(&toml, (new, tokens)).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_hangs_does_not_keep_the_new_pools_jobs_back() {
    let old = RedisServer::start();
    let server = from_redis_to_disk(&old).await;
    let token = server.token("ns").await;
    server.get(&token, "/api/ns/q").await.expect(404);
    let _stopped = old.stall();
    for n in 0..3 {
        server.put(&token, "/api/ns/q", &format!("job {n}")).await.expect(201);
        let began = std::time::Instant::now();
        let job = server.get(&token, "/api/ns/q?timeout=3").await.expect(200);
        assert!(began.elapsed() < Duration::from_secs(2), "job {n} came after {:?}", began.elapsed());
        send(server.api("DELETE", &format!("/api/ns/q/job/{}", job.job_id()), &token)).await.expect(204);
        server.put(&token, "/api/ns/peeked", "x").await.expect(201);
        server.get(&token, "/api/ns/peeked/peek").await.expect(200);
        assert_eq!(server.size("/api/ns/peeked").await, n + 1, "jobs that can be had");
    }
    drop(_stopped);
    until_status(404, async || server.get(&token, "/api/ns/q").await).await;
}

/// Guards against rejecting a republish with a limited token where other tokens succeed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_limited_token_republishes_while_the_old_store_is_away() {
    let mut old = RedisServer::start();
    let server = from_redis_to_disk(&old).await;
    let token = server.token("ns").await;
    server.limit(&token, r#"{"read":0,"write":2,"interval":600}"#).await;
    old.kill();
    // Whether the source has the job is unknown, so the call counts as a publish.
    let republish = || server.put(&token, "/api/ns/q/job/01ARZ3NDEKTSV4RRFFQ69G5FAV", "again");
    for n in 1..=2 {
        let answer = republish().await;
        assert_eq!(answer.status, 201, "republish {n} of a limit of 2: {answer:?}");
    }
    let over = republish().await;
    assert_eq!(over.status, 429, "republish 3 of a limit of 2: {over:?}");
}

/// Guards against schedules, pauses and quotas that stay behind in a directory from which the default pool has moved,
/// where no `[AdminRedis]` has them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn settings_of_a_directory_move_with_its_pool() {
    let (old, new, redis) = (Store::disk(), Store::disk(), RedisServer::start());
    let toml = |of: &Store, to: Option<&Store>| match to {
        Some(to) => format!("[Pool.default]\n{}MigrateTo = \"next\"\n[Pool.next]\n{}", of.keys(), to.keys()),
        None => format!("[Pool.default]\n{}", of.keys()),
    };
    let schedule = r#"{"queue":"q","every":86400,"text":"x"}"#;
    let server = TestServer::start(&toml(&old, None), ()).await;
    let token = server.token("ns").await;
    send(server.api("PUT", "/api/ns/_schedules/s", &token).body(schedule)).await.expect(201);
    send(server.api("POST", "/api/ns/q/pause", &token)).await.expect(200);
    server.put(&token, "/api/ns/q", "x").await.expect(201);
    send(server.admin("PUT", "/quota/ns").body(r#"{"jobs":1}"#)).await.expect(200);
    let shown = send(server.api("GET", "/api/ns/_schedules/s", &token)).await.expect(200).json;
    server.stop().await;
    let moves = [
        toml(&old, Some(&new)),
        toml(&new, None),
        toml(&new, Some(&old)),
        toml(&old, None),
        format!("{}[AdminRedis]\n{}", toml(&old, None), redis.keys()),
    ];
    for toml in moves {
        let server = TestServer::start(&toml, ()).await;
        let token = server.token("ns").await;
        let there = send(server.api("GET", "/api/ns/_schedules/s", &token)).await.expect(200).json;
        for field in ["revision", "created_at", "next"] {
            assert!(!shown[field].is_null(), "a schedule shows {field}: {shown}");
            assert_eq!(there[field], shown[field], "{field} of the schedule, with {toml}");
        }
        let quota = send(server.admin("GET", "/quota/ns")).await.expect(200).json;
        assert_eq!(quota["jobs"], 1, "the quota, with {toml}");
        server.get(&token, "/api/ns/q").await.expect(404);
        server.stop().await;
    }
}
