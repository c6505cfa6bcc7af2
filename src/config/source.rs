//! The two sources of the configuration: collects the given values by the declared spelling of their keys, first from
//! the file, then from the environment. Knows the spellings of keys, not their meaning.

use std::collections::BTreeMap;

use toml::{Table, Value};

use super::keys::{Config, PoolConfig};
use super::service_links::is_service_link;
use super::setting::{ConfigError, Given, Place, Spelt, table_of};

const ENV_PREFIX: &str = "DORMOUSE_";
/// Variables with our prefix that are options of client commands instead of keys.
const ENV_NOT_KEYS: [&str; 6] = [
    "DORMOUSE_ADMIN",
    "DORMOUSE_ADMIN_AUTH",
    "DORMOUSE_ADMIN_URL",
    "DORMOUSE_NAMESPACE",
    "DORMOUSE_TOKEN",
    "DORMOUSE_URL",
];

/// Keys allowed without further configuration: the message about a port in use names their variables, and the README's
/// push tutorial calls a local receiver.
const FIRST_TRY: [&str; 3] = ["Port", "AdminPort", "PushAllow"];

/// Returns whether a variable is meant for us, even if misspelled.
fn is_ours(name: &str, value: &str) -> bool {
    name.starts_with(ENV_PREFIX) && !ENV_NOT_KEYS.contains(&name) && !is_service_link(name, value)
}

/// Returns whether the environment configures more than [`FIRST_TRY`].
pub fn is_configured(env: &[(String, String)]) -> bool {
    let first_try = |name: &str| {
        let words = name[ENV_PREFIX.len()..].replace('_', "");
        FIRST_TRY.iter().any(|key| key.eq_ignore_ascii_case(&words))
    };
    env.iter().any(|(name, value)| is_ours(name, value) && !first_try(name))
}

/// Values given for the keys of one table, by declared spelling.
pub type Section = BTreeMap<&'static str, Given>;

/// All given values.
#[derive(Debug, Default)]
pub struct Sources {
    pub top: Section,
    pub admin_redis: Option<Section>,
    pub pools: BTreeMap<String, Section>,
    pub accounts: Users,
    pub read_only_accounts: Users,
}

/// Users in one table.
#[derive(Debug, Default)]
pub struct Users {
    /// Passwords by user.
    pub given: BTreeMap<String, Given>,
    /// Files with passwords by user; only variables name such files.
    pub files: BTreeMap<String, Given>,
}

/// Examples of each table, for messages.
const ADMIN_REDIS: &str = "[AdminRedis] with Addr = \"host:port\"";
const POOL: &str = "[Pool.default] with Addr = \"host:port\" or Path = \"directory\"";
const ACCOUNTS: &str = "[Accounts] with operator = \"a long password\"";
const READ_ONLY_ACCOUNTS: &str = "[ReadOnlyAccounts] with viewer = \"a long password\"";

fn spelling(keys: &[&'static str], word: &str) -> Option<&'static str> {
    keys.iter().find(|key| key.eq_ignore_ascii_case(word)).copied()
}

/// Returns the most similar key, for a misspelled one.
fn nearest(keys: &[&'static str], word: &str) -> Option<&'static str> {
    let word = word.to_ascii_lowercase();
    let of = |key: &&'static str| (strsim::damerau_levenshtein(&key.to_ascii_lowercase(), &word), *key);
    let (distance, key) = keys.iter().map(of).min()?;
    (distance <= 1 + key.len() / 4).then_some(key)
}

/// Returns whether a key of this name may hold a secret, even if misspelled.
fn may_be_secret(key: &str) -> bool {
    let key = key.to_ascii_lowercase();
    ["pass", "pw", "secret", "auth", "token", "key"].iter().any(|part| key.contains(part))
}

/// Returns the error about an unknown key in the file. Strings are not shown, since they may be passwords, nor are
/// numbers in place of a password.
fn unknown_key(given: &Given, keys: &[&'static str], others: &[&'static str], key: &str) -> ConfigError {
    let at_top = matches!(&given.place, Place::Key(table, _) if table.is_empty());
    let near = nearest(keys, key);
    let shown = !given.value.is_str() && !may_be_secret(key) && !near.is_some_and(may_be_secret);
    let hint = if let Some(key) = spelling(others, key) {
        if at_top {
            format!("{key} is a key of a pool, such as [Pool.default]")
        } else {
            format!("{key} is a top-level key: write it before all tables")
        }
    } else if let Some(why) = removed(key) {
        return given.refused(true, why.to_owned());
    } else if let Some(near) = near {
        format!("did you mean {near}?")
    } else {
        "docs/configuration.md lists the keys".to_owned()
    };
    given.refused(shown, format!("unknown key; {hint}"))
}

/// Returns why a key of an earlier version is no longer supported.
fn removed(key: &str) -> Option<&'static str> {
    match spelling(&["Layout", "SpreadAt", "Ordered"], key)? {
        "Layout" => Some(
            "there is only one layout now, and the compact layout is no longer supported: remove Layout, and \
             migrate compact pools with the version that wrote them",
        ),
        "SpreadAt" => {
            Some("queues are no longer spread automatically: remove it, and list the queues in Spread")
        }
        _ => Some("queues that are not in Spread keep their order: remove it"),
    }
}

impl Sources {
    /// Adds the values of a file; `name` is its name for messages.
    pub fn file(&mut self, name: &str, text: &str) -> Result<(), ConfigError> {
        let tree: Table = text.parse().map_err(|error| syntax(name, text, &error))?;
        for (key, value) in tree {
            let given = Given { value, place: Place::Key(String::new(), key.clone()) };
            let spelt = spelling(Config::KEYS, &key)
                .ok_or_else(|| unknown_key(&given, Config::KEYS, PoolConfig::KEYS, &key))?;
            match spelt {
                "AdminRedis" => {
                    let table = table_of(&given, ADMIN_REDIS)?;
                    let section = self.admin_redis.get_or_insert_default();
                    pool_keys(section, "[AdminRedis]", table)?;
                }
                "Pool" => {
                    for (name, value) in table_of(&given, POOL)? {
                        let table = format!("[Pool.{name}]");
                        let given =
                            Given { value: value.clone(), place: Place::Key("[Pool]".into(), name.clone()) };
                        pool_keys(
                            self.pools.entry(name.clone()).or_default(),
                            &table,
                            table_of(&given, POOL)?,
                        )?;
                    }
                }
                "Accounts" => self.accounts.table("[Accounts]", table_of(&given, ACCOUNTS)?),
                "ReadOnlyAccounts" => {
                    let table = table_of(&given, READ_ONLY_ACCOUNTS)?;
                    self.read_only_accounts.table("[ReadOnlyAccounts]", table);
                }
                spelt => insert(&mut self.top, spelt, given)?,
            }
        }
        Ok(())
    }

    /// Adds the values of variables, which override the file: `DORMOUSE_A_B` is the key `A` or `AB`, and words of a key
    /// may be separated: `ADMIN_PORT` is `AdminPort`. Ignores variables without our prefix and service links.
    pub fn variables(&mut self, env: impl IntoIterator<Item = (String, String)>) -> Result<(), ConfigError> {
        let mut vars: Vec<(String, String)> =
            env.into_iter().filter(|(var, value)| is_ours(var, value)).collect();
        vars.sort();
        let users: Vec<String> = self.accounts.given.keys().cloned().collect();
        let viewers: Vec<String> = self.read_only_accounts.given.keys().cloned().collect();
        let mut seen: BTreeMap<(String, &'static str), String> = BTreeMap::new();
        for (var, value) in vars {
            let words = &var[ENV_PREFIX.len()..];
            let given = Given { value: Value::String(value), place: Place::Variable(var.clone()) };
            let (table, key) = if let Some(rest) = words.strip_prefix("POOL_") {
                let (name, key) = pool_variable(rest).ok_or_else(|| unknown_variable(&var))?;
                let spelt = self.pools.keys().find(|p| p.replace('-', "_").eq_ignore_ascii_case(name));
                let name = spelt.cloned().unwrap_or_else(|| name.to_ascii_lowercase());
                self.pools.entry(name.clone()).or_default().insert(key, given);
                (name, key)
            } else if let Some(rest) =
                words.strip_prefix("ADMINREDIS_").or(words.strip_prefix("ADMIN_REDIS_"))
            {
                let key = joined(PoolConfig::KEYS, rest).ok_or_else(|| unknown_variable(&var))?;
                self.admin_redis.get_or_insert_default().insert(key, given);
                ("[AdminRedis]".into(), key)
            } else if let Some(user) = words.strip_prefix("ACCOUNTS_") {
                self.accounts.variable(&users, user, given)?;
                continue;
            } else if let Some(user) = words.strip_prefix("READ_ONLY_ACCOUNTS_") {
                self.read_only_accounts.variable(&viewers, user, given)?;
                continue;
            } else {
                let key = joined(Config::KEYS, words).ok_or_else(|| unknown_variable(&var))?;
                if matches!(key, "AdminRedis" | "Pool" | "Accounts" | "ReadOnlyAccounts") {
                    return Err(ConfigError(format!(
                        "{var}: {key} is a table; each of its keys has a variable, see docs/configuration.md"
                    )));
                }
                self.top.insert(key, given);
                (String::new(), key)
            };
            if let Some(other) = seen.insert((table, key), var.clone()) {
                return Err(ConfigError(format!("{other} and {var} are the same key: remove one")));
            }
        }
        Ok(())
    }
}

impl Sources {
    /// Returns the spelling of each key, by its table and declared spelling.
    pub fn spelt(&self) -> Spelt {
        let pools = self.pools.iter().map(|(name, section)| (format!("[Pool.{name}]"), section));
        let admin = self.admin_redis.iter().map(|section| ("[AdminRedis]".to_owned(), section));
        let tables = std::iter::once((String::new(), &self.top)).chain(pools).chain(admin);
        let of = |(table, section): (String, &Section)| -> Vec<(String, String)> {
            let named = |(key, given): (&&str, &Given)| {
                let declared = Place::Key(table.clone(), (*key).to_owned()).to_string();
                let written = match &given.place {
                    Place::Variable(name) => format!("{name} ({declared})"),
                    place => place.to_string(),
                };
                (declared, written)
            };
            section.iter().map(named).collect()
        };
        Spelt(tables.flat_map(of).collect())
    }
}

impl Users {
    /// Adds the users of the file.
    fn table(&mut self, name: &str, users: &Table) {
        for (user, value) in users {
            let place = Place::Key(name.into(), user.clone());
            self.given.insert(user.clone(), Given { value: value.clone(), place });
        }
    }

    /// Adds the variable of a user's password or password file. It applies to every user of the file whose name it
    /// matches: two may differ only in characters that a variable cannot represent.
    fn variable(&mut self, users: &[String], words: &str, given: Given) -> Result<(), ConfigError> {
        let (user, is_file) = match words.strip_suffix("_FILE") {
            Some(user) => (user, true),
            None => (words, false),
        };
        let same = |name: &&String| {
            let spelt = name.replace(|c: char| !c.is_ascii_alphanumeric(), "_");
            spelt.eq_ignore_ascii_case(user)
        };
        let mut named: Vec<String> = users.iter().filter(same).cloned().collect();
        if named.is_empty() {
            named.push(user.to_ascii_lowercase());
        }
        for user in named {
            // In the order of names, so the password precedes its file.
            let other = self.given.get(&user).filter(|other| matches!(other.place, Place::Variable(_)));
            match other {
                Some(other) if is_file => return Err(both(other, &given)),
                _ if is_file => self.files.insert(user, given.clone()),
                _ => self.given.insert(user, given.clone()),
            };
        }
        Ok(())
    }
}

/// Returns the error about a secret given twice.
pub fn both(secret: &Given, file: &Given) -> ConfigError {
    file.wrong(format!("{} is set too: remove one of them", secret.place))
}

/// Splits a variable into the name of a pool and a key. Names may contain underscores too, so the longest key wins.
fn pool_variable(rest: &str) -> Option<(&str, &'static str)> {
    rest.match_indices('_')
        .filter(|(at, _)| *at > 0)
        .find_map(|(at, _)| Some((&rest[..at], joined(PoolConfig::KEYS, &rest[at + 1..])?)))
}

/// Returns the key spelled by the words of a variable.
fn joined(keys: &[&'static str], words: &str) -> Option<&'static str> {
    spelling(keys, &words.replace('_', ""))
}

fn unknown_variable(var: &str) -> ConfigError {
    let words = &var[ENV_PREFIX.len()..];
    // A pool's key is at the end, and it is unknown where the pool's name ends.
    let of_pool = || {
        let rest = words.strip_prefix("POOL_").or(words.strip_prefix("ADMIN_"))?;
        let keys = rest
            .match_indices('_')
            .map(|(at, _)| (at, nearest(PoolConfig::KEYS, &rest[at + 1..].replace('_', ""))));
        let (at, key) = keys.filter_map(|(at, key)| Some((at, key?))).next()?;
        let name = &words[..words.len() - rest.len() + at];
        Some(format!("{ENV_PREFIX}{name}_{}", &variable(key)[ENV_PREFIX.len()..]))
    };
    let at_top = || nearest(Config::KEYS, &words.replace('_', "")).map(variable);
    let hint = match if words.starts_with("POOL_") { of_pool() } else { at_top().or_else(of_pool) } {
        Some(name) => format!("did you mean {name}?"),
        None => "see docs/configuration.md".to_owned(),
    };
    ConfigError(format!("the environment variable {var} matches no key; {hint}"))
}

/// Returns the variable of a key, with its words separated.
fn variable(key: &str) -> String {
    let mut name = String::from(ENV_PREFIX);
    let chars: Vec<char> = key.chars().collect();
    for (at, c) in chars.iter().enumerate() {
        let before = at.checked_sub(1).map(|at| chars[at]);
        let after = chars.get(at + 1);
        let begins = c.is_uppercase()
            && before.is_some_and(|b| b.is_lowercase() || after.is_some_and(|a| a.is_lowercase()));
        if begins {
            name.push('_');
        }
        name.push(c.to_ascii_uppercase());
    }
    name
}

fn pool_keys(section: &mut Section, table: &str, keys: &Table) -> Result<(), ConfigError> {
    for (key, value) in keys {
        let given = Given { value: value.clone(), place: Place::Key(table.to_owned(), key.clone()) };
        let spelt = spelling(PoolConfig::KEYS, key)
            .ok_or_else(|| unknown_key(&given, PoolConfig::KEYS, Config::KEYS, key))?;
        insert(section, spelt, given)?;
    }
    Ok(())
}

/// Adds a key of the file, which may appear in two spellings.
fn insert(section: &mut Section, key: &'static str, given: Given) -> Result<(), ConfigError> {
    match section.get(key) {
        Some(other) => {
            Err(ConfigError(format!("{} and {} are the same key: remove one", other.place, given.place)))
        }
        None => {
            section.insert(key, given);
            Ok(())
        }
    }
}

/// Returns the error about invalid TOML. The line is not quoted, since it may contain a password.
fn syntax(name: &str, text: &str, error: &toml::de::Error) -> ConfigError {
    let at = error.span().map_or(0, |span| span.start.min(text.len()));
    let line = text.as_bytes()[..at].iter().filter(|b| **b == b'\n').count() + 1;
    // The library's messages may quote keys, but not values.
    let says = error.message().split_whitespace().collect::<Vec<_>>().join(" ");
    ConfigError(format!("{name}: line {line} is not valid TOML: {says}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_variable_of_each_key_is_read_as_that_key() {
        for key in Config::KEYS {
            let name = variable(key);
            assert_eq!(joined(Config::KEYS, &name[ENV_PREFIX.len()..]), Some(*key), "{name}");
        }
        assert_eq!(variable("MaxConnectionsPerAddress"), "DORMOUSE_MAX_CONNECTIONS_PER_ADDRESS");
        assert_eq!(variable("TTLSecond"), "DORMOUSE_TTL_SECOND");
    }
}
