//! The routes of both ports, in tables. Routers are built from the tables, and tests compare them with the OpenAPI
//! documents and with the roles.

use std::sync::Arc;

use super::answer::reply;
use super::jobs::{consume, dead_letter, hold, lists, pause, promote, publish};
use super::operators::{
    backup, bulk, cluster, dead, delays, openapi, operations, push, queues, quotas, servers, tokens,
};
use super::port::fast_path::JOB;
use super::request::origin::CONSUME;
use super::request::table::{self, beside, delete, fast, get, only, post, put, with_head};
use super::state::AppState;
use super::{schedules, ui};

type Row = table::Row<Arc<AppState>>;

/// Returns the routes of the public port.
pub fn public() -> Vec<Row> {
    let mut table = of_lmstfy();
    table.extend(ours());
    table.extend(schedules::routes());
    table
}

/// Returns lmstfy's routes, with its methods.
fn of_lmstfy() -> Vec<Row> {
    vec![
        only(CONSUME, [fast("PUT"), fast("GET"), delete(consume::destroy)]),
        only("/api/{namespace}/{queue}/bulk", [put(publish::publish_bulk)]),
        only(JOB, [put(publish::republish), get(lists::job), fast("DELETE")]),
        only("/api/{namespace}/{queue}/peek", [get(consume::peek)]),
        only("/api/{namespace}/{queue}/size", [get(consume::size)]),
        only(
            "/api/{namespace}/{queue}/deadletter",
            [get(dead_letter::show), put(dead_letter::respawn), delete(dead_letter::delete)],
        ),
        only("/api/{namespace}/{queue}/deadletter/size", [get(dead_letter::size)]),
    ]
}

/// Returns our own routes, which lmstfy answers with 404.
fn ours() -> Vec<Row> {
    vec![
        only("/api/{namespace}", [get(lists::queues)]),
        only("/api/{namespace}/{queue}/jobs", [post(publish::publish_one), get(lists::jobs)]),
        only("/api/{namespace}/{queue}/jobs/batch", [post(publish::publish_batch)]),
        only("/api/{namespace}/{queue}/key/{key}", [get(lists::job_of_key), delete(lists::cancel_key)]),
        only("/api/{namespace}/{queue}/key/{key}/promote", [post(promote::job_of_key)]),
        only("/api/{namespace}/{queue}/ack", [post(hold::ack_many)]),
        only("/api/{namespace}/{queue}/job/{job_id}/touch", [post(hold::touch)]),
        only("/api/{namespace}/{queue}/job/{job_id}/release", [post(hold::release)]),
        only("/api/{namespace}/{queue}/job/{job_id}/bury", [post(hold::bury)]),
        only("/api/{namespace}/{queue}/job/{job_id}/promote", [post(promote::job)]),
        only("/api/{namespace}/{queue}/job/{job_id}/respawn", [post(dead_letter::respawn_job)]),
        only("/api/{namespace}/{queue}/deadletter/respawn", [post(dead_letter::respawn_jobs)]),
        only("/api/{namespace}/{queue}/pause", [post(pause::pause)]),
        only("/api/{namespace}/{queue}/resume", [post(pause::resume)]),
        with_head("/openapi.json", [get(openapi::public)]),
        with_head("/ping", [get(operations::ping)]),
        with_head("/ready", [get(operations::ready_for_all)]),
    ]
}

/// Returns the admin port's routes that require an account, if accounts are configured. `has_backup`: includes the
/// backup of stores.
pub fn by_account(has_backup: bool) -> Vec<Row> {
    vec![
        only("/token/{namespace}", [get(tokens::list_tokens), post(tokens::create_token)]),
        only("/token/{namespace}/revoke", [post(tokens::revoke)]),
        only("/token/{namespace}/{token}", [delete(tokens::delete_token)]),
        only(
            "/token/{namespace}/{token}/limit",
            [
                get(tokens::get_limit),
                post(tokens::put_limit),
                put(tokens::put_limit),
                delete(tokens::remove_limit),
            ],
        ),
        only(
            "/quota/{namespace}",
            [get(quotas::get), post(quotas::put), put(quotas::put), delete(quotas::remove)],
        ),
        only("/limits", [get(tokens::list_limits)]),
        only("/push/{namespace}/{queue}", [put(push::put), get(push::get), delete(push::delete)]),
        only("/push/{namespace}/{queue}/pause", [post(push::pause)]),
        only("/push/{namespace}/{queue}/resume", [post(push::resume)]),
        only("/push/{namespace}/{queue}/secret", [post(push::new_secret)]),
        only("/push/{namespace}/{queue}/test", [post(push::test)]),
        only("/accesslog", [post(operations::set_access_log)]).beside(&["GET"]),
        only("/info/delays", [get(delays::show)]),
        only("/cluster", [get(cluster::show)]),
        only("/backup", [if has_backup { get(backup::get) } else { get(backup::refused) }]),
        only("/queues", [get(queues::list)]),
        only("/queues/history", [get(queues::history)]),
        only("/server", [get(servers::server)]),
        only("/servers", [get(servers::servers)]),
        only("/bulk", [get(bulk::list), post(bulk::post)]),
        only("/bulk/{id}", [get(bulk::get), delete(bulk::delete)]),
        only("/dead", [get(dead::list)]),
        only("/dead/reasons", [get(dead::reasons)]),
    ]
}

/// Returns the routes of jobs and schedules that deliver nothing, with the handlers of the public port.
pub fn jobs_by_account() -> Vec<Row> {
    let mut table = vec![
        only("/api/{namespace}", [get(lists::queues)]),
        only(CONSUME, [delete(consume::destroy)]),
        only(JOB, [get(lists::job), delete(hold::cancel)]),
        only("/api/{namespace}/{queue}/peek", [get(consume::peek)]),
        only("/api/{namespace}/{queue}/size", [get(consume::size)]),
        only("/api/{namespace}/{queue}/jobs", [post(publish::publish_one), get(lists::jobs)]),
        only("/api/{namespace}/{queue}/key/{key}", [get(lists::job_of_key), delete(lists::cancel_key)]),
        only("/api/{namespace}/{queue}/key/{key}/promote", [post(promote::job_of_key)]),
        only("/api/{namespace}/{queue}/job/{job_id}/promote", [post(promote::job)]),
        only("/api/{namespace}/{queue}/job/{job_id}/respawn", [post(dead_letter::respawn_job)]),
        only(
            "/api/{namespace}/{queue}/deadletter",
            [get(dead_letter::show), put(dead_letter::respawn), delete(dead_letter::delete)],
        ),
        only("/api/{namespace}/{queue}/deadletter/respawn", [post(dead_letter::respawn_jobs)]),
        only("/api/{namespace}/{queue}/pause", [post(pause::pause)]),
        only("/api/{namespace}/{queue}/resume", [post(pause::resume)]),
    ];
    table.extend(schedules::routes());
    table
}

/// Returns the admin port's routes without authentication. `has_pages`: there is a dashboard.
pub fn for_all(has_pages: bool) -> Vec<Row> {
    vec![
        only("/", [if has_pages { get(ui::home) } else { get(reply::not_found) }]),
        only("/pools", [get(operations::pools)]),
        only("/info", [get(operations::info)]),
        only("/version", [get(operations::version)]),
        only("/metrics", [get(operations::metrics)]),
        beside("/accesslog", [get(operations::get_access_log)]),
        with_head("/openapi.json", [get(openapi::admin)]),
        with_head("/ping", [get(operations::ping)]),
        with_head("/ready", [get(operations::ready)]),
    ]
}

/// A method of a route, for tests.
#[derive(Clone, Copy, Debug)]
pub struct Route {
    /// `public` or `admin`.
    pub port: &'static str,
    pub method: &'static str,
    pub pattern: &'static str,
    /// Handled by the fast path instead of the router.
    pub fast: bool,
}

/// Returns all routes of both ports.
pub fn all() -> Vec<Route> {
    fn routes_of<S>(port: &'static str, table: &[table::Row<S>]) -> Vec<Route> {
        let of_row = |row: &table::Row<S>| {
            let pattern = row.pattern;
            row.methods().map(|(method, fast)| Route { port, method, pattern, fast }).collect::<Vec<_>>()
        };
        table.iter().flat_map(of_row).collect()
    }
    [
        routes_of("public", &public()),
        routes_of("admin", &by_account(true)),
        routes_of("admin", &jobs_by_account()),
        routes_of("admin", &ui::pages()),
        routes_of("admin", &for_all(true)),
    ]
    .concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::operators::roles::VIEWED;

    /// Guards against a renamed route that viewers can no longer read.
    #[test]
    fn what_viewers_may_look_at_are_routes() {
        let all = all();
        let is_routed = |pattern: &&&str| {
            all.iter().any(|route| (route.port, route.method, route.pattern) == ("admin", "GET", **pattern))
        };
        let unknown: Vec<_> = VIEWED.iter().filter(|pattern| !is_routed(pattern)).collect();
        assert!(unknown.is_empty(), "no routes of the admin port: {unknown:?}");
    }
}
