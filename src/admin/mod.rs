//! Tokens and limits: their rules ([`tokens`], [`limits`]) over the trait [`AdminStore`], a cache of its replies
//! ([`cache`]), and its two implementations: a Redis in lmstfy's layout, shared by several servers, or settings in the
//! directory of the default pool. Independent of HTTP.

pub mod cache;
pub mod limits;
pub mod redis;
pub mod settings;
pub mod tokens;

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use crate::clock::Millis;
use crate::error::Result;
use crate::name::{Namespace, PoolName, Token};

/// Scope of a token: one namespace of one pool.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Scope {
    pub pool: PoolName,
    pub namespace: Namespace,
}

/// A token and its scope.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TokenKey {
    pub scope: Scope,
    pub token: Token,
}

/// Rate limit of a token, as stored and as shown by the admin API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limit {
    /// Consumes per interval; 0 or less is unlimited.
    #[serde(default)]
    pub read: i64,
    /// Publishes per interval; 0 or less is unlimited.
    #[serde(default)]
    pub write: i64,
    /// Interval in seconds.
    #[serde(default)]
    pub interval: i64,
}

/// A store's record of a token. The default is that of an unknown token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TokenRecord {
    /// Whether the token exists.
    pub exists: bool,
    /// Its limit, which may exist without the token.
    pub limit: Option<Limit>,
}

/// Selects one of a token's two counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// Consume.
    Read,
    /// Publish.
    Write,
}

/// Result of counting a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Count {
    /// The store is out of memory and could not count it. Nothing was changed.
    NotCounted,
    /// It was below the limit. Its counter ends at this time of the store's clock.
    Counted(Millis),
    /// The limit was reached, and nothing was changed. Its counter ends after this time: more than zero, and at most
    /// the interval with which it began.
    Full(Duration),
}

/// A store of tokens and limits. Every method is atomic.
#[async_trait]
pub trait AdminStore: Send + Sync + fmt::Debug + 'static {
    /// Returns the tokens of a scope with their descriptions.
    async fn tokens(&self, scope: &Scope) -> Result<BTreeMap<String, String>>;

    /// Returns whether the token exists, and its limit.
    async fn look_up(&self, key: &TokenKey) -> Result<TokenRecord>;

    /// Stores a token. Returns `false`, and changes nothing, if it exists.
    async fn add_token(&self, key: &TokenKey, description: &str) -> Result<bool>;

    /// Deletes a token and its limit. Succeeds if it does not exist.
    async fn remove_token(&self, key: &TokenKey) -> Result<()>;

    /// Returns all limits. One changed concurrently has its old or new value.
    async fn limits(&self) -> Result<Vec<(TokenKey, Limit)>>;

    /// Stores a limit for a token that has none. Returns `false`, and changes nothing, if it has one.
    async fn add_limit(&self, key: &TokenKey, limit: Limit) -> Result<bool>;

    /// Stores a limit, replacing any existing one.
    async fn set_limit(&self, key: &TokenKey, limit: Limit) -> Result<()>;

    /// Deletes a limit, if it exists.
    async fn remove_limit(&self, key: &TokenKey) -> Result<()>;

    /// Increments a counter that is below `most`; otherwise changes nothing. A counter begins at 0 and ends `interval`
    /// after its first increment. Returns its end.
    async fn count(
        &self,
        key: &TokenKey,
        direction: Direction,
        most: u64,
        interval: Duration,
    ) -> Result<Count>;

    /// Decrements the counter that ends at `ends`, as returned by [`count`](AdminStore::count), but not below zero.
    /// Does nothing if that counter has ended.
    async fn uncount(&self, key: &TokenKey, direction: Direction, ends: Millis) -> Result<()>;

    /// Checks that the store responds.
    async fn check(&self) -> Result<()>;
}
