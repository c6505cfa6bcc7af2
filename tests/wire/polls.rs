//! Conversations of long polls over real connections: disconnecting costs nothing, and waiters are served in order.

use std::time::{Duration, Instant};

use crate::common::{ended, poll};
use crate::support::client::send;
use crate::support::redis_server::RedisServer;
use crate::support::servers::{Store, TestServer, on_each_store};
use crate::support::wait::TIMEOUT;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

async fn a_consumer_that_left_costs_nothing(store: Store) {
    let server = TestServer::on(store).await;
    let token = server.token("ns").await;
    for i in 0..20 {
        let mut gone = TcpStream::connect(server.api_addr).await.expect("the port takes connections");
        let head = format!("GET /api/ns/q?timeout=600 HTTP/1.1\r\nHost: x\r\nX-Token: {token}\r\n\r\n");
        gone.write_all(head.as_bytes()).await.expect("sent");
        server.until_parked(1).await;
        // The consumer disconnects just before the publish, so the server may not have noticed yet.
        drop(gone);
        let id = server.put(&token, "/api/ns/q?tries=1", &i.to_string()).await.expect(201).job_id();
        let job = server.get(&token, "/api/ns/q?timeout=5&ttr=600").await.expect(200);
        assert_eq!(job.job_id(), id, "job {i}, of one try, should go to the connected consumer");
    }
    assert_eq!(server.size("/api/ns/q/deadletter").await, 0, "a job died unseen");
}

on_each_store!(a_consumer_that_left_costs_nothing);

async fn polls_are_served_in_the_order_of_their_coming(store: Store) {
    let server = TestServer::on(store).await;
    let token = server.token("ns").await;
    let mut polls = Vec::new();
    for i in 0..8 {
        // Half of them wait for a second queue; all wait for `q`.
        let queues = if i % 2 == 0 { "q" } else { "other,q" };
        polls.push(poll(&server, &token, &format!("/api/ns/{queues}?timeout=15&ttr=600")));
        server.until_parked(i + 1).await;
    }
    for i in 0..8 {
        server.put(&token, "/api/ns/q", &i.to_string()).await.expect(201);
        server.until_parked(7 - i).await;
    }
    for (i, poll) in polls.into_iter().enumerate() {
        let job = ended(poll).await.expect(200);
        assert_eq!(String::from_utf8_lossy(&job.data()), i.to_string(), "poll {i} got another's job");
    }
}

on_each_store!(polls_are_served_in_the_order_of_their_coming);

#[tokio::test]
async fn a_publish_on_one_server_wakes_a_poll_on_another_and_so_does_a_delay() {
    let redis = RedisServer::start();
    let [a, b] = TestServer::two_on(&redis).await;
    let token = a.token("ns").await;
    for path in ["/api/ns/q", "/api/ns/q?delay=1"] {
        let waits = poll(&b, &token, "/api/ns/q?timeout=15&ttr=600");
        b.until_parked(1).await;
        let id = a.put(&token, path, "x").await.expect(201).job_id();
        let job = ended(waits).await.expect(200);
        assert_eq!(job.job_id(), id, "{path}");
        let least = if path.contains("delay") { 1000 } else { 0 };
        let elapsed = job.json["elapsed_ms"].as_u64();
        assert!(elapsed >= Some(least), "elapsed_ms should be {least} or more: {}", job.text);
    }
}

/// Guards against a tenant that uses all memory with polls of many queue names.
#[tokio::test]
async fn a_poll_of_many_queues_takes_more_than_one_place_of_its_namespace() {
    let store = Store::disk();
    let toml = format!("MaxParkedPolls = 14\nMaxParkedPollsPerNamespace = 11\n{}", store.toml());
    let server = TestServer::start(&toml, store).await;
    let (token, others) = (server.token("ns").await, server.token("others").await);
    let list = |of: &str, count| (0..count).map(|i| format!("{of}-{i}")).collect::<Vec<_>>().join(",");
    let many = poll(&server, &token, &format!("/api/ns/{}?timeout=20", list("many", 100)));
    server.until_parked(10).await;
    let ten = poll(&server, &token, &format!("/api/ns/{}?timeout=20", list("ten", 10)));
    server.until_parked(11).await;
    let refused = server.get(&token, "/api/ns/q?timeout=1").await.expect(503);
    assert_eq!(refused.says(), "too many consumers of this namespace are waiting, please retry later");
    // Another namespace has its share: three slots are left.
    let two = poll(&server, &others, &format!("/api/others/{}?timeout=20", list("two", 11)));
    server.until_parked(13).await;
    let _one = poll(&server, &others, "/api/others/q?timeout=20");
    server.until_parked(14).await;
    let refused = server.get(&others, "/api/others/r?timeout=1").await.expect(503);
    assert_eq!(refused.says(), "too many consumers are waiting, please retry later");
    drop((ten, two));
    // A poll that gets a job frees all its slots.
    let id = server.put(&token, "/api/ns/many-99", "x").await.expect(201).job_id();
    assert_eq!(ended(many).await.expect(200).job_id(), id, "it waits for each of its queues");
    server.until_parked(4).await;
}

/// Guards against a tenant that uses all memory with headers, which a connection keeps while its poll waits.
#[tokio::test]
async fn a_poll_with_a_long_head_takes_more_than_one_place() {
    let store = Store::disk();
    let toml = format!("MaxParkedPolls = 8\nMaxParkedPollsPerNamespace = 6\n{}", store.toml());
    let server = TestServer::start(&toml, store).await;
    let token = server.token("ns").await;
    let with = |queue: &str, bytes: usize| {
        let request = server.api("GET", &format!("/api/ns/{queue}?timeout=20"), &token);
        tokio::spawn(send(request.header("X-Filler", "x".repeat(bytes))))
    };
    let _short = with("short", 7_000);
    server.until_parked(1).await;
    let long = with("long", 40_000);
    server.until_parked(6).await;
    let refused = server.get(&token, "/api/ns/q?timeout=1").await.expect(503);
    assert_eq!(refused.says(), "too many consumers of this namespace are waiting, please retry later");
    let limits = send(server.admin("GET", "/server")).await.expect(200);
    let told = ["/waiting", "/waiting_places", "/most/waiting"].map(|of| limits.json.pointer(of).cloned());
    assert_eq!(told, [2, 6, 8].map(|n| Some(n.into())), "consumers, their places, and the most");
    server.put(&token, "/api/ns/long", "x").await.expect(201);
    ended(long).await.expect(200);
    server.until_parked(1).await;
}

#[tokio::test]
async fn an_empty_poll_lasts_its_timeout_and_too_many_are_told_so() {
    let store = Store::disk();
    let toml = format!("MaxParkedPolls = 1\n{}", store.toml());
    let server = TestServer::start(&toml, store).await;
    let token = server.token("ns").await;
    let first = poll(&server, &token, "/api/ns/q?timeout=20");
    server.until_parked(1).await;
    let second = server.get(&token, "/api/ns/q?timeout=1").await.expect(503);
    assert_eq!(second.says(), "too many consumers are waiting, please retry later");
    // Polls with timeout zero are always admitted.
    server.get(&token, "/api/ns/q").await.expect(404);
    server.put(&token, "/api/ns/q", "for the first").await.expect(201);
    ended(first).await.expect(200);
    let began = Instant::now();
    let none = server.get(&token, "/api/ns/q?timeout=1").await.expect(404);
    assert_eq!(none.text, r#"{"msg":"no job available"}"#);
    let took = began.elapsed();
    assert!(took >= Duration::from_secs(1), "a poll with timeout=1 should last a second, and took {took:?}");
}

#[tokio::test]
async fn a_stop_answers_parked_polls_and_takes_no_job_along() {
    let redis = RedisServer::start();
    let [a, b] = TestServer::two_on(&redis).await;
    let token = a.token("ns").await;
    let polls: Vec<_> = (0..10).map(|_| poll(&a, &token, "/api/ns/q?timeout=60&ttr=600")).collect();
    a.until_parked(10).await;
    let stopping = tokio::spawn(a.stop());
    for i in 0..10 {
        b.put(&token, "/api/ns/q?tries=1", &i.to_string()).await.expect(201);
    }
    let mut answered = 0;
    for poll in polls {
        answered += usize::from(ended(poll).await.status == 200);
    }
    tokio::time::timeout(TIMEOUT, stopping).await.expect("it stops").expect("no panic");
    for _ in answered..10 {
        b.get(&token, "/api/ns/q?timeout=5&ttr=600").await.expect(200);
    }
    b.get(&token, "/api/ns/q").await.expect(404);
}
