//! A real Redis Cluster for one test: six redis-servers, three of them masters, configured by redis-cli.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use dormouse::engine::redis::RedisAddress;

use super::redis_server::RedisServer;

/// Timeout for the nodes to agree.
const AGREE: Duration = Duration::from_secs(30);
/// Time without a reply after which the nodes of a [`quick`](RedisCluster::quick) cluster consider one of them down,
/// in milliseconds.
pub const NODE_TIMEOUT: u64 = 1000;
/// The node timeout of other clusters: a stall of the machine is no failure of a node.
pub const STEADY_TIMEOUT: u64 = 20_000;

/// Its servers: masters first, then a replica of each.
#[derive(Debug)]
pub struct RedisCluster {
    pub servers: Vec<RedisServer>,
    /// How many of them are replicas.
    replicas: usize,
    /// Node timeout in milliseconds.
    timeout: u64,
}

impl RedisCluster {
    /// Starts three masters with a replica each.
    #[allow(dead_code)] // not every test binary needs replicas
    pub fn start() -> RedisCluster {
        RedisCluster::start_of(6, 1)
    }

    /// Starts a cluster of `servers` servers, with `replicas` replicas per master.
    pub fn start_of(servers: usize, replicas: usize) -> RedisCluster {
        RedisCluster::of((0..servers).map(|_| RedisCluster::server()).collect(), replicas)
    }

    /// Creates a cluster of these servers, with `replicas` replicas per master.
    pub fn of(servers: Vec<RedisServer>, replicas: usize) -> RedisCluster {
        let of_all = servers.len() * replicas / (1 + replicas);
        let cluster = RedisCluster { replicas: of_all, servers, timeout: STEADY_TIMEOUT };
        let addrs: Vec<String> = cluster.servers.iter().map(RedisServer::addr).collect();
        let replicas = replicas.to_string();
        let mut args: Vec<&str> = vec!["--cluster", "create"];
        args.extend(addrs.iter().map(String::as_str));
        args.extend(["--cluster-replicas", &replicas, "--cluster-yes"]);
        cli(&args);
        cluster.agree();
        cluster
    }

    /// Makes the nodes detect a failed node within [`NODE_TIMEOUT`].
    #[allow(dead_code)] // not every test binary stops a node
    pub fn quick(mut self) -> RedisCluster {
        self.timeout = NODE_TIMEOUT;
        self.set_timeout(self.timeout);
        self
    }

    /// Sets the node timeout, in milliseconds, until the nodes next [`agree`](RedisCluster::agree).
    pub fn set_timeout(&self, timeout: u64) {
        for server in self.alive() {
            let mut set = redis::cmd("CONFIG");
            set.arg("SET").arg("cluster-node-timeout").arg(timeout);
            set.query::<()>(&mut server.connection()).expect("a node takes its timeout");
        }
    }

    /// Starts a server that can become a node.
    pub fn server() -> RedisServer {
        RedisCluster::server_with(&[])
    }

    /// Like `server`, with further arguments.
    pub fn server_with(more: &[&[&str]]) -> RedisServer {
        let timeout = NODE_TIMEOUT.to_string();
        let args = ["--cluster-enabled", "yes", "--cluster-node-timeout", &timeout];
        let quick = ["--repl-diskless-sync-delay", "0", "--cluster-require-full-coverage", "no"];
        let packs = ["--hash-max-listpack-value", "1100"];
        let more = more.iter().flat_map(|args| args.iter().copied());
        RedisServer::start_with(
            None,
            &args.into_iter().chain(quick).chain(packs).chain(more).collect::<Vec<_>>(),
        )
    }

    /// Returns the address of the cluster: its first three nodes.
    pub fn address(&self) -> RedisAddress {
        let addrs = self.servers.iter().take(3).map(RedisServer::addr).collect();
        RedisAddress { addrs, cluster: true, ..RedisAddress::default() }
    }

    /// Returns the running servers.
    pub fn alive(&self) -> impl Iterator<Item = &RedisServer> {
        self.servers.iter().filter(|server| server.child.is_some())
    }

    /// Waits until every running server reports a healthy cluster, and every replica follows its master.
    pub fn agree(&self) {
        let began = Instant::now();
        let agrees = |server: &RedisServer| {
            let mut redis = server.connection();
            let info: String = redis::cmd("CLUSTER").arg("INFO").query(&mut redis).unwrap_or_default();
            let role: String = redis::cmd("INFO").arg("replication").query(&mut redis).unwrap_or_default();
            let nodes: String = redis::cmd("CLUSTER").arg("NODES").query(&mut redis).unwrap_or_default();
            let known = format!("cluster_known_nodes:{}", self.servers.len());
            info.contains("cluster_state:ok")
                && info.contains(&known)
                && nodes.matches(" slave ").count() + nodes.matches("myself,slave ").count() == self.replicas
                && !["fail", "handshake"].iter().any(|flag| nodes.contains(flag))
                && (role.contains("role:master") || role.contains("master_link_status:up"))
        };
        while !self.alive().all(agrees) {
            assert!(began.elapsed() < AGREE, "the nodes did not agree within {AGREE:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
        // Last, since the nodes of a new cluster meet the sooner the shorter it is.
        self.set_timeout(self.timeout);
    }
}

/// Runs redis-cli. Panics if it fails.
pub fn cli(args: &[&str]) {
    let done = Command::new("redis-cli").args(args).stdin(Stdio::null()).output();
    let done =
        done.unwrap_or_else(|e| panic!("redis-cli cannot be run ({e}): run tests/run, which installs it"));
    let said = String::from_utf8_lossy(&done.stdout);
    assert!(done.status.success(), "redis-cli {args:?}: {said} {}", String::from_utf8_lossy(&done.stderr));
}
