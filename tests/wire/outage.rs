//! A Redis outage: replies, log lines, and no loss.

use std::time::{Duration, Instant};

use crate::common::until_status;
use crate::support::client::{Response, create_token, job_id, request, send};
use crate::support::complaints::complaints;
use crate::support::process::Process;
use crate::support::redis_server::RedisServer;
use crate::support::servers::{TestServer, redis_toml};
use crate::support::wait::TIMEOUT;
use parking_lot::Mutex;
use reqwest::Client;
use tempfile::TempDir;

/// Starts a server on a Redis that the test can stop and start.
async fn on_redis() -> (TestServer, RedisServer, String) {
    let redis = RedisServer::start_with(None, &["--appendfsync", "always"]);
    let server = TestServer::start(&redis_toml(&redis), ()).await;
    let token = server.token("ns").await;
    (server, redis, token)
}

#[tokio::test]
async fn while_the_redis_is_away_every_answer_is_5xx_and_afterwards_all_is_there() {
    let (server, mut redis, token) = on_redis().await;
    for i in 0..20 {
        let path = format!("/api/ns/q?delay={}", i % 2);
        send(server.api("PUT", &path, &token).body(i.to_string())).await.expect(201);
    }
    redis.kill();
    let store = [
        ("PUT", "/api/ns/q"),
        ("PUT", "/api/ns/q/job/01ARZ3NDEKTSV4RRFFQ69G5FAV"),
        ("GET", "/api/ns/q"),
        ("GET", "/api/ns/q?timeout=1"),
        ("GET", "/api/ns/a,b?count=5"),
        ("GET", "/api/ns/q/peek"),
        ("GET", "/api/ns/q/job/01ARZ3NDEKTSV4RRFFQ69G5FAV"),
        ("DELETE", "/api/ns/q/job/01ARZ3NDEKTSV4RRFFQ69G5FAV"),
        ("GET", "/api/ns/q/size"),
        ("GET", "/api/ns/q/deadletter"),
        ("PUT", "/api/ns/q/deadletter"),
        ("DELETE", "/api/ns/q/deadletter"),
        ("DELETE", "/api/ns/q"),
        ("GET", "/api/ns/q/deadletter/size"),
    ];
    for (method, path) in store {
        let answer = send(server.api(method, path, &token)).await;
        assert!((500..600).contains(&answer.status), "{method} {path}: {answer:?}");
        assert_eq!(answer.json["error"].as_str(), Some("internal error"), "{method} {path} tells no inside");
        let id = answer.header("x-request-id");
        assert_eq!(
            answer.json["request_id"].as_str(),
            Some(id),
            "{method} {path} names its request: {answer:?}"
        );
    }
    let bulk = send(server.api("PUT", "/api/ns/q/bulk", &token).body("[1]")).await;
    assert!(bulk.status >= 500, "{bulk:?}");
    let unknown = send(server.api("GET", "/api/ns/q", "nobody-knows-this-token")).await;
    assert!(unknown.status >= 500, "a token that cannot be checked is not a wrong one: {unknown:?}");
    // Requests that need no store, and client errors, are answered as usual.
    send(server.api("GET", "/ping", "")).await.expect(200);
    send(server.api("PUT", "/api/ns/q?tries=0", &token).body("x")).await.expect(400);
    send(server.admin("GET", "/ping")).await.expect(200);
    send(server.admin("GET", "/metrics")).await.expect(200);
    let ready = send(server.admin("GET", "/ready")).await.expect(503);
    assert!(ready.json["reason"].as_str().is_some_and(|why| why.contains("pool default")), "{}", ready.text);
    for (method, path) in [
        ("GET", "/token/ns"),
        ("POST", "/token/ns?description=x"),
        ("GET", "/info"),
        ("GET", "/limits?force_update=1"),
    ] {
        let answer = send(server.admin(method, path)).await;
        assert!(answer.status >= 500, "admin {method} {path}: {answer:?}");
    }
    redis.restart();
    until_status(200, async || send(server.admin("GET", "/ready")).await).await;
    let mut got = Vec::new();
    while got.len() < 20 {
        // The server was reported ready, so no request may fail any more.
        let job = send(server.api("GET", "/api/ns/q?timeout=5&ttr=600", &token)).await.expect(200);
        got.push(String::from_utf8(job.data()).expect("text").parse::<u32>().expect("a number"));
    }
    got.sort_unstable();
    assert_eq!(got, (0..20).collect::<Vec<_>>(), "each of the jobs that were answered 201, once");
    send(server.api("GET", "/api/ns/q", &token)).await.expect(404);
}

#[tokio::test]
async fn ready_says_yes_only_when_requests_work_again() {
    let (server, mut redis, token) = on_redis().await;
    redis.kill();
    // Pauses cannot be observed. After two seconds the back-off of connection attempts has reached one second.
    let away = async {
        for _ in 0..40 {
            send(server.api("PUT", "/api/ns/q", &token).body("x")).await;
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(TIMEOUT, away).await.expect("no hang");
    redis.restart();
    until_status(200, async || send(server.admin("GET", "/ready")).await).await;
    send(server.api("PUT", "/api/ns/q", &token).body("x")).await.expect(201);
    send(server.api("GET", "/api/ns/q", &token)).await.expect(200);
}

#[tokio::test]
async fn a_parked_poll_outlives_an_outage_or_is_told_of_it_and_the_next_is_woken() {
    let (server, mut redis, token) = on_redis().await;
    let poll = tokio::spawn(send(server.api("GET", "/api/ns/q?timeout=20&ttr=600", &token)));
    server.until_parked(1).await;
    redis.restart();
    until_status(201, async || server.put(&token, "/api/ns/q", "first").await).await;
    let response = poll.await.expect("no panic");
    // A caller that got an error because of the outage retries.
    let first = if response.status < 500 { response } else { server.get(&token, "/api/ns/q").await };
    assert_eq!(first.expect(200).data(), b"first");
    let poll = tokio::spawn(send(server.api("GET", "/api/ns/q?timeout=20", &token)));
    until_status(201, async || server.put(&token, "/api/ns/q?delay=1", "woken").await).await;
    assert_eq!(poll.await.expect("no panic").expect(200).data(), b"woken");
}

/// The log of a server with full logging contains no token, password or body.
#[tokio::test]
async fn an_outage_under_load_is_one_pair_of_lines_per_store_and_no_secret_is_ever_logged() {
    let dir = TempDir::new().expect("a temporary directory");
    let mut redis = RedisServer::start_with(Some("HUSH-password"), &["--appendfsync", "always"]);
    let pool = format!("Addr = {:?}\nPassword = 'HUSH-password'\n", redis.addr());
    let toml = format!(
        "LogLevel = 'trace'\nEnableAccessLog = true\nAccounts = {{ ann = 'HUSH-account' }}\n[Pool.default]\n{pool}[AdminRedis]\n{pool}"
    );
    std::fs::write(dir.path().join("c.toml"), toml).expect("a file");
    let mut process = Process::start(dir.path(), &["-c", "c.toml", "-bt", "error"], &[]);
    let (api, admin) = (process.address("api"), process.address("admin"));
    let client = Client::new();
    // The second has a limit, which is counted in the store of tokens and limits before the pool is used.
    let [token, limited] = ["HUSH-token-of-twenty-characters", "HUSH-limited-of-twenty-characters"];
    // ann:HUSH-account
    let basic = "Basic YW5uOkhVU0gtYWNjb3VudA==";
    let operate = async |method: &str, path: &str, body: &'static str| {
        let request = client.request(method.parse().expect("a method"), format!("http://{admin}{path}"));
        request.header("Authorization", basic).body(body).send().await.expect("an answer").status().as_u16()
    };
    for token in [token, limited] {
        assert_eq!(operate("POST", &format!("/token/ns?description=x&token={token}"), "").await, 201);
    }
    let limit = r#"{"read":100000,"write":100000,"interval":600}"#;
    assert_eq!(operate("POST", &format!("/token/ns/{limited}/limit"), limit).await, 201);
    let put = async |token: &str| {
        let url = format!("http://{api}/api/ns/q?token={token}");
        client.put(url).body("HUSH-body").send().await.expect("an answer").status().as_u16()
    };
    let poll = |queue: &str, timeout: u32| {
        let url = format!("http://{api}/api/ns/{queue}?timeout={timeout}");
        client.get(url).header("X-Token", token).send()
    };
    for token in [token, limited] {
        assert_eq!(put(token).await, 201);
        assert_eq!(poll("q", 1).await.expect("an answer").status(), 200);
    }
    client.get(format!("http://{api}/api/ns/q?token=HUSH-wrong")).send().await.expect("an answer");
    let polls: Vec<_> = (0..20).map(|n| tokio::spawn(poll(&format!("parked-{n}"), 30))).collect();
    redis.kill();
    // Short: detecting the end of an outage must not depend on the requests that failed during it.
    let mut refused = 0;
    while refused < 200 {
        for token in [token, limited] {
            let status = put(token).await;
            assert!(status >= 500, "{status} during the outage");
            refused += 1;
        }
    }
    redis.restart();
    let healed = async {
        while put(token).await != 201 || put(limited).await != 201 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(TIMEOUT, healed).await.expect("it heals by itself");
    // Without further requests, the pump and a task that checks the store of tokens notice the end of the outage.
    let stores = ["pool default", "tokens and limits"];
    let process = tokio::task::spawn_blocking(move || {
        for store in stores {
            process.line_with(&format!("the store can be used again store={store:?}"));
        }
        process
    })
    .await
    .expect("no panic");
    for token in [token, limited] {
        assert_eq!(operate("DELETE", &format!("/token/ns/{token}"), "").await, 204);
    }
    process.signal("TERM");
    let ended = tokio::task::spawn_blocking(|| process.ended()).await.expect("no panic");
    for poll in polls {
        poll.await.expect("no panic").expect("a parked poll is answered");
    }
    let hush: Vec<&str> = ended
        .said
        .lines()
        .filter(|line| line.contains("HUSH") || line.contains("YW5uOkhV") || line.contains("SFVTSC"))
        .collect();
    assert!(hush.is_empty(), "{} lines with secrets, such as: {:?}", hush.len(), &hush[..hush.len().min(5)]);
    let lines = |what: &str| -> Vec<&str> { ended.said.lines().filter(|line| line.contains(what)).collect() };
    for store in stores {
        for what in ["cannot be used", "can be used again"] {
            let said = lines(&format!("the store {what} store={store:?}"));
            assert_eq!(said.len(), 1, "one line that {store} {what}, but:\n{}", said.join("\n"));
        }
    }
    let worse = complaints(&ended.said);
    assert_eq!(worse.len(), 2, "an error when each store goes, and nothing else, but:\n{}", worse.join("\n"));
    for (store, least) in stores.into_iter().zip([100, 100]) {
        let again = lines(&format!("the store can be used again store={store:?}"))[0];
        let failures =
            again.split_once("failures=").and_then(|(_, rest)| rest.split(' ').next()?.parse().ok());
        assert!(failures >= Some(least), "every request that failed is counted, {least} and more: {again}");
    }
}

/// Guards against scrapes that query one pool after another, or wait for each other: Prometheus gives up after ten
/// seconds, and retries.
#[tokio::test]
async fn scrapes_ask_all_pools_at_the_same_time() {
    let pools = [(); 3].map(|()| RedisServer::start());
    let tokens = RedisServer::start();
    let names = ["default", "b", "c"].iter().zip(&pools);
    let toml: String = names.map(|(name, redis)| format!("[Pool.{name}]\n{}", redis.keys())).collect();
    let server = TestServer::start(&format!("{toml}[AdminRedis]\n{}", tokens.keys()), tokens).await;
    let _stalled: Vec<_> = pools.iter().map(RedisServer::stall).collect();
    let began = Instant::now();
    let scrape = || send(server.admin("GET", "/metrics"));
    let all = tokio::join!(scrape(), scrape(), scrape());
    for answer in [all.0, all.1, all.2] {
        answer.expect(200);
    }
    // Each pool is queried for two seconds.
    let took = began.elapsed();
    assert!(took < Duration::from_millis(5500), "three scrapes of three pools took {took:?}");
}

/// Operations on a job of a full Redis.
const ENDS: [&str; 8] = ["ack", "fenced ack", "touch", "release", "put off", "bury", "many", "leave"];

/// Guards against a full Redis that cannot be emptied because a limit cannot be counted, a lease cannot be moved, or a
/// script's first write needs memory.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_redis_is_drained_by_every_verb_and_says_so_in_one_line() {
    let (dir, redis) = (TempDir::new().expect("a temporary directory"), RedisServer::start());
    std::fs::write(dir.path().join("c.toml"), redis_toml(&redis)).expect("a file");
    let mut process = Process::start(dir.path(), &["-c", "c.toml", "-bt", "error"], &[]);
    let (api, admin) = (process.address("api"), process.address("admin"));
    let token = create_token(&admin, "ns").await;
    let operate = |method: &str, path: &str| request(method, &format!("http://{admin}{path}"), "");
    let ask = |method: &str, path: &str| request(method, &format!("http://{api}/api/ns/{path}"), &token);
    let limit = r#"{"read":1000000,"write":1000000,"interval":600}"#;
    send(operate("POST", &format!("/token/ns/{token}/limit")).body(limit)).await.expect(201);
    // With a quota, the scripts that count deletions run.
    send(operate("PUT", "/quota/ns").body(r#"{"jobs":100000}"#)).await.expect(200);
    for n in 0..40 {
        let bodies: Vec<String> = (0..10).map(|i| format!("{}", 10 * n + i)).collect();
        let tries = 1 + n % 3;
        let path = format!("q/bulk?tries={tries}&delay={}", n % 2);
        send(ask("PUT", &path).body(format!("[{}]", bodies.join(",")))).await.expect(201);
    }
    // Its counters are deleted, so the first request of each kind needs memory.
    let conn = &mut redis.connection();
    let counters: Vec<String> = redis::cmd("KEYS").arg("l/*").query(conn).expect("KEYS");
    let _: u64 = redis::cmd("DEL").arg(counters).query(conn).expect("DEL");
    let memory = |most: u32| {
        redis::cmd("CONFIG")
            .arg("SET")
            .arg("maxmemory")
            .arg(most)
            .exec(&mut redis.connection())
            .expect("CONFIG SET");
    };
    memory(1);
    send(ask("PUT", "q").body("x")).await.expect(500);
    until_status(200, async || send(operate("GET", "/ready")).await).await;
    let left = || -> Vec<u64> {
        let mut lengths = redis::pipe();
        lengths.cmd("LLEN").arg("q/ns/q").cmd("ZCARD").arg("timer_set");
        lengths.query(&mut redis.connection()).expect("LLEN and ZCARD")
    };
    let failed = Mutex::new(Vec::new());
    let done = |what: &'static str, answer: &Response, well: &[u16]| {
        if !well.contains(&answer.status) {
            failed.lock().push(format!("{what}: {} {}", answer.status, answer.text));
        }
    };
    let worker = async |first: usize| {
        for n in first.. {
            let poll = send(ask("GET", "q?ttr=1&receipt=1&count=2")).await;
            done("consume", &poll, &[200, 404]);
            if poll.status != 200 && left() == [0, 0] {
                return;
            }
            for (i, job) in poll.json.as_array().into_iter().flatten().enumerate() {
                let (id, receipt) = (job_id(job), job["receipt"].as_str().unwrap_or_default());
                let what = ENDS[(n + i) % ENDS.len()];
                let held = |verb: &str, rest: &str| {
                    ask("POST", &format!("q/job/{id}/{verb}?receipt={receipt}{rest}"))
                };
                let call = match what {
                    "ack" => ask("DELETE", &format!("q/job/{id}")),
                    "fenced ack" => ask("DELETE", &format!("q/job/{id}?receipt={receipt}")),
                    "touch" => held("touch", "&ttr=1"),
                    "release" => held("release", ""),
                    "put off" => held("release", "&delay=1&reason=later"),
                    "bury" => held("bury", "&reason=bad"),
                    "many" => ask("POST", "q/ack")
                        .body(format!(r#"{{"jobs":[{{"id":"{id}","receipt":"{receipt}"}}]}}"#)),
                    _ => continue,
                };
                // On a busy machine the ttr may have ended.
                done(what, &send(call).await, &[200, 204, 404, 409]);
            }
            tokio::time::sleep(Duration::from_millis(if poll.status == 404 { 20 } else { 0 })).await;
        }
    };
    let workers = async { tokio::join!(worker(0), worker(2), worker(5), worker(7)) };
    tokio::time::timeout(TIMEOUT, workers).await.expect("it is drained");
    let dead = send(ask("GET", "q/deadletter")).await.expect(200);
    assert!(dead.json["deadletter_size"].as_u64() > Some(20), "some were buried: {}", dead.text);
    let head = dead.json["deadletter_head"].as_str().unwrap_or_default();
    done("respawn of one", &send(ask("POST", &format!("q/job/{head}/respawn"))).await, &[200]);
    done("respawn", &send(ask("PUT", "q/deadletter?limit=10")).await, &[200]);
    let back = send(ask("GET", "q?ttr=60&count=11")).await;
    done("consume", &back, &[200]);
    assert_eq!(back.json.as_array().map(Vec::len), Some(11), "the respawned jobs: {}", back.text);
    done("deletion of dead jobs", &send(ask("DELETE", "q/deadletter?limit=10000")).await, &[204]);
    done("destroy", &send(ask("DELETE", "q")).await, &[204]);
    memory(0);
    // The last refusal must be three seconds ago.
    until_status(201, async || send(ask("PUT", "q").body("x")).await).await;
    let process = tokio::task::spawn_blocking(move || {
        process.signal("TERM");
        process.ended()
    });
    let said = process.await.expect("no panic").said;
    // Counting a request may take a second, which may be too short on a busy machine: an internal error.
    let is_late = |line: &&str| line.contains("a request was not counted in time");
    let (late, worse): (Vec<&str>, Vec<&str>) = complaints(&said).into_iter().partition(is_late);
    let is_explained =
        |what: &String| !late.is_empty() && what.contains(": 500 {\"error\":\"internal error\"");
    let failed: Vec<String> = failed.into_inner().into_iter().filter(|what| !is_explained(what)).collect();
    assert!(failed.is_empty(), "{} requests failed, such as {:?}", failed.len(), failed.first());
    let full = |store: &str| {
        worse.iter().filter(|line| line.contains("the store is full") && line.contains(store)).count()
    };
    assert_eq!(
        (full("pool default"), full("tokens and limits")),
        (1, 1),
        "a line for each:\n{}",
        worse.join("\n")
    );
    assert_eq!(worse.len(), 2, "and nothing else:\n{}", worse.join("\n"));
}
