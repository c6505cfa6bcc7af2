//! The two HTTP ports: their routers, and the interface for the rest of the crate. Routes are in `routes.rs`. Only
//! this folder knows axum. It names no store: it reaches jobs through the dispatcher and the `Engine` trait, tokens
//! and limits through `admin`.
//!
//! Imports point one way: `port → {schedules, ui} → {jobs, operators} → request → state → answer`. Each folder
//! imports only folders further right, and two folders in braces do not import each other. Each folder's `mod.rs`
//! lists its imports.

mod answer;
mod jobs;
mod operators;
mod port;
mod request;
mod routes;
mod schedules;
mod state;
mod ui;

use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use axum::middleware::{from_fn, from_fn_with_state};
use tower::{ServiceExt, service_fn};

use self::answer::reply;
pub use self::answer::room::BodyRoom;
pub use self::operators::servers::own_line;
use self::operators::{audit, logins};
pub use self::port::accept::{Bounds, listen, serve};
pub use self::port::connection::Routes;
use self::port::fast_path::Api;
use self::port::middleware::Observe;
pub use self::port::opening::Opening;
use self::request::origin::OriginCheck;
pub use self::request::origin::{OwnNames, OwnUrl};
use self::request::table::router;
pub use self::routes::{Route, all as all_routes};
pub use self::state::about::{About, AboutPool, Most};
pub use self::state::cursors::Cursors;
pub use self::state::failed_logins::FailedLogins;
pub use self::state::parked_tokens::keep_checked;
pub use self::state::parts::{Access, Accounts, Operations, RequestBounds, ThisServer, Traffic};
pub use self::state::proxies::TrustedProxies;
pub use self::state::{AppState, Defaults, MOST_SEARCHES, PoolState, Readiness};

/// Creates the public port. With `-sv` on loopback no token protects it from pages that resolve their own name to it,
/// so its names are checked.
pub fn api(state: Arc<AppState>, names: OwnNames) -> Api {
    let names = (state.access.skip_verification && names.loopback).then(|| Arc::new(names));
    let observe = Observe { state, guard: OriginCheck::Public(names), port: "public" };
    Api::new(observe.clone(), finish(router(routes::public()), observe))
}

/// Creates the admin port. If accounts are configured, the routes for tokens, limits, quotas, push, queues, jobs,
/// delays, cluster nodes and the access log require one. On job routes the account replaces the token, the query
/// names the pool, and every change is logged.
pub fn admin(state: Arc<AppState>, names: OwnNames) -> Router {
    let log_in = || from_fn_with_state(state.clone(), logins::basic_auth);
    let jobs =
        router(routes::jobs_by_account()).route_layer(from_fn_with_state(state.clone(), audit::of_jobs));
    let has_backup = names.loopback || names.accounts;
    let guarded = router(routes::by_account(has_backup)).merge(jobs).route_layer(log_in());
    let has_pages = state.server.about.dashboard;
    let pages = if has_pages {
        let json = guarded.clone().with_state(state.clone());
        ui::routes(state.clone(), json).route_layer(log_in())
    } else {
        Router::new()
    };
    let open = router(routes::for_all(has_pages));
    let url = names.url.clone();
    let guard = OriginCheck::Admin(Arc::new(names));
    let mut routes = finish(guarded.merge(pages).merge(open), Observe { state, guard, port: "admin" });
    if has_pages {
        routes = routes.layer(from_fn(ui::refusals_as_pages));
    }
    match url {
        None => routes,
        // Must happen before routing.
        Some(url) => Router::new().fallback_service(service_fn(move |mut request: Request| {
            url.strip(&mut request);
            routes.clone().oneshot(request)
        })),
    }
}

fn finish(routes: Router<Arc<AppState>>, observe: Observe) -> Router {
    let state = observe.state.clone();
    routes.fallback(reply::not_found).layer(observe).with_state(state)
}
