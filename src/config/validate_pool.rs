//! Validation of one pool's table: which keys go together, and the form of addresses. Checks values only.

use std::time::Duration;

use super::keys::PoolConfig;
use super::setting::ConfigError;
use super::source::Section;
use super::validate::{in_pairs, not_both, set, written, wrong};

/// Default number of partitions in a cluster.
const PARTITIONS_OF_CLUSTER: u16 = 64;
/// Default `PackAfter` of a pool in a cluster.
const PACK_AFTER_IN_CLUSTER: u64 = 600;

fn is_prefix(s: &str) -> bool {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-_.:".contains(&b);
    (1..=64).contains(&s.len()) && s.bytes().all(plain)
}

/// Returns whether this is `namespace/queue`, where `*` matches any text.
fn is_pattern(queue: &str) -> bool {
    let good = |part: &str| {
        !part.is_empty() && part.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_*".contains(&b))
    };
    queue.split_once('/').is_some_and(|(namespace, name)| good(namespace) && good(name))
}

/// Returns why this is not `host:port`.
fn address_problem(address: &str) -> Option<&'static str> {
    const PORT: &str = "expected a port from 1 to 65535 after the host: write host:port";
    let Some((host, port)) = address.rsplit_once(':') else { return Some(PORT) };
    let inner = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    match inner {
        Some(inner) if inner.parse::<std::net::Ipv6Addr>().is_err() => {
            return Some("the part in brackets should be an IPv6 address");
        }
        None if host.contains(':') => {
            return Some("put the IPv6 address in brackets: write [address]:port");
        }
        None if host.is_empty() => return Some("the host is missing: write host:port"),
        None if host.contains(char::is_whitespace) => {
            return Some("a host contains no spaces: write host:port");
        }
        _ => {}
    }
    match port.parse::<u16>() {
        Ok(1..) if port.bytes().all(|b| b.is_ascii_digit()) => None,
        _ => Some(PORT),
    }
}

/// Message about a key that a single Redis has no use for.
const OF_A_CLUSTER: &str = "it is only for pools in a Redis Cluster (Cluster)";

/// Message about a URL in place of an address; the URL is not shown, since it may contain a password.
const NO_URL: &str = "expected host:port, not a URL: use TLS, Username, Password and DB for its other parts";

impl PoolConfig {
    /// Returns the prefix of the keys of a pool of this name in a cluster.
    pub fn prefix<'a>(&'a self, name: &'a str) -> &'a str {
        self.prefix.as_deref().unwrap_or(name)
    }

    /// Returns the number of partitions.
    pub fn partitions(&self) -> u16 {
        self.partitions.unwrap_or(if self.cluster.is_empty() { 1 } else { PARTITIONS_OF_CLUSTER })
    }

    /// Returns the delay above which jobs are packed; zero: never.
    pub fn pack_after(&self) -> Duration {
        let default = if self.cluster.is_empty() { 0 } else { PACK_AFTER_IN_CLUSTER };
        Duration::from_secs(self.pack_after.unwrap_or(default))
    }

    fn validate_cluster(&self, section: &str, given: &Section) -> Result<(), ConfigError> {
        let wrong = |key, line| Err(wrong(section, given, key, line));
        let not_both = |keys, why| Err(not_both(section, given, keys, why));
        if self.addr.is_some() {
            return not_both(["Addr", "Cluster"], "a pool is a Redis or a Redis Cluster");
        }
        if self.path.is_some() {
            return not_both(["Path", "Cluster"], "a pool is a directory or a Redis Cluster");
        }
        if self.master_name.is_some() {
            return wrong("MasterName", "a cluster has no Sentinels: remove it, or Cluster");
        }
        if self.db != 0 {
            return wrong("DB", "a Redis Cluster has only database 0: remove it, or Cluster");
        }
        let place = given
            .get("Cluster")
            .map_or_else(|| format!("{section} Cluster"), |given| given.place.to_string());
        let hidden = |line: &str| Err(ConfigError(format!("{place}: {line}")));
        // The value may contain a password.
        if self.cluster.iter().any(|addr| addr.contains(['@', '/'])) {
            return hidden(NO_URL);
        }
        match self.cluster.iter().find_map(|addr| Some((addr, address_problem(addr)?))) {
            Some((addr, why)) => hidden(&format!("{addr:?}: {why}")),
            None => Ok(()),
        }
    }

    pub fn validate(&self, section: &str, given: &Section) -> Result<(), ConfigError> {
        let err = |line: &str| Err(ConfigError(format!("{section}: {line}")));
        if !self.cluster.is_empty() {
            self.validate_cluster(section, given)?;
        }
        match (&self.addr, &self.path) {
            (None, None) if !self.cluster.is_empty() => {}
            (Some(_), Some(_)) => {
                let why = "a pool is a Redis or a directory";
                return Err(not_both(section, given, ["Addr", "Path"], why));
            }
            (None, None) if section == "[AdminRedis]" => return err("Addr is not set: write host:port"),
            (None, None) => {
                return err(
                    "neither Addr (a Redis) nor Cluster (a Redis Cluster) nor Path (a directory) is set",
                );
            }
            (Some(addr), None) => self.validate_addr(section, addr, given)?,
            (None, Some(_)) => {}
        }
        let (other, kind) = match self.path {
            Some(_) => {
                (PoolConfig::of_a_redis as fn(&str) -> bool, "a pool that is a directory (Path) has no")
            }
            None if self.cluster.is_empty() => {
                (PoolConfig::of_a_directory as fn(&str) -> bool, "a store that is a Redis (Addr) has no")
            }
            None => (
                PoolConfig::of_a_directory as fn(&str) -> bool,
                "a store that is a Redis Cluster (Cluster) has no",
            ),
        };
        if let Some((key, given)) = given.iter().find(|(key, given)| other(key) && !given.is_empty()) {
            let is_secret = ["Password", "SentinelPassword"].contains(key);
            return Err(given.refused(!is_secret, format!("{kind} {key}")));
        }
        let one = self.cluster.is_empty();
        let wrong = |key: &str, line: &str| Err(wrong(section, given, key, line));
        match self.partitions {
            Some(_) if one => return wrong("Partitions", OF_A_CLUSTER),
            Some(partitions) if !partitions.is_power_of_two() => {
                return wrong("Partitions", "expected a power of two up to 4096");
            }
            _ => {}
        }
        if one && !self.spread.is_empty() {
            return wrong("Spread", OF_A_CLUSTER);
        }
        if let Some(queue) = self.spread.iter().find(|queue| !is_pattern(queue)) {
            return wrong(
                "Spread",
                &format!("{queue:?}: expected namespace/queue, where * matches any text"),
            );
        }
        match &self.prefix {
            Some(_) if one => return wrong("Prefix", OF_A_CLUSTER),
            Some(prefix) if !is_prefix(prefix) => {
                return wrong("Prefix", "expected 1 to 64 letters, digits, -, _, . and :");
            }
            _ => {}
        }
        self.validate_logins(section, given)
    }

    fn validate_addr(&self, section: &str, addr: &str, given: &Section) -> Result<(), ConfigError> {
        let place =
            given.get("Addr").map_or_else(|| format!("{section} Addr"), |given| given.place.to_string());
        let hidden = |line: &str| Err(ConfigError(format!("{place}: {line}")));
        // The value may contain a password.
        if addr.contains("://") || addr.contains(['@', '/']) {
            return hidden(NO_URL);
        }
        for address in addr.split(',').map(str::trim) {
            if let Some(why) = address_problem(address) {
                return match given.get("Addr") {
                    Some(given) => Err(given.wrong(why)),
                    None => hidden(why),
                };
            }
        }
        if addr.contains(',') && self.master_name.is_none() {
            return hidden("it lists several Sentinels, but MasterName does not say which master they watch");
        }
        Ok(())
    }

    /// Checks the credentials and certificates used with the Redis.
    fn validate_logins(&self, section: &str, given: &Section) -> Result<(), ConfigError> {
        let set = |key: &str| set(given, key);
        if !self.tls
            && let Some(given) = ["CA", "Cert", "Key"].into_iter().find_map(set)
        {
            return Err(given.wrong("it requires TLS = true"));
        }
        in_pairs(given, ["Cert", "Key"])?;
        for (user, user_key, password, key) in [
            (&self.username, "Username", &self.password, "Password"),
            (&self.sentinel_username, "SentinelUsername", &self.sentinel_password, "SentinelPassword"),
        ] {
            if user.is_some() && password.is_none() {
                let user = written(given, user_key, section);
                return Err(ConfigError(format!("{user} is set and {key} is not: both are needed")));
            }
        }
        let sentinels = ["SentinelPassword", "SentinelPasswordFile", "SentinelUsername"];
        match sentinels.into_iter().find_map(set) {
            Some(given) if self.master_name.is_none() => Err(given.wrong_and_hidden(
                "it is for Sentinels, and MasterName does not say which master they watch",
            )),
            _ => Ok(()),
        }
    }
}
