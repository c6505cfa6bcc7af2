//! The handlers of schedules: what a request says goes to the pool's [`Scheduler`](crate::scheduler::Scheduler), and what
//! it answers is shown. Of `http` it imports `answer`, `state`, `request`, and of `jobs` the counting of publishes.

mod condition;
pub mod list;
pub mod one;
pub mod preview;
mod query;
pub mod run;
pub mod set;
mod show;

use axum::Router;
use axum::http::StatusCode;
use axum::routing::{MethodRouter, get, post};
use serde_json::json;

use crate::http::answer::error::ApiError;
use crate::http::state::AppState;
use crate::schedule::Refusal;
use crate::scheduler::NotChanged;
use std::sync::Arc;

type Routes = Router<Arc<AppState>>;

/// All routes. `only` makes of a route's methods what the port makes of them.
pub fn routes(only: impl Fn(MethodRouter<Arc<AppState>>) -> MethodRouter<Arc<AppState>>) -> Routes {
    Router::new()
        .route("/api/{namespace}/_schedules", only(get(list::list).put(set::set)))
        .route("/api/{namespace}/_schedules/_preview", only(get(preview::preview)))
        .route("/api/{namespace}/_schedules/{name}", only(get(one::get).put(one::put).delete(one::delete)))
        .route("/api/{namespace}/_schedules/{name}/pause", only(post(one::pause)))
        .route("/api/{namespace}/_schedules/{name}/resume", only(post(one::resume)))
        .route("/api/{namespace}/_schedules/{name}/run", only(post(run::run)))
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
            NotChanged::Moved => {
                ApiError::Refused(StatusCode::CONFLICT, "the schedule has moved to another pool")
            }
            NotChanged::Store(error) => error.into(),
        }
    }
}
