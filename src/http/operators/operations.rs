//! The admin port's handlers about the server: health, metrics, version, pools, access log.

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
use crate::dispatch::Pause;
use crate::engine::nodes::NodesView;
use crate::engine::{QueueSize, together};
use crate::error::{Error, Result};
use crate::http::answer::error::{ApiError, HandlerResult};
use crate::http::answer::reply::{self, AwayOfPool, TEXT};
use crate::http::request::params::Query;
use crate::http::state::{App, AppState, PoolState};
use crate::metrics::{ClusterStatistics, Health, Metrics, NodeStatistics, QueueStatistics};
use crate::name::{PoolName, Queue};
use crate::process::tasks::beside_the_runtime;
use crate::sampler::{CHECK_TIME, Reading};

/// Timeout for reading a store's statistics.
const FIGURES_TIME: Duration = Duration::from_secs(2);
/// Timeout of a scrape: for stores, and for its turn to be written.
const SCRAPE_TIME: Duration = Duration::from_millis(2500);

/// `GET /ping`, on both ports: the process responds.
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

/// `GET /ready` on the public port, which needs no token: the reply contains no address.
pub async fn ready_for_all(State(state): App, RawQuery(query): RawQuery) -> Response {
    answer_ready(&state, query, |NotReady { who, why }| match why {
        Some(_) => format!("{who} cannot be used now"),
        None => who,
    })
    .await
}

/// Also names unavailable partitions of clusters. With `all=1`, one of them makes the server not ready.
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

/// Returns the unavailable partitions.
async fn away(state: &AppState) -> Vec<AwayOfPool> {
    let asked = together::all(state.operations.nodes.iter().map(async |(pool, nodes)| {
        let partitions = nodes.unusable().await.all();
        AwayOfPool { pool: pool.to_string(), partitions }
    }));
    asked.await.into_iter().filter(|of| !of.partitions.is_empty()).collect()
}

/// Why the server should get no requests now.
struct NotReady {
    /// The part that is shown without authentication.
    who: String,
    /// Details for operators.
    why: Option<String>,
}

/// Returns the first reason.
async fn not_ready(state: &AppState) -> Option<NotReady> {
    if let Some(failure) = state.server.readiness.failure() {
        return Some(NotReady { who: "the server".into(), why: Some(format!(": {failure}")) });
    }
    if state.server.readiness.is_draining() {
        return Some(NotReady { who: "the server is shutting down".into(), why: None });
    }
    for pool in state.pools.values() {
        let who = format!("pool {}", pool.name);
        if let Some(why) = store_problem(pool.engine.check()).await {
            return Some(NotReady { who, why: Some(why) });
        }
    }
    let why = store_problem(state.access.tokens.store().check()).await?;
    Some(NotReady { who: "the token store".into(), why: Some(why) })
}

/// Returns why a store cannot be used now, to be appended to its name. `check` is the call that finds out.
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

/// `GET /info?pool`: every namespace and its queues. For an unknown pool the reply is empty, as in lmstfy.
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

/// Results of a scrape from one pool.
struct Asked {
    pool: PoolName,
    /// Whether the store can be used.
    up: bool,
    said: Reading,
    paused: BTreeMap<Queue, Pause>,
    /// Present for a cluster.
    nodes: Option<NodesView>,
}

/// `GET /metrics`. Replies within [`SCRAPE_TIME`], with the data read by then.
pub async fn metrics(State(state): App) -> Response {
    let end = Instant::now() + SCRAPE_TIME;
    // Concurrently. If the client disconnects, the tasks end.
    let ask = |pool: &Arc<PoolState>| {
        let nodes = state.operations.nodes.get(&pool.name).cloned();
        let (pool, sampler, dispatcher) = (pool.name.clone(), pool.sampler.clone(), pool.dispatcher.clone());
        let of_nodes = async move {
            match nodes {
                Some(nodes) => timeout(FIGURES_TIME, nodes.view()).await.ok(),
                None => None,
            }
        };
        state.server.tasks.spawn(async move {
            let ((up, said), nodes) = tokio::join!(sampler.scrape(FIGURES_TIME), of_nodes);
            Asked { pool, up, said, paused: dispatcher.pauses(), nodes }
        })
    };
    let asking: Vec<_> = state.pools.values().map(|pool| AbortOnDropHandle::new(ask(pool))).collect();
    let tokens = timeout(CHECK_TIME, state.access.tokens.store().check()).await;
    let mut asked = Vec::new();
    for pool in asking {
        // A store that does not reply in time counts as unavailable; a panic was logged.
        asked.extend(timeout_at(end, pool).await.ok().and_then(|asked| asked.ok()));
    }
    let pools = state
        .pools
        .keys()
        .map(|name| (name.clone(), asked.iter().any(|asked: &Asked| asked.pool == *name && asked.up)));
    let (pools, tokens): (Vec<_>, _) = (pools.collect(), matches!(tokens, Ok(Ok(()))));
    let serves = !state.server.readiness.is_draining() && state.server.readiness.failure().is_none();
    let ready = serves && tokens && pools.iter().all(|(_, up)| *up);
    let Ok(alone) = timeout_at(end, state.traffic.scrape.clone().lock_owned()).await else {
        return ApiError::from(Error::Overloaded).into_response();
    };
    state.traffic.metrics.parked(state.bounds.parked.places());
    state.traffic.metrics.health(&Health { ready, tokens, pools });
    let text = written(state.traffic.metrics.clone(), asked, alone).await;
    reply::with_body(StatusCode::OK, HeaderValue::from_static(prometheus::TEXT_FORMAT), text.into())
}

/// Renders a scrape, on a separate thread: with ten thousand queues it takes some tenths of a second. `alone` is held
/// there, also if the client disconnects meanwhile.
async fn written(metrics: Arc<Metrics>, asked: Vec<Asked>, alone: OwnedMutexGuard<()>) -> Vec<u8> {
    beside_the_runtime(move || {
        let _alone = alone;
        for Asked { pool, said: stats, paused, nodes, .. } in &asked {
            if let Some(nodes) = nodes {
                metrics.nodes(pool, &of_nodes(nodes));
            }
            metrics.paused(pool, paused.keys());
            let Some(stats) = stats else { continue };
            metrics.sizes(pool, stats.timers, stats.overdue, stats.queues.iter().map(figures));
            for (name, value) in &stats.gauges {
                metrics.store_figure(pool, name, *value);
            }
        }
        let text = metrics.text();
        metrics.clear_store_statistics();
        text
    })
    .await
}

fn of_nodes(view: &NodesView) -> ClusterStatistics<'_> {
    let of = &view.unusable;
    let nodes = view.nodes.iter().map(|node| NodeStatistics {
        addr: &node.addr,
        partitions: node.parts,
        clock: node.clock,
        gauges: &node.gauges,
    });
    ClusterStatistics {
        nodes: nodes.collect(),
        unusable: [("away", of.away.len()), ("moving", of.moving.len()), ("split", of.split.len())],
        redirections: &view.redirections,
    }
}

fn figures(size: &QueueSize) -> QueueStatistics<'_> {
    let QueueSize { queue, ready, dead, delayed, running, oldest_ready, estimated, .. } = size;
    QueueStatistics {
        queue,
        ready: *ready,
        dead: *dead,
        delayed: *delayed,
        running: *running,
        oldest_ready: *oldest_ready,
        estimated: estimated.timers,
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
    access_log_status(state.traffic.access_log.load(Ordering::Relaxed))
}

/// `POST /accesslog?status=enable|disable`
pub async fn set_access_log(State(state): App, by: Author, RawQuery(query): RawQuery) -> HandlerResult {
    let enabled = match Query(query.as_deref().unwrap_or_default()).get("status").as_deref() {
        Some("enable") => true,
        Some("disable") => false,
        _ => return Err(ApiError::bad("invalid status")),
    };
    state.traffic.access_log.store(enabled, Ordering::Relaxed);
    by.switched(if enabled { "the access log was switched on" } else { "the access log was switched off" });
    Ok(access_log_status(enabled))
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use tokio::runtime::Builder;
    use tokio::sync::Mutex;

    use super::*;
    use crate::engine::{Estimated, Stats};
    use crate::name::{Namespace, Queue, QueueName};

    const QUEUES: usize = 2_000;

    /// Returns many queues, each with `ready` ready jobs.
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
            estimated: Estimated::default(),
            head: None,
        };
        let stats = Stats { queues: (0..QUEUES).map(size).collect(), ..Stats::default() };
        let said = Some(Arc::new(stats));
        vec![Asked { pool: PoolName::default_pool(), up: true, said, paused: BTreeMap::new(), nodes: None }]
    }

    /// Runs a test on a runtime whose only thread for blocking work is busy until the sender is used or dropped.
    fn beside_a_busy_thread(test: impl AsyncFnOnce(mpsc::Sender<()>)) {
        let (free, busy) = mpsc::channel();
        let runtime = Builder::new_current_thread().max_blocking_threads(1).build().expect("a runtime");
        runtime.spawn_blocking(move || {
            let _ = busy.recv();
        });
        runtime.block_on(test(free));
    }

    /// Guards against a scrape that blocks all requests while it is rendered, also on a runtime with one thread.
    #[test]
    fn a_scrape_of_many_queues_holds_up_nobody() {
        beside_a_busy_thread(async |free| {
            let (metrics, alone) = (Arc::new(Metrics::default()), Arc::new(Mutex::new(())));
            let mut turns = 0;
            let others = async {
                loop {
                    tokio::task::yield_now().await;
                    turns += 1;
                    if turns == 10 {
                        free.send(()).expect("the thread is busy");
                    }
                }
            };
            tokio::select! {
                biased;
                () = others => unreachable!("it has no end"),
                text = written(metrics, sizes(1), alone.lock_owned().await) => assert!(!text.is_empty(), "a text"),
            }
            assert!(turns >= 10, "others had {turns} turns while a scrape was written");
        });
    }

    /// Guards against a scrape whose client has left, and that runs in parallel with the next.
    #[test]
    fn two_scrapes_do_not_mix() {
        for ready in [1, 2, 3] {
            beside_a_busy_thread(async |free| {
                let (metrics, alone) = (Arc::new(Metrics::default()), Arc::new(Mutex::new(())));
                let mut left = Box::pin(written(metrics.clone(), sizes(7), alone.clone().lock_owned().await));
                let begun = std::future::poll_fn(|cx| std::task::Poll::Ready(left.as_mut().poll(cx))).await;
                assert!(begun.is_pending(), "it is made beside the runtime");
                drop((left, free));
                let text = written(metrics, sizes(ready), alone.lock_owned().await).await;
                let text = String::from_utf8(text).expect("it is text");
                let lines = text.lines().filter(|line| line.starts_with("infra_lmstfy_redis_queue_sizes{"));
                let of_this = lines.filter(|line| line.ends_with(&format!(" {ready}"))).count();
                assert_eq!(of_this, QUEUES, "queues that have {ready} jobs");
            });
        }
    }
}
