//! Bulk actions: running and recent ones, and their progress.

use axum::http::Method;
use axum::response::Response;
use maud::{Markup, html};

use super::dead::reason;
use crate::http::operators::bulk::{BulkReply, BulksReply, actions};
use crate::http::ui::home::back;
use crate::http::ui::page::answer::see_other;
use crate::http::ui::page::ask::{Refusal, Said, Sent, part};
use crate::http::ui::page::form::Filled;
use crate::http::ui::page::frame::{Page, curl, curls};
use crate::http::ui::page::text::{cut, duration, number, text, volatile};
use crate::http::ui::page::visit::{PoolQueue, Visit};

/// How long a queue's page shows an action after its end, in milliseconds.
const TOLD: u64 = 600_000;
/// Maximum number of actions on a page.
const MOST: usize = 100;

impl BulkReply {
    fn place(&self) -> PoolQueue {
        let BulkReply { pool, namespace, queue, .. } = self;
        PoolQueue { pool: pool.clone(), namespace: namespace.clone(), queue: queue.clone() }
    }

    fn runs(&self) -> bool {
        self.status == "running"
    }

    /// Describes the action and its jobs.
    fn words(&self) -> Markup {
        let verb = match &*self.action {
            "respawn" => "Respawn",
            "delete" => "Delete",
            "cancel" => "Cancel",
            "promote" => "Make due now:",
            other => other,
        };
        html! {
            (verb) " " (self.state) " jobs"
            @if let Some(why) = &self.reason { " with the reason " q { (reason(Some(why))) } }
            @if let Some(contains) = &self.contains { " that contain " q { (cut(contains)) } }
        }
    }

    /// Describes its progress.
    fn progress(&self, visit: &Visit) -> Markup {
        let end = self.ended.map_or(visit.zone.now, |at| at.0);
        let took = duration(end.saturating_sub(self.started.0) as f64 / 1000.0);
        let took = if self.ended.is_some() {
            html! { (took) }
        } else {
            volatile(&html! { (took) })
        };
        html! {
            @if let (true, Some(total)) = (self.runs(), self.total.filter(|total| *total > 0)) {
                progress max=(total) value=(self.looked_at.min(total)) aria-label="Progress" {} " "
            }
            (number(self.done)) @if let Some(total) = self.total { " of " (number(total)) }
            ", " (self.status) @if let Some(why) = &self.why { " (" (cut(why)) ")" }
            ", " (took)
        }
    }
}

/// `GET /ui/bulk`
pub async fn show(visit: Visit) -> Response {
    let page = page(&visit).await;
    visit.answer(page)
}

/// `POST /ui/bulk`
pub async fn change(mut visit: Visit, Filled(form): Filled) -> Response {
    let done = match (form.or_empty("do"), form.get("id")) {
        ("stop", Some(id)) => visit
            .ask
            .change(Method::DELETE, &format!("/bulk/{}", part(id)), Sent::Nothing)
            .await
            .map(|_| "stopped"),
        _ => Err(Refusal::bad("the form does not say what to do")),
    };
    match done {
        // Other pages have this form too.
        Ok(code) if form.get("back").is_some() => {
            let to = back(form.or_empty("back"));
            let more = if to.ends_with('?') {
                ""
            } else if to.contains('?') {
                "&"
            } else {
                "?"
            };
            let mut response = see_other(&format!("{to}{more}done={code}"));
            visit.carry(&mut response);
            response
        }
        Ok(code) => visit.done(code),
        Err(refusal) => {
            visit.refuse(refusal, form);
            let page = page(&visit).await;
            visit.answer(page)
        }
    }
}

async fn page(visit: &Visit) -> Said<Page> {
    let BulksReply { actions, .. } = actions(visit.state(), visit.ask.shows_bodies());
    let body = html! {
        h1 { "Bulk actions" }
        p.hint { "Actions of this server. They end when it stops. One at a time runs on a queue." }
        @if actions.is_empty() { p.hint { "There has been none since the server started. Start one on the page of a queue." } }
        @else {
            div.scroll role="region" aria-label="Bulk actions" tabindex="0" {
                table.jobs.wrap {
                    caption { "Bulk actions, the newest first" }
                    thead { tr { @for name in ["Queue", "Action", "By", "Progress", "Started"] { th scope="col" { (name) } } td {} } }
                    tbody { @for action in actions.iter().take(MOST) { tr data-key=(action.id) {
                        th scope="row" { a href=(visit.to(&format!("queues/{}", action.place().path()))) { (text(&action.place().name())) } }
                        td { (action.words()) }
                        td { (text(&action.by)) }
                        td { (action.progress(visit)) }
                        td { (visit.zone.when(action.started)) }
                        td { @if action.runs() && visit.may_change() { (stop(visit, action)) } }
                    } } }
                }
            }
        }
        (curl(visit, "GET", "/bulk", None))
    };
    Ok(Page::new("Bulk actions", "Bulk actions", body))
}

fn stop(visit: &Visit, action: &BulkReply) -> Markup {
    html! {
        form method="post" action=(visit.to("bulk")) {
            input type="hidden" name="id" value=(action.id);
            input type="hidden" name="back" value=(visit.here);
            button type="submit" name="do" value="stop" { "Stop" span.vh { " " (action.queue) } }
        }
        (curls(visit, &[("DELETE", format!("/bulk/{}", part(&action.id)), None)]))
    }
}

/// Shows the running and recent actions of one queue.
pub fn of_queue(visit: &Visit, place: &PoolQueue, listed: &BulksReply) -> Markup {
    let actions = &listed.actions;
    let lately = |action: &&BulkReply| action.ended.is_none_or(|at| at.0 + TOLD > visit.zone.now);
    html! {
        @for action in actions.iter().filter(|action| action.place() == *place).filter(lately).take(3) {
            div.note data-key=(action.id) {
                p { (action.words()) ": " (action.progress(visit)) }
                @if action.runs() && visit.may_change() { (stop(visit, action)) }
            }
        }
    }
}
