//! Search: a queue by part of its name, a job by its id, its key, or text in it. A single hit is opened at once. A
//! search is bounded by the page's timeout, and the page shows how far it got.

use axum::http::StatusCode;
use axum::response::Response;
use maud::{Markup, html};

use super::page::answer::see_other;
use super::page::ask::{Refusal, Said, part};
use super::page::frame::Page;
use super::page::rows;
use super::page::text::{count, cut, number, text};
use super::page::visit::{PoolQueue, Visit, Wanted};
use super::queue::jobs::preview;
use crate::engine::together;
use crate::http::jobs::lists::ListedJob;
use crate::http::operators::queues::QueueReply;
use crate::job::{JobId, JobView};
use crate::name::JobKey;

/// Maximum queues for a look-up by id or key, and how many of them concurrently.
const BUSIEST: usize = 1000;
const AT_ONCE: usize = 32;
/// States searched for text, and hits shown per queue and state, and in total.
const STATES: [&str; 3] = ["ready", "delayed", "dead"];
const OF_QUEUE: &str = "5";
const SHOWN: usize = 50;
/// Jobs examined per queue and state before the next.
const OF_LIST: u64 = 10_000;

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

fn page(body: &Markup) -> Page {
    Page::new("Search", "", html! { h1 { "Search" } (body) })
}

async fn find(visit: &Visit) -> Said<Found> {
    let wanted = visit.fields.or_empty("q").trim();
    if wanted.is_empty() {
        return Ok(Found::Page(page(&html! {
            p { "A queue by a part of " code { "namespace/queue" } ", a job by its id, its key or a text in it, or as " code { "namespace/queue/key" } "." }
        })));
    }
    // From the page of a queue.
    if let Some(place) = visit.fields.get("in").and_then(place) {
        return in_queue(visit, &[place], wanted).await;
    }
    let parts: Vec<&str> = wanted.splitn(3, '/').collect();
    match parts[..] {
        [id] if JobId::parse(id).is_some() => by_id(visit, id).await,
        [namespace, queue, x] if is_queue(namespace, queue) => {
            let place = |pool: &str| PoolQueue {
                pool: pool.into(),
                namespace: namespace.into(),
                queue: queue.into(),
            };
            let places: Vec<_> = visit.state().pools.keys().map(|pool| place(pool.as_str())).collect();
            in_queue(visit, &places, x).await
        }
        _ => everywhere(visit, wanted).await,
    }
}

/// Whether these may be the names of a namespace and a queue: text may contain slashes too.
fn is_queue(namespace: &str, queue: &str) -> bool {
    let is_name = |name: &str| {
        !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b))
    };
    is_name(namespace) && is_name(queue)
}

fn place(path: &str) -> Option<PoolQueue> {
    let mut parts = path.split('/').map(str::to_owned);
    Some(PoolQueue { pool: parts.next()?, namespace: parts.next()?, queue: parts.next()? })
}

/// Looks up a job by id or key, in these queues.
async fn in_queue(visit: &Visit, places: &[PoolQueue], x: &str) -> Said<Found> {
    for place in places {
        let ways: [fn(_) -> _; 2] = [Wanted::Id, Wanted::Key];
        for what in ways.into_iter().skip(usize::from(JobId::parse(x).is_none())) {
            match visit.job(place, what(x)).await {
                Ok(job) => return Ok(Found::At(format!("jobs/{}/{}", place.path(), job.id()))),
                Err(refusal) if refusal.status == StatusCode::NOT_FOUND => {}
                Err(refusal) => return Err(refusal),
            }
        }
    }
    let name = places.first().map(PoolQueue::name).unwrap_or_default();
    Err(Refusal::new(
        StatusCode::NOT_FOUND,
        format!("no job of {name} has the id or the key {x}. Acked jobs are deleted"),
    ))
}

/// Result of a look-up.
struct Looked {
    queues: usize,
    /// Path of the job's page.
    hit: Option<String>,
}

/// Looks up a job in the busiest queues.
async fn in_busiest(visit: &Visit, wanted: Wanted<'_>, queues: &[PoolQueue]) -> Looked {
    let mut looked = 0;
    for some in queues.chunks(AT_ONCE) {
        let found = together::all(some.iter().map(async |place| match visit.job(place, wanted).await {
            Ok(job) => Some(Some(format!("jobs/{}/{}", place.path(), job.id()))),
            Err(refusal) if refusal.status == StatusCode::NOT_FOUND => Some(None),
            Err(_) => None,
        }))
        .await;
        looked += found.iter().flatten().count();
        if let Some(hit) = found.into_iter().flatten().flatten().next() {
            return Looked { queues: looked, hit: Some(hit) };
        }
        if looked == 0 {
            break;
        }
    }
    Looked { queues: looked, hit: None }
}

/// Returns the queues that were busiest recently, and whether there are more.
fn busiest(visit: &Visit) -> Said<(Vec<PoolQueue>, bool)> {
    let (mut all, mut cursor) = (Vec::new(), String::new());
    while all.len() < BUSIEST {
        let listing = visit.queues(&format!("sort=out&limit=100{cursor}"))?;
        all.extend(listing.queues.iter().filter_map(QueueReply::place));
        match listing.cursor {
            Some(next) => cursor = format!("&cursor={}", part(&next)),
            None => return Ok((all, false)),
        }
    }
    Ok((all, true))
}

/// Looks up a job by id alone.
async fn by_id(visit: &Visit, id: &str) -> Said<Found> {
    let (queues, more) = busiest(visit)?;
    let Looked { queues: looked, hit } = in_busiest(visit, Wanted::Id(id), &queues).await;
    if let Some(hit) = hit {
        return Ok(Found::At(hit));
    }
    let found = page(&html! {
        p { "No job with this id is in the " (count(looked as u64, "queue", "queues")) " that " @if looked == 1 { "was" } @else { "were" } " busiest lately." }
        @if more || looked < queues.len() { p { "There are more queues. Name its queue: " code { "namespace/queue/" (text(id)) } } }
        @else { p { "Acked jobs are deleted. Name its queue to be sure: " code { "namespace/queue/" (text(id)) } } }
    });
    Ok(Found::Page(Page { status: StatusCode::NOT_FOUND, ..found }))
}

/// Result of a text search, and its extent.
#[derive(Default)]
struct InJobs {
    jobs: Vec<(PoolQueue, JobView)>,
    looked_at: u64,
    queues: usize,
    /// Jobs or queues were left out.
    more: bool,
    /// Why no job was examined.
    refused: Option<Refusal>,
}

/// Searches queues by part of their name, jobs by key, and jobs by text in them.
async fn everywhere(visit: &Visit, wanted: &str) -> Said<Found> {
    let listing = visit.queues(&format!("q={}&limit=50", part(wanted)))?;
    let exact = |row: &&QueueReply| format!("{}/{}", row.namespace, row.queue) == wanted;
    let mut hits = listing.queues.iter().filter(exact);
    if let (Some(row), None) = (hits.next(), hits.next()) {
        return Ok(Found::At(page_of(row)));
    }
    let (queues, more) = busiest(visit)?;
    let by_key = match JobKey::parse(wanted) {
        Some(_) => in_busiest(visit, Wanted::Key(wanted), &queues).await,
        None => Looked { queues: 0, hit: None },
    };
    match (&listing.queues[..], &by_key.hit) {
        ([], Some(hit)) => return Ok(Found::At(hit.clone())),
        // Its page can search the text in its jobs.
        ([row], None) => return Ok(Found::At(page_of(row))),
        _ => {}
    }
    let mut found = in_jobs(visit, wanted, &queues).await;
    found.more |= more;
    let none = listing.queues.is_empty() && by_key.hit.is_none() && found.jobs.is_empty();
    let body = html! {
        @if listing.queues.is_empty() { p.hint { "No queue has " q { (cut(wanted)) } " in its name." } }
        @else {
            h2 { "Queues" }
            (rows::table(visit, "Queues", &listing, None, true))
            @if listing.cursor.is_some() { p { a href=(visit.to(&format!("queues?q={}", part(wanted)))) { "All of them" } } }
        }
        @if let Some(hit) = &by_key.hit { p { "A job has this key: " a href=(visit.to(hit)) { (cut(wanted)) } } }
        (jobs(visit, wanted, &found, by_key.queues))
    };
    // A search that was cut short proves nothing.
    let status = if none && !found.more { StatusCode::NOT_FOUND } else { StatusCode::OK };
    Ok(Found::Page(Page { status, ..page(&body).of_samples(&listing) }))
}

fn page_of(row: &QueueReply) -> String {
    match row.place() {
        Some(place) => format!("queues/{}", place.path()),
        None => rows::namespace_path(&row.pool, &row.namespace),
    }
}

/// Searches a text in the jobs of the busiest queues, until the page's timeout.
async fn in_jobs(visit: &Visit, wanted: &str, queues: &[PoolQueue]) -> InJobs {
    let mut found = InJobs::default();
    for place in queues {
        for state in STATES {
            let query = [("state", state), ("contains", wanted), ("limit", OF_QUEUE), ("data", "1")];
            match visit.jobs(place, &query).await {
                Ok(page) => {
                    let looked_at = page.looked_at.unwrap_or(page.scanned);
                    found.looked_at += looked_at;
                    found.more |= page.cursor.is_some();
                    found.jobs.extend(page.jobs.into_iter().map(|job| (place.clone(), job)));
                }
                Err(refusal) => {
                    found.refused = (found.looked_at == 0).then_some(refusal);
                    found.more = true;
                    return found;
                }
            }
        }
        found.queues += 1;
        if found.jobs.len() >= SHOWN {
            found.jobs.truncate(SHOWN);
            found.more |= found.queues < queues.len();
            return found;
        }
    }
    found
}

/// Shows the jobs found, and how far the search got.
fn jobs(visit: &Visit, wanted: &str, found: &InJobs, of_key: usize) -> Markup {
    html! {
        h2 { "Jobs" }
        @if let Some(refusal) = &found.refused { p.note { "Jobs were not searched for this text: " (text(&refusal.text)) } }
        @else {
            p.hint {
                "Looked for the key in " (count(of_key as u64, "queue", "queues")) ", and for the text in "
                (count(found.looked_at, "job", "jobs")) " of " (count(found.queues as u64, "queue", "queues"))
                ": ready, delayed and dead ones, the busiest queues first. "
                @if found.more { "There are more: use the filter on the queue's page." } @else { "These are all." }
            }
        }
        @if found.jobs.is_empty() { p { "No job matches." } } @else {
            div.scroll role="region" aria-label="Jobs" tabindex="0" {
                table.jobs.wrap {
                    caption { "Jobs that contain the text" }
                    thead { tr { @for name in ["Queue", "Id", "Key", "State", "Body"] { th scope="col" { (name) } } } }
                    tbody { @for (place, job) in &found.jobs {
                        @let job = ListedJob::from(job);
                        @let id = job.job_id.to_string();
                        @let state = job.state.unwrap_or_default();
                        tr data-key=(id) {
                            td { a href=(visit.to(&format!("queues/{}?state={state}&contains={}", place.path(), part(wanted)))) { (text(&place.name())) } }
                            th.id scope="row" { a href=(visit.to(&format!("jobs/{}/{id}", place.path()))) title=(id) { (id) } }
                            td { @if let Some(key) = job.key { (cut(key)) } }
                            td { span class=(format!("badge state-{state}")) { (state) } }
                            td.body { div.few { (preview(&job)) } }
                        }
                    } }
                }
            }
        }
        @if found.looked_at >= OF_LIST { p.hint { "Of each queue and state at most the first " (number(OF_LIST)) " jobs are searched." } }
    }
}
