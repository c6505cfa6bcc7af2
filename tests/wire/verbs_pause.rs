//! Conversations about pauses, weights, and replies with Retry-After.

use std::time::{Duration, Instant};

use crate::cluster::on_a_cluster;
use crate::common::raw;
use crate::common::{ended, poll};
use crate::support::client::{Response, send};
use crate::support::redis_server::RedisServer;
use crate::support::servers::{Store, TestServer, on_each_store};
use serde_json::{Value, json};

async fn post(server: &TestServer, token: &str, path: &str) -> Response {
    send(server.api("POST", path, token)).await
}

async fn a_paused_queue_hands_out_nothing_until_it_is_resumed(store: Store) {
    let server = TestServer::on(store).await;
    let token = server.token("ns").await;
    server.put(&token, "/api/ns/q?tries=3", "held").await.expect(201);
    let held = server.get(&token, "/api/ns/q?ttr=600").await.expect(200);
    server.put(&token, "/api/ns/q", "x").await.expect(201);
    for _ in 0..2 {
        let paused = post(&server, &token, "/api/ns/q/pause").await.expect(200);
        assert_eq!(paused.text, r#"{"msg":"paused","until":null}"#);
    }
    assert_eq!(server.get(&token, "/api/ns/q").await.expect(404).text, r#"{"msg":"no job available"}"#);
    // Everything else works.
    server.put(&token, "/api/ns/q", "y").await.expect(201);
    server.get(&token, "/api/ns/q/peek").await.expect(200);
    send(server.api("DELETE", &format!("/api/ns/q/job/{}", held.job_id()), &token)).await.expect(204);
    server.put(&token, "/api/ns/low", "low").await.expect(201);
    let other = server.get(&token, "/api/ns/q,low").await.expect(200);
    assert_eq!(other.data(), b"low", "the queue that is not paused is served");

    let waits = poll(&server, &token, "/api/ns/q?timeout=25&ttr=600");
    server.until_parked(1).await;
    for _ in 0..2 {
        let resumed = post(&server, &token, "/api/ns/q/resume").await.expect(200);
        assert_eq!(resumed.text, r#"{"msg":"resumed"}"#);
    }
    assert_eq!(ended(waits).await.expect(200).data(), b"x", "the waiter gets a job at once");
    server.get(&token, "/api/ns/q").await.expect(200);
}

/// Guards against a namespace that makes every server remember any number of names.
async fn a_thousand_queues_of_a_namespace_can_be_paused(store: Store) {
    let server = TestServer::on(store).await;
    let (token, other) = (server.token("ns").await, server.token("other").await);
    for n in 0..1000 {
        post(&server, &token, &format!("/api/ns/q{n}/pause")).await.expect(200);
    }
    server.put(&token, "/api/ns/more", "x").await.expect(201);
    let refused = post(&server, &token, "/api/ns/more/pause").await.expect(409);
    assert_eq!(refused.says(), "too many queues of this namespace are paused");
    assert_eq!(server.get(&token, "/api/ns/more").await.expect(200).data(), b"x", "it is not paused");
    post(&server, &other, "/api/other/more/pause").await.expect(200);
    post(&server, &token, "/api/ns/q7/pause?for=600").await.expect(200);
    post(&server, &token, "/api/ns/q7/resume").await.expect(200);
    post(&server, &token, "/api/ns/more/pause").await.expect(200);
}

async fn a_pause_ends_by_itself_and_a_second_one_replaces_it(store: Store) {
    let server = TestServer::on(store).await;
    let token = server.token("ns").await;
    server.put(&token, "/api/ns/q", "x").await.expect(201);
    let long = post(&server, &token, "/api/ns/q/pause?for=600").await.expect(200);
    let began = Instant::now();
    let short = post(&server, &token, "/api/ns/q/pause?for=1.25").await.expect(200);
    assert!(short.json["until"].as_str() < long.json["until"].as_str(), "{} {}", short.text, long.text);
    let job = server.get(&token, "/api/ns/q?timeout=25").await.expect(200);
    assert_eq!(job.data(), b"x");
    assert!(began.elapsed() >= Duration::from_millis(1250), "it came after {:?}", began.elapsed());
    for bad in ["for=", "for=0", "for=x", "for=-1", "for=1.2345"] {
        let refused = post(&server, &token, &format!("/api/ns/q/pause?{bad}")).await;
        assert_eq!((refused.status, refused.says()), (400, "invalid for"), "{bad}");
    }
    post(&server, "", "/api/ns/q/pause").await.expect(401);
    post(&server, &token, "/api/ns/_q/pause").await.expect(400);
}

async fn queues_with_weights_share_the_consumes(store: Store) {
    let server = TestServer::on(store).await;
    let token = server.token("ns").await;
    let bulk = format!("[{}]", vec!["1"; 50].join(","));
    for queue in ["a", "b", "c"] {
        for _ in 0..2 {
            server.put(&token, &format!("/api/ns/{queue}/bulk"), &bulk).await.expect(201);
        }
    }
    let mut got = [0_usize; 3];
    for count in [1, 1, 1, 7, 20, 70] {
        let jobs =
            server.get(&token, &format!("/api/ns/a,b,c?weights=5,3,2&count={count}")).await.expect(200);
        let jobs =
            if count == 1 { vec![jobs.json] } else { jobs.json.as_array().cloned().unwrap_or_default() };
        assert_eq!(jobs.len(), count, "the requested number");
        for job in jobs {
            let place =
                ["a", "b", "c"].iter().position(|queue| job["queue"] == *queue).expect("one of the three");
            got[place] += 1;
        }
    }
    assert!(got[0] > got[1] && got[1] > got[2] && got[2] >= 10, "of a hundred: {got:?}");
    for bad in ["", "5,3", "5,3,2,1", "5,3,0", "5,3,1001", "a,b,c", "5, 3,2", "5,3,-2"] {
        let refused = server.get(&token, &format!("/api/ns/a,b,c?weights={}", bad.replace(' ', "%20"))).await;
        assert_eq!((refused.status, refused.says()), (400, "invalid weights"), "{bad:?}");
    }
    let left: u64 =
        server.size("/api/ns/a").await + server.size("/api/ns/b").await + server.size("/api/ns/c").await;
    assert_eq!(left, 200, "a refusal took a job");
    server.get(&token, "/api/ns/a?weights=7").await.expect(200);
    // Without weights queues are served in order.
    let first = server.get(&token, "/api/ns/c,a?count=10").await.expect(200);
    assert!(first.json.as_array().into_iter().flatten().all(|job| job["queue"] == "c"), "{}", first.text);
}

on_each_store!(
    a_paused_queue_hands_out_nothing_until_it_is_resumed,
    a_thousand_queues_of_a_namespace_can_be_paused,
    a_pause_ends_by_itself_and_a_second_one_replaces_it,
    queues_with_weights_share_the_consumes,
);

on_a_cluster!(
    a_paused_queue_hands_out_nothing_until_it_is_resumed,
    a_thousand_queues_of_a_namespace_can_be_paused,
    a_pause_ends_by_itself_and_a_second_one_replaces_it,
    queues_with_weights_share_the_consumes,
);

#[tokio::test]
async fn a_pause_holds_on_the_other_server_and_so_does_its_end() {
    let redis = RedisServer::start();
    let [a, b] = TestServer::two_on(&redis).await;
    let token = a.token("ns").await;
    post(&a, &token, "/api/ns/q/pause").await.expect(200);
    b.until_paused(&token, "q").await;
    let waits = poll(&b, &token, "/api/ns/q?timeout=25&ttr=600");
    b.until_parked(1).await;
    b.put(&token, "/api/ns/q", "x").await.expect(201);
    b.get(&token, "/api/ns/q").await.expect(404);
    post(&a, &token, "/api/ns/q/resume").await.expect(200);
    assert_eq!(ended(waits).await.expect(200).data(), b"x");
}

#[tokio::test]
async fn a_pause_lasts_over_a_restart() {
    let dir = tempfile::TempDir::new().expect("a temporary directory");
    let toml = format!("[Pool.default]\nPath = {:?}\n", dir.path().join("jobs"));
    let server = TestServer::start(&toml, ()).await;
    let token = server.token("ns").await;
    post(&server, &token, "/api/ns/q/pause").await.expect(200);
    server.put(&token, "/api/ns/q", "x").await.expect(201);
    server.stop().await;
    let server = TestServer::start(&toml, dir).await;
    server.get(&token, "/api/ns/q").await.expect(404);
    let listed = server.get(&token, "/api/ns").await.expect(200);
    assert_eq!(listed.json["queues"][0]["paused"], json!(true), "{}", listed.text);
    assert_eq!(listed.json["queues"][0].get("paused_until"), None::<&Value>, "{}", listed.text);
    post(&server, &token, "/api/ns/q/resume").await.expect(200);
    server.get(&token, "/api/ns/q").await.expect(200);
}

/// Guards against clients that do not know how long to wait, and retry too often.
#[tokio::test]
async fn who_is_refused_for_now_is_told_when_to_come_back() {
    let store = Store::disk();
    let toml = format!("MaxParkedPolls = 1\n{}", store.toml());
    let server = TestServer::start(&toml, store).await;
    let token = server.token("ns").await;
    let first = poll(&server, &token, "/api/ns/q?timeout=20");
    server.until_parked(1).await;
    let second = server.get(&token, "/api/ns/q?timeout=1").await.expect(503);
    assert_eq!(second.header("retry-after"), "1", "{second:?}");
    server.put(&token, "/api/ns/q", "x").await.expect(201);
    ended(first).await.expect(200);
    server.limit(&token, r#"{"read":1,"write":1,"interval":100}"#).await;
    server.put(&token, "/api/ns/q", "x").await.expect(201);
    server.get(&token, "/api/ns/q").await.expect(200);
    for (method, path) in [("PUT", "/api/ns/q"), ("PUT", "/api/ns/q/bulk"), ("GET", "/api/ns/q")] {
        let over = send(server.api(method, path, &token)).await.expect(429);
        let seconds: u64 = over.header("retry-after").parse().expect("whole seconds");
        assert!((70..=100).contains(&seconds), "{method} {path}: until the interval ends, not {seconds}");
    }
    let fine = raw(server.api_addr, b"GET /ping HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await;
    assert!(!fine.to_lowercase().contains("retry-after"), "{fine}");
}
