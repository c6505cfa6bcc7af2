//! Where keys come from: a file's tree with every key in its own spelling, and the environment's variables as
//! such a tree. Knows the keys' names and not what they mean.

use config::{Map, Source, Value, ValueKind};

use super::ConfigError;

const ENV_PREFIX: &str = "DORMOUSE_";
/// Variables with our prefix that are not keys: token-cli's.
const ENV_NOT_KEYS: [&str; 1] = ["DORMOUSE_ADMIN_AUTH"];

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

/// A tree of keys as a source of the configuration.
#[derive(Debug, Clone)]
pub struct Tree(pub Map<String, Value>);

impl Source for Tree {
    fn clone_into_box(&self) -> Box<dyn Source + Send + Sync> {
        Box::new(self.clone())
    }

    fn collect(&self) -> Result<Map<String, Value>, config::ConfigError> {
        Ok(self.0.clone())
    }
}

/// Gives every key its own spelling; unknown ones stay as they are, to be refused by name.
pub fn spelled(tree: Map<String, Value>) -> Map<String, Value> {
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

/// `DORMOUSE_A_B` to the tree that `A.B` names. Words of a key may be apart: `ADMIN_PORT` is `AdminPort`. `pools`
/// are the names in the file, which a variable cannot spell. Variables of others are left alone.
pub fn from_env(
    env: impl IntoIterator<Item = (String, String)>,
    pools: &[String],
) -> Result<Map<String, Value>, ConfigError> {
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
    let mut vars: Vec<(String, String)> = env
        .into_iter()
        .filter(|(var, _)| var.starts_with(ENV_PREFIX) && !ENV_NOT_KEYS.contains(&var.as_str()))
        .collect();
    vars.sort();
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
