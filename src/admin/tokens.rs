//! Which token opens which namespace. Tokens are kept in the admin store; [`cache`](super::cache) says how long its
//! answers are believed. Knows nothing of HTTP. No token is logged.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::cache::TokenCache;
use super::{AdminStore, Scope, TokenKey, TokenRecord};
use crate::error::{Error, Result};
use crate::name::{DEFAULT_POOL, Token};
use crate::random;

/// The shortest token that an operator may choose, in bytes.
pub const MIN_CHOSEN: usize = 20;

/// Reads `[pool:]token` as a client shows it, into the pool's name and the secret, either of which may turn out
/// to be none. What stands before the first colon is the pool; without one, or with nothing before it, it is
/// the default pool.
pub fn split(text: &str) -> (&str, &str) {
    match text.split_once(':') {
        None => (DEFAULT_POOL, text),
        Some(("", token)) => (DEFAULT_POOL, token),
        Some(both) => both,
    }
}

/// The same text back: the pool is left out where it is the default one.
pub fn join(key: &TokenKey) -> String {
    let (pool, token) = (&key.scope.pool, key.token.reveal());
    if pool.is_default() { token.to_owned() } else { format!("{pool}:{token}") }
}

/// Why no token was created.
#[derive(Debug, thiserror::Error)]
pub enum CreateError {
    #[error("a chosen token needs at least {MIN_CHOSEN} characters")]
    TooShort,
    #[error("the token exists already")]
    Taken,
    #[error(transparent)]
    Store(#[from] Error),
}

/// The tokens of all namespaces.
#[derive(Debug)]
pub struct TokenManager {
    store: Arc<dyn AdminStore>,
    cache: Arc<TokenCache>,
}

impl TokenManager {
    /// Tokens of `store`, whose answers are in `cache`.
    pub fn new(store: Arc<dyn AdminStore>, cache: Arc<TokenCache>) -> TokenManager {
        TokenManager { store, cache }
    }

    /// Creates a token: the chosen one, or a new ULID. This server accepts it at once. Errors when the
    /// chosen one is too short or exists, and when the store fails.
    pub async fn create(
        &self,
        scope: &Scope,
        chosen: Option<Token>,
        description: &str,
    ) -> Result<Token, CreateError> {
        let token = match chosen {
            Some(token) if token.reveal().len() < MIN_CHOSEN => return Err(CreateError::TooShort),
            Some(token) => token,
            None => Token::new(&random::ulid().to_string()).expect("a ULID has 26 characters"),
        };
        let key = TokenKey { scope: scope.clone(), token };
        let added = self.store.add_token(&key, description).await;
        self.cache.forget(&key); // also after an error: it may have been added
        if added? { Ok(key.token) } else { Err(CreateError::Taken) }
    }

    /// Where they are kept.
    pub fn store(&self) -> &Arc<dyn AdminStore> {
        &self.store
    }

    /// The tokens of a scope, each with its description.
    pub async fn list(&self, scope: &Scope) -> Result<BTreeMap<String, String>> {
        self.store.tokens(scope).await
    }

    /// Deletes a token and its limit. It is refused on this server at once, on others within a second.
    pub async fn delete(&self, key: &TokenKey) -> Result<()> {
        let removed = self.store.remove_token(key).await;
        self.cache.forget(key); // also after an error: it may have been deleted
        removed
    }

    /// Whether the token opens its scope. While the store is away, a token that was accepted within
    /// [`GRACE`](super::cache::GRACE) still does, and others get the error.
    pub async fn check(&self, key: &TokenKey) -> Result<bool> {
        Ok(self.look_up(key).await?.exists)
    }

    /// The same, with the token's limit.
    pub async fn look_up(&self, key: &TokenKey) -> Result<TokenRecord> {
        self.cache.get(key).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_may_name_its_pool() {
        for (text, pool, token) in [
            ("abc", "default", "abc"),
            ("p:abc", "p", "abc"),
            (":abc", "default", "abc"),
            ("p:a:b", "p", "a:b"),
            ("", "default", ""),
            ("p:", "p", ""),
        ] {
            assert_eq!(split(text), (pool, token), "{text:?}");
        }
    }
}
