//! The admin port's handlers for tokens and their limits.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{FromRequest, Path, RawQuery, Request, State};
use axum::http::{Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::audit::Author;
use super::names::namespace;
pub use crate::admin::Limit;
use crate::admin::limits::{LimitError, validate};
use crate::admin::tokens::{self as token, CreateError, MIN_CHOSEN};
use crate::admin::{Scope, TokenKey};
use crate::http::answer::error::{ApiError, HandlerResult};
use crate::http::answer::reply::{self, TEXT};
use crate::http::request::body::read_body;
use crate::http::request::params::Query;
use crate::http::state::parts::Access;
use crate::http::state::{AppState, Pools};
use crate::name::Token;

const TOO_SHORT: ApiError = ApiError::bad("the user token was too short");
/// Maximum size of a form, and of the body of a limit.
const MAX_FORM: usize = 64 * 1024;

/// Reply of `GET /token/:namespace`: each token with its description. Dashboard pages read it too.
#[derive(Serialize, Deserialize)]
pub struct TokensReply {
    pub tokens: BTreeMap<String, String>,
}

/// A token's limit in the reply of `GET /limits`.
#[derive(Serialize, Deserialize)]
pub struct TokenLimit {
    pub namespace: String,
    pub token: String,
    pub limiter: Limit,
}

/// `GET /token/:namespace?pool`
pub async fn list_tokens(
    State(pools): State<Pools>,
    State(access): State<Access>,
    Path(namespace_text): Path<String>,
    RawQuery(query): RawQuery,
) -> HandlerResult {
    let query = query.unwrap_or_default();
    let asked = Query(&query).get("pool").unwrap_or_default();
    let pool = pools.name(&asked)?;
    let tokens = access.tokens.list(&Scope { pool, namespace: namespace(&namespace_text)? }).await?;
    // If the request names the pool, the tokens in the response name it too.
    let prefix = if asked.is_empty() { String::new() } else { format!("{asked}:") };
    let tokens = tokens.into_iter().map(|(token, text)| (format!("{prefix}{token}"), text)).collect();
    Ok(reply::indented(StatusCode::OK, &TokensReply { tokens }))
}

/// `POST /token/:namespace?description&pool&token`, in the query or as a form.
pub async fn create_token(
    State(pools): State<Pools>,
    State(access): State<Access>,
    Path(namespace_text): Path<String>,
    by: Author,
    request: Request,
) -> HandlerResult {
    #[derive(Serialize)]
    struct Created {
        token: String,
    }
    let query = request.uri().query().unwrap_or_default().to_owned();
    let is_form = request
        .headers()
        .get(header::CONTENT_TYPE)
        .is_some_and(|v| v.as_bytes().starts_with(b"application/x-www-form-urlencoded"));
    let form = if is_form { read_form(request).await? } else { Bytes::new() };
    let form = String::from_utf8_lossy(&form);
    let field = |key: &str| Query(&form).get(key).or_else(|| Query(&query).get(key)).unwrap_or_default();

    let (description, chosen, mut pool) = (field("description"), field("token"), field("pool"));
    if description.is_empty() {
        return Err(ApiError::bad("invalid description"));
    }
    if !chosen.is_empty() && chosen.len() < MIN_CHOSEN {
        return Err(TOO_SHORT);
    }
    // A header value loses the blanks at its ends.
    if chosen.trim() != chosen || chosen.bytes().any(|byte| !matches!(byte, b' '..=b'~')) {
        return Err(ApiError::bad("invalid token: it is printable ASCII, without blanks at its ends"));
    }
    let namespace = namespace(&namespace_text)?;
    let mut secret: &str = &chosen;
    let mut prefix = if pool.is_empty() { String::new() } else { format!("{pool}:") };
    if let Some((named, rest)) = chosen.split_once(':') {
        pool = named.to_owned().into();
        secret = rest;
        // If the token itself named the pool, lmstfy's reply omits the pool.
        prefix.clear();
        if secret.is_empty() {
            return Err(TOO_SHORT);
        }
    }
    let scope = Scope { pool: pools.name(&pool)?, namespace };
    let token = match access.tokens.create(&scope, Token::new(secret), &description).await {
        Ok(token) => token,
        Err(CreateError::TooShort) => return Err(TOO_SHORT),
        Err(CreateError::Taken) => return Err(ApiError::bad("the token has already existed")),
        Err(CreateError::Store(error)) => return Err(error.into()),
    };
    let key = TokenKey { scope, token };
    by.did("a token was made", &key);
    let token = format!("{prefix}{}", key.token.reveal());
    Ok(reply::indented(StatusCode::CREATED, &Created { token }))
}

/// `DELETE /token/:namespace/:token`
pub async fn delete_token(
    State(pools): State<Pools>,
    State(access): State<Access>,
    Path((namespace, token)): Path<(String, String)>,
    by: Author,
) -> HandlerResult {
    let key = pools.token_key(&namespace, &token)?;
    access.tokens.delete(&key).await?;
    by.did("a token was deleted", &key);
    Ok(reply::no_content())
}

/// Body of [`revoke`].
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Revoked {
    #[serde(default)]
    pool: String,
    hash: String,
}

/// Deletes the token of a scope that has this hash.
pub async fn revoke_by_hash(access: &Access, by: &Author, scope: Scope, hash: &str) -> Result<(), ApiError> {
    let tokens = access.tokens.list(&scope).await?;
    let mut found = tokens.keys().filter_map(|text| Token::new(text)).filter(|token| token.hash() == hash);
    let token = found.next().ok_or(ApiError::Refused(StatusCode::NOT_FOUND, "no token has this hash"))?;
    if found.next().is_some() {
        return Err(ApiError::Refused(
            StatusCode::CONFLICT,
            "two tokens have this hash: delete by the token",
        ));
    }
    let key = TokenKey { scope, token };
    access.tokens.delete(&key).await?;
    by.did("a token was deleted", &key);
    Ok(())
}

/// `POST /token/:namespace/revoke`
pub async fn revoke(
    State(pools): State<Pools>,
    State(access): State<Access>,
    Path(namespace_text): Path<String>,
    by: Author,
    request: Request,
) -> HandlerResult {
    let body = read_form(request).await?;
    let given: Revoked = serde_json::from_slice(&body).map_err(|_| {
        ApiError::bad("the body should be JSON with hash, and pool if it is not the default one")
    })?;
    let scope = Scope { pool: pools.name(&given.pool)?, namespace: namespace(&namespace_text)? };
    revoke_by_hash(&access, &by, scope, &given.hash).await?;
    Ok(reply::no_content())
}

#[derive(Serialize)]
struct LimitReply {
    limiter: Limit,
}

/// `GET /token/:namespace/:token/limit`
pub async fn get_limit(
    State(pools): State<Pools>,
    State(access): State<Access>,
    Path((namespace, token)): Path<(String, String)>,
) -> HandlerResult {
    Ok(match access.throttle.get(&pools.token_key(&namespace, &token)?).await? {
        Some(limit) => reply::json(StatusCode::OK, &limit),
        None => reply::json(StatusCode::NOT_FOUND, &()),
    })
}

/// `POST` and `PUT /token/:namespace/:token/limit`: a POST fails if there is one already.
pub async fn put_limit(
    State(pools): State<Pools>,
    State(access): State<Access>,
    Path((namespace, token)): Path<(String, String)>,
    method: Method,
    by: Author,
    ValidLimit(limit): ValidLimit,
) -> HandlerResult {
    let key = pools.token_key(&namespace, &token)?;
    let (stored, status, action) = if method == Method::POST {
        (access.throttle.add(&key, limit).await, StatusCode::CREATED, "a limit was made")
    } else {
        (access.throttle.set(&key, limit).await, StatusCode::OK, "a limit was made or changed")
    };
    match stored {
        Ok(()) => {
            by.did(action, &key);
            Ok(reply::json(status, &LimitReply { limiter: limit }))
        }
        Err(LimitError::Exists) => {
            // lmstfy's recorded status, although it is the client's error.
            let text = format!("throttler token({}) has already exists", key.token.reveal());
            Ok(reply::error(StatusCode::INTERNAL_SERVER_ERROR, &text))
        }
        Err(error) => Ok(refused(error, limit)),
    }
}

/// `DELETE /token/:namespace/:token/limit`
pub async fn remove_limit(
    State(pools): State<Pools>,
    State(access): State<Access>,
    Path((namespace, token)): Path<(String, String)>,
    by: Author,
) -> HandlerResult {
    let key = pools.token_key(&namespace, &token)?;
    access.throttle.remove(&key).await?;
    by.did("a limit was deleted", &key);
    Ok(reply::message(StatusCode::OK, "success"))
}

/// `GET /limits`, always read from the store, so lmstfy's `force_update` has no effect.
pub async fn list_limits(State(access): State<Access>) -> HandlerResult {
    let limits = access.throttle.list().await?;
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

async fn read_form(request: Request) -> Result<Bytes, ApiError> {
    read_body(request.into_body(), MAX_FORM, "body too large", None).await
}

/// A valid limit in the body. An invalid body is rejected before the names in the path are checked, as in lmstfy.
pub struct ValidLimit(Limit);

impl FromRequest<Arc<AppState>> for ValidLimit {
    type Rejection = Response;

    async fn from_request(request: Request, _: &Arc<AppState>) -> Result<ValidLimit, Response> {
        let body = read_form(request).await.map_err(ApiError::into_response)?;
        let limit: Limit = serde_json::from_slice(&body).map_err(|_| {
            let text =
                b"{\"error\":\"the limit should be {\\\"read\\\":..,\\\"write\\\":..,\\\"interval\\\":..}\"}";
            reply::with_body(StatusCode::BAD_REQUEST, TEXT, Body::from(text.as_slice()))
        })?;
        validate(limit).map_err(|error| refused(error, limit))?;
        Ok(ValidLimit(limit))
    }
}

/// Returns lmstfy's replies to limits that are not stored.
fn refused(error: LimitError, limit: Limit) -> Response {
    let error: ApiError = match error {
        LimitError::Empty => return reply::json(StatusCode::BAD_REQUEST, &LimitReply { limiter: limit }),
        LimitError::Unlimited => {
            ApiError::bad("read and write are both 0 or less: at least one must be positive")
        }
        LimitError::Interval if limit.interval == 0 => ApiError::bad("interval should be > 0"),
        LimitError::Interval => ApiError::bad("limiter interval should be > 0"),
        LimitError::Exists => ApiError::bad("the token has a limit already"),
        LimitError::Store(error) => error.into(),
    };
    error.into_response()
}
