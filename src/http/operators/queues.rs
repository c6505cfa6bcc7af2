//! All queues of this server's pools with their needs and recent activity. Reads samples only: these routes make no
//! call to a store.

use std::cmp::Ordering;

use axum::extract::{RawQuery, State};
use axum::http::StatusCode;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};

use super::names::{Asked, JOB_IDS, given};
use super::sums::{OfQueues, Sums, rounded};
use crate::engine::{Cursor, Estimated, MAX_LISTED};
use crate::history::need::Need;
use crate::history::{Of, Point, Range};
use crate::http::answer::error::{ApiError, HandlerResult};
use crate::http::answer::reply;
use crate::http::request::params::{self, Query};
use crate::http::state::{App, AppState};
use crate::name::{PoolName, Queue, QueueName};
use crate::push::PushState;
use crate::sampler::{QueueRow, Sample};
use crate::time::Instant;

/// Reply of `GET /queues`. Dashboard pages show it too.
#[derive(Clone, Debug, Serialize)]
pub struct QueuesReply {
    pub server: String,
    /// The oldest sampling time of the pools shown.
    pub sampled_at: Option<Instant>,
    pub since: Instant,
    /// The requested pools.
    pub pools: Vec<SampleReply>,
    /// Sums over all requested queues.
    pub sums: OfQueues,
    pub queues: Vec<QueueReply>,
    /// Cursor of the next page; `None` at the end.
    pub cursor: Option<String>,
}

/// The sampling state of a pool.
#[derive(Clone, Debug, Serialize)]
pub struct SampleReply {
    pub pool: String,
    pub sampled_at: Option<Instant>,
    /// Seconds until the next sample.
    pub interval: f64,
    /// Error of its store, and since when.
    pub trouble: Option<String>,
    pub trouble_since: Option<Instant>,
    pub full_since: Option<Instant>,
    pub queues: u64,
    pub left_out: u64,
    pub timers: u64,
    /// Sums over its queues; rates include queues that are not counted individually.
    #[serde(flatten)]
    pub sums: Sums,
}

/// A queue, or all queues of a namespace that are named after jobs.
#[derive(Clone, Debug, Serialize)]
pub struct QueueReply {
    pub pool: String,
    pub namespace: String,
    pub queue: String,
    pub ready: u64,
    pub delayed: Option<u64>,
    pub running: Option<u64>,
    pub dead: u64,
    pub oldest_ready_age: Option<f64>,
    #[serde(skip_serializing_if = "Estimated::is_none")]
    pub estimated: Estimated,
    #[serde(rename = "in")]
    pub entered: Option<f64>,
    pub out: Option<f64>,
    pub acked: Option<f64>,
    pub died: Option<f64>,
    pub waiting: u64,
    pub last_handed_out: Option<Instant>,
    pub paused: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paused_until: Option<Instant>,
    pub push: Option<PushState>,
    /// Since when this server gets no response from its endpoint.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub push_failing_since: Option<Instant>,
    pub need: Option<Need>,
    /// Severity within the same need, in the unit of that need.
    pub worse: u64,
}

pub fn name(row: &QueueRow) -> &str {
    row.name.as_ref().map_or(JOB_IDS, QueueName::as_str)
}

fn reply(state: &AppState, pool: &PoolName, row: &QueueRow) -> QueueReply {
    let rate = |n: usize| row.rates.map(|rates| rounded(rates[n]));
    QueueReply {
        pool: pool.to_string(),
        namespace: row.namespace.to_string(),
        queue: name(row).to_owned(),
        ready: row.ready,
        delayed: row.delayed,
        running: row.running,
        dead: row.dead,
        oldest_ready_age: row.oldest.map(|age| rounded(age.as_secs_f64())),
        estimated: Estimated { age: row.estimated.age && row.oldest.is_some(), ..row.estimated },
        entered: rate(0),
        out: rate(1),
        acked: rate(2),
        died: rate(3),
        waiting: row.waiting,
        last_handed_out: row.handed_out.map(|at| Instant(state.shown(at))),
        paused: row.paused.is_some(),
        paused_until: row.paused.and_then(|pause| pause.until).map(Instant),
        push: row.push,
        push_failing_since: row.push_failing_since.map(Instant),
        need: row.need,
        worse: row.worse,
    }
}

fn pool_reply(state: &AppState, pool: &PoolName, sample: &Sample) -> SampleReply {
    SampleReply {
        pool: pool.to_string(),
        sampled_at: sample.at.map(|at| Instant(state.shown(at))),
        interval: rounded(sample.interval.as_secs_f64()),
        trouble: sample.trouble.as_ref().map(|trouble| trouble.why.to_string()),
        trouble_since: sample.trouble.as_ref().map(|trouble| Instant(state.shown(trouble.since))),
        full_since: sample.full_since.map(|since| Instant(state.shown(since))),
        queues: sample.rows.len() as u64,
        left_out: sample.left_out as u64,
        timers: sample.timers,
        sums: Sums::of(&sample.rows).with_rates(sample.rates).rounded(),
    }
}

/// Sort order of queues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Sort {
    #[default]
    Need,
    Name,
    Ready,
    Delayed,
    Running,
    Dead,
    Age,
    In,
    Out,
}

/// Sort orders by name.
const SORTS: [(&str, Sort); 9] = [
    ("need", Sort::Need),
    ("name", Sort::Name),
    ("ready", Sort::Ready),
    ("delayed", Sort::Delayed),
    ("running", Sort::Running),
    ("dead", Sort::Dead),
    ("age", Sort::Age),
    ("in", Sort::In),
    ("out", Sort::Out),
];

impl Sort {
    /// Returns the sort key of a row, ascending. Unknown values come last.
    fn rank(self, row: &QueueRow) -> (u64, u64) {
        let most = |known: Option<u64>| (u64::from(known.is_none()), u64::MAX - known.unwrap_or(0));
        let rate = |n: usize| row.rates.map(|rates| (rates[n] * 1000.0) as u64);
        match self {
            Sort::Need => {
                let need = row.need.map_or(Need::ALL.len(), |need| need as usize);
                (need as u64, u64::MAX - row.worse)
            }
            Sort::Name => (0, 0),
            Sort::Ready => most(Some(row.ready)),
            Sort::Delayed => most(row.delayed),
            Sort::Running => most(row.running),
            Sort::Dead => most(Some(row.dead)),
            Sort::Age => most(row.oldest.map(|age| age.as_millis() as u64)),
            Sort::In => most(rate(0)),
            Sort::Out => most(rate(1)),
        }
    }
}

/// Position of a row in the list: its rank, then its names.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
struct RowPlace((u64, u64), String, String, String);

type Ranked<'a> = ((u64, u64), &'a PoolName, &'a QueueRow);

/// Returns the position of a row. Borrowed: a list of 10,000 queues needs some 30,000 comparisons.
fn place<'a>((rank, pool, row): &Ranked<'a>) -> ((u64, u64), &'a str, &'a str, &'a str) {
    (*rank, pool.as_str(), row.namespace.as_str(), name(row))
}

fn by_place(a: &Ranked<'_>, b: &Ranked<'_>) -> Ordering {
    place(a).cmp(&place(b))
}

impl RowPlace {
    fn of(ranked: &Ranked<'_>) -> RowPlace {
        let (rank, pool, namespace, name) = place(ranked);
        RowPlace(rank, pool.into(), namespace.into(), name.into())
    }

    /// Whether this position precedes the row.
    fn is_before(&self, ranked: &Ranked<'_>) -> bool {
        (self.0, &*self.1, &*self.2, &*self.3) < place(ranked)
    }
}

/// A request for a list: filter, order and page.
#[derive(Clone, Debug)]
struct ListAsked {
    of: Asked,
    /// Part of `namespace/queue`.
    part: Option<String>,
    /// Full name of a queue.
    queue: Option<String>,
    need: Needs,
    sort: Sort,
    limit: usize,
    /// Position after which the page begins.
    after: Option<RowPlace>,
}

/// Filter by need.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Needs {
    /// No filter.
    #[default]
    Whatever,
    Something,
    This(Need),
}

impl Needs {
    fn has(self, need: Option<Need>) -> bool {
        match self {
            Needs::Whatever => true,
            Needs::Something => need.is_some(),
            Needs::This(asked) => need == Some(asked),
        }
    }
}

impl ListAsked {
    /// Parses the query of [`list`].
    fn of(state: &AppState, query: Query<'_>) -> Result<ListAsked, ApiError> {
        let of = Asked::of(state, query)?;
        let need = match given(query, "need").as_deref() {
            None => Needs::Whatever,
            Some("any") => Needs::Something,
            Some(text) => {
                let need = Need::ALL.into_iter().find(|need| need.as_str() == text);
                Needs::This(need.ok_or(ApiError::bad("invalid need"))?)
            }
        };
        let sort = given(query, "sort").unwrap_or("need".into());
        let sort = SORTS.into_iter().find(|(name, _)| *name == sort);
        let (_, sort) = sort.ok_or(ApiError::bad("invalid sort"))?;
        let (limit, cursor) = params::page(query, MAX_LISTED)?;
        let after = cursor.map(|Cursor(text)| opened(&text).ok_or(ApiError::BAD_CURSOR)).transpose()?;
        let [part, queue] = ["q", "queue"].map(|name| given(query, name).map(String::from));
        Ok(ListAsked { of, part, queue, need, sort, limit, after })
    }
}

/// Returns the requested queues, from samples.
fn listed(state: &AppState, asked: &ListAsked) -> QueuesReply {
    let ListAsked { of, part, queue, need, sort, limit, after } = asked;
    let samples = of.samples(state);
    let mut whole = String::new();
    let mut has_part = |row: &QueueRow, part: &str| {
        whole.clear();
        whole.extend([row.namespace.as_str(), "/", name(row)]);
        whole.contains(part)
    };
    let mut is_asked_for = |row: &QueueRow| {
        of.namespace.as_ref().is_none_or(|namespace| row.namespace == *namespace)
            && queue.as_ref().is_none_or(|queue| name(row) == queue)
            && part.as_ref().is_none_or(|part| has_part(row, part))
            && need.has(row.need)
    };
    let rows = samples.iter().flat_map(|(pool, sample)| sample.rows.iter().map(move |row| (pool, row)));
    let mut sums = OfQueues::default();
    let mut found: Vec<Ranked<'_>> = rows
        .filter(|(_, row)| is_asked_for(row))
        .inspect(|(_, row)| sums.add(row))
        .map(|(pool, row)| (sort.rank(row), pool, row))
        .filter(|ranked| after.as_ref().is_none_or(|after| after.is_before(ranked)))
        .collect();
    let more = found.len() > *limit;
    if more {
        found.select_nth_unstable_by(*limit, by_place);
        found.truncate(*limit);
    }
    found.sort_unstable_by(by_place);
    QueuesReply {
        server: state.server.name.clone(),
        sampled_at: samples
            .iter()
            .filter_map(|(_, sample)| sample.at)
            .min()
            .map(|at| Instant(state.shown(at))),
        since: Instant(state.shown(state.server.began.wall())),
        pools: samples.iter().map(|(pool, sample)| pool_reply(state, pool, sample)).collect(),
        sums: sums.rounded(),
        queues: found.iter().map(|(_, pool, row)| reply(state, pool, row)).collect(),
        cursor: found.last().filter(|_| more).map(|last| sealed(&RowPlace::of(last))),
    }
}

/// Returns the reply of [`list`] to a query.
pub fn queues(state: &AppState, query: &str) -> Result<QueuesReply, ApiError> {
    Ok(listed(state, &ListAsked::of(state, Query(query))?))
}

/// `GET /queues?pool&namespace&queue&q&need&sort&limit&cursor`
pub async fn list(State(state): App, RawQuery(query): RawQuery) -> HandlerResult {
    Ok(reply::json(StatusCode::OK, &queues(&state, &query.unwrap_or_default())?))
}

fn sealed(place: &RowPlace) -> String {
    // Numbers and texts always serialize.
    URL_SAFE_NO_PAD.encode(serde_json::to_vec(place).unwrap_or_default())
}

/// Parses the position in a cursor of [`listed`].
fn opened(text: &str) -> Option<RowPlace> {
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(text).ok()?).ok()
}

/// Reply of `GET /queues/history`: the history of a queue, or of a sum of queues.
#[derive(Clone, Debug, Serialize)]
pub struct HistoryReply {
    pub server: String,
    /// Start of the first step.
    pub from: Instant,
    /// Length of a step in seconds.
    pub step: u64,
    /// Start of the known history; `None` if there is none.
    pub since: Option<Instant>,
    #[serde(rename = "in")]
    pub entered: Vec<Option<f64>>,
    pub out: Vec<Option<f64>>,
    pub acked: Vec<Option<f64>>,
    pub died: Vec<Option<f64>>,
    pub ready: Vec<Option<u64>>,
    pub delayed: Vec<Option<u64>>,
    pub running: Vec<Option<u64>>,
    pub dead: Vec<Option<u64>>,
    pub oldest_ready_age: Vec<Option<f64>>,
}

/// Returns the subject of a query: a queue, a namespace, a pool, or all pools.
fn whose(state: &AppState, query: Query<'_>) -> Result<Vec<Of>, ApiError> {
    let Asked { pool, namespace } = Asked::of(state, query)?;
    let default = || pool.clone().unwrap_or_else(PoolName::default_pool);
    Ok(match (namespace, given(query, "queue")) {
        (Some(namespace), Some(queue)) if queue == JOB_IDS => vec![Of::Jobs(default(), namespace)],
        (Some(namespace), Some(queue)) => {
            let name = QueueName::parse_for_consume(&queue).map_err(|_| ApiError::bad("invalid queue"))?;
            vec![Of::Queue(default(), Queue { namespace, name })]
        }
        (None, Some(_)) => {
            return Err(ApiError::bad("invalid namespace: a queue requires its namespace"));
        }
        (namespace, None) => {
            let of = |pool: &PoolName| match &namespace {
                Some(namespace) => Of::Namespace(pool.clone(), namespace.clone()),
                None => Of::Pool(pool.clone()),
            };
            let asked = |of: &&PoolName| pool.as_ref().is_none_or(|pool| pool == *of);
            state.pools.keys().filter(asked).map(of).collect()
        }
    })
}

/// `GET /queues/history?pool&namespace&queue&range=hour|day`
pub async fn history(State(state): App, RawQuery(query): RawQuery) -> HandlerResult {
    Ok(reply::json(StatusCode::OK, &history_of(&state, &query.unwrap_or_default())?))
}

/// Returns the reply of [`history`] to a query.
pub fn history_of(state: &AppState, query: &str) -> Result<HistoryReply, ApiError> {
    let query = Query(query);
    let range = match given(query, "range").as_deref() {
        None | Some("hour") => Range::Hour,
        Some("day") => Range::Day,
        Some(_) => return Err(ApiError::bad("invalid range: hour or day")),
    };
    let of = whose(state, query)?;
    let (now, step) = (state.server.began.time() / 1000, range.step());
    let (since, points) = state.operations.history.sum(&of.iter().collect::<Vec<_>>(), range, now);
    let rate = |n: usize| -> Vec<Option<f64>> {
        let rate = |point: &Point| rounded(point.counts[n] as f64 / step as f64);
        points.iter().map(|point| point.as_ref().map(rate)).collect()
    };
    let level = |of: fn(&Point) -> Option<u64>| points.iter().map(|point| of(point.as_ref()?)).collect();
    let age = |point: &Option<Point>| Some(point.as_ref()?.oldest? as f64 / 10.0);
    Ok(HistoryReply {
        server: state.server.name.clone(),
        // A machine whose clock was never set may be in 1970.
        from: Instant(state.shown((now / step + 1).saturating_sub(range.steps()) * step * 1000)),
        step,
        since: since.map(|second| Instant(state.shown(second * 1000))),
        entered: rate(0),
        out: rate(1),
        acked: rate(2),
        died: rate(3),
        ready: level(|point| Some(point.ready)),
        delayed: level(|point| point.delayed),
        running: level(|point| point.running),
        dead: level(|point| Some(point.dead)),
        oldest_ready_age: points.iter().map(age).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Guards against a list with long names that returns a cursor, and then rejects it.
    #[test]
    fn the_cursor_of_the_longest_names_is_taken() {
        let name = "n".repeat(crate::name::MAX_NAME);
        let place = RowPlace((u64::MAX, u64::MAX), name.clone(), name.clone(), name);
        let query = format!("cursor={}", sealed(&place));
        let (_, cursor) = params::page(Query(&query), 1).expect("it is a cursor");
        assert_eq!(cursor.and_then(|Cursor(text)| opened(&text)), Some(place));
    }
}
