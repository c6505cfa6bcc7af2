//! The two HTTP ports: their routes, and the state that handlers share. Only this folder knows axum and hyper. It
//! names no store: it reaches jobs through the dispatcher and the `Engine` trait, tokens and limits through
//! `admin`.

mod admission;
mod attributes;
mod audit;
mod batch;
mod body;
pub mod connection;
pub mod cursors;
mod dead_letter;
mod delivered;
mod error;
mod extract;
mod fast_path;
mod head_timer;
mod hold;
mod idempotency;
mod jobs;
mod lists;
mod logins;
mod middleware;
mod operations;
mod origin;
mod params;
pub mod parked_tokens;
mod pause;
mod publish;
mod push;
mod quotas;
mod reply;
pub mod room;
mod time;
mod tokens;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::Router;
use axum::extract::State;
use axum::middleware::from_fn_with_state;
use axum::response::Response;
use axum::routing::{MethodRouter, delete, get, post, put};

use self::cursors::Cursors;
use self::error::ApiError;
pub use self::fast_path::Api;
use self::fast_path::JOB;
pub use self::idempotency::UnderWay;
pub use self::logins::FailedLogins;
use self::middleware::Observe;
use self::origin::Guard;
pub use self::origin::OwnNames;
use self::parked_tokens::ParkedTokens;
use self::room::BodyRoom;
use crate::admin::limits::Throttle;
use crate::admin::quotas::QuotaManager;
use crate::admin::tokens::TokenManager;
use crate::config::Secret;
use crate::dispatch::{Dispatcher, ParkedPolls};
use crate::engine::Engine;
use crate::job::JobIds;
use crate::metrics::Metrics;
use crate::name::PoolName;
use crate::outage::Outage;
use crate::process::tasks::{Failure, Tasks};
use crate::push::Push;

/// The largest job, in bytes.
const MAX_JOB: usize = 1 << 20;
/// The most bytes of jobs that an answer shows, unless its first job is larger. Of a consume the others go back.
const MAX_ANSWER: usize = 8 << 20;

/// How a handler takes the state.
type App = State<Arc<AppState>>;
/// What a handler returns.
type HandlerResult = Result<Response, ApiError>;

/// What requests need of a pool.
#[derive(Debug)]
pub struct PoolState {
    pub name: PoolName,
    pub engine: Arc<dyn Engine>,
    pub dispatcher: Arc<Dispatcher>,
    /// Hears of requests that fail, and of those that work.
    pub outage: Arc<Outage>,
    /// Ids of the jobs published to this pool.
    pub ids: Arc<JobIds>,
}

/// What publish and consume take for parameters that are not given.
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

/// Whether the server should get requests.
#[derive(Debug)]
pub struct Readiness {
    draining: AtomicBool,
    failure: Failure,
}

impl Readiness {
    /// Ready until `failure` is reported, or the server is told to stop.
    pub fn new(failure: Failure) -> Readiness {
        Readiness { draining: AtomicBool::new(false), failure }
    }

    /// The server stops: load balancers should send no more.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::SeqCst);
    }

    /// Whether the server stops.
    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    /// Why the server should get no requests now.
    pub fn problem(&self) -> Option<String> {
        match self.failure.reason() {
            Some(reason) => Some(reason.to_owned()),
            None if self.draining.load(Ordering::SeqCst) => Some("the server is shutting down".into()),
            None => None,
        }
    }
}

/// What every handler may use.
#[derive(Debug)]
pub struct AppState {
    pub pools: BTreeMap<PoolName, Arc<PoolState>>,
    /// Queues whose jobs are sent to a URL.
    pub push: Arc<Push>,
    pub tokens: TokenManager,
    pub throttle: Arc<Throttle>,
    pub cursors: Cursors,
    pub quotas: Arc<QuotaManager>,
    pub defaults: Defaults,
    pub metrics: Arc<Metrics>,
    /// How many polls are parked, over all pools.
    pub parked: Arc<ParkedPolls>,
    /// The tokens that they wait with.
    pub parked_tokens: ParkedTokens,
    pub readiness: Readiness,
    /// Held while a scrape sets the sizes and writes them out, so that two scrapes do not mix.
    pub scrape: Arc<tokio::sync::Mutex<()>>,
    /// `-sv`: every token is accepted.
    pub skip_verification: bool,
    /// Users and passwords for the guarded routes of the admin port. Empty: everybody may use them.
    pub accounts: BTreeMap<String, Secret>,
    /// Bounds the memory that large bodies take together.
    pub body_room: BodyRoom,
    /// The publishes with an idempotency key that are under way.
    pub under_way: Arc<UnderWay>,
    /// Who has tried wrong passwords lately.
    pub failed_logins: FailedLogins,
    /// Whether requests are logged.
    pub access_log: AtomicBool,
    /// Where handlers start tasks that outlive their request.
    pub tasks: Tasks,
}

/// The public port. With `-sv` on loopback no token keeps a page out that has its own name lead there.
pub fn api(state: Arc<AppState>, names: OwnNames) -> Api {
    let names = (state.skip_verification && names.loopback).then(|| Arc::new(names));
    let observe = Observe { state, guard: Guard::Public(names) };
    Api::new(observe.clone(), finish(routes_of_lmstfy().merge(our_routes()), observe))
}

/// The routes that lmstfy has, with its methods. The fast path goes before all routes of the public port: it answers
/// publish, consume and ack by the same handlers, and no other route may be among what it finds.
fn routes_of_lmstfy() -> Router<Arc<AppState>> {
    Router::new()
        .route(origin::CONSUME, only(put(publish::publish).get(jobs::consume).delete(jobs::destroy)))
        .route("/api/{namespace}/{queue}/bulk", only(put(publish::publish_bulk)))
        .route(JOB, only(put(publish::republish).get(lists::job).delete(hold::ack)))
        .route("/api/{namespace}/{queue}/peek", only(get(jobs::peek)))
        .route("/api/{namespace}/{queue}/size", only(get(jobs::size)))
        .route(
            "/api/{namespace}/{queue}/deadletter",
            only(get(dead_letter::show).put(dead_letter::respawn).delete(dead_letter::delete)),
        )
        .route("/api/{namespace}/{queue}/deadletter/size", only(get(dead_letter::size)))
}

/// The routes that lmstfy does not have. To them it says 404.
fn our_routes() -> Router<Arc<AppState>> {
    Router::new()
        .route("/api/{namespace}", only(get(lists::queues)))
        .route("/api/{namespace}/{queue}/jobs", only(post(publish::publish_one).get(lists::jobs)))
        .route("/api/{namespace}/{queue}/jobs/batch", only(post(publish::publish_batch)))
        .route("/api/{namespace}/{queue}/key/{key}", only(get(lists::job_of_key).delete(lists::cancel_key)))
        .route("/api/{namespace}/{queue}/ack", only(post(hold::ack_many)))
        .route("/api/{namespace}/{queue}/job/{job_id}/touch", only(post(hold::touch)))
        .route("/api/{namespace}/{queue}/job/{job_id}/release", only(post(hold::release)))
        .route("/api/{namespace}/{queue}/job/{job_id}/bury", only(post(hold::bury)))
        .route("/api/{namespace}/{queue}/job/{job_id}/respawn", only(post(dead_letter::respawn_job)))
        .route("/api/{namespace}/{queue}/deadletter/respawn", only(post(dead_letter::respawn_jobs)))
        .route("/api/{namespace}/{queue}/pause", only(post(pause::pause)))
        .route("/api/{namespace}/{queue}/resume", only(post(pause::resume)))
        .route("/ping", only(get(operations::ping)))
}

/// The admin port. If accounts are configured, the routes for tokens, limits, quotas, push and the access log ask for one.
pub fn admin(state: Arc<AppState>, names: OwnNames) -> Router {
    let guarded = Router::new()
        .route("/token/{namespace}", only(get(tokens::list_tokens).post(tokens::create_token)))
        .route("/token/{namespace}/{token}", only(delete(tokens::delete_token)))
        .route(
            "/token/{namespace}/{token}/limit",
            only(
                get(tokens::get_limit)
                    .post(tokens::add_limit)
                    .put(tokens::set_limit)
                    .delete(tokens::remove_limit),
            ),
        )
        .route(
            "/quota/{namespace}",
            only(get(quotas::get).post(quotas::add).put(quotas::set).delete(quotas::remove)),
        )
        .route("/limits", only(get(tokens::list_limits)))
        .route("/push/{namespace}/{queue}", only(put(push::put).get(push::get).delete(push::delete)))
        .route("/push/{namespace}/{queue}/pause", only(post(push::pause)))
        .route("/push/{namespace}/{queue}/resume", only(post(push::resume)))
        .route("/push/{namespace}/{queue}/secret", only(post(push::new_secret)))
        .route("/push/{namespace}/{queue}/test", only(post(push::test)))
        .route("/accesslog", only(post(operations::set_access_log)))
        .route_layer(from_fn_with_state(state.clone(), middleware::basic_auth));
    let open = Router::new()
        .route("/pools", only(get(operations::pools)))
        .route("/info", only(get(operations::info)))
        .route("/version", only(get(operations::version)))
        .route("/metrics", only(get(operations::metrics)))
        .route("/accesslog", get(operations::get_access_log))
        .route("/ping", only(get(operations::ping)))
        .route("/ready", only(get(operations::ready)));
    finish(guarded.merge(open), Observe { state, guard: Guard::Admin(Arc::new(names)) })
}

/// Answers 404 to all other methods of a route, as lmstfy does. HEAD is one of them: axum would run the GET
/// handler for it, and a HEAD of a queue would consume a job and send it to nobody.
fn only(methods: MethodRouter<Arc<AppState>>) -> MethodRouter<Arc<AppState>> {
    methods.head(reply::not_found).fallback(reply::not_found)
}

fn finish(routes: Router<Arc<AppState>>, observe: Observe) -> Router {
    let state = observe.state.clone();
    routes.fallback(reply::not_found).layer(observe).with_state(state)
}
