//! The list of a namespace's schedules, by name.

use axum::extract::{RawQuery, State};
use axum::http::StatusCode;
use serde_json::{Value, json};

use super::query;
use super::show::{self, Past, Shown};
use crate::engine::Cursor;
use crate::http::answer::error::{ApiError, HandlerResult};
use crate::http::answer::reply;
use crate::http::request::extract::{AuthorizedNamespace, ShowsBodies};
use crate::http::request::params::Query;
use crate::http::state::{App, MAX_ANSWER};
use crate::name::ScheduleName;
use crate::schedule::MAX_SETTING;

/// Maximum schedules examined by one request whose filter excludes most.
const MOST_LOOKED_AT: usize = 1000;
/// Bytes that a schedule takes in a reply besides its body: attributes and the last occurrence.
const BESIDE: usize = 16 << 10;

/// `GET /api/:namespace/_schedules?limit&cursor&prefix&queue&state&data`
pub async fn list(
    State(state): App,
    auth: AuthorizedNamespace,
    ShowsBodies(shows): ShowsBodies,
    RawQuery(query): RawQuery,
) -> HandlerResult {
    let query = Query(query.as_deref().unwrap_or_default());
    let (limit, cursor) = query::page(query)?;
    let bodies = query::flag(query, "data")? && shows;
    let prefix = query.get("prefix").unwrap_or_default();
    let (queue, wanted) = (query::queue(query)?, query::state(query)?);
    let sealed_for = format!("{}/{}/_schedules/{prefix}", auth.pool.name, auth.namespace);
    let wrong_cursor = |error| match error {
        ApiError::Refused(StatusCode::BAD_REQUEST, _) => query::wrong_cursor(query),
        error => error,
    };
    let mut after = match state.cursors.open(&sealed_for, cursor).await.map_err(wrong_cursor)? {
        Some(Cursor(name)) => Some(ScheduleName::parse(&name).ok_or_else(|| query::wrong_cursor(query))?),
        None => None,
    };
    let most = if bodies { (limit * MAX_SETTING).min(MAX_ANSWER) } else { 0 };
    let room = state.bounds.body_room.for_answer(&auth.namespace, most).await?;
    let scheduler = &auth.pool.scheduler;
    let shown = Shown { body: bodies, inside: shows, next: 1, past: Past::Last };
    let (mut found, mut looked_at, mut bytes): (Vec<Value>, usize, usize) = (Vec::new(), 0, 0);
    'pages: loop {
        let page = scheduler.page(&auth.namespace, &prefix, after, limit - found.len(), bodies).await?;
        looked_at += page.schedules.len();
        for of in page.schedules {
            if queue.as_ref().is_some_and(|queue| of.queue() != queue) {
                continue;
            }
            let one = show::found(scheduler, &of, page.now, shown);
            if wanted.is_none_or(|wanted| one["state"] == wanted.as_str()) {
                bytes += BESIDE + one.get("text").or(one.get("data")).map_or(0, length);
                found.push(one.into());
            }
            // The first schedule always fits.
            if bodies && bytes + MAX_SETTING > MAX_ANSWER {
                after = Some(of.name().clone());
                break 'pages;
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

/// Returns the length of a body as JSON.
fn length(body: &Value) -> usize {
    let escaped = |byte: u8| if byte < 0x20 { 6 } else { 1 + usize::from(matches!(byte, b'"' | b'\\')) };
    body.as_str().map_or(0, |text| text.bytes().map(escaped).sum())
}
