//! The two ports: routes, what handlers share, and nothing about how a store works. Only this folder knows
//! axum.

mod admin;
mod body;
pub mod connection;
mod delivered;
mod error;
mod extract;
mod jobs;
mod middleware;
mod params;
mod reply;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::Router;
use axum::middleware::from_fn_with_state;
use axum::routing::{MethodRouter, delete, get, post, put};
use parking_lot::Mutex;
use tokio::sync::Semaphore;

use crate::admin::limits::Throttle;
use crate::admin::tokens::Tokens;
use crate::config::Secret;
use crate::dispatch::{Dispatcher, Parking};
use crate::engine::Engine;
use crate::job::JobIds;
use crate::metrics::Metrics;
use crate::name::PoolName;
use crate::outage::Outage;

/// How much the bodies of all bulks that are under way may take, in KiB: eight of the largest.
pub const BULK_ROOM: usize = 8 * 65 * 1024;

/// A pool, as requests see it.
#[derive(Debug)]
pub struct Pool {
    pub name: PoolName,
    pub engine: Arc<dyn Engine>,
    pub dispatcher: Arc<Dispatcher>,
    /// Hears of requests that fail, and of those that work.
    pub outage: Arc<Outage>,
    /// Ids of the jobs published to this pool.
    pub ids: JobIds,
}

/// What publish and consume take where the caller says nothing.
#[derive(Debug, Clone, Copy)]
pub struct Defaults {
    /// Seconds; 0 is forever.
    pub ttl: u32,
    /// Seconds.
    pub delay: u32,
    pub tries: u16,
    /// Seconds.
    pub ttr: u32,
    /// Seconds.
    pub timeout: u32,
}

/// What a server can do now, and why not.
#[derive(Debug, Default)]
pub struct Readiness {
    draining: AtomicBool,
    failed: Mutex<Option<String>>,
}

impl Readiness {
    /// The server goes down: load balancers should send no more.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::SeqCst);
    }

    /// A part has failed for good.
    pub fn fail(&self, why: String) {
        self.failed.lock().get_or_insert(why);
    }

    /// Why the server should get no requests now.
    pub fn problem(&self) -> Option<String> {
        if self.draining.load(Ordering::SeqCst) {
            return Some("the server is shutting down".into());
        }
        self.failed.lock().clone()
    }
}

/// What every handler may use.
#[derive(Debug)]
pub struct State {
    pub pools: BTreeMap<PoolName, Arc<Pool>>,
    pub tokens: Arc<Tokens>,
    pub throttle: Arc<Throttle>,
    pub defaults: Defaults,
    pub metrics: Arc<Metrics>,
    /// How many polls are parked, over all pools.
    pub parking: Arc<Parking>,
    pub readiness: Arc<Readiness>,
    /// Held while a scrape sets the sizes and writes them, so that another's do not come in between.
    pub scrape: Mutex<()>,
    /// `-sv`: every token is good.
    pub skip_verification: bool,
    /// Who may use the guarded routes of the admin port; empty: everybody.
    pub accounts: BTreeMap<String, Secret>,
    /// Room for the bodies of bulks, in KiB: bounds the memory that they take together.
    pub bulk_room: Semaphore,
    /// Whether requests are logged.
    pub access_log: AtomicBool,
}

/// The public port.
pub fn api(state: Arc<State>) -> Router {
    let routes = Router::new()
        .route("/api/{namespace}/{queue}", only(put(jobs::publish).get(jobs::consume).delete(jobs::destroy)))
        .route("/api/{namespace}/{queue}/bulk", only(put(jobs::publish_bulk)))
        .route(
            "/api/{namespace}/{queue}/job/{job_id}",
            only(put(jobs::republish).get(jobs::peek_job).delete(jobs::ack)),
        )
        .route("/api/{namespace}/{queue}/peek", only(get(jobs::peek)))
        .route("/api/{namespace}/{queue}/size", only(get(jobs::size)))
        .route(
            "/api/{namespace}/{queue}/deadletter",
            only(get(jobs::dead_letter).put(jobs::respawn).delete(jobs::delete_dead)),
        )
        .route("/api/{namespace}/{queue}/deadletter/size", only(get(jobs::dead_letter_size)))
        .route("/ping", only(get(admin::ping)));
    finish(routes, state)
}

/// The admin port. With accounts, the routes that hand out or change rights ask for one.
pub fn admin(state: Arc<State>) -> Router {
    let guarded = Router::new()
        .route("/token/{namespace}", only(get(admin::list_tokens).post(admin::create_token)))
        .route("/token/{namespace}/{token}", only(delete(admin::delete_token)))
        .route(
            "/token/{namespace}/{token}/limit",
            only(
                get(admin::get_limit)
                    .post(admin::add_limit)
                    .put(admin::set_limit)
                    .delete(admin::remove_limit),
            ),
        )
        .route("/limits", only(get(admin::list_limits)))
        .route("/accesslog", only(post(admin::set_access_log)))
        .route_layer(from_fn_with_state(state.clone(), middleware::basic_auth));
    let open = Router::new()
        .route("/pools", only(get(admin::pools)))
        .route("/info", only(get(admin::info)))
        .route("/version", only(get(admin::version)))
        .route("/metrics", only(get(admin::metrics)))
        .route("/accesslog", get(admin::get_access_log))
        .route("/ping", only(get(admin::ping)))
        .route("/ready", only(get(admin::ready)));
    finish(guarded.merge(open), state)
}

/// A route's other methods are unknown to it, not forbidden: lmstfy answers 404 to both. HEAD is one of them:
/// axum would run the GET handler for it, and a HEAD of a queue would take a job that nobody gets to see.
fn only(methods: MethodRouter<Arc<State>>) -> MethodRouter<Arc<State>> {
    methods.head(reply::not_found).fallback(reply::not_found)
}

fn finish(routes: Router<Arc<State>>, state: Arc<State>) -> Router {
    routes
        .fallback(reply::not_found)
        .layer(from_fn_with_state(state.clone(), middleware::observe))
        .with_state(state)
}
