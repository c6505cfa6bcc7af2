//! The configurations in config/ load, and their values are the defaults of the code.

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
    assert!(!config.allow_unsafe_redis, "its store must keep jobs");
    assert_eq!(config.accounts, BTreeMap::new(), "no password is shipped: docker-compose.yml asks for one");
}

/// Guards against a service whose files are readable by other users.
#[test]
fn the_unit_keeps_the_server_private() {
    let unit = std::fs::read_to_string("deploy/dormouse.service").expect("deploy/dormouse.service");
    for line in ["UMask=0077", "StateDirectoryMode=0700", "RestartPreventExitStatus=2", "NoNewPrivileges=yes"]
    {
        assert!(unit.lines().any(|l| l == line), "{line} in:\n{unit}");
    }
}
