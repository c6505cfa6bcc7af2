//! Inspection of a namespace and of a queue: queues, jobs by state, one job by its id or key; and cancelling by key.

use std::time::Duration;

use axum::extract::{RawQuery, State};
use axum::http::StatusCode;
use axum::response::Response;
use serde::{Serialize, Serializer};

use crate::dispatch::Pause;
use crate::engine::{By, Cursor, Detail, Engine, Estimated, JobList, JobPage, MAX_LISTED, QueueView};
use crate::http::answer::error::{ApiError, HandlerResult};
use crate::http::answer::reply::{self, JobReply};
use crate::http::answer::room::{LARGE_ANSWER, Room, bytes_of};
use crate::http::request::extract::{Authorized, AuthorizedKey, AuthorizedNamespace, ByAccount, ShowsBodies};
use crate::http::request::params::{self, Query};
use crate::http::state::{App, AppState, MAX_ANSWER, MAX_JOB, PoolState};
use crate::job::{Attributes, JobId, JobRef, JobState, JobView, Receipt};
use crate::name::{Queue, QueueName};
use crate::search::{self, Filter, SearchPage};
use crate::time::Instant;

/// Default number of jobs per page.
const USUAL_JOBS: usize = 20;
/// Beginning of the JSON of [`JobsReply`].
const JOBS_BEGIN: &str = r#"{"jobs":["#;
/// A page with bodies continues while this number of largest jobs fits. So it reads the store at most 24 times.
const LEAST_FIT: usize = 4;

#[derive(Serialize)]
struct NamespaceReply<'a> {
    namespace: &'a str,
    queues: Vec<ListedQueue<'a>>,
    cursor: Option<String>,
}

#[derive(Serialize)]
struct ListedQueue<'a> {
    queue: &'a str,
    ready: Option<u64>,
    delayed: Option<u64>,
    running: Option<u64>,
    dead: Option<u64>,
    #[serde(serialize_with = "as_seconds")]
    oldest_ready_age: Option<Duration>,
    #[serde(skip_serializing_if = "Estimated::is_none")]
    estimated: Estimated,
    paused: bool,
    /// When the pause ends by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    paused_until: Option<Instant>,
}

impl<'a> ListedQueue<'a> {
    fn new(view: &'a QueueView, pause: Option<Pause>) -> ListedQueue<'a> {
        ListedQueue {
            queue: view.queue.name.as_str(),
            ready: view.ready,
            delayed: view.delayed,
            running: view.running,
            dead: view.dead,
            oldest_ready_age: view.oldest_ready_age,
            estimated: view.estimated,
            paused: pause.is_some(),
            paused_until: pause.and_then(|pause| pause.until).map(Instant),
        }
    }
}

/// Reply of `GET Q/jobs`.
#[derive(Debug, Serialize)]
struct JobsReply<'a> {
    jobs: Vec<ListedJob<'a>>,
    cursor: Option<String>,
    scanned: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    looked_at: Option<u64>,
}

/// A job in a list. Dashboard pages show it too.
#[derive(Debug, Serialize)]
pub struct ListedJob<'a> {
    pub job_id: JobId,
    pub state: Option<&'a str>,
    pub due_at: Option<Instant>,
    pub published_at: Instant,
    pub remain_tries: Option<u16>,
    pub ttl: u64,
    pub key: Option<&'a str>,
    pub reason: Option<&'a str>,
    pub size: u64,
    /// `None` if it is not shown.
    #[serde(serialize_with = "some_base64", skip_serializing_if = "Option::is_none")]
    pub data: Option<&'a [u8]>,
    #[serde(skip_serializing_if = "Attributes::is_empty")]
    pub attributes: &'a Attributes,
}

impl<'a> From<&'a JobView> for ListedJob<'a> {
    fn from(view: &'a JobView) -> ListedJob<'a> {
        ListedJob {
            job_id: view.id,
            state: state(view),
            due_at: view.due_at.map(Instant),
            published_at: Instant(view.published_at),
            remain_tries: view.tries_left,
            ttl: reply::seconds_left(view.ttl),
            key: key(view),
            reason: reason(view),
            size: view.size,
            data: view.body.as_deref(),
            attributes: &view.attributes,
        }
    }
}

/// A job with all of its fields: the reply of `GET J?verbose=1`. Fields are in alphabetical order, as in
/// [`JobReply`]. Dashboard pages show it too.
#[derive(Debug, Serialize)]
pub struct VerboseJob<'a> {
    /// `None` if there are none or they are not shown.
    pub attributes: Option<&'a Attributes>,
    /// `None` if it is not shown.
    #[serde(serialize_with = "some_base64")]
    pub data: Option<&'a [u8]>,
    pub due_at: Option<Instant>,
    pub elapsed_ms: u64,
    pub job_id: JobId,
    pub key: Option<&'a str>,
    namespace: &'a str,
    queue: &'a str,
    pub reason: Option<&'a str>,
    /// Present if requested; pages never request it.
    #[serde(skip_serializing_if = "Option::is_none")]
    receipt: Option<Option<Receipt>>,
    pub remain_tries: Option<u16>,
    /// Present if the body is not shown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    pub state: Option<&'a str>,
    pub ttl: u64,
}

/// Describes a job for viewers with or without permission to read bodies.
pub fn verbose_job<'a>(
    queue: &'a Queue,
    view: &'a JobView,
    detail: Detail,
    ShowsBodies(shows): ShowsBodies,
) -> VerboseJob<'a> {
    VerboseJob {
        attributes: Some(&view.attributes).filter(|attributes| shows && !attributes.is_empty()),
        data: shows.then(|| view.body.as_deref().unwrap_or_default()),
        due_at: view.due_at.map(Instant),
        elapsed_ms: view.elapsed.as_millis() as u64,
        job_id: view.id,
        key: key(view),
        namespace: queue.namespace.as_str(),
        queue: queue.name.as_str(),
        reason: reason(view),
        receipt: matches!(detail, Detail::HeldWith(_)).then_some(view.receipt),
        remain_tries: view.tries_left,
        size: (!shows).then_some(view.size),
        state: state(view),
        ttl: reply::seconds_left(view.ttl),
    }
}

fn state(view: &JobView) -> Option<&'static str> {
    view.state.map(JobState::as_str)
}

fn key(view: &JobView) -> Option<&str> {
    view.key.as_ref().map(|key| key.as_str())
}

fn reason(view: &JobView) -> Option<&str> {
    view.reason.as_ref().map(|reason| reason.as_str())
}

/// `GET /api/:namespace`, which lmstfy does not have. Without parameters and without queues, the reply is lmstfy's,
/// so that its clients see no difference.
pub async fn queues(
    State(state): App,
    auth: AuthorizedNamespace,
    RawQuery(query): RawQuery,
) -> HandlerResult {
    let bare = query.is_none();
    let query = Query(query.as_deref().unwrap_or_default());
    let (limit, cursor) = params::page(query, MAX_LISTED)?;
    let list = format!("{}/{}", auth.pool.name, auth.namespace);
    // A cursor is the name after which the list continues.
    let after = match state.cursors.open(&list, cursor).await? {
        Some(Cursor(name)) => Some(QueueName::parse_for_consume(&name).map_err(|_| ApiError::BAD_CURSOR)?),
        None => None,
    };
    let page = auth.pool.pauses.list_queues(&auth.namespace, after.as_ref(), limit).await?;
    if bare && page.queues.is_empty() && page.next.is_none() {
        return Ok(reply::not_found().await);
    }
    let listed = |view| ListedQueue::new(view, auth.pool.dispatcher.pause_of(&view.queue));
    let reply = NamespaceReply {
        namespace: auth.namespace.as_str(),
        queues: page.queues.iter().map(listed).collect(),
        cursor: state.cursors.seal(&list, page.next.map(|name| Cursor(name.as_str().to_owned()))).await?,
    };
    Ok(reply::json(StatusCode::OK, &reply))
}

/// A page of a queue's jobs as its store returned them.
#[derive(Debug, Default)]
pub struct FoundJobs {
    pub jobs: Vec<JobView>,
    /// Sealed.
    pub cursor: Option<String>,
    pub scanned: u64,
    /// Number of jobs that the filter examined.
    pub looked_at: Option<u64>,
    /// Memory reserved for the bodies.
    pub room: Option<Room>,
}

/// Reads the page that a query of [`jobs`] asks for.
pub async fn find_jobs(
    state: &AppState,
    (pool, queue): (&PoolState, &Queue),
    query: Query<'_>,
    (ByAccount(by_account), ShowsBodies(shows)): (ByAccount, ShowsBodies),
) -> Result<FoundJobs, ApiError> {
    let filter = asked_filter(query, shows)?;
    if !by_account && !filter.is_empty() {
        return Err(ApiError::bad("contains and reason are for the admin port"));
    }
    let which = match query.get("state") {
        None => JobState::Ready,
        Some(name) => JobState::parse(&name).ok_or(ApiError::bad("invalid state"))?,
    };
    let (limit, cursor) = params::page(query, USUAL_JOBS)?;
    let bodies = params::flag(query, "data", false, "invalid data")? && shows;
    let sealed_for = format!("{}/{}/{}", pool.name, queue, which.as_str());
    let cursor = state.cursors.open(&sealed_for, cursor).await?;
    let list = JobList { state: which, limit, cursor, bodies };
    // Reserves memory for the largest possible page before reading bodies.
    let most = match (bodies, &filter.contains) {
        (_, Some(_)) => MAX_ANSWER,
        (true, None) => (limit * MAX_JOB).min(MAX_ANSWER),
        (false, None) => 0,
    };
    let mut room = state.bounds.body_room.for_answer(&queue.namespace, most).await?;
    let (page, looked_at) = if filter.is_empty() {
        (page_of(&*pool.engine, queue, list).await?, None)
    } else {
        let found = search(state, pool, queue, &filter, list).await?;
        let looked_at = found.as_ref().map(|found| found.looked_at);
        let page =
            |found: SearchPage| JobPage { jobs: found.jobs, cursor: found.cursor, scanned: found.looked_at };
        (found.map(page), looked_at)
    };
    let JobPage { jobs, cursor, scanned } = page.ok_or(ApiError::BAD_CURSOR)?;
    let bytes: usize = jobs.iter().map(bytes_of_view).sum();
    match &mut room {
        _ if bytes <= LARGE_ANSWER => room = None,
        Some(room) => room.shrink_to(bytes),
        None => room = state.bounds.body_room.for_answer(&queue.namespace, bytes).await?,
    }
    let cursor = state.cursors.seal(&sealed_for, cursor).await?;
    Ok(FoundJobs { jobs, cursor, scanned, looked_at, room })
}

/// `GET /api/:namespace/:queue/jobs`
pub async fn jobs(
    State(state): App,
    auth: Authorized,
    may: (ByAccount, ShowsBodies),
    RawQuery(query): RawQuery,
) -> HandlerResult {
    let query = Query(query.as_deref().unwrap_or_default());
    let found = find_jobs(&state, (&auth.pool, &auth.queue), query, may).await?;
    let FoundJobs { jobs, cursor, scanned, looked_at, room } = found;
    let reply = |jobs| JobsReply { jobs, cursor: cursor.clone(), scanned, looked_at };
    if jobs.iter().map(bytes_of_view).sum::<usize>() <= LARGE_ANSWER {
        return Ok(reply::json(StatusCode::OK, &reply(jobs.iter().map(ListedJob::from).collect())));
    }
    let around = serde_json::to_vec(&reply(Vec::new())).unwrap_or_default();
    let (head, end) = around.split_at(JOBS_BEGIN.len());
    let jobs = jobs.into_iter().enumerate().map(|(n, view)| {
        let mut text = if n > 0 { vec![b','] } else { Vec::new() };
        // Cannot fail, as in `reply::json`.
        let _ = serde_json::to_writer(&mut text, &ListedJob::from(&view));
        text
    });
    let texts = [head.to_vec()].into_iter().chain(jobs).chain([end.to_vec()]);
    Ok(reply::json_stream(StatusCode::OK, reply::pieces(texts, None, room)))
}

/// Returns the bytes of reply memory that a listed job takes.
fn bytes_of_view(view: &JobView) -> usize {
    let reason = view.reason.as_ref().map_or(0, |reason| reason.as_str().len());
    bytes_of(view.body.as_deref().unwrap_or_default(), &view.attributes) + reason
}

/// Returns how many jobs of maximum size fit in addition to `bytes` of bodies. `None` if the page has enough.
fn fit_beside(bytes: usize) -> Option<usize> {
    Some(MAX_ANSWER.saturating_sub(bytes) / MAX_JOB).filter(|fit| *fit >= LEAST_FIT)
}

/// Creates the filter of a query. An empty `contains` counts as absent, as forms send it; an empty `reason` selects
/// jobs without one.
fn asked_filter(query: Query<'_>, shows: bool) -> Result<Filter, ApiError> {
    let given = |key| query.get(key).map(|text| text.into_owned());
    params::filter(given("contains"), given("reason"), shows)
}

/// Searches the jobs of a queue. 503 if the maximum of searches is in flight; `None` for an invalid cursor.
pub async fn search(
    state: &AppState,
    pool: &PoolState,
    queue: &Queue,
    filter: &Filter,
    list: JobList,
) -> Result<Option<SearchPage>, ApiError> {
    let _turn = state.bounds.searches.try_acquire().map_err(|_| ApiError::SEARCHES)?;
    Ok(search::search(&*pool.engine, queue, filter, list).await?)
}

/// Reads a page with at most [`MAX_ANSWER`] bytes of bodies. `None` for an invalid cursor.
pub async fn page_of(engine: &dyn Engine, queue: &Queue, list: JobList) -> Result<Option<JobPage>, ApiError> {
    if !list.bodies {
        return Ok(engine.list_jobs(queue, list).await?);
    }
    let mut all = JobPage { cursor: list.cursor.clone(), ..JobPage::default() };
    let mut bytes = 0;
    while let Some(fit) = fit_beside(bytes) {
        let limit = (list.limit - all.jobs.len()).min(fit);
        let next = JobList { limit, cursor: all.cursor.take(), ..list.clone() };
        let Some(page) = engine.list_jobs(queue, next).await? else { return Ok(None) };
        bytes += page.jobs.iter().map(bytes_of_view).sum::<usize>();
        // A page that is not full has reached the end of the list, or its bound.
        let full = page.jobs.len() >= limit;
        all.jobs.extend(page.jobs);
        all.scanned += page.scanned;
        all.cursor = page.cursor;
        if !full || all.cursor.is_none() || all.jobs.len() >= list.limit {
            break;
        }
    }
    Ok(Some(all))
}

/// `GET /api/:namespace/:queue/job/:job_id`
pub async fn job(
    State(state): App,
    auth: Authorized,
    shows: ShowsBodies,
    RawQuery(query): RawQuery,
) -> HandlerResult {
    let detail = detail(query.as_deref())?;
    let JobRef { queue, id } = auth.job()?;
    show(&state, &auth.pool, &queue, By::Id(id), (detail, shows)).await?.ok_or(ApiError::NO_JOB)
}

/// `GET /api/:namespace/:queue/key/:key`
pub async fn job_of_key(
    State(state): App,
    auth: AuthorizedKey,
    shows: ShowsBodies,
    RawQuery(query): RawQuery,
) -> HandlerResult {
    let detail = detail(query.as_deref())?;
    show(&state, &auth.pool, &auth.queue, By::Key(&auth.key), (detail, shows)).await?.ok_or(NO_KEY)
}

/// Shows a job, verbosely or as in lmstfy. Viewers without permission to read bodies get the verbose form, with the
/// body's size.
async fn show(
    state: &AppState,
    pool: &PoolState,
    queue: &Queue,
    by: By<'_>,
    (detail, ShowsBodies(shows)): (Detail, ShowsBodies),
) -> Result<Option<Response>, ApiError> {
    let detail = if shows { detail } else { Detail::All };
    let Some((view, room)) = find_job(state, pool, queue, by, (detail, ShowsBodies(shows))).await? else {
        return Ok(None);
    };
    Ok(Some(if detail == Detail::Stored {
        reply::job(room, &JobReply::viewed(queue, &view))
    } else {
        reply::json_in(room, StatusCode::OK, &verbose_job(queue, &view, detail, ShowsBodies(shows)))
    }))
}

/// Reads a job, and reserves memory for its body if it is shown.
pub async fn find_job(
    state: &AppState,
    pool: &PoolState,
    queue: &Queue,
    by: By<'_>,
    (detail, ShowsBodies(shows)): (Detail, ShowsBodies),
) -> Result<Option<(JobView, Option<Room>)>, ApiError> {
    let Some(view) = pool.engine.inspect(queue, by, detail).await? else { return Ok(None) };
    let bytes = if shows { bytes_of_view(&view) } else { 0 };
    let room = state.bounds.body_room.for_answer(&queue.namespace, bytes).await?;
    Ok(Some((view, room)))
}

/// `DELETE /api/:namespace/:queue/key/:key`
pub async fn cancel_key(auth: AuthorizedKey) -> HandlerResult {
    match auth.pool.engine.cancel_key(&auth.queue, &auth.key).await? {
        true => Ok(reply::no_content()),
        false => Err(NO_KEY),
    }
}

pub const NO_KEY: ApiError = ApiError::Refused(StatusCode::NOT_FOUND, "no job has this key");

/// Returns which fields of a job to read.
fn detail(query: Option<&str>) -> Result<Detail, ApiError> {
    let query = Query(query.unwrap_or_default());
    if !params::flag(query, "verbose", false, "invalid verbose")? {
        return Ok(Detail::Stored);
    }
    Ok(params::receipt(query)?.map_or(Detail::All, |receipt| Detail::HeldWith(receipt.tries_left)))
}

fn as_seconds<S: Serializer>(age: &Option<Duration>, s: S) -> Result<S::Ok, S::Error> {
    match age {
        Some(age) => s.serialize_f64(age.as_millis() as f64 / 1000.0),
        None => s.serialize_none(),
    }
}

/// Serializes a body, if it is shown.
fn some_base64<S: Serializer>(data: &Option<&[u8]>, s: S) -> Result<S::Ok, S::Error> {
    match data {
        Some(data) => reply::as_base64(data, s),
        None => s.serialize_none(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Guards against a page of large jobs followed by small ones that reads the store one job at a time.
    #[test]
    fn a_page_with_bodies_is_few_calls_and_no_more_than_an_answer() {
        for size in (0..=MAX_JOB).step_by(1000) {
            // One call returns jobs of this size, all others small ones.
            for large in 0..5 {
                let (mut jobs, mut bytes, mut calls) = (0, 0, 0);
                while let Some(fit) = fit_beside(bytes).filter(|_| jobs < MAX_LISTED) {
                    bytes += if calls == large { fit * size } else { 0 };
                    jobs += fit;
                    calls += 1;
                }
                assert!(calls <= 24, "{calls} calls; call {large} has jobs of {size} bytes");
                assert!(bytes <= MAX_ANSWER, "{bytes} bytes, of jobs of {size} bytes in call {large}");
            }
        }
    }
}
