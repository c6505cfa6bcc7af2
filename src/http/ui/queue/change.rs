//! Changes by the forms of a queue's page, through the JSON routes.

use axum::extract::Path;
use axum::http::{Method, StatusCode};
use axum::response::Response;
use serde_json::{Value, json};

use super::asks::{self, AT_ONCE};
use super::show;
use crate::http::ui::page::ask::{Refusal, Said, Sent, part};
use crate::http::ui::page::form::{Fields, Filled};
use crate::http::ui::page::text::count;
use crate::http::ui::page::visit::{PoolQueue, Visit};

/// `POST /ui/queues/:pool/:namespace/:queue`
pub async fn change(mut visit: Visit, Path(place): Path<PoolQueue>, Filled(form): Filled) -> Response {
    match act(&visit, &place, &form).await {
        Ok(done) => visit.done(&done),
        Err(refusal) => {
            visit.refuse(refusal, form.clone());
            let page = match form.get("ask") {
                Some(ask) => asks::asking(&visit, &place, ask, &form).await,
                None => show::page(&visit, &place).await,
            };
            visit.answer(page)
        }
    }
}

/// Executes a form. Returns the code of the result.
async fn act(visit: &Visit, place: &PoolQueue, form: &Fields) -> Said<String> {
    let (ask, sure) = (&visit.ask, form.get("sure") == Some("yes"));
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
        "respawn-all" if sure => {
            let tries = form.get("tries").map(|tries| tries.trim().parse::<u32>()).transpose();
            let tries = tries.map_err(|_| Refusal::bad("Tries must be a whole number"))?;
            begin(visit, place, "respawn", "dead", form, tries).await
        }
        "promote" => promote(visit, place, form).await,
        "promote-all" if sure => begin(visit, place, "promote", "delayed", form, None).await,
        "delete-dead" if sure => {
            named(place, form)?;
            begin(visit, place, "delete", "dead", form, None).await
        }
        "destroy" if sure => destroy(visit, place, form).await,
        "cancel" if sure => cancel(visit, place, form).await,
        "cancel" | "respawn-all" | "promote-all" | "delete-dead" | "destroy" => {
            Err(Refusal::bad("this needs confirmation"))
        }
        _ => Err(Refusal::bad("the form does not say what to do")),
    }
}

/// Cancels the selected jobs. Missing ones are no error.
async fn cancel(visit: &Visit, place: &PoolQueue, form: &Fields) -> Said<String> {
    let is_dead = form.get("state").or(visit.fields.get("state")) == Some("dead");
    let (words, code) = if is_dead { ("deleted", "removed") } else { ("cancelled", "cancelled") };
    let done = each(visit, place, form, words, |job| (Method::DELETE, format!("/job/{job}"))).await?;
    Ok(format!("{code}.{done}"))
}

/// Makes the selected jobs due now. Jobs that are no longer delayed are left unchanged.
async fn promote(visit: &Visit, place: &PoolQueue, form: &Fields) -> Said<String> {
    if form.all("job").next().is_none() {
        return Ok("none".into());
    }
    let done =
        each(visit, place, form, "made due", |job| (Method::POST, format!("/job/{job}/promote"))).await?;
    Ok(format!("promoted.{done}"))
}

/// Calls a route for each selected job, and returns how many jobs it changed. `words` describes the action.
async fn each(
    visit: &Visit,
    place: &PoolQueue,
    form: &Fields,
    words: &str,
    route: impl Fn(&str) -> (Method, String),
) -> Said<u64> {
    let mut done = 0;
    for job in form.all("job").take(100) {
        let (method, path) = route(&part(job));
        match visit.ask.change(method, &place.api(&path, &[]), Sent::Nothing).await {
            Ok(_) => done += 1,
            Err(refusal) if [StatusCode::NOT_FOUND, StatusCode::CONFLICT].contains(&refusal.status) => {}
            Err(refusal) if done == 0 => return Err(refusal),
            Err(refusal) => {
                let text = format!("{} {words}, then: {}", count(done, "job was", "jobs were"), refusal.text);
                return Err(Refusal::new(refusal.status, text));
            }
        }
    }
    Ok(done)
}

/// Starts a bulk action on all jobs of a state that match a filter.
async fn begin(
    visit: &Visit,
    place: &PoolQueue,
    action: &str,
    state: &str,
    form: &Fields,
    tries: Option<u32>,
) -> Said<String> {
    let mut order = asks::ordered(place, action, state, form);
    if let Some(tries) = tries {
        order["tries"] = tries.into();
    }
    visit.ask.change(Method::POST, "/bulk", Sent::Json(order)).await?;
    Ok("begun".into())
}

/// Checks that the queue's name was entered.
fn named(place: &PoolQueue, form: &Fields) -> Said<()> {
    let typed = form.or_empty("name").trim();
    if typed == place.queue || typed == place.name() {
        return Ok(());
    }
    Err(Refusal::bad(format!("the queue's name is {}: nothing was done", place.name())))
}

/// Destroys the jobs in the chosen states.
async fn destroy(visit: &Visit, place: &PoolQueue, form: &Fields) -> Said<String> {
    named(place, form)?;
    let chosen: Vec<&str> = form.all("which").collect();
    if chosen.is_empty() {
        return Err(Refusal::bad("no state was chosen: nothing was done"));
    }
    let is_chosen = |state: &str| chosen.contains(&state);
    let dead: Value = match is_chosen("dead") {
        true => visit.ask.get(place.api("/deadletter", &[])).await?,
        false => Value::Null,
    };
    let dead = dead["deadletter_size"].as_u64().unwrap_or(0);
    let in_steps = dead > AT_ONCE;
    // One bulk action runs on a queue at a time, so the step that may be rejected runs before anything is deleted.
    let mut before = Vec::new();
    if is_chosen("delayed") && in_steps {
        return Err(Refusal::bad(format!(
            "{} are too many to destroy together with the delayed jobs: destroy one of the two first, then the other. Nothing was done",
            count(dead, "dead job", "dead jobs")
        )));
    } else if is_chosen("delayed") {
        begin(visit, place, "cancel", "delayed", &Fields::default(), None).await?;
        before.push("cancelling the delayed jobs has started");
    } else if in_steps {
        begin(visit, place, "delete", "dead", &Fields::default(), None).await?;
        before.push("deleting the dead jobs has started");
    }
    if is_chosen("ready") {
        let gone = visit.ask.change(Method::DELETE, &place.api("", &[]), Sent::Nothing).await;
        gone.map_err(|refusal| after(&before, refusal))?;
        before.push("the ready jobs were deleted");
    }
    if dead > 0 && !in_steps {
        // Excludes jobs that die from now on.
        let path = place.api("/deadletter", &[("limit", &dead.to_string())]);
        let gone = visit.ask.change(Method::DELETE, &path, Sent::Nothing).await;
        gone.map_err(|refusal| after(&before, refusal))?;
    }
    Ok("destroyed".into())
}

/// Adds the steps completed before it to an error.
fn after(before: &[&str], refusal: Refusal) -> Refusal {
    if before.is_empty() {
        return refusal;
    }
    Refusal::new(refusal.status, format!("{}. Done before that: {}", refusal.text, before.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Guards against a page that says "not done" about an action that is running.
    #[test]
    fn a_refusal_names_what_was_done_before() {
        let refusal = Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "the store is unavailable");
        assert_eq!(after(&[], refusal.clone()), refusal);
        let Refusal { status, text } = after(&["it has started", "the ready jobs were deleted"], refusal);
        assert_eq!(status, 503);
        assert_eq!(
            text,
            "the store is unavailable. Done before that: it has started, the ready jobs were deleted"
        );
    }
}
