//! Search: a queue by a part of its name, a job by its key or its id. One hit leads straight there.

use axum::http::StatusCode;
use axum::response::Response;
use maud::html;
use serde_json::Value;

use super::page::answer::see_other;
use super::page::ask::{Refusal, Said, part};
use super::page::frame::Page;
use super::page::rows;
use super::page::text::{count, text};
use super::page::visit::{PoolQueue, Visit};
use crate::engine::together;
use crate::http::operators::queues::{QueueReply, QueuesReply};
use crate::job::JobId;

/// In how many queues a job is looked for by its id alone, and how many are asked at a time.
const BUSIEST: usize = 1000;
const AT_ONCE: usize = 32;

/// `GET /ui/search`
pub async fn show(visit: Visit) -> Response {
    match find(&visit).await {
        Ok(Found::At(page)) => see_other(&visit.to(&page)),
        Ok(Found::Page(page)) => visit.answer(Ok(page)),
        Err(refusal) => visit.answer(Err(refusal)),
    }
}

enum Found {
    At(String),
    Page(Page),
}

async fn find(visit: &Visit) -> Said<Found> {
    let wanted = visit.fields.or_empty("q").trim();
    if wanted.is_empty() {
        return Ok(Found::Page(Page::new(
            "Search",
            "",
            html! {
                h1 { "Search" }
                p { "A queue by a part of " code { "namespace/queue" } ", a job by its key or its id as " code { "namespace/queue/x" } "." }
            },
        )));
    }
    let parts: Vec<&str> = wanted.splitn(3, '/').collect();
    // From the page of a queue.
    if let Some(place) = visit.fields.get("in").and_then(place) {
        return in_queue(visit, &[place], wanted).await;
    }
    match parts[..] {
        [id] if JobId::parse(id).is_some() => by_id(visit, id).await,
        [namespace, queue, x] => {
            let place = |pool: &str| PoolQueue {
                pool: pool.into(),
                namespace: namespace.into(),
                queue: queue.into(),
            };
            let places: Vec<_> = visit.state().pools.keys().map(|pool| place(pool.as_str())).collect();
            in_queue(visit, &places, x).await
        }
        _ => by_name(visit, wanted).await,
    }
}

fn place(path: &str) -> Option<PoolQueue> {
    let mut parts = path.split('/').map(str::to_owned);
    Some(PoolQueue { pool: parts.next()?, namespace: parts.next()?, queue: parts.next()? })
}

/// A job by its id or its key, in queues of that name.
async fn in_queue(visit: &Visit, places: &[PoolQueue], x: &str) -> Said<Found> {
    for place in places {
        for what in ["job", "key"].into_iter().skip(usize::from(JobId::parse(x).is_none())) {
            let path = place.api(&format!("/{what}/{}", part(x)), &[("verbose", "1")]);
            match visit.ask.get::<Value>(path).await {
                Ok(job) => {
                    let id = job["job_id"].as_str().unwrap_or_default();
                    return Ok(Found::At(format!("jobs/{}/{}", place.path(), part(id))));
                }
                Err(refusal) if refusal.status == StatusCode::NOT_FOUND => {}
                Err(refusal) => return Err(refusal),
            }
        }
    }
    let name = places.first().map(PoolQueue::name).unwrap_or_default();
    Err(Refusal::new(
        StatusCode::NOT_FOUND,
        format!("no job of {name} has the id or the key {x}. Those that are acked are gone"),
    ))
}

/// A job by its id alone, in the queues that were busiest lately.
async fn by_id(visit: &Visit, id: &str) -> Said<Found> {
    let (mut looked, mut cursor) = (0, String::new());
    while looked < BUSIEST {
        let listing = match visit.ask.get::<QueuesReply>(format!("/queues?sort=out&limit=100{cursor}")).await
        {
            Ok(listing) => listing,
            Err(refusal) if looked == 0 => return Err(refusal),
            // The second is over.
            Err(_) => break,
        };
        let places: Vec<PoolQueue> = listing.queues.iter().filter_map(QueueReply::place).collect();
        for some in places.chunks(AT_ONCE) {
            let found = together::all(some.iter().map(async |place| {
                let path = place.api(&format!("/job/{}", part(id)), &[]);
                visit.ask.get::<Value>(path).await.ok().map(|_| format!("jobs/{}/{}", place.path(), part(id)))
            }));
            if let Some(page) = found.await.into_iter().flatten().next() {
                return Ok(Found::At(page));
            }
            looked += some.len();
        }
        match listing.cursor {
            Some(next) => cursor = format!("&cursor={}", part(&next)),
            None => break,
        }
    }
    Ok(Found::Page(Page {
        status: StatusCode::NOT_FOUND,
        ..Page::new(
            "Search",
            "",
            html! {
                h1 { "Search" }
                p { "No job " (text(id)) " in the " (count(looked as u64, "queue", "queues")) " that " @if looked == 1 { "was" } @else { "were" } " busiest lately." }
                p { "Name its queue: " code { "namespace/queue/" (text(id)) } }
            },
        )
    }))
}

/// Queues by a part of their name.
async fn by_name(visit: &Visit, wanted: &str) -> Said<Found> {
    let listing = visit.ask.get::<QueuesReply>(format!("/queues?q={}&limit=50", part(wanted))).await?;
    let exact = |row: &&QueueReply| format!("{}/{}", row.namespace, row.queue) == wanted;
    let mut hits = listing.queues.iter().filter(exact);
    let hit = match (hits.next(), hits.next(), &listing.queues[..]) {
        (Some(row), None, _) => Some(row),
        (None, _, [row]) => Some(row),
        _ => None,
    };
    if let Some(row) = hit {
        let page = match row.place() {
            Some(place) => format!("queues/{}", place.path()),
            None => rows::namespace_path(&row.pool, &row.namespace),
        };
        return Ok(Found::At(page));
    }
    let none = listing.queues.is_empty();
    let page = Page::new(
        "Search",
        "",
        html! {
            h1 { "Search" }
            @if none {
                p { "No queue has " q { (text(wanted)) } " in its name. A job is found by its key or its id as " code { "namespace/queue/x" } "." }
            } @else { (rows::table(visit, "Queues", &listing, None, true)) }
            @if listing.cursor.is_some() { p { a href=(visit.to(&format!("queues?q={}", part(wanted)))) { "All of them" } } }
        },
    );
    let status = if none { StatusCode::NOT_FOUND } else { StatusCode::OK };
    Ok(Found::Page(Page { status, ..page.of_samples(&listing) }))
}
