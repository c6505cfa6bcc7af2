//! When the delayed jobs of a queue fall due. A count reads all delayed jobs: if there are many, it runs only on the
//! reader's request. Until then the page shows the last count.

use std::time::Duration;

use axum::http::StatusCode;
use maud::{Markup, html};
use tokio::time::timeout;

use crate::http::operators::delays::{self, Bucket, DelaysReply};
use crate::http::ui::page::ask::{Refusal, Said};
use crate::http::ui::page::chart::Bars;
use crate::http::ui::page::text::{count, number, text, volatile};
use crate::http::ui::page::visit::{PoolQueue, Visit};

/// Maximum number of steps.
const STEPS: usize = 60;
/// Up to this many delayed and running jobs in a pool, a count runs without a request.
const FEW: u64 = 10_000;
/// How long a page with an older count waits for a new one.
const SHORT: Duration = Duration::from_millis(100);
/// Minimum number of steps in a chart.
const FEWEST: usize = 12;
/// Milliseconds of each unit.
const UNIT_MS: [(&str, u64); 3] = [("minute", 60_000), ("hour", 3_600_000), ("day", 86_400_000)];
const UNITS: [(&str, &str); 3] = [("minute", "By minute"), ("hour", "By hour"), ("day", "By day")];

/// A count with its unit.
pub struct Counted {
    by: &'static str,
    delays: Said<DelaysReply>,
    /// Why the count is out of date, if it is.
    behind: Option<String>,
}

/// Returns the requested unit, or the default if a count is cheap.
fn unit(visit: &Visit, place: &PoolQueue) -> Option<&'static str> {
    let Some(asked) = visit.fields.get("due") else { return is_cheap(visit, place).then_some(UNITS[0].0) };
    UNITS.iter().find(|(unit, _)| *unit == asked).map(|(unit, _)| *unit)
}

/// Whether a count is cheap for the store, judging by the last sample.
fn is_cheap(visit: &Visit, place: &PoolQueue) -> bool {
    let name = visit.state().pools.name(&place.pool).ok();
    let pool = name.and_then(|name| visit.state().pools.get(&name));
    let sample = pool.map(|pool| pool.sampler.latest());
    sample.is_some_and(|sample| sample.at.is_some() && sample.trouble.is_none() && sample.timers <= FEW)
}

/// Returns the count, if it is requested or cheap. Otherwise the last count, if there is one.
pub async fn read(visit: &Visit, place: &PoolQueue) -> Option<Counted> {
    let query = |by: &str| format!("{}&by={by}&limit={STEPS}", place.query());
    let known = |by: &'static str| {
        Some(Counted { by, delays: Ok(delays::last(visit.state(), &query(by))?), behind: None })
    };
    let Some(by) = unit(visit, place) else { return UNITS.iter().find_map(|&(by, _)| known(by)) };
    if visit.fields.get("due").is_none() {
        return fitting(visit, query).await;
    }
    let asked_for = query(by);
    let asked = visit.ask.read(delays::count_delays(visit.state(), &asked_for));
    let older = known(by);
    let Some(older) = older else { return Some(Counted { by, delays: asked.await, behind: None }) };
    let behind = match timeout(SHORT, asked).await {
        Ok(Ok(delays)) => return Some(Counted { by, delays: Ok(delays), behind: None }),
        Ok(Err(refusal)) => format!("The count could not be repeated: {}", why(&refusal)),
        Err(_) => "A new count is in progress.".to_owned(),
    };
    Some(Counted { behind: Some(behind), ..older })
}

/// Counts by the smallest unit whose chart contains all jobs.
async fn fitting(visit: &Visit, query: impl Fn(&str) -> String) -> Option<Counted> {
    let mut counted = None;
    for (by, _) in UNITS {
        let delays = visit.ask.read(delays::count_delays(visit.state(), &query(by))).await;
        let fits = delays.as_ref().map_or(true, |delays| {
            let step = UNIT_MS.iter().find(|(unit, _)| *unit == by).map_or(60_000, |(_, step)| *step);
            let end = (delays.now.0 / step + STEPS as u64) * step;
            delays.later == 0 && delays.buckets.iter().all(|bucket| bucket.from.0 < end)
        });
        counted = Some(Counted { by, delays, behind: None });
        if fits {
            break;
        }
    }
    counted
}

/// Returns why a count failed. To clients of the route an unavailable store is an internal error.
fn why(refusal: &Refusal) -> &str {
    if refusal.status.is_server_error() && !is_under_way(refusal) {
        "the store does not answer"
    } else {
        &refusal.text
    }
}

/// Whether the count continues, so that the next page has it.
fn is_under_way(refusal: &Refusal) -> bool {
    refusal.status == StatusCode::SERVICE_UNAVAILABLE
}

/// Renders the section of the queue's page.
pub fn section(visit: &Visit, counted: Option<&Counted>) -> Markup {
    let by = counted.map(|counted| counted.by);
    // The list says it too.
    let none = |counted: &Counted| counted.delays.as_ref().is_ok_and(|delays| delays.delayed == 0);
    if visit.fields.get("due").is_none() && counted.is_some_and(none) {
        return html! {};
    }
    html! {
        div.due {
            nav.range aria-label="Steps of the chart of due jobs" {
                span.more { "Due jobs" }
                @for (unit, words) in UNITS {
                    @let current = (by == Some(unit)).then_some("true");
                    a href=(visit.fields.link(&[("due", Some(unit))])) aria-current=[current] { (words) }
                }
            }
            @if let Some(behind) = counted.and_then(|counted| counted.behind.as_ref()) { p.note { (text(behind)) } }
            @match counted.map(|counted| &counted.delays) {
                None => {}
                Some(Ok(delays)) => (shown(visit, delays)),
                Some(Err(refusal)) if is_under_way(refusal) => {
                    p.note { "The delayed jobs are being counted. " a href=(visit.fields.link(&[])) { "Refresh" } }
                }
                Some(Err(refusal)) => { p.trouble { "The delayed jobs could not be counted: " (text(why(refusal))) } }
            }
        }
    }
}

fn shown(visit: &Visit, delays: &DelaysReply) -> Markup {
    let DelaysReply { now, delayed, overdue, buckets, by, .. } = delays;
    let step = UNIT_MS.iter().find(|(unit, _)| unit == by).map_or(60_000, |(_, step)| *step);
    let from = now.0 / step * step;
    let counts = steps(from, step, buckets);
    let in_steps: u64 = counts.iter().sum();
    let said = format!(
        "{}: {} overdue, {} in the steps shown, {} later",
        count(*delayed, "delayed job", "delayed jobs"),
        number(*overdue),
        number(in_steps),
        number(delayed.saturating_sub(overdue + in_steps)),
    );
    html! {
        @if *delayed == 0 { p.hint { "No job is delayed." } } @else {
            div.charts { (Bars { title: "When jobs fall due", said, from, step, counts: &counts }.chart(&visit.zone)) }
            p.more { "Counted " (volatile(&visit.zone.when(*now))) "." }
        }
    }
}

/// Returns the jobs that are due in each step from `from` on, up to the last step that has some.
fn steps(from: u64, step: u64, buckets: &[Bucket]) -> Vec<u64> {
    let place = |bucket: &Bucket| {
        let at = usize::try_from(bucket.from.0.saturating_sub(from) / step).ok()?;
        (at < STEPS).then_some((at, bucket.count))
    };
    let placed: Vec<(usize, u64)> = buckets.iter().filter_map(place).collect();
    let last = placed.iter().map(|(at, _)| at + 1).max().unwrap_or(0);
    let mut counts = vec![0; last.max(FEWEST)];
    for (at, jobs) in placed {
        counts[at] += jobs;
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Instant;

    #[test]
    fn jobs_lie_at_their_step_and_empty_steps_are_there() {
        let bucket = |minute: u64, count| Bucket { from: Instant(minute * 60_000), count };
        let from = 100 * 60_000;
        assert_eq!(steps(from, 60_000, &[bucket(100, 2), bucket(112, 1)])[..], {
            let mut counts = [0; 13];
            (counts[0], counts[12]) = (2, 1);
            counts
        });
        let counts = steps(from, 60_000, &[bucket(103, 1), bucket(100 + STEPS as u64, 9)]);
        assert_eq!((counts.len(), counts.iter().sum::<u64>()), (FEWEST, 1), "later jobs are not drawn");
    }
}
