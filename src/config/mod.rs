//! The configuration: every key with its default ([`keys`]), read from the two [`source`]s and [`validate`]d. lmstfy's
//! TOML loads unchanged, with keys in any case. Environment variables override the file: `DORMOUSE_PORT`,
//! `DORMOUSE_POOL_DEFAULT_ADDR`. Reads that one file and nothing else; the variables are an argument.

mod keys;
mod service_links;
mod source;
mod validate;

use std::path::Path;

use config::{File, FileFormat, Source, ValueKind};

pub use self::keys::{
    Config, ConfigError, Layout, LogFormat, LogLevel, PoolConfig, PushHttps, Secret, SyncMode,
};
pub use self::service_links::is_service_link;
pub use self::source::is_configured;
use self::source::{Tree, from_env, spelled};

/// Where a server without `-c` looks first, as lmstfy does.
pub const DEFAULT_FILE: &str = "conf/config.toml";
/// Where a server without any configuration keeps its jobs.
pub const DEFAULT_DATA: &str = "dormouse-data";

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
            && pool.cluster.is_empty()
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
    fn a_compact_pool_is_a_redis_with_a_power_of_two_of_parts() {
        let pool = |keys: &str| {
            let admin = "[AdminRedis]\nAddr='x:1'\n";
            load(&format!("{admin}[Pool.default]\nAddr='x:1'\n{keys}"), &[])
                .map(|config| config.pool["default"].clone())
        };
        let compact = pool("Layout='compact'\nPartitions=4096\nPrefix='p.1'").expect("it loads");
        assert_eq!((compact.layout(), compact.partitions()), (Layout::Compact, 4096));
        assert_eq!(compact.prefix.as_deref(), Some("p.1"));
        assert_eq!(pool("").expect("it loads").layout(), Layout::Lmstfy);
        for (keys, key) in [
            ("Layout='compact'\nPartitions=0", "Partitions"),
            ("Layout='compact'\nPartitions=3", "Partitions"),
            ("Layout='compact'\nPartitions=8192", "Partitions"),
            ("Layout='compact'\nPrefix='a{b'", "Prefix"),
            ("Partitions=2", "Partitions"),
            ("Prefix='a'", "Prefix"),
            ("Layout='other'", "other"),
        ] {
            let error = pool(keys).expect_err(keys);
            assert!(error.contains(key) && !error.contains('\n'), "{keys:?}: {error}");
        }
        let disk = load("[Pool.default]\nPath='d'\nLayout='compact'", &[]).expect_err("a directory");
        assert!(disk.contains("Layout"), "{disk}");
        let two = "[AdminRedis]\nAddr='x:1'\n[Pool.default]\nAddr='x:1'\nLayout='compact'\nPrefix='a'\n\
                   [Pool.other]\nAddr='x:1'\nLayout='compact'\nPrefix='a'";
        let two = load(two, &[]).expect_err("one place for two pools");
        assert!(two.contains("Prefix"), "{two}");
        let admin = load("[AdminRedis]\nAddr='x:1'\nLayout='compact'\n[Pool.default]\nAddr='x:1'", &[]);
        assert!(admin.expect_err("tokens").contains("Layout"), "[AdminRedis] has no layout");
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
            ("[Pool.default]\nCluster=['h:1']\nAddr='h:2'", "both Addr and Cluster"),
            ("[Pool.default]\nCluster=['h:1']\nPath='d'", "both Path and Cluster"),
            ("[Pool.default]\nCluster=['h:1']\nMasterName='m'", "MasterName"),
            ("[Pool.default]\nCluster=['h:1']\nDB=1", "DB is not 0"),
            ("[Pool.default]\nCluster=['h:1']\nLayout='lmstfy'", "Layout"),
            ("[Pool.default]\nCluster=['h']", "host:port"),
            ("[Pool.default]\nCluster=['h:0']", "host:port"),
            ("[Pool.default]\nCluster=['h:1']\nPartitions=12", "power of two"),
            ("[Pool.default]\nCluster=['h:1']", "AdminRedis"),
            ("[Pool.default]\nCluster=['h:1']\n[AdminRedis]\nCluster=['h:1']", "[AdminRedis]: Cluster"),
            (
                "[Pool.default]\nCluster=['h:1']\n[Pool.b]\nCluster=['h:1']\nPrefix='default'\n[AdminRedis]\nAddr='h:1'",
                "its Cluster and its Prefix",
            ),
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
    fn a_cluster_is_a_list_or_a_text_with_commas() {
        let file = "[Pool.default]\nCluster=['h1:1', 'h2:2']\n[Pool.b]\nAddr='x:1'\nLayout='compact'\n[AdminRedis]\nAddr='x:1'";
        let config = load(file, &[]).expect("it loads");
        let pool = &config.pool["default"];
        assert_eq!(
            (&pool.cluster[..], pool.layout()),
            (&["h1:1".to_owned(), "h2:2".to_owned()][..], Layout::Compact)
        );
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
            ("[Pool.default]\nCluster = ['redis://:hush@h:6379']\n[AdminRedis]\nAddr = 'h:1'", None),
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
