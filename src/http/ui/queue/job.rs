//! The page of a job: its state, its fields, and its body.

use axum::extract::Path;
use axum::http::{Method, StatusCode};
use axum::response::Response;
use maud::{Markup, html};
use serde::Deserialize;
use serde_json::Value;

use super::asks::{publish, verb};
use super::dead::reason;
use super::jobs::instant_of;
use super::push;
use crate::http::jobs::lists::VerboseJob;
use crate::http::ui::page::answer;
use crate::http::ui::page::ask::{Refusal, Said, Sent, part};
use crate::http::ui::page::body::{self, As};
use crate::http::ui::page::form::Filled;
use crate::http::ui::page::frame::{Page, curl, curls};
use crate::http::ui::page::rows::trail;
use crate::http::ui::page::sure::{Sure, page as asks};
use crate::http::ui::page::text::{count, number, size, text, unknown, volatile};
use crate::http::ui::page::visit::{FoundJob, PoolQueue, Visit, Wanted};
use crate::time::Instant;

/// A job of a queue, as in a path.
#[derive(Deserialize)]
pub struct Named {
    pool: String,
    namespace: String,
    queue: String,
    id: String,
}

/// `GET /ui/jobs/:pool/:namespace/:queue/:id`
pub async fn show(visit: Visit, Path(named): Path<Named>) -> Response {
    let Named { pool, namespace, queue, id } = named;
    let place = PoolQueue { pool, namespace, queue };
    let job = visit.job(&place, Wanted::Id(&id)).await;
    if visit.fields.get("ask") == Some("cancel") {
        return visit.answer(job.map(|job| asking(&visit, &place, &job.verbose())));
    }
    let how = match visit.fields.get("as") {
        Some("raw") => match job.as_ref().map(|job| job.verbose().data) {
            Ok(Some(bytes)) => return answer::download(&format!("{id}.bin"), bytes.to_vec()),
            Ok(None) => {
                let refusal = Refusal::new(StatusCode::FORBIDDEN, "bodies are not shown to this account");
                return visit.answer(Err(refusal));
            }
            Err(_) => None,
        },
        Some(given) => match body::ALL.iter().find(|(name, ..)| *name == given) {
            Some((.., how)) => Some(*how),
            None => return visit.answer(Err(Refusal::bad("invalid as: text, json, hex or raw"))),
        },
        None => None,
    };
    let push = pushed(&visit, &place).await;
    visit.answer(page(&visit, &place, (job, push), how))
}

/// Reads the push setting of the queue, if there is one.
async fn pushed(visit: &Visit, place: &PoolQueue) -> Said<Value> {
    visit.ask.get(push::push_route(place, "")).await
}

/// `POST /ui/jobs/:pool/:namespace/:queue/:id`
pub async fn change(mut visit: Visit, Path(named): Path<Named>, Filled(form): Filled) -> Response {
    let Named { pool, namespace, queue, id } = named;
    let place = PoolQueue { pool, namespace, queue };
    let route = |rest: &str| place.api(&format!("/job/{}{rest}", part(&id)), &[]);
    let done = match (form.or_empty("do"), form.get("sure")) {
        ("respawn", _) => {
            let said = visit.ask.change(Method::POST, &route("/respawn"), Sent::Nothing).await;
            said.map(|_| visit.done("respawned.1"))
        }
        ("promote", _) => {
            let said = visit.ask.change(Method::POST, &route("/promote"), Sent::Nothing).await;
            said.map(|_| visit.done("promoted.1"))
        }
        ("cancel", Some("yes")) => {
            let said = visit.ask.change(Method::DELETE, &route(""), Sent::Nothing).await;
            // The job no longer has a page.
            let code = if form.get("state") == Some("dead") { "removed" } else { "cancelled" };
            let queue = visit.to(&format!("queues/{}?done={code}.1", place.path()));
            said.map(|_| answer::see_other(&queue))
        }
        _ => Err(Refusal::bad("the form does not say what to do")),
    };
    match done {
        Ok(mut response) => {
            visit.carry(&mut response);
            response
        }
        Err(refusal) => {
            visit.refuse(refusal, form);
            let job = visit.job(&place, Wanted::Id(&id)).await;
            let push = pushed(&visit, &place).await;
            visit.answer(page(&visit, &place, (job, push), None))
        }
    }
}

fn asking(visit: &Visit, place: &PoolQueue, job: &VerboseJob<'_>) -> Page {
    let (id, state) = (job.job_id.to_string(), job.state.unwrap_or_default());
    let verb = verb(state);
    asks(
        visit,
        trail(visit, place),
        "Queues",
        Sure {
            title: format!("{verb} job {id}"),
            what: html! {
                p { "No worker will get this job of " (text(&place.name())) " any more. It cannot be brought back." }
            },
            hidden: vec![("do", "cancel"), ("state", state)],
            more: html! {},
            button: button(state),
            curl: curl(visit, "DELETE", &place.api(&format!("/job/{id}"), &[]), None),
        },
    )
}

/// Returns the label of the button that removes a job in this state.
fn button(state: &str) -> &'static str {
    if state == "dead" { "Delete" } else { "Cancel job" }
}

fn page(
    visit: &Visit,
    place: &PoolQueue,
    (job, push): (Said<FoundJob>, Said<Value>),
    how: Option<As>,
) -> Said<Page> {
    let job = job?;
    let job = job.verbose();
    let id = job.job_id.to_string();
    let body = html! {
        div.head {
            h1 { "Job " (text(&id)) }
            @match job.state {
                Some(state) => { span class=(format!("badge state-{state}")) { (state) } }
                None => {}
            }
            button.copy type="button" data-copy="job-id" hidden { "Copy" span.vh { " the id" } }
            (actions(visit, place, &job))
        }
        span #job-id hidden { (id) }
        (curl_of(visit, place, &job))
        (facts(visit, &job))
        h2 { "Body" }
        (show_body(visit, &job, how))
        (attempts(visit, place, &job, &push))
    };
    let page = Page::new(format!("Job {id} of {}", place.name()), "Queues", body);
    Ok(page.under(trail(visit, place)))
}

fn actions(visit: &Visit, place: &PoolQueue, job: &VerboseJob<'_>) -> Markup {
    if !visit.may_change() {
        return html! {};
    }
    let state = job.state.unwrap_or_default();
    let again = format!("{}&from={}", publish(place), part(&job.job_id.to_string()));
    html! {
        form.does method="post" action=(visit.fields.link(&[])) {
            @match state {
                "dead" => { button.primary type="submit" name="do" value="respawn" { "Respawn" } }
                "delayed" => { button.primary type="submit" name="do" value="promote" { "Make due now" } }
                _ => {}
            }
            @if job.data.is_some() { a.button href=(visit.to(&again)) { "Publish again" } }
            button.danger type="submit" name="ask" value="cancel" formmethod="get" { (button(state)) }
        }
    }
}

/// Shows the equivalent commands.
fn curl_of(visit: &Visit, place: &PoolQueue, job: &VerboseJob<'_>) -> Markup {
    let path = |rest: &str| place.api(&format!("/job/{}{rest}", job.job_id), &[]);
    let first = match job.state {
        Some("dead") => Some("/respawn"),
        Some("delayed") => Some("/promote"),
        _ => None,
    };
    let commands =
        first.map(|rest| ("POST", path(rest), None)).into_iter().chain([("DELETE", path(""), None)]);
    html! { @if visit.may_change() { (curls(visit, &commands.collect::<Vec<_>>())) } }
}

/// Shows the push attempts of the job that are among the last attempts of the queue.
fn attempts(visit: &Visit, place: &PoolQueue, job: &VerboseJob<'_>, push: &Said<Value>) -> Markup {
    let push = match push {
        Ok(push) => push,
        Err(refusal) if refusal.status == StatusCode::NOT_FOUND => return html! {},
        Err(refusal) => {
            return html! { p.note { "The attempts to push it cannot be read: " (text(&refusal.text)) } };
        }
    };
    let of_queue = push::attempts_of(push, None).len() as u64;
    let own = push::attempts_of(push, Some(&job.job_id.to_string()));
    html! {
        h2 { "Attempts" }
        @if own.is_empty() {
            p.hint { "None of the queue's last " (count(of_queue, "attempt", "attempts")) " to push was of this job." }
        } @else {
            p.hint { (number(own.len() as u64)) " of the queue's last " (count(of_queue, "attempt", "attempts")) " to push:" }
            (push::table(visit, place, &own))
        }
    }
}

fn facts(visit: &Visit, job: &VerboseJob<'_>) -> Markup {
    let state = job.state;
    let bytes = job.data.as_ref().map(|bytes| bytes.len() as u64).or(job.size);
    html! {
        dl.facts {
            dt { "State" }
            dd { @match state {
                Some(state) => (state),
                None => (unknown("this store does not know it")),
            } }
            dt { "Published" } dd { (volatile(&visit.zone.at(Instant(visit.zone.now.saturating_sub(job.elapsed_ms))))) }
            @if let (Some(at), Some(state)) = (job.due_at, state) { dt { (instant_of(state)) } dd { (visit.zone.at(at)) } }
            @if job.ttl > 0 {
                dt { "TTL ends" }
                dd { (volatile(&visit.zone.at(Instant(visit.zone.now + job.ttl * 1000)))) }
            } @else { dt { "TTL" } dd { "forever" } }
            dt { "Tries left" }
            dd { @match job.remain_tries {
                Some(tries) => { (tries) }
                None => { (unknown("this store does not know the tries of a job in this state")) }
            } }
            @if let Some(key) = job.key { dt { "Key" } dd { (text(key)) } }
            @if let Some(reason) = job.reason { dt { "Reason" } dd.text { (text(reason)) } }
            @else if state == Some("dead") { dt { "Reason" } dd { (reason(None)) } }
            @for (name, value) in job.attributes.iter().flat_map(|all| all.iter()) {
                dt { "Attribute " (text(name)) } dd.text { (text(value)) }
            }
            dt { "Size" }
            dd { @match bytes {
                Some(bytes) => { (size(bytes)) }
                None => { (unknown("the server does not say")) }
            } }
        }
    }
}

fn show_body(visit: &Visit, job: &VerboseJob<'_>, how: Option<As>) -> Markup {
    let Some(bytes) = job.data else {
        return html! { p.note { "Bodies are not shown to this account." } };
    };
    let how = how.unwrap_or_else(|| As::guess(bytes));
    html! {
        p.switch {
            @for (name, words, one) in body::ALL {
                a href=(visit.fields.link(&[("as", Some(name))])) aria-current=[(one == how).then_some("true")] { (words) } " "
            }
            a href=(visit.fields.link(&[("as", Some("raw"))])) download { "Download body" }
            " " button.copy type="button" data-copy="body" hidden { "Copy" }
        }
        @if bytes.is_empty() { p { "The body is empty." } } @else { (body::shown(bytes, how)) }
    }
}
