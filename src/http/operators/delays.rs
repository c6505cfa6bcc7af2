//! Statistics of when delayed jobs fall due.

use axum::extract::{RawQuery, State};
use axum::http::StatusCode;
use serde::Serialize;

use super::names;
use crate::engine::delays::{DelayCount, DelayedOf, Delays};
use crate::http::answer::error::{ApiError, HandlerResult};
use crate::http::answer::reply;
use crate::http::request::params::Query;
use crate::http::state::{App, AppState, PoolState};
use crate::name::Queue;
use crate::time::{self, Instant};

/// Default and maximum number of steps.
const USUAL_STEPS: usize = 100;
const MOST_STEPS: usize = 1000;

/// Units of time in milliseconds.
const UNITS: [(&str, u64); 3] = [("minute", 60_000), ("hour", 3_600_000), ("day", 86_400_000)];

/// Reply of `GET /info/delays`. Dashboard pages show it too.
#[derive(Debug, Serialize)]
pub struct DelaysReply {
    pub pool: String,
    pub by: String,
    pub now: Instant,
    pub delayed: u64,
    pub overdue: u64,
    pub buckets: Vec<Bucket>,
    pub later: u64,
}

#[derive(Debug, Serialize)]
pub struct Bucket {
    pub from: Instant,
    pub count: u64,
}

/// `GET /info/delays?pool&namespace&queue&by&limit`
pub async fn show(State(state): App, RawQuery(query): RawQuery) -> HandlerResult {
    Ok(reply::json(StatusCode::OK, &count_delays(&state, &query.unwrap_or_default()).await?))
}

/// Returns the reply of [`show`] to a query. The count goes on if the caller stops waiting.
pub async fn count_delays(state: &AppState, query: &str) -> Result<DelaysReply, ApiError> {
    let (pool, by, count) = asked(state, Query(query))?;
    let delays = pool.delays.count(&pool.engine, count, &state.server.tasks).await?;
    Ok(delays_reply(pool, by, &delays))
}

/// Returns the last reply of the route to this query.
pub fn last(state: &AppState, query: &str) -> Option<DelaysReply> {
    let (pool, by, count) = asked(state, Query(query)).ok()?;
    Some(delays_reply(pool, by, &*pool.delays.last(&count)?))
}

fn delays_reply(pool: &PoolState, by: &str, delays: &Delays) -> DelaysReply {
    let Delays { now, overdue, ref steps, later, .. } = *delays;
    let bucket = |(from, count): (&u64, &u64)| Bucket { from: Instant(*from), count: *count };
    DelaysReply {
        pool: pool.name.to_string(),
        by: by.to_owned(),
        now: Instant(now),
        delayed: delays.delayed(),
        overdue,
        buckets: steps.iter().map(bucket).collect(),
        later,
    }
}

/// Returns the pool, the name of the unit, and the count to make.
fn asked<'a>(
    state: &'a AppState,
    query: Query<'_>,
) -> Result<(&'a PoolState, &'static str, DelayCount), ApiError> {
    let pool = state.pools.named(query.get("pool").as_deref().unwrap_or_default())?;
    let (by, count) = count(query)?;
    Ok((pool, by, count))
}

/// Parses the count, and the name of its unit.
fn count(query: Query<'_>) -> Result<(&'static str, DelayCount), ApiError> {
    let of = match names::in_query(query)? {
        (None, _) => DelayedOf::All,
        (Some(namespace), None) => DelayedOf::Namespace(namespace),
        (Some(namespace), Some(name)) => DelayedOf::Queue(Queue { namespace, name }),
    };
    let by = query.get("by");
    let unit = UNITS.into_iter().find(|(name, _)| by.as_deref().unwrap_or("minute") == *name);
    let (by, step) = unit.ok_or(ApiError::bad("invalid by: minute, hour or day"))?;
    let most = match query.get("limit") {
        None => Some(USUAL_STEPS),
        Some(text) => time::digits(&text),
    };
    let most = most.filter(|most| (1..=MOST_STEPS).contains(most));
    let most = most.ok_or(ApiError::bad("invalid limit: 1 to 1000"))?;
    Ok((by, DelayCount { of, step, most }))
}
