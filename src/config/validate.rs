//! Validation: whether a server can start with a configuration. Each error is one line that says what to change. Checks
//! values and directories, but no stores.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::keys::{Config, OF_JOBS, PoolConfig};
use super::places::{problem, resolved};
use super::setting::{ConfigError, Given, quoted};
use super::source::{Section, Sources};
use crate::name::PoolName;

/// Formats a key with its value as written, or its effective value if it was not given.
fn written(section: &Section, key: &str, in_force: impl std::fmt::Display) -> String {
    section.get(key).map_or_else(|| format!("{key} = {in_force}"), Given::shown)
}

/// Returns the value given for a key, unless it is empty.
fn set<'a>(section: &'a Section, key: &str) -> Option<&'a Given> {
    section.get(key).filter(|given| !given.is_empty())
}

/// Returns the error about a key of this table.
fn wrong(table: &str, section: &Section, key: &str, wanted: impl std::fmt::Display) -> ConfigError {
    match section.get(key) {
        Some(given) => given.wrong(wanted),
        None => ConfigError(format!("{table} {key}: {wanted}")),
    }
}

impl Config {
    /// Returns the first error.
    pub(super) fn validate(&self, sources: &Sources) -> Result<(), ConfigError> {
        self.validate_ports(&sources.top)?;
        self.validate_accounts(sources)?;
        self.validate_admin_url(&sources.top)?;
        if self.ttl_second > 0 && self.ttl_second < self.delay_second {
            let [ttl, delay] = [("TTLSecond", self.ttl_second), ("DelaySecond", self.delay_second)]
                .map(|(key, seconds)| written(&sources.top, key, seconds));
            return Err(ConfigError(format!(
                "{ttl} is shorter than {delay}: such jobs would expire before they are due"
            )));
        }
        in_pairs(&sources.top, ["TLSCert", "TLSKey"])?;
        in_pairs(&sources.top, ["AdminTLSCert", "AdminTLSKey"])?;
        self.validate_pools(sources)?;
        self.validate_places(sources)?;
        validate_files(sources)
    }

    fn validate_accounts(&self, sources: &Sources) -> Result<(), ConfigError> {
        let tables = [
            (&self.accounts, &sources.accounts, "[Accounts]"),
            (&self.read_only_accounts, &sources.read_only_accounts, "[ReadOnlyAccounts]"),
        ];
        for (users, given, table) in tables {
            let nobody =
                users.iter().find(|(user, password)| user.is_empty() || password.reveal().is_empty());
            if let Some((user, _)) = nobody {
                let place =
                    given.given.get(user).map_or_else(|| table.into(), |given| given.place.to_string());
                return Err(ConfigError(format!(
                    "{place}: the user {user:?} needs a name and a password; neither may be empty"
                )));
            }
        }
        if let Some(user) = self.read_only_accounts.keys().find(|user| self.accounts.contains_key(*user)) {
            let of = &sources.read_only_accounts;
            let given = of.given.get(user).or(of.files.get(user));
            let place = given.map_or_else(String::new, |given| given.place.to_string());
            return Err(ConfigError(format!(
                "{place}: the user is in [Accounts] too: remove it from one of them"
            )));
        }
        if self.accounts.is_empty() && !self.read_only_accounts.is_empty() {
            return Err(ConfigError(
                "[ReadOnlyAccounts]: [Accounts] is empty, so no user could change anything: add a user to it"
                    .into(),
            ));
        }
        Ok(())
    }

    fn validate_admin_url(&self, top: &Section) -> Result<(), ConfigError> {
        let Some(given) = &self.admin_url else { return Ok(()) };
        let is_good = url::Url::parse(given).is_ok_and(|url| {
            let plain = url.query().is_none() && url.fragment().is_none();
            let nobody = url.username().is_empty() && url.password().is_none();
            ["http", "https"].contains(&url.scheme()) && url.has_host() && plain && nobody
        });
        if is_good {
            return Ok(());
        }
        // It may contain a password, so it is not shown.
        let place = top.get("AdminUrl").map_or_else(|| "AdminUrl".into(), |given| given.place.to_string());
        Err(ConfigError(format!("{place}: expected a URL such as \"https://ops.example/dormouse\"")))
    }

    fn validate_ports(&self, top: &Section) -> Result<(), ConfigError> {
        let hosts = [("Host", &self.host), ("AdminHost", &self.admin_host)];
        for (key, host) in hosts {
            if let Some(why) = host_problem(host) {
                return Err(ConfigError(format!("{}: {why}", written(top, key, quoted(host)))));
            }
        }
        if self.port != 0 && self.port == self.admin_port && may_meet(&self.host, &self.admin_host) {
            let [api, admin] = [("Port", self.port), ("AdminPort", self.admin_port)]
                .map(|(key, port)| written(top, key, port));
            return Err(ConfigError(format!("{api} and {admin}: the two ports cannot be the same")));
        }
        Ok(())
    }

    fn validate_pools(&self, sources: &Sources) -> Result<(), ConfigError> {
        let err = |line: String| Err(ConfigError(line));
        let Some(default) = self.pool.get("default") else {
            return err(
                "there is no [Pool.default]: add one with Addr = \"host:port\" or Path = \"directory\""
                    .into(),
            );
        };
        let none = Section::new();
        let mut places = Vec::new();
        for (name, pool) in &self.pool {
            if PoolName::parse(name).is_err() {
                return err(format!("[Pool.{name}]: a pool's name is letters, digits, - and _"));
            }
            let table = format!("[Pool.{name}]");
            let given = sources.pools.get(name).unwrap_or(&none);
            pool.validate(&table, given)?;
            if !pool.cluster.is_empty() {
                let prefix = pool.prefix(name);
                let place = (&pool.cluster, prefix);
                if let Some((other, _)) = places.iter().find(|(_, at)| *at == place) {
                    let line = format!("[Pool.{other}] has the same Cluster and the same Prefix, {prefix:?}");
                    return err(format!("{table}: {line}: each pool needs a Prefix of its own"));
                }
                places.push((name, place));
            }
            if let Some(to) = &pool.migrate_to {
                let others: Vec<_> =
                    self.pool.keys().filter(|other| *other != name).map(|o| quoted(o)).collect();
                let why = match self.pool.get(to) {
                    None if others.is_empty() => "there is no other pool".to_owned(),
                    None => format!("there is no such pool; the others are {}", others.join(", ")),
                    Some(_) if to == name => "a pool cannot migrate to itself: name another pool".to_owned(),
                    Some(next) if next.migrate_to.is_some() => {
                        "that pool has a MigrateTo too: name the final target".to_owned()
                    }
                    Some(_) => continue,
                };
                return Err(wrong(&table, given, "MigrateTo", why));
            }
        }
        match (&self.admin_redis, &sources.admin_redis) {
            (Some(admin), given) => {
                let given = given.as_ref().unwrap_or(&none);
                if let Some(path) = given.get("Path").filter(|path| !path.is_empty()) {
                    return Err(path.wrong(
                        "Path is for pools: without [AdminRedis], tokens are stored in the default pool's directory",
                    ));
                }
                if let Some(key) = OF_JOBS.into_iter().find_map(|key| given.get(key)) {
                    return Err(key.wrong("it applies only to pools of jobs, not to [AdminRedis]"));
                }
                admin.validate("[AdminRedis]", given)
            }
            (None, _) if default.path.is_none() && default.cluster.is_empty() => {
                err("there is no [AdminRedis] to store tokens: add one with Addr = \"host:port\"".into())
            }
            (None, _) => Ok(()),
        }
    }

    /// Checks that each directory is usable and none is inside another.
    fn validate_places(&self, sources: &Sources) -> Result<(), ConfigError> {
        let none = Section::new();
        let mut places: Vec<(String, &Path)> = Vec::new();
        if let Some(dir) = &self.log_dir {
            places.push((written(&sources.top, "LogDir", quoted(&dir.display().to_string())), dir));
        }
        for (name, pool) in &self.pool {
            let Some(path) = &pool.path else { continue };
            let section = sources.pools.get(name).unwrap_or(&none);
            let default = format!("{} of [Pool.{name}]", quoted(&path.display().to_string()));
            places.push((written(section, "Path", default), path));
        }
        let mut seen: Vec<(&String, PathBuf)> = Vec::new();
        for (said, path) in &places {
            if let Some(why) = problem(path) {
                return Err(ConfigError(format!("{said}: {why}")));
            }
            let path = resolved(path);
            for (n, (other, at)) in seen.iter().enumerate() {
                let how = match (path == *at, path.starts_with(at), at.starts_with(&path)) {
                    (true, ..) => "is also",
                    (_, true, _) => "is inside",
                    (.., true) => "contains",
                    _ => continue,
                };
                // The log directory, first in the list, may contain the pools' directories.
                if n == 0 && self.log_dir.is_some() && how == "is inside" {
                    continue;
                }
                return Err(ConfigError(format!(
                    "{said} {how} {other}: each pool needs a directory of its own"
                )));
            }
            seen.push((said, path));
        }
        Ok(())
    }
}

/// Default number of partitions in a cluster.
const PARTITIONS_OF_CLUSTER: u16 = 64;
/// Default `PackAfter` of a pool in a cluster.
const PACK_AFTER_IN_CLUSTER: u64 = 600;

/// Checks that named files are readable.
fn validate_files(sources: &Sources) -> Result<(), ConfigError> {
    const OF_SERVER: [&str; 6] =
        ["SecretKeyFile", "PushCA", "TLSCert", "TLSKey", "AdminTLSCert", "AdminTLSKey"];
    let of = |section, keys: &[&'static str]| -> Vec<&Given> {
        keys.iter().filter_map(|key| set(section, key)).collect()
    };
    let stores = sources.pools.values().chain(&sources.admin_redis);
    let of_stores = stores.flat_map(|section| of(section, &["CA", "Cert", "Key"]));
    for given in of(&sources.top, &OF_SERVER).into_iter().chain(of_stores) {
        let path = given.value.as_str().unwrap_or_default();
        std::fs::File::open(path)
            .map_err(|error| given.wrong(format!("the file cannot be read: {error}")))?;
    }
    Ok(())
}

/// Returns why a host cannot be listened on.
fn host_problem(host: &str) -> Option<&'static str> {
    let inner = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    if host.is_empty() {
        return Some("name the address to listen on, such as \"0.0.0.0\"");
    }
    if inner.parse::<std::net::IpAddr>().is_ok() {
        return None;
    }
    if host.contains("://") {
        return Some("expected only an address, without a scheme, such as \"0.0.0.0\"");
    }
    if host.contains(':') {
        return Some("expected only an address; the port has its own key");
    }
    let plain = host.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b));
    (!plain).then_some("expected an address or a host name, such as \"0.0.0.0\"")
}

/// Returns whether one port cannot be bound at both addresses.
fn may_meet(one: &str, other: &str) -> bool {
    let address = |host: &str| host.trim_matches(['[', ']']).parse::<std::net::IpAddr>();
    match (address(one), address(other)) {
        (Ok(one), Ok(other)) => one == other || one.is_unspecified() || other.is_unspecified(),
        _ => true,
    }
}

/// Checks that a certificate and its key are given together.
fn in_pairs(section: &Section, [cert, key]: [&str; 2]) -> Result<(), ConfigError> {
    let (there, missing) = match (set(section, cert), set(section, key)) {
        (Some(there), None) => (there, key),
        (None, Some(there)) => (there, cert),
        _ => return Ok(()),
    };
    Err(ConfigError(format!("{} is set and {missing} is not: both are needed", there.shown())))
}

/// Returns the error about two keys that exclude each other.
fn not_both(table: &str, section: &Section, keys: [&str; 2], why: &str) -> ConfigError {
    let [one, other] = keys;
    let shown = |key: &str| match section.get(key) {
        // A URL in place of an address may contain a password.
        Some(given) if key == "Path" || given.text().is_some_and(|text| !text.contains(['@', '/'])) => {
            given.shown()
        }
        Some(given) => given.place.to_string(),
        None => format!("{table} {key}"),
    };
    ConfigError(format!("{}, {}: both {one} and {other} are set: {why}", shown(one), shown(other)))
}

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

    fn validate(&self, section: &str, given: &Section) -> Result<(), ConfigError> {
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
