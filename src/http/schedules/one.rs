//! One schedule: GET, PUT, DELETE, pause and resume.

use axum::extract::{RawQuery, Request, State};
use axum::http::{HeaderMap, StatusCode};
use serde::Serialize;
use serde_json::{Value, json};

use super::condition;
use super::query;
use super::show::{self, Shown};
use crate::admin::Direction;
use crate::http::answer::error::{ApiError, HandlerResult};
use crate::http::answer::reply;
use crate::http::jobs::admission::admitted;
use crate::http::request::body::read_body;
use crate::http::request::extract::{AuthorizedSchedule, ShowsBodies};
use crate::http::request::params::Query;
use crate::http::state::{App, Defaults};
use crate::schedule::{Given, JobDefaults, MAX_SETTING, Refusal};
use crate::scheduler::{Changed, NotChanged, Run};
use crate::time::Instant;

const TOO_LARGE: &str = "the setting is too large";

/// `GET /api/:namespace/_schedules/:name`
pub async fn get(auth: AuthorizedSchedule, ShowsBodies(inside): ShowsBodies) -> HandlerResult {
    let scheduler = &auth.pool.scheduler;
    let (found, now) = scheduler.find(&auth.id).await?;
    let found = found.ok_or(NotChanged::NotFound)?;
    let shown = show::found(scheduler, &found, now, Shown { inside, ..Shown::WHOLE });
    Ok(show::tagged(StatusCode::OK, found.revision(), &shown))
}

/// `PUT /api/:namespace/_schedules/:name?dry_run`
pub async fn put(State(state): App, auth: AuthorizedSchedule, request: Request) -> HandlerResult {
    let counted = admitted(&state, &auth.key, auth.record, Direction::Write).await?;
    let (head, body) = request.into_parts();
    let query = Query(head.uri.query().unwrap_or_default());
    let dry = query::flag(query, "dry_run")?;
    let mut condition = condition::of(&head.headers)?;
    let mut room = state.bounds.body_room.for_request(&auth.id.namespace);
    let body = read_body(body, MAX_SETTING, TOO_LARGE, Some(&mut room)).await?;
    let scheduler = &auth.pool.scheduler;
    let given = {
        // The JSON takes many times the memory of its text, so it is dropped before the call to the store.
        let json: Value = serde_json::from_slice(&body).map_err(|error| not_json(&error))?;
        Given::parse(&auth.id.name, &json, &scheduler.zones, &job_defaults(&state.defaults))?
    };
    condition.revision = given.revision;
    let run = if dry { Run::Dry } else { Run::Real };
    let (what, schedule, now) = scheduler.set(&auth.id, &given, &condition, run).await?;
    let mut shown = show::schedule(scheduler, &schedule, now, Shown::SET);
    shown.insert("result".to_owned(), json!(word(what)));
    let status = if what == Changed::Created { StatusCode::CREATED } else { StatusCode::OK };
    if dry {
        // Nothing was published.
        return Ok(show::tagged(status, schedule.version.revision, &shown));
    }
    counted.commit();
    Ok(show::tagged(status, schedule.version.revision, &shown))
}

/// Returns the word for a change.
fn word(what: Changed) -> &'static str {
    match what {
        Changed::Created => "created",
        Changed::Changed => "changed",
        Changed::Unchanged => "unchanged",
    }
}

/// 400 for a body that is not JSON.
pub fn not_json(error: &serde_json::Error) -> ApiError {
    let error = format!("the body should be a JSON object: {error}");
    Refusal { error, field: None, part: None }.into()
}

/// Returns the defaults of a schedule's jobs.
pub fn job_defaults(defaults: &Defaults) -> JobDefaults {
    let ttl = (defaults.ttl > 0).then(|| std::time::Duration::from_secs(defaults.ttl.into()));
    JobDefaults { tries: defaults.tries.try_into().unwrap_or(std::num::NonZeroU16::MIN), ttl }
}

/// `DELETE /api/:namespace/_schedules/:name`
pub async fn delete(auth: AuthorizedSchedule, headers: HeaderMap) -> HandlerResult {
    auth.pool.scheduler.delete(&auth.id, &condition::of(&headers)?).await?;
    Ok(reply::no_content())
}

/// `POST /api/:namespace/_schedules/:name/pause?for`
pub async fn pause(auth: AuthorizedSchedule, RawQuery(query): RawQuery) -> HandlerResult {
    #[derive(Serialize)]
    struct Paused {
        msg: &'static str,
        until: Option<Instant>,
    }
    let query = Query(query.as_deref().unwrap_or_default());
    let time = query::duration(query, "for")?;
    let until = auth.pool.scheduler.pause(&auth.id, time).await?;
    Ok(reply::json(StatusCode::OK, &Paused { msg: "paused", until: until.map(Instant) }))
}

/// `POST /api/:namespace/_schedules/:name/resume`
pub async fn resume(auth: AuthorizedSchedule) -> HandlerResult {
    auth.pool.scheduler.resume(&auth.id).await?;
    Ok(reply::message(StatusCode::OK, "resumed"))
}
