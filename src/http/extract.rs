//! Extractors: who calls, for which queue, in which pool. They check in lmstfy's order: names (400), pool
//! (404), token (401). A handler that runs has valid names and a good token.

use std::sync::{Arc, OnceLock};

use axum::extract::{FromRequestParts, RawPathParams};
use axum::http::StatusCode;
use axum::http::request::Parts;

use super::error::ApiError;
use super::params::Query;
use super::{Pool, State};
use crate::admin::tokens as token;
use crate::admin::{Scope, TokenKey};
use crate::job::JobId;
use crate::name::{NameError, Namespace, PoolName, Queue, QueueList, QueueName, Token};

const TOO_LONG: ApiError = ApiError::bad("namespace or queue name too long");
const BAD_NAMESPACE: ApiError = ApiError::bad("namespace name contains forbidden characters");
const BAD_QUEUE: ApiError = ApiError::bad("queue name contains forbidden characters");
const NO_POOL: ApiError = ApiError::Refused(StatusCode::NOT_FOUND, "pool not found");
const NO_TOKEN: ApiError = ApiError::Refused(StatusCode::UNAUTHORIZED, "token not found");
const BAD_TOKEN: ApiError = ApiError::Refused(StatusCode::UNAUTHORIZED, "invalid token");

/// What the layer's metrics and log may say of a request: set once the names are known to be good, so that
/// strangers cannot fill the metrics with names.
#[derive(Debug, Default)]
pub struct Labels {
    known: OnceLock<(PoolName, Namespace)>,
    pool: OnceLock<PoolName>,
}

impl Labels {
    /// The pool that the request is for: one of the configured ones, whoever asks.
    pub fn pool(&self) -> Option<&PoolName> {
        self.pool.get()
    }

    /// The pool and namespace, when known.
    pub fn get(&self) -> Option<&(PoolName, Namespace)> {
        self.known.get()
    }
}

/// A caller with a good token, and the queue it means.
pub struct Caller {
    pub pool: Arc<Pool>,
    pub key: TokenKey,
    pub queue: Queue,
    /// What stands after `/job/`; `None` when it is no id that was ever given out.
    pub job_id: Option<JobId>,
}

/// A caller with a good token that consumes from one or more queues.
pub struct ConsumeCaller {
    pub pool: Arc<Pool>,
    pub key: TokenKey,
    pub queues: QueueList,
}

/// A caller of the routes that need no token.
pub struct Anyone {
    pub pool: Arc<Pool>,
    pub queue: Queue,
}

impl FromRequestParts<Arc<State>> for Caller {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &Arc<State>) -> Result<Caller, ApiError> {
        let path = Path::read(parts).await?;
        let queue = path.queue()?;
        let (pool, key) = authenticate(parts, state, &queue.namespace).await?;
        Ok(Caller { pool, key, queue, job_id: JobId::parse(&path.job_id) })
    }
}

impl FromRequestParts<Arc<State>> for ConsumeCaller {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &Arc<State>) -> Result<ConsumeCaller, ApiError> {
        let path = Path::read(parts).await?;
        let queues = path.queues()?;
        let (pool, key) = authenticate(parts, state, queues.namespace()).await?;
        Ok(ConsumeCaller { pool, key, queues })
    }
}

impl FromRequestParts<Arc<State>> for Anyone {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &Arc<State>) -> Result<Anyone, ApiError> {
        let queue = Path::read(parts).await?.queue()?;
        let (pool, _) = pool_and_token(parts, state)?;
        Ok(Anyone { pool, queue })
    }
}

/// The path's parts, percent-decoded.
#[derive(Default)]
struct Path {
    namespace: String,
    queue: String,
    job_id: String,
}

impl Path {
    async fn read(parts: &mut Parts) -> Result<Path, ApiError> {
        // Refuses what is not UTF-8 once decoded, and so no name.
        let params = RawPathParams::from_request_parts(parts, &()).await.map_err(|_| BAD_QUEUE)?;
        let mut path = Path::default();
        for (name, value) in &params {
            match name {
                "namespace" => path.namespace = value.to_owned(),
                "queue" => path.queue = value.to_owned(),
                "job_id" => path.job_id = value.to_owned(),
                _ => {}
            }
        }
        Ok(path)
    }

    fn queue(&self) -> Result<Queue, ApiError> {
        let namespace = Namespace::parse(&self.namespace);
        let name = QueueName::parse(&self.queue);
        match (namespace, name) {
            (Ok(namespace), Ok(name)) => Ok(Queue { namespace, name }),
            (Err(NameError::TooLong), _) | (_, Err(NameError::TooLong)) => Err(TOO_LONG),
            (Err(NameError::Forbidden), _) => Err(BAD_NAMESPACE),
            (_, Err(NameError::Forbidden)) => Err(BAD_QUEUE),
        }
    }

    fn queues(&self) -> Result<QueueList, ApiError> {
        let namespace = Namespace::parse(&self.namespace).map_err(|e| match e {
            NameError::TooLong => TOO_LONG,
            NameError::Forbidden => BAD_NAMESPACE,
        })?;
        let names: Result<Vec<QueueName>, NameError> =
            self.queue.split(',').filter(|name| !name.is_empty()).map(QueueName::parse_for_consume).collect();
        let names = names.map_err(|e| match e {
            NameError::TooLong => TOO_LONG,
            NameError::Forbidden => BAD_QUEUE,
        })?;
        QueueList::new(namespace, names).ok_or(ApiError::bad("invalid queue name(s)"))
    }
}

/// The pool that the token names, and the token's secret part, which may be missing.
fn pool_and_token(parts: &Parts, state: &State) -> Result<(Arc<Pool>, Option<Token>), ApiError> {
    let header = parts.headers.get("x-token").and_then(|v| v.to_str().ok()).filter(|t| !t.is_empty());
    let in_query;
    let raw = match header {
        Some(token) => token,
        None => {
            in_query = Query(parts.uri.query().unwrap_or_default()).get("token").unwrap_or_default();
            &in_query
        }
    };
    let (pool, token) = token::split(raw);
    let pool = PoolName::parse(pool).ok().and_then(|name| state.pools.get(&name)).ok_or(NO_POOL)?;
    if let Some(labels) = parts.extensions.get::<Arc<Labels>>() {
        let _ = labels.pool.set(pool.name.clone());
    }
    Ok((pool.clone(), Token::new(token)))
}

async fn authenticate(
    parts: &Parts,
    state: &State,
    namespace: &Namespace,
) -> Result<(Arc<Pool>, TokenKey), ApiError> {
    let (pool, token) = pool_and_token(parts, state)?;
    let scope = Scope { pool: pool.name.clone(), namespace: namespace.clone() };
    let key = if state.skip_verification {
        // Any token will do, also none; limits still need a name for whom they count.
        TokenKey { scope, token: token.or_else(|| Token::new("-")).ok_or(NO_TOKEN)? }
    } else {
        let key = TokenKey { scope, token: token.ok_or(NO_TOKEN)? };
        if !state.tokens.check(&key).await.map_err(ApiError::reported)? {
            return Err(BAD_TOKEN);
        }
        key
    };
    if let Some(labels) = parts.extensions.get::<Arc<Labels>>() {
        let _ = labels.known.set((pool.name.clone(), namespace.clone()));
    }
    Ok((pool, key))
}
