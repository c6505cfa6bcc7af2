//! A server on a Redis Cluster: replies while part of the pool is unavailable, and requests that are not affected.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use reqwest::RequestBuilder;
use serde_json::{Value, json};

use crate::common::until_status;
use crate::support::client::{Response, send};
use crate::support::redis_cluster::RedisCluster;
use crate::support::redis_server::RedisServer;
use crate::support::servers::{Store, TestServer};
use crate::support::wait::until;

/// Returns an empty pool on a cluster. Each pool on a cluster has its own name.
pub fn pool_on(cluster: &Arc<RedisCluster>, name: &str) -> Store {
    // A prefix has at most 64 characters.
    let (addrs, prefix) = (cluster.address().addrs, &name[..name.len().min(64)]);
    let keys = format!("Cluster = {addrs:?}\nPrefix = {prefix:?}\nPartitions = 8\n");
    Store::Other { keys, _keep: cluster.clone() }
}

/// Makes one test of several functions that take a [`Store`]. They run one after another, on pools of one cluster,
/// which takes seconds to start.
macro_rules! on_a_cluster {
    ($($test:ident),+ $(,)?) => {
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn on_a_cluster() {
            let cluster = std::sync::Arc::new($crate::support::redis_cluster::RedisCluster::start_of(3, 0));
            $($test($crate::cluster::pool_on(&cluster, stringify!($test))).await;)+
        }
    };
}

pub(crate) use on_a_cluster;

/// The slots of the partitions of a pool of eight.
const SLOTS: [u16; 8] = [1024, 3072, 5120, 7168, 9216, 11_264, 13_312, 15_360];

/// Checks for a 503 with this text, and Retry-After.
fn assert_503(answer: &Response, text: &str, what: &str) {
    assert_eq!(answer.status, 503, "{what}: {answer:?}");
    assert_eq!(answer.says(), text, "{what}");
    let after = answer.headers.get("retry-after").map(|value| value.as_bytes());
    assert_eq!(after, Some(&b"1"[..]), "{what}: Retry-After");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_a_part_cannot_be_used_its_callers_are_told_so_and_others_go_on() {
    let mut cluster = RedisCluster::start_of(3, 0).quick();
    let (tokens, addrs) = (RedisServer::start(), cluster.address().addrs);
    let toml =
        format!("[Pool.default]\nCluster = {addrs:?}\nPartitions = 8\n[AdminRedis]\n{}", tokens.keys());
    let server = TestServer::start(&toml, tokens).await;
    let token = server.token("ns").await;
    // A queue's home partition is the one where its first job creates keys.
    let mut homes: BTreeMap<usize, String> = BTreeMap::new();
    for n in 0..100 {
        let (before, queue) = (keys(&cluster), format!("/api/ns/q{n}"));
        server.put(&token, &queue, "x").await.expect(201);
        let after = keys(&cluster);
        // The pump may write a key in any partition; a new queue has several.
        let home = (0..SLOTS.len()).max_by_key(|part| after[*part].saturating_sub(before[*part]));
        homes.insert(home.expect("a partition"), queue);
        if homes.len() == SLOTS.len() {
            break;
        }
    }
    let path = |part: usize| homes[&part].clone();
    // A node that does not reply to a check in time counts as down.
    let all = until_seen(&server, "every node is up", |all| {
        let nodes = all["nodes"].as_array().expect("an array");
        all["away"] == json!([]) && nodes.len() == 3 && nodes.iter().all(|node| node["up"] == json!(true))
    })
    .await;
    assert_eq!(
        (&all["pool"], &all["prefix"], &all["partitions"], &all["wait_replicas"]),
        (&json!("default"), &json!("default"), &json!(8), &json!(0)),
        "{all}"
    );
    assert_eq!([&all["away"], &all["moving"], &all["split"]], [&json!([]); 3], "{all}");
    let nodes = all["nodes"].as_array().expect("an array");
    let addrs: BTreeSet<&str> = nodes.iter().filter_map(|node| node["addr"].as_str()).collect();
    assert_eq!(
        addrs,
        cluster
            .servers
            .iter()
            .map(RedisServer::addr)
            .collect::<Vec<_>>()
            .iter()
            .map(String::as_str)
            .collect()
    );
    for node in nodes {
        assert_eq!((&node["up"], &node["replicas"]), (&json!(true), &json!(0)), "{node}");
        assert!((2..=3).contains(&node["partitions"].as_u64().expect("a number")), "{node}");
        assert!(node["used_memory"].as_u64().expect("a number") > 100_000, "{node}");
        assert!(node["id"].as_str().is_some_and(|id| id.len() == 40), "{node}");
        assert!(node["version"].as_str().is_some_and(|version| version.contains('.')), "{node}");
    }
    until_seen(&server, "every clock was looked at", |all| {
        let off = |node: &Value| node["clock_ms"].as_f64().is_some_and(|off| off.abs() < 100.0);
        all["nodes"].as_array().expect("an array").iter().all(off)
    })
    .await;
    server.put(&token, &format!("{}?delay=1000", path(3)), "later").await.expect(201);
    let queue = path(3).split('/').next_back().expect("a name").to_owned();
    let of = seen(&server, &format!("?namespace=ns&queue={queue}")).await["queue"].clone();
    assert_eq!((&of["home"], &of["spread"]), (&json!(3), &json!(false)), "{of}");
    let there = &of["jobs"][0];
    let counts = ["partition", "ready", "delayed", "running", "dead"].map(|of| there[of].as_u64());
    assert_eq!(counts, [3, 1, 1, 0, 0].map(Some), "{of}");
    assert_eq!(there["node"], json!(cluster.servers[cluster.master_of(SLOTS[3]).0].addr()), "{of}");
    for (query, text) in [
        ("?pool=none", "invalid pool"),
        ("?queue=q", "invalid namespace: a queue requires its namespace"),
        ("?namespace=ns", "invalid queue: a namespace alone has no partition"),
        ("?namespace=n%20s&queue=q", "invalid namespace"),
        ("?namespace=ns&queue=q%20q", "invalid queue"),
    ] {
        let answer = send(server.admin("GET", &format!("/cluster{query}"))).await.expect(400);
        assert_eq!(answer.says(), text, "{query}");
    }
    let moved = SLOTS[0];
    cluster.begin_move(moved, 1);
    let calls =
        [("PUT", path(0)), ("GET", path(0)), ("GET", format!("{}/peek", path(0))), ("DELETE", path(0))];
    let mut asked = tokio::task::JoinSet::new();
    for (method, path) in calls.clone() {
        let request = server.api(method, &path, &token);
        asked.spawn(async move { (path, send(request).await) });
    }
    let elsewhere = server.put(&token, &path(1), "y").await;
    elsewhere.expect(201);
    until_seen(&server, "it moves", |all| all["moving"] == json!([0])).await;
    while let Some(answer) = asked.join_next().await {
        let (path, answer) = answer.expect("no panic");
        assert_503(&answer, "this part of the pool is being moved", &path);
    }
    cluster.move_keys(moved, 1, 1);
    cluster.end_move(moved, 1);
    server.put(&token, &path(0), "y").await.expect(201);
    until_status(200, async || send(server.admin("GET", "/ready")).await).await;

    let of_server =
        |n: usize| (0..SLOTS.len()).filter(|part| cluster.master_of(SLOTS[*part]).0 == n).collect::<Vec<_>>();
    let (gone_parts, lives_parts) = (of_server(2), of_server(0).len());
    assert!(gone_parts.contains(&7), "{gone_parts:?}");
    cluster.servers[2].kill();
    until("its partition is unavailable", async || server.put(&token, &path(7), "z").await.status == 503)
        .await;
    let gone = cluster.servers[2].addr();
    let is_gone = |node: &Value| node["addr"] == json!(gone) && node["up"] == json!(false);
    until_seen(&server, "its node is away, with its partitions", |all| {
        all["away"] == json!(gone_parts) && all["nodes"].as_array().expect("an array").iter().any(is_gone)
    })
    .await;
    let away = json!([{"pool": "default", "partitions": gone_parts}]);
    for query in ["", "?all=0"] {
        for ready in
            [server.admin("GET", &format!("/ready{query}")), server.api("GET", &format!("/ready{query}"), "")]
        {
            until_answer(ready, 200, &json!({"ready": true, "away": away})).await;
        }
    }
    let reason = "pool default: some parts cannot be used now";
    let expected = json!({"ready": false, "reason": reason, "away": away});
    until_answer(server.admin("GET", "/ready?all=1"), 503, &expected).await;
    let (lives, away) = (cluster.servers[0].addr(), gone_parts.len());
    let lines = [
        "\ndormouse_pool_up{pool=\"default\"} 1\n".to_owned(),
        "\ndormouse_ready 1\n".to_owned(),
        format!("\ndormouse_cluster_partitions_unreachable{{pool=\"default\",state=\"away\"}} {away}\n"),
        "\ndormouse_cluster_partitions_unreachable{pool=\"default\",state=\"split\"} 0\n".to_owned(),
        format!("\ndormouse_cluster_partitions{{node=\"{lives}\",pool=\"default\"}} {lives_parts}\n"),
        format!("\ninfra_lmstfy_redis_used_mem_bytes{{node=\"{lives}\",pool=\"default\"}} "),
        format!("\ndormouse_cluster_clock_difference_seconds{{node=\"{lives}\",pool=\"default\"}} "),
    ];
    let mut text = String::new();
    until(&format!("a scrape has {lines:#?}"), async || {
        text = send(server.admin("GET", "/metrics")).await.expect(200).text;
        lines.iter().all(|line| text.contains(line))
    })
    .await;
    let moving = "\ndormouse_cluster_redirections_total{kind=\"moving\",pool=\"default\"} ";
    let count = text.split(moving).nth(1).and_then(|rest| rest.split('\n').next()).expect(moving);
    assert!(
        count.parse::<u64>().expect("a number") > 10,
        "calls were sent again while the slot moved: {count}"
    );
    for (method, at) in &calls {
        let at = at.replace(&path(0), &path(7));
        let answer = send(server.api(method, &at, &token)).await;
        assert_503(&answer, "this part of the pool cannot be reached", &at);
    }
    server.put(&token, &path(0), "z").await.expect(201);
    until_status(200, async || send(server.admin("GET", "/ready")).await).await;
    assert!(cluster.servers[2].launch(), "it restarts");
    until("it is used again", async || server.put(&token, &path(7), "z").await.status == 201).await;
    until("all works", async || send(server.admin("GET", "/ready?all=1")).await.status == 200).await;
    until_answer(server.admin("GET", "/ready"), 200, &json!({"ready": true})).await;
    server.stop().await;
}

/// Sends a request until it gets this response.
async fn until_answer(request: RequestBuilder, status: u16, json: &Value) {
    until(&format!("{status} {json}"), async || {
        let answer = send(request.try_clone().expect("it has no stream")).await;
        (answer.status, &answer.json) == (status, json)
    })
    .await;
}

/// Returns the reply of `/cluster` once it shows this.
async fn until_seen(server: &TestServer, what: &str, shows: impl Fn(&Value) -> bool) -> Value {
    let mut all = Value::Null;
    until(what, async || {
        all = seen(server, "").await;
        shows(&all)
    })
    .await;
    all
}

/// Returns the reply of `/cluster`.
async fn seen(server: &TestServer, query: &str) -> Value {
    send(server.admin("GET", &format!("/cluster{query}"))).await.expect(200).json
}

/// Tokens, limits, quotas and push without an `[AdminRedis]`, on two servers, and while a node is down.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_keeps_tokens_limits_quotas_and_push() {
    let mut cluster = RedisCluster::start_of(3, 0).quick();
    let addrs = cluster.address().addrs;
    let toml =
        format!("PushAllow = [\"127.0.0.0/8\"]\n[Pool.default]\nCluster = {addrs:?}\nPartitions = 8\n");
    let (server, other) = (TestServer::start(&toml, ()).await, TestServer::start(&toml, ()).await);
    let mut tokens = BTreeMap::new();
    for n in 0..12 {
        let namespace = format!("ns{n}");
        let token = server.token(&namespace).await;
        let at = format!("/token/{namespace}/{token}/limit");
        let limit = json!({"read": 100, "write": 1, "interval": 600});
        send(server.admin("POST", &at).body(limit.to_string())).await.expect(201);
        let quota = format!("/quota/{namespace}");
        send(server.admin("PUT", &quota).body(json!({"jobs": 100 + n}).to_string())).await.expect(200);
        let push = format!("/push/{namespace}/q");
        send(server.admin("PUT", &push).body(json!({"url": "http://127.0.0.1:9/"}).to_string()))
            .await
            .expect(200);
        tokens.insert(namespace, token);
    }
    for (n, (namespace, token)) in tokens.iter().enumerate() {
        // One publish at each server; the limit counts both.
        let (first, second) = if n % 2 == 0 { (&server, &other) } else { (&other, &server) };
        let path = format!("/api/{namespace}/jobs");
        first.put(token, &path, "x").await.expect(201);
        second.put(token, &path, "x").await.expect(429);
        let quota = send(other.admin("GET", &format!("/quota/{namespace}"))).await.expect(200).json;
        assert!(quota["jobs"].as_u64().is_some_and(|jobs| jobs >= 100), "{quota}");
        let push = send(other.admin("GET", &format!("/push/{namespace}/q"))).await.expect(200).json;
        assert_eq!(push["url"], json!("http://127.0.0.1:9/"), "{push}");
    }
    let limits = send(other.admin("GET", "/limits")).await.expect(200).json;
    assert_eq!(limits.as_array().map(Vec::len), Some(12), "{limits}");
    let homes: BTreeSet<usize> = cluster
        .servers
        .iter()
        .enumerate()
        .filter(|(_, server)| {
            let keys: Vec<String> =
                redis::cmd("KEYS").arg("default/{*}tk/*").query(&mut server.connection()).expect("keys");
            !keys.is_empty()
        })
        .map(|(n, _)| n)
        .collect();
    assert_eq!(homes.len(), 3, "tokens lie on all masters: {homes:?}");

    cluster.servers[2].kill();
    let asked = async |namespace: &str| {
        let token = send(server.admin("GET", &format!("/token/{namespace}"))).await;
        token.status
    };
    until("it is noticed", async || {
        let mut noticed = false;
        for namespace in tokens.keys() {
            noticed |= asked(namespace).await == 503;
        }
        noticed
    })
    .await;
    let mut answers = BTreeMap::<u16, usize>::new();
    for namespace in tokens.keys() {
        *answers.entry(asked(namespace).await).or_default() += 1;
    }
    assert!(answers.len() == 2 && answers.contains_key(&200) && answers.contains_key(&503), "{answers:?}");
    assert!(cluster.servers[2].launch(), "it restarts");
    until("all tokens are available again", async || {
        let mut well = true;
        for namespace in tokens.keys() {
            well &= asked(namespace).await == 200;
        }
        well
    })
    .await;
    server.stop().await;
    other.stop().await;
}

#[tokio::test]
async fn a_pool_that_is_in_no_cluster_has_no_nodes_and_accounts_guard_them() {
    let store = Store::disk();
    let toml = format!("{}[Accounts]\noperator = \"secret\"\n", store.toml());
    let server = TestServer::start(&toml, store).await;
    send(server.admin("GET", "/cluster")).await.expect(401);
    let answer = send(server.admin("GET", "/cluster").basic_auth("operator", Some("secret"))).await;
    assert_eq!(answer.expect(400).says(), "the pool is not in a cluster");
    server.stop().await;
}

/// Returns the number of keys in each partition's slot.
fn keys(cluster: &RedisCluster) -> Vec<u64> {
    let count = |slot: &u16| {
        let (server, _) = cluster.master_of(*slot);
        cluster.tell(server, &["CLUSTER", "COUNTKEYSINSLOT", &slot.to_string()])
    };
    SLOTS.iter().map(count).collect()
}

/// Guards against a successful reply that a failover revokes, and against consumers that it interrupts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_enough_replicas_changes_are_refused_and_consumers_go_on() {
    let cluster = RedisCluster::start_of(3, 0);
    let (tokens, addrs) = (RedisServer::start(), cluster.address().addrs);
    let toml = |wait: u8| {
        let pool = format!("Cluster = {addrs:?}\nPartitions = 8\nPrefix = \"p\"\nWaitReplicas = {wait}\n");
        format!("[Pool.default]\n{pool}Spread = [\"ns/all\"]\n[AdminRedis]\n{}", tokens.keys())
    };
    let (careful, other) = (TestServer::start(&toml(1), ()).await, TestServer::start(&toml(0), ()).await);
    let token = other.token("ns").await;
    for queue in ["one", "all"] {
        let path = format!("/api/ns/{queue}");
        let id = other.put(&token, &path, "x").await.expect(201).job_id();
        for (method, path) in [
            ("PUT", path.clone()),
            ("POST", format!("{path}/jobs")),
            ("PUT", format!("{path}/bulk")),
            ("DELETE", format!("{path}/job/{id}")),
        ] {
            let body = if path.ends_with("bulk") { "[\"a\"]" } else { "y" };
            let answer = send(careful.api(method, &path, &token).body(body)).await;
            assert_503(&answer, "too few replicas", &format!("{method} {path}"));
        }
        let taken = careful.get(&token, &path).await.expect(200);
        assert_eq!(taken.data(), b"x", "hand-overs do not wait, and nothing else was stored in {queue}");
        careful.get(&token, &path).await.expect(404);
    }
    careful.stop().await;
    other.stop().await;
}

/// Guards against a page that shows a queue on the wrong node.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_that_is_spread_is_shown_in_all_its_parts_and_answers_as_others_do() {
    let cluster = RedisCluster::start_of(3, 0);
    let (tokens, addrs) = (RedisServer::start(), cluster.address().addrs);
    let pool = format!("Cluster = {addrs:?}\nPartitions = 8\nSpread = [\"ns/all-*\"]\n");
    let toml = format!("[Pool.default]\n{pool}[AdminRedis]\n{}", tokens.keys());
    let (server, other) = (TestServer::start(&toml, ()).await, TestServer::start(&toml, ()).await);
    let token = server.token("ns").await;
    let path = "/api/ns/all-of-it";
    for n in 0..40 {
        server.put(&token, path, &n.to_string()).await.expect(201);
    }
    let bulk: Vec<String> = (40..50).map(|n| n.to_string()).collect();
    let request = |server: &TestServer| {
        let bulk = server.api("PUT", &format!("{path}/bulk"), &token).body(format!("[{}]", bulk.join(",")));
        bulk.header("idempotency-key", "once")
    };
    let first = send(request(&server)).await.expect(201);
    let again = send(request(&other)).await.expect(201);
    assert_eq!(first.json, again.json, "the other server knows it");
    let of = seen(&other, "?namespace=ns&queue=all-of-it").await["queue"].clone();
    assert_eq!(of["spread"], json!(true), "{of}");
    let parts = of["jobs"].as_array().expect("an array");
    let ready: u64 = parts.iter().filter_map(|part| part["ready"].as_u64()).sum();
    assert!(parts.len() > 4 && ready == 50, "{of}");
    let nodes: BTreeSet<&str> = parts.iter().filter_map(|part| part["node"].as_str()).collect();
    assert_eq!(nodes.len(), 3, "{of}");
    let size = other.get(&token, &format!("{path}/size")).await.expect(200);
    assert_eq!(size.json["size"], json!(50));
    let keyed =
        |server: &TestServer, key: &str| server.api("POST", &format!("{path}/jobs?key={key}"), &token);
    let (a, b) = (send(keyed(&server, "k").body("x")).await, send(keyed(&other, "k").body("y")).await);
    assert_eq!((a.status, b.status), (201, 201));
    assert_eq!(a.json["job_id"], b.json["job_id"], "one job has the key: {a:?} {b:?}");
    let mut taken = BTreeSet::new();
    loop {
        let answer = other.get(&token, path).await;
        if answer.status == 404 {
            break;
        }
        let id = answer.expect(200).job_id();
        send(server.api("DELETE", &format!("{path}/job/{id}"), &token)).await.expect(204);
        assert!(taken.insert(id), "once");
    }
    assert_eq!(taken.len(), 51, "every part was empty when it was said to be");
    server.stop().await;
    other.stop().await;
}

/// Guards against a failed batch that does not report how much it stored, and against a repeat that stores a job twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_with_several_keys_that_fails_reports_how_many_jobs_are_stored() {
    let cluster = RedisCluster::start_of(3, 0);
    let (tokens, addrs) = (RedisServer::start(), cluster.address().addrs);
    let pool = format!("Cluster = {addrs:?}\nPartitions = 8\nSpread = [\"ns/q\"]\n");
    let toml = format!("[Pool.default]\n{pool}[AdminRedis]\n{}", tokens.keys());
    let server = TestServer::start(&toml, tokens).await;
    let token = server.token("ns").await;
    let batch = async || {
        let jobs: Vec<Value> = (0..32).map(|n| json!({"text": "x", "key": format!("k{n}")})).collect();
        send(server.api("POST", "/api/ns/q/jobs/batch", &token).body(json!(jobs).to_string())).await
    };
    // The batch is stored partition by partition, in order.
    let last = SLOTS[7];
    let (from, to) = (cluster.master_of(last).0, (cluster.master_of(last).0 + 1) % 3);
    cluster.begin_move(last, to);
    let failed = batch().await;
    assert_503(&failed, "this part of the pool is being moved", "the batch");
    let stored = failed.json["stored"].as_u64().unwrap_or_else(|| panic!("no number of jobs: {failed:?}"));
    assert!((1..32).contains(&stored), "some of 32 jobs are in the last partition: {failed:?}");
    cluster.end_move(last, from);
    until("the slot is back", async || batch().await.status == 201).await;
    let again = batch().await.expect(201);
    let jobs = again.json["jobs"].as_array().unwrap_or_else(|| panic!("no jobs: {again:?}"));
    assert!(jobs.iter().all(|job| job["duplicate"] == json!(true)), "all keys are taken: {again:?}");
    assert_eq!(server.get(&token, "/api/ns/q/size").await.expect(200).json["size"], json!(32));
}

/// Guards against an error or an empty reply for a waiting consumer while a master is down.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_waits_at_a_queue_that_is_spread_goes_on_waiting_while_a_master_is_away() {
    let mut cluster = RedisCluster::start_of(3, 0).quick();
    let (tokens, addrs) = (RedisServer::start(), cluster.address().addrs);
    let pool = format!("Cluster = {addrs:?}\nPartitions = 8\nSpread = [\"ns/all\"]\n");
    let toml = format!("[Pool.default]\n{pool}[AdminRedis]\n{}", tokens.keys());
    let server = TestServer::start(&toml, tokens).await;
    let (token, path) = (server.token("ns").await, "/api/ns/all");
    server.put(&token, path, "x").await.expect(201);
    server.get(&token, path).await.expect(200);
    server.get(&token, path).await.expect(404);
    let waits = tokio::spawn(send(server.api("GET", &format!("{path}?timeout=30"), &token)));
    // A call that is sent to the master while it dies is answered 500.
    server.until_parked(1).await;
    cluster.servers[2].kill();
    until("it is away", async || send(server.admin("GET", "/ready?all=1")).await.status == 503).await;
    let away = "this part of the pool cannot be reached";
    until("nobody waits for it", async || server.get(&token, path).await.status == 503).await;
    assert_503(&server.get(&token, path).await, away, "a consume without timeout");
    let began = std::time::Instant::now();
    assert_503(&server.get(&token, &format!("{path}?timeout=3")).await, away, "at the end of its time");
    assert!(began.elapsed().as_millis() >= 2900, "it waited for {:?}", began.elapsed());
    assert!(!waits.is_finished(), "it keeps waiting");
    server.put(&token, path, "y").await.expect(201);
    assert_eq!(waits.await.expect("no panic").expect(200).data(), b"y", "what another part has");
    server.stop().await;
}
