//! Conversations about schedules.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::client::{Response, send};
use crate::support::redis_server::RedisServer;
use crate::support::servers::{Store, TestServer, on_each_store, redis_toml};
use crate::support::wait::{TIMEOUT, until};

const BASE: &str = "/api/ns/_schedules";

async fn put(server: &TestServer, token: &str, path: &str, setting: &Value) -> Response {
    send(server.api("PUT", &format!("{BASE}{path}"), token).body(setting.to_string())).await
}

async fn get(server: &TestServer, token: &str, path: &str) -> Response {
    server.get(token, &format!("{BASE}{path}")).await
}

async fn post(server: &TestServer, token: &str, path: &str) -> Response {
    send(server.api("POST", &format!("{BASE}{path}"), token)).await
}

/// A PUT with one more header.
async fn put_if(
    server: &TestServer,
    token: &str,
    path: &str,
    header: (&str, &str),
    setting: &Value,
) -> Response {
    let request = server.api("PUT", &format!("{BASE}{path}"), token).header(header.0, header.1);
    send(request.body(setting.to_string())).await
}

fn daily() -> Value {
    json!({ "queue": "q", "cron": "30 2 * * *", "zone": "Europe/Berlin", "text": "{}" })
}

/// The names that a list shows.
fn names(list: &Value) -> Vec<&str> {
    let all = list["schedules"].as_array().expect("a list");
    all.iter().map(|one| one["name"].as_str().expect("a name")).collect()
}

async fn a_schedule_is_set_shown_changed_and_deleted(store: Store) {
    let server = TestServer::on(store).await;
    let token = server.token("ns").await;
    assert_eq!(get(&server, &token, "/nightly").await.expect(404).says(), "no such schedule");
    let created = put(&server, &token, "/nightly", &daily()).await.expect(201);
    assert_eq!(created.json["result"], "created", "{}", created.text);
    assert_eq!(created.header("etag"), "\"1\"", "the first revision");
    let shown = get(&server, &token, "/nightly").await.expect(200);
    assert_eq!(shown.header("etag"), "\"1\"");
    let expected = json!({
        "name": "nightly", "queue": "q", "cron": "30 2 * * *", "every": null, "zone": "Europe/Berlin", "start": null,
        "end": null, "text": "{}", "attributes": {}, "tries": 1, "ttl": 86400, "overlap": "allow", "key": null,
        "deadline": 60, "catch_up": "last", "jitter": 0, "paused": false, "paused_until": null, "state": "on",
        "revision": 1, "mode": "clock", "counts": {}, "occurrences": [],
    });
    for (field, value) in expected.as_object().expect("an object") {
        assert_eq!(shown.json[field], *value, "{field} of {}", shown.text);
    }
    let next = shown.json["next"].as_array().expect("a list");
    assert_eq!(next.len(), 5, "{}", shown.text);
    assert!(next[0]["local"].as_str().is_some_and(|local| local.contains("T02:30:00.000+0")), "{}", next[0]);
    assert!(created.json.get("occurrences").is_none() && created.json["next"] == shown.json["next"]);

    // A shown schedule, and the reply to a PUT, can be put back.
    let same = put(&server, &token, "/nightly", &created.json).await.expect(200);
    assert_eq!(same.json["result"], "unchanged", "{}", same.text);
    let same = put(&server, &token, "/nightly", &shown.json).await.expect(200);
    assert_eq!((&same.json["result"], same.header("etag")), (&json!("unchanged"), "\"1\""));
    let mut other = daily();
    other["cron"] = json!("45 2 * * *");
    let dry = put(&server, &token, "/nightly?dry_run=1", &other).await.expect(200);
    assert_eq!((&dry.json["result"], &dry.json["cron"]), (&json!("changed"), &json!("45 2 * * *")));
    assert_eq!(get(&server, &token, "/nightly").await.expect(200).json, shown.json, "nothing has changed");
    let changed = put(&server, &token, "/nightly", &other).await.expect(200);
    assert_eq!((&changed.json["result"], &changed.json["revision"]), (&json!("changed"), &json!(2)));

    send(server.api("DELETE", &format!("{BASE}/nightly"), &token)).await.expect(204);
    for verb in ["/nightly/pause", "/nightly/resume", "/nightly/run"] {
        assert_eq!(post(&server, &token, verb).await.expect(404).says(), "no such schedule", "{verb}");
    }
    let gone = send(server.api("DELETE", &format!("{BASE}/nightly"), &token)).await.expect(404);
    assert_eq!(gone.says(), "no such schedule");
    let dry = put(&server, &token, "/nightly?dry_run=1", &daily()).await.expect(201);
    assert_eq!((&dry.json["revision"], dry.header("etag")), (&json!(3), "\"3\""), "as the PUT does");
    let again = put(&server, &token, "/nightly", &daily()).await.expect(201);
    assert_eq!(again.json["revision"], 3, "a revision is never used twice");
}

async fn changes_can_be_conditional(store: Store) {
    let server = TestServer::on(store).await;
    let token = server.token("ns").await;
    let none = put_if(&server, &token, "/s", ("If-Match", "\"1\""), &daily()).await.expect(412);
    assert_eq!(none.json, json!({ "error": "the schedule has changed", "revision": null }));
    put_if(&server, &token, "/s", ("If-None-Match", "*"), &daily()).await.expect(201);
    let there = put_if(&server, &token, "/s", ("If-None-Match", "*"), &daily()).await.expect(412);
    assert_eq!(there.json["revision"], 1);
    let mut other = daily();
    other["text"] = json!("other");
    for tag in ["\"2\"", "W/\"1\"", "\"x\"", "\"2\", \"3\""] {
        let refused = put_if(&server, &token, "/s", ("If-Match", tag), &other).await.expect(412);
        assert_eq!(refused.json["revision"], 1, "{tag}");
    }
    put_if(&server, &token, "/s", ("If-Match", "1"), &other).await.expect(400);
    put_if(&server, &token, "/s", ("If-Match", "\"9\", \"1\""), &other).await.expect(200);
    other["revision"] = json!(1);
    put(&server, &token, "/s", &other).await.expect(412);
    other["revision"] = json!(2);
    assert_eq!(put(&server, &token, "/s", &other).await.expect(200).json["result"], "unchanged");
    let delete =
        |tag: &'static str| send(server.api("DELETE", &format!("{BASE}/s"), &token).header("If-Match", tag));
    assert_eq!(delete("\"1\"").await.expect(412).json["revision"], 2);
    delete("\"2\"").await.expect(204);
}

async fn what_is_wrong_is_named(store: Store) {
    let server = TestServer::on(store).await;
    let token = server.token("ns").await;
    for (setting, field, part) in [
        (json!({ "queue": "q", "cron": "* 25 * * *" }), json!("cron"), json!("hour")),
        (json!({ "queue": "q" }), Value::Null, Value::Null),
        (json!({ "queue": "q", "every": 0.5 }), json!("every"), Value::Null),
        (json!({ "queue": "q", "every": 5, "zone": "Mars/Olympus" }), json!("zone"), Value::Null),
        (json!({ "queue": "q", "every": 5, "color": 1 }), json!("color"), Value::Null),
    ] {
        let refused = put(&server, &token, "/s", &setting).await.expect(400);
        assert!(!refused.says().is_empty(), "{setting}");
        if !field.is_null() {
            assert_eq!(
                (&refused.json["field"], &refused.json["part"]),
                (&field, &part),
                "{setting}: {}",
                refused.text
            );
        }
    }
    let refused = send(server.api("PUT", &format!("{BASE}/s"), &token).body("{")).await.expect(400);
    assert!(refused.says().contains("JSON"), "{}", refused.text);
    for name in ["_a", ".a", "a%20b", &"n".repeat(101)] {
        let refused = put(&server, &token, &format!("/{name}"), &daily()).await.expect(400);
        assert_eq!(refused.json["field"], "name", "{name}: {}", refused.text);
    }
    for name in ["bulk", "peek", "size", "job", "jobs", "a.b", "-"] {
        put(&server, &token, &format!("/{name}"), &daily()).await.expect(201);
        get(&server, &token, &format!("/{name}")).await.expect(200);
    }
    get(&server, "", "/s").await.expect(401);
    put(&server, "", "/s", &daily()).await.expect(401);
    get(&server, &token, "?limit=0").await.expect(400);
    get(&server, &token, "?state=moved").await.expect(400);
    post(&server, &token, "/peek/pause?for=0").await.expect(400);
    post(&server, &token, "/peek/run?at=2999-01-01T00:00:00Z").await.expect(400);
    // Errors about parameters and headers name them like fields, with the given and the expected value.
    let named = |refused: Response, field: &str, error: &str| {
        let refused = refused.expect(400);
        assert_eq!(refused.json, json!({ "error": error, "field": field, "part": null }), "{}", refused.text);
    };
    let lists = [
        ("?limit=0", "limit", r#"limit cannot be "0": write 1 to 100"#),
        ("?limit=1e2", "limit", r#"limit cannot be "1e2": write 1 to 100"#),
        ("?state=moved", "state", r#"state cannot be "moved": write one of on, paused, ended, broken"#),
        (
            "?queue=a.b",
            "queue",
            r#"queue cannot be "a.b": write 1 to 255 of letters, digits, - and _, not _ first"#,
        ),
        ("?data=yes", "data", r#"data cannot be "yes": write 0 or 1"#),
        (
            "?cursor=x",
            "cursor",
            r#"cursor cannot be "x": write the cursor of the previous page, or leave it out"#,
        ),
    ];
    for (query, field, error) in lists {
        named(get(&server, &token, query).await, field, error);
    }
    for given in ["0", "-1", "soon"] {
        let error = format!("for cannot be {given:?}: write seconds above 0, with three decimals at most");
        named(post(&server, &token, &format!("/peek/pause?for={given}")).await, "for", &error);
    }
    let error = r#""2999-01-01T00:00:00Z" is in the future: write a past instant, or leave it out"#;
    named(post(&server, &token, "/peek/run?at=2999-01-01T00:00:00Z").await, "at", error);
    let flag = |field: &str| format!("{field} cannot be \"2\": write 0 or 1");
    named(put(&server, &token, "/s?dry_run=2", &daily()).await, "dry_run", &flag("dry_run"));
    named(put(&server, &token, "?prune=2", &json!({ "schedules": [] })).await, "prune", &flag("prune"));
    let error = r#"If-Match cannot be "7": write revisions in quotes, as an ETag has them, or *"#;
    named(put_if(&server, &token, "/s", ("If-Match", "7"), &daily()).await, "If-Match", error);
    let error = r#"If-None-Match cannot be "\"7\"": write *"#;
    named(put_if(&server, &token, "/s", ("If-None-Match", "\"7\""), &daily()).await, "If-None-Match", error);
    // A list of queues is a consume, as ever.
    server.get(&token, "/api/ns/_schedules,q").await.expect(404);
}

async fn occurrences_come_as_jobs(store: Store) {
    let server = TestServer::on(store).await;
    let token = server.token("ns").await;
    let setting =
        json!({ "queue": "q", "every": 1, "text": "tick", "attributes": { "color": "red" }, "tries": 3 });
    let created = put(&server, &token, "/s", &setting).await.expect(201);
    let due = created.json["next"][0]["due"].as_str().expect("an instant").to_owned();
    let job = server.get(&token, "/api/ns/q?timeout=20").await.expect(200);
    assert_eq!(job.data(), b"tick");
    let attributes = &job.json["attributes"];
    assert_eq!((&attributes["schedule"], &attributes["color"]), (&json!("s"), &json!("red")), "{}", job.text);
    assert_eq!(attributes["scheduled-at"], json!(due), "{}", job.text);
    assert!(attributes.get("caught-up").is_none(), "{}", job.text);
    let second = server.get(&token, "/api/ns/q?timeout=20").await.expect(200);
    assert_ne!(second.json["attributes"]["scheduled-at"], json!(due), "another one");
    // An occurrence is recorded after its job is stored.
    until("both are recorded", async || {
        get(&server, &token, "/s").await.expect(200).json["counts"]["placed"].as_u64() >= Some(2)
    })
    .await;
    let shown = get(&server, &token, "/s").await.expect(200);
    let occurrences = shown.json["occurrences"].as_array().expect("a list");
    let first = occurrences.last().expect("it was placed");
    assert_eq!(
        (&first["outcome"], &first["due"], &first["why"]),
        (&json!("placed"), &json!(due), &Value::Null)
    );
    assert_eq!(first["job_id"], json!(job.job_id()), "{}", shown.text);
    assert!(first["placed_at"].as_str() >= Some(&due), "not before its time: {first}");
    assert_eq!(shown.json["mode"], "every");
    let anchor = shown.json["anchor"].as_str().expect("an anchor");
    assert_eq!(anchor, created.json["created_at"], "it counts from when it was set");

    let paused = post(&server, &token, "/s/pause").await.expect(200);
    assert_eq!(paused.text, r#"{"msg":"paused","until":null}"#);
    let shown = get(&server, &token, "/s").await.expect(200);
    assert_eq!((&shown.json["state"], &shown.json["next"]), (&json!("paused"), &json!([])), "{}", shown.text);
    while server.get(&token, "/api/ns/q").await.status == 200 {}
    server.get(&token, "/api/ns/q?timeout=2").await.expect(404);
    // A PUT without `paused` does not end a pause.
    let mut other = setting.clone();
    other["text"] = json!("tock");
    assert_eq!(put(&server, &token, "/s", &other).await.expect(200).json["state"], "paused");
    // The store's clock may be a little behind.
    let resumed = jiff::Timestamp::now().as_millisecond() - 100;
    assert_eq!(post(&server, &token, "/s/resume").await.expect(200).text, r#"{"msg":"resumed"}"#);
    let mut job = server.get(&token, "/api/ns/q?timeout=20").await.expect(200);
    // The next occurrence is due a second later, so there may be more on a machine that stalls.
    let until = post(&server, &token, "/s/pause?for=600").await.expect(200);
    while job.status == 200 {
        assert_eq!(job.data(), b"tock");
        let due = &job.json["attributes"]["scheduled-at"];
        let due: jiff::Timestamp = due.as_str().expect("an instant").parse().expect("RFC 3339");
        assert!(due.as_millisecond() >= resumed, "nothing of the pause is owed: {}", job.text);
        job = server.get(&token, "/api/ns/q").await;
    }
    let shown = get(&server, &token, "/s").await.expect(200);
    assert_eq!(shown.json["paused_until"], until.json["until"], "{}", shown.text);
}

async fn a_job_can_be_asked_for(store: Store) {
    let server = TestServer::on(store).await;
    let token = server.token("ns").await;
    let mut setting = daily();
    setting["overlap"] = json!("skip");
    setting["paused"] = json!(true);
    put(&server, &token, "/s", &setting).await.expect(201);
    let ran = post(&server, &token, "/s/run?at=2026-01-02T03:04:05Z").await.expect(201);
    assert_eq!(ran.json["msg"], "placed", "{}", ran.text);
    let lives = post(&server, &token, "/s/run").await.expect(409);
    assert_eq!(lives.json["job_id"], ran.json["job_id"], "{}", lives.text);
    let job = server.get(&token, "/api/ns/q").await.expect(200);
    assert_eq!(job.json["job_id"], ran.json["job_id"]);
    assert_eq!(job.json["attributes"]["scheduled-at"], "2026-01-02T03:04:05.000Z", "{}", job.text);
    send(server.api("DELETE", &format!("/api/ns/q/job/{}", job.job_id()), &token)).await.expect(204);
    let once = || send(server.api("POST", &format!("{BASE}/s/run"), &token).header("Idempotency-Key", "k"));
    let first = once().await.expect(201);
    let second = once().await.expect(201);
    assert_eq!(second.text, first.text, "the same answer");
    assert_eq!(second.header("idempotency-replayed"), "true");
    let shown = get(&server, &token, "/s").await.expect(200);
    assert_eq!(
        (&shown.json["state"], &shown.json["counts"]),
        (&json!("paused"), &json!({ "run": 2 })),
        "{}",
        shown.text
    );
    assert_eq!(shown.json["occurrences"][0]["outcome"], "run");
    assert_eq!(shown.json["revision"], 1, "nothing was set");
}

async fn schedules_are_listed(store: Store) {
    let server = TestServer::on(store).await;
    let token = server.token("ns").await;
    for (name, queue) in [("b", "q"), ("a-1", "q"), ("a-2", "r"), ("c", "r")] {
        let mut setting = daily();
        setting["queue"] = json!(queue);
        setting["paused"] = json!(name == "c");
        put(&server, &token, &format!("/{name}"), &setting).await.expect(201);
    }
    let all = get(&server, &token, "").await.expect(200);
    assert_eq!(names(&all.json), ["a-1", "a-2", "b", "c"]);
    assert_eq!(all.json["cursor"], Value::Null);
    let one = &all.json["schedules"][0];
    assert_eq!((one["next"].as_array().map(Vec::len), &one["last"]), (Some(1), &Value::Null), "{one}");
    assert!(one.get("text").is_none() && one.get("occurrences").is_none(), "{one}");
    for (query, expected) in [
        ("?prefix=a", vec!["a-1", "a-2"]),
        ("?queue=r", vec!["a-2", "c"]),
        ("?state=paused", vec!["c"]),
        ("?state=on&queue=q&data=1", vec!["a-1", "b"]),
        ("?prefix=x", vec![]),
    ] {
        assert_eq!(names(&get(&server, &token, query).await.expect(200).json), expected, "{query}");
    }
    let first = get(&server, &token, "?limit=3").await.expect(200);
    assert_eq!(names(&first.json), ["a-1", "a-2", "b"]);
    let cursor = first.json["cursor"].as_str().expect("there is more");
    let rest = get(&server, &token, &format!("?limit=3&cursor={cursor}")).await.expect(200);
    assert_eq!((names(&rest.json), &rest.json["cursor"]), (vec!["c"], &Value::Null));
    get(&server, &token, &format!("?prefix=a&cursor={cursor}")).await.expect(400);
    get(&server, &token, "?cursor=x").await.expect(400);
}

/// Guards against a page of large bodies that exceeds body memory, and against one that omits some.
async fn a_page_of_large_bodies_is_bounded(store: Store) {
    let server = TestServer::on(store).await;
    let token = server.token("ns").await;
    // Each byte takes six in JSON.
    let text = "\u{1}".repeat(64 << 10);
    let setting = json!({ "queue": "q", "every": 86400, "text": text });
    for n in 0..40 {
        put(&server, &token, &format!("/s{n:02}"), &setting).await.expect(201);
    }
    let (mut seen, mut query) = (Vec::new(), "?data=1".to_owned());
    loop {
        let page = get(&server, &token, &query).await.expect(200);
        assert!(page.text.len() <= 8 << 20, "a page of {} bytes", page.text.len());
        seen.extend(names(&page.json).iter().map(|name| (*name).to_owned()));
        let Some(cursor) = page.json["cursor"].as_str() else { break };
        query = format!("?data=1&cursor={cursor}");
    }
    let all: Vec<String> = (0..40).map(|n| format!("s{n:02}")).collect();
    assert_eq!(seen, all, "each once");
}

/// A list is a set that can be put back unchanged.
async fn what_is_listed_can_be_put_back(store: Store) {
    let server = TestServer::on(store).await;
    let token = server.token("ns").await;
    let settings = [
        json!({ "queue": "q", "every": 1.5, "data": "AP8=", "start": "2026-01-01T00:00:00.5Z", "end": 4_000_000_000_u64 }),
        json!({ "queue": "q", "cron": "@daily", "zone": "Asia/Kathmandu", "attributes": { "a": "b" }, "ttl": 0.25 }),
        json!({ "queue": "r", "cron": "0 30 2 ? * FRIL", "overlap": "skip", "key": "own", "jitter": 0.5, "tries": 7 }),
        json!({ "queue": "r", "every": 60, "overlap": "replace", "catch_up": "all", "deadline": 1.001, "paused": true }),
        json!({ "queue": "r", "every": 60, "end": "2020-01-01T00:00:00Z" }),
    ];
    for (n, setting) in settings.iter().enumerate() {
        put(&server, &token, &format!("/s{n}"), setting).await.expect(201);
    }
    post(&server, &token, "/s0/pause?for=3600").await.expect(200);
    let listed = get(&server, &token, "?data=1").await.expect(200);
    let again = put(&server, &token, "?prune=1", &listed.json).await.expect(200);
    let all = json!(["s0", "s1", "s2", "s3", "s4"]);
    let expected = json!({ "created": [], "changed": [], "unchanged": all, "removed": [], "dry_run": false });
    assert_eq!(again.json, expected, "{}", listed.text);
    let mut after = get(&server, &token, "?data=1").await.expect(200).json;
    let mut before = listed.json;
    for list in [&mut after, &mut before] {
        for one in list["schedules"].as_array_mut().expect("a list") {
            one["next"] = Value::Null; // time passes
        }
    }
    assert_eq!(after, before, "nothing has changed");
}

async fn the_whole_set_is_put(store: Store) {
    let server = TestServer::on(store).await;
    let token = server.token("ns").await;
    let of = |name: &str, minute: u32| json!({ "name": name, "queue": "q", "cron": format!("{minute} 2 * * *"), "text": "x" });
    let set = |all: Vec<Value>| json!({ "schedules": all });
    let done = put(&server, &token, "", &set(vec![of("b", 1), of("a", 1), of("other", 1)])).await.expect(200);
    let expected = json!({ "created": ["b", "a", "other"], "changed": [], "unchanged": [], "removed": [], "dry_run": false });
    assert_eq!(done.json, expected);
    let second = set(vec![of("b", 2), of("c", 1), of("other", 1)]);
    let dry = put(&server, &token, "?prune=1&dry_run=1", &second).await.expect(200);
    let expected = json!({
        "created": ["c"], "changed": ["b"], "unchanged": ["other"], "removed": ["a"], "dry_run": true
    });
    assert_eq!(dry.json, expected);
    assert_eq!(names(&get(&server, &token, "").await.json), ["a", "b", "other"], "nothing has changed");
    let done = put(&server, &token, "?prune=1", &second).await.expect(200);
    assert_eq!((&done.json["removed"], &done.json["dry_run"]), (&json!(["a"]), &json!(false)));
    // What a list shows is a set.
    let list = get(&server, &token, "?data=1").await.expect(200);
    let done = put(&server, &token, "?prune=1", &list.json).await.expect(200);
    assert_eq!(done.json["unchanged"], json!(["b", "c", "other"]), "{}", done.text);
    let done = put(&server, &token, "?prune=1&prefix=o", &set(vec![])).await.expect(200);
    assert_eq!(done.json["removed"], json!(["other"]), "only the names with the prefix");

    for (all, index, name, field) in [
        (vec![of("new", 1), of("b", 99)], 1, json!("b"), json!("cron")),
        (vec![of("new", 1), of("new", 1)], 1, json!("new"), json!("name")),
        (vec![of("_x", 1)], 0, json!("_x"), json!("name")),
        (vec![json!({ "queue": "q", "every": 1 })], 0, Value::Null, json!("name")),
    ] {
        let refused = put(&server, &token, "?prune=1", &set(all)).await.expect(400);
        let told = (&refused.json["index"], &refused.json["name"], &refused.json["field"]);
        assert_eq!(told, (&json!(index), &name, &field), "{}", refused.text);
    }
    // Unknown large fields are not even parsed.
    let mut large = of("new", 1);
    large["counts"] = json!(vec![0; 300_000]);
    let refused = put(&server, &token, "", &set(vec![of("b", 2), large])).await.expect(400);
    assert_eq!(refused.json["index"], json!(1), "{}", refused.text);
    assert!(refused.says().contains("at most"), "{}", refused.text);
    let refused = put(&server, &token, "", &set(vec![json!(0); 10_007])).await.expect(400);
    assert_eq!(refused.says(), "10007 schedules are too many for one set: 10000 at most");
    let unknown = json!({ "schedules": [], "x".repeat(10_000): 1 });
    let refused = put(&server, &token, "", &unknown).await.expect(400);
    assert!(refused.text.len() < 1000, "the error about a long name has {} bytes", refused.text.len());
    put(&server, &token, "?prefix=x", &set(vec![of("b", 2)])).await.expect(400);
    put(&server, &token, "", &json!([])).await.expect(400);
    put(&server, &token, "", &json!({ "schedules": 1 })).await.expect(400);
    put(&server, &token, "", &json!({ "schedules": [], "x": 1 })).await.expect(400);
    let mut stale = of("b", 3);
    stale["revision"] = json!(1);
    let refused = put(&server, &token, "", &set(vec![of("new", 1), stale])).await.expect(412);
    assert_eq!((&refused.json["index"], &refused.json["name"]), (&json!(1), &json!("b")), "{}", refused.text);
    assert_eq!(names(&get(&server, &token, "").await.json), ["b", "c"], "nothing has changed");
}

async fn schedules_are_bounded(store: Store) {
    let toml = format!("MaxSchedulesPerNamespace = 2\nMaxSchedules = 3\n{}", store.toml());
    let server = TestServer::start(&toml, store).await;
    let (token, other) = (server.token("ns").await, server.token("other").await);
    put(&server, &token, "/a", &daily()).await.expect(201);
    put(&server, &token, "/b", &daily()).await.expect(201);
    assert_eq!(put(&server, &token, "/c", &daily()).await.expect(409).says(), "too many schedules");
    assert_eq!(put(&server, &token, "/c?dry_run=1", &daily()).await.expect(409).says(), "too many schedules");
    put(&server, &token, "/b", &daily()).await.expect(200);
    let of = |name: &str| json!({ "name": name, "queue": "q", "every": 60 });
    let set = json!({ "schedules": [of("c"), of("d")] });
    put(&server, &token, "", &set).await.expect(409);
    put(&server, &token, "?prune=1&dry_run=1", &set).await.expect(200);
    put(&server, &token, "?prune=1", &set).await.expect(200);
    let put_other = |name: &str| {
        let path = format!("/api/other/_schedules/{name}");
        send(server.api("PUT", &path, &other).body(daily().to_string()))
    };
    put_other("a").await.expect(201);
    assert_eq!(put_other("b").await.expect(409).says(), "too many schedules");
    // The pool is full: a set with new schedules is rejected before anything changes.
    let set =
        json!({ "schedules": [of("c"), of("d")] }).to_string().replace("60", "61").replace("\"d\"", "\"e\"");
    let set = send(server.api("PUT", "/api/ns/_schedules", &token).body(set)).await;
    set.expect(409);
    assert_eq!(get(&server, &token, "/c").await.expect(200).json["every"], 60, "nothing has changed");
}

async fn the_metrics_tell_of_schedules(store: Store) {
    let server = TestServer::on(store).await;
    let token = server.token("ns").await;
    put(&server, &token, "/daily", &daily()).await.expect(201);
    put(&server, &token, "/s", &json!({ "queue": "q", "every": 1 })).await.expect(201);
    server.get(&token, "/api/ns/q?timeout=20").await.expect(200);
    let began = Instant::now();
    loop {
        let text = send(server.admin("GET", "/metrics")).await.expect(200).text;
        let lines = [
            r#"dormouse_schedules{pool="default",state="on"} 2"#,
            r#"dormouse_schedule_occurrences_total{outcome="placed",pool="default"} "#,
            r#"dormouse_schedule_lateness_seconds_count{pool="default"} "#,
            r#"dormouse_schedule_oldest_owed_seconds{pool="default"} 0"#,
            r#"dormouse_schedule_zone_database{version="20"#,
        ];
        let missing: Vec<_> = lines.iter().filter(|line| !text.contains(**line)).collect();
        if missing.is_empty() {
            return;
        }
        assert!(began.elapsed() < Duration::from_secs(10), "missing {missing:?} in\n{text}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Guards against two servers that both place, and against one that does not see schedules stored by the other.
#[tokio::test(flavor = "multi_thread")]
async fn of_two_servers_each_places_what_the_other_has_stored_and_once() {
    let redis = RedisServer::start();
    let [one, two] = TestServer::two_on(&redis).await;
    let token = one.token("ns").await;
    let start = Instant::now();
    put(&one, &token, "/s", &json!({ "queue": "q", "every": 1, "text": "x" })).await.expect(201);
    drop(one);
    // The other one places.
    let mut seen = Vec::new();
    while seen.len() < 3 {
        let job = two.get(&token, "/api/ns/q?timeout=20").await.expect(200);
        seen.push(job.json["attributes"]["scheduled-at"].as_str().expect("an instant").to_owned());
    }
    let mut distinct = seen.clone();
    distinct.dedup();
    assert_eq!(distinct, seen, "each once, after {:?}", start.elapsed());
}

/// Guards against a schedule written by a newer server that makes the list fail.
#[tokio::test(flavor = "multi_thread")]
async fn a_schedule_that_cannot_be_read_is_shown_as_broken() {
    let redis = RedisServer::start();
    let [one, _two] = TestServer::two_on(&redis).await;
    let token = one.token("ns").await;
    for name in ["/a", "/s", "/z"] {
        put(&one, &token, name, &daily()).await.expect(201);
    }
    let client = redis::Client::open(format!("redis://{}", redis.addr())).expect("an address");
    let mut client = client.get_multiplexed_async_connection().await.expect("it is there");
    let (key, field) = ("dormouse/settings", "schedules/default/ns/s");
    let stored: String =
        redis::cmd("HGET").arg(key).arg(field).query_async(&mut client).await.expect("a hash");
    assert!(stored.contains("{\"set\":{"), "{stored}");
    let newer = stored.replace("{\"set\":{", "{\"set\":{\"newest\":1,");
    let set = redis::cmd("HSET").arg(key).arg(field).arg(newer).to_owned();
    set.query_async::<i64>(&mut client).await.expect("a hash");
    let list = get(&one, &token, "").await.expect(200);
    assert_eq!(names(&list.json), ["a", "s", "z"], "{}", list.text);
    let shown = get(&one, &token, "/s").await.expect(200);
    for of in [&list.json["schedules"][1], &shown.json] {
        assert_eq!((&of["state"], &of["revision"]), (&json!("broken"), &json!(1)), "{of}");
        assert_eq!(of["queue"], "q", "{of}");
        assert!(of["why"].as_str().is_some_and(|why| why.contains("ns/s")), "{of}");
    }
    let broken = get(&one, &token, "?state=broken").await.expect(200);
    assert_eq!(names(&broken.json), ["s"], "{}", broken.text);
    post(&one, &token, "/s/pause").await.expect(500);
    // It can be fixed and put back.
    let (mut mended, daily) = (shown.json, daily());
    let fields = daily.as_object().expect("an object").clone();
    mended.as_object_mut().expect("an object").extend(fields);
    let set = put_if(&one, &token, "/s", ("If-Match", "\"1\""), &mended).await.expect(200);
    assert_eq!((&set.json["result"], &set.json["revision"]), (&json!("changed"), &json!(2)));
    let delete = send(one.api("DELETE", &format!("{BASE}/s"), &token).header("If-Match", "\"2\"")).await;
    delete.expect(204);
}

/// Guards against a full Redis that loses occurrences still in time once there is space, and that hides why others were
/// missed.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_full_redis_did_not_take_is_missed_and_says_why() {
    let redis = RedisServer::start();
    let [one, _two] = TestServer::two_on(&redis).await;
    let token = one.token("ns").await;
    // Nothing is due before the Redis is full.
    let start = jiff::Timestamp::now().as_second() + 5;
    let every = json!({ "queue": "q", "every": 2, "start": start, "catch_up": "none", "text": "x" });
    let setting = |deadline: u32| {
        let mut setting = every.clone();
        setting["deadline"] = json!(deadline);
        setting
    };
    put(&one, &token, "/short", &setting(1)).await.expect(201);
    put(&one, &token, "/long", &setting(60)).await.expect(201);
    let client = redis::Client::open(format!("redis://{}", redis.addr())).expect("an address");
    let mut client = client.get_multiplexed_async_connection().await.expect("it is there");
    let mut memory = async |most: u32| {
        let set = redis::cmd("CONFIG").arg("SET").arg("maxmemory").arg(most).to_owned();
        set.query_async::<()>(&mut client).await.expect("CONFIG SET");
    };
    memory(1).await;
    let missed = async || get(&one, &token, "/short").await.json["counts"]["missed"].as_u64() >= Some(2);
    until("two occurrences are missed", missed).await;
    let [short, long] = [get(&one, &token, "/short").await, get(&one, &token, "/long").await];
    assert_eq!(
        long.json["occurrences"],
        json!([]),
        "nothing is placed, and nothing is missed before its deadline"
    );
    // A full Redis takes what replaces a record.
    let told = short.json["occurrences"].as_array().expect("a list");
    assert!(!told.is_empty() && told.iter().all(|one| one["outcome"] == "missed"), "{}", short.text);
    memory(0).await;
    let began = Instant::now();
    loop {
        let [short, long] = [get(&one, &token, "/short").await, get(&one, &token, "/long").await];
        let placed = long.json["counts"]["placed"].as_u64().unwrap_or(0);
        if let (Some(missed), 3..) = (short.json["counts"]["missed"].as_u64(), placed) {
            let all = short.json["occurrences"].as_array().expect("a list");
            let mut missed_ones = all.iter().filter(|one| one["outcome"] == "missed");
            let says_why = missed_ones.any(|one| one["why"].as_str().is_some_and(|why| why.contains("OOM")));
            assert!(says_why, "{}", short.text);
            assert!(missed >= 1 && long.json["counts"].get("missed").is_none(), "{}", long.text);
            return;
        }
        assert!(began.elapsed() < TIMEOUT, "{}\n{}", short.text, long.text);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

on_each_store! {
    a_schedule_is_set_shown_changed_and_deleted,
    changes_can_be_conditional,
    what_is_wrong_is_named,
    occurrences_come_as_jobs,
    a_job_can_be_asked_for,
    schedules_are_listed,
    a_page_of_large_bodies_is_bounded,
    what_is_listed_can_be_put_back,
    the_whole_set_is_put,
    schedules_are_bounded,
    the_metrics_tell_of_schedules,
}

/// Deletes these keys, as a failover does whose new master has not got them, and closes all connections.
fn lose(redis: &RedisServer, lost: impl Fn(&[u8]) -> bool) {
    let mut connection = redis.connection();
    let keys: Vec<Vec<u8>> = redis::cmd("KEYS").arg("*").query(&mut connection).expect("keys");
    for key in keys.iter().filter(|key| lost(key)) {
        let () = redis::cmd("DEL").arg(key).query(&mut connection).expect("it is deleted");
    }
    let kill = ["KILL", "TYPE", "normal", "SKIPME", "yes"];
    let () = redis::cmd("CLIENT").arg(&kill).query(&mut connection).expect("connections are closed");
}

/// Guards against occurrences whose record survives a failover while their job does not: the two are sent over different
/// connections, and may be on different servers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_job_of_an_occurrence_that_a_failover_lost_is_published_again() {
    let redis = RedisServer::start();
    let server = TestServer::start(&redis_toml(&redis), ()).await;
    let token = server.token("ns").await;
    let is_of = |key: &[u8], queue: &str| {
        ["q", "j", "dormouse/once"].iter().any(|kind| {
            let (list, of_jobs) = (format!("{kind}/ns/{queue}"), format!("{kind}/ns/{queue}/"));
            key == list.as_bytes() || key.starts_with(of_jobs.as_bytes())
        })
    };
    let job = async |queue: &str| {
        let peek = send(server.api("GET", &format!("/api/ns/{queue}/peek"), &token)).await;
        (peek.status == 200).then(|| peek.job_id())
    };
    let set = async |queue: &str| {
        let start = jiff::Timestamp::now().as_second() + 6;
        let setting = json!({ "queue": queue, "every": 86400, "start": start, "ttl": 0 });
        put(&server, &token, &format!("/{queue}"), &setting).await.expect(201);
        until("it is placed", async || {
            let shown = get(&server, &token, &format!("/{queue}")).await.expect(200);
            shown.json["counts"]["placed"] == 1
        })
        .await;
        job(queue).await.expect("a job")
    };
    let first = set("q").await;
    lose(&redis, |key| is_of(key, "q"));
    until("the job is there again", async || job("q").await.as_deref() == Some(&*first)).await;
    send(server.api("DELETE", &format!("/api/ns/q/job/{first}"), &token)).await.expect(204);

    // The next failover loses another job. What is acked does not come again.
    let second = set("z").await;
    lose(&redis, |key| is_of(key, "z"));
    until("the second job is there again", async || job("z").await.as_deref() == Some(&*second)).await;
    assert_eq!(job("q").await, None, "the first job was acked");
}
