//! Every key of the configuration, once: its spelling, its meaning, its default and its type. Keys that lmstfy does not
//! have are marked as Dormouse's own. Reads nothing.

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::ValueEnum;
use serde::{Deserialize, Deserializer};

/// One line that says what to change.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct ConfigError(pub(super) String);

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
            pub(super) const KEYS: &[&str] = &[$($key),*];
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
        /// Users of the admin port; with any, its routes for tokens, limits, quotas, push and the access log ask for
        /// basic auth.
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
        /// Dormouse's own. Networks of proxies that are believed who sent a request (`X-Forwarded-For`):
        /// `["10.0.0.0/8"]`. In a variable they are separated by commas.
        #[serde(deserialize_with = "list")]
        "TrustedProxies" trusted_proxies: Vec<String> = Vec::new();
        /// Dormouse's own. A file of keys that encrypt the secrets of push in the store: 32 bytes in base64 on each
        /// line. The first encrypts, all decrypt.
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
    /// A store: `Addr` names a Redis, `Cluster` nodes of a Redis Cluster, `Path` a directory.
    PoolConfig {
        /// `host:port` of a Redis; with `MasterName`, those of its Sentinels, separated by commas.
        "Addr" addr: Option<String> = None;
        /// Dormouse's own. Some nodes of a Redis Cluster, `["host:port", ..]`; they tell of the others. In a variable they
        /// are separated by commas.
        #[serde(deserialize_with = "list")]
        "Cluster" cluster: Vec<String> = Vec::new();
        /// The Redis's password; that of every node of a cluster.
        "Password" password: Option<Secret> = None;
        /// The Redis database.
        "DB" db: i64 = 0;
        /// lmstfy's connections per Redis. Read and not used.
        "PoolSize" pool_size: Option<usize> = None;
        /// The name under which Sentinels know the master.
        #[serde(deserialize_with = "unless_empty")]
        "MasterName" master_name: Option<String> = None;
        /// The Sentinels' own password.
        "SentinelPassword" sentinel_password: Option<Secret> = None;
        /// Dormouse's own. How a Redis keeps the jobs: `lmstfy`, so that lmstfy's servers may serve them too, or
        /// `compact`, in a third of the memory. Default: `lmstfy` with `Addr`, `compact` with `Cluster`.
        #[serde(deserialize_with = "layout")]
        "Layout" layout: Option<Layout> = None;
        /// Dormouse's own. How many parts a compact pool has: a power of two up to 4096. It stays what it was at the
        /// pool's first start. Default: 64 with `Cluster`, 1 with `Addr`.
        "Partitions" partitions: Option<u16> = None;
        /// Dormouse's own. What every key of a compact pool begins with. Default: the pool's name.
        #[serde(deserialize_with = "unless_empty")]
        "Prefix" prefix: Option<String> = None;
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
        /// Dormouse's own. MiB that the ready jobs which a disk pool keeps in memory, without their bodies, may take
        /// over all queues; a few of each queue are kept beside them.
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

/// A layout that is set to the empty text is not set.
fn layout<'de, D: Deserializer<'de>>(value: D) -> Result<Option<Layout>, D::Error> {
    #[derive(Deserialize)]
    #[serde(rename_all = "lowercase")]
    enum Text {
        #[serde(rename = "")]
        Unset,
        Lmstfy,
        Compact,
    }
    Ok(match Text::deserialize(value)? {
        Text::Unset => None,
        Text::Lmstfy => Some(Layout::Lmstfy),
        Text::Compact => Some(Layout::Compact),
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

/// How a Redis keeps the jobs of a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    Lmstfy,
    Compact,
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
