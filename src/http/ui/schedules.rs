//! The list of schedules: jobs, next and past occurrences.

use axum::http::Method;
use axum::response::Response;
use maud::{Markup, html};
use serde::Deserialize;
use serde_json::Value;

use super::page::ask::{Refusal, Said, Sent, part};
use super::page::form::{Fields, Filled, query};
use super::page::frame::{Page, curl, curls};
use super::page::instant::instant;
use super::page::rows::namespace_path;
use super::page::sure::{Sure, page as asks};
use super::page::text::{cut, duration, number, text, typed, unknown, volatile};
use super::page::visit::Visit;
use crate::engine::together;

/// Schedules per page, and namespaces that are read if none is given.
const SCHEDULES: usize = 100;
const NAMESPACES: usize = 50;
/// Schedules examined if fewer than a page match.
const LOOKED_AT: u64 = 1000;
/// Concurrent calls for next and past occurrences, and how many of each are shown.
const AT_ONCE: usize = 32;
const SHOWN: usize = 3;

#[derive(Deserialize)]
struct Listed {
    schedules: Vec<Value>,
    cursor: Option<String>,
}

/// A schedule with its pool and namespace.
struct Found {
    pool: String,
    namespace: String,
    /// As in the list, or with next and past occurrences, if they were read in time.
    schedule: Value,
}

/// Schedules read in time.
#[derive(Default)]
struct Read {
    found: Vec<Found>,
    /// Pool and namespace, if there is only one.
    single: Option<(String, String)>,
    /// Link to the next page.
    next: Option<String>,
    /// There are more, or may be.
    partly: bool,
    /// Error of a store that did not return all.
    trouble: Option<Refusal>,
}

/// `GET /ui/schedules`
pub async fn show(visit: Visit) -> Response {
    let page = match visit.fields.get("ask") {
        Some("delete") => asking(&visit),
        _ => page(&visit).await,
    };
    visit.answer(page)
}

/// `POST /ui/schedules`
pub async fn change(mut visit: Visit, Filled(form): Filled) -> Response {
    match act(&visit, &form).await {
        Ok(code) => visit.done(code),
        Err(refusal) => {
            visit.refuse(refusal, form);
            let page = page(&visit).await;
            visit.answer(page)
        }
    }
}

/// Returns a route of the schedule in the fields.
fn route(of: &Fields, rest: &str) -> String {
    let [pool, namespace, name] = ["pool", "namespace", "name"].map(|field| part(of.or_empty(field)));
    format!("/api/{namespace}/_schedules/{name}{rest}?pool={pool}")
}

async fn act(visit: &Visit, form: &Fields) -> Said<&'static str> {
    let post = async |rest: &str, sent: Sent| visit.ask.change(Method::POST, &route(form, rest), sent).await;
    match form.or_empty("do") {
        "pause" => post("/pause", Sent::Nothing).await.map(|_| "schedule-paused"),
        "resume" => post("/resume", Sent::Nothing).await.map(|_| "schedule-resumed"),
        "run" => {
            let mark = format!("form-{}", form.or_empty("mark")).into_bytes();
            let headers = vec![("Idempotency-Key".to_owned(), mark)];
            post("/run", Sent::Job(Vec::new(), headers)).await.map(|_| "schedule-run")
        }
        "delete" if form.get("sure") == Some("yes") => visit
            .ask
            .change(Method::DELETE, &route(form, ""), Sent::Nothing)
            .await
            .map(|_| "schedule-deleted"),
        _ => Err(Refusal::bad("the form does not say what to do")),
    }
}

fn asking(visit: &Visit) -> Said<Page> {
    let fields = &visit.fields;
    let [pool, namespace, name] = ["pool", "namespace", "name"].map(|field| fields.or_empty(field));
    Ok(asks(
        visit,
        Vec::new(),
        "Schedules",
        Sure {
            title: format!("Delete the schedule {name} of {namespace}"),
            what: html! { p { "It publishes no more jobs, and its history is deleted. Published jobs stay." } },
            hidden: vec![("do", "delete"), ("pool", pool), ("namespace", namespace), ("name", name)],
            more: html! {},
            button: "Delete",
            curl: curl(visit, "DELETE", &route(fields, ""), None),
        },
    ))
}

/// Reads the schedules of one namespace, or of all namespaces that have queues.
async fn read(visit: &Visit) -> Said<Read> {
    let mut read = listed(visit).await?;
    for some in read.found.chunks_mut(AT_ONCE) {
        let ask = async |of: &Found| {
            let name = part(of.schedule["name"].as_str().unwrap_or_default());
            let (pool, namespace) = (part(&of.pool), part(&of.namespace));
            visit.ask.get::<Value>(format!("/api/{namespace}/_schedules/{name}?pool={pool}")).await.ok()
        };
        let whole = together::all(some.iter().map(ask)).await;
        for (of, whole) in some.iter_mut().zip(whole) {
            if let Some(whole) = whole {
                of.schedule = whole;
            }
        }
    }
    Ok(read)
}

async fn listed(visit: &Visit) -> Said<Read> {
    let fields = &visit.fields;
    let (mut scopes, mut partly) = (Vec::new(), false);
    if let Some(namespace) = fields.get("namespace") {
        scopes.push((fields.get("pool").unwrap_or("default").to_owned(), namespace.to_owned()));
    } else {
        let listing = visit.queues("sort=name&limit=100")?;
        partly = listing.cursor.is_some();
        scopes.extend(listing.queues.into_iter().map(|row| (row.pool, row.namespace)));
        scopes.dedup();
    }
    partly |= scopes.len() > NAMESPACES;
    // A cursor belongs to one namespace.
    if fields.get("cursor").is_some() && scopes.len() != 1 {
        return Err(Refusal::bad("invalid cursor: it requires its namespace"));
    }
    let single =
        Some(&scopes[..]).filter(|scopes| scopes.len() == 1 && !partly).map(|scopes| scopes[0].clone());
    let mut read = Read { single, partly, ..Read::default() };
    for (pool, namespace) in scopes.iter().take(NAMESPACES) {
        let mut path = format!("/api/{}/_schedules?pool={}&limit={SCHEDULES}", part(namespace), part(pool));
        for name in ["queue", "state", "cursor"] {
            if let Some(value) = fields.get(name) {
                path.push_str(&format!("&{name}={}", part(value)));
            }
        }
        let listed = match visit.ask.get::<Listed>(path).await {
            Ok(listed) => listed,
            // The schedules read so far are shown.
            Err(refusal) if refusal.status.is_server_error() => {
                read.trouble = Some(refusal);
                break;
            }
            Err(refusal) => return Err(refusal),
        };
        read.partly |= listed.cursor.is_some() && scopes.len() > 1;
        let cursor = listed.cursor.filter(|_| scopes.len() == 1);
        let of = |cursor: &String| {
            fields.link(&[("pool", Some(pool)), ("namespace", Some(namespace)), ("cursor", Some(cursor))])
        };
        read.next = cursor.as_ref().map(of);
        let own = listed.schedules.into_iter();
        read.found.extend(own.map(|schedule| Found {
            pool: pool.clone(),
            namespace: namespace.clone(),
            schedule,
        }));
        if read.found.len() >= SCHEDULES {
            read.found.truncate(SCHEDULES);
            read.partly |= scopes.len() > 1;
            break;
        }
    }
    Ok(read)
}

async fn page(visit: &Visit) -> Said<Page> {
    let Read { found, single, next, partly, trouble } = read(visit).await?;
    let filtered = ["namespace", "queue", "state"].iter().any(|name| visit.fields.get(name).is_some());
    let body = html! {
        div.head {
            h1 { "Schedules" }
            @if visit.may_change() {
                div.does { a.button.primary href=(new(visit, single.as_ref())) { "New schedule" } }
            }
        }
        (filter(visit))
        @if visit.fields.get("namespace").is_none() {
            p.hint { "These are the schedules of namespaces with queues. Enter a namespace without queues to see its schedules." }
        }
        @if partly { p.note { "Not all are shown: name a namespace." } }
        @if let Some(Refusal { status, text: why }) = &trouble {
            p.trouble { "The list is not available, or not all of it (" (status.as_u16()) "): " (text(why)) }
        }
        @if found.is_empty() && trouble.is_none() {
            @if filtered { p { a href="?" { "Show all schedules" } } }
            @if next.is_some() { p { "Looked at some " (number(LOOKED_AT)) " schedules, found none yet." } }
            @else if partly { p { "None found in the namespaces that were looked at." } }
            @else if visit.fields.get("cursor").is_some() { p { "There are no more." } }
            @else {
                p { "There is no such schedule. Create one with New schedule, or:" }
                (curl(visit, "PUT", "/api/demo/_schedules/nightly", Some("{\"queue\":\"reports\",\"cron\":\"30 2 * * *\",\"text\":\"sales\"}")))
            }
        } @else if !found.is_empty() { (table(visit, &found)) }
        @if let Some(next) = next { p { a.next rel="next" href=(next) { "Next" } } }
    };
    Ok(Page::new("Schedules", "Schedules", body))
}

/// Links to a form for a new schedule, of the displayed namespace if there is only one.
fn new(visit: &Visit, single: Option<&(String, String)>) -> String {
    let of = single.map(|(pool, namespace)| [("pool", &**pool), ("namespace", &**namespace)]);
    visit.to(&format!("schedules/edit{}", query(of.into_iter().flatten())))
}

fn filter(visit: &Visit) -> Markup {
    let fields = &visit.fields;
    html! {
        form.filter method="get" {
            @if visit.many_pools() {
                label for="pool" { "Pool" }
                select #pool name="pool" { @for pool in visit.state().pools.keys() {
                    option value=(pool.as_str()) selected[fields.get("pool") == Some(pool.as_str())] { (pool.as_str()) }
                } }
            }
            label for="namespace" { "Namespace" }
            input #namespace name="namespace" value=(typed(fields.or_empty("namespace"))) autocomplete="off" spellcheck="false";
            label for="queue" { "Queue" }
            input #queue name="queue" value=(typed(fields.or_empty("queue"))) autocomplete="off" spellcheck="false";
            label for="state" { "State" }
            select #state name="state" {
                @for (value, words) in [("", "all"), ("on", "on"), ("paused", "paused"), ("ended", "ended"), ("broken", "broken")] {
                    option value=(value) selected[fields.or_empty("state") == value] { (words) }
                }
            }
            button type="submit" { "Show" }
        }
    }
}

fn table(visit: &Visit, found: &[Found]) -> Markup {
    html! {
        div.scroll role="region" aria-label="Schedules" tabindex="0" {
            table.jobs.wrap.schedules {
                caption { "Schedules" }
                thead { tr { @for name in ["Schedule", "Queue", "When", "State", "Next", "Last"] { th scope="col" { (name) } } td {} } }
                tbody { @for of in found { (row(visit, of)) } }
            }
        }
    }
}

fn row(visit: &Visit, Found { pool, namespace, schedule }: &Found) -> Markup {
    let told = |name: &str| schedule[name].as_str().unwrap_or_default();
    let name = told("name");
    let queue = format!("queues/{}/{}/{}", part(pool), part(namespace), part(told("queue")));
    html! {
        tr data-key=(format!("{pool}/{namespace}/{name}")) {
            th scope="row" { a href=(visit.to(&namespace_path(pool, namespace))) { (text(namespace)) } "/" (cut(name)) }
            td.name { a href=(visit.to(&queue)) { (text(told("queue"))) } }
            td { (when(schedule)) }
            td { (state(told("state"))) @if !told("why").is_empty() { " " (cut(told("why"))) } }
            td.next { (next(visit, schedule)) }
            td { (last(visit, schedule)) }
            td { @if visit.may_change() { (actions(visit, pool, namespace, schedule)) } }
        }
    }
}

fn state(state: &str) -> Markup {
    let class = match state {
        "on" => "badge on",
        "broken" => "badge bad",
        "paused" => "badge warn",
        _ => "badge",
    };
    html! { span class=(class) { (text(state)) } }
}

fn when(schedule: &Value) -> Markup {
    match (schedule["cron"].as_str(), schedule["every"].as_f64()) {
        (Some(cron), _) => {
            html! { code { (cut(cron)) } " " (text(schedule["zone"].as_str().unwrap_or("UTC"))) }
        }
        (None, Some(every)) => html! { "every " (duration(every)) },
        _ => unknown("the schedule cannot be read"),
    }
}

/// Shows the next occurrences, in the page's zone and in the schedule's.
fn next(visit: &Visit, schedule: &Value) -> Markup {
    let all = schedule["next"].as_array().map(Vec::as_slice).unwrap_or_default();
    html! {
        @if all.is_empty() { "–" }
        @for next in all.iter().take(SHOWN) {
            @if let Some(at) = instant(&next["due"]) {
                div { (visit.zone.at(at)) @if let Some(local) = next["local"].as_str() { " " span.pool { (text(local)) } } }
            }
        }
    }
}

/// Shows the outcomes of the last occurrences.
fn last(visit: &Visit, schedule: &Value) -> Markup {
    let all = match schedule["occurrences"].as_array() {
        Some(all) => all.iter().take(SHOWN).collect(),
        None if schedule["last"].is_object() => vec![&schedule["last"]],
        None => Vec::new(),
    };
    html! {
        @if all.is_empty() { "–" }
        @for of in all {
            div {
                (text(of["outcome"].as_str().unwrap_or_default())) " "
                @if let Some(at) = instant(&of["due"]) { (visit.zone.when(at)) }
                @if let Some(why) = of["why"].as_str() { ": " (cut(why)) }
            }
        }
    }
}

fn actions(visit: &Visit, pool: &str, namespace: &str, schedule: &Value) -> Markup {
    let name = schedule["name"].as_str().unwrap_or_default();
    let mark = volatile(&html! { (crate::random::ulid().to_string()) }).0;
    let edit = query([("pool", pool), ("namespace", namespace), ("name", name)].into_iter());
    let edit = visit.to(&format!("schedules/edit{edit}"));
    let switch = if schedule["paused"] == true { "/resume" } else { "/pause" };
    let to = |rest: &str| {
        let (pool, namespace) = (part(pool), part(namespace));
        format!("/api/{namespace}/_schedules/{}{rest}?pool={pool}", part(name))
    };
    html! {
        form.actions method="post" action=(visit.fields.link(&[])) {
            input type="hidden" name="pool" value=(pool);
            input type="hidden" name="namespace" value=(namespace);
            input type="hidden" name="name" value=(typed(name));
            input type="hidden" name="mark" value=(mark);
            @if schedule["paused"] == true { button type="submit" name="do" value="resume" { "Resume" } }
            @else { button type="submit" name="do" value="pause" { "Pause" } }
            button type="submit" name="do" value="run" { "Run now" }
            a.button href=(edit) { "Edit" }
            button.danger type="submit" name="ask" value="delete" formmethod="get" { "Delete" }
        }
        (curls(visit, &[("POST", to(switch), None), ("POST", to("/run"), None), ("DELETE", to(""), None)]))
    }
}
