//! The list of all queues, with a filter.

use axum::response::Response;
use maud::{Markup, html};

use super::overview::empty;
use super::page::ask::Said;
use super::page::form::query;
use super::page::frame::Page;
use super::page::rows;
use super::page::text::typed;
use super::page::visit::Visit;
use crate::http::operators::queues::QueuesReply;

/// Queues per page.
const QUEUES: &str = "50";
/// Fields that the page passes to the route unchanged.
const ASKED: [&str; 6] = ["q", "pool", "namespace", "need", "sort", "cursor"];
/// Needs, with their labels in the filter.
const NEEDS: [(&str, &str); 9] = [
    ("", "all"),
    ("any", "that need attention"),
    ("push", "push is failing"),
    ("dying", "dying"),
    ("nobody", "no consumers"),
    ("late", "late"),
    ("growing", "growing"),
    ("paused", "paused"),
    ("dead", "with dead jobs"),
];

/// `GET /ui/queues`
pub async fn show(visit: Visit) -> Response {
    let make = async |basis| {
        let given = ASKED.iter().filter_map(|name| Some((*name, visit.fields.get(name)?)));
        let listing = visit.queues(&query(given.chain([("limit", QUEUES)])));
        Ok(Page { basis, ..page(&visit, listing)? })
    };
    visit.answer_if_new(make).await
}

fn page(visit: &Visit, listing: Said<QueuesReply>) -> Said<Page> {
    let listing = listing?;
    let sorted = visit.fields.get("sort").unwrap_or("need");
    let body = html! {
        h1 { "Queues" }
        (rows::troubles(visit, &listing.pools))
        (filter(visit))
        @if listing.queues.is_empty() && ASKED.iter().all(|name| *name == "sort" || visit.fields.get(name).is_none()) {
            (empty(visit))
        } @else if listing.queues.is_empty() {
            p { "No queue matches. " a href="?" { "Show all queues" } "." }
        } @else {
            (rows::table(visit, "Queues", &listing, Some(sorted), true))
            @if let Some(cursor) = &listing.cursor {
                p { a.next rel="next" href=(visit.fields.link(&[("cursor", Some(cursor))])) { "Next" } }
            }
        }
    };
    Ok(Page::new("Queues", "Queues", body).of_samples(&listing))
}

fn filter(visit: &Visit) -> Markup {
    let fields = &visit.fields;
    html! {
        form.filter method="get" {
            label for="q" { "Filter" }
            input #q type="search" name="q" value=(typed(fields.or_empty("q"))) placeholder="part of namespace/queue" autocomplete="off" spellcheck="false";
            @if visit.many_pools() {
                label for="pool" { "Pool" }
                select #pool name="pool" {
                    option value="" { "all" }
                    @for pool in visit.state().pools.keys() {
                        option value=(pool.as_str()) selected[fields.get("pool") == Some(pool.as_str())] { (pool.as_str()) }
                    }
                }
            }
            label for="need" { "Need" }
            select #need name="need" {
                @for (value, words) in NEEDS {
                    option value=(value) selected[fields.or_empty("need") == value] { (words) }
                }
            }
            @for kept in ["namespace", "sort"] {
                @if let Some(value) = fields.get(kept) { input type="hidden" name=(kept) value=(typed(value)); }
            }
            button type="submit" { "Show" }
        }
    }
}
