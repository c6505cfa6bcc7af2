//! The configurations in config/ load, and say what the code says.

use std::collections::BTreeMap;
use std::path::Path;

use dormouse::config::{Config, DEFAULT_DATA, PoolConfig, SyncMode};

fn load(file: &str) -> Config {
    Config::load(Some(Path::new(file)), []).unwrap_or_else(|e| panic!("{file} should load: {e}"))
}

#[test]
fn the_commented_configuration_says_the_defaults() {
    let mut config = load("config/dormouse.toml");
    let pools = std::mem::take(&mut config.pool);
    assert_eq!(
        format!("{config:#?}"),
        format!("{:#?}", Config::default()),
        "left: the file; right: the code"
    );
    assert_eq!(pools.keys().collect::<Vec<_>>(), ["default"], "pools that are not commented out");
    assert_eq!(pools["default"].path.as_deref(), Some(Path::new(DEFAULT_DATA)));
    assert_eq!(pools["default"].sync, SyncMode::default());
}

#[test]
fn no_key_is_missing_from_the_commented_configuration_and_the_docs() {
    let file = std::fs::read_to_string("config/dormouse.toml").expect("config/dormouse.toml");
    let docs = std::fs::read_to_string("docs/configuration.md").expect("docs/configuration.md");
    for (table, keys) in [("", Config::KEYS), ("[Pool.default]", PoolConfig::KEYS)] {
        for key in keys {
            let is_set = |line: &str| {
                let line = line.trim_start_matches('#').trim();
                line.starts_with(&format!("{key} = ")) || line.starts_with(&format!("[{key}"))
            };
            assert!(file.lines().any(is_set), "config/dormouse.toml should show {table} {key}");
            assert!(docs.contains(&format!("`{key}`")), "docs/configuration.md should explain {table} {key}");
        }
    }
}

#[test]
fn the_docs_say_the_defaults() {
    let file = std::fs::read_to_string("config/dormouse.toml").expect("config/dormouse.toml");
    let docs = std::fs::read_to_string("docs/configuration.md").expect("docs/configuration.md");
    let mut seen = 0;
    for line in file.lines().take_while(|line| !line.starts_with('[')) {
        let Some((key, rest)) = line.split_once(" = ") else { continue };
        let value = rest.split('#').next().unwrap_or_default().trim().trim_matches('"');
        let value = if value.is_empty() { "empty".to_owned() } else { format!("`{value}`") };
        let row = docs.lines().find(|row| row.starts_with(&format!("| `{key}` |"))).unwrap_or_default();
        let default = row.split('|').nth(3).unwrap_or_default().trim();
        assert_eq!(default, value, "the default of {key}; left: docs/configuration.md, right: the file");
        seen += 1;
    }
    assert!(seen > 10, "only {seen} keys were compared: the test looks at the wrong lines");
}

#[test]
fn the_configuration_of_docker_compose_keeps_all_on_one_redis() {
    let config = load("config/redis.toml");
    let redis = Some("redis:6379");
    assert_eq!(config.pool["default"].addr.as_deref(), redis);
    assert_eq!(config.admin_redis.as_ref().and_then(|a| a.addr.as_deref()), redis);
    assert!(!config.allow_unsafe_redis, "what it runs on must keep jobs");
    assert_eq!(config.accounts, BTreeMap::new(), "no password is shipped: docker-compose.yml asks for one");
}

/// Guards against a container build without make, which jemalloc needs, ports that the network reaches, and a
/// service whose files others can read.
#[test]
fn what_runs_the_server_keeps_it_private() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read =
        |name: &str| std::fs::read_to_string(root.join(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
    let dockerfile = read("Dockerfile");
    let (make, build) = (dockerfile.find("apt-get install"), dockerfile.find("cargo build"));
    let install = make.map(|at| dockerfile[at..].lines().next().unwrap_or_default()).unwrap_or_default();
    assert!(install.contains(" make") && make < build, "make is installed before the build:\n{dockerfile}");
    let compose = read("docker-compose.yml");
    let published: Vec<&str> = compose
        .lines()
        .map(str::trim)
        .filter(|line| line.starts_with("- \"") && line.ends_with(":7777\"") || line.ends_with(":7778\""))
        .collect();
    assert_eq!(published, ["- \"127.0.0.1:7777:7777\"", "- \"127.0.0.1:7778:7778\""], "on loopback only");
    let account =
        ["DORMOUSE_ACCOUNTS_OPERATOR: ${ADMIN_PASSWORD:?", "DORMOUSE_ADMIN_AUTH: operator:${ADMIN_PASSWORD}"];
    for line in account {
        assert!(
            compose.contains(line),
            "an account without a password that everybody knows, {line}, in:\n{compose}"
        );
    }
    let unit = read("deploy/dormouse.service");
    for line in ["UMask=0077", "StateDirectoryMode=0700", "RestartPreventExitStatus=2", "NoNewPrivileges=yes"]
    {
        assert!(unit.lines().any(|l| l == line), "{line} in:\n{unit}");
    }
}
