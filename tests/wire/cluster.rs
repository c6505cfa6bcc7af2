//! A server on a Redis Cluster: what callers are told while a part of the pool cannot be used, and that others do not
//! notice.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::support::client::{Response, send};
use crate::support::redis_cluster::RedisCluster;
use crate::support::redis_server::RedisServer;
use crate::support::servers::{Store, TestServer};
use crate::support::wait::until;

/// An empty pool on a cluster. Pools on one cluster have names of their own.
pub fn pool_on(cluster: &Arc<RedisCluster>, name: &str) -> Store {
    // A prefix has 64 characters at most.
    let (addrs, prefix) = (cluster.address().addrs, &name[..name.len().min(64)]);
    let keys = format!("Cluster = {addrs:?}\nPrefix = {prefix:?}\nPartitions = 8\n");
    Store::Other { keys, tokens: RedisServer::start(), _keep: cluster.clone() }
}

/// One test of functions that take a [`Store`], one after the other, on pools of one cluster: that takes seconds to
/// start.
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

/// 503 with this text, and when to come again.
fn assert_503(answer: &Response, text: &str, what: &str) {
    assert_eq!(answer.status, 503, "{what}: {answer:?}");
    assert_eq!(answer.says(), text, "{what}");
    let after = answer.headers.get("retry-after").map(|value| value.as_bytes());
    assert_eq!(after, Some(&b"1"[..]), "{what}: Retry-After");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_a_part_cannot_be_used_its_callers_are_told_so_and_others_go_on() {
    let mut cluster = RedisCluster::start_of(3, 0);
    let (tokens, addrs) = (RedisServer::start(), cluster.address().addrs);
    let toml =
        format!("[Pool.default]\nCluster = {addrs:?}\nPartitions = 8\n[AdminRedis]\n{}", tokens.keys());
    let server = TestServer::start(&toml, tokens).await;
    let token = server.token("ns").await;
    // Where the first job of a queue makes keys it is at home.
    let mut homes: BTreeMap<usize, String> = BTreeMap::new();
    for n in 0..100 {
        let (before, queue) = (keys(&cluster), format!("/api/ns/q{n}"));
        server.put(&token, &queue, "x").await.expect(201);
        let after = keys(&cluster);
        // The pump may write a key anywhere; a new queue has several.
        let home = (0..SLOTS.len()).max_by_key(|part| after[*part].saturating_sub(before[*part]));
        homes.insert(home.expect("a partition"), queue);
        if homes.len() == SLOTS.len() {
            break;
        }
    }
    let path = |part: usize| homes[&part].clone();
    let moved = SLOTS[0];
    cluster.begin_move(moved, 1);
    let calls = [
        ("PUT", path(0)),
        ("GET", path(0)),
        ("GET", format!("{}/peek", path(0))),
        ("DELETE", path(0)),
        ("POST", format!("{}/pause", path(0))),
    ];
    let mut asked = tokio::task::JoinSet::new();
    for (method, path) in calls.clone() {
        let request = server.api(method, &path, &token);
        asked.spawn(async move { (path, send(request).await) });
    }
    let elsewhere = server.put(&token, &path(1), "y").await;
    elsewhere.expect(201);
    while let Some(answer) = asked.join_next().await {
        let (path, answer) = answer.expect("no panic");
        assert_503(&answer, "this part of the pool is being moved", &path);
    }
    cluster.move_keys(moved, 1, 1);
    cluster.end_move(moved, 1);
    server.put(&token, &path(0), "y").await.expect(201);
    send(server.admin("GET", "/ready")).await.expect(200);

    cluster.servers[2].kill();
    until("its part is away", async || server.put(&token, &path(7), "z").await.status == 503).await;
    for (method, at) in calls {
        let at = at.replace(&path(0), &path(7));
        let answer = send(server.api(method, &at, &token)).await;
        assert_503(&answer, "this part of the pool cannot be reached", &at);
    }
    server.put(&token, &path(0), "z").await.expect(201);
    send(server.admin("GET", "/ready")).await.expect(200);
    assert!(cluster.servers[2].launch(), "it comes back");
    until("it is used again", async || server.put(&token, &path(7), "z").await.status == 201).await;
    server.stop().await;
}

/// How many keys each partition's slot has.
fn keys(cluster: &RedisCluster) -> Vec<u64> {
    let count = |slot: &u16| {
        let (server, _) = cluster.master_of(*slot);
        cluster.tell(server, &["CLUSTER", "COUNTKEYSINSLOT", &slot.to_string()])
    };
    SLOTS.iter().map(count).collect()
}
