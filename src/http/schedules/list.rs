//! The schedules of a namespace, by name.

use axum::extract::{RawQuery, State};
use axum::http::StatusCode;
use serde_json::{Value, json};

use super::show::{self, Past, Shown};
use crate::engine::{Cursor, MAX_LISTED, ScheduleState};
use crate::http::answer::error::{ApiError, HandlerResult};
use crate::http::answer::reply;
use crate::http::request::extract::AuthorizedNamespace;
use crate::http::request::params::{self, Query};
use crate::http::state::{App, MAX_ANSWER};
use crate::name::{QueueName, ScheduleName};
use crate::schedule::MAX_BODY;

/// How many schedules one request looks at, when most are left out.
const MOST_LOOKED_AT: usize = 1000;

/// `GET /api/:namespace/_schedules?limit&cursor&prefix&queue&state&data`
pub async fn list(State(state): App, auth: AuthorizedNamespace, RawQuery(query): RawQuery) -> HandlerResult {
    let query = Query(query.as_deref().unwrap_or_default());
    let (limit, cursor) = params::page(query, MAX_LISTED)?;
    let bodies = params::flag(query, "data", false, "invalid data")?;
    let prefix = query.get("prefix").unwrap_or_default();
    let queue = match query.get("queue") {
        Some(name) => Some(QueueName::parse(&name).map_err(|_| ApiError::bad("invalid queue"))?),
        None => None,
    };
    let wanted = match query.get("state") {
        Some(name) => Some(shown_state(&name).ok_or(ApiError::bad("invalid state"))?),
        None => None,
    };
    let sealed_for = format!("{}/{}/_schedules/{prefix}", auth.pool.name, auth.namespace);
    let mut after = match state.cursors.open(&sealed_for, cursor).await? {
        Some(Cursor(name)) => Some(ScheduleName::parse(&name).ok_or(ApiError::BAD_CURSOR)?),
        None => None,
    };
    let most = if bodies { (limit * MAX_BODY * 2).min(MAX_ANSWER) } else { 0 };
    let room = state.body_room.for_answer(&auth.namespace, most).await?;
    let scheduler = &auth.pool.scheduler;
    let shown = Shown { body: bodies, next: 1, past: Past::Last };
    let (mut found, mut looked_at): (Vec<Value>, usize) = (Vec::new(), 0);
    loop {
        let page = scheduler.page(&auth.namespace, &prefix, after, limit - found.len(), bodies).await?;
        looked_at += page.schedules.len();
        for of in page.schedules {
            if queue.as_ref().is_some_and(|queue| of.queue() != queue) {
                continue;
            }
            let one = show::found(scheduler, &of, page.now, shown);
            if wanted.is_none_or(|wanted| one["state"] == wanted.as_str()) {
                found.push(one.into());
            }
        }
        after = page.next;
        if after.is_none() || found.len() == limit || looked_at >= MOST_LOOKED_AT {
            break;
        }
    }
    let cursor = after.map(|name| Cursor(name.as_str().to_owned()));
    let cursor = state.cursors.seal(&sealed_for, cursor).await?;
    let page = json!({ "schedules": found, "cursor": cursor });
    Ok(reply::json_in(room, StatusCode::OK, &page))
}

/// A state that answers show.
fn shown_state(name: &str) -> Option<ScheduleState> {
    ScheduleState::parse(name).filter(|state| *state != ScheduleState::Moved)
}
