//! The handlers of the public API. Each one extracts, makes one call, and replies.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Extension;
use axum::extract::{RawQuery, Request, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use bytes::Bytes;
use serde::de::{IgnoredAny, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;

use super::body::read_body;
use super::connection::Peer;
use super::delivered;
use super::error::ApiError;
use super::extract::{Anonymous, Authorized, AuthorizedConsume, BAD_TOKEN};
use super::params::{self, Life, Query};
use super::parked_tokens::ParkedToken;
use super::reply::{self, JobReply};
use super::room::RequestRoom;
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
/// The most bytes of jobs that an answer hands out, unless its first job is larger. The others go back.
const MAX_ANSWER: usize = 8 << 20;
/// An answer with more bytes of jobs than this is made while it is sent, and takes room.
const LARGE_ANSWER: usize = 64 << 10;
/// A consumer that got its jobs sooner is not looked at before it is answered: hardly anybody leaves so soon, and a
/// look is a system call.
const LOOK_AFTER: Duration = Duration::from_millis(5);

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
    let mut room = state.body_room.for_request();
    let (new, id) = read_job(&state, &auth.pool, auth.queue, request, &mut room).await?;
    auth.pool.engine.publish(vec![new]).await?;
    counted.keep();
    Ok(published(id))
}

/// `PUT /api/:namespace/:queue/bulk`
pub async fn publish_bulk(State(state): App, auth: Authorized, request: Request) -> HandlerResult {
    let counted = admitted(&state, &auth.key, Direction::Write).await?;
    let life = params::life(query(&request), &state.defaults)?;
    let attributes = attributes(request.headers())?;
    let mut room = state.body_room.for_request();
    let body = read_body(request.into_body(), MAX_BULK, "body too large", Some(&mut room)).await?;
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
    let jobs: Option<Elements<'_>> = serde_json::from_slice(body)
        .map_err(|_| ApiError::bad("request body should be an array of objects"))?;
    let Elements { first: jobs, more } = jobs.unwrap_or_default();
    if jobs.is_empty() {
        return Err(ApiError::bad("no jobs"));
    }
    if more {
        return Err(ApiError::bad("too many jobs"));
    }
    if jobs.iter().any(|job| job.get().len() > MAX_JOB) {
        return Err(ApiError::too_large("job too large"));
    }
    Ok(jobs.iter().map(|job| body.slice_ref(job.get().as_bytes())).collect())
}

/// The elements of a JSON array: the first [`MAX_PUBLISH`], and whether there are more. An array may have millions,
/// which would take more memory than its text.
#[derive(Debug, Default)]
struct Elements<'a> {
    first: Vec<&'a RawValue>,
    more: bool,
}

impl<'de> Deserialize<'de> for Elements<'de> {
    fn deserialize<D: Deserializer<'de>>(array: D) -> Result<Elements<'de>, D::Error> {
        struct Collect;
        impl<'de> Visitor<'de> for Collect {
            type Value = Elements<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an array")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut array: A) -> Result<Elements<'de>, A::Error> {
                let mut elements = Elements::default();
                while elements.first.len() < MAX_PUBLISH {
                    match array.next_element()? {
                        Some(element) => elements.first.push(element),
                        None => return Ok(elements),
                    }
                }
                while array.next_element::<IgnoredAny>()?.is_some() {
                    elements.more = true;
                }
                Ok(elements)
            }
        }
        array.deserialize_seq(Collect)
    }
}

/// `PUT /api/:namespace/:queue/job/:job_id`: acks the job and publishes the body as a new one, in one step.
pub async fn republish(State(state): App, auth: Authorized, request: Request) -> HandlerResult {
    let queue = auth.queue.clone();
    let mut room = state.body_room.for_request();
    let (new, id) = read_job(&state, &auth.pool, auth.queue, request, &mut room).await?;
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
    let token = (patient && !state.skip_verification).then(|| state.parked_tokens.enter(&auth.key));
    let consume = Box::pin(auth.pool.dispatcher.consume(request));
    match unless_gone(consume, peer, token).await? {
        Some(delivery) if !delivery.jobs().is_empty() => {
            let response = handed_out(&state, delivery, count).await?;
            counted.keep();
            Ok(response)
        }
        _ => Ok(reply::message(StatusCode::NOT_FOUND, "no job available")),
    }
}

/// What a consumer gets; `None` if it has left, so that no response can reach it. A delivery that came all the same
/// is dropped here, which gives its jobs back. 401 when its token is revoked while it waits. Boxed, so that a
/// consumer that waits holds this future only, and no room for the handler's later steps.
fn unless_gone(
    mut consume: Pin<Box<impl Future<Output = Result<Delivery, ConsumeError>> + Send + 'static>>,
    peer: Peer,
    token: Option<Arc<ParkedToken>>,
) -> Pin<Box<dyn Future<Output = Result<Option<Delivery>, ApiError>> + Send>> {
    Box::pin(async move {
        let began = Instant::now();
        let revoked = async {
            match &token {
                Some(token) => token.revoked().await,
                None => std::future::pending().await,
            }
        };
        let delivery = tokio::select! {
            biased;
            delivery = &mut consume => delivery?,
            () = peer.gone() => return Ok(None),
            () = revoked => return Err(BAD_TOKEN),
        };
        let look = delivery.waited() || began.elapsed() >= LOOK_AFTER;
        Ok(if look && peer.is_gone() { None } else { Some(delivery) })
    })
}

/// The answer to a consume, with as many of the jobs as it may have. 503 if there is no room for it: then all of
/// them go back.
async fn handed_out(state: &AppState, mut delivery: Delivery, count: u16) -> HandlerResult {
    let mut bytes = 0;
    let fits = delivery.jobs().iter().take_while(|job| {
        bytes += job.body.len();
        bytes <= MAX_ANSWER
    });
    let fits = fits.count().max(1);
    delivery.keep(fits);
    let bytes: usize = delivery.jobs().iter().map(|job| job.body.len()).sum();
    if bytes > LARGE_ANSWER {
        // Boxed, so that small answers do not keep memory for this.
        let room = Box::pin(state.body_room.for_answer(bytes)).await?;
        let body = delivered::piece_by_piece(delivery, count > 1, room);
        return Ok(reply::json_stream(StatusCode::OK, body));
    }
    let answer = match delivery.jobs() {
        [job] if count == 1 => reply::json(StatusCode::OK, &JobReply::consumed(job)),
        jobs => reply::json(StatusCode::OK, &jobs.iter().map(JobReply::consumed).collect::<Vec<_>>()),
    };
    Ok(answer.map(|body| delivered::until_sent(body, delivery)))
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
    room: &mut RequestRoom<'_>,
) -> Result<(NewJob, String), ApiError> {
    let life = params::life(query(&request), &state.defaults)?;
    let attributes = attributes(request.headers())?;
    let body = read_body(request.into_body(), MAX_JOB, "body too large", Some(room)).await?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_bulk_with_far_too_many_jobs_few_are_kept() {
        let array = |jobs: usize| format!("[{}]", vec!["1"; jobs].join(", "));
        let text = |jobs: usize| array(jobs).into_bytes();
        let elements: Elements<'_> = serde_json::from_str("[]").expect("JSON");
        assert!(elements.first.is_empty() && !elements.more, "{elements:?}");
        for (jobs, more) in [(1, false), (MAX_PUBLISH, false), (MAX_PUBLISH + 1, true), (1_000_000, true)] {
            let text = text(jobs);
            let elements: Elements<'_> = serde_json::from_slice(&text).expect("JSON");
            assert_eq!(
                (elements.first.len(), elements.more),
                (jobs.min(MAX_PUBLISH), more),
                "of {jobs} jobs, and whether there are more"
            );
            assert!(elements.first.capacity() <= 2 * MAX_PUBLISH, "memory for {}", elements.first.capacity());
        }
        // What is no JSON behind the last job that counts is no JSON.
        let broken = format!("{},", array(MAX_PUBLISH + 1).trim_end_matches(']'));
        assert!(serde_json::from_str::<Elements<'_>>(&broken).is_err(), "a broken array");
    }
}
