//! The audit log: one line with the author for each change of tokens, limits, quotas and push settings, and for each
//! change of jobs, queues and schedules over the admin port; and one per minute for each address with failed logins.
//! Tokens are identified by a short hash, the same as in the metrics.

use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::{FromRequestParts, MatchedPath, Request};
use axum::http::request::Parts;
use axum::http::{Method, StatusCode};
use axum::middleware::Next;
use axum::response::Response;

use crate::admin::{Scope, TokenKey};
use crate::bulk;
use crate::http::request::extract::Labels;
use crate::http::request::params::Query;
use crate::http::request::peer::ClientIp;
use crate::http::state::AppState;
use crate::http::state::changes::Changes;
use crate::process::log::AUDIT;
use crate::push::key::PushKey;

/// Action of setting schedules, which supports a dry run.
const SET: &str = "schedules were set";

/// The account of a request.
#[derive(Clone, Debug)]
pub struct Account(pub String);

/// The author of a request: an account, or else the client's address. Logs the author's changes.
#[derive(Debug)]
pub struct Author {
    name: String,
    changes: Arc<Changes>,
}

impl Author {
    /// Returns the account or the address.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Logs an action on a token. Called once it happened, or may have.
    pub fn did(&self, action: &'static str, key: &TokenKey) {
        let (pool, namespace) = (key.scope.pool.as_str(), key.scope.namespace.as_str());
        let token = key.token.hash();
        tracing::info!(target: AUDIT, by = self.name, pool, namespace, token, "{action}");
        self.changes.add(&self.name, action, pool, &format!("{namespace}, token {token}"));
    }

    /// Logs an action on the quota of a namespace.
    pub fn bounded(&self, action: &'static str, scope: &Scope) {
        let (pool, namespace) = (scope.pool.as_str(), scope.namespace.as_str());
        tracing::info!(target: AUDIT, by = self.name, pool, namespace, "{action}");
        self.changes.add(&self.name, action, pool, namespace);
    }

    /// Logs an action on a pushed queue.
    pub fn pushed(&self, action: &'static str, key: &PushKey) {
        let (pool, queue) = (key.pool.as_str(), key.queue.to_string());
        tracing::info!(target: AUDIT, by = self.name, pool, queue, "{action}");
        self.changes.add(&self.name, action, pool, &queue);
    }

    /// Logs an action on a job, a queue or a schedule, identified by its path.
    pub fn changed(&self, action: &'static str, pool: &str, path: &str, status: StatusCode) {
        tracing::info!(target: AUDIT, by = self.name, pool, path, status = status.as_u16(), "{action}");
        self.changes.add(&self.name, action, pool, path);
    }

    /// Logs the start or stop of a bulk action.
    pub fn ordered(&self, done: &'static str, of: &bulk::Progress) {
        let (pool, queue, action) =
            (of.order.pool.as_str(), of.order.queue.to_string(), of.order.action.as_str());
        tracing::info!(target: AUDIT, by = self.name, pool, queue, action, id = of.id, "{done}");
        self.changes.add(&self.name, &format!("{done}: {action}"), pool, &queue);
    }

    /// Logs a switch of the access log.
    pub fn switched(&self, action: &'static str) {
        tracing::info!(target: AUDIT, by = self.name, "{action}");
        self.changes.add(&self.name, action, "", "");
    }
}

/// Middleware of the admin port's job routes: the account replaces the token, and each change is logged once it
/// happened, or may have.
pub async fn of_jobs(by: Author, request: Request, next: Next) -> Response {
    if let Some(labels) = request.extensions().get::<Arc<Labels>>() {
        labels.needs_no_token();
    }
    let pattern = request.extensions().get::<MatchedPath>().cloned();
    let path = request.uri().path().to_owned();
    let query = Query(request.uri().query().unwrap_or_default());
    let action = pattern.and_then(|pattern| action(request.method(), pattern.as_str()));
    // A dry run changes nothing.
    let is_dry = action == Some(SET) && query.get("dry_run").as_deref() == Some("1");
    let action = action.filter(|_| !is_dry);
    let pool = query.get("pool").map(|pool| pool.into_owned());
    let response = next.run(request).await;
    let status = response.status();
    if let Some(action) = action
        && (status.is_success() || status.is_server_error())
    {
        let pool = pool.as_deref().filter(|pool| !pool.is_empty()).unwrap_or("default");
        by.changed(action, pool, &path, status);
    }
    response
}

/// Returns the action of a request of these routes; `None` if it changes nothing.
fn action(method: &Method, pattern: &str) -> Option<&'static str> {
    if [Method::GET, Method::HEAD].contains(method) {
        return None;
    }
    let end = pattern.rsplit('}').next().unwrap_or_default();
    let of_schedules = pattern.contains("_schedules");
    Some(match (method.as_str(), end) {
        ("PUT", _) if of_schedules => SET,
        ("DELETE", _) if of_schedules => "a schedule was deleted",
        (_, "/pause") if of_schedules => "a schedule was paused",
        (_, "/resume") if of_schedules => "a schedule was resumed",
        (_, "/run") => "a schedule was run",
        ("POST", "/jobs") => "a job was published",
        ("DELETE", "") if pattern.contains("/job/") || pattern.contains("/key/") => "a job was cancelled",
        ("DELETE", "") => "the ready jobs of a queue were destroyed",
        ("DELETE", "/deadletter") => "dead jobs were deleted",
        ("PUT", "/deadletter") | (_, "/deadletter/respawn") => "dead jobs were respawned",
        (_, "/respawn") => "a dead job was respawned",
        (_, "/promote") => "a delayed job was made ready",
        (_, "/pause") => "a queue was paused",
        (_, "/resume") => "a queue was resumed",
        _ => "something was changed",
    })
}

/// Logs `failed` failed logins. The credentials are not shown: they may be the password of another service.
pub fn logins_failed(address: IpAddr, failed: u64) {
    tracing::info!(target: AUDIT, by = address.to_string(), failed, "logins failed");
}

impl FromRequestParts<Arc<AppState>> for Author {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, state: &Arc<AppState>) -> Result<Author, Infallible> {
        let account = parts.extensions.get::<Account>().map(|account| account.0.clone());
        let client = || parts.extensions.get::<ClientIp>().map(|client| client.0.to_string());
        Ok(Author {
            name: account.or_else(client).unwrap_or_default(),
            changes: state.operations.changes.clone(),
        })
    }
}
