//! Tokens and the namespaces they give access to. They are stored in the admin store; [`cache`](super::cache) defines
//! how long replies are cached. Tokens are never logged.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::cache::TokenCache;
use super::{AdminStore, Scope, TokenKey, TokenRecord};
use crate::error::{Error, Result};
use crate::name::{DEFAULT_POOL, Token};
use crate::random;

/// Minimum length in bytes of a token chosen by an operator.
pub const MIN_CHOSEN: usize = 20;

/// Splits a client's `[pool:]token` into the pool's name and the secret, neither of them validated. Without a colon, or
/// with nothing before it, it is the default pool.
pub fn split(text: &str) -> (&str, &str) {
    match text.split_once(':') {
        None => (DEFAULT_POOL, text),
        Some(("", token)) => (DEFAULT_POOL, token),
        Some(both) => both,
    }
}

/// Returns the client's form of a token, without the pool if it is the default one.
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

/// Tokens of all namespaces.
#[derive(Debug)]
pub struct TokenManager {
    store: Arc<dyn AdminStore>,
    cache: Arc<TokenCache>,
}

impl TokenManager {
    /// Creates the tokens of `store`, whose replies are cached in `cache`.
    pub fn new(store: Arc<dyn AdminStore>, cache: Arc<TokenCache>) -> TokenManager {
        TokenManager { store, cache }
    }

    /// Creates a token: the chosen one, or a new ULID. Takes effect on this server at once. Fails if the chosen one is
    /// too short or exists, or if the store fails.
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

    /// Returns their store.
    pub fn store(&self) -> &Arc<dyn AdminStore> {
        &self.store
    }

    /// Returns the tokens of a scope with their descriptions.
    pub async fn list(&self, scope: &Scope) -> Result<BTreeMap<String, String>> {
        self.store.tokens(scope).await
    }

    /// Deletes a token and its limit. It is refused on this server at once, on others within a second.
    pub async fn delete(&self, key: &TokenKey) -> Result<()> {
        let removed = self.store.remove_token(key).await;
        self.cache.forget(key); // also after an error: it may have been deleted
        removed
    }

    /// Returns whether the token gives access to its scope. During an outage of the store, a token accepted within
    /// [`GRACE`](super::cache::GRACE) still does, and others get the error.
    pub async fn check(&self, key: &TokenKey) -> Result<bool> {
        Ok(self.look_up(key).await?.exists)
    }

    /// Like [`check`](TokenManager::check), with the token's limit.
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
