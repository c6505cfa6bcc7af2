//! The list of a queue's jobs in one state.

use axum::http::StatusCode;
use maud::{Markup, html};
use tokio::time::{Instant, sleep};

use super::dead::reason;
use crate::http::jobs::lists::{FoundJobs, ListedJob};
use crate::http::ui::page::ask::{Refusal, Said};
use crate::http::ui::page::text::{
    count, cut, duration, number, shortened, size, text, unknown, visible, volatile,
};
use crate::http::ui::page::visit::{PoolQueue, Visit};
use crate::job::JobView;

/// Jobs per page.
const JOBS: &str = "50";
/// Maximum characters of a body in a row.
const SHOWN: usize = 100;
/// More bytes than that number of characters takes.
const ENOUGH: usize = SHOWN * 4;

/// Rest after an empty piece, as a multiple of its reading time: the timers of all other queues may lie between the
/// jobs of this one, and scanning them must not keep the store from other work.
const REST: u32 = 4;

/// Reads a page of the list. An empty piece with a cursor is not the end: the next one is read while there is time.
pub async fn read(visit: &Visit, place: &PoolQueue, state: &str) -> Said<FoundJobs> {
    let mut all = FoundJobs { cursor: visit.fields.get("cursor").map(str::to_owned), ..FoundJobs::default() };
    loop {
        let mut query = vec![("state", state), ("limit", JOBS), ("data", "1")];
        query.extend(visit.fields.get("contains").map(|text| ("contains", text)));
        query.extend(visit.fields.text("reason").map(|text| ("reason", text)));
        query.extend(all.cursor.as_deref().map(|cursor| ("cursor", cursor)));
        let began = Instant::now();
        let next = visit.jobs(place, &query).await;
        let took = began.elapsed();
        let next = match next {
            Ok(next) => next,
            // The pieces read so far are shown.
            Err(refusal) if refusal.status == StatusCode::SERVICE_UNAVAILABLE && all.scanned > 0 => {
                return Ok(all);
            }
            Err(refusal) => return Err(refusal),
        };
        let scanned = all.scanned + next.looked_at.unwrap_or(next.scanned);
        all = FoundJobs { scanned, ..next };
        if !all.jobs.is_empty() || all.cursor.is_none() {
            return Ok(all);
        }
        sleep(REST * took).await;
    }
}

/// Returns the column's name for the instant of a job in a state.
pub fn instant_of(state: &str) -> &'static str {
    match state {
        "delayed" => "Due",
        "running" => "TTR ends",
        "dead" => "Dead since",
        _ => "Ready since",
    }
}

/// Renders the list. `selects`: its rows can be selected.
pub fn list(
    visit: &Visit,
    place: &PoolQueue,
    state: &str,
    of: &Said<FoundJobs>,
    total: &Markup,
    selects: bool,
) -> Markup {
    let of = match of {
        Ok(of) => of,
        Err(Refusal { status, text: why }) => {
            return html! { p.trouble { "The list is not available (" (status.as_u16()) "): " (text(why)) } };
        }
    };
    let filtered = visit.fields.get("contains").is_some() || visit.fields.text("reason").is_some();
    html! {
        @if filtered {
            p.hint { "This page looked at " (number(of.scanned)) " of " (total) ", found " (number(of.jobs.len() as u64)) "." }
        }
        @if of.jobs.is_empty() {
            @match &of.cursor {
                Some(_) if filtered => {}
                Some(_) => { p { "Looked at " (count(of.scanned, "job", "jobs")) ", found none yet." } }
                None if filtered => {
                    p { "No job matches. " a href=(visit.fields.link_anew(&[("contains", None), ("reason", None)])) { "Show all" } "." }
                }
                None => { p.hint { "No job is " (state) "." } }
            }
        } @else {
            (table(visit, place, state, &of.jobs, selects))
        }
        @if let Some(cursor) = &of.cursor {
            p { a.next rel="next" href=(visit.fields.link(&[("cursor", Some(cursor))])) { "Next" } }
        }
    }
}

fn table(visit: &Visit, place: &PoolQueue, state: &str, jobs: &[JobView], selects: bool) -> Markup {
    // Reasons come from workers; few jobs that are not dead have one.
    let reasons = state == "dead" || jobs.iter().any(|job| job.reason.is_some());
    html! {
        div.scroll role="region" aria-label="Jobs" tabindex="0" {
            table.jobs.list {
                caption { "Jobs that are " (state) }
                thead { tr {
                    @if selects { th.c-select scope="col" { span.vh { "Selected" } } }
                    th.c-id scope="col" { "Id" }
                    th.c-key scope="col" { "Key" }
                    th.c-when scope="col" { "Published" }
                    th.c-when scope="col" { (instant_of(state)) }
                    th.c-tries.n scope="col" { "Tries left" }
                    th.c-ttl.n scope="col" { "TTL" }
                    th.c-size.n scope="col" { "Size" }
                    @if reasons { th scope="col" { "Reason" } }
                    th scope="col" { "Body" }
                } }
                tbody { @for job in jobs { (row(visit, place, &job.into(), (selects, reasons))) } }
            }
        }
    }
}

fn row(visit: &Visit, place: &PoolQueue, job: &ListedJob<'_>, (selects, reasons): (bool, bool)) -> Markup {
    let id = job.job_id.to_string();
    let page = visit.to(&format!("jobs/{}/{id}", place.path()));
    let is_dead = job.state == Some("dead");
    html! {
        tr data-key=(id) {
            @if selects {
                td { input type="checkbox" name="job" value=(id) aria-label=(format!("Select {id}")) form="selected"; }
            }
            // The style sheet truncates it, but copying yields the whole text.
            th.id scope="row" { a href=(page) title=(id) { (text(&id)) } }
            td { @if let Some(key) = &job.key { span.clip title=(visible(key)) { (cut(key)) } } }
            td { (visit.zone.when(job.published_at)) }
            td { @match job.due_at {
                Some(at) => { (visit.zone.when(at)) }
                None => { (unknown("this store does not know it")) }
            } }
            td.n { @match job.remain_tries {
                Some(tries) => { (tries) }
                None => { (unknown("this store does not know the tries of a job in this state")) }
            } }
            td.n { (ttl(job.ttl)) }
            td.n { (size(job.size)) }
            @if reasons {
                td { @if job.reason.is_some() || is_dead { div.few { (reason(job.reason)) } } }
            }
            td.body { div.few { (preview(job)) } }
        }
    }
}

/// Formats the remaining time to live.
fn ttl(seconds: u64) -> Markup {
    match seconds {
        0 => html! { "forever" },
        seconds => volatile(&html! { (duration(seconds as f64)) }),
    }
}

/// Shows the beginning of a body.
pub fn preview(job: &ListedJob<'_>) -> Markup {
    let Some(data) = &job.data else { return unknown("bodies are not shown to this account") };
    let begin = data.get(..ENOUGH).unwrap_or(data);
    let (shown, more) = begin_of(begin);
    html! { bdi { (visible(&shown)) } @if more || begin.len() < data.len() { "…" } }
}

/// Returns the first characters, or the first bytes if they are not text; and whether there are more.
fn begin_of(bytes: &[u8]) -> (String, bool) {
    let readable = match std::str::from_utf8(bytes) {
        Ok(text) => text,
        // A character is truncated at the end.
        Err(error) if error.error_len().is_none() && error.valid_up_to() > 0 => {
            std::str::from_utf8(&bytes[..error.valid_up_to()]).unwrap_or_default()
        }
        Err(_) => {
            let hex = bytes.iter().take(32).map(|byte| format!("{byte:02x} "));
            return (format!("bytes {}", hex.collect::<String>().trim_end()), bytes.len() > 32);
        }
    };
    let (short, more) = shortened(readable, SHOWN);
    (short.to_owned(), more)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_beginning_of_a_body_is_text_or_bytes() {
        assert_eq!(begin_of(b"short"), ("short".into(), false));
        assert_eq!(begin_of("é".repeat(101).as_bytes()), ("é".repeat(100), true));
        assert_eq!(begin_of(&"日本".as_bytes()[..5]), ("日".into(), false), "cut within a character");
        assert_eq!(begin_of(&[0xff, 0x00]), ("bytes ff 00".into(), false));
    }
}
