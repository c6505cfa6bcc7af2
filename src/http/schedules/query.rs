//! The parameters and headers of schedules' requests. Each mistake is named by its parameter, quotes what was given and says
//! what would do.

use axum::http::StatusCode;

use crate::clock::Millis;
use crate::engine::{Cursor, MAX_LISTED, ScheduleState};
use crate::http::answer::error::ApiError;
use crate::http::request::params::{self, Query};
use crate::name::QueueName;
use crate::schedule::{Refusal, quoted};
use crate::time;

fn wrong(field: &str, given: &str, instead: &str) -> Refusal {
    Refusal::of(field, format!("{field} cannot be {}: write {instead}", quoted(given)))
}

/// What is said of a bad request elsewhere, as a parameter's or a header's.
pub fn named(field: &'static str) -> impl Fn(ApiError) -> ApiError {
    move |error| match error {
        ApiError::Refused(StatusCode::BAD_REQUEST, said) => Refusal::of(field, said).into(),
        error => error,
    }
}

/// `1` or `0`, which it is by default.
pub fn flag(query: Query<'_>, field: &'static str) -> Result<bool, Refusal> {
    match query.get(field).as_deref() {
        None | Some("0") => Ok(false),
        Some("1") => Ok(true),
        Some(given) => Err(wrong(field, given, "0 or 1")),
    }
}

/// `limit` and `cursor`.
pub fn page(query: Query<'_>) -> Result<(usize, Option<Cursor>), ApiError> {
    if let Some(given) = query.get("limit")
        && !time::digits(&given).is_some_and(|limit| (1..=MAX_LISTED).contains(&limit))
    {
        return Err(wrong("limit", &given, &format!("1 to {MAX_LISTED}")).into());
    }
    params::page(query, MAX_LISTED).map_err(|_| wrong_cursor(query))
}

/// What is no cursor of this list.
pub fn wrong_cursor(query: Query<'_>) -> ApiError {
    let given = query.get("cursor").unwrap_or_default();
    wrong("cursor", &given, "the one of the page before, or leave it out").into()
}

pub fn queue(query: Query<'_>) -> Result<Option<QueueName>, Refusal> {
    let Some(given) = query.get("queue") else { return Ok(None) };
    let queue = QueueName::parse(&given);
    queue.map(Some).map_err(|_| wrong("queue", &given, "1 to 255 of letters, digits, - and _, not _ first"))
}

/// A state that answers show.
pub fn state(query: Query<'_>) -> Result<Option<ScheduleState>, Refusal> {
    let Some(given) = query.get("state") else { return Ok(None) };
    let state = ScheduleState::parse(&given).filter(|state| *state != ScheduleState::Moved);
    state.map(Some).ok_or_else(|| wrong("state", &given, "one of on, paused, ended, broken"))
}

/// A time that is not 0, in seconds.
pub fn duration(query: Query<'_>, field: &'static str) -> Result<Option<Millis>, Refusal> {
    let Some(given) = query.get(field) else { return Ok(None) };
    let time = time::duration(&given).map(|time| time.as_millis() as Millis).filter(|time| *time > 0);
    time.map(Some).ok_or_else(|| wrong(field, &given, "seconds above 0, with three decimals at most"))
}
