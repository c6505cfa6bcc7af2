//! Pausing a queue, and ending the pause.

use std::time::Duration;

use axum::extract::RawQuery;
use axum::http::StatusCode;
use serde::Serialize;

use crate::http::answer::error::{ApiError, HandlerResult};
use crate::http::answer::reply;
use crate::http::request::extract::Authorized;
use crate::http::request::params::{self, Query};
use crate::time::Instant;

/// `POST /api/:namespace/:queue/pause`
pub async fn pause(auth: Authorized, RawQuery(query): RawQuery) -> HandlerResult {
    #[derive(Serialize)]
    struct Paused {
        msg: &'static str,
        until: Option<Instant>,
    }
    let query = Query(query.as_deref().unwrap_or_default());
    let time = match query.get("for") {
        Some(_) => Some(params::duration(query, "for", 0, "invalid for")?),
        None => None,
    };
    if time == Some(Duration::ZERO) {
        return Err(ApiError::bad("invalid for"));
    }
    let pause = auth.pool.pauses.pause(&auth.queue, time).await?;
    auth.pool.sampler.changed(&auth.queue);
    Ok(reply::json(StatusCode::OK, &Paused { msg: "paused", until: pause.until.map(Instant) }))
}

/// `POST /api/:namespace/:queue/resume`
pub async fn resume(auth: Authorized) -> HandlerResult {
    auth.pool.pauses.resume(&auth.queue).await?;
    auth.pool.sampler.changed(&auth.queue);
    Ok(reply::message(StatusCode::OK, "resumed"))
}
