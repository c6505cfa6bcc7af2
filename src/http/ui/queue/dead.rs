//! The queues that have dead jobs, the newest death first, and why they died.

use axum::response::Response;
use maud::{Markup, html};

use crate::engine::together;
use crate::http::operators::dead::{DeadQueue, DeadReply, ReasonReply, ReasonsReply};
use crate::http::ui::page::ask::{Said, part};
use crate::http::ui::page::form::query;
use crate::http::ui::page::frame::Page;
use crate::http::ui::page::text::{cut, known, number, shortened, text, typed, unknown};
use crate::http::ui::page::visit::{PoolQueue, Visit};
use crate::time::Instant;

/// How many queues a page has: each is asked for its reasons.
const QUEUES: &str = "20";
/// How many reasons of each are shown.
const REASONS: usize = 5;

impl DeadQueue {
    fn place(&self) -> Option<PoolQueue> {
        PoolQueue::of_queue(&self.pool, &self.namespace, &self.queue)
    }
}

/// `GET /ui/dead`
pub async fn show(visit: Visit) -> Response {
    let page = page(&visit).await;
    visit.answer(page)
}

async fn page(visit: &Visit) -> Said<Page> {
    let given =
        ["namespace", "pool", "cursor"].iter().filter_map(|name| Some((*name, visit.fields.get(name)?)));
    let listed: DeadReply =
        visit.ask.get(format!("/dead{}", query(given.chain([("limit", QUEUES)])))).await?;
    let reasons = reasons(visit, &listed.queues).await;
    let body = html! {
        h1 { "Dead" }
        form.filter method="get" {
            label for="namespace" { "Namespace" }
            input #namespace name="namespace" value=(typed(visit.fields.or_empty("namespace"))) autocomplete="off" spellcheck="false";
            button type="submit" { "Show" }
        }
        @if listed.queues.is_empty() && ["namespace", "pool"].iter().any(|name| visit.fields.get(name).is_some()) {
            p { "No queue that is so has dead jobs. " a href="?" { "Show all" } "." }
        } @else if listed.queues.is_empty() {
            p { "No queue has dead jobs, as of the last sample. This server has looked since " (visit.zone.at(Instant(visit.state().shown(visit.state().began.wall())))) "." }
        } @else { (table(visit, &listed.queues, &reasons)) }
        @if let Some(cursor) = &listed.cursor {
            p { a.next rel="next" href=(visit.fields.link(&[("cursor", Some(cursor))])) { "Next" } }
        }
    };
    Ok(Page::new("Dead", "Dead", body))
}

/// Of each queue why its jobs died; `None` where its store has not said so in time.
async fn reasons(visit: &Visit, queues: &[DeadQueue]) -> Vec<Option<ReasonsReply>> {
    let ask = async |queue: &DeadQueue| {
        let path = format!("/dead/reasons?{}", queue.place()?.query());
        visit.ask.get::<ReasonsReply>(path).await.ok()
    };
    together::all(queues.iter().map(ask)).await
}

fn table(visit: &Visit, queues: &[DeadQueue], reasons: &[Option<ReasonsReply>]) -> Markup {
    html! {
        div.scroll role="region" aria-label="Queues with dead jobs" tabindex="0" {
            table.jobs {
                caption { "Queues with dead jobs, the newest death first" }
                thead { tr {
                    @for name in ["Queue", "Dead", "In the last hour", "Last died", "Reasons"] { th scope="col" { (name) } }
                    td {}
                } }
                tbody { @for (queue, reasons) in queues.iter().zip(reasons) { (row(visit, queue, reasons.as_ref())) } }
            }
        }
    }
}

fn row(visit: &Visit, queue: &DeadQueue, reasons: Option<&ReasonsReply>) -> Markup {
    let name = format!("{}/{}", queue.namespace, queue.queue);
    let place = queue.place();
    let page = place.as_ref().map(|place| visit.to(&format!("queues/{}?state=dead", place.path())));
    html! {
        tr data-key=(format!("{}/{name}", queue.pool)) {
            th scope="row" { @match &page {
                Some(page) => { a href=(page) { (text(&name)) } }
                None => (text(&name)),
            } }
            td { @match &page {
                Some(page) => { a href=(page) { (number(queue.dead)) } }
                None => (number(queue.dead)),
            } }
            td { (known(queue.died_in_hour, "this server keeps no history of the queue")) }
            td { @match queue.last_died {
                Some(at) => (visit.zone.at(at)),
                None => (unknown("this server has seen none die")),
            } }
            td.left { @match (reasons, &place) {
                (Some(reasons), Some(place)) => (list(visit, place, reasons, REASONS)),
                _ => (unknown("the store has not said so in time")),
            } }
            td { @if let (true, Some(page)) = (visit.may_change(), &page) {
                a.button href=(format!("{page}&ask=respawn-all")) { "Respawn all" span.vh { " of " (text(&name)) } }
            } }
        }
    }
}

/// The commonest reasons, each with the way to its jobs and to their respawn.
pub fn list(visit: &Visit, place: &PoolQueue, reasons: &ReasonsReply, most: usize) -> Markup {
    let page = visit.to(&format!("queues/{}?state=dead", place.path()));
    html! {
        ul.reasons {
            @for ReasonReply { reason, count } in reasons.reasons.iter().take(most) {
                li {
                    span.count { (number(*count)) } " × "
                    @match reason {
                        Some(reason) => {
                            a href=(format!("{page}&reason={}", part(reason))) { (cut(shortened(reason, 80).0)) @if shortened(reason, 80).1 { "…" } }
                            @if visit.may_change() {
                                " " a href=(format!("{page}&reason={}&ask=respawn-all", part(reason))) { "Respawn" span.vh { " all with this reason" } }
                            }
                        }
                        None => "no tries were left",
                    }
                }
            }
        }
        @if reasons.reasons.len() > most { p { (reasons.reasons.len() - most) " more" } }
        p.most { "of " (number(reasons.looked_at)) " looked at" }
    }
}
