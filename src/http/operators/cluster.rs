//! A pool in a Redis Cluster, as operators see it.

use axum::extract::{RawQuery, State};
use axum::http::StatusCode;
use serde::Serialize;

use super::names;
use crate::engine::Estimated;
use crate::engine::nodes::{JobsOfPart, NodeView, NodesView, PartNumber, QueuePlaces, Unusable};
use crate::http::answer::error::{ApiError, HandlerResult};
use crate::http::answer::reply;
use crate::http::request::params::Query;
use crate::http::state::{App, AppState};
use crate::name::Queue;
use crate::time::Instant;

/// Reply of `GET /cluster`. Dashboard pages show it too.
#[derive(Debug, Serialize)]
pub struct ClusterReply {
    pub pool: String,
    pub prefix: String,
    pub partitions: PartNumber,
    pub wait_replicas: u16,
    pub nodes: Vec<NodeReply>,
    pub away: Vec<PartNumber>,
    pub moving: Vec<PartNumber>,
    pub split: Vec<PartNumber>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<PlacesReply>,
}

#[derive(Debug, Serialize)]
pub struct NodeReply {
    pub id: String,
    pub addr: String,
    pub up: bool,
    pub since: Instant,
    pub partitions: PartNumber,
    pub replicas: Option<u64>,
    pub used_memory: Option<u64>,
    pub clock_ms: Option<f64>,
    pub version: Option<String>,
}

/// The partitions of a queue.
#[derive(Debug, Serialize)]
pub struct PlacesReply {
    home: PartNumber,
    spread: bool,
    jobs: Vec<PartReply>,
}

#[derive(Debug, Serialize)]
struct PartReply {
    partition: PartNumber,
    node: Option<String>,
    ready: u64,
    delayed: u64,
    running: u64,
    dead: u64,
    #[serde(skip_serializing_if = "Estimated::is_none")]
    estimated: Estimated,
}

/// `GET /cluster?pool&namespace&queue`
pub async fn show(State(state): App, RawQuery(query): RawQuery) -> HandlerResult {
    Ok(reply::json(StatusCode::OK, &cluster(&state, &query.unwrap_or_default()).await?))
}

/// Returns the reply of [`show`] to a query.
pub async fn cluster(state: &AppState, query: &str) -> Result<ClusterReply, ApiError> {
    let query = Query(query);
    let pool = state.pools.named(query.get("pool").as_deref().unwrap_or_default())?;
    let queue = match names::in_query(query)? {
        (None, _) => None,
        (Some(namespace), Some(name)) => Some(Queue { namespace, name }),
        (Some(_), None) => return Err(ApiError::bad("invalid queue: a namespace alone has no partition")),
    };
    let Some(nodes) = state.operations.nodes.get(&pool.name) else {
        return Err(ApiError::bad("the pool is not in a cluster"));
    };
    let places = match &queue {
        Some(queue) => Some(nodes.places(queue).await?),
        None => None,
    };
    let NodesView { prefix, parts, wait_replicas, nodes, unusable, .. } = nodes.view().await;
    let Unusable { away, moving, split } = unusable;
    Ok(ClusterReply {
        pool: pool.name.to_string(),
        prefix,
        partitions: parts,
        wait_replicas,
        nodes: nodes.into_iter().map(node).collect(),
        away,
        moving,
        split,
        queue: places.map(places_of),
    })
}

fn node(of: NodeView) -> NodeReply {
    let NodeView { id, addr, up, since, parts, replicas, used_memory, clock, version, gauges: _ } = of;
    let (since, clock_ms) = (Instant(since), clock.map(|micros| micros as f64 / 1000.0));
    NodeReply { id, addr, up, since, partitions: parts, replicas, used_memory, clock_ms, version }
}

fn places_of(QueuePlaces { home, spread, jobs }: QueuePlaces) -> PlacesReply {
    let jobs = jobs.into_iter().map(|of| {
        let JobsOfPart { part, node, ready, delayed, running, dead, estimated } = of;
        PartReply { partition: part, node, ready, delayed, running, dead, estimated }
    });
    PlacesReply { home, spread, jobs: jobs.collect() }
}
