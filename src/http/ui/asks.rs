//! What can be done with a queue, as its page offers it, and the pages that ask before it is done.

use maud::{Markup, html};

use super::ask::{Refusal, Said, part};
use super::form::Fields;
use super::frame::{Page, curl};
use super::rows::trail;
use super::sure::{Sure, page as asks};
use super::text::{count, text};
use super::visit::{Place, Visit};

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
pub async fn asking(visit: &Visit, place: &Place, ask: &str, of: &Fields) -> Said<Page> {
    match ask {
        "cancel" => {
            let jobs: Vec<&str> = of.all("job").take(100).collect();
            if jobs.is_empty() {
                return Err(Refusal::bad("no job was selected"));
            }
            let n = count(jobs.len() as u64, "job", "jobs");
            let mut hidden = vec![("do", "cancel"), ("ask", "cancel")];
            hidden.extend(jobs.iter().map(|job| ("job", *job)));
            Ok(asks(
                visit,
                trail(visit, place),
                "Queues",
                Sure {
                    title: format!("Cancel {n} of {}", place.name()),
                    what: html! {
                        p { "The " (n) " will be gone: nobody gets them, and they cannot be brought back." }
                        ul { @for job in &jobs { li { (text(job)) } } }
                    },
                    hidden,
                    more: html! {},
                    button: "Cancel",
                },
            ))
        }
        _ => Err(Refusal::bad("there is nothing to ask by that name")),
    }
}

/// What can be done with a queue as a whole.
pub fn actions(visit: &Visit, place: &Place, paused: bool) -> Markup {
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
pub fn publish(place: &Place) -> String {
    format!("publish/{}/{}?queue={}", part(&place.pool), part(&place.namespace), part(&place.queue))
}

/// What can be done with the rows that are selected.
pub fn selected(visit: &Visit, state: &str) -> Markup {
    html! {
        form #selected .actions method="post" action=(visit.fields.link(&[])) {
            input type="hidden" name="state" value=(state);
            label hidden data-all="1" { input type="checkbox" data-all="1" autocomplete="off"; " All on this page" }
            @if state == "dead" { button type="submit" name="do" value="respawn" { "Respawn" } }
            button type="submit" name="ask" value="cancel" formmethod="get" { "Cancel" }
        }
    }
}
