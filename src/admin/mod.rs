//! Tokens and limits: their rules ([`tokens`], [`limits`]) over the trait [`AdminStore`], and the two stores that
//! keep them: a Redis in lmstfy's layout, which several servers share, or the disk of the default pool. Knows
//! nothing of HTTP.

pub mod disk;
pub mod limits;
pub mod redis;
pub mod tokens;

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

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

/// Which of a token's two counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// Consume.
    Read,
    /// Publish.
    Write,
}

/// A store of tokens and limits. Every method is one atomic step.
#[async_trait]
pub trait AdminStore: Send + Sync + fmt::Debug + 'static {
    /// The tokens of a scope, each with its description.
    async fn tokens(&self, scope: &Scope) -> Result<BTreeMap<String, String>>;

    /// Whether the token is there.
    async fn has_token(&self, key: &TokenKey) -> Result<bool>;

    /// Stores a token. `false`, and nothing changes, when it is there already.
    async fn add_token(&self, key: &TokenKey, description: &str) -> Result<bool>;

    /// Deletes a token and its limit. Deleting an unknown one is fine.
    async fn remove_token(&self, key: &TokenKey) -> Result<()>;

    /// Every limit.
    async fn limits(&self) -> Result<Vec<(TokenKey, Limit)>>;

    /// Stores a limit where there is none. `false`, and nothing changes, when there is one.
    async fn add_limit(&self, key: &TokenKey, limit: Limit) -> Result<bool>;

    /// Stores a limit, whether or not there is one.
    async fn set_limit(&self, key: &TokenKey, limit: Limit) -> Result<()>;

    /// Deletes a limit. Deleting an unknown one is fine.
    async fn remove_limit(&self, key: &TokenKey) -> Result<()>;

    /// Adds one to a counter, which begins at 0 and ends `interval` after its first count. Answers the count.
    async fn count(&self, key: &TokenKey, direction: Direction, interval: Duration) -> Result<u64>;

    /// Subtracts one from a counter that has not ended. The counter does not go below zero.
    async fn uncount(&self, key: &TokenKey, direction: Direction) -> Result<()>;

    /// Whether the store answers.
    async fn check(&self) -> Result<()>;
}
