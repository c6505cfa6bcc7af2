//! The dashboard: pages on the admin port for whoever is on call. Each page asks the JSON routes of this port within
//! the process, as the same account, and makes HTML of what they answer. So whatever a page shows or changes is judged,
//! logged and bounded where the JSON routes are, and no page has its own way into a store.
//!
//! A page is a function of plain values to markup. Nothing that comes from a job is markup: `text` makes text of it.
//! Of `http` it imports `answer`, `state`, `request`, of `jobs` what is told of jobs, and of `operators` who has logged in,
//! what queues have together, what was counted last, and which servers there are.

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

/// The pages. `json` are the routes that they ask.
pub fn routes<S: Clone + Send + Sync + 'static>(state: Arc<AppState>, json: Router) -> Router<S> {
    let ui = Arc::new(Ui::new(state, json));
    router(pages()).with_state(ui)
}

/// `GET` of an address that has no page.
async fn missing(visit: Visit) -> Response {
    visit.answer(Err(Refusal::new(StatusCode::NOT_FOUND, refused::NO_PAGE)))
}

/// The patterns of the pages. As on all routes: 404 to methods that are not there.
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
