//! The handlers of the public API. Each one extracts, makes one call, and replies.

use std::pin::Pin;
use std::time::Duration;

use axum::Extension;
use axum::extract::{RawQuery, Request, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use bytes::Bytes;
use serde::Serialize;
use serde_json::value::RawValue;

use super::body::read_body;
use super::connection::Peer;
use super::error::ApiError;
use super::extract::{Anonymous, Authorized, AuthorizedConsume};
use super::params::{self, Life, Query};
use super::reply::{self, JobReply};
use super::{App, AppState, HandlerResult, PoolState};
use crate::admin::limits::{Admission, Pass};
use crate::admin::{Direction, TokenKey};
use crate::dispatch::{ConsumeError, Delivery};
use crate::engine::MAX_PUBLISH;
use crate::job::{Attributes, JobRef, NewJob};
use crate::name::Queue;
use crate::process::tasks::Tasks;

/// The largest job, in bytes.
pub const MAX_JOB: usize = 1 << 20;
/// The largest bulk: as many of the largest jobs as it may carry, and room for the JSON around them.
const MAX_BULK: usize = MAX_PUBLISH * MAX_JOB + (1 << 20);

#[derive(Serialize)]
struct Published {
    job_id: String,
    msg: &'static str,
}

#[derive(Serialize)]
struct BulkPublished {
    job_ids: Vec<String>,
    msg: &'static str,
}

#[derive(Serialize)]
struct Size<'a> {
    namespace: &'a str,
    queue: &'a str,
    size: u64,
}

#[derive(Serialize)]
struct DeadLetterReply<'a> {
    deadletter_head: String,
    deadletter_size: u64,
    namespace: &'a str,
    queue: &'a str,
}

#[derive(Serialize)]
struct Respawned {
    count: u64,
    msg: &'static str,
}

/// `PUT /api/:namespace/:queue`
pub async fn publish(State(state): App, auth: Authorized, request: Request) -> HandlerResult {
    let counted = admitted(&state, &auth.key, Direction::Write).await?;
    let (new, id) = read_job(&state, &auth.pool, auth.queue, request).await?;
    auth.pool.engine.publish(vec![new]).await?;
    counted.keep();
    Ok(published(id))
}

/// `PUT /api/:namespace/:queue/bulk`
pub async fn publish_bulk(State(state): App, auth: Authorized, request: Request) -> HandlerResult {
    let counted = admitted(&state, &auth.key, Direction::Write).await?;
    let life = params::life(query(&request), &state.defaults)?;
    let attributes = attributes(request.headers())?;
    // Bulks may be large, so there is room for a bounded number of bytes of them. A bulk waits for its room
    // before its body is read. Nobody closes the semaphore, and no bulk needs more than there is.
    let size = hyper::body::Body::size_hint(request.body()).upper().map_or(MAX_BULK, |size| size as usize);
    let room = size.min(MAX_BULK).div_ceil(1024) as u32;
    let _room = state.bulk_room.acquire_many(room).await.map_err(|_| crate::error::Error::Closed)?;
    let body = read_body(request.into_body(), MAX_BULK, "body too large").await?;
    let new: Vec<NewJob> = split_bulk(&body)?
        .into_iter()
        .map(|text| new_job(&auth.pool, auth.queue.clone(), text, life, attributes.clone()))
        .collect();
    let job_ids = new.iter().map(|job| job.id.to_string()).collect();
    auth.pool.engine.publish(new).await?;
    counted.keep();
    Ok(reply::json(StatusCode::CREATED, &BulkPublished { job_ids, msg: "published" }))
}

/// The jobs of a bulk, each as its raw JSON text.
fn split_bulk(body: &Bytes) -> Result<Vec<Bytes>, ApiError> {
    let jobs: Option<Vec<&RawValue>> = serde_json::from_slice(body)
        .map_err(|_| ApiError::bad("request body should be an array of objects"))?;
    let jobs = jobs.unwrap_or_default();
    match jobs.len() {
        0 => return Err(ApiError::bad("no jobs")),
        1..=MAX_PUBLISH => {}
        _ => return Err(ApiError::bad("too many jobs")),
    }
    if jobs.iter().any(|job| job.get().len() > MAX_JOB) {
        return Err(ApiError::too_large("job too large"));
    }
    Ok(jobs.iter().map(|job| body.slice_ref(job.get().as_bytes())).collect())
}

/// `PUT /api/:namespace/:queue/job/:job_id`: acks the job and publishes the body as a new one, in one step.
pub async fn republish(State(state): App, auth: Authorized, request: Request) -> HandlerResult {
    let queue = auth.queue.clone();
    let (new, id) = read_job(&state, &auth.pool, auth.queue, request).await?;
    match auth.job_id {
        Some(old) => auth.pool.engine.republish(JobRef { queue, id: old }, new).await?,
        None => auth.pool.engine.publish(vec![new]).await?,
    }
    Ok(published(id))
}

/// `GET /api/:namespace/:queue[,:queue]*`
///
/// Extracts the parts of the request instead of the request, so that a waiting consumer keeps only what it needs.
pub async fn consume(
    State(state): App,
    auth: AuthorizedConsume,
    Extension(peer): Extension<Peer>,
    RawQuery(query): RawQuery,
) -> HandlerResult {
    let counted = admitted(&state, &auth.key, Direction::Read).await?;
    let query = Query(query.as_deref().unwrap_or_default());
    let request = params::consume(query, auth.queues, &state.defaults)?;
    let (count, patient) = (request.count, !request.timeout.is_zero());
    let consume = auth.pool.dispatcher.consume(request);
    let delivery = if patient { unless_gone(consume, peer).await? } else { Some(consume.await?) };
    match delivery {
        Some(delivery) if !delivery.jobs().is_empty() => {
            counted.keep();
            Ok(handed_out(delivery, count))
        }
        _ => Ok(reply::message(StatusCode::NOT_FOUND, "no job available")),
    }
}

/// What a waiting consumer gets; `None` if it has left, so that no response can reach it. A delivery that came all
/// the same is dropped here, which gives its jobs back. Boxed, so that a consumer that waits holds this future
/// only, and no room for the handler's later steps.
fn unless_gone(
    consume: impl Future<Output = Result<Delivery, ConsumeError>> + Send + 'static,
    peer: Peer,
) -> Pin<Box<dyn Future<Output = Result<Option<Delivery>, ConsumeError>> + Send>> {
    Box::pin(async move {
        let delivery = tokio::select! {
            biased;
            delivery = consume => delivery?,
            () = peer.gone() => return Ok(None),
        };
        Ok(if delivery.waited() && peer.is_gone() { None } else { Some(delivery) })
    })
}

fn handed_out(delivery: Delivery, count: u16) -> Response {
    let answer = match delivery.jobs() {
        [job] if count == 1 => reply::json(StatusCode::OK, &JobReply::consumed(job)),
        jobs => reply::json(StatusCode::OK, &jobs.iter().map(JobReply::consumed).collect::<Vec<_>>()),
    };
    answer.map(|body| super::delivered::until_sent(body, delivery))
}

/// `DELETE /api/:namespace/:queue/job/:job_id`
pub async fn ack(auth: Authorized) -> HandlerResult {
    // A text that cannot be an id names no job, and acking an unknown job succeeds.
    if let Some(id) = auth.job_id {
        auth.pool.engine.ack(JobRef { queue: auth.queue, id }).await?;
    }
    Ok(reply::no_content())
}

/// `GET /api/:namespace/:queue/job/:job_id`
pub async fn peek_job(auth: Authorized) -> HandlerResult {
    let found = match auth.job_id {
        Some(id) => auth.pool.engine.peek_job(&JobRef { queue: auth.queue, id }).await?,
        None => None,
    };
    Ok(match found {
        Some(job) => reply::json(StatusCode::OK, &JobReply::peeked(&job)),
        None => reply::error(StatusCode::NOT_FOUND, "job not found"),
    })
}

/// `GET /api/:namespace/:queue/peek`
pub async fn peek(auth: Authorized) -> HandlerResult {
    Ok(match auth.pool.engine.peek(&auth.queue).await? {
        Some(job) => reply::json(StatusCode::OK, &JobReply::peeked(&job)),
        None => reply::error(StatusCode::NOT_FOUND, "the queue is empty"),
    })
}

/// `GET /api/:namespace/:queue/size`
pub async fn size(Anonymous { pool, queue }: Anonymous) -> HandlerResult {
    Ok(size_of(&queue, pool.engine.size(&queue).await?))
}

/// `GET /api/:namespace/:queue/deadletter/size`
pub async fn dead_letter_size(Anonymous { pool, queue }: Anonymous) -> HandlerResult {
    Ok(size_of(&queue, pool.engine.dead_letter(&queue).await?.size))
}

/// `DELETE /api/:namespace/:queue`
pub async fn destroy(auth: Authorized) -> HandlerResult {
    auth.pool.engine.destroy(&auth.queue).await?;
    Ok(reply::no_content())
}

/// `GET /api/:namespace/:queue/deadletter`
pub async fn dead_letter(auth: Authorized) -> HandlerResult {
    let dead = auth.pool.engine.dead_letter(&auth.queue).await?;
    let answer = DeadLetterReply {
        deadletter_head: dead.head.map(|id| id.to_string()).unwrap_or_default(),
        deadletter_size: dead.size,
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
    let count = auth.pool.engine.respawn(&auth.queue, limit, ttl).await?;
    Ok(reply::json(StatusCode::OK, &Respawned { count, msg: "respawned" }))
}

/// `DELETE /api/:namespace/:queue/deadletter`
pub async fn delete_dead(auth: Authorized, RawQuery(query): RawQuery) -> HandlerResult {
    let limit = params::limit(Query(query.as_deref().unwrap_or_default()))?;
    auth.pool.engine.delete_dead(&auth.queue, limit).await?;
    Ok(reply::no_content())
}

fn published(job_id: String) -> Response {
    reply::json(StatusCode::CREATED, &Published { job_id, msg: "published" })
}

fn size_of(queue: &Queue, size: u64) -> Response {
    let (namespace, queue) = (queue.namespace.as_str(), queue.name.as_str());
    reply::json(StatusCode::OK, &Size { namespace, queue, size })
}

/// Counts the request against its token's limit.
async fn admitted(state: &AppState, key: &TokenKey, direction: Direction) -> Result<Counted, ApiError> {
    match state.throttle.admit(key, direction).await.map_err(ApiError::reported)? {
        Admission::Admitted(pass) if pass.counts() => {
            return Ok(Counted(Some((pass, state.tasks.clone()))));
        }
        Admission::Admitted(_) => return Ok(Counted(None)),
        Admission::OverLimit => {}
    }
    let action = match direction {
        Direction::Read => "consume",
        Direction::Write => "produce",
    };
    state.metrics.limited(&key.scope.pool, &key.scope.namespace, &key.token, action);
    let token = key.token.reveal();
    Err(ApiError::Limited(format!("token({token}) {action} reach the limit rate, please retry later")))
}

/// A request that may count against its token's limit. Dropped, it is taken out of the count again: it did not end
/// in 200 or 201, or its client left.
struct Counted(Option<(Pass, Tasks)>);

impl Counted {
    /// The request did what it was counted for.
    fn keep(mut self) {
        self.0 = None;
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let Some((pass, tasks)) = self.0.take() else { return };
        tasks.spawn(async move {
            if let Err(error) = pass.give_back().await {
                tracing::debug!(%error, "a request could not be given back to its token's limit");
            }
        });
    }
}

fn query(request: &Request) -> Query<'_> {
    Query(request.uri().query().unwrap_or_default())
}

/// Reads a publish: parameters first, then attributes, then the body.
async fn read_job(
    state: &AppState,
    pool: &PoolState,
    queue: Queue,
    request: Request,
) -> Result<(NewJob, String), ApiError> {
    let life = params::life(query(&request), &state.defaults)?;
    let attributes = attributes(request.headers())?;
    let body = read_body(request.into_body(), MAX_JOB, "body too large").await?;
    let new = new_job(pool, queue, body, life, attributes);
    let id = new.id.to_string();
    Ok((new, id))
}

fn new_job(
    pool: &PoolState,
    queue: Queue,
    body: Bytes,
    life: Life,
    attributes: Option<Attributes>,
) -> NewJob {
    NewJob {
        queue,
        id: pool.ids.make(pool.engine.now(), life.delay_seconds, attributes.is_some()),
        body,
        attributes: attributes.unwrap_or_default(),
        ttl: life.ttl,
        delay: Duration::from_secs(u64::from(life.delay_seconds)),
        tries: life.tries,
    }
}

/// The most attributes of a job; and how many bytes of an attribute's name and value are kept.
const MAX_ATTRIBUTES: usize = 16;
const MAX_ATTRIBUTE_NAME: usize = 32;
const MAX_ATTRIBUTE_VALUE: usize = 128;

/// The `Job-Attr-*` headers, when the client asks for versioned jobs.
fn attributes(headers: &HeaderMap) -> Result<Option<Attributes>, ApiError> {
    let versioned =
        headers.get("enable-job-version").is_some_and(|v| v.as_bytes().eq_ignore_ascii_case(b"yes"));
    if !versioned {
        return Ok(None);
    }
    let mut attributes = Attributes::new();
    for (name, value) in headers {
        let Some(name) = name.as_str().strip_prefix("job-attr-").filter(|name| !name.is_empty()) else {
            continue;
        };
        let value = String::from_utf8_lossy(value.as_bytes());
        if !value.is_empty() {
            attributes
                .entry(cut(name, MAX_ATTRIBUTE_NAME).to_owned())
                .or_insert_with(|| cut(&value, MAX_ATTRIBUTE_VALUE).to_owned());
        }
    }
    if attributes.len() > MAX_ATTRIBUTES {
        return Err(ApiError::bad("too many attributes, cannot exceed 16"));
    }
    Ok(Some(attributes))
}

/// At most `most` bytes of `text`, in whole characters.
fn cut(text: &str, most: usize) -> &str {
    &text[..text.floor_char_boundary(most)]
}
