//! `/servers`, `/server`, and outer addresses as users write them.

use crate::support::client::send;
use crate::support::redis_server::RedisServer;
use crate::support::servers::{Store, TestServer, on_each_store, redis_toml};
use crate::support::wait::until;
use serde_json::{Value, json};

async fn ask(server: &TestServer, path: &str) -> Value {
    send(server.admin("GET", path)).await.expect(200).json
}

async fn a_server_says_what_it_is_and_what_was_changed(store: Store) {
    let kind = if matches!(store, Store::Disk(_)) { "disk" } else { "redis" };
    let server = TestServer::on(store).await;
    let token = server.token("ns").await;
    server.put(&token, "/api/ns/q", "x").await.expect(201);
    server.sampled().await;
    send(server.admin("POST", "/api/ns/q/pause?for=60")).await.expect(200);
    // A call to its store may fail on a machine that stalls.
    until("it is ready", async || {
        let said = ask(&server, "/server").await;
        said["ready"] == json!(true) && said["pools"][0]["up"] == json!(true)
    })
    .await;
    let said = ask(&server, "/server").await;
    let pool = &said["pools"][0];
    assert_eq!((&pool["pool"], &pool["kind"], &pool["up"]), (&json!("default"), &json!(kind), &json!(true)));
    assert!(pool["address"].as_str().is_some_and(|address| !address.is_empty()), "{pool}");
    assert!(pool["figures"].as_object().is_some_and(|figures| !figures.is_empty()), "{pool}");
    assert_eq!((&pool["outages"], &pool["queues"]), (&json!(0), &json!(1)), "{pool}");
    let changes = said["changes"].as_array().expect("a list");
    let actions: Vec<_> = changes.iter().map(|change| (&change["action"], &change["of"])).collect();
    assert_eq!(
        actions[0],
        (&json!("a queue was paused"), &json!("/api/ns/q/pause")),
        "the newest: {actions:?}"
    );
    assert_eq!(actions[1].0, &json!("a token was made"), "{actions:?}");
    assert!(!said.to_string().contains(&token), "no token is shown");
    assert_eq!((&said["role"], &said["ready"]), (&json!("operator"), &json!(true)));
    until("it has announced itself", async || {
        let all = ask(&server, "/servers").await;
        all["trouble"].is_null() && all["servers"][0]["ready"] == json!(true)
    })
    .await;
    let servers = ask(&server, "/servers").await;
    assert_eq!(servers["servers"].as_array().map(Vec::len), Some(1), "{servers}");
    assert_eq!((&servers["servers"][0]["name"], &servers["trouble"]), (&servers["server"], &Value::Null));
    assert_eq!((&servers["versions_differ"], &servers["servers"][0]["ready"]), (&json!(false), &json!(true)));
}

on_each_store!(a_server_says_what_it_is_and_what_was_changed);

/// Guards against listing a change that did not happen.
#[tokio::test]
async fn a_dry_run_is_no_change() {
    let server = TestServer::on_disk().await;
    let put = |path: &str, body: Value| send(server.admin("PUT", path).body(body.to_string()));
    let one = json!({"queue": "q", "every": 60});
    put("/api/ns/_schedules/a", one.clone()).await.expect(201);
    put("/api/ns/_schedules/b?dry_run=1", one.clone()).await.expect(201);
    put("/api/ns/_schedules?dry_run=1&prune=1", json!({"schedules": []})).await.expect(200);
    // No other route has a dry run.
    send(server.admin("POST", "/api/ns/_schedules/a/pause?dry_run=1")).await.expect(200);
    let said = ask(&server, "/server").await;
    let changes = said["changes"].as_array().expect("a list").iter();
    let told: Vec<_> = changes.map(|change| (&change["action"], &change["of"])).collect();
    let expected = [
        (&json!("a schedule was paused"), &json!("/api/ns/_schedules/a/pause")),
        (&json!("schedules were set"), &json!("/api/ns/_schedules/a")),
    ];
    assert_eq!(told, expected, "the newest first");
}

/// Guards against a fleet whose servers do not see each other, and against one listed after it has stopped.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_of_one_store_see_each_other() {
    let redis = RedisServer::start();
    let toml = redis_toml(&redis);
    let first = TestServer::start(&format!("AdminUrl = \"https://ops.example/d/\"\n{toml}"), ()).await;
    let second = TestServer::start(&toml, redis).await;
    let count =
        async |server: &TestServer| ask(server, "/servers").await["servers"].as_array().map_or(0, Vec::len);
    until("each sees both", async || count(&first).await == 2 && count(&second).await == 2).await;
    let seen = ask(&second, "/servers").await;
    let urls: Vec<_> = (0..2).map(|n| &seen["servers"][n]["admin_url"]).collect();
    assert!(urls.contains(&&json!("https://ops.example/d")) && urls.contains(&&Value::Null), "{seen}");
    first.stop().await;
    until("one is gone", async || count(&second).await == 1).await;
}

/// Guards against a proxy that keeps its prefix, and against admitting any prefix.
#[tokio::test]
async fn the_path_of_the_outer_address_is_taken_off() {
    let store = Store::disk();
    let toml = format!("AdminUrl = \"https://ops.example/dormouse\"\n{}", store.toml());
    let server = TestServer::start(&toml, store).await;
    for (path, status) in
        [("/dormouse/queues", 200), ("/queues", 200), ("/dormouses/queues", 404), ("/x/queues", 404)]
    {
        send(server.admin("GET", path)).await.expect(status);
    }
    let by = |host: &'static str, origin: &'static str| {
        let request = server.admin("POST", "/dormouse/api/ns/q/pause?for=60");
        send(request.header("Host", host).header("Origin", origin))
    };
    by("ops.example", "https://ops.example").await.expect(200);
    by("127.0.0.1", "https://ops.example").await.expect(200);
    by("ops.example", "https://evil.example").await.expect(403);
    by("evil.example", "https://ops.example").await.expect(403);
}

/// Guards against a page that must know a token to have it deleted, and against deleting the wrong one.
async fn a_token_is_revoked_by_its_hash(store: Store) {
    let server = TestServer::on(store).await;
    let (gone, stays) = (server.token("ns").await, server.token("ns").await);
    let changes = ask(&server, "/server").await;
    let of = |n: usize| changes["changes"][n]["of"].as_str().expect("a text").to_owned();
    let hash = of(1).split("token ").nth(1).expect("the hash").to_owned();
    let revoke = |body: String| send(server.admin("POST", "/token/ns/revoke").body(body));
    revoke(json!({"hash": "nobody"}).to_string()).await.expect(404);
    revoke(json!({"hash": hash, "pool": "other"}).to_string()).await.expect(400);
    revoke("x".to_owned()).await.expect(400);
    revoke(json!({"hash": hash}).to_string()).await.expect(204);
    server.put(&stays, "/api/ns/q", "x").await.expect(201);
    until("the token is refused", async || server.put(&gone, "/api/ns/q", "x").await.status == 401).await;
    revoke(json!({"hash": hash}).to_string()).await.expect(404);
}

on_each_store!(a_token_is_revoked_by_its_hash);
