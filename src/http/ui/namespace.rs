//! The page of a namespace: its queues, its sums, and links to its tokens and schedules.

use axum::extract::Path;
use axum::response::Response;
use maud::{Markup, html};

use super::overview::charts;
use super::page::ask::{Said, part};
use super::page::form::query;
use super::page::frame::Page;
use super::page::rows::{self, NOT_BY_QUEUE};
use super::page::text::{number, rate, text, timers, typed};
use super::page::visit::Visit;
use super::publish::PoolNamespace;
use crate::http::operators::queues::{HistoryReply, QueuesReply};
use crate::http::operators::sums::OfQueues;

const QUEUES: &str = "50";

/// `GET /ui/namespaces/:pool/:namespace`
pub async fn show(visit: Visit, Path(scope): Path<PoolNamespace>) -> Response {
    let make = async |basis: Option<u64>| {
        let given =
            ["q", "need", "sort", "cursor"].iter().filter_map(|name| Some((*name, visit.fields.get(name)?)));
        let scoped = [("pool", &*scope.pool), ("namespace", &scope.namespace), ("limit", QUEUES)];
        let (pool, namespace) = (part(&scope.pool), part(&scope.namespace));
        let listing = visit.queues(&query(scoped.into_iter().chain(given)));
        let history = visit.history(&format!("pool={pool}&namespace={namespace}"));
        // A page without charts is incomplete, so the next request must render it again.
        let basis = basis.filter(|_| history.is_ok());
        Ok(Page { basis, ..page(&visit, &scope, listing, history)? })
    };
    visit.answer_if_new(make).await
}

fn page(
    visit: &Visit,
    scope: &PoolNamespace,
    listing: Said<QueuesReply>,
    history: Said<HistoryReply>,
) -> Said<Page> {
    let listing = listing?;
    let [pool, namespace] = [&scope.pool, &scope.namespace].map(|name| part(name));
    let pushed: Vec<_> = listing.queues.iter().filter(|row| row.push.is_some()).collect();
    let body = html! {
        div.head {
            h1 { "Namespace " (text(&scope.namespace)) }
            div.does {
                a.button href=(visit.to(&format!("schedules?pool={pool}&namespace={namespace}"))) { "Schedules" }
                @if visit.may_change() {
                    a.button href=(visit.to(&format!("tokens/{pool}/{namespace}"))) { "Tokens" }
                    a.button.primary href=(visit.to(&format!("publish/{pool}/{namespace}"))) { "Publish a job" }
                }
            }
        }
        (rows::troubles(visit, &listing.pools))
        (sums(&listing.sums))
        (filter(visit))
        @if listing.queues.is_empty() {
            p { "No queue matches. " a href="?" { "Show all queues" } "." }
        } @else {
            (rows::table(visit, "Queues of the namespace", &listing, Some(visit.fields.get("sort").unwrap_or("need")), true))
            @if let Some(cursor) = &listing.cursor {
                p { a.next rel="next" href=(visit.fields.link(&[("cursor", Some(cursor))])) { "Next" } }
            }
        }
        @if !pushed.is_empty() {
            h2 { "Push" }
            ul {
                @for row in pushed {
                    li {
                        @if let Some(place) = row.place() {
                            a href=(visit.to(&format!("push/{}", place.path()))) { (text(&row.queue)) }
                            " " @if let Some(badge) = row.push_badge(&visit.zone) { (badge) }
                        }
                    }
                }
            }
        }
        (charts(visit, history.as_ref()))
    };
    let page = Page::new(format!("Namespace {}", scope.namespace), "Queues", body);
    Ok(page.under(scope.trail(visit)).of_samples(&listing))
}

/// Shows the sums over the requested queues.
fn sums(of: &OfQueues) -> Markup {
    const OF_SERVER: &str = "of this server, over the last minute";
    let OfQueues { queues, sums: of } = of;
    html! {
        dl.figures {
            div { dt { "Queues" } dd { (number(*queues)) } }
            div { dt { "Ready" } dd { (number(of.ready)) } }
            div { dt { "Delayed" } dd { (timers(of.delayed, of.estimated, NOT_BY_QUEUE)) } }
            div { dt { "Running" } dd { (timers(of.running, of.estimated, NOT_BY_QUEUE)) } }
            div { dt { "Dead" } dd { (number(of.dead)) } }
            @for (name, value) in [("In/s", of.entered), ("Out/s", of.out), ("Died/s", of.died)] {
                div { dt title=(OF_SERVER) { (name) } dd { (rate(value)) } }
            }
        }
    }
}

fn filter(visit: &Visit) -> Markup {
    html! {
        form.filter method="get" {
            label for="q" { "Filter" }
            input #q type="search" name="q" value=(typed(visit.fields.or_empty("q"))) placeholder="part of namespace/queue" autocomplete="off" spellcheck="false";
            @if let Some(sort) = visit.fields.get("sort") { input type="hidden" name="sort" value=(typed(sort)); }
            button type="submit" { "Show" }
        }
    }
}
