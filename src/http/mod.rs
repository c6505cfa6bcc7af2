//! The two HTTP ports. Here are their routes, and what the rest of the crate needs of them. Only this folder knows
//! axum. It names no store: it reaches jobs through the dispatcher and the `Engine` trait, tokens and limits through
//! `admin`.
//!
//! Imports run one way: `port → {schedules → jobs, ui → operators} → request → state → answer`. Each folder imports only
//! of those that stand right of it, and the two in braces not of each other. Each folder's `mod.rs` says what it imports of them.

mod answer;
mod jobs;
mod operators;
mod port;
mod request;
mod schedules;
mod state;
mod ui;

use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use axum::middleware::{from_fn, from_fn_with_state};
use axum::routing::{MethodRouter, delete, get, post, put};
use tower::{ServiceExt, service_fn};

use self::answer::reply;
pub use self::answer::room::BodyRoom;
use self::jobs::{consume, dead_letter, hold, lists, pause, publish};
pub use self::operators::servers::own_line;
use self::operators::{
    audit, backup, bulk, cluster, dead, delays, logins, openapi, operations, push, queues, quotas, servers,
    tokens,
};
pub use self::port::accept::{Bounds, listen, serve};
use self::port::fast_path::{Api, JOB};
use self::port::middleware::Observe;
pub use self::port::opening::Opening;
use self::request::origin::{self, OriginCheck};
pub use self::request::origin::{OwnNames, OwnUrl};
pub use self::state::about::{About, AboutPool, Most};
pub use self::state::cursors::Cursors;
pub use self::state::failed_logins::FailedLogins;
pub use self::state::parked_tokens::keep_checked;
pub use self::state::proxies::TrustedProxies;
pub use self::state::{AppState, Defaults, MOST_SEARCHES, PoolState, Readiness};

/// The public port. With `-sv` on loopback no token keeps a page out that has its own name lead there.
pub fn api(state: Arc<AppState>, names: OwnNames) -> Api {
    let names = (state.skip_verification && names.loopback).then(|| Arc::new(names));
    let observe = Observe { state, guard: OriginCheck::Public(names), port: "public" };
    let routes = routes_of_lmstfy().merge(our_routes()).merge(schedules::routes(only));
    Api::new(observe.clone(), finish(routes, observe))
}

/// The routes that lmstfy has, with its methods, but for three that are asked for most: PUT and GET of a queue, which
/// publish and consume, and DELETE of a job, an ack. The fast path has these.
fn routes_of_lmstfy() -> Router<Arc<AppState>> {
    Router::new()
        .route(origin::CONSUME, only(delete(consume::destroy)))
        .route("/api/{namespace}/{queue}/bulk", only(put(publish::publish_bulk)))
        .route(JOB, only(put(publish::republish).get(lists::job)))
        .route("/api/{namespace}/{queue}/peek", only(get(consume::peek)))
        .route("/api/{namespace}/{queue}/size", only(get(consume::size)))
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
        .route("/openapi.json", probe(get(openapi::public)))
        .route("/ping", probe(get(operations::ping)))
        .route("/ready", probe(get(operations::ready_for_all)))
}

/// The admin port. If accounts are configured, the routes for tokens, limits, quotas, push, queues, jobs, what
/// falls due when, the nodes of a cluster and the access log ask for one.
pub fn admin(state: Arc<AppState>, names: OwnNames) -> Router {
    let backups = if names.loopback || names.accounts { get(backup::get) } else { get(backup::refused) };
    let guarded = Router::new()
        .route("/token/{namespace}", only(get(tokens::list_tokens).post(tokens::create_token)))
        .route("/token/{namespace}/revoke", only(post(tokens::revoke)))
        .route("/token/{namespace}/{token}", only(delete(tokens::delete_token)))
        .route(
            "/token/{namespace}/{token}/limit",
            only(
                get(tokens::get_limit)
                    .post(tokens::put_limit)
                    .put(tokens::put_limit)
                    .delete(tokens::remove_limit),
            ),
        )
        .route(
            "/quota/{namespace}",
            only(get(quotas::get).post(quotas::put).put(quotas::put).delete(quotas::remove)),
        )
        .route("/limits", only(get(tokens::list_limits)))
        .route("/push/{namespace}/{queue}", only(put(push::put).get(push::get).delete(push::delete)))
        .route("/push/{namespace}/{queue}/pause", only(post(push::pause)))
        .route("/push/{namespace}/{queue}/resume", only(post(push::resume)))
        .route("/push/{namespace}/{queue}/secret", only(post(push::new_secret)))
        .route("/push/{namespace}/{queue}/test", only(post(push::test)))
        .route("/accesslog", only(post(operations::set_access_log)))
        .route("/info/delays", only(get(delays::show)))
        .route("/cluster", only(get(cluster::show)))
        .route("/backup", only(backups))
        .route("/queues", only(get(queues::list)))
        .route("/queues/history", only(get(queues::history)))
        .route("/server", only(get(servers::server)))
        .route("/servers", only(get(servers::servers)))
        .route("/bulk", only(get(bulk::list).post(bulk::post)))
        .route("/bulk/{id}", only(get(bulk::get).delete(bulk::delete)))
        .route("/dead", only(get(dead::list)))
        .route("/dead/reasons", only(get(dead::reasons)))
        .merge(jobs_by_account(state.clone()))
        .route_layer(from_fn_with_state(state.clone(), logins::basic_auth));
    let has_pages = state.about.dashboard;
    let (pages, home) = if has_pages {
        let json = guarded.clone().with_state(state.clone());
        let pages = ui::routes(state.clone(), json);
        (pages.route_layer(from_fn_with_state(state.clone(), logins::basic_auth)), get(ui::home))
    } else {
        (Router::new(), get(reply::not_found))
    };
    let open = Router::new()
        .route("/", only(home))
        .route("/pools", only(get(operations::pools)))
        .route("/info", only(get(operations::info)))
        .route("/version", only(get(operations::version)))
        .route("/metrics", only(get(operations::metrics)))
        .route("/accesslog", get(operations::get_access_log))
        .route("/openapi.json", probe(get(openapi::admin)))
        .route("/ping", probe(get(operations::ping)))
        .route("/ready", probe(get(operations::ready)));
    let url = names.url.clone();
    let guard = OriginCheck::Admin(Arc::new(names));
    let mut routes = finish(guarded.merge(pages).merge(open), Observe { state, guard, port: "admin" });
    if has_pages {
        routes = routes.layer(from_fn(ui::refusals_as_pages));
    }
    match url {
        None => routes,
        // Before a route is looked for.
        Some(url) => Router::new().fallback_service(service_fn(move |mut request: Request| {
            url.strip(&mut request);
            routes.clone().oneshot(request)
        })),
    }
}

/// The routes of jobs and schedules that hand nothing out, by the handlers of the public port. An account stands in place
/// of a token, and the query names the pool. Each change is logged.
fn jobs_by_account(state: Arc<AppState>) -> Router<Arc<AppState>> {
    Router::new()
        .route("/api/{namespace}", only(get(lists::queues)))
        .route(origin::CONSUME, only(delete(consume::destroy)))
        .route(JOB, only(get(lists::job).delete(hold::cancel)))
        .route("/api/{namespace}/{queue}/peek", only(get(consume::peek)))
        .route("/api/{namespace}/{queue}/size", only(get(consume::size)))
        .route("/api/{namespace}/{queue}/jobs", only(post(publish::publish_one).get(lists::jobs)))
        .route("/api/{namespace}/{queue}/key/{key}", only(get(lists::job_of_key).delete(lists::cancel_key)))
        .route("/api/{namespace}/{queue}/job/{job_id}/respawn", only(post(dead_letter::respawn_job)))
        .route(
            "/api/{namespace}/{queue}/deadletter",
            only(get(dead_letter::show).put(dead_letter::respawn).delete(dead_letter::delete)),
        )
        .route("/api/{namespace}/{queue}/deadletter/respawn", only(post(dead_letter::respawn_jobs)))
        .route("/api/{namespace}/{queue}/pause", only(post(pause::pause)))
        .route("/api/{namespace}/{queue}/resume", only(post(pause::resume)))
        .merge(schedules::routes(only))
        .route_layer(from_fn_with_state(state, audit::of_jobs))
}

/// Answers 404 to all other methods of a route, as lmstfy does. HEAD is one of them: axum would run the GET
/// handler for it, and a HEAD of a queue would consume a job and send it to nobody.
fn only(methods: MethodRouter<Arc<AppState>>) -> MethodRouter<Arc<AppState>> {
    methods.head(reply::not_found).fallback(reply::not_found)
}

/// As [`only`], but for HEAD, by which some balancers ask.
fn probe(methods: MethodRouter<Arc<AppState>>) -> MethodRouter<Arc<AppState>> {
    methods.fallback(reply::not_found)
}

fn finish(routes: Router<Arc<AppState>>, observe: Observe) -> Router {
    let state = observe.state.clone();
    routes.fallback(reply::not_found).layer(observe).with_state(state)
}
