//! Conversations with the admin port about push settings.

use crate::pushed::{LOCAL, Pushed, verifies};
use crate::receiver::{Answer, Receiver, nobody};
use crate::support::client::send;
use crate::support::process::Process;
use crate::support::redis_server::RedisServer;
use crate::support::servers::{Store, TestServer, on_each_store, redis_toml};
use crate::support::wait::until;
use serde_json::{Value, json};
use tempfile::TempDir;

async fn a_setting_is_answered_with_what_is_in_force(store: Store) {
    let pushed = Pushed::on(store).await;
    pushed.admin("GET", "/push/ns/q", "").await.expect(404);
    let set = pushed.set("q", json!({"url": "https://shop.example/jobs"})).await;
    for (field, value) in [
        ("url", json!("https://shop.example/jobs")),
        ("method", json!("POST")),
        ("timeout", json!(15)),
        ("concurrency", json!(10)),
        ("rate", json!(0)),
        ("per", json!(1)),
        ("retry", json!([5, 30, 300, 1800, 7200])),
        ("format", json!("raw")),
    ] {
        assert_eq!(set[field], value, "the default of {field}: {set}");
    }
    for absent in ["headers", "ok_when", "on_dead"] {
        assert!(set.get(absent).is_none_or(Value::is_null), "{absent} is absent: {set}");
    }
    let secret = set["secret"].as_str().unwrap_or_else(|| panic!("a secret the first time: {set}"));
    let bytes = secret.strip_prefix("whsec_").map(crate::support::client::decoded).unwrap_or_default();
    assert_eq!(bytes.len(), 32, "whsec_ and base64 of 32 bytes, not {secret}");

    let all = json!({
        "url": "http://127.0.0.1:9/x?y=1", "method": "PUT", "headers": {"Authorization": "Bearer hidden-value"},
        "timeout": 300, "concurrency": 1000, "rate": 7, "per": 60, "retry": [1],
        "ok_when": {"pointer": "/a~1b", "equals": [1, {"c": null}]}, "format": "cloudevents", "on_dead": "graves",
    });
    let again = pushed.set("q", all.clone()).await;
    assert!(again.get("secret").is_none(), "the secret is shown once: {again}");
    let shown = pushed.shown("q").await;
    assert!(
        !shown.to_string().contains("hidden-value") && !again.to_string().contains("hidden-value"),
        "{shown}"
    );
    assert!(!shown.to_string().contains("whsec_"), "{shown}");
    for field in
        ["url", "method", "timeout", "concurrency", "rate", "per", "retry", "ok_when", "format", "on_dead"]
    {
        assert_eq!(shown[field], all[field], "{field} of {shown}");
    }
    assert!(
        shown.to_string().to_lowercase().contains("authorization"),
        "the names of headers are shown: {shown}"
    );
    assert_eq!(pushed.state("q").await, "on");

    // Omitted fields of a PUT return to their defaults.
    let third = pushed.set("q", json!({"url": "https://shop.example/jobs"})).await;
    assert_eq!((&third["timeout"], &third["method"]), (&json!(15), &json!("POST")), "{third}");
    assert!(third.get("on_dead").is_none_or(Value::is_null) && third.get("secret").is_none(), "{third}");

    pushed.admin("DELETE", "/push/ns/q", "").await.expect(204);
    pushed.admin("GET", "/push/ns/q", "").await.expect(404);
    let new = pushed.set("q", json!({"url": "https://shop.example/jobs"})).await;
    assert_ne!(new["secret"].as_str(), Some(secret), "a delete forgets the secret");
    assert!(new["secret"].is_string(), "{new}");
}

async fn a_bad_setting_is_named_and_changes_nothing(store: Store) {
    let pushed = Pushed::on(store).await;
    let url = "https://shop.example/jobs";
    pushed.set("q", json!({"url": url, "timeout": 77})).await;
    let with = |field: &str, value: Value| {
        let mut setting = json!({"url": url});
        setting[field] = value;
        setting.to_string()
    };
    let mut bad = vec![
        ("url".to_owned(), json!({"timeout": 5}).to_string()),
        ("nope".to_owned(), with("nope", json!(1))),
    ];
    for (field, values) in [
        (
            "url",
            json!([
                "",
                "shop.example",
                "/jobs",
                "ftp://h/",
                "file:///etc/passwd",
                "http://",
                "http://user:pass@h/",
                1,
                null
            ]),
        ),
        ("method", json!(["GET", "DELETE", "post", 1])),
        ("timeout", json!([0, 301, -1, "15", 1e9])),
        ("concurrency", json!([0, 1001, -1, "10", 2.5])),
        ("rate", json!([-1, "x", 1.5])),
        ("per", json!([0, -1, "x"])),
        ("retry", json!([[], "5", [-1], ["5"], 5])),
        (
            "ok_when",
            json!([1, {}, {"pointer": "/a"}, {"equals": 1}, {"pointer": "a", "equals": 1},
            {"pointer": "/a", "equals": 1, "x": 1}]),
        ),
        ("format", json!(["json", "CloudEvents", 1])),
        ("on_dead", json!(["", "a b", "q,r", 5, "x".repeat(256)])),
        ("headers", json!([1, ["a"], {"a": 1}, {"a b": "x"}, {"": "x"}, {"a": "x\ny"}])),
    ] {
        for value in values.as_array().into_iter().flatten() {
            bad.push((field.to_owned(), with(field, value.clone())));
        }
    }
    for name in [
        "webhook-id",
        "Webhook-Signature",
        "webhook-anything",
        "Dormouse-Queue",
        "dormouse-x",
        "Job-Attr-x",
        "Host",
        "content-length",
        "Transfer-Encoding",
        "CONNECTION",
    ] {
        bad.push(("headers".to_owned(), with("headers", json!({name: "x"}))));
    }
    // Settings that look valid, but cannot be called, stored or read back.
    bad.push(("url".to_owned(), with("url", json!("http://{host}/"))));
    bad.push(("url".to_owned(), with("url", json!(format!("http://h/{}", "\u{44f}".repeat(700))))));
    let deep = format!(
        r#"{{"url":"{url}","ok_when":{{"pointer":"/a","equals":{}{}}}}}"#,
        "[".repeat(125),
        "]".repeat(125)
    );
    bad.push(("ok_when".to_owned(), deep));
    for (field, body) in bad {
        let refused = pushed.admin("PUT", "/push/ns/q", &body).await;
        assert_eq!(refused.status, 400, "{body}: {refused:?}");
        assert!(refused.says().contains(&field), "{body} should be told of {field}: {refused:?}");
    }
    for body in ["", "x", "[]", "{}", "null", "{\"url\":\"https://h/\"} x"] {
        pushed.admin("PUT", "/push/ns/q", body).await.expect(400);
    }
    for (path, status) in [
        ("/push/n.s/q", 400),
        ("/push/ns/q.r", 400),
        ("/push/ns/_q", 400),
        ("/push/ns/q?pool=nowhere", 400),
        ("/push/ns", 404),
        ("/push/ns/q/nope", 404),
    ] {
        pushed.admin("PUT", path, json!({"url": url})).await.expect(status);
    }
    assert_eq!(pushed.shown("q").await["timeout"], json!(77), "a refusal changed it");
    for verb in ["pause", "resume", "test", "secret"] {
        pushed.admin("POST", &format!("/push/ns/none/{verb}"), "").await.expect(404);
    }
    pushed.admin("PUT", "/push/ns/q", "x".repeat(2 << 20)).await.expect(413);
}

async fn a_test_says_what_came_back(store: Store) {
    let pushed = Pushed::on(store).await;
    let receiver = Receiver::start().await;
    receiver.answer(|_| Answer::with(418, &[("X-Kind", "teapot")], "short and stout"));
    let set = pushed.push_to(&receiver, "q", json!({"timeout": 30})).await;
    let told = pushed.admin("POST", "/push/ns/q/test", "").await.expect(200);
    assert_eq!(told.json["status"], json!(418), "{}", told.text);
    assert!(told.text.contains("short and stout") && told.json["milliseconds"].is_number(), "{}", told.text);
    let arrived = receiver.arrived();
    assert_eq!((arrived.len(), arrived[0].method.as_str()), (1, "POST"), "one request, now");
    verifies(set["secret"].as_str().expect("a secret"), &arrived[0]).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(pushed.state("q").await, "on", "a test changes no state");
    receiver.answer(|_| Answer::status(410));
    pushed.admin("POST", "/push/ns/q/test", "").await.expect(200);
    assert_eq!(pushed.state("q").await, "on", "not even by a 410");
    receiver.answer(|_| Answer::Hang);
    pushed.push_to(&receiver, "q", json!({"timeout": 1})).await;
    let told = pushed.admin("POST", "/push/ns/q/test", "").await.expect(200);
    assert!(told.json["status"].is_null(), "nothing came back: {}", told.text);
    assert_eq!(pushed.size("q").await, 0);
}

/// Both secrets sign for a day, so that receivers can be updated in time.
async fn a_new_secret_signs_beside_the_old_one(store: Store) {
    let pushed = Pushed::on(store).await;
    let receiver = Receiver::start().await;
    let set = pushed.push_to(&receiver, "q", json!({})).await;
    let old = set["secret"].as_str().expect("a secret").to_owned();
    let new = pushed.admin("POST", "/push/ns/q/secret", "").await.expect(200);
    let new = new.json["secret"].as_str().unwrap_or_else(|| panic!("a secret: {}", new.text)).to_owned();
    assert_ne!(old, new);
    until("both sign", async || {
        let id = pushed.publish("q", "", "x").await;
        pushed.until_gone("q", &id).await;
        receiver.arrived().last().is_some_and(|request| verifies(&new, request).is_ok())
    })
    .await;
    let arrived = receiver.arrived();
    let last = arrived.last().expect("a request");
    verifies(&old, last).unwrap_or_else(|e| panic!("the old secret still verifies: {e}"));
    assert_eq!(last.header("webhook-signature").split(' ').count(), 2, "{last:?}");
    // A PUT keeps both.
    pushed.push_to(&receiver, "q", json!({"timeout": 20})).await;
    let id = pushed.publish("q", "", "x").await;
    pushed.until_gone("q", &id).await;
    let arrived = receiver.arrived();
    for secret in [&old, &new] {
        verifies(secret, arrived.last().expect("a request")).unwrap_or_else(|e| panic!("{e}"));
    }
}

async fn what_was_set_is_there_after_a_restart(store: Store) {
    let receiver = Receiver::start().await;
    let toml = format!("{LOCAL}{}", store.toml());
    let server = TestServer::start(&toml, ()).await;
    let put = |queue: &str, body: Value| {
        let request = server.admin("PUT", &format!("/push/ns/{queue}")).body(body.to_string());
        async { send(request).await.expect(200).json }
    };
    let set = put("q", json!({"url": receiver.url("/q"), "timeout": 42, "headers": {"X-Key": "kept"}})).await;
    put("held", json!({"url": receiver.url("/held")})).await;
    send(server.admin("POST", "/push/ns/held/pause")).await.expect(200);
    server.stop().await;

    let pushed = Pushed::by(TestServer::start(&toml, store).await).await;
    assert_eq!(pushed.shown("q").await["timeout"], json!(42));
    assert_eq!(pushed.state("held").await, "paused");
    pushed.publish("held", "", "x").await;
    let id = pushed.publish("q", "", "x").await;
    pushed.until_gone("q", &id).await;
    let arrived = receiver.arrived();
    assert_eq!(arrived.iter().map(|request| request.target.as_str()).collect::<Vec<_>>(), ["/q"]);
    assert_eq!(arrived[0].header("x-key"), "kept");
    verifies(set["secret"].as_str().expect("a secret"), &arrived[0])
        .unwrap_or_else(|e| panic!("the same secret: {e}"));
}

async fn metrics_tell_what_push_does(store: Store) {
    let pushed = Pushed::on(store).await;
    let receiver = Receiver::start().await;
    receiver.answer(|request| Answer::status(if request.text() == "good" { 200 } else { 500 }));
    pushed.push_to(&receiver, "q", json!({"retry": [600]})).await;
    let good = pushed.publish("q", "", "good").await;
    let bad = pushed.publish("q", "tries=2", "bad").await;
    pushed.until_gone("q", &good).await;
    pushed.until_job("q", &bad, "delayed").await;
    for series in [
        r#"dormouse_push_attempts_total{namespace="ns",outcome="delivered",pool="default",queue="q"} 1"#,
        r#"dormouse_push_attempts_total{namespace="ns",outcome="failed",pool="default",queue="q"} 1"#,
        r#"dormouse_push_seconds_count{namespace="ns",pool="default",queue="q"} 2"#,
        r#"dormouse_push_in_flight{namespace="ns",pool="default",queue="q"} 0"#,
        r#"dormouse_push_breaker_open{namespace="ns",pool="default",queue="q"} 0"#,
    ] {
        let mut text = String::new();
        let told = async || {
            text = pushed.metrics().await;
            text.lines().any(|line| line == series)
        };
        until(series, told).await;
    }
}

/// A job published after the response to a change is sent by the new setting, or not at all.
async fn a_change_applies_here_before_its_response(store: Store) {
    let pushed = Pushed::on(store).await;
    let receiver = Receiver::start().await;
    for _ in 0..10 {
        pushed.set("q", json!({"url": format!("http://{}/", nobody()), "retry": [0]})).await;
        pushed.push_to(&receiver, "q", json!({})).await;
        let id = pushed.publish("q", "tries=1", "the only try").await;
        pushed.until_gone("q", &id).await;
        let received = receiver.count();
        for (method, path, status) in [
            ("POST", "/push/ns/q/pause", 200),
            ("POST", "/push/ns/q/resume", 200),
            ("DELETE", "/push/ns/q", 204),
        ] {
            pushed.admin(method, path, "").await.expect(status);
            if path.ends_with("resume") {
                continue;
            }
            let id = pushed.publish("q", "", "by hand").await;
            let by_hand = pushed.api("GET", "/api/ns/q?timeout=5&ttr=600", "").await.expect(200);
            pushed.api("DELETE", &format!("/api/ns/q/job/{id}"), "").await.expect(204);
            assert_eq!((by_hand.job_id(), receiver.count()), (id, received), "after {method} {path}");
        }
    }
}

on_each_store!(
    a_change_applies_here_before_its_response,
    a_setting_is_answered_with_what_is_in_force,
    a_bad_setting_is_named_and_changes_nothing,
    a_test_says_what_came_back,
    a_new_secret_signs_beside_the_old_one,
    what_was_set_is_there_after_a_restart,
    metrics_tell_what_push_does,
);

/// A setting and its deletion reach the other server within a second.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_other_server_sees_a_change_within_a_second() {
    let redis = RedisServer::start();
    let toml = format!("{LOCAL}{}", redis_toml(&redis));
    let (a, b) = (TestServer::start(&toml, ()).await, TestServer::start(&toml, ()).await);
    let (a, b) = (Pushed::by(a).await, Pushed::by(b).await);
    let receiver = Receiver::start().await;
    a.push_to(&receiver, "q", json!({"timeout": 33})).await;
    let second = tokio::time::Instant::now() + std::time::Duration::from_secs(1);
    // A single queue is always read from the store.
    assert_eq!(b.shown("q").await["timeout"], json!(33));
    a.admin("POST", "/push/ns/q/pause", "").await.expect(200);
    tokio::time::sleep_until(second + std::time::Duration::from_secs(1)).await; // the contract: within a second
    let id = b.publish("q", "", "x").await;
    let by_hand = b.api("GET", "/api/ns/q?timeout=5&ttr=600", "").await.expect(200);
    assert_eq!((by_hand.job_id(), receiver.count()), (id, 0), "neither server pushes");
    b.admin("POST", "/push/ns/q/resume", "").await.expect(200);
    let id = a.publish("q", "", "y").await;
    a.until_gone("q", &id).await;
    b.admin("DELETE", "/push/ns/q", "").await.expect(204);
    a.admin("GET", "/push/ns/q", "").await.expect(404);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_routes_ask_for_the_account_and_refuse_web_pages() {
    let store = Store::disk();
    let toml = format!("[Accounts]\noperator = \"a long password\"\n{}", store.toml());
    let server = TestServer::start(&toml, store).await;
    let body = r#"{"url":"https://shop.example/"}"#;
    for (method, path) in [
        ("PUT", "/push/ns/q"),
        ("GET", "/push/ns/q"),
        ("DELETE", "/push/ns/q"),
        ("POST", "/push/ns/q/pause"),
        ("POST", "/push/ns/q/resume"),
        ("POST", "/push/ns/q/test"),
        ("POST", "/push/ns/q/secret"),
    ] {
        send(server.admin(method, path).body(body)).await.expect(401);
    }
    let with = |method, path| server.admin(method, path).basic_auth("operator", Some("a long password"));
    send(with("PUT", "/push/ns/q").body(body)).await.expect(200);
    let page = with("PUT", "/push/ns/q").header("Sec-Fetch-Site", "cross-site").body(body);
    send(page).await.expect(403);
    // Not on the public port.
    send(server.api("GET", "/push/ns/q", "")).await.expect(404);
}

/// No log contains the secret, a header's value or a body, for any response.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_log_shows_a_secret() {
    let dir = TempDir::new().expect("a temporary directory");
    let config = format!("{LOCAL}LogLevel = \"trace\"\n[Pool.default]\nPath = \"jobs\"\n");
    std::fs::write(dir.path().join("c.toml"), config).expect("a file");
    let mut process = Process::start(dir.path(), &["-c", "c.toml"], &[]);
    let pushed = Pushed::process(&mut process).await;
    let receiver = Receiver::start().await;
    receiver.answer_in_turn([Answer::with(500, &[], "an answer"), Answer::Reset, Answer::status(200)]);
    let fields = json!({"headers": {"Authorization": "Bearer a-header-value"}, "retry": [0]});
    let set = pushed.push_to(&receiver, "q", fields).await;
    let secret = set["secret"].as_str().expect("a secret").trim_start_matches("whsec_").to_owned();
    let id = pushed.publish("q", "tries=3", "the-body-of-a-job").await;
    pushed.until_gone("q", &id).await;
    pushed.admin("PUT", "/push/ns/q", r#"{"url":"https://user:a-password@h/","x":1}"#).await.expect(400);
    process.signal("TERM");
    let ended = process.ended();
    assert!(ended.status.success(), "it stops");
    for hidden in [secret.as_str(), "a-header-value", "the-body-of-a-job", "a-password"] {
        let line = ended.said.lines().find(|line| line.contains(hidden));
        assert_eq!(line, None, "{hidden:?} is in the log");
    }
}

/// As documented: one log line per change of state, and none per attempt.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_of_state_is_one_line() {
    let dir = TempDir::new().expect("a temporary directory");
    std::fs::write(dir.path().join("c.toml"), format!("{LOCAL}[Pool.default]\nPath = \"jobs\"\n"))
        .expect("a file");
    let mut process = Process::start(dir.path(), &["-c", "c.toml"], &[]);
    let pushed = Pushed::process(&mut process).await;
    let receiver = Receiver::start().await;
    pushed.push_to(&receiver, "q", json!({"concurrency": 1, "retry": [0]})).await;
    receiver.answer(|_| Answer::status(500));
    let id = pushed.publish("q", "tries=5", "x").await;
    pushed.until_job("q", &id, "dead").await;
    receiver.answer(|_| Answer::status(410));
    pushed.publish("q", "", "x").await;
    pushed.until_state("q", "off").await;
    process.signal("TERM");
    let said = process.ended().said;
    let about: Vec<&str> = said.lines().filter(|line| line.contains("push:")).collect();
    assert_eq!(about.len(), 1, "one line, of the 410: {about:#?}");
    assert!(about[0].contains("410") && about[0].contains('q'), "{about:?}");
}

/// A missing certificate file and invalid networks stop the server with exit code 2.
#[test]
fn bad_keys_are_named_at_the_start() {
    for (keys, named) in [
        ("PushAllow = [\"10.0.0.0/33\"]", "PushAllow"),
        ("PushAllow = [\"a b\"]", "PushAllow"),
        ("PushHttps = \"sometimes\"", "PushHttps"),
        ("PushProxy = \"ftp://proxy\"", "PushProxy"),
        ("PushCA = \"/no/such/file.pem\"", "PushCA"),
        ("PushCA = \"c.toml\"", "PushCA"),
    ] {
        let dir = TempDir::new().expect("a temporary directory");
        std::fs::write(dir.path().join("c.toml"), format!("{keys}\n[Pool.default]\nPath = \"jobs\"\n"))
            .expect("a file");
        let ended = Process::start(dir.path(), &["-c", "c.toml"], &[]).ended();
        assert_eq!(ended.status.code(), Some(2), "{keys}: {}", ended.said);
        assert!(ended.said.contains(named) && ended.said.lines().count() == 1, "{keys}: {}", ended.said);
    }
}
