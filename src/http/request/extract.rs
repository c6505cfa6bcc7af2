//! Extractors that validate and authorize requests, in lmstfy's order: names (400), pool (404), token (401). A handler
//! that runs has valid names and an accepted token.

use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderName, StatusCode};

use super::params::Query;
use super::path::{self, MAX_QUEUES, NO_QUEUE, Names};
use crate::admin::tokens as token;
use crate::admin::{Scope, TokenKey, TokenRecord};
use crate::http::answer::error::ApiError;
use crate::http::state::{AppState, PoolState};
use crate::job::{JobId, JobRef};
use crate::name::{JobKey, Namespace, PoolName, Queue, QueueList, QueueName, Token};
use crate::schedule::Refusal;
use crate::scheduler::ScheduleId;

const X_TOKEN: HeaderName = HeaderName::from_static("x-token");

const NO_POOL: ApiError = ApiError::Refused(StatusCode::NOT_FOUND, "pool not found");
const NO_TOKEN: ApiError = ApiError::Refused(StatusCode::UNAUTHORIZED, "token not found");
pub const BAD_TOKEN: ApiError = ApiError::Refused(StatusCode::UNAUTHORIZED, "invalid token");

/// Data about a request for metrics and the log. The namespace is set only after the token was accepted, so that
/// clients without a token cannot fill the metrics with names.
#[derive(Debug, Default)]
pub struct Labels {
    accepted: OnceLock<(PoolName, Namespace)>,
    pool: OnceLock<PoolName>,
    /// Whether the request is logged; the caller is recorded only then.
    is_logged: bool,
    by: OnceLock<String>,
    /// The request came over the admin port, authorized by an account instead of a token.
    by_account: AtomicBool,
    /// The caller may not see job bodies.
    hides_bodies: AtomicBool,
}

impl Labels {
    /// Creates the labels of a request.
    pub fn new(is_logged: bool) -> Labels {
        Labels { is_logged, ..Labels::default() }
    }

    /// Marks the request as authorized by the admin port, so that it needs no token.
    pub fn needs_no_token(&self) {
        self.by_account.store(true, Ordering::Relaxed);
    }

    /// Hides bodies, attributes and replies of endpoints in the response.
    pub fn hide_bodies(&self) {
        self.hides_bodies.store(true, Ordering::Relaxed);
    }

    /// Records the caller: an account, or the hash of a token.
    pub fn asked_by(&self, by: impl FnOnce() -> String) {
        if self.is_logged {
            let _ = self.by.set(by());
        }
    }

    /// Returns the caller, if recorded.
    pub fn by(&self) -> Option<&str> {
        self.by.get().map(String::as_str)
    }

    /// Returns the configured pool named by the request, whether or not its token is accepted.
    pub fn pool(&self) -> Option<&PoolName> {
        self.pool.get()
    }

    /// Returns the pool and namespace, after the token was accepted.
    pub fn accepted(&self) -> Option<&(PoolName, Namespace)> {
        self.accepted.get()
    }
}

/// Whether the response may show bodies, attributes, and replies of endpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShowsBodies(pub bool);

impl ShowsBodies {
    /// Returns the permission of a request with these labels.
    pub fn of(labels: Option<&Labels>) -> ShowsBodies {
        ShowsBodies(!labels.is_some_and(|labels| labels.hides_bodies.load(Ordering::Relaxed)))
    }
}

impl<S: Sync> FromRequestParts<S> for ShowsBodies {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<ShowsBodies, Infallible> {
        Ok(ShowsBodies::of(parts.extensions.get::<Arc<Labels>>().map(|labels| &**labels)))
    }
}

/// Whether the request is authorized by an account instead of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByAccount(pub bool);

impl<S: Sync> FromRequestParts<S> for ByAccount {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<ByAccount, Infallible> {
        Ok(ByAccount(Head::of(parts).is_by_account()))
    }
}

/// A request for one queue, with an accepted token.
pub struct Authorized {
    pub pool: Arc<PoolState>,
    pub key: TokenKey,
    /// Record of the token, if it was checked.
    pub record: Option<TokenRecord>,
    pub queue: Queue,
    /// Id after `/job/`; `None` if it is not a valid id.
    pub job_id: Option<JobId>,
}

impl Authorized {
    /// Returns the job named in the path, or 404 if the id is invalid.
    pub fn job(&self) -> Result<JobRef, ApiError> {
        let id = self.job_id.ok_or(ApiError::NO_JOB)?;
        Ok(JobRef { queue: self.queue.clone(), id })
    }
}

/// A request for the job with a key, with an accepted token.
pub struct AuthorizedKey {
    pub pool: Arc<PoolState>,
    pub queue: Queue,
    pub key: JobKey,
}

/// A request for one schedule, with an accepted token.
pub struct AuthorizedSchedule {
    pub pool: Arc<PoolState>,
    pub key: TokenKey,
    /// As in [`Authorized`].
    pub record: Option<TokenRecord>,
    pub id: ScheduleId,
}

/// A publish to a whole namespace, with an accepted token.
pub struct AuthorizedSet {
    pub pool: Arc<PoolState>,
    pub key: TokenKey,
    /// As in [`Authorized`].
    pub record: Option<TokenRecord>,
    pub namespace: Namespace,
}

/// A request for a namespace, with an accepted token.
pub struct AuthorizedNamespace {
    pub pool: Arc<PoolState>,
    pub namespace: Namespace,
}

/// A consume from one or more queues, with an accepted token.
pub struct AuthorizedConsume {
    pub pool: Arc<PoolState>,
    pub key: TokenKey,
    /// As in [`Authorized`].
    pub record: Option<TokenRecord>,
    pub queues: QueueList,
}

/// A request for one queue on a route that needs no token.
pub struct Anonymous {
    pub pool: Arc<PoolState>,
    pub queue: Queue,
}

impl Authorized {
    /// Authorizes a request whose path has been parsed.
    pub async fn of(
        queue: Queue,
        job_id: Option<JobId>,
        head: Head<'_>,
        state: &AppState,
    ) -> Result<Authorized, ApiError> {
        let (pool, key, record) = authenticate(head, state, &queue.namespace).await?;
        Ok(Authorized { pool, key, record, queue, job_id })
    }
}

impl FromRequestParts<Arc<AppState>> for Authorized {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &Arc<AppState>) -> Result<Authorized, ApiError> {
        let (queue, job_id) = names(parts).and_then(|names| Ok((names.queue()?, names.job_id())))?;
        Authorized::of(queue, job_id, Head::of(parts), state).await
    }
}

impl FromRequestParts<Arc<AppState>> for AuthorizedKey {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &Arc<AppState>) -> Result<AuthorizedKey, ApiError> {
        let (queue, key) = names(parts).and_then(|names| Ok((names.queue()?, names.key())))?;
        let (pool, ..) = authenticate(Head::of(parts), state, &queue.namespace).await?;
        Ok(AuthorizedKey { pool, queue, key: key.ok_or(ApiError::bad("invalid key"))? })
    }
}

impl FromRequestParts<Arc<AppState>> for AuthorizedNamespace {
    type Rejection = ApiError;

    async fn from_request_parts(
        parts: &mut Parts,
        state: &Arc<AppState>,
    ) -> Result<AuthorizedNamespace, ApiError> {
        let namespace = names(parts)?.namespace()?;
        let (pool, ..) = authenticate(Head::of(parts), state, &namespace).await?;
        Ok(AuthorizedNamespace { pool, namespace })
    }
}

impl FromRequestParts<Arc<AppState>> for AuthorizedSchedule {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &Arc<AppState>) -> Result<Self, ApiError> {
        let (namespace, name) = names(parts).and_then(|names| Ok((names.namespace()?, names.schedule())))?;
        let name = name.map_err(|given| {
            let refusal = Refusal::of("name", Refusal::bad_name(&given));
            ApiError::said(StatusCode::BAD_REQUEST, &refusal)
        })?;
        let (pool, key, record) = authenticate(Head::of(parts), state, &namespace).await?;
        Ok(AuthorizedSchedule { pool, key, record, id: ScheduleId { namespace, name } })
    }
}

impl FromRequestParts<Arc<AppState>> for AuthorizedSet {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &Arc<AppState>) -> Result<Self, ApiError> {
        let namespace = names(parts)?.namespace()?;
        let (pool, key, record) = authenticate(Head::of(parts), state, &namespace).await?;
        Ok(AuthorizedSet { pool, key, record, namespace })
    }
}

impl AuthorizedConsume {
    /// Like [`Authorized::of`], for the queues in the path.
    pub async fn of(
        (namespace, names): (Namespace, Vec<QueueName>),
        head: Head<'_>,
        state: &AppState,
    ) -> Result<AuthorizedConsume, ApiError> {
        let (pool, key, record) = authenticate(head, state, &namespace).await?;
        if names.len() > MAX_QUEUES {
            return Err(ApiError::bad("too many queues"));
        }
        let queues = QueueList::new(namespace, names).ok_or(NO_QUEUE)?;
        Ok(AuthorizedConsume { pool, key, record, queues })
    }
}

impl FromRequestParts<Arc<AppState>> for Anonymous {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &Arc<AppState>) -> Result<Anonymous, ApiError> {
        let queue = names(parts)?.queue()?;
        let (pool, _) = pool_and_token(Head::of(parts), state)?;
        Ok(Anonymous { pool, queue })
    }
}

/// Returns the pool and the queue of an account's request, and labels the request with them. An empty pool is the
/// default one.
pub fn for_account(
    state: &AppState,
    labels: Option<&Labels>,
    pool: &str,
    names: &Names<'_>,
) -> Result<(Arc<PoolState>, Queue), ApiError> {
    let queue = names.queue()?;
    let pool = state.pools.get(if pool.is_empty() { "default" } else { pool }).ok_or(NO_POOL)?.clone();
    if let Some(labels) = labels {
        let _ = labels.accepted.set((pool.name.clone(), queue.namespace.clone()));
    }
    Ok((pool, queue))
}

fn names(parts: &Parts) -> Result<Names<'_>, ApiError> {
    Names::of(path::parts(parts.uri.path()))
}

/// A request's head and its labels.
#[derive(Clone, Copy)]
pub struct Head<'a> {
    pub parts: &'a Parts,
    pub labels: Option<&'a Labels>,
}

impl<'a> Head<'a> {
    /// Returns whether the request is authorized by an account instead of a token.
    fn is_by_account(&self) -> bool {
        self.labels.is_some_and(|labels| labels.by_account.load(Ordering::Relaxed))
    }

    fn of(parts: &'a Parts) -> Head<'a> {
        Head { parts, labels: parts.extensions.get::<Arc<Labels>>().map(|labels| &**labels) }
    }
}

/// Returns the pool named by the token, and the token's secret part, which may be missing. With an account, the query
/// names the pool.
fn pool_and_token(head: Head<'_>, state: &AppState) -> Result<(Arc<PoolState>, Option<Token>), ApiError> {
    if head.is_by_account() {
        let pool = Query(head.parts.uri.query().unwrap_or_default()).get("pool");
        let pool = pool.as_deref().filter(|pool| !pool.is_empty()).unwrap_or("default");
        return Ok((state.pools.get(pool).ok_or(NO_POOL)?.clone(), None));
    }
    let header = head.parts.headers.get(X_TOKEN).and_then(|v| v.to_str().ok()).filter(|t| !t.is_empty());
    let in_query;
    let raw = match header {
        Some(token) => token,
        None => {
            in_query = Query(head.parts.uri.query().unwrap_or_default()).get("token").unwrap_or_default();
            &in_query
        }
    };
    let (pool, token) = token::split(raw);
    let pool = state.pools.get(pool).ok_or(NO_POOL)?;
    if let Some(labels) = head.labels {
        let _ = labels.pool.set(pool.name.clone());
    }
    Ok((pool.clone(), Token::new(token)))
}

async fn authenticate(
    head: Head<'_>,
    state: &AppState,
    namespace: &Namespace,
) -> Result<(Arc<PoolState>, TokenKey, Option<TokenRecord>), ApiError> {
    let (pool, token) = pool_and_token(head, state)?;
    let scope = Scope { pool: pool.name.clone(), namespace: namespace.clone() };
    let (key, record) = if head.is_by_account() {
        // Not rate limited.
        let record = TokenRecord { exists: true, limit: None };
        (TokenKey { scope, token: Token::new("-").ok_or(NO_TOKEN)? }, Some(record))
    } else if state.access.skip_verification {
        // Any token is accepted, even none. Rate limits are counted by token, so a placeholder is used.
        (TokenKey { scope, token: token.or_else(|| Token::new("-")).ok_or(NO_TOKEN)? }, None)
    } else {
        let key = TokenKey { scope, token: token.ok_or(NO_TOKEN)? };
        let record = state.access.tokens.look_up(&key).await.map_err(ApiError::reported)?;
        if !record.exists {
            return Err(BAD_TOKEN);
        }
        (key, Some(record))
    };
    if let Some(labels) = head.labels {
        let _ = labels.accepted.set((pool.name.clone(), namespace.clone()));
        if !head.is_by_account() {
            labels.asked_by(|| key.token.hash());
        }
    }
    Ok((pool, key, record))
}
