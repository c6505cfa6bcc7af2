//! Operations of a job's consumer: ack, touch, release, bury. A receipt proves that the delivery is still the
//! consumer's.

use axum::extract::{RawQuery, Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use serde::{Deserialize, Serialize};

use crate::engine::{Held, Release, Released, Tries};
use crate::http::answer::error::{ApiError, HandlerResult};
use crate::http::answer::reply;
use crate::http::request::body::read_body;
use crate::http::request::extract::Authorized;
use crate::http::request::params::{self, MAX_NAMES, Query, check_count};
use crate::http::state::App;
use crate::job::{JobId, Reason, Receipt};
use crate::time::Instant;

const NO_RECEIPT: ApiError = ApiError::bad("invalid receipt");

#[derive(Serialize)]
struct TouchedReply {
    msg: &'static str,
    receipt: Receipt,
    until: Instant,
}

#[derive(Serialize)]
struct ReleasedReply {
    msg: &'static str,
    remain_tries: u16,
    due_at: Instant,
}

#[derive(Serialize)]
struct AckedReply {
    acked: usize,
    stale: Vec<String>,
}

/// `DELETE /api/:namespace/:queue/job/:job_id`
pub async fn ack(auth: Authorized, query: Option<&str>) -> HandlerResult {
    let receipt = match query {
        Some(query) => params::receipt(Query(query))?,
        None => None,
    };
    // A text that cannot be an id names no job, and acking an unknown job succeeds.
    let Some(id) = auth.job_id else { return Ok(reply::no_content()) };
    match auth.pool.engine.ack(&auth.queue, &[(id, receipt)]).await?[..] {
        [] => Ok(reply::no_content()),
        _ => Err(ApiError::NOT_YOURS),
    }
}

/// Acks on the admin port, where it cancels a job.
pub async fn cancel(auth: Authorized, RawQuery(query): RawQuery) -> HandlerResult {
    ack(auth, query.as_deref()).await
}

/// Body of [`ack_many`].
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Acks {
    jobs: Vec<Ack>,
}

/// One job to ack.
#[derive(Deserialize)]
#[serde(untagged)]
enum Ack {
    Id(String),
    Held(HeldJob),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct HeldJob {
    id: String,
    receipt: Option<String>,
}

/// `POST /api/:namespace/:queue/ack`
pub async fn ack_many(auth: Authorized, request: Request) -> HandlerResult {
    let body = read_body(request.into_body(), MAX_NAMES, "body too large", None).await?;
    let Acks { jobs } = serde_json::from_slice(&body).map_err(|_| {
        ApiError::bad("the body should be {\"jobs\":[..]}, each an id or {\"id\",\"receipt\"}")
    })?;
    check_count(jobs.len())?;
    let mut named = Vec::with_capacity(jobs.len());
    for (n, job) in jobs.iter().enumerate() {
        let (id, receipt) = match job {
            Ack::Id(id) => (id, None),
            Ack::Held(HeldJob { id, receipt }) => (id, receipt.as_deref()),
        };
        let receipt = match receipt {
            Some(text) => Some(Receipt::parse(text).ok_or_else(|| NO_RECEIPT.at(n))?),
            None => None,
        };
        // As above: a text that is not an id names no job.
        named.extend(JobId::parse(id).map(|id| (id, receipt)));
    }
    let stale = match &named[..] {
        [] => Vec::new(),
        named => auth.pool.engine.ack(&auth.queue, named).await?,
    };
    let stale: Vec<String> = stale.iter().map(JobId::to_string).collect();
    Ok(reply::json(StatusCode::OK, &AckedReply { acked: jobs.len().saturating_sub(stale.len()), stale }))
}

/// `POST /api/:namespace/:queue/job/:job_id/touch`
pub async fn touch(State(state): App, auth: Authorized, RawQuery(query): RawQuery) -> HandlerResult {
    let query = Query(query.as_deref().unwrap_or_default());
    let receipt = params::receipt(query)?.ok_or(NO_RECEIPT)?;
    let ttr = params::duration(query, "ttr", state.defaults.ttr, "invalid ttr")?;
    if ttr.is_zero() {
        return Err(ApiError::bad("invalid ttr"));
    }
    let job = auth.job()?;
    let touched = held(auth.pool.engine.touch(&job, receipt, ttr).await?)?;
    let reply = TouchedReply { msg: "touched", receipt: touched.receipt, until: Instant(touched.until) };
    Ok(reply::json(StatusCode::OK, &reply))
}

/// `POST /api/:namespace/:queue/job/:job_id/release`
pub async fn release(auth: Authorized, request: Request) -> HandlerResult {
    let query = Query(request.uri().query().unwrap_or_default());
    let receipt = params::receipt(query)?.ok_or(NO_RECEIPT)?;
    let delay = params::duration(query, "delay", 0, "invalid delay")?;
    let spend = params::flag(query, "spend", true, "invalid spend")?;
    let reason = read_reason(request).await?;
    let job = auth.job()?;
    let tries = if spend { Tries::Spend } else { Tries::Restore };
    let release = Release { delay, tries, reason };
    Ok(match held(auth.pool.engine.release(&job, receipt, release).await?)? {
        Released::Back { tries_left, due_at } => {
            let reply = ReleasedReply { msg: "released", remain_tries: tries_left, due_at: Instant(due_at) };
            reply::json(StatusCode::OK, &reply)
        }
        Released::Dead => dead(),
    })
}

/// `POST /api/:namespace/:queue/job/:job_id/bury`
pub async fn bury(auth: Authorized, request: Request) -> HandlerResult {
    let query = Query(request.uri().query().unwrap_or_default());
    let receipt = params::receipt(query)?.ok_or(NO_RECEIPT)?;
    let reason = read_reason(request).await?;
    let job = auth.job()?;
    held(auth.pool.engine.release(&job, receipt, Release::bury(reason)).await?)?;
    Ok(dead())
}

fn dead() -> Response {
    reply::message(StatusCode::OK, "dead")
}

/// Returns the result, or the error that explains why nothing was done.
fn held<T>(outcome: Held<T>) -> Result<T, ApiError> {
    match outcome {
        Held::Done(done) => Ok(done),
        Held::NotYours => Err(ApiError::NOT_YOURS),
        Held::NotFound => Err(ApiError::NO_JOB),
    }
}

/// Reads the reason from the body, if there is one.
async fn read_reason(request: Request) -> Result<Option<Reason>, ApiError> {
    let body = read_body(request.into_body(), Reason::MOST, "reason too large", None).await?;
    let text = std::str::from_utf8(&body).map_err(|_| ApiError::bad("the reason should be UTF-8"))?;
    Ok(Reason::new(text))
}
