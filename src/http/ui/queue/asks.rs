//! The actions of a queue's page, and their confirmation pages.

use maud::{Markup, html};
use serde_json::{Value, json};

use super::dead::reason;
use super::statistics::Statistics;
use crate::http::ui::page::ask::{Refusal, Said, part};
use crate::http::ui::page::form::Fields;
use crate::http::ui::page::frame::{Command, Page, command_line, curl, curls};
use crate::http::ui::page::rows::{STATES, trail};
use crate::http::ui::page::sure::{Sure, page as asks};
use crate::http::ui::page::text::{count, cut, text};
use crate::http::ui::page::visit::{PoolQueue, Visit};

/// Maximum dead jobs destroyed by one request. More require a bulk action.
pub const AT_ONCE: u64 = 1000;
/// Durations of a pause in seconds, with their labels.
const PAUSES: [(&str, &str); 6] = [
    ("", "until it is resumed"),
    ("600", "10 minutes"),
    ("3600", "1 hour"),
    ("14400", "4 hours"),
    ("43200", "12 hours"),
    ("86400", "1 day"),
];

/// Creates the confirmation page of an irreversible action. `of` has the selection.
pub async fn asking(visit: &Visit, place: &PoolQueue, ask: &str, of: &Fields) -> Said<Page> {
    let sure = match ask {
        "cancel" => cancel_selected(visit, place, of)?,
        "respawn-all" => respawn_all(visit, place, of).await,
        "promote-all" => promote_all(visit, place, of).await,
        "delete-dead" => delete_dead(visit, place).await,
        "destroy" => destroy(visit, place, of).await,
        _ => return Err(Refusal::bad("invalid ask: unknown question")),
    };
    Ok(asks(visit, trail(visit, place), "Queues", sure))
}

fn cancel_selected<'a>(visit: &Visit, place: &PoolQueue, of: &'a Fields) -> Said<Sure<'a>> {
    let jobs: Vec<&str> = of.all("job").take(100).collect();
    if jobs.is_empty() {
        return Err(Refusal::bad("no job was selected"));
    }
    let n = count(jobs.len() as u64, "job", "jobs");
    let verb = verb(of.get("state").unwrap_or(visit.fields.or_empty("state")));
    let mut hidden = vec![("do", "cancel"), ("ask", "cancel")];
    hidden.extend(of.get("state").map(|state| ("state", state)));
    hidden.extend(jobs.iter().map(|job| ("job", *job)));
    Ok(Sure {
        title: format!("{verb} {n} of {}", place.name()),
        what: html! {
            p { "No worker will get the " (n) " any more. They cannot be brought back." }
            ul { @for job in &jobs { li { code { (text(job)) } } } }
        },
        hidden,
        more: html! {},
        button: verb,
        curl: curls(visit, &jobs.iter().map(|job| cancel(place, job)).collect::<Vec<_>>()),
    })
}

/// Returns the word for removing a job in this state.
pub fn verb(state: &str) -> &'static str {
    if state == "dead" { "Delete" } else { "Cancel" }
}

async fn delete_dead(visit: &Visit, place: &PoolQueue) -> Sure<'static> {
    let dead = Statistics::read(visit, place).await.jobs("dead");
    let order = order(place, "delete", "dead", &Fields::default());
    Sure {
        title: format!("Delete the dead jobs of {}", place.name()),
        what: html! { p { "All " (dead) " dead jobs will be deleted. They cannot be brought back." } },
        hidden: vec![("do", "delete-dead"), ("ask", "delete-dead")],
        more: name_field(visit, place),
        button: "Delete dead jobs",
        curl: curl(visit, "POST", "/bulk", Some(&order)),
    }
}

async fn destroy(visit: &Visit, place: &PoolQueue, of: &Fields) -> Sure<'static> {
    let counts = Statistics::read(visit, place).await;
    let which = STATES.iter().filter(|(state, _)| *state != "running");
    let chosen: Vec<&str> = of.all("which").collect();
    // One bulk action runs on a queue at a time, so the dead jobs need another request.
    let dead = place.api("/deadletter", &[("limit", &AT_ONCE.to_string())]);
    let delayed = order(place, "cancel", "delayed", &Fields::default());
    let bulk = ("POST", "/bulk".to_owned(), Some(&*delayed));
    Sure {
        title: format!("Destroy {}", place.name()),
        what: html! { p { "Deletes the jobs in the states you choose. They cannot be brought back. Running jobs stay: their workers may finish them." } },
        hidden: vec![("do", "destroy"), ("ask", "destroy")],
        more: html! {
            fieldset {
                legend { "Which" }
                @for (state, words) in which {
                    p { label { input type="checkbox" name="which" value=(state) checked[chosen.contains(state)]; " " (words) ": " (counts.jobs(state)) } }
                }
            }
            (name_field(visit, place))
        },
        button: "Destroy",
        curl: curls(visit, &[("DELETE", place.api("", &[]), None), ("DELETE", dead, None), bulk]),
    }
}

/// Shows the field for the queue's name, which must be entered as a confirmation.
fn name_field(visit: &Visit, place: &PoolQueue) -> Markup {
    html! {
        p {
            label for="name" { "Type the queue's name" } ": " b { (text(&place.queue)) } " "
            input #name name="name" value=(visit.typed("name", "")) required autocomplete="off" spellcheck="false";
        }
    }
}

/// Describes the jobs in a state that match the fields' filter.
fn filtered(of: &Fields, all: &Markup, state: &str) -> Markup {
    let (why, contains) = (of.text("reason"), of.get("contains"));
    html! {
        @if why.is_some() || contains.is_some() { "Of " (all) " " (state) " jobs those" } @else { "All " (all) " " (state) " jobs" }
        @if let Some(why) = why { " with the reason " q { (reason(Some(why))) } }
        @if let Some(contains) = contains { " that contain " q { (cut(contains)) } }
    }
}

/// Returns the hidden fields that keep the filter.
fn kept<'a>(of: &'a Fields, what: &'a str) -> Vec<(&'a str, &'a str)> {
    let mut hidden = vec![("do", what), ("ask", what)];
    hidden.extend(of.text("reason").map(|reason| ("reason", reason)));
    hidden.extend(of.get("contains").map(|contains| ("contains", contains)));
    hidden
}

const IN_STEPS: &str = "The server does this in steps, and continues when you close this page.";

async fn respawn_all<'a>(visit: &Visit, place: &PoolQueue, of: &'a Fields) -> Sure<'a> {
    let dead = Statistics::read(visit, place).await.jobs("dead");
    Sure {
        title: format!("Respawn all dead jobs of {}", place.name()),
        what: html! { p { (filtered(of, &dead, "dead")) " will be ready again, and workers get them. " (IN_STEPS) } },
        hidden: kept(of, "respawn-all"),
        more: html! {
            p { label for="tries" { "Tries" } " " input #tries name="tries" value=(visit.typed("tries", "1")) size="5" inputmode="numeric" autocomplete="off"; }
        },
        button: "Respawn all",
        curl: curl(visit, "POST", "/bulk", Some(&order(place, "respawn", "dead", of))),
    }
}

async fn promote_all<'a>(visit: &Visit, place: &PoolQueue, of: &'a Fields) -> Sure<'a> {
    let delayed = Statistics::read(visit, place).await.jobs("delayed");
    Sure {
        title: format!("Make all delayed jobs of {} due now", place.name()),
        what: html! { p { (filtered(of, &delayed, "delayed")) " will be ready now, and workers get them. " (IN_STEPS) } },
        hidden: kept(of, "promote-all"),
        more: html! {},
        button: "Make all due now",
        curl: curl(visit, "POST", "/bulk", Some(&order(place, "promote", "delayed", of))),
    }
}

/// Returns the body of a bulk action on this queue's jobs that match the fields' filter.
fn order(place: &PoolQueue, action: &str, state: &str, of: &Fields) -> String {
    ordered(place, action, state, of).to_string()
}

/// Like [`order`], as JSON.
pub fn ordered(place: &PoolQueue, action: &str, state: &str, of: &Fields) -> Value {
    let mut order = json!({
        "pool": place.pool, "namespace": place.namespace, "queue": place.queue, "action": action, "state": state,
    });
    // An empty reason selects jobs without one.
    for (name, value) in [("reason", of.text("reason")), ("contains", of.get("contains"))] {
        if let Some(value) = value {
            order[name] = value.into();
        }
    }
    order
}

/// Returns the command that cancels a job.
fn cancel<'a>(place: &PoolQueue, job: &str) -> Command<'a> {
    ("DELETE", place.api(&format!("/job/{}", part(job)), &[]), None)
}

/// Shows the actions on the whole queue.
pub fn actions(visit: &Visit, place: &PoolQueue, paused: bool) -> Markup {
    if !visit.may_change() {
        return html! {};
    }
    let here = visit.fields.link(&[]);
    html! {
        div.does {
            @if paused {
                form method="post" action=(here) {
                    button type="submit" name="do" value="resume" { "Resume queue" }
                }
            } @else {
                form.actions method="post" action=(here) {
                    button type="submit" name="do" value="pause" { "Pause queue" }
                    label for="for" { "for" }
                    select #for name="for" autocomplete="off" { @for (value, words) in PAUSES { option value=(value) { (words) } } }
                }
            }
            a.button.primary href=(visit.to(&publish(place))) { "Publish a job" }
            a.button.danger href=(visit.fields.link(&[("ask", Some("destroy"))])) { "Destroy" }
        }
    }
}

/// Shows a form that finds one job of the queue.
pub fn find(visit: &Visit, place: &PoolQueue) -> Markup {
    html! {
        form.actions method="get" action=(visit.to("search")) {
            input type="hidden" name="in" value=(place.path());
            label for="find" { "Find by key or id" }
            input #find name="q" autocomplete="off" spellcheck="false";
            button type="submit" { "Find" }
        }
    }
}

/// Returns the path of the page that publishes to a queue.
pub fn publish(place: &PoolQueue) -> String {
    format!("publish/{}/{}?queue={}", part(&place.pool), part(&place.namespace), part(&place.queue))
}

/// Shows the actions on all jobs in a state, or on all that match the page's filter.
pub fn of_all(visit: &Visit, place: &PoolQueue, state: &str, jobs: Option<u64>) -> Markup {
    if jobs == Some(0) {
        return html! {};
    }
    let order = |action: &str, of: &Fields| order(place, action, state, of);
    let bulk = |order| ("POST", "/bulk".to_owned(), Some(order));
    let ask = |what: &'static str| visit.fields.link(&[("state", Some(state)), ("ask", Some(what))]);
    html! {
        @match state {
            "dead" => {
                p.actions {
                    a.button href=(ask("respawn-all")) { "Respawn all" }
                    a.button.danger href=(ask("delete-dead")) { "Delete dead jobs" }
                }
                @let (respawn, delete) = (order("respawn", &visit.fields), order("delete", &Fields::default()));
                (curls(visit, &[bulk(&*respawn), bulk(&*delete)]))
            }
            "delayed" => {
                p.actions { a.button href=(ask("promote-all")) { "Make all due now" } }
                (curls(visit, &[bulk(&*order("promote", &visit.fields))]))
            }
            _ => {}
        }
    }
}

/// Shows the actions on selected rows.
pub fn selected(visit: &Visit, place: &PoolQueue, state: &str) -> Markup {
    let job = |rest: &str| place.api(&format!("/job/ID{rest}"), &[]);
    let first = match state {
        "dead" => Some(("POST", place.api("/deadletter/respawn", &[]), Some("{\"jobs\":[\"ID\"]}"))),
        "delayed" => Some(("POST", job("/promote"), None)),
        _ => None,
    };
    let commands: Vec<Command<'_>> = first.into_iter().chain([cancel(place, "ID")]).collect();
    html! { div.row {
        form #selected .actions method="post" action=(visit.fields.link(&[])) {
            input type="hidden" name="state" value=(state);
            label hidden data-all="1" { input type="checkbox" data-all="1" autocomplete="off"; " All on this page" }
            @match state {
                "dead" => { button type="submit" name="do" value="respawn" { "Respawn" } }
                "delayed" => { button type="submit" name="do" value="promote" { "Make due now" } }
                _ => {}
            }
            button.danger type="submit" name="ask" value="cancel" formmethod="get" { (verb(state)) }
        }
        (curls(visit, &commands))
    } }
}

/// Shows the commands equivalent to the queue's actions. The pause command follows the selected duration.
pub fn commands(visit: &Visit, place: &PoolQueue, paused: bool) -> Markup {
    let line =
        |path: &str, query: &[(&str, &str)]| command_line(visit, &("POST", place.api(path, query), None));
    html! {
        details.curl {
            summary { "As curl" }
            pre tabindex="0" {
                @if paused { code { (line("/resume", &[])) } }
                @else { code data-select="for" data-with=(line("/pause", &[("for", "SECONDS")])) { (line("/pause", &[])) } }
            }
        }
    }
}
