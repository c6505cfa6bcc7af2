//! Schedules: what they place, when next, and what became of the last.

use axum::http::Method;
use axum::response::Response;
use maud::{Markup, html};
use serde::Deserialize;
use serde_json::Value;

use super::ask::{Refusal, Said, Sent, part};
use super::form::{Fields, Filled};
use super::frame::{Page, curl};
use super::instant::At;
use super::rows::{Listing, namespace_path};
use super::sure::{Sure, page as asks};
use super::text::{cut, duration, text, typed, unknown};
use super::visit::Visit;

/// How many schedules a page has, and in how many namespaces it looks when none is named.
const SCHEDULES: usize = 100;
const NAMESPACES: usize = 50;

#[derive(Deserialize)]
struct Listed {
    schedules: Vec<Value>,
    cursor: Option<String>,
}

/// A schedule, and where it is.
struct Found {
    pool: String,
    namespace: String,
    schedule: Value,
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

/// A route of the schedule that the fields name.
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
            what: html! { p { "It places no more jobs, and what became of its last ones is forgotten. Jobs that it has placed stay." } },
            hidden: vec![("do", "delete"), ("pool", pool), ("namespace", namespace), ("name", name)],
            more: html! {},
            button: "Delete",
        },
    ))
}

/// The schedules of one namespace, or of those that have queues.
async fn read(visit: &Visit) -> Said<(Vec<Found>, Option<String>, bool)> {
    let fields = &visit.fields;
    let (mut scopes, mut partly) = (Vec::new(), false);
    if let Some(namespace) = fields.get("namespace") {
        scopes.push((fields.get("pool").unwrap_or("default").to_owned(), namespace.to_owned()));
    } else {
        let listing = visit.ask.get::<Listing>("/queues?sort=name&limit=100").await?;
        partly = listing.cursor.is_some();
        scopes.extend(listing.queues.into_iter().map(|row| (row.pool, row.namespace)));
        scopes.dedup();
    }
    partly |= scopes.len() > NAMESPACES;
    let (mut found, mut cursor) = (Vec::new(), None);
    for (pool, namespace) in scopes.iter().take(NAMESPACES) {
        let mut path = format!("/api/{}/_schedules?pool={}&limit={SCHEDULES}", part(namespace), part(pool));
        for name in ["queue", "state", "cursor"] {
            if let Some(value) = fields.get(name).filter(|_| name != "cursor" || scopes.len() == 1) {
                path.push_str(&format!("&{name}={}", part(value)));
            }
        }
        let listed = visit.ask.get::<Listed>(path).await?;
        cursor = listed.cursor.filter(|_| scopes.len() == 1);
        let own = listed.schedules.into_iter();
        found.extend(own.map(|schedule| Found {
            pool: pool.clone(),
            namespace: namespace.clone(),
            schedule,
        }));
        if found.len() >= SCHEDULES {
            found.truncate(SCHEDULES);
            return Ok((found, cursor, scopes.len() > 1));
        }
    }
    Ok((found, cursor, partly))
}

async fn page(visit: &Visit) -> Said<Page> {
    let (found, cursor, partly) = read(visit).await?;
    let body = html! {
        h1 { "Schedules" }
        (filter(visit))
        @if partly { p.note { "Not all are shown: name a namespace." } }
        @if found.is_empty() {
            p { "There is no such schedule. A schedule is set by its name, in the namespace of its queue:" }
            (curl(visit, "PUT", "/api/demo/_schedules/nightly", Some("{\"queue\":\"reports\",\"cron\":\"30 2 * * *\",\"text\":\"sales\"}")))
        } @else { (table(visit, &found)) }
        @if let Some(cursor) = cursor {
            p { a.next rel="next" href=(visit.fields.link(&[("cursor", Some(&cursor))])) { "Next" } }
        }
    };
    Ok(Page::new("Schedules", "Schedules", body))
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
            table.jobs {
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
            td { a href=(visit.to(&queue)) { (text(told("queue"))) } }
            td { (when(schedule)) }
            td { (text(told("state"))) @if !told("why").is_empty() { ": " (cut(told("why"))) } }
            td { (next(visit, schedule)) }
            td { @match schedule["last"]["outcome"].as_str() {
                Some(outcome) => { (text(outcome)) " " @if let Some(at) = instant(&schedule["last"]["due"]) { (visit.zone.at(at)) } }
                None => "–",
            } }
            td { @if visit.may_change() { (actions(visit, pool, namespace, schedule)) } }
        }
    }
}

fn instant(of: &Value) -> Option<At> {
    At::try_from(of.as_str()?.to_owned()).ok()
}

fn when(schedule: &Value) -> Markup {
    match (schedule["cron"].as_str(), schedule["every"].as_f64()) {
        (Some(cron), _) => {
            html! { code { (cut(cron)) } " " (text(schedule["zone"].as_str().unwrap_or("UTC"))) }
        }
        (None, Some(every)) => html! { "every " (duration(every)) },
        _ => unknown("it cannot be read"),
    }
}

/// The next instant, in the schedule's zone and in the page's.
fn next(visit: &Visit, schedule: &Value) -> Markup {
    let next = &schedule["next"][0];
    html! {
        @match instant(&next["due"]) {
            Some(at) => {
                (visit.zone.at(at))
                @if let Some(local) = next["local"].as_str() { br; span.pool { (text(local)) } }
            }
            None => "–",
        }
    }
}

fn actions(visit: &Visit, pool: &str, namespace: &str, schedule: &Value) -> Markup {
    let name = schedule["name"].as_str().unwrap_or_default();
    let mark = super::text::volatile(&html! { (crate::random::ulid().to_string()) }).0;
    html! {
        form.actions method="post" action=(visit.fields.link(&[])) {
            input type="hidden" name="pool" value=(pool);
            input type="hidden" name="namespace" value=(namespace);
            input type="hidden" name="name" value=(typed(name));
            input type="hidden" name="mark" value=(mark);
            @if schedule["paused"] == true { button type="submit" name="do" value="resume" { "Resume" } }
            @else { button type="submit" name="do" value="pause" { "Pause" } }
            button type="submit" name="do" value="run" { "Run now" }
            button.danger type="submit" name="ask" value="delete" formmethod="get" { "Delete" }
        }
    }
}
