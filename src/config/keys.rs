//! Every configuration key, declared once: spelling, meaning, default and type. Keys that lmstfy does not have are
//! marked as Dormouse's own.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::PathBuf;

use clap::ValueEnum;

use super::setting::{ConfigError, Given, Setting, Spelt, one_of};

/// Declares a table of the configuration. Each key has a doc comment, its spelling in the file, its field, type and
/// default, and for numbers the valid range. `KEYS` lists the spellings. The following braces contain nested tables;
/// the last items are not keys.
macro_rules! table {
    ($(#[$table_doc:meta])* $table:ident {
        $($(#[$doc:meta])* $key:literal $field:ident: $type:ty = $default:expr $(, in $range:expr)?;)*
    } {
        $($(#[$inner_doc:meta])* $inner_key:literal $inner:ident: $inner_type:ty;)*
    } $($(#[$other_doc:meta])* $other:ident: $other_type:ty;)*) => {
        $(#[$table_doc])*
        #[derive(Debug, Clone)]
        pub struct $table {
            $($(#[$doc])* pub $field: $type,)*
            $($(#[$inner_doc])* pub $inner: $inner_type,)*
            $($(#[$other_doc])* pub(super) $other: $other_type,)*
        }

        impl $table {
            /// Spellings of the keys.
            pub const KEYS: &[&str] = &[$($key,)* $($inner_key,)*];

            /// Sets a key from its given value.
            pub(super) fn set(&mut self, key: &str, given: &Given) -> Result<(), ConfigError> {
                match key {
                    $($key => {
                        let range: Option<RangeInclusive<u64>> = None $(.or(Some($range)))?;
                        self.$field = <$type as Setting>::read(given, range)?;
                    })*
                    // Nested tables are read by the source.
                    _ => {}
                }
                Ok(())
            }

            /// Returns every key with its value as TOML, without secrets; `None` if not set.
            pub(super) fn shown(&self) -> Vec<(&'static str, Option<String>)> {
                vec![$(($key, self.$field.show())),*]
            }
        }

        impl Default for $table {
            fn default() -> $table {
                $table { $($field: $default,)* $($inner: <_>::default(),)* $($other: <_>::default(),)* }
            }
        }
    };
}

table! {
    /// All settings of the server.
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
        /// Directory for `access.log` and `error.log`; by default both go to standard error.
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
        "TriesNum" tries_num: u16 = 1, in 1..=u16::MAX.into();
        /// Default `ttr` of a consume, in seconds.
        "TTRSecond" ttr_second: u32 = 120;
        /// Default `timeout` of a consume, in seconds.
        "TimeoutSecond" timeout_second: u32 = 0;
        /// Dormouse's own. Allow a Redis that can lose jobs (without an append-only file, or with eviction).
        "AllowUnsafeRedis" allow_unsafe_redis: bool = false;
        /// Dormouse's own. Maximum number of consumers waiting in long polls, over all pools; beyond it: 503. A poll
        /// counts once more for every further ten queues and every further 8 KiB of request headers.
        "MaxParkedPolls" max_parked_polls: usize = 100_000, in 1..=MOST;
        /// Dormouse's own. Maximum number of consumers waiting in long polls per namespace; beyond it: 503. 0 is half
        /// of `MaxParkedPolls`.
        "MaxParkedPollsPerNamespace" max_parked_polls_per_namespace: usize = 0;
        /// Dormouse's own. Maximum number of connections of the public port; further ones wait to be accepted. The
        /// open-file limit may allow fewer.
        "MaxConnections" max_connections: usize = 200_000, in 1..=MOST;
        /// Dormouse's own. Maximum number of connections per client address, except loopback; beyond it they are
        /// closed. 0 is half of `MaxConnections`.
        "MaxConnectionsPerAddress" max_connections_per_address: usize = 0;
        /// Dormouse's own. Memory for bodies of requests, in MiB, and the same again for bodies of replies; beyond it
        /// requests wait, then get 503. Bodies up to 16 KiB are not counted.
        "MaxBodyMemory" max_body_memory: usize = 512, in 1..=MOST;
        /// Dormouse's own. Share of `MaxBodyMemory` for a single namespace. 0 is half of `MaxBodyMemory`.
        "MaxBodyMemoryPerNamespace" max_body_memory_per_namespace: usize = 0;
        /// Dormouse's own. Networks of proxies trusted to set `X-Forwarded-For`, such as `["10.0.0.0/8"]`. In a
        /// variable, separated by commas.
        "TrustedProxies" trusted_proxies: Vec<String> = Vec::new();
        /// Dormouse's own. Maximum number of schedules per namespace; beyond it: 409. 0 disables schedules: 403.
        "MaxSchedulesPerNamespace" max_schedules_per_namespace: u64 = 10_000;
        /// Dormouse's own. Maximum number of schedules per pool; beyond it: 409.
        "MaxSchedules" max_schedules: u64 = 100_000;
        /// Dormouse's own. Directory of the time zone database for schedules, such as `/usr/share/zoneinfo`, instead of
        /// the built-in one.
        "ZoneInfo" zone_info: Option<PathBuf> = None;
        /// Dormouse's own. Memory for the history of queues, in MiB; 0 disables it.
        "HistoryMemory" history_memory: usize = 64, in 0..=MOST;
        /// Dormouse's own. URL of the admin port as users enter it, if it is behind a proxy.
        "AdminUrl" admin_url: Option<String> = None;
        /// Dormouse's own. Whether the admin port serves the dashboard.
        "Dashboard" dashboard: bool = true;
        /// Dormouse's own. Default time zone of the dashboard.
        "DashboardZone" dashboard_zone: String = "UTC".into();
        /// Dormouse's own. Accounts that may see bodies and attributes of jobs, and replies of endpoints, on the admin
        /// port; others see sizes. `all`, `operators` or `none`.
        "ShowBodies" show_bodies: ShowBodies = ShowBodies::All;
        /// Dormouse's own. File of keys that encrypt push secrets in the store: one per line, 32 bytes in base64. The
        /// first encrypts, all decrypt.
        "SecretKeyFile" secret_key_file: Option<PathBuf> = None;
        /// Dormouse's own. Networks and host names that push may call in addition to public addresses, such as
        /// `["10.0.0.0/8", "hooks.internal"]`. In a variable, separated by commas.
        "PushAllow" push_allow: Vec<String> = Vec::new();
        /// Dormouse's own. `only`: push calls https URLs only.
        "PushHttps" push_https: PushHttps = PushHttps::Any;
        /// Dormouse's own. HTTP proxy for push: `http://user:password@host:port`.
        "PushProxy" push_proxy: Option<Secret> = None;
        /// Dormouse's own. File containing `PushProxy`.
        "PushProxyFile" push_proxy_file: Option<PathBuf> = None;
        /// Dormouse's own. PEM file of certificates that push trusts in addition to the system's.
        "PushCA" push_ca: Option<PathBuf> = None;
        /// Dormouse's own. PEM file of the certificate chain, the server's first. Enables TLS on the public port.
        "TLSCert" tls_cert: Option<PathBuf> = None;
        /// Dormouse's own. PEM file of the certificate's key.
        "TLSKey" tls_key: Option<PathBuf> = None;
        /// Dormouse's own. Like `TLSCert`, for the admin port.
        "AdminTLSCert" admin_tls_cert: Option<PathBuf> = None;
        /// Dormouse's own. Like `TLSKey`, for the admin port.
        "AdminTLSKey" admin_tls_key: Option<PathBuf> = None;
        /// Dormouse's own. Seconds to keep serving after a stop signal, while `/ready` returns 503.
        "DrainSeconds" drain_seconds: u64 = 0, in 0..=300;
        /// Dormouse's own. Seconds to wait at the start for stores that do not respond.
        "WaitForStore" wait_for_store: u64 = 0, in 0..=3600;
    } {
        /// Users of the admin port. If there are any, its routes for tokens, limits, quotas, push and the access log
        /// require basic auth.
        "Accounts" accounts: BTreeMap<String, Secret>;
        /// Users of the admin port with read-only access. They do not see tokens.
        "ReadOnlyAccounts" read_only_accounts: BTreeMap<String, Secret>;
        /// Store of tokens and limits. Optional if the default pool is on disk, which then stores them.
        "AdminRedis" admin_redis: Option<PoolConfig>;
        /// Pools by name. `default` is required.
        "Pool" pool: BTreeMap<String, PoolConfig>;
    }
    /// Spelling of each key as it was given.
    spelt: Spelt;
}

table! {
    /// A store: `Addr` is a Redis, `Cluster` a Redis Cluster, `Path` a directory.
    PoolConfig {
        /// `host:port` of a Redis, or with `MasterName` of its Sentinels, separated by commas.
        "Addr" addr: Option<String> = None;
        /// Dormouse's own. Seed nodes of a Redis Cluster, `["host:port", ..]`; the others are discovered. In a
        /// variable, separated by commas.
        "Cluster" cluster: Vec<String> = Vec::new();
        /// Password of the Redis, or of every node of the cluster.
        "Password" password: Option<Secret> = None;
        /// Dormouse's own. File containing the password.
        "PasswordFile" password_file: Option<PathBuf> = None;
        /// Dormouse's own. User in the Redis's ACL; default: `default`.
        "Username" username: Option<String> = None;
        /// Number of the Redis database.
        "DB" db: i64 = 0, in 0..=i32::MAX as u64;
        /// lmstfy's number of connections per Redis. Accepted and ignored.
        "PoolSize" pool_size: Option<usize> = None;
        /// Name of the master at the Sentinels.
        "MasterName" master_name: Option<String> = None;
        /// Password of the Sentinels.
        "SentinelPassword" sentinel_password: Option<Secret> = None;
        /// Dormouse's own. File containing the Sentinels' password.
        "SentinelPasswordFile" sentinel_password_file: Option<PathBuf> = None;
        /// Dormouse's own. User in the Sentinels' ACL.
        "SentinelUsername" sentinel_username: Option<String> = None;
        /// Dormouse's own. Use TLS to the Redis and its Sentinels.
        "TLS" tls: bool = false;
        /// Dormouse's own. PEM file of trusted certificates, instead of the system's.
        "CA" ca: Option<PathBuf> = None;
        /// Dormouse's own. PEM file of the client certificate chain, the client's first.
        "Cert" cert: Option<PathBuf> = None;
        /// Dormouse's own. PEM file of the client certificate's key.
        "Key" key: Option<PathBuf> = None;
        /// Dormouse's own. Number of partitions of a pool in a cluster: a power of two up to 4096. Fixed at the pool's
        /// first start. Default: 64.
        "Partitions" partitions: Option<u16> = None, in 1..=MAX_PARTITIONS.into();
        /// Dormouse's own. Prefix of every key of a pool in a cluster. Default: the pool's name.
        "Prefix" prefix: Option<String> = None;
        /// Dormouse's own. Number of replicas of its Redis, or of each node of a cluster, that must have received a
        /// write before the reply; at most 5.
        "WaitReplicas" wait_replicas: u16 = 0, in 0..=5;
        /// Dormouse's own. Queues of a pool in a cluster that use all partitions:
        /// `["shop/orders", "mail/*", "*/bulk-*"]`.
        /// In a variable they are separated by commas.
        "Spread" spread: Vec<String> = Vec::new();
        /// Dormouse's own. Seconds of delay above which a job of a pool on Redis is packed; 0: never. Default: 600 in a
        /// cluster, 0 on a single Redis, because lmstfy's servers do not see packed jobs.
        "PackAfter" pack_after: Option<u64> = None, in 0..=MAX_TTL;
        /// Dormouse's own. Seconds after which a dead job expires; 0: never.
        "DeadLetterTTL" dead_letter_ttl: u64 = 0, in 0..=MAX_TTL;
        /// Pool that receives new publishes while this pool is drained.
        "MigrateTo" migrate_to: Option<String> = None;
        /// Dormouse's own. Directory of a disk pool.
        "Path" path: Option<PathBuf> = None;
        /// Dormouse's own. When a disk pool syncs: `always` before it replies, or `everysec`.
        "Sync" sync: SyncMode = SyncMode::Always;
        /// Dormouse's own. Free MiB on disk below which a disk pool refuses publishes, so that its jobs can be
        /// consumed; 0 refuses nothing.
        "MinFreeDisk" min_free_disk: u64 = 256;
        /// Dormouse's own. Seconds without a response after which a disk is considered failed.
        "DiskTimeout" disk_timeout: u64 = 30, in 1..=MOST;
        /// Dormouse's own. Block cache of a disk pool, in MiB.
        "BlockCache" block_cache: u64 = 32;
        /// Dormouse's own. Memory for ready jobs of a disk pool, without bodies, over all queues, in MiB. A few jobs of
        /// each queue are kept in addition.
        "ReadyMemory" ready_memory: usize = 16;
    } {}
}

impl PoolConfig {
    /// Returns whether a key applies to disk pools only.
    pub(super) fn of_a_directory(key: &str) -> bool {
        ["Path", "Sync", "MinFreeDisk", "DiskTimeout", "BlockCache", "ReadyMemory"].contains(&key)
    }

    /// Returns whether a key applies to Redis pools only.
    pub(super) fn of_a_redis(key: &str) -> bool {
        !["MigrateTo", "DeadLetterTTL"].contains(&key) && !PoolConfig::of_a_directory(key)
    }
}

/// Keys of pools that do not apply to the store of tokens.
pub(super) const OF_JOBS: [&str; 6] =
    ["Partitions", "Prefix", "WaitReplicas", "Spread", "PackAfter", "DeadLetterTTL"];
/// Maximum `PackAfter` and `DeadLetterTTL`, like the maximum `ttl`: 136 years.
const MAX_TTL: u64 = u32::MAX as u64;
/// Largest integer in TOML.
const MOST: u64 = i64::MAX as u64;
/// Maximum number of partitions: each needs a slot of its own, with room to spread.
const MAX_PARTITIONS: u16 = 4096;

/// URLs that push may call.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum PushHttps {
    #[default]
    Any,
    Only,
}

/// Accounts that see job bodies on the admin port.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ShowBodies {
    #[default]
    All,
    Operators,
    None,
}

/// When a disk pool syncs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum SyncMode {
    /// Before each reply: every acknowledged write survives a power cut.
    #[default]
    Always,
    /// Every second: a power cut loses up to a second of writes; a crash of the process loses none.
    EverySec,
}

/// Log level, in the configuration and on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogLevel {
    Trace,
    Debug,
    Info,
    #[value(alias = "warning")]
    Warn,
    #[value(aliases = ["fatal", "panic"])]
    Error,
}

/// Format of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    Text,
    Json,
}

/// Declares the words of an enumerated key. The first of several words for one value is used for printing.
macro_rules! words {
    ($type:ident { $($word:literal => $value:ident),* $(,)? }) => {
        impl Setting for $type {
            fn read(given: &Given, _: Option<RangeInclusive<u64>>) -> Result<$type, ConfigError> {
                one_of(given, &[$(($word, $type::$value)),*])
            }

            fn show(&self) -> Option<String> {
                let words = [$(($word, $type::$value)),*];
                words.iter().find(|(_, value)| value == self).map(|(word, _)| format!("{word:?}"))
            }
        }
    };
}

words!(PushHttps { "any" => Any, "only" => Only, "" => Any });
words!(ShowBodies { "all" => All, "operators" => Operators, "none" => None, "" => All });
words!(SyncMode { "always" => Always, "everysec" => EverySec });
words!(LogFormat { "text" => Text, "json" => Json });
words!(LogLevel {
    "trace" => Trace,
    "debug" => Debug,
    "info" => Info,
    "warn" => Warn,
    "warning" => Warn,
    "error" => Error,
    "fatal" => Error,
    "panic" => Error,
});

/// A text that is never shown in logs or errors.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Returns the text.
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

impl Setting for Secret {
    fn read(given: &Given, _: Option<RangeInclusive<u64>>) -> Result<Secret, ConfigError> {
        given.text().map(Secret::from).ok_or_else(|| given.refused(false, "expected a string"))
    }

    fn show(&self) -> Option<String> {
        Some("\"(secret)\"".into())
    }
}
