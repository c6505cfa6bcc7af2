//! What the paths and queries of the admin port name: pools, namespaces, tokens.

use crate::admin::tokens as token;
use crate::admin::{Scope, TokenKey};
use crate::http::answer::error::{ApiError, NameIn};
use crate::http::state::AppState;
use crate::name::{Namespace, PoolName, Token};

const NO_POOL: ApiError = ApiError::bad("the pool was not exists");

/// The namespace in a path of the admin port.
pub fn namespace(text: &str) -> Result<Namespace, ApiError> {
    Namespace::parse(text).map_err(|error| ApiError::bad_name(NameIn::TokenPath, error))
}

impl AppState {
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
