//! Which queues have dead jobs, and why these died. The list is read from samples, the reasons from the store, in a
//! bounded time.

use std::cmp::Reverse;
use std::time::Duration;

use ahash::HashMap;
use axum::extract::{RawQuery, State};
use axum::http::StatusCode;
use serde::Serialize;
use tokio::time::timeout;

use super::queues::{Asked, name};
use crate::clock::Millis;
use crate::engine::{Cursor, Engine, JobList, MAX_LISTED};
use crate::error::{Error, Result};
use crate::history::Range;
use crate::http::answer::error::{ApiError, HandlerResult};
use crate::http::answer::reply;
use crate::http::request::params::{self, Query};
use crate::http::state::{App, AppState};
use crate::job::{JobState, Reason};
use crate::name::{PoolName, Queue};
use crate::sampler::Row;
use crate::time::Instant;

/// How many dead jobs are looked at for their reasons, and how long that may take.
const LOOKED_AT: u64 = 1000;
const TIME: Duration = Duration::from_secs(1);
/// Pages may have fewer jobs than were asked for: so many are read.
const PAGES: u64 = LOOKED_AT / MAX_LISTED as u64 * 2;
/// How many different reasons are told.
const MOST_REASONS: usize = 100;

/// A queue with dead jobs.
#[derive(Clone, Debug)]
pub struct DeadQueue {
    pub pool: PoolName,
    pub row: Row,
    /// How many died in the last hour, as far as this server saw; `None` where it keeps no history of the queue.
    pub died_in_hour: Option<u64>,
}

impl DeadQueue {
    /// When this server saw some die last, to a sample's length; `None` where it saw none.
    pub fn last_died(&self) -> Option<Millis> {
        self.row.died_at
    }
}

/// Queues with dead jobs, the newest death first: `limit` of them, behind the first `after`. And whether there are more.
pub fn dead_queues(state: &AppState, asked: &Asked, after: usize, limit: usize) -> (Vec<DeadQueue>, bool) {
    let samples: Vec<_> = asked.samples(state);
    let is_asked_for = |row: &Row| {
        row.dead > 0 && asked.namespace.as_ref().is_none_or(|namespace| row.namespace == *namespace)
    };
    let rows = samples.iter().flat_map(|(pool, sample)| sample.rows.iter().map(move |row| (pool, row)));
    let mut rows: Vec<(&PoolName, &Row)> = rows.filter(|(_, row)| is_asked_for(row)).collect();
    rows.sort_by(|(a_pool, a), (b_pool, b)| {
        let order = |row: &Row| (Reverse(row.died_at), Reverse(row.dead));
        let named = |row: &Row| (row.namespace.clone(), row.name.clone());
        order(a).cmp(&order(b)).then_with(|| a_pool.cmp(b_pool)).then_with(|| named(a).cmp(&named(b)))
    });
    let now = state.began.time() / 1000;
    let shown = rows.iter().skip(after).take(limit).map(|(pool, row)| {
        let (since, points) = state.history.of(&row.of(pool), Range::Hour, now);
        let died = points.iter().flatten().map(|point| point.counts[3]).sum();
        DeadQueue { pool: (*pool).clone(), row: (*row).clone(), died_in_hour: since.map(|_| died) }
    });
    (shown.collect(), rows.len() > after.saturating_add(limit))
}

#[derive(Serialize)]
struct DeadReply<'a> {
    server: &'a str,
    queues: Vec<DeadQueueReply<'a>>,
    cursor: Option<String>,
}

#[derive(Serialize)]
struct DeadQueueReply<'a> {
    pool: &'a str,
    namespace: &'a str,
    queue: &'a str,
    dead: u64,
    last_died: Option<Instant>,
    died_in_hour: Option<u64>,
}

/// `GET /dead?pool&namespace&limit&cursor`
pub async fn list(State(state): App, RawQuery(query): RawQuery) -> HandlerResult {
    let query = Query(query.as_deref().unwrap_or_default());
    let asked = Asked::of(&state, query)?;
    let (limit, cursor) = params::page(query, MAX_LISTED)?;
    // A cursor is how many were shown: what dies meanwhile comes to the front, and may have a queue shown twice.
    let after = match cursor {
        None => 0,
        Some(Cursor(text)) => text.parse::<usize>().map_err(|_| ApiError::BAD_CURSOR)?,
    };
    let (queues, more) = dead_queues(&state, &asked, after, limit);
    let shown = queues.iter().map(|of| DeadQueueReply {
        pool: of.pool.as_str(),
        namespace: of.row.namespace.as_str(),
        queue: name(&of.row),
        dead: of.row.dead,
        last_died: of.last_died().map(Instant),
        died_in_hour: of.died_in_hour,
    });
    let cursor = more.then(|| (after + limit).to_string());
    let reply = DeadReply { server: &state.server, queues: shown.collect(), cursor };
    Ok(reply::json(StatusCode::OK, &reply))
}

/// Why the oldest dead jobs of a queue died.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reasons {
    pub looked_at: u64,
    /// The commonest first. Without a text: no tries were left, and nobody said why.
    pub counts: Vec<(Option<Reason>, u64)>,
    /// The second was over before all that are looked at were read.
    pub is_cut: bool,
}

/// Looks at the oldest dead jobs, a thousand at most, for a second at most.
pub async fn why_they_died(engine: &dyn Engine, queue: &Queue) -> Result<Reasons> {
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
    let is_cut = match timeout(TIME, look).await {
        Ok(looked) => {
            looked?;
            false
        }
        // What was read until then is shown.
        Err(_) => true,
    };
    let mut counts: Vec<_> = counts.into_iter().collect();
    let text = |reason: &Option<Reason>| reason.as_ref().map(|reason| reason.as_str().to_owned());
    counts.sort_by_cached_key(|(reason, count)| (Reverse(*count), text(reason)));
    counts.truncate(MOST_REASONS);
    Ok(Reasons { looked_at, counts, is_cut })
}

#[derive(Serialize)]
struct ReasonsReply<'a> {
    looked_at: u64,
    reasons: Vec<ReasonReply<'a>>,
}

#[derive(Serialize)]
struct ReasonReply<'a> {
    reason: Option<&'a str>,
    count: u64,
}

/// `GET /dead/reasons?pool&namespace&queue`
pub async fn reasons(State(state): App, RawQuery(query): RawQuery) -> HandlerResult {
    let query = Query(query.as_deref().unwrap_or_default());
    let (pool, queue) = Asked::queue(&state, query)?;
    let found = why_they_died(&*pool.engine, &queue).await?;
    let reasons = found
        .counts
        .iter()
        .map(|(reason, count)| ReasonReply { reason: reason.as_ref().map(Reason::as_str), count: *count });
    let reply = ReasonsReply { looked_at: found.looked_at, reasons: reasons.collect() };
    Ok(reply::json(StatusCode::OK, &reply))
}
