//! The configuration: every key with its default ([`keys`]), parsed by type ([`setting`]) from the two [`source`]s and
//! [`validate`]d. lmstfy's TOML loads unchanged, with keys in any case. Environment variables override the file:
//! `DORMOUSE_PORT`, `DORMOUSE_POOL_DEFAULT_ADDR`. Reads the configuration file and the secret files it names, checks
//! whether directories can be created, and creates nothing; the variables are an argument.

mod keys;
mod places;
mod secrets;
mod service_links;
mod setting;
mod source;
mod validate;
mod validate_pool;
mod warnings;

use std::path::Path;

pub use self::keys::{Config, LogFormat, LogLevel, PoolConfig, PushHttps, Secret, ShowBodies, SyncMode};
pub use self::service_links::is_service_link;
pub use self::setting::ConfigError;
use self::setting::{Setting, bare, section};
pub use self::source::is_configured;
use self::source::{Section, Sources};

/// Configuration file of a server without `-c`, as in lmstfy.
pub const DEFAULT_FILE: &str = "conf/config.toml";
/// Data directory of a server without any configuration.
pub const DEFAULT_DATA: &str = "dormouse-data";

impl Config {
    /// Loads `file`, if given, then the variables in `env`, an argument so that tests can supply their own.
    pub fn load(
        file: Option<&Path>,
        env: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Config, ConfigError> {
        let mut sources = Sources::default();
        if let Some(path) = file {
            let text = std::fs::read_to_string(path)
                .map_err(|e| ConfigError(format!("cannot read the config file {}: {e}", path.display())))?;
            sources.file(&path.display().to_string(), &text)?;
        }
        sources.variables(env)?;
        let mut config = Config::of(&sources)?;
        if file.is_none() {
            let pool = config.pool.entry("default".into()).or_default();
            if pool.addr.is_none() && pool.cluster.is_empty() {
                pool.path.get_or_insert_with(|| DEFAULT_DATA.into());
            }
        }
        config.read_secrets(&sources)?;
        config.validate(&sources)?;
        Ok(config)
    }

    /// Sets the given keys; others have their defaults.
    fn of(sources: &Sources) -> Result<Config, ConfigError> {
        fn pool(section: &Section) -> Result<PoolConfig, ConfigError> {
            let mut pool = PoolConfig::default();
            section.iter().try_for_each(|(key, given)| pool.set(key, given))?;
            Ok(pool)
        }
        let mut config = Config { spelt: sources.spelt(), ..Config::default() };
        sources.top.iter().try_for_each(|(key, given)| config.set(key, given))?;
        config.admin_redis = sources.admin_redis.as_ref().map(pool).transpose()?;
        for (name, section) in &sources.pools {
            config.pool.insert(name.clone(), pool(section)?);
        }
        for (user, password) in &sources.read_only_accounts.given {
            config.read_only_accounts.insert(user.clone(), Secret::read(password, None)?);
        }
        for (user, password) in &sources.accounts.given {
            config.accounts.insert(user.clone(), Secret::read(password, None)?);
        }
        Ok(config)
    }

    /// Returns a key as it was written, or the variable that set it with the key, for messages. `declared` is `Host` or
    /// `[Pool.default] CA`.
    pub fn written<'a>(&'a self, declared: &'a str) -> &'a str {
        self.spelt.0.get(declared).map_or(declared, String::as_str)
    }

    /// Returns the effective configuration as TOML, without secrets.
    pub fn in_force(&self) -> String {
        let mut text = String::new();
        section(&mut text, "", self.shown().into_iter().map(|(key, value)| (key.to_owned(), value)));
        if !self.accounts.is_empty() {
            let shown = self.accounts.iter().map(|(user, password)| (bare(user), password.show()));
            section(&mut text, "Accounts", shown);
        }
        if !self.read_only_accounts.is_empty() {
            let shown = self.read_only_accounts.iter().map(|(user, password)| (bare(user), password.show()));
            section(&mut text, "ReadOnlyAccounts", shown);
        }
        for (name, pool) in &self.pool {
            section(&mut text, &format!("Pool.{}", bare(name)), pool.in_force());
        }
        if let Some(admin) = &self.admin_redis {
            section(&mut text, "AdminRedis", admin.in_force());
        }
        text
    }
}

impl PoolConfig {
    /// Returns the keys that apply to this kind of store.
    fn in_force(&self) -> Vec<(String, Option<String>)> {
        let other = if self.path.is_some() { PoolConfig::of_a_redis } else { PoolConfig::of_a_directory };
        let own = self.shown().into_iter().filter(|(key, _)| !other(key));
        own.map(|(key, value)| (key.to_owned(), value)).collect()
    }
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
        // TOML itself distinguishes Pool and POOL.
        let config =
            load("[pool.default]\nsync='everysec'\n[POOL.default]\nPATH='d'", &[]).expect("it loads");
        assert_eq!(config.pool["default"].sync, SyncMode::EverySec, "keys of both tables count");
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
    fn a_pool_in_a_cluster_has_a_power_of_two_of_partitions() {
        let pool = |place: &str, keys: &str| {
            let admin = "[AdminRedis]\nAddr='x:1'\n";
            load(&format!("{admin}[Pool.default]\n{place}\n{keys}"), &[])
                .map(|config| config.pool["default"].clone())
        };
        let (cluster, single) = ("Cluster=['h:1']", "Addr='x:1'");
        let of_cluster = pool(cluster, "Partitions=4096\nPrefix='p.1'").expect("it loads");
        assert_eq!((of_cluster.partitions(), of_cluster.prefix.as_deref()), (4096, Some("p.1")));
        assert_eq!(pool(single, "WaitReplicas=1").expect("it loads").wait_replicas, 1);
        let pack_after = |place, keys| pool(place, keys).expect("it loads").pack_after().as_secs();
        assert_eq!([pack_after(cluster, ""), pack_after(single, "")], [600, 0], "lmstfy sees no packed jobs");
        assert_eq!([pack_after(cluster, "PackAfter=0"), pack_after(single, "PackAfter=60")], [0, 60]);
        for (place, keys, key) in [
            (cluster, "Partitions=0", "Partitions"),
            (cluster, "Partitions=3", "Partitions"),
            (cluster, "Partitions=8192", "Partitions"),
            (cluster, "Prefix='a{b'", "Prefix"),
            (cluster, "WaitReplicas=6", "WaitReplicas"),
            (single, "Partitions=2", "Partitions"),
            ("Path='d'", "PackAfter=60", "PackAfter"),
            (single, "Prefix='a'", "Prefix"),
            (single, "Spread=['a/b']", "Spread"),
            (single, "Layout='compact'", "the compact layout is no longer supported"),
            (cluster, "SpreadAt=9", "list the queues in Spread"),
            (cluster, "Ordered=['a/b']", "Ordered"),
        ] {
            let error = pool(place, keys).expect_err(keys);
            assert!(error.contains(key) && !error.contains('\n'), "{keys:?}: {error}");
        }
        let two = "[AdminRedis]\nAddr='x:1'\n[Pool.default]\nCluster=['x:1']\nPrefix='a'\n\
                   [Pool.other]\nCluster=['x:1']\nPrefix='a'";
        let two = load(two, &[]).expect_err("one place for two pools");
        assert!(two.contains("Prefix"), "{two}");
        let admin = load("[AdminRedis]\nAddr='x:1'\nPartitions=4\n[Pool.default]\nAddr='x:1'", &[]);
        assert!(
            admin.expect_err("tokens").contains("Partitions"),
            "[AdminRedis] has no partitions of its own"
        );
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

    /// Guards against write access for a read-only user by another user of the same name.
    #[test]
    fn an_account_has_one_role() {
        let pool = "[Pool.default]\nPath='d'";
        let file = format!("[Accounts]\nann='1'\n[ReadOnlyAccounts]\nbob='2'\n{pool}");
        let env = [("DORMOUSE_READ_ONLY_ACCOUNTS_EVE", "3"), ("DORMOUSE_READ_ONLY_ACCOUNTS_BOB", "4")];
        let config = load(&file, &env).expect("it loads");
        let viewers: Vec<_> =
            config.read_only_accounts.iter().map(|(user, pw)| (user.as_str(), pw.reveal())).collect();
        assert_eq!((viewers, config.accounts.len()), (vec![("bob", "4"), ("eve", "3")], 1));
        for (accounts, names) in [
            ("[Accounts]\nann='1'\n[ReadOnlyAccounts]\nann='2'", "ann"),
            ("[Accounts]\nann='1'\n[ReadOnlyAccounts]\nbob=''", "bob"),
            ("[ReadOnlyAccounts]\nbob='2'", "[Accounts]"),
        ] {
            let error = load(&format!("{accounts}\n{pool}"), &[]).expect_err(accounts);
            assert!(error.contains(names) && !error.contains('\n'), "{accounts:?}: {error}");
        }
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
    fn a_cluster_is_a_list_or_a_text_with_commas() {
        let file = "[Pool.default]\nCluster=['h1:1', 'h2:2']\n[Pool.b]\nAddr='x:1'\n[AdminRedis]\nAddr='x:1'";
        let config = load(file, &[]).expect("it loads");
        let pool = &config.pool["default"];
        assert_eq!(pool.cluster, ["h1:1", "h2:2"]);
        assert_eq!((pool.partitions(), config.pool["b"].partitions()), (64, 1));
        let config = load(file, &[("DORMOUSE_POOL_DEFAULT_CLUSTER", "h3:3, [::1]:4")]).expect("it loads");
        assert_eq!(config.pool["default"].cluster, ["h3:3", "[::1]:4"]);
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

    /// Guards against a password in the wrong place that is then shown in an error.
    #[test]
    fn an_error_does_not_show_a_value_that_may_be_a_password() {
        let pool = "[Pool.default]\nPath='d'\n";
        for (toml, env) in [
            (pool, Some(("DORMOUSE_ACCOUNTS", "ann:hush"))),
            (pool, Some(("DORMOUSE_READ_ONLY_ACCOUNTS", "ann:hush"))),
            ("ReadOnlyAccounts = 'ann:hush'\n[Pool.default]\nPath='d'", None),
            (pool, Some(("DORMOUSE_ADMIN_REDIS", "redis://:hush@h:6379"))),
            (pool, Some(("DORMOUSE_POOL", "redis://:hush@h:6379"))),
            (pool, Some(("DORMOUSE_ADMIN_REDIS_DB", "hush"))),
            (pool, Some(("DORMOUSE_ADMIN_REDIS_ADDR", "redis://:hush@h:6379"))),
            ("Accounts = 'ann:hush'\n[Pool.default]\nPath='d'", None),
            ("AdminRedis = 'hush'\n[Pool.default]\nPath='d'", None),
            ("[Pool]\ndefault = 'redis://:hush@h:6379'", None),
            ("[Pool.default]\nCluster = ['redis://:hush@h:6379']\n[AdminRedis]\nAddr = 'h:1'", None),
            ("[Pool.default]\nAddr = 'redis://:hush@h:6379'\n[AdminRedis]\nAddr = 'h:1'", None),
            (
                "[Pool.default]\nAddr = 'h:1,ann:hush@h:6379'\nMasterName = 'm'\n[AdminRedis]\nAddr = 'h:1'",
                None,
            ),
        ] {
            let error = load(toml, env.as_slice()).expect_err(toml);
            assert!(!error.contains("hush"), "{toml:?} and {env:?} show a password: {error}");
            let named = ["Accounts", "AdminRedis", "Pool", "DORMOUSE_"].iter().any(|key| error.contains(key));
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
