//! Consuming, and lmstfy's other routes of a queue: peek, size, destroy. Each handler extracts, makes one call, and
//! replies.

use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::{RawQuery, State};
use axum::http::StatusCode;

use super::admission::admitted;
use crate::admin::Direction;
use crate::dispatch::{ConsumeError, Delivery};
use crate::engine::{Listing, SizeOf, forget};
use crate::http::answer::delivered::{self, Form};
use crate::http::answer::error::{ApiError, HandlerResult};
use crate::http::answer::reply::{self, JobReply};
use crate::http::answer::room::{LARGE_ANSWER, bytes_of};
use crate::http::request::extract::{Anonymous, Authorized, AuthorizedConsume, BAD_TOKEN, ShowsBodies};
use crate::http::request::params::{self, Query};
use crate::http::request::peer::Peer;
use crate::http::state::parked_tokens::ParkedToken;
use crate::http::state::{App, AppState, MAX_ANSWER};

/// A consumer that gets its jobs sooner is not checked for a disconnect: hardly any client leaves so soon, and a
/// check is a system call.
const LOOK_AFTER: Duration = Duration::from_millis(5);

/// `GET /api/:namespace/:queue[,:queue]*`
///
/// Takes parts of the request instead of the request, so that a parked poll keeps only its parameters and the size of
/// the request's head.
pub async fn consume(
    state: Arc<AppState>,
    auth: AuthorizedConsume,
    peer: Peer,
    (query, head): (Option<String>, usize),
) -> HandlerResult {
    let counted = admitted(&state, &auth.key, auth.record, Direction::Read).await?;
    let query = Query(query.as_deref().unwrap_or_default());
    let (request, receipts) = params::consume(query, auth.queues, head, &state.defaults)?;
    let (form, patient) = (Form { array: request.count > 1, receipts }, !request.timeout.is_zero());
    let token =
        (patient && !state.access.skip_verification).then(|| state.access.parked_tokens.enter(&auth.key));
    let consume = Box::pin(auth.pool.dispatcher.consume(request));
    match unless_gone(consume, peer, token).await? {
        Some(delivery) if !delivery.jobs().is_empty() => {
            let response = handed_out(&state, delivery, form).await?;
            counted.commit();
            Ok(response)
        }
        _ => Ok(reply::message(StatusCode::NOT_FOUND, "no job available")),
    }
}

/// Completes with the delivery, or `None` if the client has disconnected. A delivery that arrives later is dropped
/// here, which returns its jobs. 401 if the token is revoked during the wait. Boxed, so that a parked poll keeps only
/// this future, and no memory for later steps of the handler.
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

/// Creates the reply to a consume, with the jobs that fit into one reply; the others return. 503 without body
/// memory: then all jobs return.
async fn handed_out(state: &AppState, mut delivery: Delivery, form: Form) -> HandlerResult {
    let mut bytes = 0;
    let fits = delivery.jobs().iter().take_while(|job| {
        bytes += bytes_of(&job.body, &job.attributes);
        bytes <= MAX_ANSWER
    });
    let fits = fits.count().max(1);
    delivery.truncate(fits);
    let bytes: usize = delivery.jobs().iter().map(|job| bytes_of(&job.body, &job.attributes)).sum();
    if let [job, ..] = delivery.jobs()
        && bytes > LARGE_ANSWER
    {
        let namespace = job.queue.namespace.clone();
        // Boxed, so that small replies need no memory for this.
        let room =
            Box::pin(async move { state.bounds.body_room.for_answer(&namespace, bytes).await }).await?;
        let body = delivered::piece_by_piece(delivery, form, room);
        return Ok(reply::json_stream(StatusCode::OK, body));
    }
    let answer = match delivery.jobs() {
        [job] if !form.array => reply::job(None, &JobReply::consumed(job, form.receipts)),
        jobs => reply::jobs(jobs.iter().map(|job| JobReply::consumed(job, form.receipts))),
    };
    Ok(answer.map(|body| delivered::until_sent(body, delivery)))
}

/// `GET /api/:namespace/:queue/peek`
pub async fn peek(State(state): App, auth: Authorized, ShowsBodies(shows): ShowsBodies) -> HandlerResult {
    Ok(match auth.pool.engine.peek(&auth.queue).await? {
        Some(job) if !shows => reply::job(None, &JobReply::peeked(&job).hidden()),
        Some(job) => {
            let bytes = bytes_of(&job.body, &job.attributes);
            let room = state.bounds.body_room.for_answer(&job.queue.namespace, bytes).await?;
            reply::job(room, &JobReply::peeked(&job))
        }
        None => reply::error(StatusCode::NOT_FOUND, "the queue is empty"),
    })
}

/// `GET /api/:namespace/:queue/size`
pub async fn size(Anonymous { pool, queue }: Anonymous) -> HandlerResult {
    Ok(reply::size(&queue, pool.engine.size(&queue, SizeOf::Ready).await?.jobs))
}

/// `DELETE /api/:namespace/:queue`
pub async fn destroy(auth: Authorized, RawQuery(query): RawQuery) -> HandlerResult {
    let query = Query(query.as_deref().unwrap_or_default());
    if params::flag(query, "forget", false, "invalid forget")? {
        forget::forget(&*auth.pool.engine, &auth.queue).await?;
        auth.pool.pauses.resume(&auth.queue).await?;
        auth.pool.sampler.forget(&auth.queue).await;
    } else {
        auth.pool.engine.destroy(&auth.queue, Listing::Keep).await?;
    }
    Ok(reply::no_content())
}
