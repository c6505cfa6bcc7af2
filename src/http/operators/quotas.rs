//! The admin port's handlers for quotas of namespaces.

use std::sync::Arc;

use axum::extract::{FromRequest, Path, RawQuery, Request, State};
use axum::http::{Method, StatusCode};

use super::audit::Author;
use super::names::namespace;
use crate::admin::Scope;
use crate::engine::Quota;
use crate::http::answer::error::{ApiError, HandlerResult};
use crate::http::answer::reply;
use crate::http::request::body::read_body;
use crate::http::request::params::Query;
use crate::http::state::parts::Access;
use crate::http::state::{AppState, Pools};

const NO_QUOTA: ApiError = ApiError::Refused(StatusCode::NOT_FOUND, "the namespace has no quota");
const HAS_QUOTA: ApiError = ApiError::Refused(StatusCode::CONFLICT, "the namespace has a quota already");
const BAD: ApiError = ApiError::bad(
    "the quota should be {\"jobs\":..,\"bytes\":..,\"queues\":..}, whole numbers, 0 for no bound",
);
const MAX_BODY: usize = 64 * 1024;

pub struct ValidQuota(Quota);

impl FromRequest<Arc<AppState>> for ValidQuota {
    type Rejection = ApiError;

    async fn from_request(request: Request, _: &Arc<AppState>) -> Result<ValidQuota, ApiError> {
        let body = read_body(request.into_body(), MAX_BODY, "body too large", None).await?;
        serde_json::from_slice(&body).map(ValidQuota).map_err(|_| BAD)
    }
}

/// Returns the scope in `/quota/:namespace?pool`.
fn scope(pools: &Pools, name: &str, query: Option<String>) -> Result<Scope, ApiError> {
    let query = query.unwrap_or_default();
    let pool = pools.name(&Query(&query).get("pool").unwrap_or_default())?;
    Ok(Scope { pool, namespace: namespace(name)? })
}

/// `GET /quota/:namespace?pool`
pub async fn get(
    State(pools): State<Pools>,
    State(access): State<Access>,
    Path(name): Path<String>,
    RawQuery(query): RawQuery,
) -> HandlerResult {
    let quota = access.quotas.get(&scope(&pools, &name, query)?).await?.ok_or(NO_QUOTA)?;
    Ok(reply::json(StatusCode::OK, &quota))
}

/// `POST` and `PUT /quota/:namespace?pool`: a POST fails if there is one already.
pub async fn put(
    State(pools): State<Pools>,
    State(access): State<Access>,
    Path(name): Path<String>,
    RawQuery(query): RawQuery,
    method: Method,
    by: Author,
    ValidQuota(quota): ValidQuota,
) -> HandlerResult {
    let scope = scope(&pools, &name, query)?;
    let if_none = method == Method::POST;
    if !access.quotas.put(&scope, Some(quota), if_none).await? && if_none {
        return Err(HAS_QUOTA);
    }
    let (status, action) = match if_none {
        true => (StatusCode::CREATED, "a quota was made"),
        false => (StatusCode::OK, "a quota was made or changed"),
    };
    by.bounded(action, &scope);
    Ok(reply::json(status, &quota))
}

/// `DELETE /quota/:namespace?pool`
pub async fn remove(
    State(pools): State<Pools>,
    State(access): State<Access>,
    Path(name): Path<String>,
    RawQuery(query): RawQuery,
    by: Author,
) -> HandlerResult {
    let scope = scope(&pools, &name, query)?;
    access.quotas.put(&scope, None, false).await?;
    by.bounded("a quota was deleted", &scope);
    Ok(reply::message(StatusCode::OK, "success"))
}
