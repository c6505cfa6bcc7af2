//! Conversations about listing a namespace and its queues.

use std::collections::BTreeSet;

use crate::cluster::on_a_cluster;
use crate::metrics::Scrape;
use crate::support::client::{Response, send};
use crate::support::servers::{Store, TestServer, on_each_store};
use crate::support::wait::until;
use serde_json::{Value, json};

async fn post(server: &TestServer, token: &str, path: &str, body: &str) -> Response {
    send(server.api("POST", path, token).body(body.to_owned())).await
}

/// Returns the fields of an object in their order.
#[track_caller]
fn fields(text: &str) -> Vec<String> {
    let object: serde_json::Map<String, Value> = serde_json::from_str(text).expect("an object");
    object.keys().cloned().collect()
}

/// Returns the jobs of a page.
#[track_caller]
fn jobs(page: &Response) -> Vec<Value> {
    page.json["jobs"]
        .as_array()
        .unwrap_or_else(|| panic!("a page of jobs was expected, not {page:?}"))
        .clone()
}

async fn the_queues_of_a_namespace_are_listed_with_what_is_in_them(store: Store) {
    let server = TestServer::on(store).await;
    let (token, other) = (server.token("ns").await, server.token("other").await);
    server.put(&other, "/api/other/x", "x").await.expect(201);
    server.put(&token, "/api/ns/a/bulk?tries=2", "[1,2,3]").await.expect(201);
    server.put(&token, "/api/ns/a?delay=600", "later").await.expect(201);
    let held = server.get(&token, "/api/ns/a?receipt=1&ttr=600").await.expect(200);
    let bury = format!(
        "/api/ns/a/job/{}/bury?receipt={}",
        held.job_id(),
        held.json["receipt"].as_str().unwrap_or("")
    );
    post(&server, &token, &bury, "").await.expect(200);
    server.get(&token, "/api/ns/a?ttr=600").await.expect(200);
    server.put(&token, "/api/ns/b", "x").await.expect(201);
    post(&server, &token, "/api/ns/c/pause?for=600", "").await.expect(200);

    // On Redis other servers may write too, so a queue may show up a moment later.
    until("all three queues are listed", async || {
        let page = server.get(&token, "/api/ns").await.expect(200);
        page.json["queues"].as_array().is_some_and(|queues| queues.len() == 3)
    })
    .await;
    let page = server.get(&token, "/api/ns").await.expect(200);
    assert_eq!(
        (&page.json["namespace"], &page.json["cursor"]),
        (&json!("ns"), &Value::Null),
        "{}",
        page.text
    );
    let queue = |name: &str| -> Value {
        let queues = page.json["queues"].as_array().into_iter().flatten();
        queues
            .clone()
            .find(|queue| queue["queue"] == name)
            .unwrap_or_else(|| panic!("no {name} in {}", page.text))
            .clone()
    };
    let (a, b, c) = (queue("a"), queue("b"), queue("c"));
    assert_eq!((&a["ready"], &a["dead"]), (&json!(1), &json!(1)), "{a}");
    for (field, count) in [("delayed", 1), ("running", 1)] {
        assert!(a[field] == json!(count) || a[field].is_null(), "{field} is known or null: {a}");
    }
    assert!(a["oldest_ready_age"].as_f64().is_none_or(|age| (0.0..60.0).contains(&age)), "seconds: {a}");
    assert_eq!((&b["ready"], &b["paused"]), (&json!(1), &json!(false)), "{b}");
    assert_eq!((&c["ready"], &c["paused"]), (&json!(0), &json!(true)), "{c}");
    assert!(c["paused_until"].as_str().is_some_and(|until| until.ends_with('Z')), "{c}");
    assert_eq!(c["oldest_ready_age"], Value::Null, "nothing is ready: {c}");

    // In pages.
    let (mut seen, mut cursor) = (Vec::new(), String::new());
    loop {
        let page = server.get(&token, &format!("/api/ns?limit=1{cursor}")).await.expect(200);
        let queues = page.json["queues"].as_array().cloned().unwrap_or_default();
        assert!(queues.len() <= 1, "more than was asked for: {}", page.text);
        seen.extend(queues.into_iter().map(|queue| queue["queue"].as_str().unwrap_or_default().to_owned()));
        match page.json["cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
    }
    seen.sort();
    assert_eq!(seen, ["a", "b", "c"], "each once");

    for bad in ["limit=0", "limit=101", "limit=x", "cursor=", "cursor=a%20b"] {
        server.get(&token, &format!("/api/ns?{bad}")).await.expect(400);
    }
    server.get(&other, "/api/ns").await.expect(401);
    server.get(&token, "/api/n.s").await.expect(400);
    for method in ["PUT", "POST", "DELETE", "HEAD"] {
        send(server.api(method, "/api/ns", &token)).await.expect(404);
    }
    let empty = server.token("empty").await;
    // Without parameters, a namespace without queues is an unknown route, as in lmstfy.
    assert_eq!(server.get(&empty, "/api/empty").await.expect(404).says(), "api not found");
    let none = server.get(&empty, "/api/empty?limit=100").await.expect(200);
    assert_eq!(none.text, r#"{"namespace":"empty","queues":[],"cursor":null}"#);
}

async fn the_jobs_of_a_queue_are_listed_by_state_in_the_order_in_which_they_come(store: Store) {
    let server = TestServer::on(store).await;
    let token = server.token("ns").await;
    let mut delayed = Vec::new();
    for delay in ["300", "100", "200.5"] {
        let job = post(&server, &token, &format!("/api/ns/q/jobs?delay={delay}&key=k{delay}"), "d")
            .await
            .expect(201);
        delayed.push((job.job_id(), job.json["due_at"].clone()));
    }
    for body in ["one", "two", "three", "four"] {
        server.put(&token, "/api/ns/q?tries=3", body).await.expect(201);
    }
    let held = server.get(&token, "/api/ns/q?receipt=1&ttr=600").await.expect(200);
    let bury = server.get(&token, "/api/ns/q?receipt=1&ttr=600").await.expect(200);
    let path = format!(
        "/api/ns/q/job/{}/bury?receipt={}",
        bury.job_id(),
        bury.json["receipt"].as_str().unwrap_or("")
    );
    post(&server, &token, &path, "why \"not\"").await.expect(200);

    let page = server.get(&token, "/api/ns/q/jobs?state=delayed").await.expect(200);
    let listed: Vec<(Value, Value)> =
        jobs(&page).iter().map(|job| (job["job_id"].clone(), job["due_at"].clone())).collect();
    let wanted: Vec<(Value, Value)> =
        [1, 2, 0].map(|n: usize| (json!(delayed[n].0), delayed[n].1.clone())).into();
    assert_eq!(listed, wanted, "the next one first: {}", page.text);
    assert_eq!(jobs(&page)[0]["key"], json!("k100"), "{}", page.text);
    assert!(page.json["scanned"].as_u64() >= Some(3), "{}", page.text);

    let page = server.get(&token, "/api/ns/q/jobs?data=1").await.expect(200);
    let ready: Vec<Vec<u8>> = jobs(&page).iter().map(crate::support::client::data).collect();
    assert_eq!(
        ready,
        [b"three".to_vec(), b"four".to_vec()],
        "ready ones when no state is given: {}",
        page.text
    );
    let page = server.get(&token, "/api/ns/q/jobs?state=ready").await.expect(200);
    let job = jobs(&page)[0].clone();
    assert_eq!(
        BTreeSet::from_iter(fields(&job.to_string())),
        ["due_at", "job_id", "key", "published_at", "reason", "remain_tries", "size", "state", "ttl"]
            .map(str::to_owned)
            .into(),
        "without data"
    );
    assert_eq!((&job["state"], &job["remain_tries"], &job["size"]), (&json!("ready"), &json!(3), &json!(5)));
    assert!(job["published_at"].as_str().is_some_and(|at| at.len() == 24), "an instant: {job}");

    let page = server.get(&token, "/api/ns/q/jobs?state=running").await.expect(200);
    assert_eq!(jobs(&page)[0]["job_id"], json!(held.job_id()), "{}", page.text);
    assert_eq!((jobs(&page).len(), &jobs(&page)[0]["remain_tries"]), (1, &json!(2)), "{}", page.text);
    let page = server.get(&token, "/api/ns/q/jobs?state=dead").await.expect(200);
    let dead = &jobs(&page)[0];
    assert_eq!((&dead["reason"], &dead["remain_tries"]), (&json!("why \"not\""), &json!(0)), "{}", page.text);

    for bad in ["state=gone", "state=", "limit=0", "limit=101", "data=2", "cursor=", "state=dead&cursor=!"] {
        server.get(&token, &format!("/api/ns/q/jobs?{bad}")).await.expect(400);
    }
    let foreign = server.get(&token, "/api/ns/q/jobs?cursor=this-is-none").await.expect(400);
    assert_eq!(foreign.says(), "invalid cursor");
    assert_eq!(server.size("/api/ns/q").await, 2, "a look took a job");
}

async fn a_list_in_pages_shows_each_job_once(store: Store) {
    let server = TestServer::on(store).await;
    let token = server.token("ns").await;
    let mut published = Vec::new();
    for _ in 0..5 {
        let bulk = format!("[{}]", vec!["1"; 25].join(","));
        let ids = server.put(&token, "/api/ns/q/bulk", &bulk).await.expect(201);
        published.extend(ids.json["job_ids"].as_array().cloned().unwrap_or_default());
    }
    for limit in [1, 7, 100] {
        let (mut seen, mut cursor, mut pages) = (Vec::new(), String::new(), 0);
        loop {
            let page = server.get(&token, &format!("/api/ns/q/jobs?limit={limit}{cursor}")).await.expect(200);
            assert!(jobs(&page).len() <= limit, "more than was asked for: {}", page.text);
            seen.extend(jobs(&page).into_iter().map(|job| job["job_id"].clone()));
            pages += 1;
            assert!(pages < 400, "the list does not end");
            match page.json["cursor"].as_str() {
                Some(next) => cursor = format!("&cursor={next}"),
                None => break,
            }
        }
        assert_eq!(seen, published, "all of them, in their order, by {limit}");
    }
}

/// Returns all cursors of a list with one job per page.
async fn cursors(server: &TestServer, token: &str, list: &str) -> Vec<String> {
    let (mut all, mut from): (Vec<String>, _) = (Vec::new(), String::new());
    loop {
        let page = server.get(token, &format!("{list}limit=1{from}")).await.expect(200);
        let Some(next) = page.json["cursor"].as_str() else { return all };
        from = format!("&cursor={next}");
        all.push(next.to_owned());
    }
}

/// Guards against forged cursors: a position among the timers of all queues and the number of jobs scanned would reveal
/// when other namespaces' jobs are due.
async fn a_cursor_is_good_for_its_own_list_and_tells_nothing(store: Store) {
    let server = TestServer::start(&store.toml(), ()).await;
    let (token, other) = (server.token("ns").await, server.token("other").await);
    for n in 0..3 {
        server.put(&token, &format!("/api/ns/q?delay={}", 600 + n), "x").await.expect(201);
        server.put(&token, "/api/ns/q", "x").await.expect(201);
        server.put(&token, &format!("/api/ns/q{n}"), "x").await.expect(201);
        server.put(&other, &format!("/api/other/q?delay={}", 600 + n), "x").await.expect(201);
    }
    let lists = ["/api/ns/q/jobs?state=delayed&", "/api/ns/q/jobs?state=ready&", "/api/ns?"];
    let mut of_lists = Vec::new();
    for list in lists {
        of_lists.push((list, cursors(&server, &token, list).await));
    }
    let delayed = &of_lists[0].1;
    assert_eq!(delayed.len(), 2, "a cursor behind each but the last: {delayed:?}");
    assert_eq!(delayed[0].len(), delayed[1].len(), "its length reveals nothing about its content");
    for (list, cursors) in &of_lists {
        for cursor in cursors {
            for (another, token) in lists
                .iter()
                .chain(&["/api/ns/q0/jobs?state=delayed&"])
                .map(|list| (*list, &token))
                .chain([("/api/other/q/jobs?state=delayed&", &other), ("/api/other?", &other)])
            {
                let answer = server.get(token, &format!("{another}limit=1&cursor={cursor}")).await;
                let expected = if another == *list { 200 } else { 400 };
                assert_eq!(answer.status, expected, "a cursor of {list} in {another}: {}", answer.text);
            }
            // Altered at each position.
            for at in 0..cursor.len() {
                let mut altered = cursor.clone().into_bytes();
                altered[at] = if altered[at] == b'A' { b'B' } else { b'A' };
                let altered = String::from_utf8(altered).expect("ASCII");
                let refused = server.get(&token, &format!("{list}limit=1&cursor={altered}")).await;
                // The last character encodes unused bits.
                assert!(refused.status == 400 || at + 1 == cursor.len(), "altered at {at}: {}", refused.text);
            }
        }
    }
    for made_up in ["d0006000000000000000000000000000000", "cgAKMTAwMDAwMDAwMGI", "r.q0", "q0", "r-0", "x"] {
        for list in lists {
            let refused = server.get(&token, &format!("{list}limit=1&cursor={made_up}")).await.expect(400);
            assert_eq!(refused.says(), "invalid cursor");
        }
    }
    // Timers of other namespaces are not counted.
    let token = server.token("none").await;
    let page = server.get(&token, "/api/none/q/jobs?state=delayed").await.expect(200);
    assert_eq!(page.text, r#"{"jobs":[],"cursor":null,"scanned":0}"#);

    // Cursors are also valid at another server of this store, and after a restart.
    let (list, cursor) = (of_lists[0].0, of_lists[0].1[0].clone());
    server.stop().await;
    let server = TestServer::on(store).await;
    let token = server.token("ns").await;
    let page = server.get(&token, &format!("{list}limit=1&cursor={cursor}")).await.expect(200);
    assert_eq!(jobs(&page).len(), 1, "the list continues: {}", page.text);
}

/// Guards against a reply of a hundred megabytes.
async fn a_page_of_large_bodies_ends_early_and_goes_on(store: Store) {
    let server = TestServer::on(store).await;
    let token = server.token("ns").await;
    let large = "x".repeat(1 << 20);
    for _ in 0..18 {
        server.put(&token, "/api/ns/q", &large).await.expect(201);
    }
    let (mut seen, mut cursor, mut most) = (0, String::new(), 0);
    loop {
        let page = server.get(&token, &format!("/api/ns/q/jobs?data=1&limit=100{cursor}")).await.expect(200);
        most = most.max(page.text.len());
        seen += jobs(&page).len();
        match page.json["cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
    }
    assert_eq!(seen, 18, "each once");
    assert!(most < 24 << 20, "an answer had {most} bytes");
}

async fn verbose_shows_what_a_job_is_doing_whichever_route_published_it(store: Store) {
    let server = TestServer::on(store).await;
    let token = server.token("ns").await;
    let id = server.put(&token, "/api/ns/q?tries=2&ttl=0", "x").await.expect(201).job_id();
    let path = format!("/api/ns/q/job/{id}");
    let plain = server.get(&token, &path).await.expect(200);
    assert_eq!(
        server.get(&token, &format!("{path}?verbose=0")).await.expect(200).json["ttl"],
        plain.json["ttl"]
    );
    assert_eq!(
        fields(&plain.text),
        ["attributes", "data", "elapsed_ms", "job_id", "namespace", "queue", "remain_tries", "ttl"],
        "as lmstfy shows it"
    );
    let shown = async || server.get(&token, &format!("{path}?verbose=1")).await.expect(200).json;
    let job = shown().await;
    assert_eq!((&job["state"], &job["remain_tries"]), (&json!("ready"), &json!(2)), "{job}");
    assert_eq!(
        (&job["key"], &job["reason"], &job["data"]),
        (&Value::Null, &Value::Null, &plain.json["data"])
    );
    server.get(&token, "/api/ns/q?ttr=600").await.expect(200);
    let job = shown().await;
    assert_eq!((&job["state"], &job["remain_tries"]), (&json!("running"), &json!(1)), "{job}");
    assert!(job["due_at"].is_string(), "when its ttr ends: {job}");
    server.get(&token, &format!("{path}?verbose=yes")).await.expect(400);
    for missing in ["/api/ns/q/job/x?verbose=1", "/api/ns/other/job/01ARZ3NDEKTSV4RRFFQ69G5FAV?verbose=1"] {
        assert_eq!(server.get(&token, missing).await.expect(404).says(), "job not found");
    }
}

/// Guards against the name of an unused queue that stays in lists and metrics.
async fn a_forgotten_queue_is_nowhere(store: Store) {
    let server = TestServer::on(store).await;
    let token = server.token("ns").await;
    for queue in ["old", "kept"] {
        server.put(&token, &format!("/api/ns/{queue}"), "x").await.expect(201);
        server.put(&token, &format!("/api/ns/{queue}?delay=600"), "later").await.expect(201);
    }
    let job = server.get(&token, "/api/ns/old?ttr=600").await.expect(200).job_id();
    send(server.api("DELETE", &format!("/api/ns/old/job/{job}"), &token)).await.expect(204);
    server.sampled().await;
    let told = async || {
        let queues = server.get(&token, "/api/ns").await.expect(200).text;
        let info = send(server.admin("GET", "/info")).await.expect(200).text;
        let sample = send(server.admin("GET", "/queues")).await.expect(200).text;
        let metrics = send(server.admin("GET", "/metrics")).await.expect(200).text;
        [("GET /api/ns", queues), ("/info", info), ("/queues", sample), ("/metrics", metrics)]
    };
    for (place, text) in told().await {
        assert!(text.contains("\"old\"") && text.contains("\"kept\""), "{place} has both:\n{text}");
    }
    let refused = send(server.api("DELETE", "/api/ns/old?forget=yes", &token)).await.expect(400);
    assert_eq!(refused.says(), "invalid forget");
    send(server.api("DELETE", "/api/ns/old?forget=1", &token)).await.expect(204);
    for (place, text) in told().await {
        assert!(
            !text.contains("\"old\"") && text.contains("\"kept\""),
            "{place} has only the other:\n{text}"
        );
    }
    let left = server.get(&token, "/api/ns/old/jobs?state=delayed").await.expect(200);
    assert_eq!(left.json["jobs"], json!([]), "its jobs are gone");
    server.put(&token, "/api/ns/old", "again").await.expect(201);
    assert!(server.get(&token, "/api/ns").await.text.contains("\"old\""), "a publish brings it back");
    // Through the admin port, and without forgetting.
    send(server.admin("DELETE", "/api/ns/old?forget=0")).await.expect(204);
    assert!(server.get(&token, "/api/ns").await.text.contains("\"old\""), "a destroy keeps the name");
    send(server.admin("DELETE", "/api/ns/old?forget=1")).await.expect(204);
    assert!(!server.get(&token, "/api/ns").await.text.contains("\"old\""), "it is forgotten");
}

/// Guards against a configured age of dead jobs that has no effect.
async fn dead_jobs_go_after_the_configured_age(store: Store) {
    let toml = store.toml().replace("[Pool.default]\n", "[Pool.default]\nDeadLetterTTL = 2\n");
    let server = TestServer::start(&toml, store).await;
    let token = server.token("ns").await;
    server.put(&token, "/api/ns/q?tries=1&ttl=0", "x").await.expect(201);
    let job = server.get(&token, "/api/ns/q?ttr=1").await.expect(200).job_id();
    // With a stall it is gone before its dead letter is looked at.
    let died = r#"dormouse_dead_jobs_total{namespace="ns",pool="default",queue="q"}"#;
    until("it is dead", async || Scrape::of(&server).await.value(died) == Some(1.0)).await;
    until("it is gone", async || server.size("/api/ns/q/deadletter").await == 0).await;
    server.get(&token, &format!("/api/ns/q/job/{job}")).await.expect(404);
    let dead = server.get(&token, "/api/ns/q/jobs?state=dead").await.expect(200);
    assert_eq!(dead.json["jobs"], json!([]));
}

on_each_store!(
    a_forgotten_queue_is_nowhere,
    dead_jobs_go_after_the_configured_age,
    the_queues_of_a_namespace_are_listed_with_what_is_in_them,
    the_jobs_of_a_queue_are_listed_by_state_in_the_order_in_which_they_come,
    a_list_in_pages_shows_each_job_once,
    a_cursor_is_good_for_its_own_list_and_tells_nothing,
    a_page_of_large_bodies_ends_early_and_goes_on,
    verbose_shows_what_a_job_is_doing_whichever_route_published_it,
);

on_a_cluster!(
    the_queues_of_a_namespace_are_listed_with_what_is_in_them,
    the_jobs_of_a_queue_are_listed_by_state_in_the_order_in_which_they_come,
    a_list_in_pages_shows_each_job_once,
    a_cursor_is_good_for_its_own_list_and_tells_nothing,
    a_page_of_large_bodies_ends_early_and_goes_on,
    verbose_shows_what_a_job_is_doing_whichever_route_published_it,
);
