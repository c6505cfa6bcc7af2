//! Charts: a line is a path in an SVG. Below each stands the same as a table.

use std::fmt::Write as _;

use maud::{Markup, html};

use super::instant::Zone;
use super::text::volatile;
use crate::http::operators::queues::HistoryReply;
use crate::time::Instant;

/// How many points a line has at most.
const POINTS: usize = 180;
const SPARK: usize = 60;
/// How many rows the table below a chart has.
const ROWS: usize = 12;
/// The height of the SVG's own measure.
const HEIGHT: f64 = 100.0;

/// One line of a chart.
pub struct Line<'a> {
    pub name: &'static str,
    pub points: &'a [Option<f64>],
}

/// A chart of these lines, whose values are shown so. It moves on with time, which alone is no change of the page.
pub fn chart(
    title: &str,
    lines: &[Line<'_>],
    history: &HistoryReply,
    zone: &Zone,
    show: fn(f64) -> String,
) -> Markup {
    let most = lines.iter().flat_map(|line| line.points).filter_map(|point| *point).fold(0.0, f64::max);
    let now = |line: &Line<'_>| line.points.iter().rev().find_map(|point| *point);
    let said: Vec<String> =
        lines.iter().map(|line| format!("{} {}", line.name, now(line).map_or("–".into(), show))).collect();
    let label = format!("{title}: {}; most {}", said.join(", "), show(most));
    volatile(&html! {
        figure.chart {
            figcaption {
                b { (title) } " "
                @for (n, line) in lines.iter().enumerate() {
                    span class=(format!("key k{n}")) { (said[n]) } " "
                    @if n + 1 == lines.len() && line.points.iter().all(Option::is_none) { "nothing is known yet" }
                }
                span.most { "most " (show(most)) }
            }
            svg viewBox=(format!("0 0 {POINTS} {HEIGHT}")) preserveAspectRatio="none" role="img" aria-label=(label) {
                @for (n, line) in lines.iter().enumerate() {
                    path class=(format!("line k{n}")) d=(path(&reduced(line.points, POINTS), most)) {}
                }
            }
            (axis(history, zone))
            (table(lines, history, zone, show))
        }
    })
}

/// A small line without words: beside it stands the figure.
pub fn spark(points: &[Option<f64>]) -> Markup {
    let points = reduced(points, SPARK);
    let most = points.iter().filter_map(|point| *point).fold(0.0, f64::max);
    volatile(&html! {
        // A point by itself at the end has its place too.
        svg.spark viewBox=(format!("0 0 {SPARK} {HEIGHT}")) preserveAspectRatio="none" aria-hidden="true" {
            path class="line k0" d=(path(&points, most)) {}
        }
    })
}

fn axis(history: &HistoryReply, zone: &Zone) -> Markup {
    let end = history.from.0 + history.step * 1000 * history.ready.len() as u64;
    html! {
        p.axis {
            span { (zone.time_of_day(history.from.0)) " " (zone.name) }
            @if let Some(Instant(since)) = history.since.filter(|since| *since > history.from) {
                span { "known since " (zone.time_of_day(since)) " " (zone.name) }
            }
            span { (zone.time_of_day(end)) " " (zone.name) }
        }
    }
}

fn table(lines: &[Line<'_>], history: &HistoryReply, zone: &Zone, show: fn(f64) -> String) -> Markup {
    let rows: Vec<Vec<Option<f64>>> = lines.iter().map(|line| reduced(line.points, ROWS)).collect();
    let each = history.step * 1000 * history.ready.len() as u64 / ROWS as u64;
    html! {
        details {
            summary { "As a table" }
            table {
                caption { "The greatest of each part" }
                thead { tr {
                    th scope="col" { "From" }
                    @for line in lines { th scope="col" { (line.name) } }
                } }
                tbody {
                    @for row in 0..ROWS { tr {
                        th scope="row" { (zone.time_of_day(history.from.0 + each * row as u64)) " " (zone.name) }
                        @for line in &rows {
                            td { (line.get(row).copied().flatten().map_or("–".into(), show)) }
                        }
                    } }
                }
            }
        }
    }
}

/// The same in so many points: of several the greatest.
fn reduced(points: &[Option<f64>], to: usize) -> Vec<Option<f64>> {
    if points.len() <= to {
        return points.to_vec();
    }
    let bound = |n: usize| n * points.len() / to;
    let greatest = |n| points[bound(n)..bound(n + 1)].iter().filter_map(|point| *point).reduce(f64::max);
    (0..to).map(greatest).collect()
}

/// A line through what is known. Where nothing is known it stops.
fn path(points: &[Option<f64>], most: f64) -> String {
    let mut path = String::new();
    let (mut down, mut before) = (false, None);
    for (x, point) in points.iter().enumerate() {
        let Some(value) = point else {
            (down, before) = (false, None);
            continue;
        };
        let share = if most > 0.0 { value / most } else { 0.0 };
        let y = (HEIGHT - 1.0 - share.clamp(0.0, 1.0) * (HEIGHT - 2.0)).round() as i64;
        // A level stretch is its two ends.
        let next = points.get(x + 1).copied().flatten();
        let level = |other: Option<f64>| other == *point;
        if down && level(before) && level(next) {
            before = *point;
            continue;
        }
        let _ = write!(path, "{}{x} {y}", if down { "L" } else { "M" });
        // A point by itself is a short stroke.
        if !down && next.is_none() {
            path.push_str("h1");
        }
        (down, before) = (true, *point);
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_stops_where_nothing_is_known() {
        let points = [None, Some(0.0), Some(10.0), Some(10.0), Some(10.0), None, Some(5.0)];
        assert_eq!(path(&points, 10.0), "M1 99L2 1L4 1M6 50h1");
        assert_eq!(path(&[None, None], 0.0), "");
        assert_eq!(path(&[Some(0.0), Some(0.0)], 0.0), "M0 99L1 99");
    }

    #[test]
    fn of_several_points_the_greatest_is_shown() {
        let points: Vec<_> = (0..360).map(|n| (n % 6 != 5).then_some(f64::from(n))).collect();
        let shown = reduced(&points, 60);
        assert_eq!((shown.len(), shown[0], shown[59]), (60, Some(4.0), Some(358.0)));
        assert_eq!(reduced(&points[..3], 60).len(), 3);
    }
}
