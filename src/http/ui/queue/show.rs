//! The page of a queue: its statistics, its history, and its jobs by state.

use axum::extract::Path;
use axum::http::StatusCode;
use axum::response::Response;
use maud::{Markup, html};
use serde_json::Value;

use super::jobs;
use super::push::push_route;
use super::statistics::Statistics;
use super::{asks, bulk, dead, due};
use crate::http::jobs::lists::FoundJobs;
use crate::http::operators::bulk::{BulksReply, actions};
use crate::http::operators::dead::{ReasonsReply, reasons_of};
use crate::http::operators::queues::{HistoryReply, QueueReply};
use crate::http::ui::overview::charts;
use crate::http::ui::page::ask::{Refusal, Said, part};
use crate::http::ui::page::frame::Page;
use crate::http::ui::page::rows::{self, STATES};
use crate::http::ui::page::text::{cut, number, text, typed};
use crate::http::ui::page::visit::{PoolQueue, Visit};

/// Data read for the page.
struct Read {
    statistics: Statistics,
    history: Said<HistoryReply>,
    jobs: Said<FoundJobs>,
    push: Said<Value>,
    bulk: BulksReply,
    /// Present if the page includes it.
    due: Option<due::Counted>,
    /// Present if dead jobs are shown.
    reasons: Option<Said<ReasonsReply>>,
}

/// `GET /ui/queues/:pool/:namespace/:queue`
pub async fn show(visit: Visit, Path(place): Path<PoolQueue>) -> Response {
    let page = match visit.fields.get("ask") {
        Some(ask) => asks::asking(&visit, &place, ask, &visit.fields).await,
        None => page(&visit, &place).await,
    };
    visit.answer(page)
}

/// Returns the requested state.
fn asked_state(visit: &Visit) -> Said<Option<&'static str>> {
    let Some(given) = visit.fields.get("state") else { return Ok(None) };
    let known = STATES.iter().find(|(state, _)| *state == given);
    let (state, _) = known.ok_or(Refusal::bad("invalid state: ready, delayed, running or dead"))?;
    Ok(Some(state))
}

/// Whether the page shows when jobs fall due: above the list of delayed jobs, or on request.
fn is_due_shown(visit: &Visit, state: &str) -> bool {
    state == "delayed" || visit.fields.get("due").is_some()
}

pub async fn page(visit: &Visit, place: &PoolQueue) -> Said<Page> {
    let asked = asked_state(visit)?;
    // Concurrently: a stalled store would use up the page's time with the statistics.
    let of_due = async {
        if is_due_shown(visit, asked.unwrap_or("delayed")) { due::read(visit, place).await } else { None }
    };
    let (statistics, due) = tokio::join!(Statistics::read(visit, place), of_due);
    if let Some(refusal) = statistics.refusal() {
        return Err(refusal.clone());
    }
    let state = asked.unwrap_or_else(|| statistics.state_that_matters());
    let read = read(visit, place, (statistics, due), state).await;
    // An invalid cursor or filter. A filter that this account may not use is rejected in place of the list.
    if let Err(refusal) = &read.jobs
        && refusal.status == StatusCode::BAD_REQUEST
    {
        return Err(refusal.clone());
    }
    let page = Page::new(format!("Queue {}", place.name()), "Queues", body(visit, place, state, &read));
    let page = page.under(rows::trail(visit, place));
    Ok(match &read.statistics.listing {
        Ok(listing) => page.of_samples(listing),
        Err(_) => page,
    })
}

async fn read(
    visit: &Visit,
    place: &PoolQueue,
    (statistics, due): (Statistics, Option<due::Counted>),
    state: &str,
) -> Read {
    let range = visit.fields.get("range").unwrap_or("hour");
    let ask = &visit.ask;
    let reasons = async {
        if state != "dead" {
            return None;
        }
        Some(ask.read(reasons_of(visit.state(), &place.query())).await)
    };
    let history = visit.history(&format!("{}&range={}", place.query(), part(range)));
    let bulk = actions(visit.state(), ask.shows_bodies());
    let (jobs, push, reasons) =
        tokio::join!(jobs::read(visit, place, state), ask.get(push_route(place, "")), reasons);
    let pools = statistics.listing.as_ref().map(|listing| &listing.pools[..]).unwrap_or_default();
    let is_away = pools.iter().any(|pool| pool.pool == place.pool && pool.trouble.is_some());
    let (jobs, push) = (explained(jobs, is_away), explained(push, is_away));
    Read { statistics, history, jobs, push, bulk, due, reasons }
}

/// Says why a route failed while the store is away: to clients it is an internal error.
fn explained<T>(said: Said<T>, is_away: bool) -> Said<T> {
    said.map_err(|refusal| match is_away && refusal.status.is_server_error() {
        true => Refusal::new(refusal.status, "the store does not answer"),
        false => refusal,
    })
}

fn body(visit: &Visit, place: &PoolQueue, state: &str, read: &Read) -> Markup {
    let row = read.statistics.row();
    html! {
        (head(visit, place, row))
        @if visit.may_change() { (asks::commands(visit, place, row.is_some_and(|row| row.paused))) }
        @if let Ok(listing) = &read.statistics.listing { (rows::troubles(visit, &listing.pools)) }
        @if let Some(row) = row.filter(|row| row.paused) {
            p.note {
                "The queue is paused"
                @if let Some(until) = row.paused_until { " until " (visit.zone.at(until)) }
                ": consumers get no jobs."
            }
        }
        (bulk::of_queue(visit, place, &read.bulk))
        (statistics(visit, read))
        (push(visit, place, &read.push))
        (ranges(visit))
        (charts(visit, read.history.as_ref()))
        (tabs(visit, state, read))
        @if is_due_shown(visit, state) { (due::section(visit, read.due.as_ref())) }
        @if state == "dead" {
            @if let Some(Ok(reasons)) = read.reasons.as_ref().filter(|_| visit.fields.text("reason").is_none()) {
                @if !reasons.reasons.is_empty() {
                    section.panel { h2 { "Why jobs died" } (dead::list(visit, place, reasons, 20)) }
                }
            }
        }
        div.row {
            (filter(visit, state))
            @if visit.may_change() { (asks::of_all(visit, place, state, read.statistics.count(state))) }
        }
        (filtered(visit))
        @let selects = visit.may_change() && state != "running" && read.jobs.as_ref().is_ok_and(|list| !list.jobs.is_empty());
        @if selects { (asks::selected(visit, place, state)) }
        (jobs::list(visit, place, state, &read.jobs, &read.statistics.jobs(state), selects))
        (asks::find(visit, place))
    }
}

/// Shows the name, the condition and the actions of the queue.
fn head(visit: &Visit, place: &PoolQueue, row: Option<&QueueReply>) -> Markup {
    let paused = row.is_some_and(|row| row.paused);
    html! {
        div.head {
            h1 { "Queue " (text(&place.name())) }
            @match row.and_then(|row| row.badge(&visit.zone)) {
                Some(badge) => (badge),
                None if paused => { span.badge { "paused" } }
                None => {}
            }
            (asks::actions(visit, place, paused))
        }
    }
}

fn statistics(visit: &Visit, read: &Read) -> Markup {
    html! {
        dl.figures {
            @for (state, words) in STATES { div { dt { (words) } dd { (read.statistics.jobs(state)) } } }
            @if let (Ok(listing), Some(row)) = (&read.statistics.listing, read.statistics.row()) {
                div { dt { "Oldest" } dd { (rows::oldest(visit, listing, row)) } }
                div { dt title="of this server, over the last minute" { "In/s" } dd { (rows::per_second(row.entered)) } }
                div { dt title="of this server, over the last minute" { "Out/s" } dd { (rows::per_second(row.out)) } }
                div { dt title="consumers of this server that wait for jobs" { "Waiting" } dd { (number(row.waiting)) } }
            }
        }
    }
}

/// Shows the push setting, if there is one.
fn push(visit: &Visit, place: &PoolQueue, push: &Said<Value>) -> Markup {
    let page = visit.to(&format!("push/{}", place.path()));
    match push {
        Ok(push) => html! {
            p.push {
                a href=(page) { "Push" } " is " (super::push::badge(visit, push)) " to "
                (cut(push["url"].as_str().unwrap_or("–")))
            }
        },
        Err(refusal) if refusal.status == StatusCode::NOT_FOUND => html! {
            p.push.hint { "Workers fetch its jobs. " a href=(page) { "Push" } " them to a URL instead." }
        },
        Err(refusal) => html! { p.note { "The push setting cannot be read: " (text(&refusal.text)) } },
    }
}

fn ranges(visit: &Visit) -> Markup {
    html! {
        nav.range aria-label="Range of the charts" {
            @for (range, words) in [("hour", "Hour"), ("day", "Day")] {
                a href=(visit.fields.link(&[("range", Some(range))]))
                    aria-current=[(visit.fields.get("range").unwrap_or("hour") == range).then_some("true")] { (words) }
            }
        }
    }
}

fn tabs(visit: &Visit, shown: &str, read: &Read) -> Markup {
    html! {
        nav.tabs aria-label="Jobs by state" {
            ul {
                @for (state, words) in STATES {
                    @let to = visit.fields.link_anew(&[("state", Some(state)), ("reason", None)]);
                    @let is_shown = shown == state;
                    @let label = html! { (words) " " span.count { (read.statistics.jobs(state)) } };
                    li {
                        // There is nothing to list.
                        @if !is_shown && read.statistics.count(state) == Some(0) { span.tab { (label) } }
                        @else { a href=(to) aria-current=[is_shown.then_some("page")] { (label) } }
                    }
                }
            }
        }
    }
}

fn filter(visit: &Visit, state: &str) -> Markup {
    let reason = visit.fields.text("reason");
    html! {
        form.filter method="get" {
            input type="hidden" name="state" value=(state);
            label for="contains" { "Filter" }
            input #contains type="search" name="contains" value=(typed(visit.fields.or_empty("contains")))
                placeholder="text in body, key, attribute or reason" autocomplete="off" spellcheck="false";
            @if let Some(reason) = reason { input type="hidden" name="reason" value=(typed(reason)); }
            button type="submit" { "Show" }
        }
    }
}

/// Shows the reason that the list is filtered by, if there is one.
fn filtered(visit: &Visit) -> Markup {
    html! {
        @if let Some(reason) = visit.fields.text("reason") {
            p { "Only jobs with the reason " b { (dead::reason(Some(reason))) } ". " a href=(visit.fields.link_anew(&[("reason", None)])) { "All reasons" } }
        }
    }
}
