//! Tokens and limits in a Redis, in lmstfy's layout, so that servers of both kinds can share them.
//!
//! `tk/{pool}/{ns}` hash token → description; `__throttler_keys__` hash `pool/ns/token` → JSON of the limit;
//! `l/{pool}/{ns}/{token}/r` and `/w` counters that expire with the interval.
//!
//! In a cluster the keys of a namespace are in one slot of [`Tables`] and begin with its tag. Each partition has its
//! own hash of limits.
//!
//! Calls are pipelined over one connection, so that none waits for another's reply. Hashes are read with HSCAN, since
//! reading all limits of a large fleet at once would block the Redis.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use redis::Cmd;

use super::{AdminStore, Count, Direction, Limit, Scope, TokenKey, TokenRecord};
use crate::clock::Millis;
use crate::engine::redis::RedisAddress;
use crate::engine::redis::layout::scripts::{Script, Scripts};
use crate::engine::redis::tables::Tables;
use crate::error::{Error, Result};
use crate::name::{Namespace, PoolName, Token};
use crate::outage::Outage;
use crate::process::tasks::Tasks;

/// Hash of all limits.
const LIMITS: &str = "__throttler_keys__";

/// Admin store of a fleet.
#[derive(Debug)]
pub struct RedisAdmin {
    tables: Tables,
    scripts: Scripts,
    /// Whether an unreadable limit has been logged.
    unreadable: AtomicBool,
}

impl RedisAdmin {
    /// Connects. Fails with `Away` or `Refused` if the Redis is unavailable now; once connected, the store survives
    /// outages. One of `tasks` maintains its connection until they are stopped. In a cluster its keys begin with
    /// `prefix`.
    pub async fn connect(
        address: &RedisAddress,
        prefix: &str,
        outage: Arc<Outage>,
        tasks: &Tasks,
    ) -> Result<RedisAdmin> {
        let tables = Tables::open(address, prefix, outage, tasks).await?;
        Ok(RedisAdmin { tables, scripts: Scripts::default(), unreadable: AtomicBool::new(false) })
    }

    /// Waits until an essential task of the store has died, and returns its name.
    pub fn failed(&self) -> impl Future<Output = String> + Send + use<> {
        self.tables.failed()
    }

    /// Returns the tables shared by servers.
    pub(crate) fn tables(&self) -> Tables {
        self.tables.clone()
    }

    fn part_of(&self, scope: &Scope) -> u16 {
        self.tables.part_of(&scope.pool, &scope.namespace)
    }

    /// Creates a command on a namespace's hash of tokens or limits; the key is the first argument.
    fn cmd(&self, name: &str, scope: &Scope, key: impl std::fmt::Display) -> (u16, Cmd) {
        let part = self.part_of(scope);
        let mut cmd = redis::cmd(name);
        cmd.arg(self.tables.key(part, key));
        (part, cmd)
    }

    /// Creates the start of a call about a token and its limit.
    fn call_of_token(&self, script: &Script, key: &TokenKey) -> (u16, Cmd) {
        let part = self.part_of(&key.scope);
        let keys = [tokens_key(&key.scope), LIMITS.to_owned()].map(|of| self.tables.key(part, of));
        (part, self.tables.call(script, part, keys))
    }

    /// Reads a hash in all partitions with HSCAN. A field that changes meanwhile may be seen twice.
    async fn scan_all(&self, key: &str, mut each: impl FnMut(Vec<u8>, Vec<u8>) + Send) -> Result<()> {
        for part in self.tables.parts() {
            self.tables.scan(part, &self.tables.key(part, key), &mut each).await?;
        }
        Ok(())
    }
}

fn tokens_key(scope: &Scope) -> String {
    format!("tk/{}/{}", scope.pool, scope.namespace)
}

fn limit_field(key: &TokenKey) -> String {
    format!("{}/{}/{}", key.scope.pool, key.scope.namespace, key.token.reveal())
}

fn counter_key(key: &TokenKey, direction: Direction) -> String {
    let end = match direction {
        Direction::Read => 'r',
        Direction::Write => 'w',
    };
    format!("l/{}/{end}", limit_field(key))
}

/// Parses `pool/ns/token`. Only the token may contain a `/`.
fn parse_limit_field(field: &str) -> Option<TokenKey> {
    let (pool, rest) = field.split_once('/')?;
    let (namespace, token) = rest.split_once('/')?;
    let scope = Scope { pool: PoolName::parse(pool).ok()?, namespace: Namespace::parse(namespace).ok()? };
    Some(TokenKey { scope, token: Token::new(token)? })
}

fn encode(limit: Limit) -> Result<String> {
    serde_json::to_string(&limit).map_err(Error::refused)
}

#[async_trait]
impl AdminStore for RedisAdmin {
    async fn tokens(&self, scope: &Scope) -> Result<BTreeMap<String, String>> {
        let mut tokens = BTreeMap::new();
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        let part = self.part_of(scope);
        let each = |token, description| drop(tokens.insert(text(token), text(description)));
        self.tables.scan(part, &self.tables.key(part, tokens_key(scope)), each).await?;
        Ok(tokens)
    }

    async fn look_up(&self, key: &TokenKey) -> Result<TokenRecord> {
        let script = &self.scripts.look_up_token;
        let (part, mut call) = self.call_of_token(script, key);
        call.arg(key.token.reveal()).arg(limit_field(key));
        let (exists, limit): (bool, Option<Vec<u8>>) = self.tables.run(part, script, &call).await?;
        let limit = limit.and_then(|text| {
            let limit = serde_json::from_slice(&text).ok();
            // The token is a secret, so it is not logged.
            if limit.is_none() && !self.unreadable.swap(true, Ordering::Relaxed) {
                tracing::warn!("a limit in {LIMITS} is unreadable, so its token is not limited");
            }
            limit
        });
        Ok(TokenRecord { exists, limit })
    }

    async fn add_token(&self, key: &TokenKey, description: &str) -> Result<bool> {
        let (part, mut cmd) = self.cmd("HSETNX", &key.scope, tokens_key(&key.scope));
        cmd.arg(key.token.reveal()).arg(description);
        Ok(self.tables.query(part, &cmd).await?)
    }

    async fn remove_token(&self, key: &TokenKey) -> Result<()> {
        let script = &self.scripts.remove_token;
        let (part, mut call) = self.call_of_token(script, key);
        call.arg(key.token.reveal()).arg(limit_field(key));
        let _: u64 = self.tables.run(part, script, &call).await?;
        Ok(())
    }

    async fn limits(&self) -> Result<Vec<(TokenKey, Limit)>> {
        let mut limits = BTreeMap::new();
        let mut unreadable = 0;
        self.scan_all(LIMITS, |field, limit| {
            let key = std::str::from_utf8(&field).ok().and_then(parse_limit_field);
            match (key, serde_json::from_slice::<Limit>(&limit)) {
                (Some(key), Ok(limit)) => drop(limits.insert(key, limit)),
                // The field contains a token, so it is counted and not logged.
                _ => unreadable += 1,
            }
        })
        .await?;
        if unreadable > 0 {
            tracing::warn!(unreadable, "skipped unreadable limits in {LIMITS}");
        }
        Ok(limits.into_iter().collect())
    }

    async fn add_limit(&self, key: &TokenKey, limit: Limit) -> Result<bool> {
        let (part, mut cmd) = self.cmd("HSETNX", &key.scope, LIMITS);
        cmd.arg(limit_field(key)).arg(encode(limit)?);
        Ok(self.tables.query(part, &cmd).await?)
    }

    async fn set_limit(&self, key: &TokenKey, limit: Limit) -> Result<()> {
        let (part, mut cmd) = self.cmd("HSET", &key.scope, LIMITS);
        cmd.arg(limit_field(key)).arg(encode(limit)?);
        let _: u64 = self.tables.query(part, &cmd).await?;
        Ok(())
    }

    async fn remove_limit(&self, key: &TokenKey) -> Result<()> {
        let (part, mut cmd) = self.cmd("HDEL", &key.scope, LIMITS);
        let _: u64 = self.tables.query(part, cmd.arg(limit_field(key))).await?;
        Ok(())
    }

    async fn count(
        &self,
        key: &TokenKey,
        direction: Direction,
        most: u64,
        interval: Duration,
    ) -> Result<Count> {
        let script = &self.scripts.count;
        let part = self.part_of(&key.scope);
        let mut call = self.tables.call(script, part, [self.tables.key(part, counter_key(key, direction))]);
        // Redis may reject intervals above a century, which make no practical difference.
        let millis = interval.min(Duration::from_secs(100 * 366 * 86_400)).as_millis().max(1) as u64;
        call.arg(most).arg(millis);
        let ends: i64 = self.tables.run(part, script, &call).await?;
        Ok(match Millis::try_from(ends) {
            Ok(0) => Count::NotCounted,
            Ok(ends) => Count::Counted(ends),
            Err(_) => Count::Full(Duration::from_millis(ends.unsigned_abs().max(1))),
        })
    }

    async fn uncount(&self, key: &TokenKey, direction: Direction, ends: Millis) -> Result<()> {
        let script = &self.scripts.uncount;
        let part = self.part_of(&key.scope);
        let mut call = self.tables.call(script, part, [self.tables.key(part, counter_key(key, direction))]);
        let _: i64 = self.tables.run(part, script, call.arg(ends)).await?;
        Ok(())
    }

    async fn check(&self) -> Result<()> {
        self.tables.check().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_limit_field_names_its_token_also_with_slashes(
            pool in "[-_A-Za-z0-9]{1,20}", ns in "[-_A-Za-z0-9]{1,20}", token in ".{1,40}",
        ) {
            let key = TokenKey {
                scope: Scope {
                    pool: PoolName::parse(&pool).expect("the strategy makes names"),
                    namespace: Namespace::parse(&ns).expect("the strategy makes names"),
                },
                token: Token::new(&token).expect("not empty"),
            };
            prop_assert_eq!(parse_limit_field(&limit_field(&key)), Some(key));
        }
    }
}
