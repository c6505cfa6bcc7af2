//! Conversations about quotas of namespaces.

use std::time::{Duration, Instant};

use crate::support::client::{Response, request, send};
use crate::support::redis_server::RedisServer;
use crate::support::servers::{Store, TestServer, on_each_store, redis_toml};
use crate::support::wait::until;

async fn set(server: &TestServer, method: &str, path: &str, body: &str) -> Response {
    send(server.admin(method, path).body(body.to_owned())).await
}

/// Sets the quota of the namespace `ns`.
async fn quota(server: &TestServer, quota: &str) {
    set(server, "PUT", "/quota/ns", quota).await.expect(200);
}

#[track_caller]
fn used_up(answer: Response, what: &str) {
    let answer = answer.expect(507);
    assert_eq!(answer.says(), format!("the quota of the namespace is used up: {what}"));
    assert_eq!(answer.json["request_id"].as_str(), Some(answer.header("x-request-id")), "{answer:?}");
}

/// Guards against replies in another format than those of limits, an unintended quota, and one shown differently from
/// its setting.
async fn a_quota_is_made_shown_changed_and_deleted(store: Store) {
    let server = TestServer::on(store).await;
    let ask = async |method: &str, path: &str, body: &str| {
        let answer = set(&server, method, path, body).await;
        (answer.status, answer.text)
    };
    let none = (404, r#"{"error":"the namespace has no quota"}"#.to_owned());
    assert_eq!(ask("GET", "/quota/ns", "").await, none);
    let made = ask("POST", "/quota/ns", r#"{"jobs":5}"#).await;
    assert_eq!(made, (201, r#"{"jobs":5,"bytes":0,"queues":0}"#.to_owned()), "what is left out is no bound");
    let again = ask("POST", "/quota/ns", r#"{"jobs":6}"#).await;
    assert_eq!(again, (409, r#"{"error":"the namespace has a quota already"}"#.to_owned()));
    let changed =
        ask("PUT", "/quota/ns?pool=default", r#"{"jobs":0,"bytes":7,"queues":18446744073709551615}"#).await;
    assert_eq!(changed, (200, r#"{"jobs":0,"bytes":7,"queues":18446744073709551615}"#.to_owned()));
    assert_eq!(ask("GET", "/quota/ns?pool=", "").await, changed);
    assert_eq!(ask("GET", "/quota/other", "").await, none, "of another namespace");
    let text = r#"{"error":"the quota should be {\"jobs\":..,\"bytes\":..,\"queues\":..}, whole numbers, 0 for no bound"}"#;
    for bad in [
        "",
        "x",
        "null",
        "7",
        r#"{"jobs":-1}"#,
        r#"{"jobs":1.5}"#,
        r#"{"jobs":"1"}"#,
        r#"{"jbos":1}"#,
        r#"{"jobs":18446744073709551616}"#,
    ] {
        assert_eq!(ask("PUT", "/quota/ns", bad).await, (400, text.to_owned()), "{bad}");
    }
    for (path, text) in [
        ("/quota/ns?pool=nope", "the pool was not exists"),
        ("/quota/n~s", "namespace name contains forbidden characters"),
    ] {
        for method in ["GET", "PUT", "POST", "DELETE"] {
            let refused = set(&server, method, path, r#"{"jobs":1}"#).await;
            assert_eq!((refused.status, refused.says()), (400, text), "{method} {path}");
        }
    }
    assert_eq!(ask("GET", "/quota/ns", "").await, changed, "what was refused changed nothing");
    for _ in 0..2 {
        assert_eq!(ask("DELETE", "/quota/ns", "").await, (200, r#"{"msg":"success"}"#.to_owned()));
    }
    assert_eq!(ask("GET", "/quota/ns", "").await, none);
    assert_eq!(ask("PUT", "/quota/ns", "{}").await.0, 200, "a quota of nothing bounds nothing");
}

/// Guards against a route that publishes beyond a quota, and against refusing one that stores nothing more.
async fn every_publish_is_held_to_the_quota_and_nothing_else_is(store: Store) {
    let server = TestServer::on(store).await;
    let (token, other) = (server.token("ns").await, server.token("other").await);
    quota(&server, r#"{"jobs":2,"bytes":100}"#).await;
    let first = server.put(&token, "/api/ns/q?tries=2", "a").await.expect(201).job_id();
    used_up(send(server.api("PUT", "/api/ns/q/bulk", &token).body("[1,2]")).await, "jobs");
    let batch = r#"[{"text":"x"},{"text":"y"}]"#;
    used_up(send(server.api("POST", "/api/ns/q/jobs/batch", &token).body(batch)).await, "jobs");
    used_up(send(server.api("POST", "/api/ns/q/jobs", &token).body("x".repeat(100))).await, "bytes");
    let keyed = async |key: &str, body: &str| {
        let publish = server.api("POST", "/api/ns/q/jobs?delay=600&key=k", &token).body(body.to_owned());
        send(publish.header("Idempotency-Key", key)).await
    };
    let second = keyed("one", "b").await.expect(201);
    used_up(server.put(&token, "/api/ns/q", "x").await, "jobs");
    used_up(server.put(&token, "/api/ns/q?delay=5", "x").await, "jobs");
    server.put(&other, "/api/other/q", "x").await.expect(201);
    let replayed = keyed("one", "b").await.expect(201);
    assert_eq!(
        (replayed.header("idempotency-replayed"), replayed.text.as_str()),
        ("true", second.text.as_str())
    );
    // A duplicate stores nothing, but the record of an idempotency key would be stored.
    used_up(keyed("two", "c").await, "jobs");
    let duplicate =
        send(server.api("POST", "/api/ns/q/jobs?delay=600&key=k", &token).body("c")).await.expect(201);
    assert_eq!((duplicate.json["duplicate"].as_bool(), duplicate.job_id()), (Some(true), second.job_id()));
    let republished =
        send(server.api("PUT", &format!("/api/ns/q/job/{first}?tries=2"), &token).body("c")).await;
    let third = republished.expect(201).job_id();
    used_up(send(server.api("PUT", &format!("/api/ns/q/job/{first}"), &token).body("c")).await, "jobs");

    // Workers continue.
    let job = server.get(&token, "/api/ns/q?ttr=600").await.expect(200);
    assert_eq!((job.data(), job.job_id()), (b"c".to_vec(), third.clone()));
    send(server.api("DELETE", &format!("/api/ns/q/job/{third}"), &token)).await.expect(204);
    server.put(&token, "/api/ns/q", "d").await.expect(201);
    used_up(server.put(&token, "/api/ns/q", "x").await, "jobs");
    set(&server, "DELETE", "/quota/ns", "").await.expect(200);
    server.put(&token, "/api/ns/q", "x").await.expect(201);
}

/// Guards against a quota that is lost when the server restarts.
async fn a_quota_and_what_it_counts_outlive_the_server(store: Store) {
    let (toml, keep) = (store.toml(), store);
    let server = TestServer::start(&toml, ()).await;
    let token = server.token("ns").await;
    quota(&server, r#"{"jobs":2}"#).await;
    server.put(&token, "/api/ns/q", "a").await.expect(201);
    server.put(&token, "/api/ns/q?delay=600", "b").await.expect(201);
    server.stop().await;
    let server = TestServer::start(&toml, keep).await;
    used_up(server.put(&token, "/api/ns/q", "x").await, "jobs");
    let job = server.get(&token, "/api/ns/q").await.expect(200);
    send(server.api("DELETE", &format!("/api/ns/q/job/{}", job.job_id()), &token)).await.expect(204);
    server.put(&token, "/api/ns/q", "c").await.expect(201);
    used_up(server.put(&token, "/api/ns/q", "x").await, "jobs");
}

/// Guards against schedules of 64 KiB each that do not count toward the quota, and against jobs that may use their
/// bytes.
async fn schedules_count_toward_the_quota(store: Store) {
    let server = TestServer::on(store).await;
    let token = server.token("ns").await;
    let put = async |name: &str, bytes: usize| {
        let body = serde_json::json!({ "queue": "q", "every": 86400, "text": "x".repeat(bytes) }).to_string();
        send(server.api("PUT", &format!("/api/ns/_schedules/{name}"), &token).body(body)).await
    };
    quota(&server, r#"{"bytes":10000}"#).await;
    // A setting has some hundred bytes besides its body.
    put("a", 6000).await.expect(201);
    used_up(put("b", 4000).await, "bytes");
    used_up(put("b?dry_run=1", 4000).await, "bytes");
    used_up(server.put(&token, "/api/ns/q", &"x".repeat(4000)).await, "bytes");
    let body = "x".repeat(3000);
    let job = server.put(&token, "/api/ns/q", &body).await.expect(201).job_id();
    used_up(put("a", 7000).await, "bytes");
    put("a", 5000).await.expect(200);
    server.put(&token, "/api/ns/q", &"x".repeat(1000)).await.expect(201);
    used_up(put("a", 6000).await, "bytes");
    send(server.api("DELETE", &format!("/api/ns/q/job/{job}"), &token)).await.expect(204);
    put("a", 6000).await.expect(200);
    used_up(server.put(&token, "/api/ns/q", &body).await, "bytes");
    send(server.api("DELETE", "/api/ns/_schedules/a", &token)).await.expect(204);
    server.put(&token, "/api/ns/q", &"x".repeat(8000)).await.expect(201);
    quota(&server, r#"{"jobs":1}"#).await;
    used_up(put("b", 1).await, "jobs");
    quota(&server, r#"{"jobs":3}"#).await;
    put("b", 1).await.expect(201);
}

on_each_store!(
    schedules_count_toward_the_quota,
    a_quota_is_made_shown_changed_and_deleted,
    every_publish_is_held_to_the_quota_and_nothing_else_is,
    a_quota_and_what_it_counts_outlive_the_server,
);

/// Timeout for effects that take a second, on a machine that stalls.
const SOON: Duration = Duration::from_secs(5);

/// Guards against a quota known only to the server that received it, and against two servers that each fill it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_quota_is_in_force_on_every_server_within_a_second() {
    let redis = RedisServer::start();
    let [one, two] = TestServer::two_on(&redis).await;
    let token = one.token("ns").await;
    quota(&one, r#"{"jobs":10}"#).await;
    let (began, mut stored) = (Instant::now(), 0);
    let refused = loop {
        let answer = two.put(&token, "/api/ns/q", "x").await;
        if answer.status != 201 {
            break answer;
        }
        stored += 1;
        assert!(began.elapsed() < SOON, "the other server should know the quota; it stored {stored} jobs");
    };
    used_up(refused, "jobs");
    used_up(one.put(&token, "/api/ns/q", "x").await, "jobs");
    assert!(stored >= 10, "{stored} of 10 were stored");
    // Jobs stored by the other server before it counted are found by counting all keys.
    let mut connection = redis.connection();
    until("all jobs are counted", async || counted(&mut connection) == [stored, stored]).await;
    // Both servers count now, so the total that they store is exact.
    quota(&one, &format!(r#"{{"jobs":{}}}"#, stored + 40)).await;
    let tasks: Vec<_> = (0..100)
        .map(|n| {
            let url = [&one, &two][n % 2].url("/api/ns/q");
            let put = request("PUT", &url, &token).body("x");
            tokio::spawn(async move { send(put).await.status })
        })
        .collect();
    let mut more = 0;
    for task in tasks {
        more += usize::from(task.await.expect("it does not panic") == 201);
    }
    assert_eq!(more, 40, "jobs stored by two servers at once, with room for 40");
}

/// Guards against a server, running or just started, that lets jobs use the bytes of another server's schedules.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn schedules_of_one_server_count_at_another() {
    let redis = RedisServer::start();
    let [one, two] = TestServer::two_on(&redis).await;
    let token = one.token("ns").await;
    quota(&one, r#"{"bytes":10000}"#).await;
    let body = serde_json::json!({ "queue": "q", "every": 86400, "text": "x".repeat(9000) }).to_string();
    send(one.api("PUT", "/api/ns/_schedules/s", &token).body(body)).await.expect(201);
    // Within a second. Without the schedule's bytes there is room for every one of these jobs.
    until("the schedule counts on the other server", async || {
        let answer = two.put(&token, "/api/ns/q", &"x".repeat(1000)).await;
        if answer.status == 201 {
            let job = format!("/api/ns/q/job/{}", answer.job_id());
            send(two.api("DELETE", &job, &token)).await.expect(204);
            return false;
        }
        used_up(answer, "bytes");
        true
    })
    .await;
    drop(two);
    let three = TestServer::start(&redis_toml(&redis), ()).await;
    used_up(three.put(&token, "/api/ns/q", &"x".repeat(1000)).await, "bytes");
    send(three.api("DELETE", "/api/ns/_schedules/s", &token)).await.expect(204);
    three.put(&token, "/api/ns/q", &"x".repeat(1000)).await.expect(201);
}

/// Guards against a pool that has no bound while it moves.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_quota_of_a_pool_that_moves_bounds_the_new_store() {
    let (old, new) = (Store::disk(), Store::disk());
    let toml = format!("[Pool.default]\nMigrateTo = \"new\"\n{}[Pool.new]\n{}", old.keys(), new.keys());
    let server = TestServer::start(&toml, (old, new)).await;
    let token = server.token("ns").await;
    quota(&server, r#"{"jobs":1}"#).await;
    server.put(&token, "/api/ns/q", "a").await.expect(201);
    used_up(server.put(&token, "/api/ns/q", "x").await, "jobs");
    set(&server, "PUT", "/quota/ns?pool=new", r#"{"jobs":2}"#).await.expect(200);
    server.put(&token, "/api/ns/q", "b").await.expect(201);
    used_up(server.put(&token, "/api/ns/q", "x").await, "jobs");
    set(&server, "DELETE", "/quota/ns?pool=new", "").await.expect(200);
    used_up(server.put(&token, "/api/ns/q", "x").await, "jobs");
}

/// Returns the recorded number of jobs and bytes of the namespace `ns`.
fn counted(connection: &mut redis::Connection) -> [usize; 2] {
    let used = redis::cmd("HMGET").arg("dormouse/used").arg(&["ns/jobs", "ns/bytes"]).query(connection);
    used.expect("two numbers")
}

/// Guards against counting expired jobs forever, and against ignoring changes by lmstfy's servers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_ends_by_itself_or_others_do_in_a_redis_is_counted_in_the_end() {
    let redis = RedisServer::start();
    let server = TestServer::start(&redis_toml(&redis), ()).await;
    let token = server.token("ns").await;
    quota(&server, r#"{"jobs":3,"bytes":9}"#).await;
    for _ in 0..3 {
        server.put(&token, "/api/ns/q?ttl=5", "abc").await.expect(201);
    }
    used_up(server.put(&token, "/api/ns/q", "x").await, "jobs");
    until("there is room again", async || server.put(&token, "/api/ns/q", "x").await.status == 201).await;
    // Stores a value as lmstfy does.
    let mut connection = redis.connection();
    let stored = redis::cmd("SET").arg("j/ns/q/theirs").arg("12345").query::<String>(&mut connection);
    stored.expect("it is stored");
    until("theirs is counted", async || counted(&mut connection) == [2, 6]).await;
    set(&server, "DELETE", "/quota/ns", "").await.expect(200);
    let left: usize = redis::cmd("EXISTS").arg("dormouse/used").query(&mut connection).expect("a number");
    assert_eq!(left, 0, "the usage of a deleted quota");
}
