//! The admin port: tokens, limits, what the server knows of itself.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{FromRequest, Path, RawQuery, Request, State as Shared};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use http_body_util::{BodyExt, Limited};
use serde::Serialize;

use super::State;
use super::error::ApiError;
use super::params::Query;
use super::reply;
use crate::admin::limits::{LimitError, validate};
use crate::admin::tokens::{self as token, CreateError, MIN_CHOSEN};
use crate::admin::{Limit, Scope, TokenKey};
use crate::name::{NameError, Namespace, PoolName, Token};

const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
const NO_POOL: ApiError = ApiError::bad("the pool was not exists");
const TOO_SHORT: ApiError = ApiError::bad("the user token was too short");
/// The largest form or limit.
const MAX_FORM: usize = 64 * 1024;
/// How long a pool may take to say that it is well.
const CHECK_TIME: Duration = Duration::from_secs(1);

type Answer = Result<Response, ApiError>;

/// `GET /ping`, on both ports: the process answers.
pub async fn ping() -> Response {
    reply::message(StatusCode::OK, "pong")
}

/// `GET /ready`: whether load balancers should send requests here.
pub async fn ready(Shared(state): Shared<Arc<State>>) -> Response {
    #[derive(Serialize)]
    struct Ready {
        ready: bool,
        #[serde(skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    }
    let mut reason = state.readiness.problem();
    for pool in state.pools.values() {
        if reason.is_some() {
            break;
        }
        reason = match tokio::time::timeout(CHECK_TIME, pool.engine.check()).await {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(format!("pool {}: {error}", pool.name)),
            Err(_) => Some(format!("pool {} does not answer", pool.name)),
        };
    }
    if reason.is_none() {
        reason = match tokio::time::timeout(CHECK_TIME, state.tokens.store().check()).await {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(format!("the token store: {error}")),
            Err(_) => Some("the token store does not answer".into()),
        };
    }
    let status = if reason.is_none() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    reply::json(status, &Ready { ready: reason.is_none(), reason })
}

/// `GET /pools`
pub async fn pools(Shared(state): Shared<Arc<State>>) -> Response {
    let names: Vec<&str> = state.pools.keys().map(PoolName::as_str).collect();
    reply::indented(StatusCode::OK, &names)
}

/// `GET /version`
pub async fn version() -> Response {
    reply::indented(StatusCode::OK, &crate::process::version::Version::current())
}

/// `GET /info?pool`: every namespace and its queues. An unknown pool has no answer, as in lmstfy.
pub async fn info(Shared(state): Shared<Arc<State>>, RawQuery(query): RawQuery) -> Answer {
    let query = query.unwrap_or_default();
    let name = Query(&query).get("pool").filter(|name| !name.is_empty()).unwrap_or("default".into());
    let Some(pool) = PoolName::parse(&name).ok().and_then(|name| state.pools.get(&name)) else {
        return Ok(Response::new(Body::empty()));
    };
    let queues = pool.engine.queues().await?;
    let mut namespaces: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for queue in &queues {
        namespaces.entry(queue.namespace.as_str()).or_default().push(queue.name.as_str());
    }
    Ok(reply::with_body(StatusCode::OK, TEXT, reply::indented_text(&namespaces).into()))
}

/// `GET /metrics`
pub async fn metrics(Shared(state): Shared<Arc<State>>) -> Response {
    let mut sizes = Vec::new();
    for pool in state.pools.values() {
        match tokio::time::timeout(CHECK_TIME, pool.engine.stats()).await {
            Ok(Ok(stats)) => sizes.push((&pool.name, stats)),
            Ok(Err(error)) => pool.outage.failed(&error),
            Err(_) => tracing::warn!(pool = pool.name.as_str(), "no sizes for the metrics in time"),
        }
    }
    state.metrics.parked(state.parking.parked());
    let text = {
        let _alone = state.scrape.lock();
        // A queue that is gone would show its last size for ever.
        state.metrics.forget_sizes();
        for (pool, stats) in &sizes {
            state.metrics.sizes(pool, stats);
        }
        state.metrics.text()
    };
    reply::with_body(StatusCode::OK, HeaderValue::from_static(prometheus::TEXT_FORMAT), text.into())
}

#[derive(Serialize)]
struct Status {
    status: &'static str,
}

fn access_log_status(enabled: bool) -> Response {
    reply::json(StatusCode::OK, &Status { status: if enabled { "enabled" } else { "disabled" } })
}

/// `GET /accesslog`
pub async fn get_access_log(Shared(state): Shared<Arc<State>>) -> Response {
    access_log_status(state.access_log.load(Ordering::Relaxed))
}

/// `POST /accesslog?status=enable|disable`
pub async fn set_access_log(Shared(state): Shared<Arc<State>>, RawQuery(query): RawQuery) -> Answer {
    let enabled = match Query(query.as_deref().unwrap_or_default()).get("status").as_deref() {
        Some("enable") => true,
        Some("disable") => false,
        _ => return Err(ApiError::bad("invalid status")),
    };
    state.access_log.store(enabled, Ordering::Relaxed);
    Ok(access_log_status(enabled))
}

fn namespace(text: &str) -> Result<Namespace, ApiError> {
    Namespace::parse(text).map_err(|error| match error {
        NameError::TooLong => ApiError::bad("the namespace name was too long"),
        NameError::Forbidden => ApiError::bad("namespace name contains forbidden characters"),
    })
}

impl State {
    /// The pool of that name; an empty name is the default pool.
    fn pool_name(&self, name: &str) -> Result<PoolName, ApiError> {
        let name = if name.is_empty() { "default" } else { name };
        PoolName::parse(name).ok().filter(|name| self.pools.contains_key(name)).ok_or(NO_POOL)
    }

    /// What `/token/:namespace/:token` names.
    fn token_key(&self, namespace_text: &str, raw: &str) -> Result<TokenKey, ApiError> {
        let (pool, token) = token::split(raw);
        let pool = self.pool_name(pool)?;
        let token = Token::new(token).ok_or(ApiError::bad("invalid token"))?;
        Ok(TokenKey { scope: Scope { pool, namespace: namespace(namespace_text)? }, token })
    }
}

/// `GET /token/:namespace?pool`
pub async fn list_tokens(
    Shared(state): Shared<Arc<State>>,
    Path(namespace_text): Path<String>,
    RawQuery(query): RawQuery,
) -> Answer {
    #[derive(Serialize)]
    struct Tokens {
        tokens: BTreeMap<String, String>,
    }
    let query = query.unwrap_or_default();
    let asked = Query(&query).get("pool").unwrap_or_default();
    let pool = state.pool_name(&asked)?;
    let tokens = state.tokens.list(&Scope { pool, namespace: namespace(&namespace_text)? }).await?;
    // A caller that named the pool gets tokens that name it too.
    let prefix = if asked.is_empty() { String::new() } else { format!("{asked}:") };
    let tokens = tokens.into_iter().map(|(token, text)| (format!("{prefix}{token}"), text)).collect();
    Ok(reply::indented(StatusCode::OK, &Tokens { tokens }))
}

/// `POST /token/:namespace?description&pool&token`, in the query or as a form.
pub async fn create_token(
    Shared(state): Shared<Arc<State>>,
    Path(namespace_text): Path<String>,
    request: Request,
) -> Answer {
    #[derive(Serialize)]
    struct Created {
        token: String,
    }
    let query = request.uri().query().unwrap_or_default().to_owned();
    let is_form = request
        .headers()
        .get(header::CONTENT_TYPE)
        .is_some_and(|v| v.as_bytes().starts_with(b"application/x-www-form-urlencoded"));
    let form = if is_form { read(request).await? } else { bytes::Bytes::new() };
    let form = String::from_utf8_lossy(&form);
    let field = |key: &str| Query(&form).get(key).or_else(|| Query(&query).get(key)).unwrap_or_default();

    let (description, chosen, mut pool) = (field("description"), field("token"), field("pool"));
    if description.is_empty() {
        return Err(ApiError::bad("invalid description"));
    }
    if !chosen.is_empty() && chosen.len() < MIN_CHOSEN {
        return Err(TOO_SHORT);
    }
    let namespace = namespace(&namespace_text)?;
    let mut secret: &str = &chosen;
    if let Some((named, rest)) = chosen.split_once(':') {
        pool = named.to_owned().into();
        secret = rest;
        if secret.is_empty() {
            return Err(TOO_SHORT);
        }
    }
    let scope = Scope { pool: state.pool_name(&pool)?, namespace };
    let token = match state.tokens.create(&scope, Token::new(secret), &description).await {
        Ok(token) => token,
        Err(CreateError::TooShort) => return Err(TOO_SHORT),
        Err(CreateError::Taken) => return Err(ApiError::bad("the token has already existed")),
        Err(CreateError::Store(error)) => return Err(error.into()),
    };
    let token =
        if pool.is_empty() { token.reveal().to_owned() } else { format!("{pool}:{}", token.reveal()) };
    Ok(reply::indented(StatusCode::CREATED, &Created { token }))
}

/// `DELETE /token/:namespace/:token`
pub async fn delete_token(
    Shared(state): Shared<Arc<State>>,
    Path((namespace, token)): Path<(String, String)>,
) -> Answer {
    let key = state.token_key(&namespace, &token)?;
    state.tokens.delete(&key).await?;
    // The store has forgotten its limit too; so should this server, at once.
    state.throttle.remove(&key).await?;
    Ok(reply::no_content())
}

#[derive(Serialize)]
struct LimitReply {
    limiter: Limit,
}

/// `GET /token/:namespace/:token/limit`
pub async fn get_limit(
    Shared(state): Shared<Arc<State>>,
    Path((namespace, token)): Path<(String, String)>,
) -> Answer {
    Ok(match state.throttle.get(&state.token_key(&namespace, &token)?).await? {
        Some(limit) => reply::json(StatusCode::OK, &limit),
        None => reply::json(StatusCode::NOT_FOUND, &()),
    })
}

/// `POST /token/:namespace/:token/limit`: only where there is none yet.
pub async fn add_limit(
    Shared(state): Shared<Arc<State>>,
    Path((namespace, token)): Path<(String, String)>,
    ValidLimit(limit): ValidLimit,
) -> Answer {
    let key = state.token_key(&namespace, &token)?;
    match state.throttle.add(&key, limit).await {
        Ok(()) => Ok(reply::json(StatusCode::CREATED, &LimitReply { limiter: limit })),
        Err(LimitError::Exists) => {
            // The recorded answer of lmstfy, status included, though the fault is the caller's.
            let text = format!("throttler token({}) has already exists", key.token.reveal());
            Ok(reply::error(StatusCode::INTERNAL_SERVER_ERROR, &text))
        }
        Err(error) => Ok(refused(error, limit)),
    }
}

/// `PUT /token/:namespace/:token/limit`
pub async fn set_limit(
    Shared(state): Shared<Arc<State>>,
    Path((namespace, token)): Path<(String, String)>,
    ValidLimit(limit): ValidLimit,
) -> Answer {
    match state.throttle.set(&state.token_key(&namespace, &token)?, limit).await {
        Ok(()) => Ok(reply::json(StatusCode::OK, &LimitReply { limiter: limit })),
        Err(error) => Ok(refused(error, limit)),
    }
}

/// `DELETE /token/:namespace/:token/limit`
pub async fn remove_limit(
    Shared(state): Shared<Arc<State>>,
    Path((namespace, token)): Path<(String, String)>,
) -> Answer {
    state.throttle.remove(&state.token_key(&namespace, &token)?).await?;
    Ok(reply::message(StatusCode::OK, "success"))
}

/// `GET /limits?force_update`
pub async fn list_limits(Shared(state): Shared<Arc<State>>, RawQuery(query): RawQuery) -> Answer {
    #[derive(Serialize)]
    struct TokenLimit {
        namespace: String,
        token: String,
        limiter: Limit,
    }
    let query = query.unwrap_or_default();
    let force = matches!(
        Query(&query).get("force_update").as_deref(),
        Some("1" | "t" | "T" | "true" | "TRUE" | "True")
    );
    let limits = state.throttle.list(force).await?;
    let limits: Vec<TokenLimit> = limits
        .into_iter()
        .map(|(key, limiter)| TokenLimit {
            namespace: key.scope.namespace.to_string(),
            token: token::join(&key),
            limiter,
        })
        .collect();
    Ok(reply::json(StatusCode::OK, &limits))
}

async fn read(request: Request) -> Result<bytes::Bytes, ApiError> {
    match Limited::new(request.into_body(), MAX_FORM).collect().await {
        Ok(body) => Ok(body.to_bytes()),
        Err(_) => Err(ApiError::too_large("body too large")),
    }
}

/// The body, when it is a limit that can be stored. One that is none is refused before the names in the path are
/// looked at.
pub struct ValidLimit(Limit);

impl FromRequest<Arc<State>> for ValidLimit {
    type Rejection = Response;

    async fn from_request(request: Request, _: &Arc<State>) -> Result<ValidLimit, Response> {
        let body = read(request).await.map_err(ApiError::into_response)?;
        let limit: Limit = serde_json::from_slice(&body).map_err(|_| {
            let text =
                b"{\"error\":\"the limit should be {\\\"read\\\":..,\\\"write\\\":..,\\\"interval\\\":..}\"}";
            reply::with_body(StatusCode::BAD_REQUEST, TEXT, Body::from(text.as_slice()))
        })?;
        validate(limit).map_err(|error| refused(error, limit))?;
        Ok(ValidLimit(limit))
    }
}

/// lmstfy's answers to a limit that is not stored.
fn refused(error: LimitError, limit: Limit) -> Response {
    let error: ApiError = match error {
        LimitError::Empty => return reply::json(StatusCode::BAD_REQUEST, &LimitReply { limiter: limit }),
        LimitError::Interval if limit.interval == 0 => ApiError::bad("interval should be > 0"),
        LimitError::Interval => ApiError::bad("limiter interval should be > 0"),
        LimitError::Exists => ApiError::bad("the token has a limit already"),
        LimitError::Store(error) => error.into(),
    };
    error.into_response()
}
