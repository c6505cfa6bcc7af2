//! One queue: its figures, what it did, and its jobs by state.

use axum::extract::Path;
use axum::http::StatusCode;
use axum::response::Response;
use maud::{Markup, html};
use serde::Deserialize;
use serde_json::Value;

use super::ask::{Refusal, Said};
use super::asks;
use super::chart::History;
use super::frame::Page;
use super::jobs::{self, JobList};
use super::overview::charts;
use super::push::push_route;
use super::rows::{self, Listing, NOT_BY_QUEUE, Row, STATES};
use super::text::{known, number, text, typed};
use super::visit::{Place, Visit};

/// What was read of a queue.
pub struct Read {
    row: Option<Row>,
    listing: Said<Listing>,
    history: Said<History>,
    /// Counted for the page.
    ready: Said<Size>,
    dead: Said<Dead>,
    jobs: Said<JobList>,
    push: Said<Value>,
}

#[derive(Deserialize)]
pub struct Size {
    size: u64,
}

#[derive(Deserialize)]
pub struct Dead {
    deadletter_size: u64,
}

/// `GET /ui/queues/:pool/:namespace/:queue`
pub async fn show(visit: Visit, Path(place): Path<Place>) -> Response {
    let page = match visit.fields.get("ask") {
        Some(ask) => asks::asking(&visit, &place, ask, &visit.fields).await,
        None => page(&visit, &place).await,
    };
    visit.answer(page)
}

/// The state whose jobs are shown.
fn state(visit: &Visit) -> Said<&'static str> {
    let Some(given) = visit.fields.get("state") else { return Ok("ready") };
    let known = STATES.iter().find(|(state, _)| *state == given);
    known.map(|(state, _)| *state).ok_or(Refusal::bad("a state is ready, delayed, running or dead"))
}

pub async fn page(visit: &Visit, place: &Place) -> Said<Page> {
    let state = state(visit)?;
    let read = read(visit, place, state).await;
    // A name that is none, or a pool that is not there.
    for wrong in [read.ready.as_ref().err(), read.listing.as_ref().err()].into_iter().flatten() {
        if wrong.status.is_client_error() {
            return Err(wrong.clone());
        }
    }
    let mut page = Page::new(format!("Queue {}", place.name()), "Queues", body(visit, place, state, &read));
    page.trail = rows::trail(visit, place);
    page.read_at = read.listing.ok().and_then(|listing| listing.sampled_at).map(|at| at.0);
    Ok(page)
}

async fn read(visit: &Visit, place: &Place, state: &str) -> Read {
    let range = visit.fields.get("range").unwrap_or("hour");
    let ask = &visit.ask;
    let (listing, history, ready, dead, jobs, push) = tokio::join!(
        ask.get::<Listing>(format!("/queues?{}&limit=1", place.query())),
        ask.get(format!("/queues/history?{}&range={}", place.query(), super::ask::part(range))),
        ask.get(place.api("/size", &[])),
        ask.get(place.api("/deadletter", &[])),
        jobs::read(visit, place, state),
        ask.get(push_route(place, "")),
    );
    let row = listing.as_ref().ok().and_then(|listing| listing.queues.first().cloned());
    Read { row, listing, history, ready, dead, jobs, push }
}

fn body(visit: &Visit, place: &Place, state: &str, read: &Read) -> Markup {
    let row = read.row.as_ref();
    html! {
        h1 { "Queue " (text(&place.name())) }
        @if let Ok(listing) = &read.listing { (rows::troubles(visit, &listing.pools)) }
        @if let Some(words) = row.and_then(Row::words) {
            p class=(format!("need {}", row.and_then(|row| row.need.as_deref()).unwrap_or_default())) { (words) }
        }
        @if let Some(row) = row.filter(|row| row.paused) {
            p.note {
                "The queue is paused"
                @if let Some(until) = row.paused_until { " until " (visit.zone.at(until)) }
                ": consumers find nothing."
            }
        }
        (figures(visit, read))
        (asks::actions(visit, place, row.is_some_and(|row| row.paused)))
        (push(visit, place, &read.push))
        (tabs(visit, state, read))
        (filter(visit, state))
        @let selects = visit.may_change() && state != "running" && read.jobs.as_ref().is_ok_and(|list| !list.jobs.is_empty());
        @if selects { (asks::selected(visit, state)) }
        (jobs::list(visit, place, state, &read.jobs, selects))
        nav.range aria-label="Range of the charts" {
            @for (range, words) in [("hour", "Hour"), ("day", "Day")] {
                a href=(visit.fields.link(&[("range", Some(range))]))
                    aria-current=[(visit.fields.get("range").unwrap_or("hour") == range).then_some("true")] { (words) }
                " "
            }
        }
        (charts(visit, read.history.as_ref()))
    }
}

/// A count that was read for the page, or else the sample's.
fn fresh(read: Result<u64, &Refusal>, sample: Option<u64>) -> Markup {
    match (read, sample) {
        (Ok(n), _) => html! { (number(n)) },
        (Err(refusal), Some(n)) => html! { span title=(refusal.text) { (number(n)) } },
        (Err(refusal), None) => super::text::unknown(&refusal.text),
    }
}

/// How many jobs are in a state.
fn jobs_in(read: &Read, state: &str) -> Markup {
    let row = read.row.as_ref();
    // What no store has named has none.
    let sampled = |of: fn(&Row) -> Option<u64>| row.map_or_else(|| read.listing.is_ok().then_some(0), of);
    match state {
        "ready" => fresh(read.ready.as_ref().map(|size| size.size), row.map(|row| row.ready)),
        "dead" => fresh(read.dead.as_ref().map(|dead| dead.deadletter_size), row.map(|row| row.dead)),
        "delayed" => known(sampled(|row| row.delayed), NOT_BY_QUEUE),
        _ => known(sampled(|row| row.running), NOT_BY_QUEUE),
    }
}

fn figures(visit: &Visit, read: &Read) -> Markup {
    html! {
        dl.figures {
            @for (state, words) in STATES { div { dt { (words) } dd { (jobs_in(read, state)) } } }
            @if let Some(row) = &read.row {
                div { dt { "Oldest" } dd { (rows::oldest(visit, row)) } }
                div { dt title="of this server, over the last minute" { "In/s" } dd { (rows::per_second(row.entered)) } }
                div { dt title="of this server, over the last minute" { "Out/s" } dd { (rows::per_second(row.out)) } }
                div { dt title="consumers of this server that wait" { "Waiting" } dd { (number(row.waiting)) } }
            }
        }
    }
}

/// What is pushed, if it is.
fn push(visit: &Visit, place: &Place, push: &Said<Value>) -> Markup {
    let page = visit.to(&format!("push/{}", place.path()));
    match push {
        Ok(push) => html! {
            p.push {
                a href=(page) { "Push" } " is " b { (text(push["state"].as_str().unwrap_or("–"))) } ": to "
                (super::text::cut(push["url"].as_str().unwrap_or("–")))
            }
        },
        Err(refusal) if refusal.status == StatusCode::NOT_FOUND => html! {
            p.push { "Not pushed. " a href=(page) { "Push" } }
        },
        Err(refusal) => html! { p.note { "Whether it is pushed is not known: " (text(&refusal.text)) } },
    }
}

fn tabs(visit: &Visit, shown: &str, read: &Read) -> Markup {
    html! {
        nav.tabs aria-label="Jobs by state" {
            ul {
                @for (state, words) in STATES {
                    @let to = visit.fields.link_anew(&[("state", Some(state)), ("reason", None)]);
                    li { a href=(to) aria-current=[(shown == state).then_some("page")] {
                        (words) " " span.count { (jobs_in(read, state)) }
                    } }
                }
            }
        }
    }
}

fn filter(visit: &Visit, state: &str) -> Markup {
    html! {
        form.filter method="get" {
            input type="hidden" name="state" value=(state);
            label for="contains" { "Filter" }
            input #contains type="search" name="contains" value=(typed(visit.fields.or_empty("contains")))
                placeholder="a part of body, key, attribute or reason" autocomplete="off" spellcheck="false";
            @if let Some(reason) = visit.fields.get("reason") {
                input type="hidden" name="reason" value=(typed(reason));
            }
            button type="submit" { "Show" }
        }
        @if let Some(reason) = visit.fields.get("reason") {
            p { "With the reason " q { (super::text::cut(reason)) } ". " a href=(visit.fields.link_anew(&[("reason", None)])) { "All reasons" } }
        }
    }
}
