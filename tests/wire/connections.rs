//! Connections of unknown and of disconnecting clients: a disconnected client gets no job, a slow one delays no other,
//! excessive requests get an error, and a stop answers received requests.

use std::time::{Duration, Instant};

use crate::common::{raw, read_until, status};
use crate::support::client::send;
use crate::support::complaints::complaints;
use crate::support::process::Process;
use crate::support::redis_server::RedisServer;
use crate::support::servers::{Store, TestServer, on_each_store, redis_toml};
use crate::support::wait::TIMEOUT;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Upper bound on an immediate reply: a server that waits for something else takes longer.
const AT_ONCE: Duration = Duration::from_secs(10);

async fn connect(addr: impl tokio::net::ToSocketAddrs) -> TcpStream {
    TcpStream::connect(addr).await.expect("the port takes connections")
}

/// A request that leaves its connection open.
fn get(path: &str, token: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: x\r\nX-Token: {token}\r\n\r\n")
}

/// Reads to the end of the connection.
async fn read_to_end(stream: &mut TcpStream) -> String {
    let mut all = Vec::new();
    // A reset after the response ends a connection too.
    let _ = tokio::time::timeout(TIMEOUT, stream.read_to_end(&mut all)).await.expect("an end in time");
    String::from_utf8_lossy(&all).into_owned()
}

/// Whether a response announces the end of its connection.
fn says_close(answer: &str) -> bool {
    answer.to_ascii_lowercase().contains("\r\nconnection: close\r\n")
}

#[tokio::test]
async fn a_consumer_without_timeout_that_left_during_a_stall_gets_no_job() {
    let redis = RedisServer::start();
    let server = TestServer::start(&redis_toml(&redis), ()).await;
    let token = server.token("ns").await;
    // The token is cached from here on, so the consume waits only for its job.
    server.get(&token, "/api/ns/q").await.expect(404);
    let id = server.put(&token, "/api/ns/q?tries=1", "x").await.expect(201).job_id();
    let stalled = redis.stall();
    for _ in 0..3 {
        let mut gone = connect(server.api_addr).await;
        gone.write_all(get("/api/ns/q", &token).as_bytes()).await.expect("sent");
        // The server reports no event when it has read the request. If it reads it later, the peer has disconnected by
        // then too.
        tokio::time::sleep(Duration::from_millis(50)).await;
        drop(gone);
    }
    drop(stalled);
    let job = server.get(&token, "/api/ns/q?timeout=10&ttr=600").await.expect(200);
    assert_eq!(job.job_id(), id, "the job of one try goes to the connected consumer");
    assert_eq!(server.size("/api/ns/q/deadletter").await, 0, "a job died unseen");
}

async fn a_poll_that_sent_more_before_it_closed_costs_nothing(store: Store) {
    let server = TestServer::on(store).await;
    let token = server.token("ns").await;
    let more = ["G".to_owned(), get("/ping", ""), "x".repeat(100_000)];
    for (i, late) in more.iter().cycle().take(9).enumerate() {
        let mut gone = connect(server.api_addr).await;
        gone.write_all(get("/api/ns/q?timeout=600", &token).as_bytes()).await.expect("sent");
        server.until_parked(1).await;
        gone.write_all(late.as_bytes()).await.expect("sent");
        drop(gone);
        let id = server.put(&token, "/api/ns/q?tries=1", &i.to_string()).await.expect(201).job_id();
        let job = server.get(&token, "/api/ns/q?timeout=5&ttr=600").await.expect(200);
        assert_eq!(job.job_id(), id, "job {i}, of one try, should go to the connected consumer");
        server.until_parked(0).await;
    }
    assert_eq!(server.size("/api/ns/q/deadletter").await, 0, "a job died unseen");
}

on_each_store!(a_poll_that_sent_more_before_it_closed_costs_nothing);

#[tokio::test]
async fn a_request_that_came_while_a_poll_waited_is_answered_after_it() {
    let server = TestServer::on_disk().await;
    let token = server.token("ns").await;
    let mut stream = connect(server.api_addr).await;
    // Several times over one connection: bytes read after the poll must be neither lost nor waited for.
    for i in 0..5 {
        stream.write_all(get("/api/ns/q?timeout=60", &token).as_bytes()).await.expect("sent");
        server.until_parked(1).await;
        for piece in ["GET /pi", "ng HTTP/1.1\r\nHost:", " x\r\n\r\n"] {
            stream.write_all(piece.as_bytes()).await.expect("sent");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        server.put(&token, "/api/ns/q", &i.to_string()).await.expect(201);
        let both = read_until(&mut stream, "pong").await;
        assert_eq!(status(&both), 200, "round {i}: the poll first: {both}");
        assert!(both.contains("new job"), "round {i}: {both}");
    }
}

#[tokio::test]
async fn who_has_shut_its_writing_side_gets_answers_but_no_job() {
    let server = TestServer::on_disk().await;
    let token = server.token("ns").await;
    // Requests that need not wait are answered.
    let mut half = connect(server.api_addr).await;
    let publish =
        format!("PUT /api/ns/q HTTP/1.1\r\nHost: x\r\nX-Token: {token}\r\nContent-Length: 1\r\n\r\nx");
    half.write_all(publish.as_bytes()).await.expect("sent");
    half.shutdown().await.expect("shut");
    let answer = read_to_end(&mut half).await;
    assert_eq!(status(&answer), 201, "a publish: {answer}");
    server.get(&token, "/api/ns/q").await.expect(200);
    // A waiting poll counts as disconnected.
    let mut half = connect(server.api_addr).await;
    half.write_all(get("/api/ns/q?timeout=60", &token).as_bytes()).await.expect("sent");
    server.until_parked(1).await;
    half.shutdown().await.expect("shut");
    let began = Instant::now();
    let answer = read_to_end(&mut half).await;
    assert_eq!(status(&answer), 404, "a poll: {answer}");
    assert!(began.elapsed() < AT_ONCE, "it was answered after {:?}", began.elapsed());
}

#[tokio::test]
async fn a_poll_ends_when_its_token_is_deleted() {
    let server = TestServer::on_disk().await;
    let [revoked, kept] = [server.token("ns").await, server.token("ns").await];
    let poll = |token: &str, path: &str| tokio::spawn(send(server.api("GET", path, token)));
    let polls: Vec<_> = (0..5).map(|i| poll(&revoked, &format!("/api/ns/q{i}?timeout=20"))).collect();
    let other = poll(&kept, "/api/ns/q0?timeout=20");
    server.until_parked(6).await;
    let began = Instant::now();
    send(server.admin("DELETE", &format!("/token/ns/{revoked}"))).await.expect(204);
    for poll in polls {
        let answer = poll.await.expect("no panic").expect(401);
        assert_eq!(answer.says(), "invalid token");
    }
    let took = began.elapsed();
    assert!(took < AT_ONCE, "they were answered after {took:?}, about two seconds were promised");
    server.until_parked(1).await;
    // The other poll keeps waiting, and gets the job that the first polls would have received.
    server.put(&kept, "/api/ns/q0", "x").await.expect(201);
    other.await.expect("no panic").expect(200);
}

#[tokio::test]
async fn one_namespace_cannot_take_the_place_of_all_polls() {
    let store = Store::disk();
    let server = TestServer::start(&format!("MaxParkedPolls = 4\n{}", store.toml()), store).await;
    let [greedy, modest] = [server.token("greedy").await, server.token("modest").await];
    let poll = |token: &str, path: &str| tokio::spawn(send(server.api("GET", path, token)));
    let mut polls =
        vec![poll(&greedy, "/api/greedy/q?timeout=20"), poll(&greedy, "/api/greedy/r?timeout=20")];
    server.until_parked(2).await;
    let refused = server.get(&greedy, "/api/greedy/q?timeout=1").await.expect(503);
    assert_eq!(refused.says(), "too many consumers of this namespace are waiting, please retry later");
    polls.push(poll(&modest, "/api/modest/q?timeout=20"));
    server.until_parked(3).await;
    for namespace in ["greedy/q", "greedy/r"] {
        server.put(&greedy, &format!("/api/{namespace}"), "x").await.expect(201);
    }
    server.put(&modest, "/api/modest/q", "x").await.expect(201);
    for poll in polls {
        poll.await.expect("no panic").expect(200);
    }
    // Its places are free again.
    server.get(&greedy, "/api/greedy/q?timeout=1").await.expect(404);
}

#[tokio::test]
async fn many_queues_in_a_consume_are_refused_after_the_token() {
    let server = TestServer::on_disk().await;
    let token = server.token("ns").await;
    let path = |count: usize| {
        let names: Vec<String> = (0..count).map(|i| format!("{i:x}")).collect();
        format!("/api/ns/{}", names.join(","))
    };
    let began = Instant::now();
    for _ in 0..10 {
        server.get("wrong", &path(12_000)).await.expect(401);
        let refused = server.get(&token, &path(12_000)).await.expect(400);
        assert_eq!(refused.says(), "too many queues");
    }
    let took = began.elapsed();
    assert!(took < AT_ONCE, "twenty requests with 12,000 queues each took {took:?}");
    server.get(&token, &path(101)).await.expect(400);
    server.get(&token, &path(100)).await.expect(404);
    // A repeated name counts each time.
    server.get(&token, &format!("/api/ns/{}", vec!["q"; 101].join(","))).await.expect(400);
    server.get(&token, &format!("/api/ns/{}", vec!["q"; 100].join(","))).await.expect(404);
}

#[tokio::test]
async fn an_answer_after_which_the_connection_ends_says_so() {
    let server = TestServer::on_disk().await;
    let token = server.token("ns").await;
    for (token, length, want) in [("wrong", 5, 401), ("", 5, 401), (token.as_str(), (1 << 20) + 1, 413)] {
        let mut stream = connect(server.api_addr).await;
        let head = format!(
            "PUT /api/ns/q HTTP/1.1\r\nHost: x\r\nX-Token: {token}\r\nExpect: 100-continue\r\nContent-Length: {length}\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).await.expect("sent");
        let answer = read_to_end(&mut stream).await;
        assert_eq!(status(&answer), want, "{answer}");
        assert!(
            says_close(&answer),
            "the connection ended after {want}, but the answer does not say so: {answer}"
        );
    }
    // A body that never arrives, and one too long to be discarded.
    let mut stream = connect(server.api_addr).await;
    let head = "PUT /api/ns/q HTTP/1.1\r\nHost: x\r\nX-Token: wrong\r\nContent-Length: 5\r\n\r\n";
    stream.write_all(head.as_bytes()).await.expect("sent");
    let answer = read_to_end(&mut stream).await;
    assert!(status(&answer) == 401 && says_close(&answer), "a body that never came: {answer}");
    // Invalid HTTP.
    for bad in ["nonsense\r\n\r\n".to_owned(), format!("GET /{} HTTP/1.1\r\n\r\n", "a".repeat(100_000))] {
        let answer = raw(server.api_addr, bad.as_bytes()).await;
        assert!(says_close(&answer), "{:.20}: {answer}", bad);
    }
    // Clients that are not rejected may continue.
    let mut stream = connect(server.api_addr).await;
    let head = format!(
        "PUT /api/ns/q HTTP/1.1\r\nHost: x\r\nX-Token: {token}\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n"
    );
    for _ in 0..2 {
        stream.write_all(head.as_bytes()).await.expect("sent");
        read_until(&mut stream, "100 Continue\r\n\r\n").await;
        stream.write_all(b"hello").await.expect("sent");
        let answer = read_until(&mut stream, "published").await;
        assert!(!says_close(&answer), "the connection stays open: {answer}");
    }
}

/// Guards against a limit that applies only when a head arrives in small pieces.
#[tokio::test]
async fn a_head_beyond_its_bound_is_refused() {
    let server = TestServer::on_disk().await;
    for (bytes, want) in [(60_000, 200), (66_000, 431), (80_000, 431), (100_000, 431), (300_000, 431)] {
        let head = format!(
            "GET /ping HTTP/1.1\r\nHost: x\r\nX-A: {}\r\nConnection: close\r\n\r\n",
            "a".repeat(bytes)
        );
        let answer = raw(server.api_addr, head.as_bytes()).await;
        assert_eq!(status(&answer), want, "a head of {bytes} bytes: {answer:.80}");
    }
}

#[tokio::test]
async fn slow_bulks_do_not_hold_up_others() {
    let server = TestServer::on_disk().await;
    let token = server.token("ns").await;
    let mut slow = Vec::new();
    for _ in 0..20 {
        let mut stream = connect(server.api_addr).await;
        let head = format!(
            "PUT /api/ns/q/bulk HTTP/1.1\r\nHost: x\r\nX-Token: {token}\r\nContent-Length: {}\r\n\r\n[",
            64 << 20
        );
        stream.write_all(head.as_bytes()).await.expect("sent");
        slow.push(stream);
    }
    let job = format!("\"{}\"", "x".repeat(1 << 19));
    let body = format!("[{}]", [job.as_str(); 8].join(","));
    let bulk = send(server.api("PUT", "/api/ns/q/bulk", &token).body(body));
    let answer = tokio::time::timeout(AT_ONCE, bulk).await;
    answer.expect("a bulk waits for others that send one byte each").expect(201);
}

async fn a_consume_hands_out_a_bounded_number_of_bytes(store: Store) {
    let server = TestServer::on(store).await;
    let token = server.token("ns").await;
    let job = format!("\"{}\"", "x".repeat((1 << 20) - 2));
    let body = format!("[{}]", vec![job.as_str(); 30].join(","));
    send(server.api("PUT", "/api/ns/q/bulk?tries=1", &token).body(body)).await.expect(201);
    let (mut ids, mut largest) = (Vec::new(), 0);
    while ids.len() < 30 {
        let some = server.get(&token, "/api/ns/q?count=100&ttr=600&timeout=5").await.expect(200);
        let jobs = some.json.as_array().expect("an array");
        assert!(!jobs.is_empty(), "an empty array is no answer");
        for job in jobs {
            assert_eq!(crate::support::client::data(job).len(), 1 << 20, "a whole job");
            assert_eq!(job["remain_tries"], Value::from(0), "its only try was not used up before");
        }
        largest = largest.max(jobs.len());
        ids.extend(jobs.iter().map(|job| job["job_id"].as_str().expect("an id").to_owned()));
    }
    let sorted = ids.is_sorted();
    assert!(sorted, "thirty jobs in the order of their publish, not {ids:?}");
    assert!(largest <= 9, "an answer had {largest} jobs of 1 MiB; 8 MiB and one job are the most");
    assert_eq!(server.size("/api/ns/q/deadletter").await, 0, "a job was used up");
}

on_each_store!(a_consume_hands_out_a_bounded_number_of_bytes);

#[tokio::test]
async fn queues_named_after_jobs_share_one_series() {
    let server = TestServer::on_disk().await;
    let token = server.token("ns").await;
    let mut names = Vec::new();
    for attributes in ["no", "yes"] {
        for _ in 0..3 {
            let publish = server.api("PUT", "/api/ns/requests", &token).body("x");
            let publish = publish.header("Enable-Job-Version", attributes).header("Job-Attr-A", "b");
            let id = send(publish).await.expect(201).job_id();
            server.put(&token, &format!("/api/ns/{id}"), "the answer").await.expect(201);
            names.push(id);
        }
    }
    let text = send(server.admin("GET", "/metrics")).await.expect(200).text;
    for name in &names {
        assert!(!text.contains(name.as_str()), "the queue {name} has series of its own");
    }
    for line in [
        r#"infra_lmstfy_redis_publish_queue_jobs{namespace="(other)",pool="default",queue="(job id)"} 6"#,
        r#"infra_lmstfy_redis_queue_sizes{namespace="(other)",pool="default",queue="(job id)"} 6"#,
        r#"infra_lmstfy_redis_queue_sizes{namespace="ns",pool="default",queue="requests"} 6"#,
    ] {
        assert!(text.contains(line), "missing {line} in\n{text}");
    }
}

#[tokio::test]
async fn a_stop_answers_connections_whose_request_was_not_read_yet() {
    let server = TestServer::on_disk().await;
    let addr = server.api_addr;
    let mut streams = Vec::new();
    for _ in 0..50 {
        streams.push(connect(addr).await);
    }
    // A reply shows that the port has accepted the earlier connections.
    send(server.api("GET", "/ping", "")).await.expect(200);
    let stopping = tokio::spawn(server.stop());
    tokio::time::sleep(Duration::from_millis(20)).await;
    for stream in &mut streams {
        // Writing fails here or below if the server has already closed the connection.
        let _ = stream.write_all(get("/ping", "").as_bytes()).await;
    }
    for (i, stream) in streams.iter_mut().enumerate() {
        let answer = read_to_end(stream).await;
        assert!(answer.contains("pong"), "connection {i} was closed unanswered: {answer:?}");
        assert!(says_close(&answer), "the server stops, which the answer should say: {answer}");
    }
    let began = Instant::now();
    tokio::time::timeout(TIMEOUT, stopping).await.expect("it stops").expect("no panic");
    assert!(began.elapsed() < Duration::from_secs(5), "the stop took {:?}", began.elapsed());
}

#[tokio::test]
async fn a_stop_answers_requests_in_the_listen_queue() {
    let store = Store::disk();
    let server = TestServer::start(&format!("MaxConnections = 1\n{}", store.toml()), store).await;
    let mut first = connect(server.api_addr).await;
    first.write_all(get("/ping", "").as_bytes()).await.expect("sent");
    read_until(&mut first, "pong").await;
    // Only the first connection may be open, so these wait in the listen queue.
    let mut queued = Vec::new();
    for _ in 0..10 {
        let mut stream = connect(server.api_addr).await;
        stream.write_all(get("/ping", "").as_bytes()).await.expect("sent");
        queued.push(stream);
    }
    let stopping = tokio::spawn(server.stop());
    for (i, stream) in queued.iter_mut().enumerate() {
        let answer = read_to_end(stream).await;
        assert!(answer.contains("pong") && says_close(&answer), "connection {i}: {answer:?}");
    }
    tokio::time::timeout(TIMEOUT, stopping).await.expect("it stops").expect("no panic");
}

/// The soft limit of open files of the binary below.
const OPEN_FILES: usize = 200;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_leave_the_store_its_open_files() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let (mut process, token) = {
        let mut process = Process::start_with_open_files(dir.path(), OPEN_FILES);
        let line = process.line_with("X-Token: ");
        let (_, rest) = line.split_once("X-Token: ").expect("the text that was waited for");
        (process, rest.split(['\'', '"']).next().unwrap_or_default().to_owned())
    };
    let (api, admin) = (process.address("api"), process.address("admin"));
    let limit = process.line_with("open-file limit");
    assert!(limit.contains(" connections=") && limit.contains(" reserved="), "how it is divided: {limit}");
    // More idle connections than open files, on both ports.
    let mut strangers = Vec::new();
    for i in 0..2 * OPEN_FILES {
        let port = if i % 4 == 0 { &admin } else { &api };
        strangers.push(connect(port.as_str()).await);
    }
    // One of them publishes and consumes all the time, so that the store writes tables and compacts.
    let mut worker = strangers.swap_remove(1);
    let body = "x".repeat(1 << 20);
    for i in 0..200 {
        let head = format!(
            "PUT /api/demo/q HTTP/1.1\r\nHost: x\r\nX-Token: {token}\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        worker.write_all(head.as_bytes()).await.expect("sent");
        worker.write_all(body.as_bytes()).await.expect("sent");
        let answer = read_until(&mut worker, "published").await;
        assert_eq!(status(&answer), 201, "publish {i}: {answer}");
        if i % 2 == 0 {
            let delete = format!("DELETE /api/demo/q HTTP/1.1\r\nHost: x\r\nX-Token: {token}\r\n\r\n");
            worker.write_all(delete.as_bytes()).await.expect("sent");
            let answer = read_until(&mut worker, "\r\n\r\n").await;
            assert_eq!(status(&answer), 204, "destroy {i}: {answer}");
        }
    }
    let open = std::fs::read_dir(format!("/proc/{}/fd", process.pid())).expect("it runs").count();
    assert!(open < OPEN_FILES, "{open} files are open, {OPEN_FILES} is the limit");
    drop(strangers);
    drop(worker);
    let client = reqwest::Client::new();
    let ping = client.get(format!("http://{api}/ping")).timeout(TIMEOUT).send().await;
    assert_eq!(ping.expect("the idle connections were closed, so there is a free slot").status(), 200);
    process.signal("TERM");
    let ended = tokio::task::spawn_blocking(|| process.ended()).await.expect("no panic");
    assert_eq!(ended.status.code(), Some(0), "it ends as told to; it said:\n{}", ended.said);
    let complaints = complaints(&ended.said);
    assert!(complaints.len() <= 2, "a line when it begins and one when it ends, not {complaints:#?}");
}
