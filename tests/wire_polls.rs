//! Conversations of long polls over real connections: who leaves costs nothing, who waits is served in turn.

mod support;

use std::time::{Duration, Instant};

use support::redis_server::RedisServer;
use support::server::{Answer, PATIENCE, TestServer, send};
use tempfile::TempDir;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

/// Waits until so many polls are parked.
async fn parked(server: &TestServer, polls: usize) {
    let line = format!("\ndormouse_parked_polls {polls}\n");
    let asking = async {
        while !send(server.operate("GET", "/metrics")).await.text.contains(&line) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, asking).await.unwrap_or_else(|_| panic!("never {polls} parked polls"));
}

fn poll(server: &TestServer, token: &str, path: &str) -> JoinHandle<Answer> {
    tokio::spawn(send(server.api("GET", path, token)))
}

async fn ended(poll: JoinHandle<Answer>) -> Answer {
    tokio::time::timeout(PATIENCE, poll).await.expect("the poll ends in time").expect("no panic")
}

async fn put(server: &TestServer, token: &str, path: &str, body: &str) -> Answer {
    send(server.api("PUT", path, token).body(body.to_owned())).await.expect(201)
}

async fn a_consumer_that_left_costs_nothing(server: TestServer) {
    let token = server.token("ns").await;
    for i in 0..20 {
        let mut gone = TcpStream::connect(server.api).await.expect("the port takes connections");
        let head = format!("GET /api/ns/q?timeout=600 HTTP/1.1\r\nHost: x\r\nX-Token: {token}\r\n\r\n");
        gone.write_all(head.as_bytes()).await.expect("sent");
        parked(&server, 1).await;
        // It leaves in the moment before the publish, so that the server may not have noticed yet.
        drop(gone);
        let id = put(&server, &token, "/api/ns/q?tries=1", &i.to_string()).await.job_id();
        let job = send(server.api("GET", "/api/ns/q?timeout=5&ttr=600", &token)).await.expect(200);
        assert_eq!(job.job_id(), id, "round {i}: the job of one try went to nobody");
    }
    let dead = send(server.api("GET", "/api/ns/q/deadletter/size", "")).await;
    assert_eq!(dead.json["size"], 0, "{}", dead.text);
}

#[tokio::test]
async fn a_consumer_that_left_costs_nothing_on_disk() {
    a_consumer_that_left_costs_nothing(TestServer::disk().await).await;
}

#[tokio::test]
async fn a_consumer_that_left_costs_nothing_on_redis() {
    a_consumer_that_left_costs_nothing(TestServer::redis().await).await;
}

async fn polls_are_served_in_the_order_of_their_coming(server: TestServer) {
    let token = server.token("ns").await;
    let mut polls = Vec::new();
    for i in 0..8 {
        // Some wait for more than one queue; all for this one.
        let queues = if i % 2 == 0 { "q" } else { "other,q" };
        polls.push(poll(&server, &token, &format!("/api/ns/{queues}?timeout=15&ttr=600")));
        parked(&server, i + 1).await;
    }
    for i in 0..8 {
        put(&server, &token, "/api/ns/q", &i.to_string()).await;
        parked(&server, 7 - i).await;
    }
    for (i, poll) in polls.into_iter().enumerate() {
        let job = ended(poll).await.expect(200);
        assert_eq!(String::from_utf8_lossy(&job.data()), i.to_string(), "poll {i} got another's job");
    }
}

#[tokio::test]
async fn polls_are_served_in_the_order_of_their_coming_on_disk() {
    polls_are_served_in_the_order_of_their_coming(TestServer::disk().await).await;
}

#[tokio::test]
async fn polls_are_served_in_the_order_of_their_coming_on_redis() {
    polls_are_served_in_the_order_of_their_coming(TestServer::redis().await).await;
}

#[tokio::test]
async fn a_publish_on_one_server_wakes_a_poll_on_another_and_so_does_a_delay() {
    let redis = RedisServer::start();
    let [a, b] = TestServer::two_on(&redis).await;
    let token = a.token("ns").await;
    for path in ["/api/ns/q", "/api/ns/q?delay=1"] {
        let waits = poll(&b, &token, "/api/ns/q?timeout=15&ttr=600");
        parked(&b, 1).await;
        let id = put(&a, &token, path, "x").await.job_id();
        let job = ended(waits).await.expect(200);
        assert_eq!(job.job_id(), id, "{path}");
        let early = job.json["elapsed_ms"].as_u64() < Some(if path.contains("delay") { 1000 } else { 0 });
        assert!(!early, "before it was due: {}", job.text);
    }
}

#[tokio::test]
async fn an_empty_poll_lasts_its_timeout_and_too_many_are_told_so() {
    let dir = TempDir::new().expect("a temporary directory");
    let toml = format!("MaxParkedPolls = 1\n{}", TestServer::disk_toml(dir.path()));
    let server = TestServer::from_toml(&toml, vec![Box::new(dir)]).await;
    let token = server.token("ns").await;
    let began = Instant::now();
    let first = poll(&server, &token, "/api/ns/q?timeout=1");
    parked(&server, 1).await;
    let second = send(server.api("GET", "/api/ns/q?timeout=1", &token)).await.expect(503);
    assert_eq!(second.says(), "too many consumers are waiting, please retry later");
    // Who does not wait is always welcome.
    send(server.api("GET", "/api/ns/q", &token)).await.expect(404);
    let answer = ended(first).await.expect(404);
    assert_eq!(answer.text, r#"{"msg":"no job available"}"#);
    assert!(began.elapsed() >= Duration::from_secs(1), "an empty poll ended after {:?}", began.elapsed());
}

#[tokio::test]
async fn a_stop_answers_parked_polls_and_takes_no_job_along() {
    let redis = RedisServer::start();
    let [a, b] = TestServer::two_on(&redis).await;
    let token = a.token("ns").await;
    let polls: Vec<_> = (0..10).map(|_| poll(&a, &token, "/api/ns/q?timeout=60&ttr=600")).collect();
    parked(&a, 10).await;
    let stopping = tokio::spawn(a.stop());
    for i in 0..10 {
        put(&b, &token, "/api/ns/q?tries=1", &i.to_string()).await;
    }
    let mut answered = 0;
    for poll in polls {
        answered += usize::from(ended(poll).await.status == 200);
    }
    tokio::time::timeout(PATIENCE, stopping).await.expect("it stops").expect("no panic");
    for _ in answered..10 {
        send(b.api("GET", "/api/ns/q?timeout=5&ttr=600", &token)).await.expect(200);
    }
    send(b.api("GET", "/api/ns/q", &token)).await.expect(404);
}
