//! When the delayed jobs of a queue fall due. A count reads all of them, so it is made when the reader asks for it.

use axum::http::StatusCode;
use maud::{Markup, html};
use serde::Deserialize;

use super::ask::Said;
use super::instant::At;
use super::text::{count, number, text};
use super::visit::{Place, Visit};

/// How many steps are told apart.
const STEPS: usize = 60;
/// The height of the SVG's own measure.
const HEIGHT: u64 = 100;
const UNITS: [(&str, &str); 3] = [("minute", "By minute"), ("hour", "By hour"), ("day", "By day")];

/// What `GET /info/delays` answers.
#[derive(Debug, Deserialize)]
pub struct Delays {
    now: At,
    delayed: u64,
    overdue: u64,
    buckets: Vec<Bucket>,
    later: u64,
}

#[derive(Debug, Deserialize)]
struct Bucket {
    from: At,
    count: u64,
}

/// The unit that the page is asked for.
fn unit(visit: &Visit) -> Option<&'static str> {
    let asked = visit.fields.get("due")?;
    UNITS.iter().find(|(unit, _)| *unit == asked).map(|(unit, _)| *unit)
}

/// The count, if the page is asked for it.
pub async fn read(visit: &Visit, place: &Place) -> Option<Said<Delays>> {
    let by = unit(visit)?;
    Some(visit.ask.get(format!("/info/delays?{}&by={by}&limit={STEPS}", place.query())).await)
}

/// The section of the queue's page.
pub fn section(visit: &Visit, delays: Option<&Said<Delays>>) -> Markup {
    html! {
        h2 { "When jobs fall due" }
        p.range {
            @for (unit_, words) in UNITS {
                a href=(visit.fields.link(&[("due", Some(unit_))])) aria-current=[(unit(visit) == Some(unit_)).then_some("true")] { (words) }
                " "
            }
        }
        @match delays {
            None => {}
            Some(Ok(delays)) => (shown(visit, delays)),
            // The count goes on, and the next page has it.
            Some(Err(refusal)) if refusal.status == StatusCode::SERVICE_UNAVAILABLE => {
                p.note { "It is being counted. " a href=(visit.fields.link(&[])) { "Refresh" } }
            }
            Some(Err(refusal)) => { p.trouble { "It was not counted: " (text(&refusal.text)) } }
        }
    }
}

fn shown(visit: &Visit, delays: &Delays) -> Markup {
    let Delays { now, delayed, overdue, buckets, later } = delays;
    let most = buckets.iter().map(|bucket| bucket.count).max().unwrap_or(0).max(1);
    let said = format!(
        "{}: {} overdue, {} in the steps shown, {} later",
        count(*delayed, "delayed job", "delayed jobs"),
        number(*overdue),
        number(buckets.iter().map(|bucket| bucket.count).sum()),
        number(*later),
    );
    html! {
        p { (said) ". Counted " (super::text::volatile(&visit.zone.at(*now))) }
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
