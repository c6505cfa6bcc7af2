//! The dashboard: pages on the admin port for operators. Each page calls the JSON routes of this port within the
//! process, with the caller's account, and renders their replies as HTML. So every read and change is authorized,
//! logged and limited where the JSON routes are, and no page accesses a store by itself.
//!
//! A page is a function from plain values to markup. Text from jobs is never markup: `text` escapes it. Within
//! `http`, this imports `answer`, `state`, `request`; from `jobs` the replies about jobs; and from `operators`
//! accounts, sums, cached counts, and the fleet.

mod home;
mod namespace;
mod overview;
mod page;
mod publish;
mod queue;
mod queues;
mod refused;
mod schedule_form;
mod schedules;
mod search;
mod server;
mod tokens;

use std::sync::Arc;

use axum::Router;
use axum::http::StatusCode;
use axum::response::Response;

pub use self::home::home;
use self::page::ask::Refusal;
use self::page::assets;
use self::page::visit::{Ui, Visit};
use self::queue::{bulk, change, dead, job, push, show};
pub use self::refused::refusals_as_pages;
use crate::http::request::table::{Row, get, post, router, with_head};
use crate::http::state::AppState;

/// Creates the pages. `json` has the routes that they call.
pub fn routes<S: Clone + Send + Sync + 'static>(state: Arc<AppState>, json: Router) -> Router<S> {
    let ui = Arc::new(Ui::new(state, json));
    router(pages()).with_state(ui)
}

/// `GET` of an unknown page.
async fn missing(visit: Visit) -> Response {
    visit.answer(Err(Refusal::new(StatusCode::NOT_FOUND, refused::NO_PAGE)))
}

/// Returns the routes of the pages. As on all routes, other methods get 404.
pub fn pages() -> Vec<Row<Arc<Ui>>> {
    vec![
        with_head("/ui", [get(home::redirect)]),
        with_head("/ui/", [get(overview::show)]),
        with_head("/ui/assets/{name}", [get(assets::get)]),
        with_head("/ui/zone", [post(home::zone)]),
        with_head("/ui/queues", [get(queues::show)]),
        with_head("/ui/queues/{pool}/{namespace}/{queue}", [get(show::show), post(change::change)]),
        with_head("/ui/namespaces/{pool}/{namespace}", [get(namespace::show)]),
        with_head("/ui/publish/{pool}/{namespace}", [get(publish::show), post(publish::publish)]),
        with_head("/ui/push/{pool}/{namespace}/{queue}", [get(push::show), post(push::change)]),
        with_head("/ui/schedules", [get(schedules::show), post(schedules::change)]),
        with_head("/ui/schedules/edit", [get(schedule_form::show), post(schedule_form::change)]),
        with_head("/ui/bulk", [get(bulk::show), post(bulk::change)]),
        with_head("/ui/dead", [get(dead::show)]),
        with_head("/ui/server", [get(server::show), post(server::change)]),
        with_head("/ui/search", [get(search::show)]),
        with_head("/ui/tokens/{pool}/{namespace}", [get(tokens::show), post(tokens::change)]),
        with_head("/ui/{*unknown}", [get(missing)]),
        with_head("/ui/jobs/{pool}/{namespace}/{queue}/{id}", [get(job::show), post(job::change)]),
    ]
}
