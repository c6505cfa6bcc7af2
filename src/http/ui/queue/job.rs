//! One job: where it is, what is known of it, and its body.

use axum::extract::Path;
use axum::http::{Method, StatusCode};
use axum::response::Response;
use maud::{Markup, html};
use serde::Deserialize;
use serde_json::Value;

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
use crate::http::ui::page::visit::{PoolQueue, Visit};
use crate::time::Instant;

/// A job of a queue, as a path names it.
#[derive(Deserialize)]
pub struct Named {
    pool: String,
    namespace: String,
    queue: String,
    id: String,
}

type Job = VerboseJob<'static>;

/// `GET /ui/jobs/:pool/:namespace/:queue/:id`
pub async fn show(visit: Visit, Path(named): Path<Named>) -> Response {
    let Named { pool, namespace, queue, id } = named;
    let place = PoolQueue { pool, namespace, queue };
    if visit.fields.get("ask") == Some("cancel") {
        return visit.answer(Ok(asking(&visit, &place, &id)));
    }
    let job = visit.ask.get::<Job>(place.api(&format!("/job/{}", part(&id)), &[("verbose", "1")])).await;
    let how = match visit.fields.get("as") {
        Some("raw") => match job {
            Ok(Job { data: Some(bytes), .. }) => {
                return answer::download(&format!("{id}.bin"), bytes.into_owned());
            }
            Ok(_) => {
                let refusal = Refusal::new(StatusCode::FORBIDDEN, "the body is not shown to this account");
                return visit.answer(Err(refusal));
            }
            Err(_) => None,
        },
        Some(given) => match body::ALL.iter().find(|(name, ..)| *name == given) {
            Some((.., how)) => Some(*how),
            None => return visit.answer(Err(Refusal::bad("a body is shown as text, json, hex or raw"))),
        },
        None => None,
    };
    let push = pushed(&visit, &place).await;
    visit.answer(page(&visit, &place, (job, push), how))
}

/// What the queue is pushed to, if it is.
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
        ("cancel", Some("yes")) => {
            let said = visit.ask.change(Method::DELETE, &route(""), Sent::Nothing).await;
            // The job has no page any more.
            let queue = visit.to(&format!("queues/{}?done=cancelled.1", place.path()));
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
            let job = visit.ask.get(place.api(&format!("/job/{}", part(&id)), &[("verbose", "1")])).await;
            let push = pushed(&visit, &place).await;
            visit.answer(page(&visit, &place, (job, push), None))
        }
    }
}

fn asking(visit: &Visit, place: &PoolQueue, id: &str) -> Page {
    asks(
        visit,
        trail(visit, place),
        "Queues",
        Sure {
            title: format!("Cancel job {id}"),
            what: html! {
                p { "The job of " (text(&place.name())) " will be gone: nobody gets it, and it cannot be brought back." }
            },
            hidden: vec![("do", "cancel")],
            more: html! {},
            button: "Cancel job",
            curl: curl(visit, "DELETE", &place.api(&format!("/job/{}", part(id)), &[]), None),
        },
    )
}

fn page(
    visit: &Visit,
    place: &PoolQueue,
    (job, push): (Said<Job>, Said<Value>),
    how: Option<As>,
) -> Said<Page> {
    let job = job?;
    let id = job.job_id.to_string();
    let body = html! {
        h1 { "Job " (text(&id)) }
        (facts(visit, &job))
        (actions(visit, place, &job))
        (attempts(visit, place, &job, &push))
        h2 { "Body" }
        (show_body(visit, &job, how))
    };
    let page = Page::new(format!("Job {id} of {}", place.name()), "Queues", body);
    Ok(page.under(trail(visit, place)))
}

fn actions(visit: &Visit, place: &PoolQueue, job: &Job) -> Markup {
    if !visit.may_change() {
        return html! {};
    }
    let path = |rest: &str| place.api(&format!("/job/{}{rest}", job.job_id), &[]);
    html! {
        form.actions method="post" action=(visit.fields.link(&[])) {
            @if job.state.as_deref() == Some("dead") { button type="submit" name="do" value="respawn" { "Respawn" } }
            button.danger type="submit" name="ask" value="cancel" formmethod="get" { "Cancel job" }
        }
        @let commands = [("POST", path("/respawn"), None), ("DELETE", path(""), None)];
        // Only what is dead can be respawned.
        (curls(visit, &commands[usize::from(job.state.as_deref() != Some("dead"))..]))
    }
}

/// How the job was pushed, as far as the queue's last attempts are of it.
fn attempts(visit: &Visit, place: &PoolQueue, job: &Job, push: &Said<Value>) -> Markup {
    let push = match push {
        Ok(push) => push,
        Err(refusal) if refusal.status == StatusCode::NOT_FOUND => return html! {},
        Err(refusal) => {
            return html! { p.note { "Whether it was pushed is not known: " (text(&refusal.text)) } };
        }
    };
    let of_queue = push::attempts_of(push, None).len() as u64;
    let own = push::attempts_of(push, Some(&job.job_id.to_string()));
    html! {
        h2 { "Attempts" }
        @if own.is_empty() {
            p { "None of the queue's last " (count(of_queue, "attempt", "attempts")) " to push was of this job." }
        } @else {
            p { "Of the queue's last " (count(of_queue, "attempt", "attempts")) " to push " (number(own.len() as u64)) ":" }
            (push::table(visit, place, &own))
        }
    }
}

fn facts(visit: &Visit, job: &Job) -> Markup {
    let state = job.state.as_deref();
    let bytes = job.data.as_ref().map(|bytes| bytes.len() as u64).or(job.size);
    html! {
        dl.facts {
            dt { "State" }
            dd { @match state {
                Some(state) => { b class=(format!("state {state}")) { (state) } }
                None => { (unknown("this store does not know it")) }
            } }
            dt { "Published" } dd { (volatile(&visit.zone.at(Instant(visit.zone.now.saturating_sub(job.elapsed_ms))))) }
            @if let (Some(at), Some(state)) = (job.due_at, state) { dt { (instant_of(state)) } dd { (visit.zone.at(at)) } }
            @if job.ttl > 0 {
                dt { "Its ttl ends" }
                dd { (volatile(&visit.zone.at(Instant(visit.zone.now + job.ttl * 1000)))) }
            } @else { dt { "TTL" } dd { "forever" } }
            dt { "Tries left" }
            dd { @match job.remain_tries {
                Some(tries) => { (tries) }
                None => { (unknown("this store does not know them of a job in this state")) }
            } }
            @if let Some(key) = &job.key { dt { "Key" } dd { (text(key)) } }
            @if let Some(reason) = &job.reason { dt { "Reason" } dd.text { (text(reason)) } }
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

fn show_body(visit: &Visit, job: &Job, how: Option<As>) -> Markup {
    let Some(bytes) = job.data.as_deref() else {
        return html! { p.note { "The body of job " (text(&job.job_id.to_string())) " is not shown to this account." } };
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
