//! Publishing: lmstfy's routes (one job, a bulk, republish) and ours (`POST Q/jobs`, a batch). All take an
//! `Idempotency-Key`. Ours also accept a delay or a due time, and a job key.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderValue, StatusCode, request};
use axum::response::Response;
use bytes::Bytes;
use serde::Serialize;

use super::admission::admitted;
use crate::admin::Direction;
use crate::engine::{By, Detail, How, Once, Placed, Placing, Publication, Published};
use crate::http::answer::error::{ApiError, Details, HandlerResult};
use crate::http::answer::reply::{self, PUBLISHED};
use crate::http::answer::room::RequestRoom;
use crate::http::request::attributes;
use crate::http::request::batch::{self, MAX_BATCH, MAX_BULK};
use crate::http::request::body::read_body;
use crate::http::request::extract::Authorized;
use crate::http::request::params::{self, GivenJob, Life, Placement, Query};
use crate::http::state::idempotency::Repeatable;
use crate::http::state::{App, AppState, MAX_JOB, PoolState};
use crate::job::{Attributes, JobId, JobRef, NewJob};
use crate::name::Queue;
use crate::time::Instant;

const TOO_LARGE: &str = "body too large";

#[derive(Serialize)]
struct BulkPublishReply {
    job_ids: Vec<JobId>,
    msg: &'static str,
}

/// Outcome of publishing one job.
#[derive(Serialize)]
struct PlacedReply {
    #[serde(skip_serializing_if = "Option::is_none")]
    msg: Option<&'static str>,
    job_id: JobId,
    due_at: Option<Instant>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    duplicate: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    replaced: Option<JobId>,
}

impl From<&Placed> for PlacedReply {
    fn from(placed: &Placed) -> PlacedReply {
        PlacedReply {
            msg: None,
            job_id: placed.id,
            due_at: placed.due_at.map(Instant),
            duplicate: placed.how == How::Duplicate,
            replaced: match placed.how {
                How::Replaced(id) => Some(id),
                How::New | How::Duplicate => None,
            },
        }
    }
}

#[derive(Serialize)]
struct BatchReply {
    msg: &'static str,
    jobs: Vec<PlacedReply>,
}

/// `PUT /api/:namespace/:queue`
pub async fn publish(state: Arc<AppState>, auth: Authorized, request: Request) -> HandlerResult {
    let counted = admitted(&state, &auth.key, auth.record, Direction::Write).await?;
    let mut room = state.bounds.body_room.for_request(&auth.key.scope.namespace);
    let (new, repeatable) = read_job(&state, &auth.pool, auth.queue, request, &mut room).await?;
    let response = store_job(&auth.pool, new, None, repeatable).await?;
    counted.commit();
    Ok(response)
}

/// `PUT /api/:namespace/:queue/job/:job_id`: acks the job and publishes the body as a new one, in one step.
pub async fn republish(State(state): App, auth: Authorized, request: Request) -> HandlerResult {
    let replaces = auth.job_id.map(|id| JobRef { queue: auth.queue.clone(), id });
    let mut room = state.bounds.body_room.for_request(&auth.key.scope.namespace);
    let (new, repeatable) = read_job(&state, &auth.pool, auth.queue, request, &mut room).await?;
    // Republishing an unknown job is a publish, and counts as one. Only tokens with a possible limit need the
    // distinction.
    let record = match auth.record {
        Some(record) => Ok(record),
        None => state.access.tokens.look_up(&auth.key).await,
    };
    let limited = record.map_or(true, |record| record.limit.is_some_and(|limit| limit.write > 0));
    let known = match &replaces {
        // The step below proceeds if the old job cannot be read. So this must too: then the request counts.
        Some(old) if limited => {
            let found = auth.pool.engine.inspect(&old.queue, By::Id(old.id), Detail::Stored).await;
            matches!(found, Ok(Some(_)))
        }
        replaces => replaces.is_some(),
    };
    let counted = match known {
        true => None,
        false => Some(admitted(&state, &auth.key, auth.record, Direction::Write).await?),
    };
    let response = store_job(&auth.pool, new, replaces, repeatable).await?;
    if let Some(counted) = counted {
        counted.commit();
    }
    Ok(response)
}

/// `PUT /api/:namespace/:queue/bulk`
pub async fn publish_bulk(State(state): App, auth: Authorized, request: Request) -> HandlerResult {
    let counted = admitted(&state, &auth.key, auth.record, Direction::Write).await?;
    let life = params::life(query(request.uri().query()), &state.defaults)?;
    let attributes = attributes::from_headers(request.headers())?;
    let (head, body) = request.into_parts();
    let repeatable = state.bounds.under_way.begin(&auth.pool.name, &auth.queue, &head)?;
    let mut room = state.bounds.body_room.for_request(&auth.key.scope.namespace);
    let body = read_body(body, MAX_BULK, TOO_LARGE, Some(&mut room)).await?;
    let all = body.clone();
    let jobs = batch::reading(body.len(), move || batch::split_bulk(&all))
        .await?
        .into_iter()
        .map(|text| new_job(&auth.pool, auth.queue.clone(), text, life, attributes.clone()).into())
        .collect();
    let publication = Publication { jobs, replaces: None, once: once(&repeatable, &body) };
    let done = place(&auth.pool, publication).await?;
    let job_ids = done.placed.iter().map(|placed| placed.id).collect();
    let response = done.answer(&BulkPublishReply { job_ids, msg: PUBLISHED });
    counted.commit();
    Ok(response)
}

/// `POST /api/:namespace/:queue/jobs`
pub async fn publish_one(State(state): App, auth: Authorized, request: Request) -> HandlerResult {
    let counted = admitted(&state, &auth.key, auth.record, Direction::Write).await?;
    let (head, body) = request.into_parts();
    let given = GivenJob::from_query(query(head.uri.query()));
    let placement = given.placement(auth.pool.engine.time_of_day(), &state.defaults)?;
    let attributes = attributes::from_headers(&head.headers)?;
    let repeatable = state.bounds.under_way.begin(&auth.pool.name, &auth.queue, &head)?;
    let mut room = state.bounds.body_room.for_request(&auth.key.scope.namespace);
    let body = read_body(body, MAX_JOB, TOO_LARGE, Some(&mut room)).await?;
    let once = once(&repeatable, &body);
    let jobs = vec![placing(&auth.pool, auth.queue, body, placement, attributes)];
    let done = place(&auth.pool, Publication { jobs, replaces: None, once }).await;
    let done = done.map_err(ApiError::of_the_only_one)?;
    let reply = done.placed.first().map(|placed| PlacedReply { msg: Some(PUBLISHED), ..placed.into() });
    counted.commit();
    Ok(done.answer(&reply))
}

/// `POST /api/:namespace/:queue/jobs/batch`
pub async fn publish_batch(State(state): App, auth: Authorized, request: Request) -> HandlerResult {
    let counted = admitted(&state, &auth.key, auth.record, Direction::Write).await?;
    let (head, body) = request.into_parts();
    let attributes = attributes::from_headers(&head.headers)?;
    let repeatable = state.bounds.under_way.begin(&auth.pool.name, &auth.queue, &head)?;
    let mut room = state.bounds.body_room.for_request(&auth.key.scope.namespace);
    let body = read_body(body, MAX_BATCH, TOO_LARGE, Some(&mut room)).await?;
    // Decoding copies the jobs out of the base64.
    room.grow_to(body.len().saturating_add(body.len() / 4 * 3)).await?;
    let (all, now, defaults) = (body.clone(), auth.pool.engine.time_of_day(), state.defaults);
    let jobs = batch::reading(body.len(), move || batch::read_batch(&all, now, &defaults)).await?;
    let jobs = jobs.into_iter().map(|job| {
        let attributes = job.attributes.or_else(|| attributes.clone());
        placing(&auth.pool, auth.queue.clone(), job.body, job.placement, attributes)
    });
    let publication = Publication { jobs: jobs.collect(), replaces: None, once: once(&repeatable, &body) };
    let done = place(&auth.pool, publication).await?;
    let jobs = done.placed.iter().map(PlacedReply::from).collect();
    counted.commit();
    Ok(done.answer(&BatchReply { msg: PUBLISHED, jobs }))
}

/// Result of a publish, or of its first execution if this is a repeat.
struct Done {
    placed: Vec<Placed>,
    replayed: bool,
}

impl Done {
    fn answer(&self, body: &impl Serialize) -> Response {
        self.with_replayed(reply::json(StatusCode::CREATED, body))
    }

    /// Marks the response of a repeated request.
    fn with_replayed(&self, mut response: Response) -> Response {
        if self.replayed {
            response.headers_mut().insert("idempotency-replayed", HeaderValue::from_static("true"));
        }
        response
    }
}

async fn place(pool: &PoolState, publication: Publication) -> Result<Done, ApiError> {
    match pool.engine.publish(publication).await.map_err(ApiError::of_a_batch)? {
        Published::Done(placed) => Ok(Done { placed, replayed: false }),
        Published::Replay(placed) => Ok(Done { placed, replayed: true }),
        Published::Mismatch => Err(ApiError::OTHER_REQUEST),
        Published::Conflict { index, id } => {
            let details = Details { error: "the key is taken".into(), index: Some(index), job_id: Some(id) };
            Err(ApiError::Detailed(StatusCode::CONFLICT, Box::new(details)))
        }
    }
}

/// Stores one job of lmstfy's routes, and acks the job that it replaces.
async fn store_job(
    pool: &PoolState,
    new: NewJob,
    replaces: Option<JobRef>,
    repeatable: Option<Box<Repeatable>>,
) -> HandlerResult {
    let (id, once) = (new.id, once(&repeatable, &new.body));
    let done = place(pool, Publication { jobs: vec![new.into()], replaces, once }).await?;
    Ok(done.with_replayed(reply::published(done.placed.first().map_or(id, |placed| placed.id))))
}

/// Reads a publish: parameters, then attributes, then the idempotency key, then the body.
async fn read_job(
    state: &AppState,
    pool: &PoolState,
    queue: Queue,
    request: Request,
    room: &mut RequestRoom<'_>,
) -> Result<(NewJob, Option<Box<Repeatable>>), ApiError> {
    let (head, body) = request.into_parts();
    let Terms { life, attributes, repeatable } = read_terms(state, pool, &queue, head)?;
    let body = read_body(body, MAX_JOB, TOO_LARGE, Some(room)).await?;
    Ok((new_job(pool, queue, body, life, attributes), repeatable))
}

/// Terms of a job, from the head of a publish.
struct Terms {
    life: Life,
    attributes: Option<Attributes>,
    repeatable: Option<Box<Repeatable>>,
}

/// Takes the head by value, so that it is not kept while the body arrives.
fn read_terms(
    state: &AppState,
    pool: &PoolState,
    queue: &Queue,
    head: request::Parts,
) -> Result<Terms, ApiError> {
    let life = params::life(query(head.uri.query()), &state.defaults)?;
    let attributes = attributes::from_headers(&head.headers)?;
    let repeatable = state.bounds.under_way.begin(&pool.name, queue, &head)?;
    Ok(Terms { life, attributes, repeatable })
}

fn once(repeatable: &Option<Box<Repeatable>>, body: &[u8]) -> Option<Once> {
    repeatable.as_ref().map(|repeatable| repeatable.once(body))
}

fn query(text: Option<&str>) -> Query<'_> {
    Query(text.unwrap_or_default())
}

fn new_job(
    pool: &PoolState,
    queue: Queue,
    body: Bytes,
    life: Life,
    attributes: Option<Attributes>,
) -> NewJob {
    NewJob {
        id: pool.engine.make_id(&pool.ids, &queue, life.delay, attributes.is_some()),
        queue,
        body,
        attributes: attributes.unwrap_or_default(),
        ttl: life.ttl,
        delay: life.delay,
        tries: life.tries,
    }
}

fn placing(
    pool: &PoolState,
    queue: Queue,
    body: Bytes,
    placement: Placement,
    attributes: Option<Attributes>,
) -> Placing {
    let Placement { life, at, key } = placement;
    Placing { job: new_job(pool, queue, body, life, attributes), at, key }
}
