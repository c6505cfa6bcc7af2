//! Tokens and limits in a Redis, in lmstfy's layout: a fleet of both kinds of server shares them.
//!
//! `tk/{pool}/{ns}` hash token → description; `__throttler_keys__` hash `pool/ns/token` → JSON of the limit;
//! `l/{pool}/{ns}/{token}/r` and `/w` counters that expire with the interval.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio_util::sync::DropGuard;

use super::{AdminStore, Direction, Limit, Scope, TokenKey};
use crate::engine::redis::connection::connector::Connector;
use crate::engine::redis::connection::shared::SharedConnection;
use crate::engine::redis::connection::status::Connections;
use crate::engine::redis::layout::scripts::Scripts;
use crate::engine::redis::{RedisAddress, check};
use crate::error::{Error, Result};
use crate::name::{Namespace, PoolName, Token};
use crate::process::tasks::{Failure, Tasks};

/// The hash of all limits.
const LIMITS: &str = "__throttler_keys__";

/// The admin store of a fleet.
#[derive(Debug)]
pub struct RedisAdmin {
    connections: SharedConnection,
    scripts: Scripts,
    /// Keeps the connection.
    _tasks: Tasks,
    /// Ends the task.
    _closing: DropGuard,
}

impl RedisAdmin {
    /// Connects. `Away` or `Refused` when the Redis cannot be used now.
    pub async fn connect(address: &RedisAddress) -> Result<RedisAdmin> {
        let connector = Arc::new(Connector::new(address)?);
        check::usable(&mut connector.connect().await?).await?;
        let tasks = Tasks::new(Failure::default());
        let closing = tasks.stopping().clone();
        // Who asks the store reports what comes of it.
        let shared = Connections::new("tokens".into(), connector, None, closing.clone());
        let (connections, keep) = SharedConnection::new(shared);
        tasks.spawn_essential("the connection of tokens and limits", keep);
        let scripts = Scripts::default();
        let admin = RedisAdmin { connections, scripts, _tasks: tasks, _closing: closing.drop_guard() };
        admin.check().await?;
        Ok(admin)
    }

    async fn hash_has(&self, key: String, field: &str) -> Result<bool> {
        Ok(self.connections.query(redis::cmd("HEXISTS").arg(key).arg(field)).await?)
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

/// Reads `pool/ns/token`. Only the token may hold a `/`.
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
        Ok(self.connections.query(redis::cmd("HGETALL").arg(tokens_key(scope))).await?)
    }

    async fn has_token(&self, key: &TokenKey) -> Result<bool> {
        self.hash_has(tokens_key(&key.scope), key.token.reveal()).await
    }

    async fn add_token(&self, key: &TokenKey, description: &str) -> Result<bool> {
        let mut cmd = redis::cmd("HSETNX");
        cmd.arg(tokens_key(&key.scope)).arg(key.token.reveal()).arg(description);
        Ok(self.connections.query(&cmd).await?)
    }

    async fn remove_token(&self, key: &TokenKey) -> Result<()> {
        let script = &self.scripts.remove_token;
        let mut cmd = script.call(2);
        cmd.arg(tokens_key(&key.scope)).arg(LIMITS).arg(key.token.reveal()).arg(limit_field(key));
        let _: u64 = self.connections.run(script, &cmd).await?;
        Ok(())
    }

    async fn limits(&self) -> Result<Vec<(TokenKey, Limit)>> {
        let fields: Vec<(Vec<u8>, Vec<u8>)> =
            self.connections.query(redis::cmd("HGETALL").arg(LIMITS)).await?;
        let mut limits = Vec::with_capacity(fields.len());
        let mut unreadable = 0;
        for (field, limit) in fields {
            let key = std::str::from_utf8(&field).ok().and_then(parse_limit_field);
            match (key, serde_json::from_slice(&limit)) {
                (Some(key), Ok(limit)) => limits.push((key, limit)),
                // The field holds a token, so it is counted and not shown.
                _ => unreadable += 1,
            }
        }
        if unreadable > 0 {
            tracing::warn!(unreadable, "skipped limits in {LIMITS} that cannot be read");
        }
        Ok(limits)
    }

    async fn add_limit(&self, key: &TokenKey, limit: Limit) -> Result<bool> {
        let mut cmd = redis::cmd("HSETNX");
        cmd.arg(LIMITS).arg(limit_field(key)).arg(encode(limit)?);
        Ok(self.connections.query(&cmd).await?)
    }

    async fn set_limit(&self, key: &TokenKey, limit: Limit) -> Result<()> {
        let mut cmd = redis::cmd("HSET");
        cmd.arg(LIMITS).arg(limit_field(key)).arg(encode(limit)?);
        let _: u64 = self.connections.query(&cmd).await?;
        Ok(())
    }

    async fn remove_limit(&self, key: &TokenKey) -> Result<()> {
        let _: u64 = self.connections.query(redis::cmd("HDEL").arg(LIMITS).arg(limit_field(key))).await?;
        Ok(())
    }

    async fn count(&self, key: &TokenKey, direction: Direction, interval: Duration) -> Result<u64> {
        let script = &self.scripts.count;
        let mut cmd = script.call(1);
        // Beyond a century Redis might refuse it, and nobody would notice the difference.
        let millis = interval.min(Duration::from_secs(100 * 366 * 86_400)).as_millis().max(1) as u64;
        cmd.arg(counter_key(key, direction)).arg(millis);
        let count: i64 = self.connections.run(script, &cmd).await?;
        Ok(u64::try_from(count).unwrap_or(0))
    }

    async fn uncount(&self, key: &TokenKey, direction: Direction) -> Result<()> {
        let script = &self.scripts.uncount;
        let mut cmd = script.call(1);
        cmd.arg(counter_key(key, direction));
        let _: i64 = self.connections.run(script, &cmd).await?;
        Ok(())
    }

    async fn check(&self) -> Result<()> {
        let _: String = self.connections.query(&redis::cmd("PING")).await?;
        Ok(())
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
