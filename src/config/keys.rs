//! Every key of the configuration, once: its spelling, its meaning, its default and its type. Keys that lmstfy does not
//! have are marked as Dormouse's own. Reads nothing.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::PathBuf;

use clap::ValueEnum;

use super::setting::{ConfigError, Given, Setting, Spelt, one_of};

/// Declares a table of the configuration, each key once: its doc comment, its spelling in the file, its field, type
/// and default, and of a number which are taken. `KEYS` are the spellings. What is in braces behind it are tables of
/// their own; what stands last is no key.
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
            /// The spellings of the keys.
            pub const KEYS: &[&str] = &[$($key,)* $($inner_key,)*];

            /// Sets the key to what was given.
            pub(super) fn set(&mut self, key: &str, given: &Given) -> Result<(), ConfigError> {
                match key {
                    $($key => {
                        let range: Option<RangeInclusive<u64>> = None $(.or(Some($range)))?;
                        self.$field = <$type as Setting>::read(given, range)?;
                    })*
                    // The tables are the source's.
                    _ => {}
                }
                Ok(())
            }

            /// Every key with its value as TOML, without secrets; `None` where it is not set.
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
        /// Dormouse's own. Run on a Redis that can lose jobs (no append-only file, or one that evicts keys).
        "AllowUnsafeRedis" allow_unsafe_redis: bool = false;
        /// Dormouse's own. How many consumers may wait in long polls, over all pools; beyond it: 503. One that waits for
        /// many queues counts once for each ten, one with a long head once more for each 8 KiB.
        "MaxParkedPolls" max_parked_polls: usize = 100_000, in 1..=MOST;
        /// Dormouse's own. How many of them may wait for queues of one namespace; beyond it: 503. 0 is half of
        /// `MaxParkedPolls`.
        "MaxParkedPollsPerNamespace" max_parked_polls_per_namespace: usize = 0;
        /// Dormouse's own. How many connections the public port takes; beyond it they wait to be accepted. The
        /// open-file limit may allow fewer.
        "MaxConnections" max_connections: usize = 200_000, in 1..=MOST;
        /// Dormouse's own. How many of them one address may have, loopback excepted; beyond it: closed. 0 is half of
        /// `MaxConnections`.
        "MaxConnectionsPerAddress" max_connections_per_address: usize = 0;
        /// Dormouse's own. How much memory the bodies of requests may take together, in MiB, and those in answers
        /// as much again; beyond it they wait, and then get 503. Bodies up to 16 KiB are not counted.
        "MaxBodyMemory" max_body_memory: usize = 512, in 1..=MOST;
        /// Dormouse's own. How much of it the bodies of one namespace may take. 0 is half of `MaxBodyMemory`.
        "MaxBodyMemoryPerNamespace" max_body_memory_per_namespace: usize = 0;
        /// Dormouse's own. Networks of proxies that are believed who sent a request (`X-Forwarded-For`):
        /// `["10.0.0.0/8"]`. In a variable they are separated by commas.
        "TrustedProxies" trusted_proxies: Vec<String> = Vec::new();
        /// Dormouse's own. How many schedules a namespace may have; beyond it: 409. 0: none at all, 403.
        "MaxSchedulesPerNamespace" max_schedules_per_namespace: u64 = 10_000;
        /// Dormouse's own. How many schedules a pool may have; beyond it: 409.
        "MaxSchedules" max_schedules: u64 = 100_000;
        /// Dormouse's own. A directory of time zones that schedules are read in, such as `/usr/share/zoneinfo`, in place of
        /// the database that is built in.
        "ZoneInfo" zone_info: Option<PathBuf> = None;
        /// Dormouse's own. How much memory the history of queues may take, in MiB; 0: none is kept.
        "HistoryMemory" history_memory: usize = 64, in 0..=MOST;
        /// Dormouse's own. The address of the admin port as people type it, where a proxy is before it.
        "AdminUrl" admin_url: Option<String> = None;
        /// Dormouse's own. Whether the admin port has pages for browsers.
        "Dashboard" dashboard: bool = true;
        /// Dormouse's own. The time zone of the pages, unless their reader says another one.
        "DashboardZone" dashboard_zone: String = "UTC".into();
        /// Dormouse's own. Who sees bodies and attributes of jobs, and answers of endpoints, on the admin port; the others
        /// see sizes. `all`, `operators` or `none`.
        "ShowBodies" show_bodies: ShowBodies = ShowBodies::All;
        /// Dormouse's own. A file of keys that encrypt the secrets of push in the store: 32 bytes in base64 on each
        /// line. The first encrypts, all decrypt.
        "SecretKeyFile" secret_key_file: Option<PathBuf> = None;
        /// Dormouse's own. Which networks and host names push may call beside public addresses:
        /// `["10.0.0.0/8", "hooks.internal"]`. In a variable they are separated by commas.
        "PushAllow" push_allow: Vec<String> = Vec::new();
        /// Dormouse's own. `only`: push calls no URL that is not https.
        "PushHttps" push_https: PushHttps = PushHttps::Any;
        /// Dormouse's own. A proxy that push calls through: `http://user:password@host:port`.
        "PushProxy" push_proxy: Option<Secret> = None;
        /// Dormouse's own. A file that has it.
        "PushProxyFile" push_proxy_file: Option<PathBuf> = None;
        /// Dormouse's own. A PEM file of certificates that push trusts beside the system's.
        "PushCA" push_ca: Option<PathBuf> = None;
        /// Dormouse's own. A PEM file of certificates, the server's first: the public port speaks TLS.
        "TLSCert" tls_cert: Option<PathBuf> = None;
        /// Dormouse's own. The key of the first of them, PEM.
        "TLSKey" tls_key: Option<PathBuf> = None;
        /// Dormouse's own. The same of the admin port.
        "AdminTLSCert" admin_tls_cert: Option<PathBuf> = None;
        /// Dormouse's own. The same of the admin port.
        "AdminTLSKey" admin_tls_key: Option<PathBuf> = None;
        /// Dormouse's own. How many seconds the server goes on after the signal to stop, while `/ready` says no.
        "DrainSeconds" drain_seconds: u64 = 0, in 0..=300;
        /// Dormouse's own. How many seconds the start waits for stores that do not answer yet.
        "WaitForStore" wait_for_store: u64 = 0, in 0..=3600;
    } {
        /// Users of the admin port; with any, its routes for tokens, limits, quotas, push and the access log ask for
        /// basic auth.
        "Accounts" accounts: BTreeMap<String, Secret>;
        /// Users of the admin port who may look and change nothing, and to whom no token is shown.
        "ReadOnlyAccounts" read_only_accounts: BTreeMap<String, Secret>;
        /// Where tokens and limits are kept. May be left out when the default pool is on disk: then they are
        /// there.
        "AdminRedis" admin_redis: Option<PoolConfig>;
        /// The pools, by name. There must be one called `default`.
        "Pool" pool: BTreeMap<String, PoolConfig>;
    }
    /// How each key that was given was written.
    spelt: Spelt;
}

table! {
    /// A store: `Addr` names a Redis, `Cluster` nodes of a Redis Cluster, `Path` a directory.
    PoolConfig {
        /// `host:port` of a Redis; with `MasterName`, those of its Sentinels, separated by commas.
        "Addr" addr: Option<String> = None;
        /// Dormouse's own. Some nodes of a Redis Cluster, `["host:port", ..]`; they tell of the others. In a variable they
        /// are separated by commas.
        "Cluster" cluster: Vec<String> = Vec::new();
        /// The Redis's password; that of every node of a cluster.
        "Password" password: Option<Secret> = None;
        /// Dormouse's own. A file that has the password.
        "PasswordFile" password_file: Option<PathBuf> = None;
        /// Dormouse's own. The user of the Redis's access list; `default` if it is left out.
        "Username" username: Option<String> = None;
        /// The Redis database.
        "DB" db: i64 = 0, in 0..=i32::MAX as u64;
        /// lmstfy's connections per Redis. Read and not used.
        "PoolSize" pool_size: Option<usize> = None;
        /// The name under which Sentinels know the master.
        "MasterName" master_name: Option<String> = None;
        /// The Sentinels' own password.
        "SentinelPassword" sentinel_password: Option<Secret> = None;
        /// Dormouse's own. A file that has it.
        "SentinelPasswordFile" sentinel_password_file: Option<PathBuf> = None;
        /// Dormouse's own. The user of the Sentinels' access list.
        "SentinelUsername" sentinel_username: Option<String> = None;
        /// Dormouse's own. Speak TLS with the Redis, and with its Sentinels.
        "TLS" tls: bool = false;
        /// Dormouse's own. A PEM file of the certificates that are trusted then, in place of the system's.
        "CA" ca: Option<PathBuf> = None;
        /// Dormouse's own. A PEM file of certificates that the Redis is shown, ours first.
        "Cert" cert: Option<PathBuf> = None;
        /// Dormouse's own. The key of the first of them, PEM.
        "Key" key: Option<PathBuf> = None;
        /// Dormouse's own. Number of partitions of a pool in a cluster: a power of two up to 4096. It stays what it was
        /// at the pool's first start. Default: 64.
        "Partitions" partitions: Option<u16> = None, in 1..=MAX_PARTITIONS.into();
        /// Dormouse's own. What every key of a pool in a cluster begins with. Default: the pool's name.
        "Prefix" prefix: Option<String> = None;
        /// Dormouse's own. Number of replicas of its Redis, or of each node of a cluster, that must have a write before it
        /// is answered; at most 5.
        "WaitReplicas" wait_replicas: u16 = 0, in 0..=5;
        /// Dormouse's own. Queues of a pool in a cluster that use all partitions: `["shop/orders", "mail/*", "*/bulk-*"]`.
        /// In a variable they are separated by commas.
        "Spread" spread: Vec<String> = Vec::new();
        /// The pool that publishes go to, while this one is drained.
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
        "DiskTimeout" disk_timeout: u64 = 30, in 1..=MOST;
        /// Dormouse's own. MiB of blocks that a disk pool has read and keeps.
        "BlockCache" block_cache: u64 = 32;
        /// Dormouse's own. MiB that the ready jobs which a disk pool keeps in memory, without their bodies, may take
        /// over all queues; a few of each queue are kept beside them.
        "ReadyMemory" ready_memory: usize = 16;
    } {}
}

impl PoolConfig {
    /// Whether a key belongs to stores that are a directory.
    pub(super) fn of_a_directory(key: &str) -> bool {
        ["Path", "Sync", "MinFreeDisk", "DiskTimeout", "BlockCache", "ReadyMemory"].contains(&key)
    }

    /// Whether a key belongs to stores that are a Redis.
    pub(super) fn of_a_redis(key: &str) -> bool {
        key != "MigrateTo" && !PoolConfig::of_a_directory(key)
    }
}

/// The largest number that TOML has.
const MOST: u64 = i64::MAX as u64;
/// Upper bound on the partitions of a pool: each needs a slot of its own in a cluster, with room to spread.
const MAX_PARTITIONS: u16 = 4096;

/// Which URLs push may call.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum PushHttps {
    #[default]
    Any,
    Only,
}

/// Who sees what is in jobs, on the admin port.
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
    /// Before each answer: what was answered survives a power cut.
    #[default]
    Always,
    /// Every second: a power cut loses up to a second, a crash of the process nothing.
    EverySec,
}

/// How much is logged. In the configuration and on the command line.
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

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    Text,
    Json,
}

/// The words of a key that has few values. The first of several for one value is the one that is printed.
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

/// A text that no log and no error shows.
#[derive(Clone, Default, PartialEq, Eq)]
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

impl Setting for Secret {
    fn read(given: &Given, _: Option<RangeInclusive<u64>>) -> Result<Secret, ConfigError> {
        given.text().map(Secret::from).ok_or_else(|| given.refused(false, "a text is wanted"))
    }

    fn show(&self) -> Option<String> {
        Some("\"(secret)\"".into())
    }
}
