//! The handlers of schedules: they pass requests to the pool's [`Scheduler`](crate::scheduler::Scheduler), and show
//! its results. Within `http`, they import `answer`, `state`, `request`, and from `jobs` the counting of publishes.

mod condition;
pub mod list;
pub mod one;
pub mod preview;
mod query;
pub mod run;
pub mod set;
mod show;

use std::sync::Arc;

use axum::http::StatusCode;
use serde_json::json;

use crate::http::answer::error::ApiError;
use crate::http::request::table::{Row, delete, get, only, post, put};
use crate::http::state::AppState;
use crate::schedule::Refusal;
use crate::scheduler::NotChanged;

/// Returns all routes of schedules.
pub fn routes() -> Vec<Row<Arc<AppState>>> {
    vec![
        only("/api/{namespace}/_schedules", [get(list::list), put(set::set)]),
        only("/api/{namespace}/_schedules/_preview", [get(preview::preview)]),
        only("/api/{namespace}/_schedules/{name}", [get(one::get), put(one::put), delete(one::delete)]),
        only("/api/{namespace}/_schedules/{name}/pause", [post(one::pause)]),
        only("/api/{namespace}/_schedules/{name}/resume", [post(one::resume)]),
        only("/api/{namespace}/_schedules/{name}/run", [post(run::run)]),
    ]
}

impl From<Refusal> for ApiError {
    fn from(refusal: Refusal) -> ApiError {
        ApiError::said(StatusCode::BAD_REQUEST, &refusal)
    }
}

impl From<NotChanged> for ApiError {
    fn from(why: NotChanged) -> ApiError {
        match why {
            NotChanged::Condition(revision) => ApiError::said(
                StatusCode::PRECONDITION_FAILED,
                &json!({ "error": "the schedule has changed", "revision": revision }),
            ),
            NotChanged::NotFound => ApiError::Refused(StatusCode::NOT_FOUND, "no such schedule"),
            NotChanged::TooMany => ApiError::Refused(StatusCode::CONFLICT, "too many schedules"),
            NotChanged::Forbidden => {
                ApiError::Refused(StatusCode::FORBIDDEN, "this server keeps no schedules")
            }
            NotChanged::Store(error) => error.into(),
        }
    }
}
