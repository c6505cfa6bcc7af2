//! Whether a server can start with a configuration. Each error is one line that says what to change. Checks only
//! the configuration itself, no file and no store.

use std::path::Path;

use super::keys::{Config, ConfigError, Layout, PoolConfig};
use crate::name::PoolName;

impl Config {
    /// The first thing that is wrong.
    pub(super) fn validate(&self) -> Result<(), ConfigError> {
        let err = |line: String| Err(ConfigError(line));
        for (key, host) in [("Host", &self.host), ("AdminHost", &self.admin_host)] {
            if host.is_empty() {
                return err(format!("{key} is empty: name the address to listen on, such as \"0.0.0.0\""));
            }
        }
        for (key, most) in [
            ("MaxConnections", self.max_connections),
            ("MaxParkedPolls", self.max_parked_polls),
            ("MaxBodyMemory", self.max_body_memory),
        ] {
            if most == 0 {
                return err(format!("{key} is 0: the server could serve nobody"));
            }
        }
        for (user, password) in &self.accounts {
            if user.is_empty() || password.reveal().is_empty() {
                return err(format!(
                    "[Accounts]: the user {user:?} needs a name and a password, neither empty"
                ));
            }
        }
        if self.tries_num == 0 {
            return err("TriesNum is 0: a job needs at least one try".into());
        }
        if self.ttl_second > 0 && self.ttl_second < self.delay_second {
            return err(
                "TTLSecond is shorter than DelaySecond: such jobs would end before they are due".into()
            );
        }
        let Some(default) = self.pool.get("default") else {
            return err(
                "there is no [Pool.default]: add one with Addr = \"host:port\" or Path = \"directory\""
                    .into(),
            );
        };
        let mut paths: Vec<&Path> = Vec::new();
        let mut places = Vec::new();
        for (name, pool) in &self.pool {
            if PoolName::parse(name).is_err() {
                return err(format!("[Pool.{name}]: a pool's name is letters, digits, - and _"));
            }
            pool.validate(&format!("[Pool.{name}]"))?;
            if let Some(path) = &pool.path {
                if paths.contains(&path.as_path()) {
                    return err(format!("[Pool.{name}]: another pool uses Path {} already", path.display()));
                }
                paths.push(path);
            }
            if pool.layout() == Layout::Compact && pool.path.is_none() {
                let db = pool.db.to_string();
                let place =
                    (pool.addr.as_deref(), &pool.cluster, pool.master_name.as_deref(), db, pool.prefix(name));
                if places.contains(&place) {
                    return err(format!(
                        "[Pool.{name}]: another pool has its {} and its Prefix already",
                        pool.addr.as_ref().map_or("Cluster", |_| "Addr")
                    ));
                }
                places.push(place);
            }
            if let Some(to) = &pool.migrate_to {
                match self.pool.get(to) {
                    None => return err(format!("[Pool.{name}]: MigrateTo names {to:?}, which is no pool")),
                    Some(_) if to == name => {
                        return err(format!("[Pool.{name}]: MigrateTo names the pool itself"));
                    }
                    Some(next) if next.migrate_to.is_some() => {
                        return err(format!(
                            "[Pool.{name}]: MigrateTo names {to:?}, which migrates itself; name the last pool"
                        ));
                    }
                    Some(_) => {}
                }
            }
        }
        match &self.admin_redis {
            Some(admin) if admin.path.is_some() => err("[AdminRedis]: Path belongs to pools; leave [AdminRedis] out, and tokens live in the default pool's directory".into()),
            Some(admin) if !admin.cluster.is_empty() => {
                err("[AdminRedis]: Cluster belongs to pools; name a Redis of its own with Addr".into())
            }
            Some(admin) if admin.layout() != Layout::Lmstfy => {
                err("[AdminRedis]: Layout belongs to pools; tokens and limits have one layout".into())
            }
            Some(admin) => admin.validate("[AdminRedis]"),
            None if default.path.is_none() => err("there is no [AdminRedis]: tokens need a place, so add one with Addr = \"host:port\"".into()),
            None => Ok(()),
        }
    }
}

/// The most parts that a pool has: each needs a slot of its own in a cluster, with room to spread.
const MAX_PARTITIONS: u16 = 4096;
/// How many parts a pool has in a cluster unless it says otherwise.
const PARTITIONS_OF_CLUSTER: u16 = 64;

fn is_prefix(s: &str) -> bool {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-_.:".contains(&b);
    (1..=64).contains(&s.len()) && s.bytes().all(plain)
}

impl PoolConfig {
    /// What the keys of a compact pool of this name begin with.
    pub fn prefix<'a>(&'a self, name: &'a str) -> &'a str {
        self.prefix.as_deref().unwrap_or(name)
    }

    /// How its Redis keeps jobs.
    pub fn layout(&self) -> Layout {
        let usual = if self.cluster.is_empty() { Layout::Lmstfy } else { Layout::Compact };
        self.layout.unwrap_or(usual)
    }

    /// How many parts a compact pool has.
    pub fn partitions(&self) -> u16 {
        self.partitions.unwrap_or(if self.cluster.is_empty() { 1 } else { PARTITIONS_OF_CLUSTER })
    }

    fn validate_cluster(&self, section: &str) -> Result<(), ConfigError> {
        let err = |line: &str| Err(ConfigError(format!("{section}: {line}")));
        if self.addr.is_some() {
            return err("both Addr and Cluster are set: a pool is a Redis or a Redis Cluster");
        }
        if self.path.is_some() {
            return err("both Path and Cluster are set: a pool is a directory or a Redis Cluster");
        }
        if self.master_name.is_some() {
            return err(
                "MasterName belongs to Addr: a cluster has no Sentinels, leave it out beside Cluster",
            );
        }
        if self.db != 0 {
            return err("DB is not 0: a Redis Cluster has no other, leave it out beside Cluster");
        }
        if self.layout == Some(Layout::Lmstfy) {
            return err("Layout is lmstfy, whose keys are in many slots: with Cluster it is compact");
        }
        // The error would show a password.
        if self.cluster.iter().any(|addr| addr.contains(['@', '/'])) {
            return err("Cluster lists host:port: a password has a key of its own, Password");
        }
        let is_address = |addr: &String| {
            let port = addr.rsplit_once(':').filter(|(host, _)| !host.is_empty());
            port.is_some_and(|(_, port)| port.parse::<u16>().is_ok_and(|port| port > 0))
        };
        match self.cluster.iter().find(|addr| !is_address(addr)) {
            Some(addr) => err(&format!("Cluster names {addr:?}: write host:port")),
            None => Ok(()),
        }
    }

    fn validate(&self, section: &str) -> Result<(), ConfigError> {
        let err = |line: &str| Err(ConfigError(format!("{section}: {line}")));
        if !self.cluster.is_empty() {
            self.validate_cluster(section)?;
        }
        match (&self.addr, &self.path) {
            (None, None) if !self.cluster.is_empty() => {}
            (Some(_), Some(_)) => return err("both Addr and Path are set: a pool is a Redis or a directory"),
            (None, None) => {
                return err(
                    "neither Addr (a Redis) nor Cluster (a Redis Cluster) nor Path (a directory) is set",
                );
            }
            (Some(addr), None) if addr.split(',').any(|a| a.trim().is_empty()) => {
                return err("Addr is empty: write host:port");
            }
            // The error would show a password.
            (Some(addr), None) if addr.contains(['@', '/']) => {
                return err("Addr should be host:port: a password has a key of its own, Password");
            }
            (Some(addr), None) if addr.contains(',') && self.master_name.is_none() => {
                return err(
                    "Addr lists several Sentinels, but MasterName does not say which master they watch",
                );
            }
            (None, Some(path)) if path.as_os_str().is_empty() => return err("Path is empty"),
            _ => {}
        }
        let compact = self.layout() == Layout::Compact;
        if self.layout == Some(Layout::Compact) && self.path.is_some() {
            return err("Layout is how a Redis keeps jobs: leave it out beside Path");
        }
        match self.partitions {
            Some(_) if !compact => return err("Partitions belongs to Layout = \"compact\""),
            Some(partitions) if !(partitions.is_power_of_two() && partitions <= MAX_PARTITIONS) => {
                return err("Partitions is a power of two up to 4096");
            }
            _ => {}
        }
        match &self.prefix {
            Some(_) if !compact => return err("Prefix belongs to Layout = \"compact\""),
            Some(prefix) if !is_prefix(prefix) => {
                return err("Prefix has 1 to 64 letters, digits, -, _, . and :");
            }
            _ => {}
        }
        if self.db < 0 {
            return err("DB is negative");
        }
        if self.disk_timeout == 0 {
            return err("DiskTimeout is 0: every disk would have failed");
        }
        Ok(())
    }
}
