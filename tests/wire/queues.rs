//! `GET /queues`, `GET /queues/history`, and the job routes of the admin port.

use std::time::Duration;

use crate::support::client::{Response, send};
use crate::support::redis_server::RedisServer;
use crate::support::servers::{Store, TestServer, on_each_store, redis_toml};
use crate::support::wait::until;
use serde_json::{Value, json};

/// Returns all queues, after a new sample.
async fn queues(server: &TestServer, query: &str) -> Value {
    server.sampled().await;
    send(server.admin("GET", &format!("/queues{query}"))).await.expect(200).json
}

fn names(queues: &Value) -> Vec<String> {
    let rows = queues["queues"].as_array().expect("a list");
    rows.iter().map(|row| format!("{}/{}", row["namespace"], row["queue"]).replace('"', "")).collect()
}

async fn ask(server: &TestServer, method: &str, path: &str) -> Response {
    send(server.admin(method, path)).await
}

async fn queues_are_shown_by_need(store: Store) {
    let server = TestServer::on(store).await;
    let (token, other) = (server.token("shop").await, server.token("team").await);
    for (token, path) in [
        (&token, "/api/shop/rest?delay=600"),
        (&token, "/api/shop/many"),
        (&token, "/api/shop/many"),
        (&token, "/api/shop/held"),
        (&token, "/api/shop/dies?tries=1"),
        (&other, "/api/team/many"),
    ] {
        server.put(token, path, "x").await.expect(201);
    }
    queues(&server, "").await;
    send(server.api("POST", "/api/shop/held/pause?for=600", &token)).await.expect(200);
    let job = server.get(&token, "/api/shop/dies?ttr=60&receipt=1").await.expect(200);
    let receipt = job.json["receipt"].as_str().expect("a receipt");
    let bury = format!("/api/shop/dies/job/{}/bury?receipt={receipt}", job.job_id());
    send(server.api("POST", &bury, &token)).await.expect(200);
    let waits = crate::common::poll(&server, &token, "/api/shop/empty?timeout=30");
    server.put(&token, "/api/shop/empty2", "x").await.expect(201);
    server.until_parked(1).await;

    let all = queues(&server, "").await;
    let expected =
        ["shop/dies", "shop/held", "shop/many", "shop/empty2", "team/many", "shop/rest"].map(str::to_owned);
    assert_eq!(names(&all), expected, "by need, then by ready jobs, then by name: {all}");
    for key in ["server", "sampled_at", "since", "pools", "sums", "queues", "cursor"] {
        assert!(all.get(key).is_some(), "{key} in {all}");
    }
    let dies = &all["queues"][0];
    assert_eq!(
        (&dies["pool"], &dies["need"], &dies["dead"]),
        (&json!("default"), &json!("dying"), &json!(1))
    );
    for (field, least) in [("in", 0.01), ("out", 0.01), ("died", 0.01)] {
        assert!(dies[field].as_f64() > Some(least), "{field} of {dies}");
    }
    assert!(dies["last_handed_out"].as_str().is_some_and(|at| at.ends_with('Z')), "{dies}");
    let held = &all["queues"][1];
    assert_eq!((&held["need"], &held["paused"], &held["ready"]), (&json!("paused"), &json!(true), &json!(1)));
    assert!(held["paused_until"].is_string() && held["oldest_ready_age"].as_f64() < Some(60.0), "{held}");
    let rest = &all["queues"][5];
    assert_eq!((&rest["need"], &rest["ready"], &rest["push"]), (&Value::Null, &json!(0), &Value::Null));
    assert_eq!((&rest["delayed"], &rest["running"]), (&json!(1), &json!(0)), "{rest}");
    assert_eq!(all["pools"][0]["trouble"], Value::Null, "{all}");

    for (query, expected) in [
        ("?namespace=team", &["team/many"][..]),
        ("?q=p/man", &["shop/many"]),
        ("?q=many&sort=name", &["shop/many", "team/many"]),
        ("?need=paused", &["shop/held"]),
        ("?need=any", &["shop/dies", "shop/held"]),
        ("?need=late", &[]),
        ("?sort=dead&limit=1", &["shop/dies"]),
        ("?pool=default&sort=name&limit=2&need=&q=", &["shop/dies", "shop/empty2"]),
    ] {
        assert_eq!(names(&queues(&server, query).await), expected, "{query}");
    }
    for sort in ["need", "name", "ready", "delayed", "running", "dead", "age", "in", "out"] {
        let (mut seen, mut cursor) = (Vec::new(), String::new());
        for _ in 0..9 {
            let page =
                ask(&server, "GET", &format!("/queues?sort={sort}&limit=2{cursor}")).await.expect(200).json;
            seen.extend(names(&page));
            let Some(next) = page["cursor"].as_str() else { break };
            cursor = format!("&cursor={next}");
        }
        seen.sort();
        seen.dedup();
        assert_eq!(seen.len(), 6, "each once, by {sort}: {seen:?}");
    }
    waits.abort();
}

/// Guards against a page that omits waiting consumers, or counts one twice.
async fn waiting_consumers_are_counted(store: Store) {
    let server = TestServer::on(store).await;
    let token = server.token("ns").await;
    for queue in ["a", "b"] {
        server.put(&token, &format!("/api/ns/{queue}"), "x").await.expect(201);
        server.get(&token, &format!("/api/ns/{queue}")).await.expect(200);
    }
    let polls = [
        crate::common::poll(&server, &token, "/api/ns/a?timeout=30"),
        crate::common::poll(&server, &token, "/api/ns/a,b?timeout=30"),
    ];
    server.until_parked(2).await;
    let waiting = |all: &Value| [0, 1].map(|n| all["queues"][n]["waiting"].clone());
    assert_eq!(waiting(&queues(&server, "?sort=name").await), [json!(2), json!(1)]);
    polls.iter().for_each(tokio::task::JoinHandle::abort);
    server.until_parked(0).await;
    assert_eq!(waiting(&queues(&server, "?sort=name").await), [json!(0), json!(0)]);
}

async fn history_is_kept_of_queues_and_sums(store: Store) {
    let server = TestServer::on(store).await;
    let token = server.token("ns").await;
    queues(&server, "").await;
    for queue in ["a", "a", "b"] {
        server.put(&token, &format!("/api/ns/{queue}"), "x").await.expect(201);
    }
    queues(&server, "").await;
    let show =
        async |query: &str| ask(&server, "GET", &format!("/queues/history{query}")).await.expect(200).json;
    let sum = |of: &Value| -> f64 { of.as_array().expect("a list").iter().filter_map(Value::as_f64).sum() };
    let greatest = |of: &Value| of.as_array().expect("a list").iter().filter_map(Value::as_u64).max();
    for (query, published) in
        [("?namespace=ns&queue=a", 2.0), ("?namespace=ns", 3.0), ("", 3.0), ("?pool=default", 3.0)]
    {
        for (range, step, steps) in [("hour", 10.0, 360), ("day", 60.0, 1440)] {
            let query = format!("{}{}range={range}", query, if query.is_empty() { "?" } else { "&" });
            let of = show(&query).await;
            assert_eq!(
                (of["step"].as_f64(), of["ready"].as_array().map(Vec::len)),
                (Some(step), Some(steps))
            );
            let jobs = sum(&of["in"]) * step;
            assert!((jobs - published).abs() < 0.1, "{query}: {jobs} were published in place of {published}");
            assert_eq!(greatest(&of["ready"]), Some(published as u64), "{query}");
            assert_eq!(of["ready"].as_array().expect("a list").first(), Some(&Value::Null), "an hour ago");
            assert!(of["since"].is_string() && of["from"].is_string(), "{query}");
        }
    }
    let unknown = show("?namespace=ns&queue=nobody").await;
    assert_eq!((&unknown["since"], greatest(&unknown["ready"])), (&Value::Null, None));
    for (path, names) in [
        ("/queues?pool=nobody", "pool"),
        ("/queues?namespace=a%20b", "namespace"),
        ("/queues?need=money", "need"),
        ("/queues?sort=size", "sort"),
        ("/queues?limit=0", "limit"),
        ("/queues?cursor=x", "cursor"),
        ("/queues/history?range=week", "range"),
        ("/queues/history?queue=q", "namespace"),
        ("/queues/history?namespace=ns&queue=a%20b", "queue"),
    ] {
        let refused = ask(&server, "GET", path).await.expect(400);
        assert!(refused.says().contains(names), "{path}: {refused:?}");
    }
}

/// Actions of an operator without a token.
async fn jobs_are_worked_on_by_account(store: Store) {
    let server = TestServer::on(store).await;
    let q = "/api/shop/mail";
    let publish = async |query: &str| {
        let request = server.admin("POST", &format!("{q}/jobs{query}")).body("letter");
        send(request).await.expect(201)
    };
    let first = publish("?key=k").await;
    publish("?delay=600").await;
    assert_eq!(ask(&server, "GET", &format!("{q}/size")).await.expect(200).json["size"], json!(1));
    assert_eq!(ask(&server, "GET", &format!("{q}/peek")).await.expect(200).data(), b"letter");
    let listed = ask(&server, "GET", &format!("{q}/jobs?state=ready&data=1")).await.expect(200).json;
    assert_eq!(listed["jobs"][0]["job_id"], first.json["job_id"], "{listed}");
    let by_key = ask(&server, "GET", &format!("{q}/key/k?verbose=1")).await.expect(200).json;
    assert_eq!(by_key["state"], json!("ready"), "{by_key}");
    assert_eq!(ask(&server, "GET", "/api/shop").await.expect(200).json["queues"][0]["queue"], json!("mail"));
    ask(&server, "POST", &format!("{q}/pause")).await.expect(200);
    ask(&server, "POST", &format!("{q}/resume")).await.expect(200);
    let token = server.token("shop").await;
    let job = server.get(&token, &format!("{q}?receipt=1&ttr=60")).await.expect(200);
    let receipt = job.json["receipt"].as_str().expect("a receipt");
    let bury = format!("{q}/job/{}/bury?receipt={receipt}", job.job_id());
    send(server.api("POST", &bury, &token)).await.expect(200);
    let dead = ask(&server, "GET", &format!("{q}/deadletter")).await.expect(200).json;
    assert_eq!(dead["deadletter_size"], json!(1), "{dead}");
    ask(&server, "POST", &format!("{q}/job/{}/respawn", job.job_id())).await.expect(200);
    ask(&server, "DELETE", &format!("{q}/job/{}", job.job_id())).await.expect(204);
    ask(&server, "GET", &format!("{q}/job/{}", job.job_id())).await.expect(404);
    publish("").await;
    ask(&server, "DELETE", q).await.expect(204);
    assert_eq!(ask(&server, "GET", &format!("{q}/size")).await.expect(200).json["size"], json!(0));
    ask(&server, "GET", &format!("{q}/size?pool=nobody")).await.expect(404);
    ask(&server, "GET", "/api/shop/_schedules").await.expect(200);
    let schedule = server.admin("PUT", "/api/shop/_schedules/s").body(r#"{"queue":"mail","every":3600}"#);
    send(schedule).await.expect(201);
    ask(&server, "POST", "/api/shop/_schedules/s/pause").await.expect(200);
    ask(&server, "DELETE", "/api/shop/_schedules/s").await.expect(204);
}

on_each_store!(
    queues_are_shown_by_need,
    waiting_consumers_are_counted,
    history_is_kept_of_queues_and_sums,
    jobs_are_worked_on_by_account,
);

/// Guards against bypassing tokens: consuming is possible only on the public port, which requires a token.
#[tokio::test]
async fn nothing_is_handed_out_by_account() {
    let store = Store::disk();
    let toml = format!("{}[Accounts]\noperator = \"secret\"\n", store.toml());
    let server = TestServer::start(&toml, store).await;
    let by = |method: &str, path: &str| server.admin(method, path).basic_auth("operator", Some("secret"));
    let token = send(by("POST", "/token/ns?description=x")).await.expect(201).json["token"].clone();
    let token = token.as_str().expect("a token");
    server.put(token, "/api/ns/q", "x").await.expect(201);
    for (method, path) in [
        ("GET", "/queues"),
        ("GET", "/queues/history"),
        ("GET", "/api/ns"),
        ("GET", "/api/ns/q/jobs"),
        ("GET", "/api/ns/q/size"),
        ("DELETE", "/api/ns/q"),
        ("GET", "/api/ns/_schedules"),
    ] {
        send(server.admin(method, path)).await.expect(401);
        send(server.admin(method, &format!("{path}?token={token}"))).await.expect(401);
    }
    send(by("GET", "/api/ns/q/jobs")).await.expect(200);
    for (method, path) in [
        ("GET", "/api/ns/q"),
        ("PUT", "/api/ns/q"),
        ("POST", "/api/ns/q/ack"),
        ("POST", "/api/ns/q/jobs/batch"),
        ("POST", "/api/ns/q/job/01ARZ3NDEKTSV4RRFFQ69G5FAV/touch"),
        ("POST", "/api/ns/q/job/01ARZ3NDEKTSV4RRFFQ69G5FAV/release"),
        ("POST", "/api/ns/q/job/01ARZ3NDEKTSV4RRFFQ69G5FAV/bury"),
    ] {
        send(by(method, path)).await.expect(404);
        send(server.api(method, path, "").basic_auth("operator", Some("secret"))).await.expect(401);
    }
    assert_eq!(server.size("/api/ns/q").await, 1, "nobody took it");
}

/// Guards against an operator's publish that is refused by a token's limit, or counts towards it.
#[tokio::test]
async fn a_limit_is_no_accounts() {
    let server = TestServer::on_disk().await;
    let token = server.token("ns").await;
    server.limit(&token, r#"{"read":1,"write":1,"interval":600}"#).await;
    for _ in 0..3 {
        send(server.admin("POST", "/api/ns/q/jobs").body("x")).await.expect(201);
    }
    server.put(&token, "/api/ns/q", "x").await.expect(201);
    server.put(&token, "/api/ns/q", "x").await.expect(429);
}

/// Guards against a blank page during an outage, when it is needed most.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_a_store_is_away_the_last_figures_are_shown() {
    let mut redis = RedisServer::start();
    let server = TestServer::start(&redis_toml(&redis), ()).await;
    let token = server.token("ns").await;
    server.put(&token, "/api/ns/q", "x").await.expect(201);
    let before = queues(&server, "").await;
    assert_eq!(names(&before), ["ns/q"]);
    redis.kill();
    let away = queues(&server, "").await;
    assert_eq!((names(&away), &away["sampled_at"]), (names(&before), &before["sampled_at"]), "{away}");
    let pool = &away["pools"][0];
    assert!(pool["trouble"].is_string() && pool["trouble_since"].is_string(), "{pool}");
    let again = queues(&server, "").await;
    assert_eq!(again["pools"][0]["trouble_since"], pool["trouble_since"], "since the first failure");
    redis.restart();
    until("the store answers again", async || queues(&server, "").await["pools"][0]["trouble"].is_null())
        .await;
}

/// Guards against recording a history that is disabled.
#[tokio::test]
async fn without_memory_there_is_no_history() {
    let store = Store::disk();
    let server = TestServer::start(&format!("HistoryMemory = 0\n{}", store.toml()), store).await;
    let token = server.token("ns").await;
    server.put(&token, "/api/ns/q", "x").await.expect(201);
    let all = queues(&server, "").await;
    assert!(all["queues"][0]["in"].as_f64() > Some(0.0), "rates are known: {all}");
    let of = ask(&server, "GET", "/queues/history?namespace=ns&queue=q").await.expect(200).json;
    assert_eq!(of["since"], Value::Null, "{of}");
    tokio::time::sleep(Duration::from_millis(1)).await;
}

/// Guards against a few failures hidden among thousands, and against reasons of another queue.
async fn dead_jobs_are_told_by_their_reason(store: Store) {
    let server = TestServer::on(store).await;
    let token = server.token("ns").await;
    let bury = async |queue: &str, reason: Option<&str>| {
        server.put(&token, &format!("/api/ns/{queue}?tries=1"), "x").await.expect(201);
        let job = server.get(&token, &format!("/api/ns/{queue}?ttr=60&receipt=1")).await.expect(200);
        let receipt = job.json["receipt"].as_str().expect("a receipt");
        let path = format!("/api/ns/{queue}/job/{}/bury?receipt={receipt}", job.job_id());
        let request = server.api("POST", &path, &token);
        send(request.body(reason.unwrap_or_default().to_owned())).await.expect(200);
    };
    bury("old", None).await;
    queues(&server, "").await;
    for reason in ["full", "gone", "full", "<b>"] {
        bury("mail", Some(reason)).await;
    }
    queues(&server, "").await;
    let dead = ask(&server, "GET", "/dead?limit=1").await.expect(200).json;
    let first = &dead["queues"][0];
    assert_eq!((names(&dead), &first["dead"]), (vec!["ns/mail".to_owned()], &json!(4)), "the newest: {dead}");
    assert!(first["last_died"].is_string() && first["died_in_hour"] == json!(4), "{dead}");
    let cursor = dead["cursor"].as_str().expect("there is another");
    let next = ask(&server, "GET", &format!("/dead?limit=1&cursor={cursor}")).await.expect(200).json;
    assert_eq!((names(&next), &next["cursor"]), (vec!["ns/old".to_owned()], &Value::Null), "{next}");
    assert_eq!(names(&ask(&server, "GET", "/dead?namespace=other").await.expect(200).json), [""; 0]);
    let why = ask(&server, "GET", "/dead/reasons?namespace=ns&queue=mail").await.expect(200).json;
    let expected = json!({"looked_at": 4, "reasons": [
        {"reason": "full", "count": 2}, {"reason": "<b>", "count": 1}, {"reason": "gone", "count": 1},
    ]});
    assert_eq!(why, expected);
    let none = ask(&server, "GET", "/dead/reasons?namespace=ns&queue=nobody").await.expect(200).json;
    assert_eq!(none, json!({"looked_at": 0, "reasons": []}));
    for bad in ["", "?namespace=ns", "?namespace=ns&queue=a%20b", "?namespace=ns&queue=q&pool=nobody"] {
        ask(&server, "GET", &format!("/dead/reasons{bad}")).await.expect(400);
    }
    ask(&server, "GET", "/dead?cursor=x").await.expect(400);
}

on_each_store!(dead_jobs_are_told_by_their_reason);

/// Guards against twelve failures that cannot be found among thousands, and against a search that repeats or omits jobs
/// between pages.
async fn jobs_are_found_by_what_is_in_them(store: Store) {
    let server = TestServer::on(store).await;
    let token = server.token("ns").await;
    let batch = |from: usize| -> String {
        let jobs: Vec<String> = (from..from + 64).map(|n| format!("body-{n:03}-{}", n % 3)).collect();
        serde_json::to_string(&jobs).expect("text")
    };
    for n in 0..4 {
        server.put(&token, "/api/ns/q/bulk", &batch(n * 64)).await.expect(201);
    }
    let large = format!("{}needle{}", "x".repeat(900_000), "y".repeat(90_000));
    server.put(&token, "/api/ns/q", &large).await.expect(201);
    let keyed = server.api("POST", "/api/ns/q/jobs?key=needle-7", &token).body("z");
    send(keyed).await.expect(201);
    let mut seen = Vec::new();
    let (mut cursor, mut pages) = (String::new(), 0);
    loop {
        let path = format!("/api/ns/q/jobs?contains=-1%22&limit=20&data=1{cursor}");
        let page = ask(&server, "GET", &path).await.expect(200).json;
        let jobs = page["jobs"].as_array().expect("a list");
        assert!(jobs.len() <= 20 && page["looked_at"].as_u64().is_some(), "{page}");
        seen.extend(jobs.iter().map(|job| job["job_id"].to_string()));
        pages += 1;
        let Some(next) = page["cursor"].as_str() else { break };
        cursor = format!("&cursor={next}");
    }
    let found = seen.len();
    seen.sort();
    seen.dedup();
    // A bulk publishes each element as its JSON text.
    assert_eq!((found, seen.len()), (85, 85), "each match once, over {pages} pages");
    let found = ask(&server, "GET", "/api/ns/q/jobs?contains=needle").await.expect(200).json;
    let sizes: Vec<_> = found["jobs"].as_array().expect("a list").iter().map(|job| &job["size"]).collect();
    assert_eq!(sizes, [&json!(large.len()), &json!(1)], "in the body of the one, in the key of the other");
    assert!(found["jobs"][0].get("data").is_none(), "bodies are not sent unless they are asked for");
    assert_eq!(
        (&found["looked_at"], &found["cursor"]),
        (&json!(258), &Value::Null),
        "{}",
        found["looked_at"]
    );
    let none = ask(&server, "GET", "/api/ns/q/jobs?contains=nowhere&reason=").await.expect(200).json;
    assert_eq!((&none["jobs"], &none["looked_at"]), (&json!([]), &json!(258)));
    let public = send(server.api("GET", "/api/ns/q/jobs?contains=needle", &token)).await;
    public.expect(400);
    ask(&server, "GET", &format!("/api/ns/q/jobs?contains={}", "x".repeat(1025))).await.expect(400);
}

on_each_store!(jobs_are_found_by_what_is_in_them);
