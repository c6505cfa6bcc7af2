//! Conversations about pushed queues: set on the admin port, delivered to an endpoint in this process.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::receiver::{Answer as Scripted, Receiver};
use crate::support::client::{Response, job_id, send};
use crate::support::redis_server::RedisServer;
use crate::support::servers::{Store, TestServer, on_each_store, redis_toml};
use crate::support::wait::until;
use dormouse::push::address::AddressGuard;
use dormouse::push::client::{Client, ConnectFault, EndpointAnswer, Resolve, Send};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Configuration of a server on this store that may push to this machine.
fn loopback(toml: &str) -> String {
    format!("PushAllow = [\"127.0.0.0/8\"]\n{toml}")
}

async fn start(store: Store) -> TestServer {
    TestServer::start(&loopback(&store.toml()), store).await
}

/// Sends an operator's request for `ns/q`.
async fn ask(server: &TestServer, method: &str, path: &str, body: Option<Value>) -> Response {
    let request = server.admin(method, &format!("/push/ns/q{path}"));
    let body = body.map(|body| body.to_string()).unwrap_or_default();
    send(request.body(body)).await
}

/// Pushes `ns/q` to a receiver, with this setting.
async fn set(server: &TestServer, receiver: &Receiver, mut setting: Value) -> Value {
    setting["url"] = json!(receiver.url("/jobs"));
    ask(server, "PUT", "", Some(setting)).await.expect(200).json
}

async fn shown(server: &TestServer) -> Value {
    ask(server, "GET", "", None).await.expect(200).json
}

async fn publish(server: &TestServer, token: &str, body: &str) -> String {
    let path = "/api/ns/q?tries=3";
    job_id(&server.put(token, path, body).await.expect(201).json)
}

async fn a_job_is_delivered_and_acked(store: Store) {
    let (server, receiver) = (start(store).await, Receiver::start().await);
    let token = server.token("ns").await;
    let set = set(&server, &receiver, json!({"headers": {"Authorization": "Bearer x"}})).await;
    let secret = set["secret"].as_str().expect("the secret, once");
    assert!(secret.starts_with("whsec_"), "{secret}");
    let id = publish(&server, &token, "hello").await;
    let delivered = receiver.until(1).await.remove(0);
    assert_eq!((delivered.text().as_str(), delivered.target.as_str()), ("hello", "/jobs"));
    assert_eq!((delivered.header("webhook-id"), delivered.header("authorization")), (&*id, "Bearer x"));
    assert_eq!(
        (delivered.header("dormouse-attempt"), delivered.header("dormouse-remaining-tries")),
        ("1", "2")
    );
    until("the job is acked", async || {
        server.get(&token, &format!("/api/ns/q/job/{id}")).await.status == 404
    })
    .await;
    until("it is counted", async || shown(&server).await["counts"]["delivered"] == 1).await;
    let shown = shown(&server).await;
    assert_eq!((&shown["state"], &shown["headers"]), (&json!("on"), &json!({"Authorization": null})));
    assert!(!shown.to_string().contains(secret) && !shown.to_string().contains("Bearer"), "{shown}");
    assert_eq!((&shown["attempts"][0]["job_id"], &shown["attempts"][0]["status"]), (&json!(id), &json!(200)));
    let metrics = send(server.admin("GET", "/metrics")).await.expect(200).text;
    let line =
        r#"dormouse_push_attempts_total{namespace="ns",outcome="delivered",pool="default",queue="q"} 1"#;
    assert!(metrics.contains(line), "{line} should be in the metrics");
    ask(&server, "DELETE", "", None).await.expect(204);
    ask(&server, "GET", "", None).await.expect(404);
}

async fn a_failed_job_comes_again_with_its_number_and_dies_at_last(store: Store) {
    let (server, receiver) = (start(store).await, Receiver::start().await);
    let token = server.token("ns").await;
    receiver.answer(|_| Scripted::status(500));
    set(&server, &receiver, json!({"retry": [0.2], "on_dead": "failed"})).await;
    let id = publish(&server, &token, "x").await;
    let delivered = receiver.until(3).await;
    let told =
        |n: usize| (delivered[n].header("dormouse-attempt"), delivered[n].header("dormouse-remaining-tries"));
    assert_eq!([told(0), told(1), told(2)], [("1", "2"), ("2", "1"), ("3", "0")]);
    let dead = server.get(&token, "/api/ns/failed?timeout=10").await.expect(200);
    let dead: Value = serde_json::from_slice(&dead.data()).expect("JSON");
    let expected = json!({"job_id": id, "queue": "q", "attempts": 3, "last_status": 500, "reason": "status 500", "data": "eA=="});
    assert_eq!(dead, expected);
    until("the job is dead", async || server.size("/api/ns/q/deadletter").await == 1).await;
    let path = format!("/api/ns/q/job/{id}?verbose=1");
    assert_eq!(server.get(&token, &path).await.expect(200).json["reason"], "attempt 3: status 500");
}

async fn pause_resume_test_secret_and_what_is_wrong(store: Store) {
    let (server, receiver) = (start(store).await, Receiver::start().await);
    let token = server.token("ns").await;
    ask(&server, "DELETE", "", None).await.expect(204);
    for (method, path) in
        [("GET", ""), ("POST", "/pause"), ("POST", "/resume"), ("POST", "/test"), ("POST", "/secret")]
    {
        ask(&server, method, path, None).await.expect(404);
    }
    for (setting, names) in [
        (json!({}), "url"),
        (json!({"url": "http://10.0.0.1/"}), "PushAllow"),
        (json!({"url": "http://0xa.1/"}), "PushAllow"),
        (json!({"url": receiver.url("/"), "colour": 1}), "colour"),
    ] {
        let refused = ask(&server, "PUT", "", Some(setting)).await.expect(400);
        assert!(refused.text.contains(names), "{names} should be named: {}", refused.text);
    }
    send(server.admin("PUT", "/push/ns/q").body("nonsense")).await.expect(400);
    ask(&server, "GET", "", None).await.expect(404);
    let first = set(&server, &receiver, json!({})).await;
    assert_eq!(set(&server, &receiver, json!({})).await["secret"], Value::Null, "shown once");
    let tested = ask(&server, "POST", "/test", None).await.expect(200).json;
    assert_eq!((&tested["ok"], &tested["status"]), (&json!(true), &json!(200)), "{tested}");
    assert_eq!(receiver.arrived().len(), 1);
    assert_eq!(ask(&server, "POST", "/pause", None).await.expect(200).json["state"], "paused");
    assert_eq!(shown(&server).await["state"], "paused");
    tokio::time::sleep(Duration::from_millis(1100)).await; // every server learns of it within a second
    let id = publish(&server, &token, "x").await;
    let by_hand = server.get(&token, "/api/ns/q?timeout=5").await.expect(200);
    assert_eq!(by_hand.job_id(), id, "it can be consumed by hand, and push has not taken it");
    send(server.api("DELETE", &format!("/api/ns/q/job/{id}"), &token)).await.expect(204);
    publish(&server, &token, "y").await;
    assert_eq!(ask(&server, "POST", "/resume", None).await.expect(200).json["state"], "on");
    assert_eq!(receiver.until(2).await[1].text(), "y");
    let second = ask(&server, "POST", "/secret", None).await.expect(200).json;
    assert_ne!(first["secret"], second["secret"]);
    until("both sign", async || {
        ask(&server, "POST", "/test", None).await.expect(200);
        let last = receiver.arrived().pop().expect("a test has arrived");
        last.header("webhook-signature").split(' ').count() == 2
    })
    .await;
    receiver.answer(|_| Scripted::status(410));
    publish(&server, &token, "z").await;
    until("410 turns it off", async || shown(&server).await["state"] == "off").await;
    until("the job is ready again", async || server.size("/api/ns/q").await == 1).await;
}

/// Guards against a name that is checked once and resolves differently later, and against redirects that are followed.
async fn where_it_may_not_call_it_does_not(store: Store) {
    let receiver = Receiver::start().await;
    let server = TestServer::start(&store.toml(), store).await; // nothing is allowed
    let token = server.token("ns").await;
    let port = receiver.addr().port();
    let literal = json!({"url": format!("http://127.0.0.1:{port}/")});
    ask(&server, "PUT", "", Some(literal)).await.expect(400);
    let name = json!({"url": format!("http://localhost:{port}/")});
    ask(&server, "PUT", "", Some(name)).await.expect(200);
    publish(&server, &token, "x").await;
    until("the attempt fails and says why", async || {
        let shown = shown(&server).await;
        shown["attempts"][0]["answer"].as_str().is_some_and(|answer| answer.contains("loopback"))
    })
    .await;
    assert_eq!(receiver.arrived().len(), 0, "called");
}

async fn what_is_set_survives_a_restart(store: Store) {
    let receiver = Receiver::start().await;
    let toml = loopback(&store.toml());
    let server = TestServer::start(&toml, ()).await;
    let token = server.token("ns").await;
    let secret = set(&server, &receiver, json!({"concurrency": 3})).await["secret"].clone();
    publish(&server, &token, "before").await;
    receiver.until(1).await;
    until("it is counted", async || shown(&server).await["counts"]["delivered"] == 1).await;
    server.stop().await;
    let server = TestServer::start(&toml, store).await;
    let shown = shown(&server).await;
    assert_eq!((&shown["concurrency"], &shown["counts"]["delivered"]), (&json!(3), &json!(1)), "{shown}");
    assert!(secret.is_string());
    publish(&server, &token, "after").await;
    assert_eq!(receiver.until(2).await[1].text(), "after");
}

/// Guards against a stop that waits for a slow endpoint, or uses a try for a cancelled request.
async fn a_stop_gives_back_what_the_endpoint_does_not_answer(store: Store) {
    let receiver = Receiver::start().await;
    receiver.answer(|_| Scripted::status(200).after(Duration::from_secs(60)));
    let toml = loopback(&store.toml());
    let server = TestServer::start(&toml, ()).await;
    let token = server.token("ns").await;
    set(&server, &receiver, json!({})).await;
    let id = publish(&server, &token, "x").await;
    receiver.until(1).await;
    let began = Instant::now();
    server.stop().await;
    assert!(began.elapsed() < Duration::from_secs(20), "the stop took {:?}", began.elapsed());
    receiver.answer(|_| Scripted::status(200));
    let server = TestServer::start(&toml, store).await;
    let again = receiver.until(2).await.remove(1);
    assert_eq!((again.header("webhook-id"), again.header("dormouse-remaining-tries")), (&*id, "2"));
    drop(server);
}

/// Guards against a rate that restarts with the server.
async fn a_rate_holds_over_a_restart(store: Store) {
    let receiver = Receiver::start().await;
    let toml = loopback(&store.toml());
    let server = TestServer::start(&toml, ()).await;
    let token = server.token("ns").await;
    set(&server, &receiver, json!({"rate": 3, "per": 4})).await;
    for n in 0..6 {
        publish(&server, &token, &n.to_string()).await;
    }
    receiver.until(3).await;
    server.stop().await;
    let server = TestServer::start(&toml, store).await;
    let arrived = receiver.until(6).await;
    let took = arrived[3].at - arrived[0].at;
    assert!(took > Duration::from_millis(3900), "the fourth request came {took:?} after the first, not 4 s");
    drop(server);
}

/// Guards against slots that are granted again while requests of the previous setting are in flight.
async fn requests_of_a_deleted_setting_keep_their_slots(store: Store) {
    let (server, receiver) = (start(store).await, Receiver::start().await);
    let token = server.token("ns").await;
    receiver.answer(|_| Scripted::status(200).held());
    for _ in 0..2 {
        set(&server, &receiver, json!({"concurrency": 3, "timeout": 60})).await;
        for n in 0..3 {
            publish(&server, &token, &n.to_string()).await;
        }
        receiver.until_so("three in flight", |receiver| receiver.in_flight() >= 3).await;
        ask(&server, "DELETE", "", None).await.expect(204);
        tokio::time::sleep(Duration::from_millis(1100)).await; // every server learns of it within a second
    }
    assert_eq!(receiver.most_in_flight(), 3, "in flight at most");
    receiver.release(3);
    set(&server, &receiver, json!({"concurrency": 3, "timeout": 60})).await;
    receiver.until(6).await;
    assert_eq!(receiver.most_in_flight(), 3, "in flight at most, when the first ones have ended");
    receiver.release(3);
}

on_each_store!(
    a_job_is_delivered_and_acked,
    a_rate_holds_over_a_restart,
    requests_of_a_deleted_setting_keep_their_slots,
    a_failed_job_comes_again_with_its_number_and_dies_at_last,
    pause_resume_test_secret_and_what_is_wrong,
    where_it_may_not_call_it_does_not,
    what_is_set_survives_a_restart,
    a_stop_gives_back_what_the_endpoint_does_not_answer,
);

/// Guards against slots that each server counts for itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_servers_share_the_slots_and_the_counts() {
    let (redis, receiver) = (RedisServer::start(), Receiver::start().await);
    receiver.answer(|_| Scripted::status(200).after(Duration::from_millis(20)));
    let toml = loopback(&redis_toml(&redis));
    let servers = [TestServer::start(&toml, ()).await, TestServer::start(&toml, ()).await];
    let token = servers[0].token("ns").await;
    set(&servers[0], &receiver, json!({"concurrency": 4})).await;
    for n in 0..200 {
        publish(&servers[n % 2], &token, &n.to_string()).await;
    }
    receiver.until(200).await;
    assert!(
        receiver.most_in_flight() <= 4,
        "{} requests were in flight, 4 may be",
        receiver.most_in_flight()
    );
    for server in &servers {
        until("both show all counts", async || shown(server).await["counts"]["delivered"] == 200).await;
    }
}

/// Guards against recent attempts of the other server that are not reported yet.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_servers_count_the_attempts_of_a_job_together() {
    let (redis, receiver) = (RedisServer::start(), Receiver::start().await);
    receiver.answer(|_| Scripted::status(500));
    let toml = loopback(&redis_toml(&redis));
    let servers = [TestServer::start(&toml, ()).await, TestServer::start(&toml, ()).await];
    let token = servers[0].token("ns").await;
    let setting = json!({"url": receiver.url("/"), "retry": [0.1], "concurrency": 2}).to_string();
    for queue in 0..60 {
        let put = servers[queue % 2].admin("PUT", &format!("/push/ns/q{queue}"));
        send(put.body(setting.clone())).await.expect(200);
    }
    tokio::time::sleep(Duration::from_millis(2500)).await; // both push all of them, and have their slots
    for queue in 0..60 {
        let path = format!("/api/ns/q{queue}?tries=3");
        servers[queue % 2].put(&token, &path, "x").await.expect(201);
    }
    let mut attempts: std::collections::BTreeMap<String, Vec<u32>> = Default::default();
    for request in receiver.until(180).await {
        attempts.entry(request.job_id().into()).or_default().push(request.attempt());
    }
    let wrong: Vec<_> = attempts.values().filter(|attempts| **attempts != [1, 2, 3]).collect();
    assert!(wrong.is_empty(), "{} of {} jobs were counted wrong: {wrong:?}", wrong.len(), attempts.len());
}

/// Resolves every name to the next of these address lists, then repeats the last.
#[derive(Debug)]
struct Names(Mutex<Vec<Vec<SocketAddr>>>);

#[async_trait::async_trait]
impl Resolve for Names {
    async fn resolve(&self, _: &str, _: u16) -> std::io::Result<Vec<SocketAddr>> {
        let mut answers = self.0.lock();
        Ok(if answers.len() > 1 { answers.remove(0) } else { answers[0].clone() })
    }
}

/// A client that may call `allow` besides public addresses, and whose DNS returns these lists in turn.
fn client(allow: &[&str], names: Vec<Vec<SocketAddr>>) -> Client {
    client_of(allow, names, 1000)
}

/// Like [`client`], with this maximum of connections.
fn client_of(allow: &[&str], names: Vec<Vec<SocketAddr>>, connections: usize) -> Client {
    let allow: Vec<String> = allow.iter().map(|entry| (*entry).to_owned()).collect();
    let guard = AddressGuard::new(&allow, false).expect("entries");
    let names = Arc::new(Names(Mutex::new(names)));
    Client::new(Arc::new(guard), names, None, rustls::RootCertStore::empty(), connections)
}

/// Time for a response that comes.
const LONG: Duration = Duration::from_secs(30);

async fn call(client: &Client, url: &str, body_counts: bool) -> Result<EndpointAnswer, ConnectFault> {
    call_for(LONG, client, url, body_counts).await
}

async fn call_for(
    time: Duration,
    client: &Client,
    url: &str,
    body_counts: bool,
) -> Result<EndpointAnswer, ConnectFault> {
    let mut request = hyper::Request::new(bytes::Bytes::from_static(b"x"));
    *request.method_mut() = hyper::Method::POST;
    *request.uri_mut() = url.parse().expect("a URL");
    client.send(request, time, body_counts).await
}

/// Guards against a resolver that returns an allowed address for the check and a forbidden one for the call.
#[tokio::test]
async fn every_connection_judges_the_addresses_that_it_uses() {
    let receiver = Receiver::start().await;
    let port = receiver.addr().port();
    let at = |address: &str| SocketAddr::new(address.parse().expect("a literal"), port);
    let url = format!("http://rebinding.example:{port}/");
    for forbidden in
        ["127.0.0.1", "::ffff:127.0.0.1", "169.254.169.254", "10.0.0.1", "64:ff9b::7f00:1", "::1"]
    {
        let client = client(&[], vec![vec![at(forbidden)]]);
        let fault = call(&client, &url, false).await.expect_err(forbidden);
        assert!(matches!(&fault, ConnectFault::Forbidden(_)), "{forbidden}: {fault}");
    }
    // Allowed at first; the connection is not kept, and the next one leads to a forbidden address.
    receiver.answer(|_| Scripted::with(200, &[("Connection", "close")], ""));
    let rebound = client(&["127.0.0.1/32"], vec![vec![at("127.0.0.1")], vec![at("127.0.0.2")]]);
    assert_eq!(call(&rebound, &url, false).await.expect("it is allowed").status, 200);
    let fault = call(&rebound, &url, false).await.expect_err("it is forbidden");
    assert!(matches!(&fault, ConnectFault::Forbidden(_)), "{fault}");
    // Of several addresses only the allowed ones are called.
    let mixed = client(&["127.0.0.1/32"], vec![vec![at("127.0.0.2"), at("127.0.0.1")]]);
    assert_eq!(call(&mixed, &url, false).await.expect("one is allowed").status, 200);
    let named = client(&["rebinding.example"], vec![vec![at("127.0.0.1")]]);
    assert_eq!(call(&named, &url, false).await.expect("the name is allowed").status, 200);
    let literal = client(&[], vec![vec![at("127.0.0.1")]]);
    call(&literal, &receiver.url("/"), false).await.expect_err("a literal is judged too");
    assert_eq!(receiver.arrived().len(), 3, "called only where it may");
}

/// Guards against a redirect to a forbidden URL.
#[tokio::test]
async fn redirects_are_not_followed() {
    let receiver = Receiver::start().await;
    let to = receiver.url("/elsewhere");
    receiver.answer(move |_| Scripted::with(307, &[("Location", &to)], ""));
    let client = client(&["127.0.0.1"], vec![vec![receiver.addr()]]);
    assert_eq!(call(&client, &receiver.url("/"), false).await.expect("an answer").status, 307);
    assert_eq!(receiver.arrived().len(), 1);
}

/// Guards against an attempt that is lost because the peer closed an idle connection, and against connections that
/// are not kept.
#[tokio::test]
async fn connections_are_kept_and_one_that_was_closed_meanwhile_costs_no_attempt() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("it is bound");
    let served = tokio::spawn(async move {
        let mut requests = Vec::new();
        for _ in 0..2 {
            let (mut stream, _) = listener.accept().await.expect("a connection");
            for answered in [true, true, false] {
                let mut head = vec![0; 4096];
                let read = stream.read(&mut head).await.expect("a request");
                requests.push(read > 0);
                if !answered || read == 0 {
                    break; // the third request is read, and the connection closed
                }
                let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
                stream.write_all(answer).await.expect("it is written");
            }
        }
        requests.len()
    });
    let client = client(&["127.0.0.1"], vec![vec![address]]);
    let url = format!("http://{address}/");
    for n in 0..4 {
        let status = call(&client, &url, false).await.map(|answer| answer.status);
        assert!(matches!(status, Ok(200)), "request {n}: {status:?}");
    }
    drop(client);
    let requests = tokio::time::timeout(Duration::from_secs(20), served).await;
    assert_eq!(
        requests.expect("it ends").expect("no panic"),
        6,
        "three on the first connection, and the end"
    );
}

/// Guards against a job that crashes its receiver and is sent to one worker process after the other within one
/// attempt.
#[tokio::test]
async fn a_receiver_that_dies_of_a_request_gets_it_once_more_at_most() {
    let receiver = Receiver::start().await;
    let client = client(&["127.0.0.1"], vec![vec![receiver.addr()]]);
    // Each of these leaves an idle connection.
    let url = receiver.url("/");
    let calls =
        tokio::join!(call(&client, &url, false), call(&client, &url, false), call(&client, &url, false));
    for answer in [calls.0, calls.1, calls.2] {
        assert_eq!(answer.expect("an answer").status, 200);
    }
    let before = receiver.count();
    receiver.answer(|_| Scripted::Close);
    call(&client, &receiver.url("/"), false).await.expect_err("nobody answers");
    let sent = receiver.count() - before;
    assert!((1..=2).contains(&sent), "sent {sent} times in one attempt");
    // A response that is not HTTP is a response: the request is not repeated.
    receiver.answer(|_| Scripted::status(200));
    call(&client, &receiver.url("/"), false).await.expect("an answer");
    let before = receiver.count();
    receiver.answer(|_| Scripted::Bytes(b"no HTTP at all\r\n\r\n".to_vec()));
    call(&client, &receiver.url("/"), false).await.expect_err("no answer");
    assert_eq!(receiver.count() - before, 1, "garbage was asked for again");
}

/// Returns the number of connections from this process to these ports.
fn connections_to(ports: &[u16]) -> usize {
    let table = std::fs::read_to_string("/proc/self/net/tcp").expect("Linux tells of its connections");
    let established = table.lines().skip(1).filter(|line| {
        let mut fields = line.split_whitespace().skip(2);
        let (to, state) = (fields.next().unwrap_or_default(), fields.next().unwrap_or_default());
        let port = to.rsplit(':').next().and_then(|port| u16::from_str_radix(port, 16).ok());
        state == "01" && port.is_some_and(|port| ports.contains(&port))
    });
    established.count()
}

/// Guards against idle connections to each endpoint, until the server has no file left for its stores.
#[tokio::test]
async fn kept_connections_are_bounded_over_all_endpoints_and_make_room() {
    let mut receivers = Vec::new();
    for _ in 0..30 {
        receivers.push(Receiver::start().await);
    }
    let ports: Vec<u16> = receivers.iter().map(|receiver| receiver.addr().port()).collect();
    let client = client_of(&["127.0.0.1"], vec![vec![receivers[0].addr()]], 4);
    let mut most = 0;
    for round in 0..2 {
        for receiver in &receivers {
            let answer = call(&client, &receiver.url("/"), false).await;
            assert_eq!(answer.expect("an answer").status, 200, "round {round}");
            // Connections are closed to make room by a task that may not have run yet.
            let mut open = 0;
            until("what makes room is closed", async || {
                open = connections_to(&ports);
                open <= 4
            })
            .await;
            most = most.max(open);
        }
    }
    assert_eq!(most, 4, "connections at most");
    let last = &receivers[29];
    let before = last.connections();
    call(&client, &last.url("/"), false).await.expect("an answer");
    assert_eq!(last.connections(), before, "the connection that was used last is still kept");
}

/// Guards against a response that fills the memory, and against one that never ends.
#[tokio::test]
async fn at_most_a_mebibyte_of_an_answer_is_read_and_for_the_timeout_at_most() {
    let receiver = Receiver::start().await;
    receiver.answer(|_| Scripted::with(200, &[], "x".repeat(3 << 20)));
    let client = client(&["127.0.0.1"], vec![vec![receiver.addr()]]);
    let answer = call(&client, &receiver.url("/"), true).await.expect("an answer");
    assert_eq!((answer.body.len(), answer.whole), (1 << 20, false));
    receiver.answer(|_| Scripted::status(200).after(LONG));
    let short = Duration::from_secs(2);
    let fault = call_for(short, &client, &receiver.url("/"), false).await.expect_err("no answer");
    assert!(matches!(fault, ConnectFault::TimeOut(_)), "{fault}");
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let url = format!("http://{}/", listener.local_addr().expect("it is bound"));
    let stalls = tokio::spawn(async move {
        let mut kept = Vec::new();
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut request = vec![0; 4096];
            let read = stream.read(&mut request).await.expect("a request");
            assert!(read > 0, "a request was expected");
            let head = b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nx";
            stream.write_all(head).await.expect("it is written");
            kept.push(stream);
        }
    });
    let answer = call_for(short, &client, &url, false).await.expect("the status is there");
    assert_eq!((answer.status, answer.whole), (200, false), "the status decides");
    call_for(short, &client, &url, true).await.expect_err("the body counts, and does not come");
    stalls.abort();
}
