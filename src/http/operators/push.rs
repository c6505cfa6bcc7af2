//! The admin port's handlers for pushed queues.

use std::sync::Arc;

use axum::extract::{FromRequestParts, Path, Request, State};
use axum::http::StatusCode;
use axum::http::request::Parts;
use serde_json::Value;

use super::audit::Author;
use crate::http::answer::error::{ApiError, HandlerResult, NameIn};
use crate::http::answer::reply;
use crate::http::request::body::read_body;
use crate::http::request::extract::ShowsBodies;
use crate::http::request::params::Query;
use crate::http::state::{App, AppState};
use crate::name::{Namespace, Queue, QueueName};
use crate::push::PushError;
use crate::push::key::PushKey;
use crate::push::setting::{self, MAX_SETTING};

/// The queue in `/push/:namespace/:queue?pool`.
pub struct Pushed(PushKey);

impl FromRequestParts<Arc<AppState>> for Pushed {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &Arc<AppState>) -> Result<Pushed, ApiError> {
        let path = Path::<(String, String)>::from_request_parts(parts, state).await;
        let Path((namespace, queue)) = path.map_err(|_| ApiError::bad("invalid path"))?;
        let namespace = Namespace::parse(&namespace);
        let namespace = namespace.map_err(|error| ApiError::bad_name(NameIn::Namespace, error))?;
        let name = QueueName::parse(&queue).map_err(|error| ApiError::bad_name(NameIn::Queue, error))?;
        let query = Query(parts.uri.query().unwrap_or_default());
        let pool = state.pools.name(&query.get("pool").unwrap_or_default())?;
        Ok(Pushed(PushKey { pool, queue: Queue { namespace, name } }))
    }
}

/// `PUT /push/:namespace/:queue?pool`
pub async fn put(State(state): App, Pushed(key): Pushed, by: Author, request: Request) -> HandlerResult {
    let body = read_body(request.into_body(), MAX_SETTING, "the setting is too large", None).await?;
    let given: Value = serde_json::from_slice(&body).map_err(|_| ApiError::bad("the body should be JSON"))?;
    let setting = setting::Setting::parse(&given, &key.queue.name).map_err(PushError::Bad)?;
    let set = state.push.put(&key, setting).await?;
    by.pushed("push was set", &key);
    Ok(reply::json(StatusCode::OK, &set))
}

/// `GET /push/:namespace/:queue?pool`
pub async fn get(State(state): App, Pushed(key): Pushed, ShowsBodies(shows): ShowsBodies) -> HandlerResult {
    let mut shown = state.push.get(&key).await?;
    if !shows {
        shown.hide_answers();
    }
    Ok(reply::json(StatusCode::OK, &shown))
}

/// `DELETE /push/:namespace/:queue?pool`
pub async fn delete(State(state): App, Pushed(key): Pushed, by: Author) -> HandlerResult {
    state.push.delete(&key).await?;
    by.pushed("push was deleted", &key);
    Ok(reply::no_content())
}

/// `POST /push/:namespace/:queue/pause?pool`
pub async fn pause(State(state): App, Pushed(key): Pushed, by: Author) -> HandlerResult {
    let set = state.push.pause(&key).await?;
    by.pushed("push was paused", &key);
    Ok(reply::json(StatusCode::OK, &set))
}

/// `POST /push/:namespace/:queue/resume?pool`
pub async fn resume(State(state): App, Pushed(key): Pushed, by: Author) -> HandlerResult {
    let set = state.push.resume(&key).await?;
    by.pushed("push was resumed", &key);
    Ok(reply::json(StatusCode::OK, &set))
}

/// `POST /push/:namespace/:queue/secret?pool`
pub async fn new_secret(State(state): App, Pushed(key): Pushed, by: Author) -> HandlerResult {
    let secret = state.push.new_secret(&key).await?;
    by.pushed("push got a new secret", &key);
    Ok(reply::json(StatusCode::OK, &secret))
}

/// `POST /push/:namespace/:queue/test?pool`
pub async fn test(
    State(state): App,
    Pushed(key): Pushed,
    ShowsBodies(shows): ShowsBodies,
    by: Author,
) -> HandlerResult {
    let mut tested = state.push.test(&key).await?;
    by.pushed("push was tested", &key);
    if !shows {
        tested.answer = None;
    }
    Ok(reply::json(StatusCode::OK, &tested))
}
