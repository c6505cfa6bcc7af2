//! Conversations about publishes beyond lmstfy's: with a fractional delay or an instant, a job key, in batches of
//! different jobs, and with idempotency keys.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::cluster::on_a_cluster;
use crate::common::until_status;
use crate::support::client::{Response, send};
use crate::support::redis_server::RedisServer;
use crate::support::servers::{Store, TestServer, on_each_store};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

/// Posts a body to a path.
async fn post(server: &TestServer, token: &str, path: &str, body: &str) -> Response {
    send(server.api("POST", path, token).body(body.to_owned())).await
}

/// Publishes with an idempotency key.
async fn once(
    server: &TestServer,
    token: &str,
    (method, path): (&str, &str),
    key: &str,
    body: &str,
) -> Response {
    let request = server.api(method, path, token).header("Idempotency-Key", key).body(body.to_owned());
    send(request).await
}

fn unix_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is past 1970");
    now.as_millis() as u64
}

/// Parses an instant of a reply, in Unix milliseconds.
#[track_caller]
fn instant(value: &Value) -> u64 {
    let text = value.as_str().unwrap_or_else(|| panic!("an instant was expected, not {value}"));
    assert!(text.len() == 24 && text.ends_with('Z'), "UTC with milliseconds was expected, not {text}");
    let time: jiff::Timestamp =
        text.parse().unwrap_or_else(|e| panic!("RFC 3339 was expected ({e}), not {text}"));
    time.as_millisecond() as u64
}

async fn a_job_is_due_after_a_delay_with_decimals_or_at_an_instant(store: Store) {
    let server = TestServer::on(store).await;
    let token = server.token("ns").await;
    let now = post(&server, &token, "/api/ns/q/jobs", "now").await.expect(201);
    assert_eq!(now.says(), "published");
    assert!(instant(&now.json["due_at"]).abs_diff(unix_ms()) < 60_000, "due now: {}", now.text);
    assert!(now.json.get("duplicate").is_none() && now.json.get("replaced").is_none(), "{}", now.text);
    let job = server.get(&token, "/api/ns/q").await.expect(200);
    assert_eq!((job.job_id(), job.data()), (now.job_id(), b"now".to_vec()));

    let soon = post(&server, &token, "/api/ns/q/jobs?delay=0.25&tries=3", "soon").await.expect(201);
    let job = server.get(&token, "/api/ns/q?timeout=20").await.expect(200);
    assert_eq!((job.job_id(), job.json["remain_tries"].as_u64()), (soon.job_id(), Some(2)));
    assert!(job.json["elapsed_ms"].as_u64() >= Some(250), "never early: {}", job.text);

    let at = unix_ms() + 3_600_000;
    let text = jiff::Timestamp::from_millisecond(at as i64).expect("an instant");
    let (in_utc, seconds) = (format!("{text:.3}"), format!("{}.{:03}", at / 1000, at % 1000));
    for query in [format!("at={in_utc}"), format!("at={seconds}"), format!("at_ms={at}")] {
        let later = post(&server, &token, &format!("/api/ns/q/jobs?{query}"), "later").await.expect(201);
        assert_eq!(later.json["due_at"], json!(in_utc), "{query}: {}", later.text);
    }
    for far in ["2106-02-07T06:28:16.000Z", "2112-09-18T00:00:00.000Z", "2150-01-01T00:00:00.000Z"] {
        let held = post(&server, &token, &format!("/api/ns/far/jobs?at={far}&ttl=0"), "x").await.expect(201);
        assert_eq!(held.json["due_at"], json!(far), "not cut to an earlier instant: {}", held.text);
    }
    let longest = post(&server, &token, "/api/ns/far/jobs?delay=4294967295&ttl=0", "x").await.expect(201);
    let list = server.get(&token, "/api/ns/far/jobs?state=delayed").await.expect(200);
    let due: Vec<&str> =
        list.json["jobs"].as_array().into_iter().flatten().filter_map(|job| job["due_at"].as_str()).collect();
    assert_eq!(due.len(), 4, "{}", list.text);
    assert!(due.is_sorted() && due[2] == "2150-01-01T00:00:00.000Z", "{}", list.text);
    assert_eq!(longest.json["due_at"], json!(due[3]), "{}", list.text);
    let past = post(&server, &token, "/api/ns/q/jobs?at=2001-01-01T00:00:00+01:00", "past").await.expect(201);
    let job = server.get(&token, "/api/ns/q?timeout=20").await.expect(200);
    assert_eq!(job.job_id(), past.job_id(), "a time that has passed is now");
    let ttl = job.json["ttl"].as_u64();
    assert!((86_398..=86_400).contains(&ttl.unwrap_or(0)), "the configured ttl: {}", job.text);
    server.get(&token, "/api/ns/q").await.expect(404);
}

async fn a_publish_that_is_refused_says_why_and_stores_nothing(store: Store) {
    let server = TestServer::on(store).await;
    let token = server.token("ns").await;
    let long = format!("key={}", "k".repeat(256));
    for (query, says) in [
        ("delay=x", "invalid delay"),
        ("delay=1.2345", "invalid delay"),
        ("delay=4294967296", "invalid delay"),
        ("at=tomorrow", "invalid at"),
        ("at=2026-11-21T12:00:00", "invalid at"),
        ("at=9999-01-01T00:00:00Z", "at is too far away"),
        ("at=2199-01-01T00:00:00Z", "at is too far away"),
        ("at_ms=7226582400000", "at is too far away"),
        ("at_ms=1.5", "invalid at_ms"),
        ("delay=1&at=2", "only one of delay, at and at_ms can be given"),
        ("at_ms=1&at=2", "only one of delay, at and at_ms can be given"),
        ("ttl=-1", "invalid ttl"),
        ("delay=1.5&ttl=1.499", "ttl is shorter than delay"),
        ("delay=1.5&ttl=1.5", "ttl equals delay: the job would expire when it is due"),
        ("tries=x", "invalid tries"),
        ("tries=0", "tries shouldn't be zero"),
        ("key=", "invalid key"),
        ("key=a%20b", "invalid key"),
        ("key=%C3%A9", "invalid key"),
        (&long, "invalid key"),
        ("key=k&on_conflict=maybe", "invalid on_conflict"),
    ] {
        let refused = post(&server, &token, &format!("/api/ns/q/jobs?{query}"), "x").await;
        assert_eq!((refused.status, refused.says()), (400, says), "{query}");
    }
    post(&server, "", "/api/ns/q/jobs?delay=x", "x").await.expect(401);
    post(&server, &token, "/api/ns/_q/jobs", "x").await.expect(400);
    let large = "x".repeat((1 << 20) + 1);
    assert_eq!(post(&server, &token, "/api/ns/q/jobs", &large).await.expect(413).says(), "body too large");
    for (method, path) in [("PUT", "/api/ns/q/jobs"), ("GET", "/api/ns/q/jobs/batch"), ("POST", "/api/ns/q")]
    {
        let unknown = send(server.api(method, path, &token)).await;
        assert_eq!((unknown.status, unknown.says()), (404, "api not found"), "{method} {path}");
    }
    assert_eq!(server.size("/api/ns/q").await, 0, "a refusal stored something");
}

async fn a_key_names_one_job_until_that_is_gone(store: Store) {
    let server = TestServer::on(store).await;
    let token = server.token("ns").await;
    let jobs = "/api/ns/q/jobs?key=order:1/2";
    let first = post(&server, &token, &format!("{jobs}&delay=600"), "first").await.expect(201);
    let again = post(&server, &token, jobs, "again").await.expect(201);
    assert_eq!(
        (again.job_id(), &again.json["due_at"], &again.json["duplicate"]),
        (first.job_id(), &first.json["due_at"], &json!(true)),
        "the first is kept"
    );
    let taken = post(&server, &token, &format!("{jobs}&on_conflict=fail"), "fails").await.expect(409);
    assert_eq!(taken.json, json!({"error": "the key is taken", "job_id": first.job_id()}));
    // Without a ttl that changes from second to second.
    let replace = format!("{jobs}&on_conflict=replace&ttl=0");
    let new = post(&server, &token, &replace, "second").await.expect(201);
    assert_eq!(new.json["replaced"], json!(first.job_id()), "{}", new.text);

    let key = "/api/ns/q/key/order:1%2F2";
    let found = server.get(&token, key).await.expect(200);
    let by_id = server.get(&token, &format!("/api/ns/q/job/{}", new.job_id())).await.expect(200);
    let without_age = |mut job: Value| {
        job["elapsed_ms"] = json!(0);
        job
    };
    assert_eq!(without_age(found.json), without_age(by_id.json), "as by its id");
    let verbose = server.get(&token, &format!("{key}?verbose=1")).await.expect(200);
    assert_eq!((&verbose.json["state"], &verbose.json["key"]), (&json!("ready"), &json!("order:1/2")));

    // The job is running: a replace lets it run on, without its key.
    let running = server.get(&token, "/api/ns/q").await.expect(200);
    assert_eq!(running.job_id(), new.job_id(), "the first is deleted");
    let third =
        post(&server, &token, &format!("{jobs}&on_conflict=replace&delay=600"), "3").await.expect(201);
    assert!(third.json.get("replaced").is_none(), "a running job runs on: {}", third.text);
    assert_eq!(server.get(&token, key).await.expect(200).job_id(), third.job_id());
    server.get(&token, &format!("/api/ns/q/job/{}", running.job_id())).await.expect(200);

    send(server.api("DELETE", key, &token)).await.expect(204);
    let none = send(server.api("DELETE", key, &token)).await.expect(404);
    assert_eq!(none.says(), "no job has this key");
    server.get(&token, key).await.expect(404);
    server.get(&token, &format!("/api/ns/q/job/{}", third.job_id())).await.expect(404);
    let bad = server.get(&token, "/api/ns/q/key/a%20b").await.expect(400);
    assert_eq!(bad.says(), "invalid key");

    // An ack frees the key too.
    let fourth = post(&server, &token, jobs, "4").await.expect(201);
    send(server.api("DELETE", &format!("/api/ns/q/job/{}", fourth.job_id()), &token)).await.expect(204);
    let fifth = post(&server, &token, jobs, "5").await.expect(201);
    assert!(fifth.json.get("duplicate").is_none(), "the key is free: {}", fifth.text);
}

async fn a_batch_is_all_or_none_and_each_job_its_own(store: Store) {
    let server = TestServer::on(store).await;
    let token = server.token("ns").await;
    let batch = "/api/ns/q/jobs/batch";
    let body = json!([
        {"text": "plain \"é\"", "tries": 2},
        {"data": STANDARD.encode([0, 255, 7]), "attributes": {"Trace-Id": "7f"}, "ttl": 60.5},
        {"text": "later", "delay": 600.25, "key": "k"},
        {"text": "at", "at": "2099-01-01T00:00:00+02:00"},
        {"text": "at", "at": 4070908800.5},
        {"text": "at", "at_ms": 4070908800500_u64, "ttl": 0},
    ]);
    let done = post(&server, &token, batch, &body.to_string()).await.expect(201);
    assert_eq!(done.says(), "published");
    let jobs = done.json["jobs"].as_array().cloned().unwrap_or_default();
    let dues: Vec<&str> = jobs[3..].iter().filter_map(|job| job["due_at"].as_str()).collect();
    assert_eq!(dues, ["2098-12-31T22:00:00.000Z", "2099-01-01T00:00:00.500Z", "2099-01-01T00:00:00.500Z"]);
    let first = server.get(&token, "/api/ns/q").await.expect(200);
    assert_eq!(
        (&first.json["job_id"], first.data()),
        (&jobs[0]["job_id"], "plain \"é\"".as_bytes().to_vec())
    );
    let second = server.get(&token, "/api/ns/q").await.expect(200);
    assert_eq!((second.data(), &second.json["attributes"]), (vec![0, 255, 7], &json!({"trace-id": "7f"})));
    server.get(&token, "/api/ns/q").await.expect(404);

    let duplicate = json!([{"text": "new"}, {"text": "k again", "key": "k"}]).to_string();
    let done = post(&server, &token, batch, &duplicate).await.expect(201);
    assert_eq!(done.json["jobs"][1]["duplicate"], json!(true), "{}", done.text);
    assert_eq!(done.json["jobs"][1]["job_id"], jobs[2]["job_id"], "{}", done.text);
    let conflict = json!([{"text": "none"}, {"text": "x", "key": "k", "on_conflict": "fail"}]).to_string();
    let refused = post(&server, &token, batch, &conflict).await.expect(409);
    let says = json!({"error": "the key is taken", "index": 1, "job_id": jobs[2]["job_id"]});
    assert_eq!(refused.json, says);
    assert_eq!(server.size("/api/ns/q").await, 1, "only `new` was added");
}

const NO_NAME: &str =
    "invalid attribute: a name consists of letters, digits and !#$%&'*+-.^_`|~, like that of a header";
const NO_VALUE: &str = "invalid attribute: a value contains no control characters, like that of a header";

async fn a_bad_element_of_a_batch_is_named_and_nothing_is_stored(store: Store) {
    let server = TestServer::on(store).await;
    let token = server.token("ns").await;
    let batch = "/api/ns/q/jobs/batch";
    let attributes: Value =
        (0..17).map(|n| (format!("a{n}"), json!("v"))).collect::<serde_json::Map<_, _>>().into();
    // Each is ignored, but with this many the request is refused.
    let none: Value =
        (0..2000).map(|n| (format!("a{n}"), json!(""))).collect::<serde_json::Map<_, _>>().into();
    for (bad, says) in [
        (json!({}), "a job should have either data or text"),
        (json!({"text": "x", "data": ""}), "a job should have either data or text"),
        (json!({"data": "!"}), "invalid data"),
        (json!({"text": "x", "delay": "1"}), "invalid delay"),
        (json!({"text": "x", "delay": -1}), "invalid delay"),
        (json!({"text": "x", "delay": 1, "at": 2}), "only one of delay, at and at_ms can be given"),
        (json!({"text": "x", "at": "soon"}), "invalid at"),
        (json!({"text": "x", "at": true}), "invalid at"),
        (json!({"text": "x", "ttl": 1, "delay": 1.5}), "ttl is shorter than delay"),
        (json!({"text": "x", "tries": 1.5}), "invalid tries"),
        (json!({"text": "x", "key": "a b"}), "invalid key"),
        (json!({"text": "x", "on_conflict": "x"}), "invalid on_conflict"),
        (json!({"text": "x", "key": "first"}), "two jobs with one key"),
        (json!({"text": "x", "attributes": attributes}), "too many attributes, cannot exceed 16"),
        (json!({"text": "x", "attributes": none}), "too many attributes, cannot exceed 16"),
        (json!({"text": "x", "attributes": {"a b": "v"}}), NO_NAME),
        (json!({"text": "x", "attributes": {"a:b": "v"}}), NO_NAME),
        (json!({"text": "x", "attributes": {"\u{e4}": "v"}}), NO_NAME),
        (json!({"text": "x", "attributes": {"a\r": "v"}}), NO_NAME),
        (json!({"text": "x", "attributes": {"a": "v\r\nX: y"}}), NO_VALUE),
        (json!({"text": "x", "attributes": {"a": "v\0"}}), NO_VALUE),
    ] {
        let body = json!([{"text": "fine", "key": "first"}, bad]).to_string();
        let refused = post(&server, &token, batch, &body).await.expect(400);
        assert_eq!(refused.json, json!({"error": says, "index": 1}), "{body}");
    }
    for (bad, part) in
        [("1", "object"), (r#"{"txt":"x"}"#, "unknown field `txt`"), (r#"{"text":1}"#, "string")]
    {
        let refused = post(&server, &token, batch, &format!("[{bad}]")).await.expect(400);
        assert!(
            refused.says().contains(part) && refused.json["index"] == json!(0),
            "{bad}: {}",
            refused.text
        );
    }
    for (body, says) in [("{}", "request body should be an array of objects"), ("[]", "no jobs")] {
        let refused = post(&server, &token, batch, body).await.expect(400);
        assert_eq!(refused.json, json!({"error": says}), "{body}");
    }
    let many = json!(vec![json!({"text": "x"}); 65]).to_string();
    assert_eq!(post(&server, &token, batch, &many).await.expect(400).says(), "too many jobs");
    let large = json!([{"text": "x"}, {"text": "x".repeat((1 << 20) + 1)}]).to_string();
    let refused = post(&server, &token, batch, &large).await.expect(413);
    assert_eq!(refused.json, json!({"error": "job too large", "index": 1}));
    let large = json!([{"data": STANDARD.encode(vec![0; 1 << 20])}]).to_string();
    post(&server, &token, batch, &large).await.expect(201);
    assert_eq!(server.size("/api/ns/q").await, 1, "a refusal stored something");
}

async fn a_repeated_publish_happens_once_and_gets_the_same_answer(store: Store) {
    let server = TestServer::on(store).await;
    let token = server.token("ns").await;
    let old = server.put(&token, "/api/ns/q?delay=600", "old").await.expect(201).job_id();
    let republish = format!("/api/ns/q/job/{old}");
    let mut jobs = 0;
    for (n, (method, path, body, stored)) in [
        ("PUT", "/api/ns/q", "a", 1),
        ("PUT", "/api/ns/q/bulk?ttl=600", "[1,2,3]", 3),
        ("PUT", &republish, "b", 1),
        ("POST", "/api/ns/q/jobs", "c", 1),
        ("POST", "/api/ns/q/jobs/batch", r#"[{"text":"d"},{"text":"e","key":"k"}]"#, 2),
    ]
    .into_iter()
    .enumerate()
    {
        let key = format!("key {n}");
        let first = once(&server, &token, (method, path), &key, body).await.expect(201);
        assert_eq!(first.header("idempotency-replayed"), "", "{method} {path}");
        jobs += stored;
        let again = once(&server, &token, (method, path), &key, body).await.expect(201);
        assert_eq!(
            (&again.text, again.header("idempotency-replayed")),
            (&first.text, "true"),
            "{method} {path}"
        );
        assert_eq!(server.size("/api/ns/q").await, jobs, "{method} {path} was done twice");
        for (path, body) in [(format!("{path}?x=1"), body), (path.to_owned(), "[9]")] {
            let other = once(&server, &token, (method, &path), &key, body).await;
            // 400 if the other body is invalid for this route.
            assert!([400, 422].contains(&other.status), "{method} {path} with {body}: {other:?}");
        }
        assert_eq!(server.size("/api/ns/q").await, jobs, "{method} {path}: another request did something");
    }
    let other = once(&server, &token, ("PUT", "/api/ns/q"), "key 0", "b").await.expect(422);
    assert_eq!(other.json, json!({"error": "the idempotency key was used for another request"}));
    // A refusal is not stored, and each queue has its own keys.
    once(&server, &token, ("POST", "/api/ns/q/jobs?delay=x"), "refused", "a").await.expect(400);
    once(&server, &token, ("POST", "/api/ns/q/jobs"), "refused", "a").await.expect(201);
    once(&server, &token, ("PUT", "/api/ns/r"), "key 0", "b").await.expect(201);
    let long = "k".repeat(256);
    for bad in ["", &long] {
        let refused = once(&server, &token, ("PUT", "/api/ns/q"), bad, "a").await.expect(400);
        assert_eq!(refused.says(), "the idempotency key has 1 to 255 bytes");
    }
}

/// Guards against two copies when a client repeats a request that it believes lost.
async fn a_repetition_of_what_is_under_way_is_told_to_come_back(store: Store) {
    let server = TestServer::on(store).await;
    let token = server.token("ns").await;
    let head = format!(
        "PUT /api/ns/q HTTP/1.1\r\nHost: x\r\nX-Token: {token}\r\nIdempotency-Key: k\r\nExpect: 100-continue\r\n\
         Content-Length: 5\r\n\r\n"
    );
    let mut slow = tokio::net::TcpStream::connect(server.api_addr).await.expect("the port takes connections");
    tokio::io::AsyncWriteExt::write_all(&mut slow, head.as_bytes()).await.expect("sent");
    // The body is requested after the key was checked.
    crate::common::read_until(&mut slow, "100 Continue").await;
    tokio::io::AsyncWriteExt::write_all(&mut slow, b"he").await.expect("sent");
    let busy = once(&server, &token, ("PUT", "/api/ns/q"), "k", "other").await.expect(409);
    assert_eq!(busy.header("retry-after"), "1", "{busy:?}");
    assert_eq!(server.size("/api/ns/q").await, 0, "nothing is stored yet");
    tokio::io::AsyncWriteExt::write_all(&mut slow, b"llo").await.expect("sent");
    crate::common::read_until(&mut slow, "published").await;
    let again = once(&server, &token, ("PUT", "/api/ns/q"), "k", "hello").await.expect(201);
    assert_eq!(again.header("idempotency-replayed"), "true");
    assert_eq!(server.size("/api/ns/q").await, 1, "it was published once");
}

async fn the_new_publishes_and_replays_count_against_the_limit(store: Store) {
    let server = TestServer::on(store).await;
    let token = server.token("ns").await;
    server.limit(&token, r#"{"read":0,"write":3,"interval":600}"#).await;
    post(&server, &token, "/api/ns/q/jobs?delay=x", "refused").await.expect(400);
    once(&server, &token, ("POST", "/api/ns/q/jobs"), "k", "a").await.expect(201);
    once(&server, &token, ("POST", "/api/ns/q/jobs"), "k", "a").await.expect(201);
    // The refused one is uncounted shortly after its reply.
    let batch = r#"[{"text":"x"},{"text":"y"}]"#;
    until_status(201, async || post(&server, &token, "/api/ns/q/jobs/batch", batch).await).await;
    let over = post(&server, &token, "/api/ns/q/jobs", "x").await.expect(429);
    let seconds: u64 = over.header("retry-after").parse().expect("whole seconds");
    assert!((590..=600).contains(&seconds), "until the interval ends: {seconds}");
    post(&server, &token, "/api/ns/q/pause", "").await.expect(200);
    post(&server, &token, "/api/ns/q/resume", "").await.expect(200);
}

on_each_store!(
    a_job_is_due_after_a_delay_with_decimals_or_at_an_instant,
    a_publish_that_is_refused_says_why_and_stores_nothing,
    a_key_names_one_job_until_that_is_gone,
    a_batch_is_all_or_none_and_each_job_its_own,
    a_bad_element_of_a_batch_is_named_and_nothing_is_stored,
    a_repeated_publish_happens_once_and_gets_the_same_answer,
    a_repetition_of_what_is_under_way_is_told_to_come_back,
    the_new_publishes_and_replays_count_against_the_limit,
);

on_a_cluster!(
    a_job_is_due_after_a_delay_with_decimals_or_at_an_instant,
    a_publish_that_is_refused_says_why_and_stores_nothing,
    a_key_names_one_job_until_that_is_gone,
    a_batch_is_all_or_none_and_each_job_its_own,
    a_bad_element_of_a_batch_is_named_and_nothing_is_stored,
    a_repeated_publish_happens_once_and_gets_the_same_answer,
    a_repetition_of_what_is_under_way_is_told_to_come_back,
    the_new_publishes_and_replays_count_against_the_limit,
);

/// Guards against state known to only one server, or only one process.
#[tokio::test]
async fn a_repetition_on_another_server_is_known() {
    let redis = RedisServer::start();
    let [a, b] = TestServer::two_on(&redis).await;
    let token = a.token("ns").await;
    let first = once(&a, &token, ("PUT", "/api/ns/q"), "k", "x").await.expect(201);
    let again = once(&b, &token, ("PUT", "/api/ns/q"), "k", "x").await.expect(201);
    assert_eq!((&again.text, again.header("idempotency-replayed")), (&first.text, "true"));
}

#[tokio::test]
async fn a_repetition_after_a_restart_is_known() {
    let dir = tempfile::TempDir::new().expect("a temporary directory");
    let toml = format!("[Pool.default]\nPath = {:?}\n", dir.path().join("jobs"));
    let server = TestServer::start(&toml, ()).await;
    let token = server.token("ns").await;
    let first = once(&server, &token, ("POST", "/api/ns/q/jobs"), "k", "x").await.expect(201);
    server.stop().await;
    let server = TestServer::start(&toml, dir).await;
    let again = once(&server, &token, ("POST", "/api/ns/q/jobs"), "k", "x").await.expect(201);
    assert_eq!((&again.text, again.header("idempotency-replayed")), (&first.text, "true"));
}
