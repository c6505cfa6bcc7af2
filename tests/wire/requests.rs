//! Conversations about valid and invalid requests: the order of the checks, parameters, attributes, names, and the
//! forms of replies. A rejected request changes nothing.

use std::collections::BTreeSet;
use std::time::Instant;

use crate::support::client::{Response, send};
use crate::support::servers::{Store, TestServer, on_each_store};

#[tokio::test]
async fn a_request_wrong_in_every_way_is_told_the_first_and_then_the_next() {
    let server = TestServer::on_disk().await;
    let token = server.token("ns").await;
    let big = "x".repeat((1 << 20) + 1);
    // Each line fixes the error that the previous line got.
    let steps = [
        (
            "/api/n.s/q.q?tries=0&ttl=x&delay=",
            "nopool:bad",
            400,
            "namespace name contains forbidden characters",
        ),
        ("/api/ns/q.q?tries=0&ttl=x&delay=", "nopool:bad", 400, "queue name contains forbidden characters"),
        ("/api/ns/q?tries=0&ttl=x&delay=", "nopool:bad", 404, "pool not found"),
        ("/api/ns/q?tries=0&ttl=x&delay=", "", 401, "token not found"),
        ("/api/ns/q?tries=0&ttl=x&delay=", "bad", 401, "invalid token"),
        ("/api/ns/q?tries=0&ttl=x&delay=", &token, 400, "invalid delay"),
        ("/api/ns/q?tries=0&ttl=x&delay=9", &token, 400, "invalid ttl"),
        ("/api/ns/q?tries=0&ttl=8&delay=9", &token, 400, "ttl is shorter than delay"),
        ("/api/ns/q?tries=0&ttl=9&delay=9", &token, 400, "tries shouldn't be zero"),
        ("/api/ns/q?tries=1&ttl=9&delay=9", &token, 413, "body too large"),
    ];
    for (path, token, status, says) in steps {
        let answer = server.put(token, path, &big).await;
        assert_eq!((answer.status, answer.says()), (status, says), "PUT {path}");
        assert_eq!(answer.header("content-type"), "application/json; charset=utf-8", "PUT {path}");
    }
    assert_eq!(server.size("/api/ns/q").await, 0, "a refusal published something");
    let info = send(server.admin("GET", "/info")).await;
    assert_eq!(info.text, "{}", "a refusal left a queue behind");
}

#[tokio::test]
async fn the_limit_is_checked_after_the_token_and_before_the_parameters() {
    let server = TestServer::on_disk().await;
    let token = server.token("ns").await;
    server.limit(&token, r#"{"read":1,"write":1,"interval":600}"#).await;
    server.put(&token, "/api/ns/q", "one").await.expect(201);
    server.put(&token, "/api/ns/q?delay=x", "two").await.expect(429);
    server.put("wrong", "/api/ns/q?delay=x", "two").await.expect(401);
    server.put(&token, "/api/ns/q.q?delay=x", "two").await.expect(400);
    // Only publishes, bulks and consumes are counted.
    server.put(&token, "/api/ns/q/job/x?delay=x", "two").await.expect(400);
    server.get(&token, "/api/ns/q/peek").await.expect(200);
    server.get(&token, "/api/ns/q").await.expect(200);
    server.get(&token, "/api/ns/q?ttr=x").await.expect(429);
}

#[tokio::test]
async fn every_refused_number_changes_nothing_and_every_fine_one_works() {
    let server = TestServer::on_disk().await;
    let token = server.token("ns").await;
    let job = server.put(&token, "/api/ns/q", "stays").await.expect(201).job_id();
    let bad = ["", "-1", "+1", "%201", "1%20", "1.0", "1e3", "0x10", "4294967296", "١", "%00", "1%00"];
    for key in ["delay", "ttl", "tries"] {
        for value in bad {
            server.put(&token, &format!("/api/ns/q?{key}={value}"), "x").await.expect(400);
            server.put(&token, &format!("/api/ns/q/bulk?{key}={value}"), "[1]").await.expect(400);
            server.put(&token, &format!("/api/ns/q/job/{job}?{key}={value}"), "x").await.expect(400);
        }
    }
    server.put(&token, "/api/ns/q?tries=65536", "x").await.expect(400);
    for key in ["ttr", "timeout", "count"] {
        for value in bad {
            server.get(&token, &format!("/api/ns/q?{key}={value}")).await.expect(400);
        }
    }
    for key in ["limit", "ttl"] {
        // A limit may exceed any queue's size.
        for value in bad.iter().filter(|v| key != "limit" || **v != "4294967296") {
            server.put(&token, &format!("/api/ns/q/deadletter?{key}={value}"), "").await.expect(400);
        }
    }
    assert_eq!(server.size("/api/ns/q").await, 1, "only the first job is there");
    let got = server.get(&token, "/api/ns/q?ttr=0007&timeout=000&count=01&ttr=x&Array&freeze_tries=1").await;
    assert_eq!(got.expect(200).job_id(), job, "leading zeros, repeated and unknown keys are fine");
    server.put(&token, "/api/ns/q?ttl=0&delay=4294967295&tries=65535", "x").await.expect(201);
}

#[tokio::test]
async fn count_decides_between_an_object_and_an_array() {
    let server = TestServer::on_disk().await;
    let token = server.token("ns").await;
    server.put(&token, "/api/ns/q/bulk", "[1,2,3,4]").await.expect(201);
    let one = server.get(&token, "/api/ns/q").await.expect(200);
    assert!(one.json.is_object(), "no count: an object, not {}", one.text);
    let one = server.get(&token, "/api/ns/q?count=1").await.expect(200);
    assert!(one.json.is_object(), "count=1: an object, not {}", one.text);
    let some = server.get(&token, "/api/ns/q?count=100").await.expect(200);
    assert_eq!(
        some.json.as_array().map(Vec::len),
        Some(2),
        "count=100: the two that are left: {}",
        some.text
    );
    server.put(&token, "/api/ns/q", "last").await.expect(201);
    let some = server.get(&token, "/api/ns/q?count=2").await.expect(200);
    assert_eq!(some.json.as_array().map(Vec::len), Some(1), "count=2 with one job: an array: {}", some.text);
    let none = server.get(&token, "/api/ns/q?count=2").await.expect(404);
    assert_eq!(none.text, r#"{"msg":"no job available"}"#);
}

#[tokio::test]
async fn bulk_takes_1_to_64_elements_of_any_json_and_keeps_their_text() {
    let server = TestServer::on_disk().await;
    let token = server.token("ns").await;
    for bad in ["", "{}", "1", "null", "[", "[1,]", "[1] x", "\"[1]\"", "[]", "[1 2]", "[NaN]", "[\"\\x\"]"] {
        server.put(&token, "/api/ns/q/bulk", bad).await.expect(400);
    }
    let sixty_five = format!("[{}1]", "1,".repeat(64));
    server.put(&token, "/api/ns/q/bulk", &sixty_five).await.expect(400);
    let one_too_large = format!("[1,\"{}\"]", "x".repeat(1 << 20));
    let large = server.put(&token, "/api/ns/q/bulk", &one_too_large).await.expect(413);
    assert_eq!(large.says(), "job too large");
    assert_eq!(server.size("/api/ns/q").await, 0, "half a bulk was published");

    let texts = ["{ \"a\" :  1,\"a\":2 }", "null", "1e400", "\"\\ud834\\udd1e é\"", "[ ]"];
    let answer =
        server.put(&token, "/api/ns/q/bulk", &format!(" [ {} ]\n", texts.join(" ,\n"))).await.expect(201);
    let ids = answer.json["job_ids"].as_array().cloned().unwrap_or_default();
    for (text, id) in texts.iter().zip(&ids) {
        let job = server.get(&token, "/api/ns/q").await.expect(200);
        assert_eq!((String::from_utf8_lossy(&job.data()).as_ref(), &job.json["job_id"]), (*text, id));
    }
    assert_eq!(ids.len(), texts.len(), "an id for each: {}", answer.text);
}

#[tokio::test]
async fn a_bulk_or_a_job_that_is_not_utf8_comes_back_as_it_was() {
    let server = TestServer::on_disk().await;
    let token = server.token("ns").await;
    let bad = b"[\"\xff\xfe\"]".to_vec();
    send(server.api("PUT", "/api/ns/q/bulk", &token).body(bad.clone())).await.expect(201);
    assert_eq!(
        server.get(&token, "/api/ns/q").await.expect(200).data(),
        bad[1..bad.len() - 1],
        "the job of a bulk"
    );
    send(server.api("PUT", "/api/ns/q", &token).body(bad.clone())).await.expect(201);
    assert_eq!(server.get(&token, "/api/ns/q").await.expect(200).data(), bad);
    for path in ["/api/n%ffs/q", "/api/ns/q%ff", "/api/ns/%00", "/api/ns/a%2Fb", "/api/ns/q/job/%ff%fe"] {
        let answer = server.get(&token, path).await;
        assert!((400..500).contains(&answer.status), "{path}: {answer:?}");
    }
    server.get(&token, "/api/ns/q?timeout=%ff").await.expect(400);
    server.get("", "/api/ns/q?token=%ff%fe").await.expect(401);
    for path in ["/token/n%ffs?description=x", "/token/ns?description=x&pool=%ff", "/info?pool=%ff"] {
        let answer = send(server.admin("POST", path)).await;
        assert!((400..500).contains(&answer.status), "admin {path}: {answer:?}");
    }
}

/// Publishes with these attributes, and returns the consumed job.
async fn attributes(server: &TestServer, token: &str, headers: &[(&str, &str)]) -> Response {
    let mut request = server.api("PUT", "/api/ns/q", token).header("Enable-Job-Version", "yEs").body("x");
    for (name, value) in headers {
        let value = reqwest::header::HeaderValue::from_bytes(value.as_bytes()).expect("a header's value");
        request = request.header(*name, value);
    }
    let answer = send(request).await;
    if answer.status != 201 { answer } else { server.get(token, "/api/ns/q").await.expect(200) }
}

async fn attributes_come_back(store: Store) {
    let server = TestServer::on(store).await;
    let token = server.token("ns").await;
    let long = format!("Job-Attr-{}", "K".repeat(33));
    // 127 bytes, and then a character of two.
    let value = format!("{}é", "v".repeat(127));
    let job = attributes(
        &server,
        &token,
        &[(&long, "1"), ("Job-Attr-Cut", &value), ("Job-Attr-Empty", ""), ("job-attr-TWICE", "first")],
    )
    .await;
    assert_eq!(job.job_id().len(), 27, "a versioned id is longer: {}", job.text);
    assert!(job.job_id().starts_with('1'), "the id has a version prefix: {}", job.text);
    let want = serde_json::json!({"k".repeat(32): "1", "cut": "v".repeat(127), "twice": "first"});
    assert_eq!(job.json["attributes"], want, "cut in whole characters, lower-cased, the empty one skipped");

    let names: Vec<String> = (0..17).map(|i| format!("Job-Attr-A{i}")).collect();
    let of = |n: usize| names[..n].iter().map(|name| (name.as_str(), "v")).collect::<Vec<_>>();
    let job = attributes(&server, &token, &of(16)).await.expect(200);
    assert_eq!(job.json["attributes"].as_object().map(serde_json::Map::len), Some(16), "{}", job.text);
    attributes(&server, &token, &of(17)).await.expect(400);
    let none = attributes(&server, &token, &[]).await.expect(200);
    assert!(none.json["attributes"].is_null(), "none is null: {}", none.text);
    server.get(&token, "/api/ns/q").await.expect(404);

    // Without the option they are ignored.
    let request = server.api("PUT", "/api/ns/q", &token).header("Job-Attr-A", "1").body("x");
    let id = send(request).await.expect(201).job_id();
    assert_eq!(id.len(), 26, "a plain id");
    assert!(server.get(&token, "/api/ns/q").await.json["attributes"].is_null(), "no attributes");
}

on_each_store!(attributes_come_back);

async fn republish_validates_first_and_is_one_step(store: Store) {
    let server = TestServer::on(store).await;
    let token = server.token("ns").await;
    let old = server.put(&token, "/api/ns/q", "old").await.expect(201).job_id();
    let path = format!("/api/ns/q/job/{old}");
    server.put(&token, &format!("{path}?tries=0"), "new").await.expect(400);
    server.put(&token, &path, &"x".repeat((1 << 20) + 1)).await.expect(413);
    let still = server.get(&token, &path).await.expect(200);
    assert_eq!(still.data(), b"old", "a refused republish deleted the job");
    let new = server.put(&token, &path, "new").await.expect(201).job_id();
    server.get(&token, &path).await.expect(404);
    let got = server.get(&token, "/api/ns/q").await.expect(200);
    assert_eq!((got.job_id(), got.data()), (new, b"new".to_vec()), "the new one took the old one's place");
    // A republish of a deleted or unknown job is a publish.
    server.put(&token, &path, "again").await.expect(201);
    server.put(&token, "/api/ns/q/job/nonsense", "more").await.expect(201);
    assert_eq!(server.get(&token, "/api/ns/q?count=9").await.json.as_array().map(Vec::len), Some(2));
}

/// Guards against a token that exceeds its limit by republishing jobs that do not exist.
async fn a_republish_of_an_unknown_job_counts_as_a_publish(store: Store) {
    let server = TestServer::on(store).await;
    let token = server.token("ns").await;
    let mut id = server.put(&token, "/api/ns/q", "x").await.expect(201).job_id();
    server.limit(&token, r#"{"read":0,"write":2,"interval":600}"#).await;
    let fresh = server.token("ns").await;
    // A token's permissions are cached for a second.
    crate::support::wait::until("the limit is in force", async || {
        id = server.put(&token, &format!("/api/ns/q/job/{id}"), "again").await.expect(201).job_id();
        server.put(&token, "/api/ns/q", "x").await.status == 429
    })
    .await;
    for unknown in ["nonsense", "01ARZ3NDEKTSV4RRFFQ69G5FAV"] {
        let path = format!("/api/ns/q/job/{unknown}");
        let over = server.put(&token, &path, "x").await;
        assert_eq!(over.status, 429, "a publish over the limit: {over:?}");
        server.put(&fresh, &path, "x").await.expect(201);
    }
    server.put(&token, &format!("/api/ns/q/job/{id}"), "again").await.expect(201);
}

on_each_store!(republish_validates_first_and_is_one_step, a_republish_of_an_unknown_job_counts_as_a_publish,);

/// Guards against a delayed job that expires when it becomes due: it would get a 201 and never be delivered.
async fn a_job_whose_ttl_equals_its_delay_is_delivered(store: Store) {
    let keys = format!("TTLSecond = 1\nDelaySecond = 1\n{}", store.toml());
    let server = TestServer::start(&keys, store).await;
    let token = server.token("ns").await;
    for query in ["", "?delay=1&ttl=1", "?ttl=1"] {
        let one = server.put(&token, &format!("/api/ns/q{query}"), "one").await.expect(201).job_id();
        let bulk = server.put(&token, &format!("/api/ns/q/bulk{query}"), "[1,2]").await.expect(201);
        let again = format!("/api/ns/q/job/{one}{query}");
        let again = server.put(&token, &again, "again").await.expect(201).job_id();
        let mut expected: Vec<String> = bulk.json["job_ids"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|id| id.as_str().map(str::to_owned))
            .collect();
        expected.push(again);
        let mut got = Vec::new();
        for _ in 0..3 {
            let job = server.get(&token, "/api/ns/q?timeout=10&ttr=100").await.expect(200);
            let ttl = job.json["ttl"].as_u64().unwrap_or(0);
            assert!((50..=60).contains(&ttl), "it lives for a minute after it is due: {}", job.text);
            got.push(job.job_id());
        }
        assert_eq!(got, expected, "all are delivered with {query:?}");
    }
    // The routes that lmstfy does not have refuse it.
    for (path, body) in [
        ("/api/ns/q/jobs?delay=5&ttl=5", "x"),
        ("/api/ns/q/jobs?ttl=1", "x"),
        ("/api/ns/q/jobs/batch", r#"[{"text":"x","delay":0.5,"ttl":0.5}]"#),
    ] {
        let refused = send(server.api("POST", path, &token).body(body)).await.expect(400);
        assert_eq!(refused.says(), "ttl equals delay: the job would expire when it is due", "{path}");
    }
    // A default ttl starts when the job is due.
    send(server.api("POST", "/api/ns/q/jobs", &token).body("x")).await.expect(201);
    server.get(&token, "/api/ns/q?timeout=10").await.expect(200);
}

on_each_store!(a_job_whose_ttl_equals_its_delay_is_delivered);

async fn a_producer_can_wait_on_a_queue_named_after_its_job(store: Store) {
    let server = TestServer::on(store).await;
    let token = server.token("ns").await;
    let began = Instant::now();
    let job = server.put(&token, "/api/ns/work?ttl=10", "question").await.expect(201).job_id();
    let wait = tokio::spawn(send(server.api("GET", &format!("/api/ns/{job}?timeout=10"), &token)));
    let got = server.get(&token, "/api/ns/work?timeout=5").await.expect(200);
    // The remaining ttl is rounded to seconds.
    let least = (10.499 - began.elapsed().as_secs_f64()) as u64;
    let ttl = got.json["ttl"].as_u64().unwrap_or_default();
    assert_eq!(got.job_id(), job);
    assert!((least..=10).contains(&ttl), "ttl right after a publish: {least} to 10, not {ttl}");
    let answer = server.put(&token, &format!("/api/ns/{job}"), "answer").await.expect(201).job_id();
    let got = wait.await.expect("no panic").expect(200);
    assert_eq!((got.job_id(), got.data()), (answer, b"answer".to_vec()), "who waits gets the answer");
}

on_each_store!(a_producer_can_wait_on_a_queue_named_after_its_job);

#[tokio::test]
async fn names_are_decoded_bounded_and_may_not_begin_with_an_underscore() {
    let server = TestServer::on_disk().await;
    let token = server.token("n-S_1").await;
    server.put(&token, "/api/n%2DS_1/%71ueue", "x").await.expect(201);
    assert_eq!(server.get(&token, "/api/n-S_1/queue").await.expect(200).data(), b"x");
    let (long, longer) = ("a".repeat(255), "a".repeat(256));
    server.put(&token, &format!("/api/n-S_1/{long}"), "x").await.expect(201);
    server.put(&token, &format!("/api/n-S_1/{longer}"), "x").await.expect(400);
    server.put(&token, &format!("/api/{longer}/q"), "x").await.expect(400);
    server.put(&token, "/api/n-S_1/_q", "x").await.expect(400);
    server.get(&token, "/api/n-S_1/_q").await.expect(404);
    server.get(&token, "/api/n-S_1/a,_q,b").await.expect(404);
    server.get(&token, "/api/n-S_1/a,b.c").await.expect(400);
    server.get(&token, "/api/n-S_1/,").await.expect(400);
    server.put(&token, "/api/n-S_1/a,b", "x").await.expect(400);
    // The order of the names is their priority.
    server.put(&token, "/api/n-S_1/low", "low").await.expect(201);
    server.put(&token, "/api/n-S_1/high", "high").await.expect(201);
    assert_eq!(server.get(&token, "/api/n-S_1/high,low").await.expect(200).data(), b"high");
}

#[tokio::test]
async fn every_answer_has_its_caller_s_id_or_one_of_its_own() {
    let server = TestServer::on_disk().await;
    let token = server.token("ns").await;
    let mut ids = BTreeSet::new();
    let asked = [
        server.api("GET", "/nothing", ""),
        server.api("PUT", "/api/ns/q", "").header("X-Request-ID", "not valid"),
        server.api("PUT", "/api/ns/q", &token).header("X-Request-ID", "x".repeat(65)),
        server.api("GET", "/ping", "").header("X-Request-ID", ""),
        server.api("DELETE", "/api/ns/q", &token),
        server.api("GET", "/ping", ""),
        server.admin("GET", "/metrics"),
        server.admin("GET", "/nothing"),
        server.admin("GET", "/ping"),
    ];
    let many = asked.len();
    for request in asked {
        let answer = send(request).await;
        let id = answer.header("x-request-id").to_owned();
        assert_eq!(id.len(), 26, "a ULID, not {id:?}: {answer:?}");
        ids.insert(id);
    }
    assert_eq!(ids.len(), many, "ids repeat: {ids:?}");
    for id in ["a", "Az09._-", &"x".repeat(64)] {
        let asked = [
            server.api("PUT", "/api/ns/q", ""),
            server.api("GET", "/ping", ""),
            server.admin("GET", "/ping"),
        ];
        for request in asked {
            let answer = send(request.header("X-Request-ID", id)).await;
            assert_eq!(answer.header("x-request-id"), id, "the caller's is kept: {answer:?}");
        }
    }
}

/// Guards against a path parser that reads other names if characters are percent-encoded.
#[tokio::test]
async fn an_escape_in_a_path_changes_no_answer() {
    let server = TestServer::on_disk().await;
    let token = server.token("ns").await;
    let mut answers = Vec::new();
    for queue in ["/api/ns/plain", "/api/n%73/escape%64"] {
        let ask = async |method: &str, rest: &str, token: &str, body: &'static str| {
            send(server.api(method, &format!("{queue}{rest}"), token).body(body)).await
        };
        let published = ask("PUT", "?ttl=9", &token, "one").await.expect(201);
        let id = published.job_id();
        let consumed = ask("GET", "?timeout=1", &token, "").await.expect(200);
        assert_eq!((consumed.job_id(), consumed.data()), (id.clone(), b"one".to_vec()), "{queue}");
        let all = [
            published,
            consumed,
            ask("DELETE", &format!("/job/{id}"), &token, "").await.expect(204),
            ask("GET", "", &token, "").await.expect(404),
            ask("PUT", "?ttl=x", &token, "x").await.expect(400),
            ask("PUT", "", "wrong", "x").await.expect(401),
            ask("GET", "?ttr=x", &token, "").await.expect(400),
            ask("GET", "", "", "").await.expect(401),
            ask("DELETE", "/job/none", &token, "an unread body").await.expect(204),
            ask("DELETE", "/job/none?receipt=bad", &token, "").await.expect(400),
        ];
        answers.push(all.map(|answer| {
            let length =
                answer.headers.get("content-length").map(|length| length.to_str().unwrap().to_owned()); // digits
            let whole = length.is_none_or(|length| length == answer.text.len().to_string());
            let names: BTreeSet<String> = answer.headers.keys().map(ToString::to_string).collect();
            (answer.status, answer.says().to_owned(), names, whole)
        }));
    }
    assert_eq!(answers[0], answers[1], "without an escape, and with one");
    assert!(answers[0].iter().all(|(.., whole)| *whole), "a wrong Content-Length: {:?}", answers[0]);
}
