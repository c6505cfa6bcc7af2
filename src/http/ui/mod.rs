//! The dashboard: pages on the admin port for whoever is on call. Each page asks the JSON routes of this port within
//! the process, as the same account, and makes HTML of what they answer. So whatever a page shows or changes is judged,
//! logged and bounded where the JSON routes are, and no page has its own way into a store.
//!
//! A page is a function of plain values to markup. Nothing that comes from a job is markup: `text` makes text of it.
//! Of `http` it imports `answer`, `state`, `request`, and of `operators` who has logged in, what queues have together, and what
//! was counted last.

mod answer;
mod ask;
mod asks;
mod assets;
mod body;
mod bulk;
mod change;
mod chart;
mod dead;
mod due;
mod figures;
mod form;
mod frame;
mod home;
mod instant;
mod job;
mod jobs;
mod namespace;
mod overview;
mod publish;
mod push;
mod queue;
mod queues;
mod refused;
mod rows;
mod schedules;
mod search;
mod server;
mod sure;
mod text;
mod tokens;
mod visit;

use std::sync::Arc;

use axum::Router;
use axum::routing::{MethodRouter, get, post};

pub use self::home::home;
pub use self::refused::refusals_as_pages;
use self::visit::Ui;
use crate::http::answer::reply;
use crate::http::state::AppState;

/// The pages. `json` are the routes that they ask.
pub fn routes<S: Clone + Send + Sync + 'static>(state: Arc<AppState>, json: Router) -> Router<S> {
    let ui = Arc::new(Ui::new(state, json));
    Router::new()
        .route("/ui", page(get(home::redirect)))
        .route("/ui/", page(get(overview::show)))
        .route("/ui/assets/{name}", page(get(assets::get)))
        .route("/ui/zone", page(post(home::zone)))
        .route("/ui/queues", page(get(queues::show)))
        .route("/ui/queues/{pool}/{namespace}/{queue}", page(get(queue::show).post(change::change)))
        .route("/ui/namespaces/{pool}/{namespace}", page(get(namespace::show)))
        .route("/ui/publish/{pool}/{namespace}", page(get(publish::show).post(publish::publish)))
        .route("/ui/push/{pool}/{namespace}/{queue}", page(get(push::show).post(push::change)))
        .route("/ui/schedules", page(get(schedules::show).post(schedules::change)))
        .route("/ui/bulk", page(get(bulk::show).post(bulk::change)))
        .route("/ui/dead", page(get(dead::show)))
        .route("/ui/server", page(get(server::show).post(server::change)))
        .route("/ui/search", page(get(search::show)))
        .route("/ui/tokens/{pool}/{namespace}", page(get(tokens::show).post(tokens::change)))
        .route("/ui/jobs/{pool}/{namespace}/{queue}/{id}", page(get(job::show).post(job::change)))
        .with_state(ui)
}

/// As on all routes: 404 to methods that are not there.
fn page(methods: MethodRouter<Arc<Ui>>) -> MethodRouter<Arc<Ui>> {
    methods.fallback(reply::not_found)
}
