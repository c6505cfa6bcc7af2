//! A server's log: start, stop, and requests.

use std::path::Path;

use serde_json::{Value, json};

use crate::support::client::{create_token, request, send};
use crate::support::process::Process;
use crate::support::redis_server::RedisServer;
use tempfile::TempDir;

/// Starts a server that logs JSON and its requests, with pools of both kinds, behind a proxy on this machine.
fn start(dir: &Path, redis: &RedisServer) -> Process {
    let toml = format!(
        "EnableAccessLog = true\nLogFormat = \"json\"\nTrustedProxies = [\"127.0.0.0/8\", \"10.0.0.0/8\"]\n\
         [Accounts]\noperator = \"secret\"\n[Pool.default]\nPath = \"jobs\"\nSync = \"everysec\"\n\
         [Pool.shared]\n{}",
        redis.keys()
    );
    std::fs::write(dir.join("server.toml"), toml).expect("it can be written");
    Process::start(dir, &["-c", "server.toml"], &[])
}

fn line(process: &mut Process, text: &str) -> Value {
    let line = process.line_with(text);
    serde_json::from_str(&line).unwrap_or_else(|e| panic!("a line of JSON was expected ({e}): {line}"))
}

/// Guards against logs that omit the running version, its configuration, or the reason why it ended.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_log_says_what_runs_on_what_and_what_ends_it() {
    let (dir, redis) = (TempDir::new().expect("a temporary directory"), RedisServer::start());
    let mut process = start(dir.path(), &redis);
    let serving = line(&mut process, "serving");
    assert_eq!(
        (&serving["message"], &serving["config"]),
        (&json!("serving"), &json!("server.toml")),
        "{serving}"
    );
    assert_eq!(serving["version"], env!("CARGO_PKG_VERSION"), "{serving}");
    assert!(serving["commit"].is_string() && serving["api"].is_string(), "{serving}");
    let disk = line(&mut process, r#""kind":"disk""#);
    let said = [&disk["message"], &disk["pool"], &disk["path"], &disk["sync"], &disk["format"]];
    assert_eq!(
        said,
        [&json!("pool"), &json!("default"), &json!("jobs"), &json!("everysec"), &json!(10)],
        "{disk}"
    );
    let shared = line(&mut process, r#""kind":"redis""#);
    let said = [&shared["message"], &shared["pool"], &shared["addr"]];
    assert_eq!(said, [&json!("pool"), &json!("shared"), &json!(redis.addr())], "{shared}");
    assert!(shared["redis_version"].as_str().is_some_and(|v| v.contains('.')), "{shared}");

    let (api, admin) =
        (serving["api"].as_str().unwrap().to_owned(), serving["admin"].as_str().unwrap().to_owned());
    let token_url = format!("http://{admin}/token/ns?description=x");
    let made = request("POST", &token_url, "").basic_auth("operator", Some("secret"));
    let made = send(made.header("X-Forwarded-For", "203.0.113.5")).await.expect(201);
    let token = made.json["token"].as_str().expect("a token").to_owned();
    let publish = request("PUT", &format!("http://{api}/api/ns/q"), &token).body("twelve bytes");
    let publish = publish
        .header("X-Request-ID", "order-17.retry_2")
        .header("X-Forwarded-For", "6.6.6.6, 203.0.113.7, 10.0.0.9")
        .header("traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01");
    let published = send(publish).await.expect(201);
    let access = line(&mut process, "order-17.retry_2");
    for (field, value) in [
        ("request_id", json!("order-17.retry_2")),
        ("port", json!("public")),
        ("ip", json!("203.0.113.7")),
        ("method", json!("PUT")),
        ("path", json!("/api/ns/q")),
        ("pool", json!("default")),
        ("namespace", json!("ns")),
        ("status", json!(201)),
        ("bytes_in", json!(12)),
        ("bytes_out", json!(published.text.len())),
        ("trace_id", json!("4bf92f3577b34da6a3ce929d0e0e4736")),
    ] {
        assert_eq!(access[field], value, "{field} of {access}");
    }
    assert!(access["latency_us"].as_u64() >= access["latency_ms"].as_u64().map(|ms| ms * 1000), "{access}");
    assert!(access["by"].as_str().is_some_and(|by| by.len() == 8), "the hash of the token: {access}");
    assert!(!access.to_string().contains(&token), "a token is a secret: {access}");
    let made = line(&mut process, "/token/:namespace");
    let said = [&made["port"], &made["by"], &made["ip"], &made["trace_id"]];
    assert_eq!(said, [&json!("admin"), &json!("operator"), &json!("203.0.113.5"), &Value::Null], "{made}");

    // A consumer waits during the stop.
    let wait = request("GET", &format!("http://{api}/api/ns/nothing?timeout=60"), &token);
    let poll = tokio::spawn(send(wait));
    let gauge = format!("http://{admin}/metrics");
    while !send(request("GET", &gauge, "")).await.text.contains("\ndormouse_parked_polls 1\n") {}
    process.signal("TERM");
    poll.await.expect("no panic").expect(404);
    let stopping = line(&mut process, r#""stopping""#);
    let said = [&stopping["by"], &stopping["polls"], &stopping["requests"]];
    assert_eq!(said, [&json!("SIGTERM"), &json!(1), &json!(0)], "{stopping}");
    assert!(process.ended().status.success(), "it stopped in order");
}

/// Guards against forged client addresses: without trust the header is ignored.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_is_believed_who_is_not_trusted() {
    let dir = TempDir::new().expect("a temporary directory");
    let env = [("DORMOUSE_POOL_DEFAULT_PATH", "jobs"), ("DORMOUSE_ENABLE_ACCESS_LOG", "true")];
    let mut process = Process::start(dir.path(), &[], &env);
    let (api, admin) = (process.address("api"), process.address("admin"));
    let token = create_token(admin, "ns").await;
    let publish = request("PUT", &format!("http://{api}/api/ns/q"), &token).body("x");
    send(publish.header("X-Forwarded-For", "203.0.113.7").header("traceparent", "nonsense"))
        .await
        .expect(201);
    let line = process.line_with("path=\"/api/ns/q\"");
    assert!(line.contains("ip=\"127.0.0.1\""), "the peer itself: {line}");
    assert!(!line.contains("trace_id"), "no trace: {line}");
    drop(process);
    let env = [("DORMOUSE_POOL_DEFAULT_PATH", "jobs"), ("DORMOUSE_TRUSTED_PROXIES", "10.0.0.0/40")];
    let ended = Process::start(dir.path(), &[], &env).ended();
    assert_eq!(ended.status.code(), Some(2), "{}", ended.said);
    assert!(ended.said.contains("TrustedProxies") && ended.said.contains("10.0.0.0/40"), "{}", ended.said);
}
