//! Validation: whether a server can start with a configuration. Each error is one line that says what to change. Checks
//! values and directories, but no stores.

use std::path::{Path, PathBuf};

use super::keys::{Config, OF_JOBS};
use super::places::{problem, resolved};
use super::setting::{ConfigError, Given, quoted};
use super::source::{Section, Sources};
use crate::name::PoolName;

/// Formats a key with its value as written, or its effective value if it was not given.
pub fn written(section: &Section, key: &str, in_force: impl std::fmt::Display) -> String {
    section.get(key).map_or_else(|| format!("{key} = {in_force}"), Given::shown)
}

/// Returns the value given for a key, unless it is empty.
pub fn set<'a>(section: &'a Section, key: &str) -> Option<&'a Given> {
    section.get(key).filter(|given| !given.is_empty())
}

/// Returns the error about a key of this table.
pub fn wrong(table: &str, section: &Section, key: &str, wanted: impl std::fmt::Display) -> ConfigError {
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
pub fn in_pairs(section: &Section, [cert, key]: [&str; 2]) -> Result<(), ConfigError> {
    let (there, missing) = match (set(section, cert), set(section, key)) {
        (Some(there), None) => (there, key),
        (None, Some(there)) => (there, cert),
        _ => return Ok(()),
    };
    Err(ConfigError(format!("{} is set and {missing} is not: both are needed", there.shown())))
}

/// Returns the error about two keys that exclude each other.
pub fn not_both(table: &str, section: &Section, keys: [&str; 2], why: &str) -> ConfigError {
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
