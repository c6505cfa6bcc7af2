//! Queues with dead jobs, latest death first, and their reasons.

use axum::response::Response;
use maud::{Markup, html};

use crate::engine::together;
use crate::http::operators::dead::{DeadQueue, DeadReply, ReasonReply, ReasonsReply, dead, reasons_of};
use crate::http::ui::page::ask::{Said, part};
use crate::http::ui::page::form::query;
use crate::http::ui::page::frame::Page;
use crate::http::ui::page::text::{cut, known, number, shortened, text, typed, unknown};
use crate::http::ui::page::visit::{PoolQueue, Visit};
use crate::time::Instant;

/// Queues per page: each needs a call for its reasons.
const QUEUES: &str = "20";
/// Reasons shown per queue.
const REASONS: usize = 5;
/// Dead jobs whose reasons the route reads.
const LOOKED_AT: u64 = 1000;

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
    let asked = query(given.chain([("limit", QUEUES)]));
    let listed: DeadReply = visit.ask.take(dead(visit.state(), asked.trim_start_matches('?')))?;
    let reasons = reasons(visit, &listed.queues).await;
    let body = html! {
        h1 { "Dead" }
        form.filter method="get" {
            label for="namespace" { "Namespace" }
            input #namespace name="namespace" value=(typed(visit.fields.or_empty("namespace"))) autocomplete="off" spellcheck="false";
            button type="submit" { "Show" }
        }
        @if listed.queues.is_empty() && ["namespace", "pool"].iter().any(|name| visit.fields.get(name).is_some()) {
            p { "No queue that matches has dead jobs. " a href="?" { "Show all" } "." }
        } @else if listed.queues.is_empty() {
            p.hint { "No queue has dead jobs. This server has been running since " (visit.zone.at(Instant(visit.state().shown(visit.state().server.began.wall())))) "." }
        } @else { (table(visit, &listed.queues, &reasons)) }
        @if let Some(cursor) = &listed.cursor {
            p { a.next rel="next" href=(visit.fields.link(&[("cursor", Some(cursor))])) { "Next" } }
        }
    };
    Ok(Page::new("Dead", "Dead", body))
}

/// Returns the reasons of each queue; `None` if its store did not reply in time.
async fn reasons(visit: &Visit, queues: &[DeadQueue]) -> Vec<Option<ReasonsReply>> {
    let ask = async |queue: &DeadQueue| {
        visit.ask.read(reasons_of(visit.state(), &queue.place()?.query())).await.ok()
    };
    together::all(queues.iter().map(ask)).await
}

fn table(visit: &Visit, queues: &[DeadQueue], reasons: &[Option<ReasonsReply>]) -> Markup {
    html! {
        div.scroll.cards role="region" aria-label="Queues with dead jobs" tabindex="0" {
            table.jobs.wrap.deaths {
                caption { "Queues with dead jobs, the newest death first" }
                thead { tr {
                    th scope="col" { "Queue" }
                    th.n scope="col" { "Dead" }
                    th.n scope="col" { "Last hour" }
                    th scope="col" { "Last died" }
                    th scope="col" { "Reasons" }
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
            td.n data-label="Dead" { @match &page {
                Some(page) => { a href=(page) { (number(queue.dead)) } }
                None => (number(queue.dead)),
            } }
            td.n data-label="Last hour" { (known(queue.died_in_hour, "this server keeps no history of the queue")) }
            td.last data-label="Last died" { @match queue.last_died {
                Some(at) => (visit.zone.when(at)),
                None => (unknown("no death seen by this server")),
            } }
            td.all { @match (reasons, &place) {
                (Some(reasons), Some(place)) => (list(visit, place, reasons, REASONS)),
                _ => (unknown("the store did not answer in time")),
            } }
            td.n.all { @if let (true, Some(page)) = (visit.may_change(), &page) {
                a.button href=(format!("{page}&ask=respawn-all")) { "Respawn all" span.vh { " of " (text(&name)) } }
            } }
        }
    }
}

/// Shows a reason in the worker's words. A job without one has used up its tries when its ttr expired.
pub fn reason(of: Option<&str>) -> Markup {
    match of.filter(|reason| !reason.is_empty()) {
        Some(reason) => cut(reason),
        None => html! { span title="no tries left" { "ttr expired" } },
    }
}

/// Shows the most frequent reasons, each with links to its jobs and to their respawn.
pub fn list(visit: &Visit, place: &PoolQueue, reasons: &ReasonsReply, most: usize) -> Markup {
    let page = visit.to(&format!("queues/{}?state=dead", place.path()));
    html! {
        ul.reasons {
            @for ReasonReply { reason: why, count } in reasons.reasons.iter().take(most) {
                @let only = format!("{page}&reason={}", part(why.as_deref().unwrap_or_default()));
                li {
                    span.count { (number(*count)) } " "
                    span.why { a href=(only) { (short(why.as_deref())) } } " "
                    @if visit.may_change() {
                        a href=(format!("{only}&ask=respawn-all")) { "Respawn" span.vh { " all with this reason" } }
                    }
                }
            }
        }
        @if reasons.reasons.len() > most { p.more { (reasons.reasons.len() - most) " more reasons" } }
        @if reasons.looked_at >= LOOKED_AT { p.more { "of the oldest " (number(reasons.looked_at)) " dead jobs" } }
    }
}

/// Returns the beginning of a reason, for a link.
fn short(why: Option<&str>) -> Markup {
    match why {
        Some(why) => {
            let (begin, more) = shortened(why, 80);
            html! { (cut(begin)) @if more { "…" } }
        }
        None => reason(None),
    }
}
