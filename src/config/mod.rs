//! The configuration. Each key is declared here, with its spelling, its meaning and its default. lmstfy's TOML
//! loads unchanged, with keys in any case. Keys that lmstfy does not have are marked as Dormouse's own. Environment
//! variables override the file: `DORMOUSE_PORT`, `DORMOUSE_POOL_DEFAULT_ADDR`. Reads that one file and nothing else;
//! the variables are an argument.

mod service_links;
mod source;
mod validate;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use config::{File, FileFormat, Source, ValueKind};
use serde::{Deserialize, Deserializer};

pub use self::service_links::is_service_link;
pub use self::source::is_configured;
use self::source::{Tree, from_env, spelled};

/// Where a server without `-c` looks first, as lmstfy does.
pub const DEFAULT_FILE: &str = "conf/config.toml";
/// Where a server without any configuration keeps its jobs.
pub const DEFAULT_DATA: &str = "dormouse-data";

/// One line that says what to change.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct ConfigError(String);

/// Declares a table of the configuration, each key once: its doc comment, its spelling in the file, its field,
/// type and default. `KEYS` are the spellings.
macro_rules! table {
    ($(#[$table_doc:meta])* $table:ident {
        $($(#[$doc:meta])* $key:literal $field:ident: $type:ty = $default:expr;)*
    }) => {
        $(#[$table_doc])*
        #[derive(Debug, Clone, Deserialize)]
        #[serde(deny_unknown_fields, default)]
        pub struct $table { $($(#[$doc])* #[serde(rename = $key)] pub $field: $type,)* }

        impl $table {
            const KEYS: &[&str] = &[$($key),*];
        }

        impl Default for $table {
            fn default() -> $table {
                $table { $($field: $default,)* }
            }
        }
    };
}

table! {
    /// Everything that can be set.
    Config {
        /// Address of the public port.
        "Host" host: String = "127.0.0.1".into();
        /// The public port; 0 takes a free one.
        "Port" port: u16 = 7777;
        /// Address of the admin port.
        "AdminHost" admin_host: String = "127.0.0.1".into();
        /// The admin port; 0 takes a free one.
        "AdminPort" admin_port: u16 = 7778;
        /// `trace`, `debug`, `info`, `warn` or `warning`, `error`, `fatal`, `panic`.
        "LogLevel" log_level: LogLevel = LogLevel::Info;
        /// A directory for `access.log` and `error.log`; without it both go to standard error.
        #[serde(deserialize_with = "unless_empty")]
        "LogDir" log_dir: Option<PathBuf> = None;
        /// `text` or `json`.
        "LogFormat" log_format: LogFormat = LogFormat::Text;
        /// Whether each request is logged. Can be switched at run time on the admin port.
        "EnableAccessLog" enable_access_log: bool = false;
        /// Default `ttl` of a publish, in seconds; 0 is forever.
        "TTLSecond" ttl_second: u32 = 24 * 60 * 60;
        /// Default `delay` of a publish, in seconds.
        "DelaySecond" delay_second: u32 = 0;
        /// Default `tries` of a publish.
        "TriesNum" tries_num: u16 = 1;
        /// Default `ttr` of a consume, in seconds.
        "TTRSecond" ttr_second: u32 = 120;
        /// Default `timeout` of a consume, in seconds.
        "TimeoutSecond" timeout_second: u32 = 0;
        /// Users of the admin port; with any, its token, limit and access log routes ask for basic auth.
        "Accounts" accounts: BTreeMap<String, Secret> = BTreeMap::new();
        /// Where tokens and limits are kept. May be left out when the default pool is on disk: then they are
        /// there.
        "AdminRedis" admin_redis: Option<PoolConfig> = None;
        /// The pools, by name. There must be one called `default`.
        "Pool" pool: BTreeMap<String, PoolConfig> = BTreeMap::new();
        /// Dormouse's own. Run on a Redis that can lose jobs (no append-only file, or one that evicts keys).
        "AllowUnsafeRedis" allow_unsafe_redis: bool = false;
        /// Dormouse's own. How many consumers may wait in long polls, over all pools; beyond it: 503.
        "MaxParkedPolls" max_parked_polls: usize = 100_000;
        /// Dormouse's own. How many of them may wait for queues of one namespace; beyond it: 503. 0 is half of
        /// `MaxParkedPolls`.
        "MaxParkedPollsPerNamespace" max_parked_polls_per_namespace: usize = 0;
        /// Dormouse's own. How many connections the public port takes; beyond it they wait to be accepted. The
        /// open-file limit may allow fewer.
        "MaxConnections" max_connections: usize = 200_000;
        /// Dormouse's own. How many of them one address may have, loopback excepted; beyond it: closed. 0 is half of
        /// `MaxConnections`.
        "MaxConnectionsPerAddress" max_connections_per_address: usize = 0;
        /// Dormouse's own. How much memory the bodies of requests may take together, in MiB, and those in answers
        /// as much again; beyond it they wait, and then get 503. Bodies up to 16 KiB are not counted.
        "MaxBodyMemory" max_body_memory: usize = 512;
        /// Dormouse's own. How much of it the bodies of one namespace may take. 0 is half of `MaxBodyMemory`.
        "MaxBodyMemoryPerNamespace" max_body_memory_per_namespace: usize = 0;
        /// Dormouse's own. A file of keys that encrypt the secrets of push in the store: 32 bytes in base64 on each line. The
        /// first encrypts, all decrypt.
        #[serde(deserialize_with = "unless_empty")]
        "SecretKeyFile" secret_key_file: Option<PathBuf> = None;
        /// Dormouse's own. Which networks and host names push may call beside public addresses:
        /// `["10.0.0.0/8", "hooks.internal"]`. In a variable they are separated by commas.
        #[serde(deserialize_with = "list")]
        "PushAllow" push_allow: Vec<String> = Vec::new();
        /// Dormouse's own. `only`: push calls no URL that is not https.
        "PushHttps" push_https: PushHttps = PushHttps::Any;
        /// Dormouse's own. A proxy that push calls through: `http://user:password@host:port`.
        #[serde(deserialize_with = "unless_empty")]
        "PushProxy" push_proxy: Option<Secret> = None;
        /// Dormouse's own. A PEM file of certificates that push trusts beside the system's.
        #[serde(deserialize_with = "unless_empty")]
        "PushCA" push_ca: Option<PathBuf> = None;
    }
}

table! {
    /// A store: `Addr` names a Redis, `Path` a directory.
    PoolConfig {
        /// `host:port` of a Redis; with `MasterName`, those of its Sentinels, separated by commas.
        "Addr" addr: Option<String> = None;
        /// The Redis's password.
        "Password" password: Option<Secret> = None;
        /// The Redis database.
        "DB" db: i64 = 0;
        /// lmstfy's connections per Redis. Dormouse needs a handful and takes this as a cap on them.
        "PoolSize" pool_size: Option<usize> = None;
        /// The name under which Sentinels know the master.
        #[serde(deserialize_with = "unless_empty")]
        "MasterName" master_name: Option<String> = None;
        /// The Sentinels' own password.
        "SentinelPassword" sentinel_password: Option<Secret> = None;
        /// The pool that publishes go to, while this one is drained.
        #[serde(deserialize_with = "unless_empty")]
        "MigrateTo" migrate_to: Option<String> = None;
        /// Dormouse's own. A directory that this pool keeps its jobs in.
        "Path" path: Option<PathBuf> = None;
        /// Dormouse's own. When a disk pool writes through to the disk: `always` before it answers, or
        /// `everysec`.
        "Sync" sync: SyncMode = SyncMode::Always;
        /// Dormouse's own. With fewer free MiB on its disk a disk pool refuses publishes, so that what it holds can be
        /// consumed; 0 refuses nothing.
        "MinFreeDisk" min_free_disk: u64 = 256;
        /// Dormouse's own. After so many seconds without an answer of its disk a disk pool has failed.
        "DiskTimeout" disk_timeout: u64 = 30;
        /// Dormouse's own. MiB of blocks that a disk pool has read and keeps.
        "BlockCache" block_cache: u64 = 32;
        /// Dormouse's own. MiB that the ready jobs which a disk pool keeps in memory, without their bodies, may take over all queues; a few of
        /// each queue are kept beside them.
        "ReadyMemory" ready_memory: usize = 16;
    }
}

/// A key that is set to the empty text is not set, as in lmstfy.
fn unless_empty<'de, D: Deserializer<'de>, T: From<String>>(value: D) -> Result<Option<T>, D::Error> {
    let text = String::deserialize(value)?;
    Ok((!text.is_empty()).then(|| text.into()))
}

/// Texts in a list, or in one text with commas between them.
fn list<'de, D: Deserializer<'de>>(value: D) -> Result<Vec<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum List {
        Many(Vec<String>),
        One(String),
    }
    Ok(match List::deserialize(value)? {
        List::Many(list) => list,
        List::One(text) => {
            text.split(',').map(str::trim).filter(|entry| !entry.is_empty()).map(str::to_owned).collect()
        }
    })
}

/// Which URLs push may call.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PushHttps {
    #[default]
    #[serde(alias = "")]
    Any,
    Only,
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

/// How much is logged. In the configuration and on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    Trace,
    Debug,
    Info,
    #[serde(alias = "warning")]
    #[value(alias = "warning")]
    Warn,
    #[serde(alias = "fatal", alias = "panic")]
    #[value(aliases = ["fatal", "panic"])]
    Error,
}

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    Text,
    Json,
}

/// A text that no log and no error shows.
#[derive(Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    /// The text.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl From<String> for Secret {
    fn from(text: String) -> Secret {
        Secret(text)
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(..)")
    }
}

impl Config {
    /// Reads `file`, or nothing, and then the variables. The environment is an argument, so that tests can
    /// bring their own.
    pub fn load(
        file: Option<&Path>,
        env: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Config, ConfigError> {
        let (mut pools, mut accounts) = (Vec::new(), Vec::new());
        let mut builder = config::Config::builder();
        if let Some(path) = file {
            let text = std::fs::read_to_string(path)
                .map_err(|e| ConfigError(format!("cannot read the config file {}: {e}", path.display())))?;
            let tree = File::from_str(&text, FileFormat::Toml)
                .collect()
                .map_err(|e| ConfigError(format!("{}: {}", path.display(), one_line(&e))))?;
            let tree = spelled(tree);
            for (section, names) in [("Pool", &mut pools), ("Accounts", &mut accounts)] {
                if let Some(ValueKind::Table(table)) = tree.get(section).map(|v| &v.kind) {
                    names.extend(table.keys().cloned());
                }
            }
            builder = builder.add_source(Tree(tree));
        }
        builder = builder.add_source(Tree(from_env(env, &pools, &accounts)?));
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
}

/// A library's error in one line, without the line of the file that it quotes, and without a text in the place of a
/// table or a number: each may contain a password.
fn one_line(error: &config::ConfigError) -> String {
    let mut text = error.to_string();
    let given = "invalid type: string ";
    if let (Some(from), Some(to)) = (text.find(given), text.rfind(", expected")) {
        text.replace_range(from + given.len() - 1..to, "");
    }
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
    fn where_push_may_call_is_a_list_in_the_file_and_a_text_in_a_variable() {
        let file =
            "PushAllow = ['10.0.0.0/8', 'hooks.internal']\nPushHttps = 'only'\n[Pool.default]\nPath='d'";
        let config = load(file, &[]).expect("it loads");
        assert_eq!(config.push_allow, ["10.0.0.0/8", "hooks.internal"]);
        assert_eq!((config.push_https, config.push_proxy.is_none()), (PushHttps::Only, true));
        let env = [("DORMOUSE_PUSH_ALLOW", "fd00::/8, a.b,"), ("DORMOUSE_PUSH_HTTPS", "")];
        let config = load(file, &env).expect("it loads");
        assert_eq!(config.push_allow, ["fd00::/8", "a.b"]);
        assert_eq!(config.push_https, PushHttps::Any);
        assert!(load("PushHttps = 'never'\n[Pool.default]\nPath='d'", &[]).is_err());
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
    fn the_environment_overrides_an_account_of_the_file() {
        let config = load(
            "[Accounts]\nAnn='file'\nops-team='file'\nBob='file'\n[Pool.default]\nPath='d'",
            &[
                ("DORMOUSE_ACCOUNTS_ANN", "env"),
                ("DORMOUSE_ACCOUNTS_OPS_TEAM", "env"),
                ("DORMOUSE_ACCOUNTS_NEW", "env"),
            ],
        )
        .expect("it loads");
        let accounts: Vec<_> =
            config.accounts.iter().map(|(user, pw)| (user.as_str(), pw.reveal())).collect();
        let want = [("Ann", "env"), ("Bob", "file"), ("new", "env"), ("ops-team", "env")];
        assert_eq!(accounts, want, "a password that was replaced must not go on working");
    }

    #[test]
    fn service_links_are_no_configuration() {
        let links = [
            ("DORMOUSE_PORT", "tcp://10.0.0.1:7777"),
            ("DORMOUSE_SERVICE_HOST", "10.0.0.1"),
            ("DORMOUSE_PORT_7777_TCP", "tcp://10.0.0.1:7777"),
            ("DORMOUSE_ACCOUNTS_SERVICE_HOST", "10.0.0.1"),
        ];
        let config = load("Port=1\n[Pool.default]\nPath='d'", &links).expect("it loads");
        assert_eq!((config.port, config.accounts.len()), (1, 0), "as the file says");
        let owned = |vars: &[(&str, &str)]| -> Vec<(String, String)> {
            vars.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
        };
        let first_try = [
            ("DORMOUSE_PORT", "0"),
            ("DORMOUSE_ADMINPORT", "0"),
            ("DORMOUSE_PUSH_ALLOW", "127.0.0.1"),
            ("DORMOUSE_ADMIN_AUTH", "a:b"),
        ];
        assert!(
            !is_configured(&owned(&links)) && !is_configured(&owned(&first_try)),
            "neither configures a server"
        );
        for set in [
            ("DORMOUSE_HOST", "0.0.0.0"),
            ("DORMOUSE_POOL_DEFAULT_PATH", "d"),
            ("DORMOUSE_PROT", "1"),
            ("DORMOUSE_PUSH_PROXY", "http://p"),
        ] {
            assert!(is_configured(&owned(&[set])), "{set:?} does");
        }
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
            (&format!("{disk}DiskTimeout=0"), "DiskTimeout"),
            (&format!("{disk}MinFreeDisk=-1"), "MinFreeDisk"),
            (&format!("{disk}MigrateTo='default'"), "itself"),
            (&format!("LogLevel='loud'\n{disk}"), "loud"),
            (&format!("LogFormat='xml'\n{disk}"), "xml"),
            (&format!("Port=70000\n{disk}"), "70000"),
            (&format!("TriesNum=0\n{disk}"), "TriesNum"),
            (&format!("{disk}[Pool.b]\nPath='d'"), "already"),
            (&format!("MaxConnections=0\n{disk}"), "MaxConnections"),
            (&format!("MaxConnectionsPerAddress=-1\n{disk}"), "MaxConnectionsPerAddress"),
            (&format!("MaxBodyMemory=0\n{disk}"), "MaxBodyMemory"),
            (&format!("AdminHost=''\n{disk}"), "AdminHost"),
            (&format!("Accounts={{ann=''}}\n{disk}"), "ann"),
            (&format!("Accounts={{''='x'}}\n{disk}"), "[Accounts]"),
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

    /// Guards against a password that was given in the wrong place, and is then shown as what is wrong.
    #[test]
    fn an_error_does_not_show_a_value_that_may_be_a_password() {
        let pool = "[Pool.default]\nPath='d'\n";
        for (toml, env) in [
            (pool, Some(("DORMOUSE_ACCOUNTS", "ann:hush"))),
            (pool, Some(("DORMOUSE_ADMIN_REDIS", "redis://:hush@h:6379"))),
            (pool, Some(("DORMOUSE_POOL", "redis://:hush@h:6379"))),
            (pool, Some(("DORMOUSE_ADMIN_REDIS_DB", "hush"))),
            (pool, Some(("DORMOUSE_ADMIN_REDIS_ADDR", "redis://:hush@h:6379"))),
            ("Accounts = 'ann:hush'\n[Pool.default]\nPath='d'", None),
            ("AdminRedis = 'hush'\n[Pool.default]\nPath='d'", None),
            ("[Pool]\ndefault = 'redis://:hush@h:6379'", None),
            ("[Pool.default]\nAddr = 'redis://:hush@h:6379'\n[AdminRedis]\nAddr = 'h:1'", None),
            (
                "[Pool.default]\nAddr = 'h:1,ann:hush@h:6379'\nMasterName = 'm'\n[AdminRedis]\nAddr = 'h:1'",
                None,
            ),
        ] {
            let error = load(toml, env.as_slice()).expect_err(toml);
            assert!(!error.contains("hush"), "{toml:?} and {env:?} show a password: {error}");
            let named = ["Accounts", "AdminRedis", "Pool"].iter().any(|key| error.contains(key));
            assert!(named, "{toml:?} and {env:?}: the error should name the key: {error}");
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
