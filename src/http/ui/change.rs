//! What the forms of a queue's page change, by the JSON routes.

use axum::extract::Path;
use axum::http::{Method, StatusCode};
use axum::response::Response;
use serde_json::json;

use super::ask::{Refusal, Said, Sent, part};
use super::asks;
use super::form::{Fields, Filled};
use super::queue;
use super::text::count;
use super::visit::{Place, Visit};

/// `POST /ui/queues/:pool/:namespace/:queue`
pub async fn change(mut visit: Visit, Path(place): Path<Place>, Filled(form): Filled) -> Response {
    match act(&visit, &place, &form).await {
        Ok(done) => visit.done(&done),
        Err(refusal) => {
            visit.refuse(refusal, form.clone());
            let page = match form.get("ask") {
                Some(ask) => asks::asking(&visit, &place, ask, &form).await,
                None => queue::page(&visit, &place).await,
            };
            visit.answer(page)
        }
    }
}

/// Does what a form says. Answers what the page is to say.
async fn act(visit: &Visit, place: &Place, form: &Fields) -> Said<String> {
    let ask = &visit.ask;
    match form.or_empty("do") {
        "pause" => {
            let query: Vec<_> = form.get("for").map(|seconds| ("for", seconds)).into_iter().collect();
            ask.change(Method::POST, &place.api("/pause", &query), Sent::Nothing).await?;
            Ok("paused".into())
        }
        "resume" => {
            ask.change(Method::POST, &place.api("/resume", &[]), Sent::Nothing).await?;
            Ok("resumed".into())
        }
        "respawn" => {
            let jobs: Vec<&str> = form.all("job").collect();
            if jobs.is_empty() {
                return Ok("none".into());
            }
            let path = place.api("/deadletter/respawn", &[]);
            let said = ask.change(Method::POST, &path, Sent::Json(json!({ "jobs": jobs }))).await?;
            Ok(format!("respawned.{}", said["respawned"]))
        }
        "cancel" if form.get("sure") == Some("yes") => cancel(visit, place, form).await,
        "cancel" => Err(Refusal::bad("a cancelled job is gone: it is asked first")),
        _ => Err(Refusal::bad("the form does not say what to do")),
    }
}

/// Cancels the jobs that were selected, one after the other. What is gone already is no error.
async fn cancel(visit: &Visit, place: &Place, form: &Fields) -> Said<String> {
    let mut done = 0;
    for job in form.all("job").take(100) {
        let path = place.api(&format!("/job/{}", part(job)), &[]);
        match visit.ask.change(Method::DELETE, &path, Sent::Nothing).await {
            Ok(_) => done += 1,
            Err(refusal) if refusal.status == StatusCode::NOT_FOUND => {}
            Err(refusal) if done == 0 => return Err(refusal),
            Err(refusal) => {
                let text =
                    format!("{} cancelled, then: {}", count(done, "job was", "jobs were"), refusal.text);
                return Err(Refusal::new(refusal.status, text));
            }
        }
    }
    Ok(format!("cancelled.{done}"))
}
