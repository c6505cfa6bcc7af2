//! When the delayed jobs of a queue fall due. A count reads all that are delayed: where these are many, it is made when the
//! reader asks for it. Until it is made the page has the last one.

use std::time::Duration;

use axum::http::StatusCode;
use maud::{Markup, html};
use tokio::time::timeout;

use crate::http::operators::delays::{self, DelaysReply};
use crate::http::ui::page::ask::{Refusal, Said};
use crate::http::ui::page::text::{count, number, text, volatile};
use crate::http::ui::page::visit::{PoolQueue, Visit};

/// How many steps are told apart.
const STEPS: usize = 60;
/// With so many delayed and running jobs in a pool a count is made unasked.
const FEW: u64 = 10_000;
/// How long a page that has an older count waits for a new one.
const SHORT: Duration = Duration::from_millis(100);
/// The height of the SVG's own measure.
const HEIGHT: u64 = 100;
const UNITS: [(&str, &str); 3] = [("minute", "By minute"), ("hour", "By hour"), ("day", "By day")];

/// A count, and by which unit it is.
pub struct Counted {
    by: &'static str,
    delays: Said<DelaysReply>,
    /// Why it is not newer, if it should be.
    behind: Option<String>,
}

/// The unit that the page is asked for, or the usual one where few are delayed.
fn unit(visit: &Visit, place: &PoolQueue) -> Option<&'static str> {
    let Some(asked) = visit.fields.get("due") else { return is_cheap(visit, place).then_some(UNITS[0].0) };
    UNITS.iter().find(|(unit, _)| *unit == asked).map(|(unit, _)| *unit)
}

/// Whether a count takes the store no time to speak of, as far as the last sample tells.
fn is_cheap(visit: &Visit, place: &PoolQueue) -> bool {
    let name = visit.state().pool_name(&place.pool).ok();
    let pool = name.and_then(|name| visit.state().pools.get(&name));
    let sample = pool.map(|pool| pool.sampler.latest());
    sample.is_some_and(|sample| sample.at.is_some() && sample.trouble.is_none() && sample.timers <= FEW)
}

/// The count, if the page is asked for it or it is cheap. Else the last one, if there is any.
pub async fn read(visit: &Visit, place: &PoolQueue) -> Option<Counted> {
    let query = |by: &str| format!("{}&by={by}&limit={STEPS}", place.query());
    let known = |by: &'static str| {
        Some(Counted { by, delays: Ok(delays::last(visit.state(), &query(by))?), behind: None })
    };
    let Some(by) = unit(visit, place) else { return UNITS.iter().find_map(|&(by, _)| known(by)) };
    let asked = visit.ask.get(format!("/info/delays?{}", query(by)));
    let older = known(by);
    let Some(older) = older else { return Some(Counted { by, delays: asked.await, behind: None }) };
    let behind = match timeout(SHORT, asked).await {
        Ok(Ok(delays)) => return Some(Counted { by, delays: Ok(delays), behind: None }),
        Ok(Err(refusal)) => format!("It was not counted anew: {}", refusal.text),
        Err(_) => "It is being counted anew.".to_owned(),
    };
    Some(Counted { behind: Some(behind), ..older })
}

/// Whether the count goes on, and the next page has it.
fn is_under_way(refusal: &Refusal) -> bool {
    refusal.status == StatusCode::SERVICE_UNAVAILABLE
}

/// The section of the queue's page.
pub fn section(visit: &Visit, counted: Option<&Counted>) -> Markup {
    let by = counted.map(|counted| counted.by);
    html! {
        h2 { "When jobs fall due" }
        p.range {
            @for (unit, words) in UNITS {
                a href=(visit.fields.link(&[("due", Some(unit))])) aria-current=[(by == Some(unit)).then_some("true")] { (words) }
                " "
            }
        }
        @if let Some(behind) = counted.and_then(|counted| counted.behind.as_ref()) { p.note { (text(behind)) } }
        @match counted.map(|counted| &counted.delays) {
            None => {}
            Some(Ok(delays)) => (shown(visit, delays)),
            Some(Err(refusal)) if is_under_way(refusal) => {
                p.note { "It is being counted. " a href=(visit.fields.link(&[])) { "Refresh" } }
            }
            Some(Err(refusal)) => { p.trouble { "It was not counted: " (text(&refusal.text)) } }
        }
    }
}

fn shown(visit: &Visit, delays: &DelaysReply) -> Markup {
    let DelaysReply { now, delayed, overdue, buckets, later, .. } = delays;
    let most = buckets.iter().map(|bucket| bucket.count).max().unwrap_or(0).max(1);
    let said = format!(
        "{}: {} overdue, {} in the steps shown, {} later",
        count(*delayed, "delayed job", "delayed jobs"),
        number(*overdue),
        number(buckets.iter().map(|bucket| bucket.count).sum()),
        number(*later),
    );
    html! {
        p { (said) ". Counted " (volatile(&visit.zone.at(*now))) }
        @if !buckets.is_empty() {
            figure.chart {
                svg viewBox=(format!("0 0 {} {HEIGHT}", buckets.len() * 10)) preserveAspectRatio="none" role="img" aria-label=(said) {
                    @for (n, bucket) in buckets.iter().enumerate() {
                        @let high = (bucket.count * HEIGHT / most).max(1);
                        rect.bar x=(n * 10 + 1) y=(HEIGHT - high) width="8" height=(high) {}
                    }
                }
                details {
                    summary { "As a table" }
                    table {
                        caption { "Jobs by the step in which they are due" }
                        thead { tr { th scope="col" { "From" } th scope="col" { "Jobs" } } }
                        tbody { @for bucket in buckets { tr {
                            th scope="row" { (visit.zone.clock(bucket.from.0)) }
                            td { (number(bucket.count)) }
                        } } }
                    }
                }
            }
        }
    }
}
