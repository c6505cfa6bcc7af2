//! What the paths and queries of the admin port name: pools, namespaces, queues, tokens.

use std::sync::Arc;

use crate::admin::tokens as token;
use crate::admin::{Scope, TokenKey};
use crate::http::answer::error::{ApiError, NameIn};
use crate::http::request::params::Query;
use crate::http::state::{AppState, PoolState};
use crate::name::{Namespace, PoolName, QueueName, Token};

const NO_POOL: ApiError = ApiError::bad("the pool was not exists");

/// The namespace in a path of the admin port.
pub fn namespace(text: &str) -> Result<Namespace, ApiError> {
    Namespace::parse(text).map_err(|error| ApiError::bad_name(NameIn::TokenPath, error))
}

/// The namespace and the queue of a query, each if it is named. A queue needs its namespace.
pub fn in_query(query: Query<'_>) -> Result<(Option<Namespace>, Option<QueueName>), ApiError> {
    let namespace = query.get("namespace").map(|name| Namespace::parse(&name)).transpose();
    let namespace = namespace.map_err(|_| ApiError::bad("invalid namespace"))?;
    let queue = query.get("queue").map(|name| QueueName::parse(&name)).transpose();
    let queue = queue.map_err(|_| ApiError::bad("invalid queue"))?;
    if namespace.is_none() && queue.is_some() {
        return Err(ApiError::bad("invalid namespace: a queue needs the one that it is in"));
    }
    Ok((namespace, queue))
}

impl AppState {
    /// The pool that a query or a body names; an empty name is the default pool.
    pub fn pool_named(&self, name: &str) -> Result<&Arc<PoolState>, ApiError> {
        let pool = self.pool_name(name).ok().and_then(|name| self.pools.get(&name));
        pool.ok_or(ApiError::bad("invalid pool"))
    }

    /// The pool of that name; an empty name is the default pool.
    pub fn pool_name(&self, name: &str) -> Result<PoolName, ApiError> {
        let name = if name.is_empty() { "default" } else { name };
        PoolName::parse(name).ok().filter(|name| self.pools.contains_key(name)).ok_or(NO_POOL)
    }

    /// What `/token/:namespace/:token` names.
    pub fn token_key(&self, namespace_text: &str, raw: &str) -> Result<TokenKey, ApiError> {
        let (pool, token) = token::split(raw);
        let pool = self.pool_name(pool)?;
        let token = Token::new(token).ok_or(ApiError::bad("invalid token"))?;
        Ok(TokenKey { scope: Scope { pool, namespace: namespace(namespace_text)? }, token })
    }
}
