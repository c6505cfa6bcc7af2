//! Tokens and limits in a Redis, in lmstfy's layout: a fleet of both kinds of server shares them.
//!
//! `tk/{pool}/{ns}` hash token → description; `__throttler_keys__` hash `pool/ns/token` → JSON of the limit;
//! `dormouse/quotas` hash `pool/ns` → JSON of the quota, and a field without a name that changes with every change;
//! `l/{pool}/{ns}/{token}/r` and `/w` counters that expire with the interval.
//!
//! What requests wait for (looking a token up, counting) goes over one connection on which calls are pipelined, so
//! nobody waits for somebody else's answer. What operators ask for goes the same way. A hash is read
//! in steps: a Redis that reads all limits of a large fleet at once serves nobody else meanwhile.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use redis::{Cmd, FromRedisValue};
use tokio::time::sleep;

use super::{AdminStore, Count, Direction, Limit, Scope, TokenKey, TokenRecord, Version};
use crate::clock::Millis;
use crate::engine::Quota;
use crate::engine::redis::OLDEST;
use crate::engine::redis::RedisAddress;
use crate::engine::redis::connection::connector::Connector;
use crate::engine::redis::connection::fault::Outcome;
use crate::engine::redis::connection::shared::SharedConnection;
use crate::engine::redis::connection::status::Connections;
use crate::engine::redis::layout::scripts::{Script, Scripts};
use crate::engine::redis::verbs::check;
use crate::error::{Error, Result};
use crate::name::{Namespace, PoolName, Token};
use crate::outage::Outage;
use crate::process::tasks::Tasks;

/// The hash of all limits.
const LIMITS: &str = "__throttler_keys__";
/// The secret that all servers share. lmstfy has no such key.
const SECRET: &str = "dormouse/secret";
/// The hash of all quotas. The field without a name changes with every change.
const QUOTAS: &str = "dormouse/quotas";
/// How long a new store waits for its connection. A busy machine needs some of it.
const FIRST_CONNECTION: Duration = Duration::from_secs(5);
/// How long a check of a Redis that answers waits for the shared connection, if that is down.
const CONNECTION_WAIT: Duration = Duration::from_millis(500);
/// How often it is looked whether the Redis is still the master. One that has become a replica answers reads as before,
/// and tokens are hardly ever written: the first to write one would get an error.
const LOOK: Duration = Duration::from_secs(1);
/// About how many fields of a hash are read in one step: half a millisecond of the Redis.
pub(crate) const SCAN_STEP: usize = 1000;

/// The admin store of a fleet.
#[derive(Debug)]
pub struct RedisAdmin {
    shared: SharedConnection,
    /// The shared connection's.
    connections: Arc<Connections>,
    scripts: Scripts,
    /// A limit that cannot be read was met, and the log says so.
    unreadable: AtomicBool,
}

impl RedisAdmin {
    /// Connects. `Away` or `Refused` when the Redis cannot be used now; once connected, the store outlives any
    /// outage. One of `tasks` keeps its connection until they are stopped.
    pub async fn connect(address: &RedisAddress, outage: Arc<Outage>, tasks: &Tasks) -> Result<RedisAdmin> {
        let connector = Arc::new(Connector::new(address)?);
        check::usable(&mut connector.connect().await?, OLDEST, false).await?;
        let name = Arc::from("of tokens and limits");
        let connections = Connections::new(name, connector, outage, tasks.stopping().clone());
        let (shared, keep) = SharedConnection::new(connections.clone());
        tasks.spawn_essential("the connection of tokens and limits", keep);
        let (look, stop) = (shared.clone(), tasks.stopping().clone());
        tasks.spawn_essential("the look for the master of tokens and limits", async move {
            let looks = async {
                loop {
                    sleep(LOOK).await;
                    // A refusal says that another is the master now, or is for those to tell who write.
                    let _: Outcome<u64> = look.query(&check::empty_write()).await;
                }
            };
            stop.run_until_cancelled(looks).await;
        });
        // The Redis is there, so the connection is, a moment later. If not, that is no reason to stop.
        let _ = connections.all_up(FIRST_CONNECTION).await;
        let (scripts, unreadable) = (Scripts::default(), AtomicBool::new(false));
        Ok(RedisAdmin { shared, connections, scripts, unreadable })
    }

    /// Waits until a task has died that the store cannot do without, and says which.
    pub fn failed(&self) -> impl Future<Output = String> + Send + use<> {
        let failure = self.connections.connector.failure().clone();
        async move { failure.reported().await.to_owned() }
    }

    /// The connection, for what else is kept in that Redis.
    pub fn connection(&self) -> SharedConnection {
        self.shared.clone()
    }

    async fn run<T: FromRedisValue>(&self, script: &Script, call: &Cmd) -> Result<T> {
        Ok(self.shared.run(script, call).await?)
    }

    /// Reads a whole hash, step by step. A field that changes meanwhile may be met twice.
    async fn scan(&self, key: &str, each: impl FnMut(Vec<u8>, Vec<u8>) + Send) -> Result<()> {
        Ok(self.shared.scan(key, SCAN_STEP, each).await?)
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

fn parse_scope(field: &[u8]) -> Option<Scope> {
    let (pool, namespace) = std::str::from_utf8(field).ok()?.split_once('/')?;
    Some(Scope { pool: PoolName::parse(pool).ok()?, namespace: Namespace::parse(namespace).ok()? })
}

fn encode(limit: Limit) -> Result<String> {
    serde_json::to_string(&limit).map_err(Error::refused)
}

#[async_trait]
impl AdminStore for RedisAdmin {
    async fn tokens(&self, scope: &Scope) -> Result<BTreeMap<String, String>> {
        let mut tokens = BTreeMap::new();
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        self.scan(&tokens_key(scope), |token, description| {
            tokens.insert(text(token), text(description));
        })
        .await?;
        Ok(tokens)
    }

    async fn look_up(&self, key: &TokenKey) -> Result<TokenRecord> {
        let script = &self.scripts.look_up_token;
        let mut call = script.call(2);
        call.arg(tokens_key(&key.scope)).arg(LIMITS).arg(key.token.reveal()).arg(limit_field(key));
        let (exists, limit): (bool, Option<Vec<u8>>) = self.run(script, &call).await?;
        let limit = limit.and_then(|text| {
            let limit = serde_json::from_slice(&text).ok();
            // The token is a secret, so which one it is cannot be said.
            if limit.is_none() && !self.unreadable.swap(true, Ordering::Relaxed) {
                tracing::warn!("a limit in {LIMITS} cannot be read, so its token has none");
            }
            limit
        });
        Ok(TokenRecord { exists, limit })
    }

    async fn add_token(&self, key: &TokenKey, description: &str) -> Result<bool> {
        let mut cmd = redis::cmd("HSETNX");
        cmd.arg(tokens_key(&key.scope)).arg(key.token.reveal()).arg(description);
        Ok(self.shared.query(&cmd).await?)
    }

    async fn remove_token(&self, key: &TokenKey) -> Result<()> {
        let script = &self.scripts.remove_token;
        let mut cmd = script.call(2);
        cmd.arg(tokens_key(&key.scope)).arg(LIMITS).arg(key.token.reveal()).arg(limit_field(key));
        let _: u64 = self.shared.run(script, &cmd).await?;
        Ok(())
    }

    async fn limits(&self) -> Result<Vec<(TokenKey, Limit)>> {
        let mut limits = BTreeMap::new();
        let mut unreadable = 0;
        self.scan(LIMITS, |field, limit| {
            let key = std::str::from_utf8(&field).ok().and_then(parse_limit_field);
            match (key, serde_json::from_slice::<Limit>(&limit)) {
                (Some(key), Ok(limit)) => drop(limits.insert(key, limit)),
                // The field holds a token, so it is counted and not shown.
                _ => unreadable += 1,
            }
        })
        .await?;
        if unreadable > 0 {
            tracing::warn!(unreadable, "skipped limits in {LIMITS} that cannot be read");
        }
        Ok(limits.into_iter().collect())
    }

    async fn add_limit(&self, key: &TokenKey, limit: Limit) -> Result<bool> {
        let mut cmd = redis::cmd("HSETNX");
        cmd.arg(LIMITS).arg(limit_field(key)).arg(encode(limit)?);
        Ok(self.shared.query(&cmd).await?)
    }

    async fn set_limit(&self, key: &TokenKey, limit: Limit) -> Result<()> {
        let mut cmd = redis::cmd("HSET");
        cmd.arg(LIMITS).arg(limit_field(key)).arg(encode(limit)?);
        let _: u64 = self.shared.query(&cmd).await?;
        Ok(())
    }

    async fn remove_limit(&self, key: &TokenKey) -> Result<()> {
        let _: u64 = self.shared.query(redis::cmd("HDEL").arg(LIMITS).arg(limit_field(key))).await?;
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
        let mut call = script.call(1);
        // Beyond a century Redis might refuse it, and nobody would notice the difference.
        let millis = interval.min(Duration::from_secs(100 * 366 * 86_400)).as_millis().max(1) as u64;
        call.arg(counter_key(key, direction)).arg(most).arg(millis);
        let ends: i64 = self.run(script, &call).await?;
        Ok(match Millis::try_from(ends) {
            Ok(ends) if ends > 0 => Count::Counted(ends),
            _ => Count::Full(Duration::from_millis(ends.unsigned_abs().max(1))),
        })
    }

    async fn uncount(&self, key: &TokenKey, direction: Direction, ends: Millis) -> Result<()> {
        let script = &self.scripts.uncount;
        let mut call = script.call(1);
        call.arg(counter_key(key, direction)).arg(ends);
        let _: i64 = self.run(script, &call).await?;
        Ok(())
    }

    async fn secret(&self, new: &[u8]) -> Result<Bytes> {
        let mut both = redis::pipe();
        both.cmd("SET").arg(SECRET).arg(new).arg("NX").ignore().cmd("GET").arg(SECRET);
        let (stored,): (Vec<u8>,) = self.shared.query_all(&both).await?;
        Ok(stored.into())
    }

    async fn quotas(&self, known: Option<Version>) -> Result<Option<(Version, Vec<(Scope, Quota)>)>> {
        // Read before the quotas: what changes meanwhile is read again next time.
        let version: Option<Version> = self.shared.query(redis::cmd("HGET").arg(QUOTAS).arg("")).await?;
        let version = version.unwrap_or(0);
        if known == Some(version) {
            return Ok(None);
        }
        if version == 0 {
            return Ok(Some((version, Vec::new()))); // nobody has ever set one
        }
        let (mut all, mut unreadable) = (BTreeMap::new(), 0);
        self.scan(QUOTAS, |field, quota| match (parse_scope(&field), serde_json::from_slice(&quota)) {
            (Some(scope), Ok(quota)) => drop(all.insert(scope, quota)),
            _ => unreadable += usize::from(!field.is_empty()),
        })
        .await?;
        if unreadable > 0 {
            tracing::warn!(unreadable, "skipped quotas in {QUOTAS} that cannot be read");
        }
        Ok(Some((version, all.into_iter().collect())))
    }

    async fn quota(&self, scope: &Scope) -> Result<Option<Quota>> {
        let field = format!("{}/{}", scope.pool, scope.namespace);
        let quota: Option<Vec<u8>> = self.shared.query(redis::cmd("HGET").arg(QUOTAS).arg(field)).await?;
        quota.map(|quota| serde_json::from_slice(&quota).map_err(Error::corrupt)).transpose()
    }

    async fn put_quota(&self, scope: &Scope, quota: Option<Quota>, if_none: bool) -> Result<bool> {
        let script = &self.scripts.put_quota;
        let value = quota.map(|quota| serde_json::to_string(&quota).map_err(Error::refused)).transpose()?;
        let mut call = script.call(1);
        call.arg(QUOTAS).arg(format!("{}/{}", scope.pool, scope.namespace));
        call.arg(value.unwrap_or_default()).arg(u8::from(if_none));
        self.run(script, &call).await
    }

    async fn check(&self) -> Result<()> {
        let _: String = self.shared.query(&redis::cmd("PING")).await?;
        self.connections.retry_now();
        self.connections.all_up(CONNECTION_WAIT).await
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
