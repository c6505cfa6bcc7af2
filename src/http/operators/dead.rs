//! Queues with dead jobs, and why their jobs died. The list is read from samples, the reasons from the store, in
//! limited time.

use std::cmp::Reverse;
use std::time::Duration;

use ahash::HashMap;
use axum::extract::{RawQuery, State};
use axum::http::StatusCode;
use serde::Serialize;
use tokio::time::timeout;

use super::names::Asked;
use super::queues::name;
use crate::engine::{Cursor, Engine, JobList, MAX_LISTED};
use crate::error::Error;
use crate::history::Range;
use crate::http::answer::error::{ApiError, HandlerResult};
use crate::http::answer::reply;
use crate::http::request::params::{self, Query};
use crate::http::state::{App, AppState};
use crate::job::{JobState, Reason};
use crate::name::{PoolName, Queue};
use crate::sampler::QueueRow;
use crate::time::Instant;

/// Number of dead jobs whose reasons are read, and the time limit.
const LOOKED_AT: u64 = 1000;
const TIME: Duration = Duration::from_secs(1);
/// Pages may be shorter than requested, so up to this number of pages is read.
const PAGES: u64 = LOOKED_AT / MAX_LISTED as u64 * 2;
/// Maximum number of different reasons in the reply.
const MOST_REASONS: usize = 100;

/// Reply of `GET /dead`. Dashboard pages show it too.
#[derive(Debug, Serialize)]
pub struct DeadReply {
    pub server: String,
    pub queues: Vec<DeadQueue>,
    pub cursor: Option<String>,
}

/// A queue with dead jobs.
#[derive(Debug, Serialize)]
pub struct DeadQueue {
    pub pool: String,
    pub namespace: String,
    pub queue: String,
    pub dead: u64,
    /// When this server last saw one die, to the length of a sample; `None` if it saw none.
    pub last_died: Option<Instant>,
    /// How many died in the last hour, as seen by this server; `None` if it keeps no history of the queue.
    pub died_in_hour: Option<u64>,
}

/// Returns `limit` queues with dead jobs, latest death first, after the first `after`, and whether there are more.
fn dead_queues(state: &AppState, asked: &Asked, after: usize, limit: usize) -> (Vec<DeadQueue>, bool) {
    let samples: Vec<_> = asked.samples(state);
    let is_asked_for = |row: &QueueRow| {
        row.dead > 0 && asked.namespace.as_ref().is_none_or(|namespace| row.namespace == *namespace)
    };
    let rows = samples.iter().flat_map(|(pool, sample)| sample.rows.iter().map(move |row| (pool, row)));
    let mut rows: Vec<(&PoolName, &QueueRow)> = rows.filter(|(_, row)| is_asked_for(row)).collect();
    rows.sort_by(|(a_pool, a), (b_pool, b)| {
        let order = |row: &QueueRow| (Reverse(row.died_at), Reverse(row.dead));
        let named = |row: &QueueRow| (row.namespace.clone(), row.name.clone());
        order(a).cmp(&order(b)).then_with(|| a_pool.cmp(b_pool)).then_with(|| named(a).cmp(&named(b)))
    });
    let now = state.server.began.time() / 1000;
    let shown = rows.iter().skip(after).take(limit).map(|(pool, row)| {
        let (since, points) = state.operations.history.of(&row.of(pool), Range::Hour, now);
        let died = points.iter().flatten().map(|point| point.counts[3]).sum();
        DeadQueue {
            pool: pool.to_string(),
            namespace: row.namespace.to_string(),
            queue: name(row).to_owned(),
            dead: row.dead,
            last_died: row.died_at.map(|at| Instant(state.shown(at))),
            died_in_hour: since.map(|_| died),
        }
    });
    (shown.collect(), rows.len() > after.saturating_add(limit))
}

/// `GET /dead?pool&namespace&limit&cursor`
pub async fn list(State(state): App, RawQuery(query): RawQuery) -> HandlerResult {
    Ok(reply::json(StatusCode::OK, &dead(&state, &query.unwrap_or_default())?))
}

/// Returns the reply of [`list`] to a query.
pub fn dead(state: &AppState, query: &str) -> Result<DeadReply, ApiError> {
    let query = Query(query);
    let asked = Asked::of(state, query)?;
    let (limit, cursor) = params::page(query, MAX_LISTED)?;
    // A cursor is the number of queues shown: new deaths move queues to the front, and may show a queue twice.
    let after = match cursor {
        None => 0,
        Some(Cursor(text)) => text.parse::<usize>().map_err(|_| ApiError::BAD_CURSOR)?,
    };
    let (queues, more) = dead_queues(state, &asked, after, limit);
    let cursor = more.then(|| (after + limit).to_string());
    Ok(DeadReply { server: state.server.name.clone(), queues, cursor })
}

/// Reply of `GET /dead/reasons`: why the oldest dead jobs of a queue died. Dashboard pages show it too.
#[derive(Debug, Serialize)]
pub struct ReasonsReply {
    pub looked_at: u64,
    /// Most frequent first.
    pub reasons: Vec<ReasonReply>,
}

#[derive(Debug, Serialize)]
pub struct ReasonReply {
    /// `None`: the job used up its tries, and no worker gave a reason.
    pub reason: Option<String>,
    pub count: u64,
}

/// Reads the reasons of the oldest dead jobs, at most a thousand, for at most a second.
async fn why_they_died(engine: &dyn Engine, queue: &Queue) -> Result<ReasonsReply, Error> {
    let mut counts: HashMap<Option<Reason>, u64> = HashMap::default();
    let mut looked_at = 0;
    let look = async {
        let mut cursor = None;
        for _ in 0..PAGES {
            let limit = MAX_LISTED.min((LOOKED_AT - looked_at) as usize);
            let list = JobList { state: JobState::Dead, limit, cursor, bodies: false };
            let Some(page) = engine.list_jobs(queue, list).await? else { break };
            for job in page.jobs {
                looked_at += 1;
                *counts.entry(job.reason).or_default() += 1;
            }
            cursor = page.cursor;
            if cursor.is_none() || looked_at >= LOOKED_AT {
                break;
            }
        }
        Ok::<_, Error>(())
    };
    // After the time limit, shows the reasons read so far.
    if let Ok(looked) = timeout(TIME, look).await {
        looked?;
    }
    let reasons = counts.into_iter().map(|(reason, count)| {
        let reason = reason.map(|reason| reason.as_str().to_owned());
        ReasonReply { reason, count }
    });
    let mut reasons: Vec<ReasonReply> = reasons.collect();
    reasons.sort_by(|a, b| b.count.cmp(&a.count).then_with(|| a.reason.cmp(&b.reason)));
    reasons.truncate(MOST_REASONS);
    Ok(ReasonsReply { looked_at, reasons })
}

/// `GET /dead/reasons?pool&namespace&queue`
pub async fn reasons(State(state): App, RawQuery(query): RawQuery) -> HandlerResult {
    Ok(reply::json(StatusCode::OK, &reasons_of(&state, &query.unwrap_or_default()).await?))
}

/// Returns the reply of [`reasons`] to a query.
pub async fn reasons_of(state: &AppState, query: &str) -> Result<ReasonsReply, ApiError> {
    let (pool, queue) = Asked::queue(state, Query(query))?;
    Ok(why_they_died(&*pool.engine, &queue).await?)
}
