//! Bulk actions on all jobs of a queue that match a filter: parsing of orders, and how actions are shown.

use std::sync::Arc;

use axum::extract::{Path, Request, State};
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::{Number, json};

use super::audit::Author;
use crate::bulk::{self, Action, BulkState, NotBegun, Order};
use crate::http::answer::error::{ApiError, HandlerResult, NameIn};
use crate::http::answer::reply;
use crate::http::request::body::read_body;
use crate::http::request::extract::ShowsBodies;
use crate::http::request::params::{self, Query};
use crate::http::state::{App, AppState, PoolState};
use crate::job::JobState;
use crate::name::{Namespace, Queue, QueueName};
use crate::sampler::QueueRow;
use crate::search::Filter;
use crate::time::Instant;

/// Maximum body of an order: a reason of 4 KiB, and space around it.
const MAX_ORDER: usize = 16 << 10;
const NOT_FOUND: ApiError = ApiError::Refused(StatusCode::NOT_FOUND, "no such bulk action");

/// An order as given, in JSON or by a form. Omitted and empty fields are `None`, except `reason`: empty, it selects
/// jobs without one.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GivenOrder {
    pub pool: Option<String>,
    pub namespace: String,
    pub queue: String,
    pub action: String,
    pub state: Option<String>,
    pub contains: Option<String>,
    pub reason: Option<String>,
    pub tries: Option<Number>,
    pub delay: Option<Number>,
    pub ttl: Option<Number>,
}

/// A validated order.
#[derive(Debug)]
pub struct Wanted {
    pub pool: Arc<PoolState>,
    pub queue: Queue,
    pub action: Action,
    pub filter: Filter,
}

impl Wanted {
    /// Validates an order. Accounts that may not see bodies may not search them.
    pub fn of(state: &AppState, given: GivenOrder, shows: ShowsBodies) -> Result<Wanted, ApiError> {
        let pool = state.pools.named(&given.pool.unwrap_or_default())?.clone();
        let namespace = Namespace::parse(&given.namespace);
        let namespace = namespace.map_err(|error| ApiError::bad_name(NameIn::Namespace, error))?;
        let name = QueueName::parse_for_consume(&given.queue);
        let name = name.map_err(|error| ApiError::bad_name(NameIn::Queue, error))?;
        let which = given.state.filter(|text| !text.is_empty());
        let which =
            which.map(|text| JobState::parse(&text).ok_or(ApiError::bad("invalid state"))).transpose()?;
        let numbers = [("tries", &given.tries), ("delay", &given.delay), ("ttl", &given.ttl)];
        let action = match (&*given.action, which) {
            ("respawn", None | Some(JobState::Dead)) => {
                let text = numbers.map(|(name, number)| {
                    number.as_ref().map_or_else(String::new, |number| format!("{name}={number}&"))
                });
                Action::Respawn(params::revival(Query(&text.concat()), &state.defaults)?)
            }
            ("delete", None | Some(JobState::Dead)) => Action::Delete,
            ("promote", None | Some(JobState::Delayed)) => Action::Promote,
            ("cancel", Some(state)) => Action::Cancel(state),
            ("respawn" | "delete" | "promote" | "cancel", _) => {
                return Err(ApiError::bad(
                    "invalid state: respawn and delete are for dead jobs, promote is for delayed ones, cancel needs a state",
                ));
            }
            _ => return Err(ApiError::bad("invalid action: respawn, delete, promote or cancel")),
        };
        if !matches!(action, Action::Respawn(_)) && numbers.iter().any(|(_, number)| number.is_some()) {
            return Err(ApiError::bad("tries, delay and ttl are for respawn"));
        }
        let filter = params::filter(given.contains, given.reason, shows.0)?;
        Ok(Wanted { pool, queue: Queue { namespace, name }, action, filter })
    }
}

/// Starts an action.
pub async fn begin(state: &AppState, by: &Author, wanted: Wanted) -> Result<bulk::Progress, NotBegun> {
    let Wanted { pool, queue, action, filter } = wanted;
    let sample = pool.sampler.latest();
    let is_it = |row: &&QueueRow| row.namespace == queue.namespace && row.name.as_ref() == Some(&queue.name);
    let row = sample.rows.iter().find(is_it);
    let known = match action.state() {
        JobState::Delayed => row.and_then(|row| row.delayed),
        JobState::Running => row.and_then(|row| row.running),
        JobState::Ready | JobState::Dead => None,
    };
    let order = Order { pool: pool.name.clone(), queue, action, filter, by: by.name().to_owned() };
    let progress = state.operations.bulk.begin(pool.engine.clone(), order, known).await?;
    by.ordered("a bulk action was begun", &progress);
    Ok(progress)
}

/// Stops an action after its current step.
pub fn stop(state: &AppState, by: &Author, id: &str) -> Option<bulk::Progress> {
    let was_running = state.operations.bulk.get(id)?.state == BulkState::Running;
    let progress = state.operations.bulk.stop(id, by.name())?;
    if was_running {
        by.ordered("a bulk action was stopped", &progress);
    }
    Some(progress)
}

/// Reply of `GET /bulk`. Dashboard pages show it too.
#[derive(Debug, Serialize)]
pub struct BulksReply {
    pub server: String,
    pub actions: Vec<BulkReply>,
}

#[derive(Debug, Serialize)]
pub struct BulkReply {
    pub id: String,
    pub pool: String,
    pub namespace: String,
    pub queue: String,
    pub action: String,
    pub state: String,
    pub contains: Option<String>,
    pub reason: Option<String>,
    pub by: String,
    pub total: Option<u64>,
    pub looked_at: u64,
    pub done: u64,
    pub out_of_reach: u64,
    pub status: String,
    pub why: Option<String>,
    pub started: Instant,
    pub ended: Option<Instant>,
}

fn shown(progress: bulk::Progress, ShowsBodies(shows): ShowsBodies) -> BulkReply {
    let Order { pool, queue, action, filter, by } = progress.order;
    let (status, why) = match progress.state {
        BulkState::Running => ("running", None),
        BulkState::Done => ("done", None),
        BulkState::Stopped(by) => ("stopped", Some(by)),
        BulkState::Failed(why) => ("failed", Some(why)),
    };
    BulkReply {
        id: progress.id,
        pool: pool.to_string(),
        namespace: queue.namespace.to_string(),
        queue: queue.name.to_string(),
        action: action.as_str().to_owned(),
        state: action.state().as_str().to_owned(),
        contains: filter.contains.filter(|_| shows),
        reason: filter.reason,
        by,
        total: progress.total,
        looked_at: progress.looked_at,
        done: progress.done,
        out_of_reach: progress.out_of_reach,
        status: status.to_owned(),
        why,
        started: Instant(progress.started),
        ended: progress.ended.map(Instant),
    }
}

impl From<NotBegun> for ApiError {
    fn from(why: NotBegun) -> ApiError {
        match why {
            NotBegun::Busy(id) => ApiError::said(
                StatusCode::CONFLICT,
                &json!({ "error": "a bulk action runs on this queue", "id": id }),
            ),
            NotBegun::TooMany => ApiError::Refused(StatusCode::CONFLICT, "too many bulk actions run"),
            NotBegun::Store(error) => error.into(),
        }
    }
}

/// `POST /bulk`
pub async fn post(State(state): App, by: Author, shows: ShowsBodies, request: Request) -> HandlerResult {
    let body = read_body(request.into_body(), MAX_ORDER, "body too large", None).await?;
    let given: GivenOrder = serde_json::from_slice(&body).map_err(|error| {
        let text = format!("the body should be JSON with namespace, queue and action: {error}");
        ApiError::detailed(StatusCode::BAD_REQUEST, text)
    })?;
    let progress = begin(&state, &by, Wanted::of(&state, given, shows)?).await?;
    Ok(reply::json(StatusCode::ACCEPTED, &json!({ "id": progress.id, "total": progress.total })))
}

/// `GET /bulk`
pub async fn list(State(state): App, shows: ShowsBodies) -> HandlerResult {
    Ok(reply::json(StatusCode::OK, &actions(&state, shows)))
}

/// Returns the reply of [`list`].
pub fn actions(state: &AppState, shows: ShowsBodies) -> BulksReply {
    let actions = state.operations.bulk.list().into_iter().map(|progress| shown(progress, shows)).collect();
    BulksReply { server: state.server.name.clone(), actions }
}

/// `GET /bulk/:id`
pub async fn get(State(state): App, Path(id): Path<String>, shows: ShowsBodies) -> HandlerResult {
    let progress = state.operations.bulk.get(&id).ok_or(NOT_FOUND)?;
    Ok(reply::json(StatusCode::OK, &shown(progress, shows)))
}

/// `DELETE /bulk/:id`
pub async fn delete(
    State(state): App,
    Path(id): Path<String>,
    by: Author,
    shows: ShowsBodies,
) -> HandlerResult {
    let progress = stop(&state, &by, &id).ok_or(NOT_FOUND)?;
    Ok(reply::json(StatusCode::OK, &shown(progress, shows)))
}
