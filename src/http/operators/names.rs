//! Names in paths and queries of the admin port: pools, namespaces, queues, tokens.

use std::borrow::Cow;
use std::sync::Arc;

use crate::admin::tokens as token;
use crate::admin::{Scope, TokenKey};
use crate::http::answer::error::{ApiError, NameIn};
use crate::http::request::params::Query;
use crate::http::state::{AppState, PoolState, Pools};
use crate::name::{Namespace, PoolName, Queue, QueueName, Token};
use crate::sampler::Sample;

/// Shown instead of the names of queues that are named after jobs.
pub const JOB_IDS: &str = "(job ids)";

const NO_POOL: ApiError = ApiError::bad("the pool was not exists");

/// Parses the namespace in a path of the admin port.
pub fn namespace(text: &str) -> Result<Namespace, ApiError> {
    Namespace::parse(text).map_err(|error| ApiError::bad_name(NameIn::TokenPath, error))
}

fn namespace_of(given: Option<Cow<'_, str>>) -> Result<Option<Namespace>, ApiError> {
    let namespace = given.map(|name| Namespace::parse(&name)).transpose();
    namespace.map_err(|_| ApiError::bad("invalid namespace"))
}

/// Returns the namespace and the queue of a query, if given. A queue requires a namespace.
pub fn in_query(query: Query<'_>) -> Result<(Option<Namespace>, Option<QueueName>), ApiError> {
    let namespace = namespace_of(query.get("namespace"))?;
    let queue = query.get("queue").map(|name| QueueName::parse(&name)).transpose();
    let queue = queue.map_err(|_| ApiError::bad("invalid queue"))?;
    if namespace.is_none() && queue.is_some() {
        return Err(ApiError::bad("invalid namespace: a queue requires its namespace"));
    }
    Ok((namespace, queue))
}

/// Pool and namespace in a query. An empty value counts as absent, as forms send it.
#[derive(Clone, Debug, Default)]
pub struct Asked {
    pub pool: Option<PoolName>,
    pub namespace: Option<Namespace>,
}

pub fn given<'a>(query: Query<'a>, key: &str) -> Option<Cow<'a, str>> {
    query.get(key).filter(|text| !text.is_empty())
}

impl Asked {
    /// Returns the queue in the query, which requires a namespace.
    pub fn queue(state: &AppState, query: Query<'_>) -> Result<(Arc<PoolState>, Queue), ApiError> {
        let Asked { pool, namespace } = Asked::of(state, query)?;
        let namespace = namespace.ok_or(ApiError::bad("invalid namespace"))?;
        let queue = given(query, "queue").filter(|queue| queue != JOB_IDS);
        let name = queue.and_then(|queue| QueueName::parse_for_consume(&queue).ok());
        let queue = Queue { namespace, name: name.ok_or(ApiError::bad("invalid queue"))? };
        let pool = pool.unwrap_or_else(PoolName::default_pool);
        let pool = state.pools.get(&pool).ok_or(ApiError::bad("invalid pool"))?;
        Ok((pool.clone(), queue))
    }

    /// Returns the last samples of the requested pools.
    pub fn samples(&self, state: &AppState) -> Vec<(PoolName, Arc<Sample>)> {
        let pools = state.pools.values().filter(|pool| self.has(&pool.name));
        pools.map(|pool| (pool.name.clone(), pool.sampler.latest())).collect()
    }

    pub fn of(state: &AppState, query: Query<'_>) -> Result<Asked, ApiError> {
        let pool = given(query, "pool").map(|name| state.pools.name(&name)).transpose();
        let pool = pool.map_err(|_| ApiError::bad("invalid pool"))?;
        Ok(Asked { pool, namespace: namespace_of(given(query, "namespace"))? })
    }

    fn has(&self, pool: &PoolName) -> bool {
        self.pool.as_ref().is_none_or(|asked| asked == pool)
    }
}

impl Pools {
    /// Returns the pool named in a query or a body; an empty name is the default pool.
    pub fn named(&self, name: &str) -> Result<&Arc<PoolState>, ApiError> {
        let pool = self.name(name).ok().and_then(|name| self.get(&name));
        pool.ok_or(ApiError::bad("invalid pool"))
    }

    /// Returns the validated name of a pool; an empty name is the default pool.
    pub fn name(&self, name: &str) -> Result<PoolName, ApiError> {
        let name = if name.is_empty() { "default" } else { name };
        PoolName::parse(name).ok().filter(|name| self.contains_key(name)).ok_or(NO_POOL)
    }

    /// Returns the key of the token in `/token/:namespace/:token`.
    pub fn token_key(&self, namespace_text: &str, raw: &str) -> Result<TokenKey, ApiError> {
        let (pool, token) = token::split(raw);
        let pool = self.name(pool)?;
        let token = Token::new(token).ok_or(ApiError::bad("invalid token"))?;
        Ok(TokenKey { scope: Scope { pool, namespace: namespace(namespace_text)? }, token })
    }
}
