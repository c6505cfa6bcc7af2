//! The configuration: every key once, with its default. lmstfy's TOML loads unchanged (keys in any case, as
//! there); what lmstfy does not know is Dormouse's own and says so. The environment overrides the file:
//! `DORMOUSE_PORT`, `DORMOUSE_POOL_DEFAULT_ADDR`. Reads files and variables, opens nothing else.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use config::{File, FileFormat, Map, Source, Value, ValueKind};
use serde::Deserialize;

use crate::name::PoolName;

/// Where a server without `-c` looks first, as lmstfy does.
pub const DEFAULT_FILE: &str = "conf/config.toml";
/// Where a server without any configuration keeps its jobs.
pub const DEFAULT_DATA: &str = "dormouse-data";
const ENV_PREFIX: &str = "DORMOUSE_";
/// Variables with our prefix that are not keys: token-cli's.
const ENV_NOT_KEYS: [&str; 1] = ["DORMOUSE_ADMIN_AUTH"];

/// One line that says what to change.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct ConfigError(String);

/// Everything that can be set.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "PascalCase", deny_unknown_fields, default)]
pub struct Config {
    /// Address of the public port.
    pub host: String,
    /// The public port; 0 takes a free one.
    pub port: u16,
    /// Address of the admin port.
    pub admin_host: String,
    /// The admin port; 0 takes a free one.
    pub admin_port: u16,
    /// `trace`, `debug`, `info`, `warn` or `warning`, `error`, `fatal`, `panic`.
    pub log_level: LogLevel,
    /// A directory for `access.log` and `error.log`; without it both go to standard error.
    pub log_dir: Option<PathBuf>,
    /// `text` or `json`.
    pub log_format: LogFormat,
    /// Whether each request is logged. Can be switched at run time on the admin port.
    pub enable_access_log: bool,
    /// Default `ttl` of a publish, in seconds; 0 is forever.
    #[serde(rename = "TTLSecond")]
    pub ttl_second: u32,
    /// Default `delay` of a publish, in seconds.
    pub delay_second: u32,
    /// Default `tries` of a publish.
    pub tries_num: u16,
    /// Default `ttr` of a consume, in seconds.
    #[serde(rename = "TTRSecond")]
    pub ttr_second: u32,
    /// Default `timeout` of a consume, in seconds.
    pub timeout_second: u32,
    /// Users of the admin port; with any, its token, limit and access log routes ask for basic auth.
    pub accounts: BTreeMap<String, Secret>,
    /// Where tokens and limits are kept. May be left out when the default pool is on disk: then they are there.
    pub admin_redis: Option<PoolConfig>,
    /// The pools, by name. There must be one called `default`.
    pub pool: BTreeMap<String, PoolConfig>,
    /// Dormouse's own. Run on a Redis that can lose jobs (no append-only file, or one that evicts keys).
    pub allow_unsafe_redis: bool,
    /// Dormouse's own. How many consumers may wait in long polls, over all pools; beyond it: 503.
    pub max_parked_polls: usize,
    /// Dormouse's own. How many connections the public port takes; beyond it they wait to be accepted.
    pub max_connections: usize,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            host: "127.0.0.1".into(),
            port: 7777,
            admin_host: "127.0.0.1".into(),
            admin_port: 7778,
            log_level: LogLevel::Info,
            log_dir: None,
            log_format: LogFormat::Text,
            enable_access_log: false,
            ttl_second: 24 * 60 * 60,
            delay_second: 0,
            tries_num: 1,
            ttr_second: 120,
            timeout_second: 0,
            accounts: BTreeMap::new(),
            admin_redis: None,
            pool: BTreeMap::new(),
            allow_unsafe_redis: false,
            max_parked_polls: 100_000,
            max_connections: 200_000,
        }
    }
}

/// A store: `Addr` names a Redis, `Path` a directory.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "PascalCase", deny_unknown_fields, default)]
pub struct PoolConfig {
    /// `host:port` of a Redis; with `MasterName`, those of its Sentinels, separated by commas.
    pub addr: Option<String>,
    /// The Redis's password.
    pub password: Option<Secret>,
    /// The Redis database.
    #[serde(rename = "DB")]
    pub db: i64,
    /// lmstfy's connections per Redis. Dormouse needs a handful and takes this as a cap on them.
    pub pool_size: Option<usize>,
    /// The name under which Sentinels know the master.
    pub master_name: Option<String>,
    /// The Sentinels' own password.
    pub sentinel_password: Option<Secret>,
    /// The pool that publishes go to, while this one is drained.
    pub migrate_to: Option<String>,
    /// Dormouse's own. A directory that this pool keeps its jobs in.
    pub path: Option<PathBuf>,
    /// Dormouse's own. When a disk pool writes through to the disk: `always` before it answers, or `everysec`.
    pub sync: SyncMode,
}

/// When a disk pool syncs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SyncMode {
    /// Before each answer: what was answered survives a power cut.
    #[default]
    Always,
    /// Every second: a power cut loses up to a second, a crash of the process nothing.
    EverySec,
}

/// How much is logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    Trace,
    Debug,
    Info,
    #[serde(alias = "warning")]
    Warn,
    #[serde(alias = "fatal", alias = "panic")]
    Error,
}

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    Text,
    Json,
}

/// Text that no log and no error shows.
#[derive(Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    /// The text.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// The spelling of every key, so that any case is understood: of the top level, and of a pool.
const TOP_KEYS: [&str; 19] = [
    "Host",
    "Port",
    "AdminHost",
    "AdminPort",
    "LogLevel",
    "LogDir",
    "LogFormat",
    "EnableAccessLog",
    "TTLSecond",
    "DelaySecond",
    "TriesNum",
    "TTRSecond",
    "TimeoutSecond",
    "Accounts",
    "AdminRedis",
    "Pool",
    "AllowUnsafeRedis",
    "MaxParkedPolls",
    "MaxConnections",
];
const POOL_KEYS: [&str; 9] =
    ["Addr", "Password", "DB", "PoolSize", "MasterName", "SentinelPassword", "MigrateTo", "Path", "Sync"];

impl Config {
    /// Reads `file`, or nothing, and then the variables. The environment is an argument, so that tests can
    /// bring their own.
    pub fn load(
        file: Option<&Path>,
        env: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Config, ConfigError> {
        let mut pools = Vec::new();
        let mut builder = config::Config::builder();
        if let Some(path) = file {
            let text = std::fs::read_to_string(path)
                .map_err(|e| ConfigError(format!("cannot read the config file {}: {e}", path.display())))?;
            let tree = File::from_str(&text, FileFormat::Toml)
                .collect()
                .map_err(|e| ConfigError(format!("{}: {}", path.display(), one_line(&e))))?;
            let tree = spelled(tree);
            if let Some(ValueKind::Table(table)) = tree.get("Pool").map(|v| &v.kind) {
                pools.extend(table.keys().cloned());
            }
            builder = builder.add_source(Tree(tree));
        }
        let mut overrides: Vec<(String, String)> = env
            .into_iter()
            .filter(|(k, _)| k.starts_with(ENV_PREFIX) && !ENV_NOT_KEYS.contains(&k.as_str()))
            .collect();
        overrides.sort();
        builder = builder.add_source(Tree(from_env(overrides, &pools)?));
        let mut config: Config = builder
            .build()
            .and_then(config::Config::try_deserialize)
            .map_err(|e| ConfigError(format!("the configuration: {}", one_line(&e))))?;
        if file.is_none() && config.pool.is_empty() {
            config.pool.insert(
                "default".into(),
                PoolConfig { path: Some(DEFAULT_DATA.into()), ..PoolConfig::default() },
            );
        } else if file.is_none()
            && let Some(pool) = config.pool.get_mut("default")
            && pool.addr.is_none()
        {
            pool.path.get_or_insert_with(|| DEFAULT_DATA.into());
        }
        config.validate()?;
        Ok(config)
    }

    fn validate(&self) -> Result<(), ConfigError> {
        let err = |line: String| Err(ConfigError(line));
        for (key, host) in [("Host", &self.host), ("AdminHost", &self.admin_host)] {
            if host.is_empty() {
                return err(format!("{key} is empty: name the address to listen on, such as \"0.0.0.0\""));
            }
        }
        for (key, most) in
            [("MaxConnections", self.max_connections), ("MaxParkedPolls", self.max_parked_polls)]
        {
            if most == 0 {
                return err(format!("{key} is 0: the server could serve nobody"));
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
            Some(admin) => admin.validate("[AdminRedis]"),
            None if default.path.is_none() => err("there is no [AdminRedis]: tokens need a place, so add one with Addr = \"host:port\"".into()),
            None => Ok(()),
        }
    }
}

impl PoolConfig {
    fn validate(&self, place: &str) -> Result<(), ConfigError> {
        let err = |line: &str| Err(ConfigError(format!("{place}: {line}")));
        match (&self.addr, &self.path) {
            (Some(_), Some(_)) => return err("both Addr and Path are set: a pool is a Redis or a directory"),
            (None, None) => return err("neither Addr (a Redis) nor Path (a directory) is set"),
            (Some(addr), None) if addr.split(',').any(|a| a.trim().is_empty()) => {
                return err("Addr is empty: write host:port");
            }
            (Some(addr), None) if addr.contains(',') && self.master_name.is_none() => {
                return err(
                    "Addr lists several Sentinels, but MasterName does not say which master they watch",
                );
            }
            (None, Some(path)) if path.as_os_str().is_empty() => return err("Path is empty"),
            _ => {}
        }
        if self.db < 0 {
            return err("DB is negative");
        }
        Ok(())
    }
}

/// A tree of keys as a source of the configuration.
#[derive(Debug, Clone)]
struct Tree(Map<String, Value>);

impl Source for Tree {
    fn clone_into_box(&self) -> Box<dyn Source + Send + Sync> {
        Box::new(self.clone())
    }

    fn collect(&self) -> Result<Map<String, Value>, config::ConfigError> {
        Ok(self.0.clone())
    }
}

/// Gives every key its own spelling; unknown ones stay as they are, to be refused by name.
fn spelled(tree: Map<String, Value>) -> Map<String, Value> {
    fn table(value: &mut Value, each: impl Fn(&mut Map<String, Value>)) {
        if let ValueKind::Table(map) = &mut value.kind {
            each(map);
        }
    }
    fn rename(map: Map<String, Value>, keys: &[&str]) -> Map<String, Value> {
        map.into_iter()
            .map(|(k, v)| {
                let spelling = keys.iter().find(|known| known.eq_ignore_ascii_case(&k));
                (spelling.map_or(k, |s| (*s).to_owned()), v)
            })
            .collect()
    }
    // A key without a value there means its default: an empty LogDir is none.
    fn without_empty(map: &mut Map<String, Value>, keys: &[&str]) {
        map.retain(|k, v| {
            !(keys.contains(&k.as_str()) && matches!(&v.kind, ValueKind::String(s) if s.is_empty()))
        });
    }
    let pool = |value: &mut Value| {
        table(value, |map| {
            *map = rename(std::mem::take(map), &POOL_KEYS);
            without_empty(map, &["MigrateTo", "MasterName"]);
        });
    };
    let mut tree = rename(tree, &TOP_KEYS);
    if let Some(admin) = tree.get_mut("AdminRedis") {
        pool(admin);
    }
    if let Some(pools) = tree.get_mut("Pool") {
        table(pools, |map| map.values_mut().for_each(&pool));
    }
    without_empty(&mut tree, &["LogDir"]);
    tree
}

/// `DORMOUSE_A_B` to the tree that `A.B` names. Words of a key may be apart: `ADMIN_PORT` is `AdminPort`.
fn from_env(vars: Vec<(String, String)>, pools: &[String]) -> Result<Map<String, Value>, ConfigError> {
    fn joined(words: &str) -> String {
        words.replace('_', "")
    }
    fn known<'a>(keys: &[&'a str], words: &str) -> Option<&'a str> {
        keys.iter().find(|key| key.eq_ignore_ascii_case(&joined(words))).copied()
    }
    fn insert(tree: &mut Map<String, Value>, path: &[&str], value: String) {
        match path {
            [] => {}
            [key] => {
                tree.insert((*key).into(), Value::new(None, ValueKind::String(value)));
            }
            [key, rest @ ..] => {
                let below = tree
                    .entry((*key).into())
                    .or_insert_with(|| Value::new(None, ValueKind::Table(Map::new())));
                if let ValueKind::Table(map) = &mut below.kind {
                    insert(map, rest, value);
                }
            }
        }
    }
    let mut tree = Map::new();
    for (var, value) in vars {
        let words = &var[ENV_PREFIX.len()..];
        let unknown =
            || ConfigError(format!("the environment variable {var} names no key; see docs/configuration.md"));
        if let Some(rest) = words.strip_prefix("POOL_") {
            // The name ends where a key begins; names may have underscores too, so the longest key wins.
            let (name, key) = rest
                .match_indices('_')
                .find_map(|(at, _)| known(&POOL_KEYS, &rest[at + 1..]).map(|key| (&rest[..at], key)))
                .ok_or_else(unknown)?;
            let spelling = pools.iter().find(|p| p.replace('-', "_").eq_ignore_ascii_case(name));
            let name = spelling.cloned().unwrap_or_else(|| name.to_ascii_lowercase());
            insert(&mut tree, &["Pool", &name, key], value);
        } else if let Some(key) = words
            .strip_prefix("ADMINREDIS_")
            .or_else(|| words.strip_prefix("ADMIN_REDIS_"))
            .map(|rest| known(&POOL_KEYS, rest).ok_or_else(unknown))
        {
            insert(&mut tree, &["AdminRedis", key?], value);
        } else if let Some(user) = words.strip_prefix("ACCOUNTS_") {
            insert(&mut tree, &["Accounts", &user.to_ascii_lowercase()], value);
        } else {
            insert(&mut tree, &[known(&TOP_KEYS, words).ok_or_else(unknown)?], value);
        }
    }
    Ok(tree)
}

/// Library errors may run over lines; ours do not. They also quote the line of the file that is wrong, which
/// may hold a password.
fn one_line(error: &config::ConfigError) -> String {
    let text = error.to_string();
    let quoted = |line: &&str| {
        line.trim_start_matches(|c: char| c.is_whitespace() || c.is_ascii_digit()).starts_with('|')
    };
    let lines = text.lines().filter(|line| !quoted(line)).flat_map(str::split_whitespace);
    lines.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(toml: &str, env: &[(&str, &str)]) -> Result<Config, String> {
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        std::fs::write(file.path(), toml).expect("it can be written");
        let env = env.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
        Config::load(Some(file.path()), env).map_err(|e| e.to_string())
    }

    #[test]
    fn every_key_of_lmstfy_is_understood() {
        let config = Config::load(Some(Path::new("config/lmstfy-sample.toml")), []).expect("it loads");
        assert_eq!((config.host.as_str(), config.port), ("0.0.0.0", 7777));
        assert_eq!((config.admin_host.as_str(), config.admin_port), ("127.0.0.1", 7778));
        assert_eq!((config.log_level, config.log_format), (LogLevel::Info, LogFormat::Json));
        assert!(config.enable_access_log, "EnableAccessLog");
        assert_eq!((config.ttl_second, config.delay_second, config.tries_num), (86400, 0, 1));
        assert_eq!((config.ttr_second, config.timeout_second), (120, 0));
        assert_eq!(config.accounts["operator"].reveal(), "change.me");
        let default = &config.pool["default"];
        assert_eq!(default.addr.as_deref(), Some("localhost:6379"));
        assert_eq!(default.password.as_ref().map(Secret::reveal), Some("secret"));
        assert_eq!((default.db, default.pool_size), (0, Some(200)));
        assert_eq!(default.migrate_to.as_deref(), Some("bigger"));
        let watched = &config.pool["watched"];
        assert_eq!(watched.master_name.as_deref(), Some("mymaster"));
        assert_eq!(watched.sentinel_password.as_ref().map(Secret::reveal), Some("secret1"));
        assert_eq!(config.admin_redis.and_then(|a| a.addr).as_deref(), Some("localhost:6379"));
    }

    #[test]
    fn keys_are_understood_in_any_case() {
        let config = load("port = 1\n[pool.Default]\naddr='x:1'\n[POOL.default]\nPATH='d'", &[]);
        // TOML itself keeps Pool and POOL apart; one of them wins, and it has no default pool or has one.
        assert!(config.is_ok() || config.is_err_and(|e| e.contains("Pool.default")));
        let config = load("port = 9\n[pool.default]\npath='d'\nsync='everysec'", &[]).expect("it loads");
        assert_eq!((config.port, config.pool["default"].sync), (9, SyncMode::EverySec));
    }

    #[test]
    fn the_environment_overrides_the_file() {
        let config = load(
            "Port = 1\n[Pool.default]\nPath='a'\n[Pool.Two-b]\nAddr='x:1'",
            &[
                ("DORMOUSE_PORT", "2"),
                ("DORMOUSE_ADMIN_PORT", "3"),
                ("DORMOUSE_TTLSECOND", "4"),
                ("DORMOUSE_POOL_DEFAULT_PATH", "b"),
                ("DORMOUSE_POOL_TWO_B_MASTER_NAME", "m"),
                ("DORMOUSE_POOL_NEW_ONE_ADDR", "y:2"),
                ("DORMOUSE_ADMINREDIS_ADDR", "z:3"),
                ("DORMOUSE_ACCOUNTS_ANN", "pw"),
                ("DORMOUSE_ADMIN_AUTH", "not a key"),
                ("OTHER", "x"),
            ],
        )
        .expect("it loads");
        assert_eq!((config.port, config.admin_port, config.ttl_second), (2, 3, 4));
        assert_eq!(config.pool["default"].path.as_deref(), Some(Path::new("b")));
        assert_eq!(config.pool["Two-b"].master_name.as_deref(), Some("m"));
        assert_eq!(config.pool["new_one"].addr.as_deref(), Some("y:2"));
        assert_eq!(config.admin_redis.and_then(|a| a.addr).as_deref(), Some("z:3"));
        assert_eq!(config.accounts["ann"].reveal(), "pw");
    }

    #[test]
    fn without_a_file_jobs_live_in_a_directory_here() {
        let config = Config::load(None, []).expect("it loads");
        assert_eq!(config.pool["default"].path.as_deref(), Some(Path::new(DEFAULT_DATA)));
        assert_eq!((config.host.as_str(), config.port), ("127.0.0.1", 7777));
        let env = [("DORMOUSE_POOL_DEFAULT_SYNC".to_owned(), "everysec".to_owned())];
        let config = Config::load(None, env).expect("it loads");
        assert_eq!(
            config.pool["default"].path.as_deref(),
            Some(Path::new(DEFAULT_DATA)),
            "Sync alone moves nothing"
        );
    }

    #[test]
    fn what_is_wrong_is_said_in_one_line() {
        let disk = "[Pool.default]\nPath='d'\n";
        for (toml, says) in [
            ("Prot = 1\n[Pool.default]\nPath='d'", "Prot"),
            ("[Pool.default]\nPath='d'\nAdr='x'", "Adr"),
            ("[Pool.default]\nPath='d'\nAddr='x:1'", "both Addr and Path"),
            ("[Pool.default]\nDB=1", "neither Addr"),
            ("[Pool.other]\nPath='d'", "[Pool.default]"),
            ("[Pool.default]\nAddr='x:1'", "AdminRedis"),
            ("[Pool.default]\nAddr='x:1,y:2'\n[AdminRedis]\nAddr='x:1'", "MasterName"),
            (&format!("{disk}MigrateTo='x'"), "no pool"),
            (&format!("{disk}MigrateTo='default'"), "itself"),
            (&format!("LogLevel='loud'\n{disk}"), "loud"),
            (&format!("LogFormat='xml'\n{disk}"), "xml"),
            (&format!("Port=70000\n{disk}"), "70000"),
            (&format!("TriesNum=0\n{disk}"), "TriesNum"),
            (&format!("{disk}[Pool.b]\nPath='d'"), "already"),
            (&format!("MaxConnections=0\n{disk}"), "MaxConnections"),
            (&format!("AdminHost=''\n{disk}"), "AdminHost"),
            ("Port = = 1", "line 1"),
        ] {
            let error = load(toml, &[]).expect_err(toml);
            assert!(!error.contains('\n'), "more than a line: {error}");
            assert!(error.contains(says), "{toml:?} should name {says}: {error}");
        }
        let error = load(disk, &[("DORMOUSE_PROT", "1")]).expect_err("an unknown variable");
        assert!(error.contains("DORMOUSE_PROT"), "{error}");
    }

    #[test]
    fn a_key_that_is_left_empty_is_not_set() {
        let config = load("LogDir=''\n[Pool.default]\nPath='d'\nMigrateTo=''\nmastername=''", &[]);
        let config = config.expect("lmstfy takes it");
        assert_eq!((config.log_dir, &config.pool["default"].migrate_to), (None, &None));
    }

    #[test]
    fn an_error_does_not_quote_a_line_with_a_secret() {
        for toml in [
            "[Pool.default]\nPath='d'\nPassword='hush",
            "[Accounts]\nann='hush' 'hush'",
            "[Accounts]\nann='hush'\nann='hush'",
            "[Accounts]\nann=['hush']\n[Pool.default]\nPath='d'",
        ] {
            let error = load(toml, &[]).expect_err(toml);
            assert!(!error.contains("hush"), "{toml:?} shows its secret: {error}");
        }
    }

    #[test]
    fn secrets_are_not_shown() {
        let config = load(
            "[Accounts]\na='hush'\n[Pool.default]\nAddr='x:1'\nPassword='hush'\n[AdminRedis]\nAddr='x:1'",
            &[],
        );
        assert!(!format!("{config:?}").contains("hush"), "a password is in the Debug");
    }
}
