//! The admin port's handlers for operators: what the server says of itself, and the access log's switch.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{RawQuery, State};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use tokio::sync::OwnedMutexGuard;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::task::AbortOnDropHandle;

use super::audit::Author;
use crate::engine::nodes::NodesView;
use crate::engine::{QueueSize, together};
use crate::error::{Error, Result};
use crate::http::answer::error::{ApiError, HandlerResult};
use crate::http::answer::reply::{self, AwayOfPool, TEXT};
use crate::http::request::params::Query;
use crate::http::state::{App, AppState, PoolState};
use crate::metrics::{ClusterFigures, Health, Metrics, NodeFigures, QueueFigures};
use crate::name::PoolName;
use crate::process::tasks::beside_the_runtime;
use crate::sampler::{CHECK_TIME, Reading};

/// How long it may take to say how much it holds.
const FIGURES_TIME: Duration = Duration::from_secs(2);
/// How long a scrape waits: for stores, and for its turn to be written.
const SCRAPE_TIME: Duration = Duration::from_millis(2500);

/// `GET /ping`, on both ports: the process answers.
pub async fn ping() -> Response {
    reply::message(StatusCode::OK, "pong")
}

/// `GET /ready` on the admin port: whether load balancers should send requests here.
pub async fn ready(State(state): App, RawQuery(query): RawQuery) -> Response {
    answer_ready(&state, query, |NotReady { who, why }| match why {
        Some(why) => format!("{who}{why}"),
        None => who,
    })
    .await
}

/// The same on the public port, where everybody asks: it shows no address.
pub async fn ready_for_all(State(state): App, RawQuery(query): RawQuery) -> Response {
    answer_ready(&state, query, |NotReady { who, why }| match why {
        Some(_) => format!("{who} cannot be used now"),
        None => who,
    })
    .await
}

/// Names the partitions of clusters that do not work too. With `all=1` one of them is a reason.
async fn answer_ready(
    state: &AppState,
    query: Option<String>,
    text: impl FnOnce(NotReady) -> String,
) -> Response {
    let (reason, away) = tokio::join!(not_ready(state), away(state));
    let needs_all = Query(query.as_deref().unwrap_or_default()).get("all").as_deref() == Some("1");
    let of_parts = || {
        let first = away.first().filter(|_| needs_all)?;
        Some(format!("pool {}: some parts cannot be used now", first.pool))
    };
    reply::readiness(reason.map(text).or_else(of_parts), &away)
}

/// The partitions that do not work.
async fn away(state: &AppState) -> Vec<AwayOfPool> {
    let asked = together::all(state.nodes.iter().map(async |(pool, nodes)| {
        let partitions = nodes.unusable().await.all();
        AwayOfPool { pool: pool.to_string(), partitions }
    }));
    asked.await.into_iter().filter(|of| !of.partitions.is_empty()).collect()
}

/// A reason why the server should get no requests now.
struct NotReady {
    /// What everybody may know.
    who: String,
    /// More, for operators.
    why: Option<String>,
}

/// The first reason.
async fn not_ready(state: &AppState) -> Option<NotReady> {
    if let Some(failure) = state.readiness.failure() {
        return Some(NotReady { who: "the server".into(), why: Some(format!(": {failure}")) });
    }
    if state.readiness.is_draining() {
        return Some(NotReady { who: "the server is shutting down".into(), why: None });
    }
    for pool in state.pools.values() {
        let who = format!("pool {}", pool.name);
        if let Some(why) = store_problem(pool.engine.check()).await {
            return Some(NotReady { who, why: Some(why) });
        }
    }
    let why = store_problem(state.tokens.store().check()).await?;
    Some(NotReady { who: "the token store".into(), why: Some(why) })
}

/// Why a store cannot be used now, as said behind its name. `check` is the question to it.
async fn store_problem(check: impl Future<Output = Result<()>>) -> Option<String> {
    match timeout(CHECK_TIME, check).await {
        Ok(Ok(())) => None,
        Ok(Err(error)) => Some(format!(": {error}")),
        Err(_) => Some(" does not answer".into()),
    }
}

/// `GET /pools`
pub async fn pools(State(state): App) -> Response {
    let names: Vec<&str> = state.pools.keys().map(PoolName::as_str).collect();
    reply::indented(StatusCode::OK, &names)
}

/// `GET /version`
pub async fn version() -> Response {
    reply::indented(StatusCode::OK, &crate::process::version::Build::current())
}

/// `GET /info?pool`: every namespace and its queues. An unknown pool has no answer, as in lmstfy.
pub async fn info(State(state): App, RawQuery(query): RawQuery) -> HandlerResult {
    let query = query.unwrap_or_default();
    let name = Query(&query).get("pool").filter(|name| !name.is_empty()).unwrap_or("default".into());
    let Some(pool) = PoolName::parse(&name).ok().and_then(|name| state.pools.get(&name)) else {
        return Ok(Response::new(Body::empty()));
    };
    let queues = pool.engine.stats().await?.queues;
    let text = beside_the_runtime(move || {
        let mut namespaces: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for QueueSize { queue, .. } in &queues {
            namespaces.entry(queue.namespace.as_str()).or_default().push(queue.name.as_str());
        }
        reply::indented_text(&namespaces)
    });
    Ok(reply::with_body(StatusCode::OK, TEXT, text.await.into()))
}

/// What one pool's store said to a scrape.
struct Asked {
    pool: PoolName,
    /// Whether the store can be used.
    up: bool,
    said: Reading,
    /// Of a cluster.
    nodes: Option<NodesView>,
}

/// `GET /metrics`. Takes [`SCRAPE_TIME`] at most, and what is written then, whatever hangs.
pub async fn metrics(State(state): App) -> Response {
    let end = Instant::now() + SCRAPE_TIME;
    // All together. When the asker leaves, they end.
    let ask = |pool: &Arc<PoolState>| {
        let nodes = state.nodes.get(&pool.name).cloned();
        let (pool, sampler) = (pool.name.clone(), pool.sampler.clone());
        let of_nodes = async move {
            match nodes {
                Some(nodes) => timeout(FIGURES_TIME, nodes.view()).await.ok(),
                None => None,
            }
        };
        state.tasks.spawn(async move {
            let ((up, said), nodes) = tokio::join!(sampler.scrape(FIGURES_TIME), of_nodes);
            Asked { pool, up, said, nodes }
        })
    };
    let asking: Vec<_> = state.pools.values().map(|pool| AbortOnDropHandle::new(ask(pool))).collect();
    let tokens = timeout(CHECK_TIME, state.tokens.store().check()).await;
    let mut asked = Vec::new();
    for pool in asking {
        // One that does not answer is away; a panic was logged.
        asked.extend(timeout_at(end, pool).await.ok().and_then(|asked| asked.ok()));
    }
    let pools = state
        .pools
        .keys()
        .map(|name| (name.clone(), asked.iter().any(|asked: &Asked| asked.pool == *name && asked.up)));
    let (pools, tokens): (Vec<_>, _) = (pools.collect(), matches!(tokens, Ok(Ok(()))));
    let serves = !state.readiness.is_draining() && state.readiness.failure().is_none();
    let ready = serves && tokens && pools.iter().all(|(_, up)| *up);
    let Ok(alone) = timeout_at(end, state.scrape.clone().lock_owned()).await else {
        return ApiError::from(Error::Overloaded).into_response();
    };
    state.metrics.parked(state.parked.places());
    state.metrics.health(&Health { ready, tokens, pools });
    let text = written(state.metrics.clone(), asked, alone).await;
    reply::with_body(StatusCode::OK, HeaderValue::from_static(prometheus::TEXT_FORMAT), text.into())
}

/// The text of a scrape. With ten thousand queues it takes some tenths of a second, so it is made beside the runtime.
/// `alone` is kept there, also when the asker leaves meanwhile.
async fn written(metrics: Arc<Metrics>, asked: Vec<Asked>, alone: OwnedMutexGuard<()>) -> Vec<u8> {
    beside_the_runtime(move || {
        let _alone = alone;
        for Asked { pool, said: Reading { stats, paused }, nodes, .. } in &asked {
            if let Some(nodes) = nodes {
                metrics.nodes(pool, &of_nodes(nodes));
            }
            metrics.paused(pool, paused.iter().flat_map(|paused| paused.keys()));
            let Some(stats) = stats else { continue };
            metrics.sizes(pool, stats.timers, stats.overdue, stats.queues.iter().map(figures));
            for (name, value) in &stats.gauges {
                metrics.store_figure(pool, name, *value);
            }
        }
        let text = metrics.text();
        metrics.forget_figures();
        text
    })
    .await
}

fn of_nodes(view: &NodesView) -> ClusterFigures<'_> {
    let of = &view.unusable;
    let nodes = view.nodes.iter().map(|node| NodeFigures {
        addr: &node.addr,
        partitions: node.parts,
        clock: node.clock,
        gauges: &node.gauges,
    });
    ClusterFigures {
        nodes: nodes.collect(),
        unusable: [("away", of.away.len()), ("moving", of.moving.len()), ("split", of.split.len())],
        redirections: &view.redirections,
    }
}

fn figures(size: &QueueSize) -> QueueFigures<'_> {
    let QueueSize { queue, ready, dead, delayed, running, oldest_ready, .. } = size;
    QueueFigures {
        queue,
        ready: *ready,
        dead: *dead,
        delayed: *delayed,
        running: *running,
        oldest_ready: *oldest_ready,
    }
}

fn access_log_status(enabled: bool) -> Response {
    #[derive(Serialize)]
    struct Status {
        status: &'static str,
    }
    reply::json(StatusCode::OK, &Status { status: if enabled { "enabled" } else { "disabled" } })
}

/// `GET /accesslog`
pub async fn get_access_log(State(state): App) -> Response {
    access_log_status(state.access_log.load(Ordering::Relaxed))
}

/// `POST /accesslog?status=enable|disable`
pub async fn set_access_log(State(state): App, by: Author, RawQuery(query): RawQuery) -> HandlerResult {
    let enabled = match Query(query.as_deref().unwrap_or_default()).get("status").as_deref() {
        Some("enable") => true,
        Some("disable") => false,
        _ => return Err(ApiError::bad("invalid status")),
    };
    state.access_log.store(enabled, Ordering::Relaxed);
    by.switched(if enabled { "the access log was switched on" } else { "the access log was switched off" });
    Ok(access_log_status(enabled))
}

#[cfg(test)]
mod tests {
    use tokio::sync::Mutex;

    use super::*;
    use crate::engine::Stats;
    use crate::name::{Namespace, Queue, QueueName};

    const QUEUES: usize = 2_000;

    /// As many queues, each with `ready` ready jobs.
    fn sizes(ready: u64) -> Vec<Asked> {
        let queue = |n| Queue {
            namespace: Namespace::parse("ns").expect("a literal"),
            name: QueueName::parse(&format!("q{n}")).expect("a name"),
        };
        let size = |n| QueueSize {
            queue: queue(n),
            ready,
            dead: 0,
            delayed: None,
            running: None,
            oldest_ready: None,
            head: None,
        };
        let stats = Stats { queues: (0..QUEUES).map(size).collect(), ..Stats::default() };
        let said = Reading { stats: Some(Arc::new(stats)), paused: None };
        vec![Asked { pool: PoolName::default_pool(), up: true, said, nodes: None }]
    }

    /// Guards against a scrape that holds up all requests while it is written, on the runtime of one thread too.
    #[tokio::test]
    async fn a_scrape_of_many_queues_holds_up_nobody() {
        let (metrics, alone) = (Arc::new(Metrics::default()), Arc::new(Mutex::new(())));
        let mut turns = 0;
        let others = async {
            loop {
                tokio::task::yield_now().await;
                turns += 1;
            }
        };
        tokio::select! {
            biased;
            () = others => unreachable!("it has no end"),
            text = written(metrics, sizes(1), alone.lock_owned().await) => assert!(!text.is_empty(), "a text"),
        }
        assert!(turns > 10, "others had {turns} turns while a scrape was written");
    }

    /// Guards against a scrape whose asker has left, and that goes on beside the next one.
    #[tokio::test]
    async fn two_scrapes_do_not_mix() {
        let (metrics, alone) = (Arc::new(Metrics::default()), Arc::new(Mutex::new(())));
        for ready in [1, 2, 3] {
            let mut left = Box::pin(written(metrics.clone(), sizes(7), alone.clone().lock_owned().await));
            let begun = std::future::poll_fn(|cx| std::task::Poll::Ready(left.as_mut().poll(cx))).await;
            assert!(begun.is_pending(), "it is made beside the runtime");
            drop(left);
            let text = written(metrics.clone(), sizes(ready), alone.clone().lock_owned().await).await;
            let text = String::from_utf8(text).expect("it is text");
            let lines = text.lines().filter(|line| line.starts_with("infra_lmstfy_redis_queue_sizes{"));
            let of_this = lines.filter(|line| line.ends_with(&format!(" {ready}"))).count();
            assert_eq!(of_this, QUEUES, "queues that have {ready} jobs");
        }
    }
}
