//! Administration and faults of a cluster.

use super::redis_cluster::{RedisCluster, cli};

/// A node in another node's view.
#[derive(Clone, Debug)]
pub struct ClusterNode {
    pub id: String,
    pub port: u16,
    pub is_master: bool,
    pub slots: Vec<(u16, u16)>,
}

impl RedisCluster {
    /// Returns the nodes, as the first running server sees them.
    pub fn nodes(&self) -> Vec<ClusterNode> {
        let mut redis = self.alive().next().expect("a server runs").connection();
        let text: String = redis::cmd("CLUSTER").arg("NODES").query(&mut redis).expect("it answers");
        let node = |line: &str| {
            let words: Vec<&str> = line.split(' ').collect();
            let slots = words[8..].iter().filter(|slot| !slot.starts_with('['));
            let range = |slot: &&str| {
                let (first, last) = slot.split_once('-').unwrap_or((slot, slot));
                (first.parse().expect("a slot"), last.parse().expect("a slot"))
            };
            let address = words[1].split('@').next().unwrap_or_default();
            ClusterNode {
                id: words[0].to_owned(),
                port: address.rsplit(':').next().and_then(|port| port.parse().ok()).expect("a port"),
                is_master: words[2].contains("master") && !words[2].contains("fail"),
                slots: slots.map(range).collect(),
            }
        };
        text.lines().map(node).collect()
    }

    /// Returns the master of a slot: its index among the servers, and its id.
    pub fn master_of(&self, slot: u16) -> (usize, String) {
        let nodes = self.nodes();
        let has = |node: &&ClusterNode| node.slots.iter().any(|(a, b)| (*a..=*b).contains(&slot));
        let node = nodes.iter().find(|node| node.is_master && has(node)).expect("a node has the slot");
        (self.server_at(node.port), node.id.clone())
    }

    /// Returns the index of the server on a port.
    pub fn server_at(&self, port: u16) -> usize {
        self.servers.iter().position(|server| server.port == port).expect("a server of the cluster")
    }

    /// Returns the index of a master's replica.
    pub fn replica_of(&self, id: &str) -> usize {
        let mut redis = self.alive().next().expect("a server runs").connection();
        let of: Vec<String> =
            redis::cmd("CLUSTER").arg("REPLICAS").arg(id).query(&mut redis).expect("it answers");
        let address = of.first().and_then(|line| line.split(' ').nth(1)).expect("it has a replica");
        let port =
            address.split('@').next().and_then(|at| at.rsplit(':').next()).and_then(|p| p.parse().ok());
        self.server_at(port.expect("a port"))
    }

    /// Whether the replicas of a master have all of its writes. WAIT does not help, since it covers only writes of its
    /// own connection.
    pub fn is_copied(&self, server: usize) -> bool {
        let info: String = self.tell(server, &["INFO", "replication"]);
        let field =
            |line: &str, name: &str| line.split([',', ':']).find_map(|f| f.strip_prefix(name)?.parse().ok());
        let offset =
            info.lines().find_map(|line| line.strip_prefix("master_repl_offset:")?.parse::<u64>().ok());
        let mut replicas =
            info.lines().filter(|line| line.starts_with("slave")).map(|line| field(line, "offset="));
        replicas.all(|copied: Option<u64>| copied.is_some() && copied >= offset)
    }

    /// Sends a command to a server.
    pub fn tell<T: redis::FromRedisValue>(&self, server: usize, words: &[&str]) -> T {
        let mut cmd = redis::cmd(words[0]);
        cmd.arg(&words[1..]);
        cmd.query(&mut self.servers[server].connection()).unwrap_or_else(|e| panic!("{words:?}: {e}"))
    }

    /// Starts to migrate a slot from its master to another.
    pub fn begin_move(&self, slot: u16, to: usize) {
        let (from, from_id) = self.master_of(slot);
        let to_id: String = self.tell(to, &["CLUSTER", "MYID"]);
        let slot = slot.to_string();
        self.tell::<()>(to, &["CLUSTER", "SETSLOT", &slot, "IMPORTING", &from_id]);
        self.tell::<()>(from, &["CLUSTER", "SETSLOT", &slot, "MIGRATING", &to_id]);
    }

    /// Migrates every n-th key of a slot. Returns their number.
    pub fn move_keys(&self, slot: u16, to: usize, every: usize) -> usize {
        let (from, _) = self.master_of(slot);
        let keys: Vec<Vec<u8>> = self.tell(from, &["CLUSTER", "GETKEYSINSLOT", &slot.to_string(), "100000"]);
        let mut redis = self.servers[from].connection();
        let mut moved = 0;
        for key in keys.iter().step_by(every) {
            let mut cmd = redis::cmd("MIGRATE");
            cmd.arg("127.0.0.1").arg(self.servers[to].port).arg(key).arg(0).arg(5000);
            cmd.query::<()>(&mut redis).expect("a key moves");
            moved += 1;
        }
        moved
    }

    /// Assigns a migrated slot to its new master, on all masters.
    pub fn end_move(&self, slot: u16, to: usize) {
        let id: String = self.tell(to, &["CLUSTER", "MYID"]);
        let (from, _) = self.master_of(slot);
        let masters = self.nodes().into_iter().filter(|node| node.is_master);
        let mut all = vec![to, from];
        all.extend(masters.map(|node| self.server_at(node.port)));
        for server in all {
            self.tell::<()>(server, &["CLUSTER", "SETSLOT", &slot.to_string(), "NODE", &id]);
        }
    }

    /// Runs `redis-cli --cluster fix`.
    pub fn fix(&self) {
        let at = self.alive().next().expect("a server runs").addr();
        cli(&["--cluster", "fix", &at, "--cluster-yes"]);
    }
}
