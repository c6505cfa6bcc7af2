//! The two sources of the configuration, as trees of keys: the file's tree with every key in its declared
//! spelling, and the environment variables as such a tree. Knows the spellings of the keys, not their meaning.

use config::{Map, Source, Value, ValueKind};

use super::keys::{Config, ConfigError, PoolConfig};
use super::service_links::is_service_link;

const ENV_PREFIX: &str = "DORMOUSE_";
/// Variables with our prefix that are not keys: those of token-cli and of `dormouse queue`.
const ENV_NOT_KEYS: [&str; 5] =
    ["DORMOUSE_ADMIN_AUTH", "DORMOUSE_ADMIN_URL", "DORMOUSE_NAMESPACE", "DORMOUSE_TOKEN", "DORMOUSE_URL"];

/// The keys that a first try may set: the message about a port that is taken names their variables, and the README's
/// walk through push calls a receiver of this machine.
const FIRST_TRY: [&str; 3] = ["Port", "AdminPort", "PushAllow"];

/// Whether this variable is meant for us, rightly spelt or not.
fn is_ours(name: &str, value: &str) -> bool {
    name.starts_with(ENV_PREFIX) && !ENV_NOT_KEYS.contains(&name) && !is_service_link(name, value)
}

/// Whether the environment configures more than a first try may set.
pub fn is_configured(env: &[(String, String)]) -> bool {
    let first_try = |name: &str| {
        let words = name[ENV_PREFIX.len()..].replace('_', "");
        FIRST_TRY.iter().any(|key| key.eq_ignore_ascii_case(&words))
    };
    env.iter().any(|(name, value)| is_ours(name, value) && !first_try(name))
}

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

/// Gives every key its declared spelling. Unknown keys stay as they are; the error about them names them.
pub fn spelled(tree: Map<String, Value>) -> Map<String, Value> {
    fn table(value: &mut Value, each: impl Fn(&mut Map<String, Value>)) {
        if let ValueKind::Table(map) = &mut value.kind {
            each(map);
        }
    }
    fn rename(map: Map<String, Value>, keys: &[&str]) -> Map<String, Value> {
        map.into_iter()
            .map(|(k, v)| {
                let spelling = keys.iter().find(|key| key.eq_ignore_ascii_case(&k));
                (spelling.map_or(k, |s| (*s).to_owned()), v)
            })
            .collect()
    }
    let pool = |value: &mut Value| table(value, |map| *map = rename(std::mem::take(map), PoolConfig::KEYS));
    let mut tree = rename(tree, Config::KEYS);
    if let Some(admin) = tree.get_mut("AdminRedis") {
        pool(admin);
    }
    if let Some(pools) = tree.get_mut("Pool") {
        table(pools, |map| map.values_mut().for_each(&pool));
    }
    tree
}

/// `DORMOUSE_A_B` to the tree that `A.B` names. Words of a key may be apart: `ADMIN_PORT` is `AdminPort`. `pools`
/// and `accounts` are the names in the file, which a variable cannot spell. Variables without our prefix are
/// ignored, and so are service links.
pub fn from_env(
    env: impl IntoIterator<Item = (String, String)>,
    pools: &[String],
    accounts: &[String],
) -> Result<Map<String, Value>, ConfigError> {
    fn joined(words: &str) -> String {
        words.replace('_', "")
    }
    fn spelling<'a>(keys: &[&'a str], words: &str) -> Option<&'a str> {
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
    let mut vars: Vec<(String, String)> =
        env.into_iter().filter(|(var, value)| is_ours(var, value)).collect();
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
                .find_map(|(at, _)| spelling(PoolConfig::KEYS, &rest[at + 1..]).map(|key| (&rest[..at], key)))
                .ok_or_else(unknown)?;
            let spelling = pools.iter().find(|p| p.replace('-', "_").eq_ignore_ascii_case(name));
            let name = spelling.cloned().unwrap_or_else(|| name.to_ascii_lowercase());
            insert(&mut tree, &["Pool", &name, key], value);
        } else if let Some(key) = words
            .strip_prefix("ADMINREDIS_")
            .or_else(|| words.strip_prefix("ADMIN_REDIS_"))
            .map(|rest| spelling(PoolConfig::KEYS, rest).ok_or_else(unknown))
        {
            insert(&mut tree, &["AdminRedis", key?], value);
        } else if let Some(user) = words.strip_prefix("ACCOUNTS_") {
            // In a file two users may differ in what a variable cannot tell apart: it means them all.
            let same = |name: &&String| {
                let spelt = name.replace(|c: char| !c.is_ascii_alphanumeric(), "_");
                spelt.eq_ignore_ascii_case(user)
            };
            let mut users: Vec<String> = accounts.iter().filter(same).cloned().collect();
            if users.is_empty() {
                users.push(user.to_ascii_lowercase());
            }
            for user in &users {
                insert(&mut tree, &["Accounts", user], value.clone());
            }
        } else {
            insert(&mut tree, &[spelling(Config::KEYS, words).ok_or_else(unknown)?], value);
        }
    }
    Ok(tree)
}
