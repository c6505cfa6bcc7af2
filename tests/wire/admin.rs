//! Conversations on the admin port: tokens, limits, accounts, and the server's own state.

use std::time::Instant;

use crate::common::{raw, until_status};
use crate::support::client::{Response, send};
use crate::support::redis_server::RedisServer;
use crate::support::servers::{Store, TestServer, on_each_store};
use crate::support::wait::{TIMEOUT, until};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Starts a server with a second pool, `other`, both on disk.
async fn two_pools() -> TestServer {
    let (default, other) = (Store::disk(), Store::disk());
    let toml = format!("{}[Pool.other]\n{}", default.toml(), other.keys());
    TestServer::start(&toml, (default, other)).await
}

/// Error for a token that no header can contain.
const NO_TOKEN: &str = "invalid token: it is printable ASCII, without blanks at its ends";

async fn create(server: &TestServer, query: &str) -> Response {
    send(server.admin("POST", &format!("/token/ns?{query}"))).await
}

fn token_of(answer: &Response) -> String {
    answer.json["token"].as_str().unwrap_or_else(|| panic!("a token, not {answer:?}")).to_owned()
}

async fn put(server: &TestServer, token: &str) -> Response {
    server.put(token, "/api/ns/q", "x").await
}

async fn get(server: &TestServer, token: &str) -> Response {
    server.get(token, "/api/ns/q").await
}

#[tokio::test]
async fn a_token_lives_in_one_pool_and_says_so() {
    let server = two_pools().await;
    let plain = token_of(&create(&server, "description=a").await.expect(201));
    let other = token_of(&create(&server, "description=b&pool=other").await.expect(201));
    assert!(other.starts_with("other:") && !plain.contains(':'), "the pool in front: {plain}, {other}");
    let chosen = "other:a-token-of-twenty-characters";
    let bare = token_of(&create(&server, &format!("description=c&token={chosen}")).await.expect(201));
    assert_eq!(
        format!("other:{bare}"),
        chosen,
        "a pool that was chosen with the token is not answered, as in lmstfy"
    );
    for token in [&plain, &other, chosen] {
        put(&server, token).await.expect(201);
    }
    let sizes =
        async |token: &str| send(server.api("GET", "/api/ns/q/size", token)).await.json["size"].clone();
    assert_eq!((sizes("").await, sizes("other:").await), (1.into(), 2.into()), "each in its pool");
    // Another pool's token, another notation of the pool, another namespace.
    let secret = other.trim_start_matches("other:");
    put(&server, secret).await.expect(401);
    put(&server, &format!("other:{plain}")).await.expect(401);
    put(&server, &format!("default:{plain}")).await.expect(201);
    put(&server, &format!("nope:{plain}")).await.expect(404);
    send(server.api("PUT", "/api/ns2/q", &plain).body("x")).await.expect(401);
    send(server.api("PUT", "/api/n/sq", &plain).body("x")).await.expect(401);

    let list = send(server.admin("GET", "/token/ns?pool=other")).await.expect(200);
    assert_eq!(list.json, serde_json::json!({"tokens": {&other: "b", chosen: "c"}}));
    assert!(list.text.starts_with("{\n    \"tokens\": {\n        \"other:"), "by four spaces: {}", list.text);
    send(server.admin("DELETE", &format!("/token/ns/{other}"))).await.expect(204);
    put(&server, &other).await.expect(401);
    send(server.admin("DELETE", &format!("/token/ns/{plain}"))).await.expect(204);
    put(&server, &plain).await.expect(401);
    put(&server, chosen).await.expect(201);
}

#[tokio::test]
async fn a_token_that_is_refused_says_why_and_is_not_made() {
    let server = two_pools().await;
    let taken = "a-token-of-twenty-characters";
    create(&server, &format!("description=x&token={taken}")).await.expect(201);
    let cases = [
        ("", "invalid description"),
        ("description=", "invalid description"),
        ("description=x&pool=nope", "the pool was not exists"),
        ("description=x&token=nope:a-token-of-twenty-characters", "the pool was not exists"),
        ("description=x&token=nineteen-characters", "the user token was too short"),
        ("description=x&token=other:", "the user token was too short"),
        ("description=x&token=a-token-of-twenty%0Dcharacters", NO_TOKEN),
        ("description=x&token=a-token-of-twenty-charact%C3%A9rs", NO_TOKEN),
        ("description=x&token=%20a-token-of-twenty-characters", NO_TOKEN),
        ("description=x&token=other:a-token-of-twenty%00characters", NO_TOKEN),
        ("description=x&token=a-token-of-twenty-characters", "the token has already existed"),
    ];
    for (query, says) in cases {
        let answer = create(&server, query).await;
        assert_eq!((answer.status, answer.says()), (400, says), "{query}");
    }
    send(server.admin("POST", "/token/n.s?description=x")).await.expect(400);
    let list = send(server.admin("GET", "/token/ns")).await;
    assert_eq!(list.json, serde_json::json!({"tokens": {taken: "x"}}), "nothing else was made");
    send(server.admin("GET", "/token/ns?pool=nope")).await.expect(400);
}

#[tokio::test]
async fn a_token_can_be_asked_for_in_a_form() {
    let server = two_pools().await;
    let form = "application/x-www-form-urlencoded; charset=utf-8";
    let request = server.admin("POST", "/token/ns?description=query").header("Content-Type", form);
    let answer = send(request.body("description=two+w%C3%B6rds&pool=other")).await.expect(201);
    let token = token_of(&answer);
    let list = send(server.admin("GET", "/token/ns?pool=other")).await;
    assert_eq!(list.json["tokens"][&token], "two wörds", "the form counts before the query: {}", list.text);
    let request = server.admin("POST", "/token/ns").header("Content-Type", "application/json");
    send(request.body(r#"{"description":"x"}"#)).await.expect(400);
}

async fn limits_count_per_direction(store: Store) {
    let server = TestServer::on(store).await;
    let token = server.token("ns").await;
    server.limit(&token, r#"{"read":1,"write":2,"interval":600}"#).await;
    put(&server, &token).await.expect(201);
    // A bulk counts as one request.
    send(server.api("PUT", "/api/ns/q/bulk", &token).body("[1,2,3]")).await.expect(201);
    let over = put(&server, &token).await.expect(429);
    let says = format!("token({token}) produce reach the limit rate, please retry later");
    assert_eq!(over.json, serde_json::json!({"msg": says}), "{}", over.text);
    send(server.api("PUT", "/api/ns/q/bulk", &token).body("[1]")).await.expect(429);
    get(&server, &token).await.expect(200);
    let over = get(&server, &token).await.expect(429);
    let says = format!("token({token}) consume reach the limit rate, please retry later");
    assert_eq!(over.json, serde_json::json!({"msg": says}), "{}", over.text);
    assert_eq!(server.size("/api/ns/q").await, 3, "what was refused did nothing");
    // A deleted limit has no effect.
    send(server.admin("DELETE", &format!("/token/ns/{token}/limit"))).await.expect(200);
    put(&server, &token).await.expect(201);
    get(&server, &token).await.expect(200);
}

on_each_store!(limits_count_per_direction);

/// Opens a long poll that counts against the limit of its token, once the requests before it are uncounted.
async fn parked(server: &TestServer, token: &str) -> TcpStream {
    let began = Instant::now();
    loop {
        let mut poll = TcpStream::connect(server.api_addr).await.expect("the port takes connections");
        let head = format!("GET /api/ns/q?timeout=600 HTTP/1.1\r\nHost: x\r\nX-Token: {token}\r\n\r\n");
        poll.write_all(head.as_bytes()).await.expect("sent");
        let mut answer = [0; 12];
        tokio::select! {
            () = server.until_parked(1) => return poll,
            read = poll.read_exact(&mut answer) => drop(read.expect("an answer")),
        }
        assert_eq!(String::from_utf8_lossy(&answer), "HTTP/1.1 429");
        assert!(began.elapsed() < TIMEOUT, "the requests before should be uncounted within {TIMEOUT:?}");
    }
}

/// Requests without a 200 or 201 are uncounted shortly after their reply.
async fn what_failed_is_not_counted(store: Store) {
    let server = TestServer::on(store).await;
    let token = server.token("ns").await;
    server.limit(&token, r#"{"read":1,"write":1,"interval":600}"#).await;
    let twice = async |request: &dyn Fn() -> reqwest::RequestBuilder, want: u16| {
        for _ in 0..2 {
            until_status(want, async || send(request()).await).await;
        }
    };
    twice(&|| server.api("PUT", "/api/ns/q?tries=0", &token), 400).await;
    twice(&|| server.api("PUT", "/api/ns/q", &token).body("x".repeat((1 << 20) + 1)), 413).await;
    twice(&|| server.api("PUT", "/api/ns/q/bulk", &token).body("[]"), 400).await;
    twice(&|| server.api("GET", "/api/ns/q?count=0", &token), 400).await;
    twice(&|| server.api("GET", "/api/ns/q", &token), 404).await;
    // A consumer that disconnects from its poll is uncounted.
    for _ in 0..2 {
        drop(parked(&server, &token).await);
        server.until_parked(0).await;
    }
    until_status(201, async || put(&server, &token).await).await;
    until_status(200, async || get(&server, &token).await).await;
}

on_each_store!(what_failed_is_not_counted);

#[tokio::test]
async fn a_limits_interval_ends_and_zero_is_no_limit() {
    let server = TestServer::on_disk().await;
    let token = server.token("ns").await;
    server.limit(&token, r#"{"read":0,"write":1,"interval":1}"#).await;
    for _ in 0..5 {
        get(&server, &token).await.expect(404);
    }
    put(&server, &token).await.expect(201);
    until_status(429, async || put(&server, &token).await).await;
    until_status(201, async || put(&server, &token).await).await;
}

#[tokio::test]
async fn limits_are_kept_changed_listed_and_refused() {
    let server = two_pools().await;
    let token = token_of(&create(&server, "description=x&pool=other").await.expect(201));
    let path = format!("/token/ns/{token}/limit");
    send(server.admin("GET", &path)).await.expect(404);
    for bad in [
        "",
        "{}",
        "[]",
        "null",
        "{\"read\":1}",
        "{\"read\":\"1\",\"write\":1,\"interval\":1}",
        r#"{"read":1,"write":1,"interval":0}"#,
        r#"{"read":1,"write":1,"interval":-1}"#,
        r#"{"read":0,"write":0,"interval":1}"#,
        r#"{"read":-1,"write":-1,"interval":1}"#,
        r#"{"read":0,"write":-5,"interval":1}"#,
        r#"{"read":1e99,"write":1,"interval":1}"#,
    ] {
        for method in ["POST", "PUT"] {
            let answer = send(server.admin(method, &path).body(bad)).await;
            assert_eq!(answer.status, 400, "{method} {bad}: {answer:?}");
        }
    }
    send(server.admin("POST", "/token/ns/nope:x/limit").body(r#"{"read":1,"write":1,"interval":1}"#))
        .await
        .expect(400);
    send(server.admin("GET", &path)).await.expect(404);
    send(server.admin("POST", &path).body(r#"{"read":5,"write":6,"interval":7}"#)).await.expect(201);
    let limit = send(server.admin("GET", &path)).await.expect(200);
    assert_eq!(limit.json, serde_json::json!({"read": 5, "write": 6, "interval": 7}));
    let all = send(server.admin("GET", "/limits")).await.expect(200);
    let want = serde_json::json!([{"namespace": "ns", "token": token, "limiter": {"read": 5, "write": 6, "interval": 7}}]);
    assert_eq!(all.json, want, "{}", all.text);
    // The limit is deleted with its token.
    send(server.admin("DELETE", &format!("/token/ns/{token}"))).await.expect(204);
    assert_eq!(send(server.admin("GET", "/limits?force_update=true")).await.json, serde_json::json!([]));
}

#[tokio::test]
async fn two_servers_count_one_limit_and_know_each_others_tokens() {
    let redis = RedisServer::start();
    let [a, b] = TestServer::two_on(&redis).await;
    let token = a.token("ns").await;
    a.limit(&token, r#"{"read":100,"write":4,"interval":600}"#).await;
    let seen = send(b.admin("GET", "/limits?force_update=1")).await;
    assert_eq!(
        seen.json[0]["limiter"]["write"], 4,
        "the other server knows it when told to read anew: {}",
        seen.text
    );
    for server in [&a, &b, &a, &b] {
        put(server, &token).await.expect(201);
    }
    for server in [&a, &b] {
        put(server, &token).await.expect(429);
    }
    // A changed limit takes effect at the other server without a request.
    a.limit(&token, r#"{"read":100,"write":1000,"interval":600}"#).await;
    until_status(201, async || put(&b, &token).await).await;
    // So does the deletion of a token that both servers have cached.
    get(&b, &token).await.expect(200);
    send(a.admin("DELETE", &format!("/token/ns/{token}"))).await.expect(204);
    get(&a, &token).await.expect(401);
    until_status(401, async || get(&b, &token).await).await;
}

#[tokio::test]
async fn accounts_guard_rights_and_nothing_else() {
    let store = Store::disk();
    let toml = format!("Accounts = {{ Ann = 'p:w', bob = 'two' }}\n{}", store.toml());
    let server = TestServer::start(&toml, store).await;
    let guarded = [
        ("GET", "/token/ns"),
        ("POST", "/token/ns?description=x"),
        ("DELETE", "/token/ns/x"),
        ("GET", "/token/ns/x/limit"),
        ("POST", "/token/ns/x/limit"),
        ("PUT", "/token/ns/x/limit"),
        ("DELETE", "/token/ns/x/limit"),
        ("GET", "/limits"),
        ("GET", "/quota/ns"),
        ("PUT", "/quota/ns"),
        ("POST", "/accesslog?status=enable"),
    ];
    for (method, path) in guarded {
        let answer = send(server.admin(method, path)).await.expect(401);
        assert_eq!(
            answer.header("www-authenticate"),
            "Basic realm=\"Authorization Required\"",
            "{method} {path}"
        );
        assert!(!answer.header("x-request-id").is_empty(), "{method} {path} has an id");
        for bad in [
            "Basic",
            "Basic ",
            "Basic ###",
            "Bearer x",
            "Basic QW5uOnA=",
            "Basic QW5uOnA6dw",
            "Basic OnA6dw==",
            "Basic QW5uOnR3bw==",
        ] {
            let answer = send(server.admin(method, path).header("Authorization", bad)).await;
            assert_eq!(answer.status, 401, "{method} {path} with {bad:?}");
        }
        // Ann:p:w and bob:two
        for good in ["Basic QW5uOnA6dw==", "Basic Ym9iOnR3bw=="] {
            let answer = send(server.admin(method, path).header("Authorization", good)).await;
            assert_ne!(answer.status, 401, "{method} {path} with {good:?}");
        }
    }
    for path in ["/pools", "/info", "/version", "/metrics", "/accesslog", "/ping", "/ready"] {
        send(server.admin("GET", path)).await.expect(200);
    }
}

#[tokio::test]
async fn the_access_log_can_be_switched() {
    let server = TestServer::on_disk().await;
    let status =
        async |method: &str, path: &str| send(server.admin(method, path)).await.json["status"].clone();
    assert_eq!(status("GET", "/accesslog").await, "disabled");
    assert_eq!(status("POST", "/accesslog?status=enable").await, "enabled");
    assert_eq!(status("GET", "/accesslog").await, "enabled");
    for bad in ["", "?status=", "?status=on", "?status=ENABLE"] {
        send(server.admin("POST", &format!("/accesslog{bad}"))).await.expect(400);
    }
    assert_eq!(status("GET", "/accesslog").await, "enabled");
    assert_eq!(status("POST", "/accesslog?status=disable").await, "disabled");
}

#[tokio::test]
async fn a_server_tells_its_pools_queues_version_and_health() {
    let server = two_pools().await;
    let token = server.token("ns").await;
    put(&server, &token).await.expect(201);
    send(server.api("PUT", "/api/ns/a?delay=60", &token).body("x")).await.expect(201);
    let info = send(server.admin("GET", "/info")).await.expect(200);
    assert_eq!(info.text, "{\n    \"ns\": [\n        \"a\",\n        \"q\"\n    ]\n}");
    assert_eq!(info.header("content-type"), "text/plain; charset=utf-8");
    assert_eq!(send(server.admin("GET", "/info?pool=other")).await.expect(200).text, "{}");
    assert_eq!(send(server.admin("GET", "/info?pool=nope")).await.expect(200).text, "");
    let pools = send(server.admin("GET", "/pools")).await.expect(200);
    assert_eq!(pools.text, "[\n    \"default\",\n    \"other\"\n]");
    let version = send(server.admin("GET", "/version")).await.expect(200);
    for key in ["version", "build_commit", "build_date"] {
        assert!(version.json[key].as_str().is_some_and(|v| !v.is_empty()), "{key} in {}", version.text);
    }
    for ping in [server.api("GET", "/ping", ""), server.admin("GET", "/ping")] {
        assert_eq!(send(ping).await.expect(200).says(), "pong");
    }
    let ready = until_status(200, async || send(server.admin("GET", "/ready")).await).await;
    assert_eq!(ready.json, serde_json::json!({"ready": true}));
}

/// Returns the value of a metric's series, by the text of its labels.
fn series(metrics: &str, name: &str, labels: &str) -> Option<f64> {
    let line = metrics.lines().find(|l| l.strip_prefix(name).is_some_and(|rest| rest.starts_with(labels)))?;
    line.rsplit(' ').next()?.parse().ok()
}

async fn metrics_tell_what_dashboards_read(store: Store) {
    let on_redis = matches!(store, Store::Redis(_));
    let server = TestServer::on(store).await;
    let token = server.token("ns").await;
    server.limit(&token, r#"{"read":100,"write":7,"interval":600}"#).await;
    for _ in 0..5 {
        put(&server, &token).await.expect(201);
    }
    send(server.api("PUT", "/api/ns/q?delay=60", &token).body("x")).await.expect(201);
    let ack = async |job: Response| {
        send(server.api("DELETE", &format!("/api/ns/q/job/{}", job.job_id()), &token)).await.expect(204);
    };
    ack(get(&server, &token).await.expect(200)).await;
    ack(send(server.api("GET", "/api/ns/other,q", &token)).await.expect(200)).await;
    // One job dies.
    send(server.api("PUT", "/api/ns/dying", &token).body("x")).await.expect(201);
    send(server.api("GET", "/api/ns/dying?ttr=0", &token)).await.expect(200);
    until_status(429, async || put(&server, &token).await).await;
    until("the job dies", async || server.size("/api/ns/dying/deadletter").await == 1).await;
    let text = send(server.admin("GET", "/metrics")).await.expect(200).text;
    let queue = |name: &str| format!("{{namespace=\"ns\",pool=\"default\",queue=\"{name}\"}}");
    let pool = "{pool=\"default\"}";
    let redis = |name: &str| format!("infra_lmstfy_redis_{name}");
    let want = [
        ("queue_sizes", queue("q"), 3.0),
        ("deadletter_sizes", queue("dying"), 1.0),
        ("timer_sizes", pool.into(), 1.0),
        ("publish_jobs", pool.into(), 7.0),
        ("publish_queue_jobs", queue("q"), 6.0),
        ("consume_jobs", pool.into(), 3.0),
        ("consume_queue_jobs", queue("q"), 2.0),
        ("consume_multi_jobs", pool.into(), 1.0),
        ("queue_direct_push_jobs", pool.into(), 6.0),
        ("queue_pop_jobs", pool.into(), 3.0),
        ("pool_add_jobs", pool.into(), 7.0),
        ("pool_delete_jobs", pool.into(), 2.0),
    ];
    for (name, labels, value) in want {
        assert_eq!(series(&text, &redis(name), &labels), Some(value), "{name}{labels} in:\n{text}");
    }
    let mut names = vec![
        "pool_get_jobs",
        "timer_add_jobs",
        "timer_due_jobs",
        "timer_full_batches",
        "deadletter_respawn_jobs",
        "job_elapsed_ms_bucket",
        "job_ack_elapsed_ms_bucket",
        "latency_bucket",
        "qps",
    ];
    if on_redis {
        names.extend([
            "max_mem_bytes",
            "used_mem_bytes",
            "connections",
            "blocking_connections",
            "total_keys",
            "total_ttl_keys",
        ]);
    }
    for name in names {
        assert!(series(&text, &redis(name), "{").is_some(), "no {name} in:\n{text}");
    }
    for name in ["latency_milliseconds_bucket", "http_codes", "rate_limit"] {
        assert!(series(&text, &format!("infra_lmstfy_http_{name}"), "{").is_some(), "no {name} in:\n{text}");
    }
    assert!(text.contains("api=\"/api/:namespace/:queue/job/:job_id\""), "routes as patterns:\n{text}");
    assert!(text.contains("le=\"37.5\"") && text.contains("le=\"52.5\""), "lmstfy's buckets:\n{text}");
    assert!(!text.contains(&token), "a token is a secret, and the metrics show it");

    // A deleted queue disappears from the sizes.
    send(server.api("DELETE", "/api/ns/q", &token)).await.expect(204);
    server.sampled().await;
    let text = send(server.admin("GET", "/metrics")).await.expect(200).text;
    let left = series(&text, &redis("queue_sizes"), &queue("q"));
    assert!(left.is_none_or(|size| size == 0.0), "a destroyed queue still shows {left:?}");
}

on_each_store!(metrics_tell_what_dashboards_read);

#[tokio::test]
async fn strangers_cannot_fill_the_metrics() {
    let server = TestServer::on_disk().await;
    for i in 0..50 {
        let request = format!(
            "BREW{i} /api/strange{i}/q{i} HTTP/1.1\r\nHost: x\r\nX-Token: bad\r\nConnection: close\r\n\r\n"
        );
        raw(server.api_addr, request.as_bytes()).await;
        send(server.api("PUT", &format!("/api/strange{i}/q"), "bad").body("x")).await.expect(401);
        send(server.api("GET", &format!("/api/strange{i}/q/size"), "")).await.expect(200);
        send(server.api("GET", &format!("/strange{i}"), "")).await.expect(404);
    }
    let text = send(server.admin("GET", "/metrics")).await.text;
    let lines: Vec<&str> =
        text.lines().filter(|line| line.contains("strange") || line.contains("BREW")).collect();
    assert!(lines.is_empty(), "made by strangers, without a token:\n{}", lines.join("\n"));
}

/// Guards against a list of names that fails because of a single key of another program.
#[tokio::test]
async fn a_key_of_another_type_hides_no_names_and_no_sizes() {
    let redis = RedisServer::start();
    let mut conn = redis.connection();
    let server = TestServer::on(Store::Redis(redis)).await;
    let token = server.token("ns").await;
    for queue in ["a", "b"] {
        send(server.api("PUT", &format!("/api/ns/{queue}"), &token).body("x")).await.expect(201);
    }
    let _: () = redis::cmd("SET").arg("d/ns/a").arg("x").query(&mut conn).expect("SET");
    let info = send(server.admin("GET", "/info")).await.expect(200);
    assert_eq!(info.json["ns"], serde_json::json!(["a", "b"]), "the names");
    let list = send(server.api("GET", "/api/ns", &token)).await.expect(200);
    let names: Vec<_> = list.json["queues"].as_array().expect("queues").iter().map(|q| &q["queue"]).collect();
    assert_eq!(names, ["a", "b"], "the list of queues, {list:?}");
    let metrics = send(server.admin("GET", "/metrics")).await.expect(200).text;
    for queue in ["a", "b"] {
        let labels = format!("{{namespace=\"ns\",pool=\"default\",queue=\"{queue}\"}}");
        for (name, size) in [("queue_sizes", 1.0), ("deadletter_sizes", 0.0)] {
            let shown = series(&metrics, &format!("infra_lmstfy_redis_{name}"), &labels);
            assert_eq!(shown, Some(size), "{name}{labels} in:\n{metrics}");
        }
    }
}
