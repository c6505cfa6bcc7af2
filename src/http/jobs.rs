//! The public API: each handler extracts, makes one call, and answers.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::extract::{RawQuery, Request, State as Shared};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use bytes::Bytes;
use serde::Serialize;
use serde_json::value::RawValue;

use super::body::read_body;
use super::connection::Peer;
use super::error::ApiError;
use super::extract::{Anyone, Caller, ConsumeCaller};
use super::params::{self, Life, Query};
use super::reply::{self, JobReply};
use super::{Pool, State};
use crate::admin::limits::{Admission, Pass};
use crate::admin::{Direction, TokenKey};
use crate::dispatch::{ConsumeError, Delivery};
use crate::engine::MAX_PUBLISH;
use crate::job::{Attributes, JobRef, NewJob};
use crate::name::Queue;

/// The largest job, in bytes.
pub const MAX_JOB: usize = 1 << 20;
/// The largest bulk: as many of the largest jobs as it may carry, and room for the JSON around them.
const MAX_BULK: usize = MAX_PUBLISH * MAX_JOB + (1 << 20);

type Answer = Result<Response, ApiError>;

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
pub async fn publish(Shared(state): Shared<Arc<State>>, caller: Caller, request: Request) -> Answer {
    let counted = admitted(&state, &caller.key, Direction::Write).await?;
    let (new, id) = read_job(&state, &caller.pool, caller.queue, request).await?;
    caller.pool.engine.publish(vec![new]).await?;
    counted.keep();
    Ok(published(id))
}

/// `PUT /api/:namespace/:queue/bulk`
pub async fn publish_bulk(Shared(state): Shared<Arc<State>>, caller: Caller, request: Request) -> Answer {
    let counted = admitted(&state, &caller.key, Direction::Write).await?;
    let life = params::life(query(&request), &state.defaults)?;
    let attributes = attributes(request.headers())?;
    // A bulk may be large. When too many are, they wait for room before they are read. Nobody closes the
    // semaphore, and no bulk needs more than there is.
    let size = hyper::body::Body::size_hint(request.body()).upper().map_or(MAX_BULK, |size| size as usize);
    let room = size.min(MAX_BULK).div_ceil(1024) as u32;
    let _room = state.bulk_room.acquire_many(room).await.map_err(|_| crate::error::Error::Closed)?;
    let body = read_body(request.into_body(), MAX_BULK, "body too large").await?;
    let new: Vec<NewJob> = split_bulk(&body)?
        .into_iter()
        .map(|text| new_job(&caller.pool, caller.queue.clone(), text, life, attributes.clone()))
        .collect();
    let job_ids = new.iter().map(|job| job.id.to_string()).collect();
    caller.pool.engine.publish(new).await?;
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
pub async fn republish(Shared(state): Shared<Arc<State>>, caller: Caller, request: Request) -> Answer {
    let queue = caller.queue.clone();
    let (new, id) = read_job(&state, &caller.pool, caller.queue, request).await?;
    match caller.job_id {
        Some(old) => caller.pool.engine.republish(JobRef { queue, id: old }, new).await?,
        None => caller.pool.engine.publish(vec![new]).await?,
    }
    Ok(published(id))
}

/// `GET /api/:namespace/:queue[,:queue]*`
///
/// Takes the request apart, so that a parked poll keeps nothing of it that it does not need.
pub async fn consume(
    Shared(state): Shared<Arc<State>>,
    caller: ConsumeCaller,
    Extension(peer): Extension<Peer>,
    RawQuery(query): RawQuery,
) -> Answer {
    let counted = admitted(&state, &caller.key, Direction::Read).await?;
    let query = Query(query.as_deref().unwrap_or_default());
    let (want, timeout) = params::want(query, &state.defaults)?;
    let consume = caller.pool.dispatcher.consume(caller.queues, want, timeout);
    let delivery = if timeout.is_zero() { Some(consume.await?) } else { unless_gone(consume, peer).await? };
    match delivery {
        Some(delivery) if !delivery.jobs().is_empty() => {
            counted.keep();
            Ok(handed_out(delivery, want.count))
        }
        _ => Ok(reply::message(StatusCode::NOT_FOUND, "no job available")),
    }
}

/// What a parked consumer gets; `None` when it has left, and no answer will reach it. If there was a delivery
/// all the same, its jobs go back as it is dropped here. Boxed: a parked poll then holds this and no room for
/// anything else.
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
    // The jobs are the consumer's once hyper has asked for the body. If the connection ends before, the body
    // is dropped, and the delivery with it.
    answer.map(|body| super::delivered::until_sent(body, delivery))
}

/// `DELETE /api/:namespace/:queue/job/:job_id`
pub async fn ack(caller: Caller) -> Answer {
    // What cannot be an id was never a job: acking it is as fine as acking any unknown one.
    if let Some(id) = caller.job_id {
        caller.pool.engine.ack(JobRef { queue: caller.queue, id }).await?;
    }
    Ok(reply::no_content())
}

/// `GET /api/:namespace/:queue/job/:job_id`
pub async fn peek_job(caller: Caller) -> Answer {
    let found = match caller.job_id {
        Some(id) => caller.pool.engine.peek_job(&JobRef { queue: caller.queue, id }).await?,
        None => None,
    };
    Ok(match found {
        Some(job) => reply::json(StatusCode::OK, &JobReply::peeked(&job)),
        None => reply::error(StatusCode::NOT_FOUND, "job not found"),
    })
}

/// `GET /api/:namespace/:queue/peek`
pub async fn peek(caller: Caller) -> Answer {
    Ok(match caller.pool.engine.peek(&caller.queue).await? {
        Some(job) => reply::json(StatusCode::OK, &JobReply::peeked(&job)),
        None => reply::error(StatusCode::NOT_FOUND, "the queue is empty"),
    })
}

/// `GET /api/:namespace/:queue/size`
pub async fn size(Anyone { pool, queue }: Anyone) -> Answer {
    Ok(size_of(&queue, pool.engine.size(&queue).await?))
}

/// `GET /api/:namespace/:queue/deadletter/size`
pub async fn dead_letter_size(Anyone { pool, queue }: Anyone) -> Answer {
    Ok(size_of(&queue, pool.engine.dead_letter(&queue).await?.size))
}

/// `DELETE /api/:namespace/:queue`
pub async fn destroy(caller: Caller) -> Answer {
    caller.pool.engine.destroy(&caller.queue).await?;
    Ok(reply::no_content())
}

/// `GET /api/:namespace/:queue/deadletter`
pub async fn dead_letter(caller: Caller) -> Answer {
    let dead = caller.pool.engine.dead_letter(&caller.queue).await?;
    let answer = DeadLetterReply {
        deadletter_head: dead.head.map(|id| id.to_string()).unwrap_or_default(),
        deadletter_size: dead.size,
        namespace: caller.queue.namespace.as_str(),
        queue: caller.queue.name.as_str(),
    };
    Ok(reply::json(StatusCode::OK, &answer))
}

/// `PUT /api/:namespace/:queue/deadletter`
pub async fn respawn(Shared(state): Shared<Arc<State>>, caller: Caller, RawQuery(query): RawQuery) -> Answer {
    let query = Query(query.as_deref().unwrap_or_default());
    let limit = params::limit(query)?;
    let ttl = params::respawn_ttl(query, &state.defaults)?;
    let count = caller.pool.engine.respawn(&caller.queue, limit, ttl).await?;
    Ok(reply::json(StatusCode::OK, &Respawned { count, msg: "respawned" }))
}

/// `DELETE /api/:namespace/:queue/deadletter`
pub async fn delete_dead(caller: Caller, RawQuery(query): RawQuery) -> Answer {
    let limit = params::limit(Query(query.as_deref().unwrap_or_default()))?;
    caller.pool.engine.delete_dead(&caller.queue, limit).await?;
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
async fn admitted(state: &State, key: &TokenKey, direction: Direction) -> Result<Counted, ApiError> {
    let admission = state.throttle.admit(key, direction).await.map_err(ApiError::reported)?;
    if let Admission::Admitted(pass) = admission {
        return Ok(Counted(Some(pass)));
    }
    let action = match direction {
        Direction::Read => "consume",
        Direction::Write => "produce",
    };
    let token = key.token.reveal();
    state.metrics.limited(&key.scope, token, action);
    Err(ApiError::Limited(format!("token({token}) {action} reach the limit rate, please retry later")))
}

/// A request that counts against a limit. It is given back when it did not end in 200 or 201, or its caller
/// left.
struct Counted(Option<Pass>);

impl Counted {
    /// The request did what it was counted for.
    fn keep(mut self) {
        self.0 = None;
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let Some(pass) = self.0.take().filter(Pass::counts) else { return };
        tokio::spawn(async move {
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
    state: &State,
    pool: &Pool,
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

fn new_job(pool: &Pool, queue: Queue, body: Bytes, life: Life, attributes: Option<Attributes>) -> NewJob {
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

/// The most attributes of a job, and how much of a name and a value is kept, in bytes.
const MAX_ATTRIBUTES: usize = 16;
const MAX_ATTRIBUTE_NAME: usize = 32;
const MAX_ATTRIBUTE_VALUE: usize = 128;

/// The `Job-Attr-*` headers, when the caller asks for versioned jobs.
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
