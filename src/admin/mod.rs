//! Tokens, limits and quotas: their rules ([`tokens`], [`limits`], [`quotas`]) over the trait [`AdminStore`], what is
//! remembered of its answers ([`cache`]), and the two stores that keep them: a Redis in lmstfy's layout, which several
//! servers share, or the disk of the default pool. Knows nothing of HTTP.

pub mod cache;
pub mod disk;
pub mod limits;
pub mod quotas;
pub mod redis;
pub mod tokens;

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::clock::Millis;
use crate::engine::Quota;
use crate::error::Result;
use crate::name::{Namespace, PoolName, Token};

/// What a token opens: one namespace of one pool.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Scope {
    pub pool: PoolName,
    pub namespace: Namespace,
}

/// A token and what it opens.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TokenKey {
    pub scope: Scope,
    pub token: Token,
}

/// Changes with every change of a quota.
pub type QuotasVersion = u64;

/// How many requests a token may make. As stored, and as the admin API shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limit {
    /// Consumes per interval; 0 or less is no limit.
    #[serde(default)]
    pub read: i64,
    /// Publishes per interval; 0 or less is no limit.
    #[serde(default)]
    pub write: i64,
    /// In seconds.
    #[serde(default)]
    pub interval: i64,
}

/// What a store knows of a token. The default is what it says of a token that it has never heard of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TokenRecord {
    /// Whether the token is there.
    pub exists: bool,
    /// Its limit, which may be there without it.
    pub limit: Option<Limit>,
}

/// Which of a token's two counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// Consume.
    Read,
    /// Publish.
    Write,
}

/// What became of a request that was to be counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Count {
    /// The store has no memory left to count it, and nothing has changed.
    NotCounted,
    /// It was below the limit. Its counter ends then, by the store's own clock.
    Counted(Millis),
    /// It was not, and nothing has changed. Its counter ends so much later: more than zero, and not more than the
    /// interval by which it began.
    Full(Duration),
}

/// A store of tokens and limits. Every method is one atomic step.
#[async_trait]
pub trait AdminStore: Send + Sync + fmt::Debug + 'static {
    /// The tokens of a scope, each with its description.
    async fn tokens(&self, scope: &Scope) -> Result<BTreeMap<String, String>>;

    /// Whether the token is there, and its limit.
    async fn look_up(&self, key: &TokenKey) -> Result<TokenRecord>;

    /// Stores a token. `false`, and nothing changes, when it is there already.
    async fn add_token(&self, key: &TokenKey, description: &str) -> Result<bool>;

    /// Deletes a token and its limit. Deleting an unknown one is fine.
    async fn remove_token(&self, key: &TokenKey) -> Result<()>;

    /// Every limit. One that is changed meanwhile is shown as before or as after.
    async fn limits(&self) -> Result<Vec<(TokenKey, Limit)>>;

    /// Stores a limit where there is none. `false`, and nothing changes, when there is one.
    async fn add_limit(&self, key: &TokenKey, limit: Limit) -> Result<bool>;

    /// Stores a limit, whether or not there is one.
    async fn set_limit(&self, key: &TokenKey, limit: Limit) -> Result<()>;

    /// Deletes a limit. Deleting an unknown one is fine.
    async fn remove_limit(&self, key: &TokenKey) -> Result<()>;

    /// Adds one to a counter that is below `most`; else changes nothing. The counter begins at 0, and ends
    /// `interval` after its first count. Answers when it ends.
    async fn count(
        &self,
        key: &TokenKey,
        direction: Direction,
        most: u64,
        interval: Duration,
    ) -> Result<Count>;

    /// Subtracts one from the counter that ends then, as [`count`](AdminStore::count) has told. Any other counter
    /// stays as it is: the one meant has ended. The counter does not go below zero.
    async fn uncount(&self, key: &TokenKey, direction: Direction, ends: Millis) -> Result<()>;

    /// The secret that all servers of this store share: the one that is stored, or `new`, which is stored where there
    /// is none.
    async fn secret(&self, new: &[u8]) -> Result<Bytes>;

    /// The quotas of all namespaces, and a version that changes with each of them; `None` when it is `known`.
    async fn quotas(
        &self,
        known: Option<QuotasVersion>,
    ) -> Result<Option<(QuotasVersion, Vec<(Scope, Quota)>)>>;

    /// The quota of a namespace.
    async fn quota(&self, scope: &Scope) -> Result<Option<Quota>>;

    /// Stores a quota, or deletes it: `None`. With `if_none` only where there is none: `false`, and nothing changes,
    /// when there is one.
    async fn put_quota(&self, scope: &Scope, quota: Option<Quota>, if_none: bool) -> Result<bool>;

    /// Writes down what a server says of itself, under an id of its own, which is gone after `lives`; answers what all
    /// servers have said that are there.
    async fn servers(&self, id: &str, line: &[u8], lives: Duration) -> Result<Vec<Bytes>>;

    /// Whether the store answers.
    async fn check(&self) -> Result<()>;
}
