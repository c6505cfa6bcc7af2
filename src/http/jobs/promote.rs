//! Promotion of delayed jobs, which makes them due now.

use axum::http::StatusCode;
use serde_json::json;

use super::lists::NO_KEY;
use crate::engine::{By, Promoted};
use crate::http::answer::error::{ApiError, HandlerResult};
use crate::http::answer::reply;
use crate::http::request::extract::{Authorized, AuthorizedKey};
use crate::http::state::PoolState;
use crate::job::{JobRef, JobState};
use crate::name::Queue;

/// `POST /api/:namespace/:queue/job/:job_id/promote`
pub async fn job(auth: Authorized) -> HandlerResult {
    let JobRef { queue, id } = auth.job()?;
    promote(&auth.pool, &queue, By::Id(id), ApiError::NO_JOB).await
}

/// `POST /api/:namespace/:queue/key/:key/promote`
pub async fn job_of_key(auth: AuthorizedKey) -> HandlerResult {
    promote(&auth.pool, &auth.queue, By::Key(&auth.key), NO_KEY).await
}

async fn promote(pool: &PoolState, queue: &Queue, by: By<'_>, not_found: ApiError) -> HandlerResult {
    match pool.engine.promote(queue, by).await? {
        Promoted::Done => Ok(reply::message(StatusCode::OK, "ready")),
        Promoted::NotDelayed(state) => {
            let state = state.map(JobState::as_str);
            let body = json!({ "error": "the job is not delayed", "state": state });
            Err(ApiError::said(StatusCode::CONFLICT, &body))
        }
        Promoted::NotFound => Err(not_found),
    }
}
