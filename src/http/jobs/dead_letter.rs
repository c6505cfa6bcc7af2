//! The dead letter: showing, respawning and deleting its oldest jobs as in lmstfy, and respawning by id.

use axum::extract::{RawQuery, Request, State};
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};

use crate::engine::{self, Revived, SizeOf};
use crate::http::answer::error::{ApiError, HandlerResult};
use crate::http::answer::reply;
use crate::http::request::body::read_body;
use crate::http::request::extract::{Anonymous, Authorized};
use crate::http::request::params::{self, MAX_NAMES, Query, check_count};
use crate::http::state::App;
use crate::job::JobId;
use crate::time::Instant;

#[derive(Serialize)]
struct DeadLetterReply<'a> {
    deadletter_head: String,
    deadletter_size: u64,
    namespace: &'a str,
    queue: &'a str,
}

#[derive(Serialize)]
struct RespawnReply {
    count: u64,
    msg: &'static str,
}

#[derive(Serialize)]
struct RespawnedJob {
    msg: &'static str,
    due_at: Instant,
}

#[derive(Serialize)]
struct RespawnedJobs<'a> {
    respawned: usize,
    missing: Vec<&'a str>,
}

/// `GET /api/:namespace/:queue/deadletter/size`
pub async fn size(Anonymous { pool, queue }: Anonymous) -> HandlerResult {
    Ok(reply::size(&queue, pool.engine.size(&queue, SizeOf::Dead).await?.jobs))
}

/// `GET /api/:namespace/:queue/deadletter`
pub async fn show(auth: Authorized) -> HandlerResult {
    let dead = auth.pool.engine.size(&auth.queue, SizeOf::Dead).await?;
    let answer = DeadLetterReply {
        deadletter_head: dead.head.map(|id| id.to_string()).unwrap_or_default(),
        deadletter_size: dead.jobs,
        namespace: auth.queue.namespace.as_str(),
        queue: auth.queue.name.as_str(),
    };
    Ok(reply::json(StatusCode::OK, &answer))
}

/// `PUT /api/:namespace/:queue/deadletter`
pub async fn respawn(State(state): App, auth: Authorized, RawQuery(query): RawQuery) -> HandlerResult {
    let query = Query(query.as_deref().unwrap_or_default());
    let limit = params::limit(query)?;
    let ttl = params::respawn_ttl(query, &state.defaults)?;
    let count = engine::respawn::oldest(&*auth.pool.engine, &auth.queue, limit, ttl).await?;
    Ok(reply::json(StatusCode::OK, &RespawnReply { count, msg: "respawned" }))
}

/// `DELETE /api/:namespace/:queue/deadletter`
pub async fn delete(auth: Authorized, RawQuery(query): RawQuery) -> HandlerResult {
    let limit = params::limit(Query(query.as_deref().unwrap_or_default()))?;
    auth.pool.engine.delete_dead(&auth.queue, limit).await?;
    Ok(reply::no_content())
}

/// `POST /api/:namespace/:queue/job/:job_id/respawn`
pub async fn respawn_job(State(state): App, auth: Authorized, RawQuery(query): RawQuery) -> HandlerResult {
    let revival = params::revival(Query(query.as_deref().unwrap_or_default()), &state.defaults)?;
    let job = auth.job()?;
    match engine::respawn::jobs(&*auth.pool.engine, &job.queue, &[job.id], revival).await?.first() {
        Some(Revived::Done { due_at }) => {
            let reply = RespawnedJob { msg: "respawned", due_at: Instant(*due_at) };
            Ok(reply::json(StatusCode::OK, &reply))
        }
        Some(Revived::NotDead) => Err(ApiError::Refused(StatusCode::CONFLICT, "the job is not dead")),
        Some(Revived::OutOfReach) => Err(ApiError::Refused(
            StatusCode::CONFLICT,
            "the job is not dead, or not near an end of the dead letter",
        )),
        Some(Revived::NotFound) | None => Err(ApiError::NO_JOB),
    }
}

/// Body of [`respawn_jobs`].
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Jobs {
    jobs: Vec<String>,
}

/// `POST /api/:namespace/:queue/deadletter/respawn`
pub async fn respawn_jobs(State(state): App, auth: Authorized, request: Request) -> HandlerResult {
    let revival = params::revival(Query(request.uri().query().unwrap_or_default()), &state.defaults)?;
    let body = read_body(request.into_body(), MAX_NAMES, "body too large", None).await?;
    let Jobs { jobs } = serde_json::from_slice(&body)
        .map_err(|_| ApiError::bad("the body should be {\"jobs\":[..]}, each an id"))?;
    check_count(jobs.len())?;
    // Texts that are not ids name no job.
    let ids: Vec<JobId> = jobs.iter().filter_map(|job| JobId::parse(job)).collect();
    let revived = match &ids[..] {
        [] => Vec::new(),
        ids => engine::respawn::jobs(&*auth.pool.engine, &auth.queue, ids, revival).await?,
    };
    let mut revived = revived.into_iter();
    let missing: Vec<&str> = jobs
        .iter()
        .filter(|job| {
            let became = JobId::parse(job).and_then(|_| revived.next());
            !matches!(became, Some(Revived::Done { .. }))
        })
        .map(String::as_str)
        .collect();
    let respawned = jobs.len() - missing.len();
    Ok(reply::json(StatusCode::OK, &RespawnedJobs { respawned, missing }))
}
