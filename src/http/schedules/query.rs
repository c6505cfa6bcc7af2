//! Parameters and headers of schedule requests. Each error names the parameter, quotes its value and says which
//! values are valid.

use axum::http::StatusCode;

use crate::clock::Millis;
use crate::engine::{Cursor, MAX_LISTED};
use crate::http::answer::error::ApiError;
use crate::http::request::params::{self, Query};
use crate::name::QueueName;
use crate::schedule::{Refusal, quoted};
use crate::scheduler::ScheduleState;
use crate::time;

fn wrong(field: &str, given: &str, instead: &str) -> Refusal {
    Refusal::of(field, format!("{field} cannot be {}: write {instead}", quoted(given)))
}

/// Turns a bad request from elsewhere into an error of `field`, a parameter or header.
pub fn named(field: &'static str) -> impl Fn(ApiError) -> ApiError {
    move |error| match error {
        ApiError::Refused(StatusCode::BAD_REQUEST, said) => Refusal::of(field, said).into(),
        error => error,
    }
}

/// Parses `1` or `0`; 0 by default.
pub fn flag(query: Query<'_>, field: &'static str) -> Result<bool, Refusal> {
    match query.get(field).as_deref() {
        None | Some("0") => Ok(false),
        Some("1") => Ok(true),
        Some(given) => Err(wrong(field, given, "0 or 1")),
    }
}

/// Parses `limit` and `cursor`.
pub fn page(query: Query<'_>) -> Result<(usize, Option<Cursor>), ApiError> {
    if let Some(given) = query.get("limit")
        && !time::digits(&given).is_some_and(|limit| (1..=MAX_LISTED).contains(&limit))
    {
        return Err(wrong("limit", &given, &format!("1 to {MAX_LISTED}")).into());
    }
    params::page(query, MAX_LISTED).map_err(|_| wrong_cursor(query))
}

/// 400 for a cursor that is not of this list.
pub fn wrong_cursor(query: Query<'_>) -> ApiError {
    let given = query.get("cursor").unwrap_or_default();
    wrong("cursor", &given, "the cursor of the previous page, or leave it out").into()
}

pub fn queue(query: Query<'_>) -> Result<Option<QueueName>, Refusal> {
    let Some(given) = query.get("queue") else { return Ok(None) };
    let queue = QueueName::parse(&given);
    queue.map(Some).map_err(|_| wrong("queue", &given, "1 to 255 of letters, digits, - and _, not _ first"))
}

/// Parses a state that replies can show.
pub fn state(query: Query<'_>) -> Result<Option<ScheduleState>, Refusal> {
    let Some(given) = query.get("state") else { return Ok(None) };
    let state = ScheduleState::parse(&given);
    state.map(Some).ok_or_else(|| wrong("state", &given, "one of on, paused, ended, broken"))
}

/// Parses a time in seconds that is not 0.
pub fn duration(query: Query<'_>, field: &'static str) -> Result<Option<Millis>, Refusal> {
    let Some(given) = query.get(field) else { return Ok(None) };
    let time = time::duration(&given).map(|time| time.as_millis() as Millis).filter(|time| *time > 0);
    time.map(Some).ok_or_else(|| wrong(field, &given, "seconds above 0, with three decimals at most"))
}
