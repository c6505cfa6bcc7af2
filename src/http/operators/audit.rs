//! One line in the log for each token, limit or quota that is made or deleted, and for each change of what is pushed,
//! and who did it; and one a minute for each address whose logins fail. The token itself is not shown: a short hash
//! tells it apart, the same as in the metrics.

use std::convert::Infallible;
use std::net::IpAddr;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;

use crate::admin::{Scope, TokenKey};
use crate::http::request::peer::Client;
use crate::process::log::AUDIT;
use crate::push::store::PushKey;

/// The account that a request has logged in with.
#[derive(Clone, Debug)]
pub struct Account(pub String);

/// Who sent a request: an account, or else the address that it came from.
#[derive(Debug)]
pub struct By(String);

impl By {
    /// Logs what was done to a token. Called once it was done, or may have been.
    pub fn did(&self, action: &'static str, key: &TokenKey) {
        let (pool, namespace) = (key.scope.pool.as_str(), key.scope.namespace.as_str());
        tracing::info!(target: AUDIT, by = self.0, pool, namespace, token = key.token.hash(), "{action}");
    }

    /// Logs what was done to the quota of a namespace.
    pub fn bounded(&self, action: &'static str, scope: &Scope) {
        let (pool, namespace) = (scope.pool.as_str(), scope.namespace.as_str());
        tracing::info!(target: AUDIT, by = self.0, pool, namespace, "{action}");
    }

    /// Logs what was done to a pushed queue.
    pub fn pushed(&self, action: &'static str, key: &PushKey) {
        let (pool, queue) = (key.pool.as_str(), key.queue.to_string());
        tracing::info!(target: AUDIT, by = self.0, pool, queue, "{action}");
    }
}

/// Logs that so many logins failed. What was tried is not shown: it may be the password of another place.
pub fn logins_failed(address: IpAddr, failed: u64) {
    tracing::info!(target: AUDIT, by = address.to_string(), failed, "logins failed");
}

impl<S: Sync> FromRequestParts<S> for By {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<By, Infallible> {
        let account = parts.extensions.get::<Account>().map(|account| account.0.clone());
        let client = || parts.extensions.get::<Client>().map(|client| client.0.to_string());
        Ok(By(account.or_else(client).unwrap_or_default()))
    }
}
