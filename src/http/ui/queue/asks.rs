//! What can be done with a queue, as its page offers it, and the pages that ask before it is done.

use maud::{Markup, html};
use serde_json::json;

use super::figures::Figures;
use crate::http::ui::page::ask::{Refusal, Said, part};
use crate::http::ui::page::form::Fields;
use crate::http::ui::page::frame::{Command, Page, curl, curls};
use crate::http::ui::page::rows::{STATES, trail};
use crate::http::ui::page::sure::{Sure, page as asks};
use crate::http::ui::page::text::{count, cut, text};
use crate::http::ui::page::visit::{PoolQueue, Visit};

/// So many dead jobs are destroyed by one request, and more by a bulk action.
pub const AT_ONCE: u64 = 1000;
/// For how long a queue may be paused, in seconds, and how the form calls it.
const PAUSES: [(&str, &str); 6] = [
    ("", "until it is resumed"),
    ("600", "10 minutes"),
    ("3600", "1 hour"),
    ("14400", "4 hours"),
    ("43200", "12 hours"),
    ("86400", "1 day"),
];

/// The page that asks before something of a queue is done for good. `of` has what was selected.
pub async fn asking(visit: &Visit, place: &PoolQueue, ask: &str, of: &Fields) -> Said<Page> {
    let sure = match ask {
        "cancel" => cancel_selected(visit, place, of)?,
        "respawn-all" => respawn_all(visit, place, of).await,
        "delete-dead" => delete_dead(visit, place).await,
        "destroy" => destroy(visit, place, of).await,
        _ => return Err(Refusal::bad("there is nothing to ask by that name")),
    };
    Ok(asks(visit, trail(visit, place), "Queues", sure))
}

fn cancel_selected<'a>(visit: &Visit, place: &PoolQueue, of: &'a Fields) -> Said<Sure<'a>> {
    let jobs: Vec<&str> = of.all("job").take(100).collect();
    if jobs.is_empty() {
        return Err(Refusal::bad("no job was selected"));
    }
    let n = count(jobs.len() as u64, "job", "jobs");
    let mut hidden = vec![("do", "cancel"), ("ask", "cancel")];
    hidden.extend(jobs.iter().map(|job| ("job", *job)));
    Ok(Sure {
        title: format!("Cancel {n} of {}", place.name()),
        what: html! {
            p { "The " (n) " will be gone: nobody gets them, and they cannot be brought back." }
            ul { @for job in &jobs { li { (text(job)) } } }
        },
        hidden,
        more: html! {},
        button: "Cancel",
        curl: curls(visit, &jobs.iter().map(|job| cancel(place, job)).collect::<Vec<_>>()),
    })
}

async fn delete_dead(visit: &Visit, place: &PoolQueue) -> Sure<'static> {
    let dead = Figures::read(visit, place).await.jobs("dead");
    let order = order(place, "delete", "dead", &Fields::default());
    Sure {
        title: format!("Delete the dead jobs of {}", place.name()),
        what: html! { p { "All " (dead) " dead jobs will be gone, and cannot be brought back." } },
        hidden: vec![("do", "delete-dead"), ("ask", "delete-dead")],
        more: name_field(visit, place),
        button: "Delete dead jobs",
        curl: curl(visit, "POST", "/bulk", Some(&order)),
    }
}

async fn destroy(visit: &Visit, place: &PoolQueue, of: &Fields) -> Sure<'static> {
    let counts = Figures::read(visit, place).await;
    let which = STATES.iter().filter(|(state, _)| *state != "running");
    let chosen: Vec<&str> = of.all("which").collect();
    // One bulk action runs on a queue at a time, so the dead ones go without.
    let dead = place.api("/deadletter", &[("limit", &AT_ONCE.to_string())]);
    let delayed = order(place, "cancel", "delayed", &Fields::default());
    let bulk = ("POST", "/bulk".to_owned(), Some(&*delayed));
    Sure {
        title: format!("Destroy {}", place.name()),
        what: html! { p { "The jobs of the states that are chosen will be gone, and cannot be brought back. Running jobs stay: their workers may finish them." } },
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

/// The field for the name, without which nothing happens.
fn name_field(visit: &Visit, place: &PoolQueue) -> Markup {
    html! {
        p {
            label for="name" { "Type the queue's name" } ": " b { (text(&place.queue)) } " "
            input #name name="name" value=(visit.typed("name", "")) required autocomplete="off" spellcheck="false";
        }
    }
}

async fn respawn_all<'a>(visit: &Visit, place: &PoolQueue, of: &'a Fields) -> Sure<'a> {
    let (reason, contains) = (of.get("reason"), of.get("contains"));
    let filtered = reason.is_some() || contains.is_some();
    let dead = Figures::read(visit, place).await.jobs("dead");
    let mut hidden = vec![("do", "respawn-all"), ("ask", "respawn-all")];
    hidden.extend(reason.map(|reason| ("reason", reason)));
    hidden.extend(contains.map(|contains| ("contains", contains)));
    Sure {
        title: format!("Respawn all dead jobs of {}", place.name()),
        what: html! {
            p {
                @if filtered { "Of " (dead) " dead jobs those" } @else { "All " (dead) " dead jobs" }
                @if let Some(reason) = reason { " with the reason " q { (cut(reason)) } }
                @if let Some(contains) = contains { " that have " q { (cut(contains)) } }
                " will be ready again, and workers get them. The server does it in steps, and goes on when this page is closed."
            }
        },
        hidden,
        more: html! {
            p { label for="tries" { "Tries" } " " input #tries name="tries" value=(visit.typed("tries", "1")) size="5" inputmode="numeric" autocomplete="off"; }
        },
        button: "Respawn all",
        curl: curl(visit, "POST", "/bulk", Some(&order(place, "respawn", "dead", of))),
    }
}

/// The body of a bulk action of this queue, on jobs that the fields' filter finds.
fn order(place: &PoolQueue, action: &str, state: &str, of: &Fields) -> String {
    let mut order = json!({
        "pool": place.pool, "namespace": place.namespace, "queue": place.queue, "action": action, "state": state,
    });
    for name in ["reason", "contains"] {
        if let Some(value) = of.get(name) {
            order[name] = value.into();
        }
    }
    order.to_string()
}

/// The command that cancels a job.
fn cancel<'a>(place: &PoolQueue, job: &str) -> Command<'a> {
    ("DELETE", place.api(&format!("/job/{}", part(job)), &[]), None)
}

/// What can be done with a queue as a whole.
pub fn actions(visit: &Visit, place: &PoolQueue, paused: bool) -> Markup {
    let here = visit.fields.link(&[]);
    html! {
        div.actions {
            @if visit.may_change() {
                @if paused {
                    form method="post" action=(here) {
                        button type="submit" name="do" value="resume" { "Resume queue" }
                    }
                } @else {
                    form.actions method="post" action=(here) {
                        button type="submit" name="do" value="pause" { "Pause queue" }
                        label for="for" { "for" }
                        select #for name="for" { @for (value, words) in PAUSES { option value=(value) { (words) } } }
                    }
                }
                a.button href=(visit.to(&publish(place))) { "Publish a job" }
                a.button href=(visit.fields.link(&[("ask", Some("destroy"))])) { "Destroy" }
            }
            form.actions method="get" action=(visit.to("search")) {
                input type="hidden" name="in" value=(place.path());
                label for="find" { "Find by key or id" }
                input #find name="q" autocomplete="off" spellcheck="false";
                button type="submit" { "Find" }
            }
        }
        @if visit.may_change() {
            @let (what, path) = if paused { ("/resume", "/resume") } else { ("/pause", "/pause") };
            (curl(visit, "POST", &place.api(path, if what == "/pause" { &[("for", "600")] } else { &[] }), None))
        }
    }
}

/// Where a job for a queue is published.
pub fn publish(place: &PoolQueue) -> String {
    format!("publish/{}/{}?queue={}", part(&place.pool), part(&place.namespace), part(&place.queue))
}

/// What can be done with all dead jobs, or with those that the page is filtered by.
pub fn of_all_dead(visit: &Visit, place: &PoolQueue) -> Markup {
    let respawn = order(place, "respawn", "dead", &visit.fields);
    let delete = order(place, "delete", "dead", &Fields::default());
    let bulk = |order| ("POST", "/bulk".to_owned(), Some(order));
    html! {
        p.actions {
            a.button href=(visit.fields.link(&[("ask", Some("respawn-all"))])) { "Respawn all" }
            a.button href=(visit.fields.link(&[("ask", Some("delete-dead"))])) { "Delete dead jobs" }
        }
        (curls(visit, &[bulk(&*respawn), bulk(&*delete)]))
    }
}

/// What can be done with the rows that are selected.
pub fn selected(visit: &Visit, place: &PoolQueue, state: &str) -> Markup {
    let of_respawn = ("POST", place.api("/deadletter/respawn", &[]), Some("{\"jobs\":[\"ID\"]}"));
    let commands = [of_respawn, cancel(place, "ID")];
    // Only what is dead can be respawned.
    let shown = &commands[usize::from(state != "dead")..];
    html! {
        form #selected .actions method="post" action=(visit.fields.link(&[])) {
            input type="hidden" name="state" value=(state);
            label hidden data-all="1" { input type="checkbox" data-all="1" autocomplete="off"; " All on this page" }
            @if state == "dead" { button type="submit" name="do" value="respawn" { "Respawn" } }
            button type="submit" name="ask" value="cancel" formmethod="get" { "Cancel" }
        }
        (curls(visit, shown))
    }
}
