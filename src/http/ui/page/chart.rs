//! Charts: lines and bars in an SVG, with an axis of quantities and one of time. The script shows the values under
//! the pointer; a table below each chart has the same values.

use std::fmt::Write as _;

use maud::{Markup, PreEscaped, html};

use super::instant::Zone;
use super::text::{count, duration, number, rate, volatile};
use crate::http::operators::queues::HistoryReply;
use crate::time::Instant;

/// Upper bound on the points of a line.
const POINTS: usize = 180;
const SPARK: usize = 60;
/// Rows of the table below a chart of lines.
const ROWS: usize = 12;
/// Height in the units of the SVG.
const HEIGHT: f64 = 100.0;
/// Number of parts of the time axis.
const TICKS: usize = 4;

/// Quantity of a chart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    Jobs,
    /// Jobs per second.
    Rate,
    /// Seconds.
    Time,
}

/// Ends of the axis: of small counts, of other amounts by their first digits, and of times.
const COUNTS: [f64; 8] = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0];
const DIGITS: [f64; 11] = [1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0];
const TIMES: [f64; 16] = [
    1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1200.0, 1800.0, 3600.0, 7200.0, 21_600.0,
    43_200.0,
];
const DAY: f64 = 86_400.0;

impl Unit {
    /// Returns an amount with its unit.
    fn show(self, value: f64) -> String {
        match self {
            Unit::Jobs => count(value.round() as u64, "job", "jobs"),
            Unit::Rate => format!("{}/s", rate(value)),
            Unit::Time => duration(value),
        }
    }

    /// Returns the end of the axis for values up to `most`.
    fn ceiling(self, most: f64) -> f64 {
        let of = |ends: &[f64], most: f64| ends.iter().copied().find(|end| *end >= most);
        match self {
            Unit::Jobs if most <= 10.0 => of(&COUNTS, most).unwrap_or(10.0),
            Unit::Time => of(&TIMES, most).unwrap_or_else(|| DAY * digits((most / DAY).max(1.0))),
            Unit::Rate if most <= 0.0 => 1.0,
            _ => digits(most),
        }
    }

    /// Returns the script's name for this format.
    fn name(self) -> &'static str {
        match self {
            Unit::Jobs => "jobs",
            Unit::Rate => "rate",
            Unit::Time => "time",
        }
    }
}

/// Rounds up to a number with few digits.
fn digits(most: f64) -> f64 {
    let power = 10f64.powf(most.log10().floor());
    // A rounding error is no reason for a longer axis.
    let end = DIGITS.iter().find(|digits| **digits * power >= most * (1.0 - 1e-9));
    end.unwrap_or(&10.0) * power
}

/// One line of a chart.
pub struct Line<'a> {
    pub name: &'static str,
    pub points: &'a [Option<f64>],
}

/// Common parts of all charts.
struct Frame<'a> {
    title: &'a str,
    unit: Unit,
    /// End of the axis.
    top: f64,
    /// Description for screen readers.
    label: String,
    legend: Markup,
    /// Width in the units of the SVG.
    width: usize,
    /// Time of the first point, and milliseconds between points.
    from: u64,
    step: f64,
    points: usize,
    axis: Vec<String>,
}

impl Frame<'_> {
    fn around(&self, zone: &Zone, drawn: &Markup, table: &Markup) -> Markup {
        html! {
            figure.chart {
                figcaption { b { (self.title) } (self.legend) }
                div.plot {
                    svg.plot viewBox=(format!("0 0 {} {HEIGHT}", self.width)) preserveAspectRatio="none" role="img" aria-label=(self.label)
                        data-unit=(self.unit.name()) data-from=(self.from) data-step=(self.step) data-points=(self.points) data-zone=(zone.name) {
                        (drawn)
                    }
                    span.ymax { (self.unit.show(self.top)) }
                    span.ymin { "0" }
                }
                p.axis { @for tick in &self.axis { span { (tick) } } }
                details { summary { "As a table" } div { (table) } }
            }
        }
    }
}

/// Creates a chart of lines. Its movement with time alone does not count as a change of the page.
pub fn chart(title: &str, unit: Unit, lines: &[Line<'_>], history: &HistoryReply, zone: &Zone) -> Markup {
    let most = lines.iter().flat_map(|line| line.points).filter_map(|point| *point).fold(0.0, f64::max);
    let now = |line: &Line<'_>| line.points.iter().rev().find_map(|point| *point);
    let said: Vec<String> = lines
        .iter()
        .map(|line| format!("{} {}", line.name, now(line).map_or("–".into(), |value| unit.show(value))))
        .collect();
    let is_known = lines.iter().any(|line| line.points.iter().any(Option::is_some));
    let whole = history.step * 1000 * history.ready.len() as u64;
    let shown = history.ready.len().min(POINTS);
    let top = unit.ceiling(most);
    let mut axis: Vec<String> =
        (0..=TICKS as u64).map(|n| zone.time_of_day(history.from.0 + whole * n / TICKS as u64)).collect();
    if let Some(last) = axis.last_mut() {
        let _ = write!(last, " {}", zone.name);
    }
    let frame = Frame {
        title,
        unit,
        top,
        label: format!("{title}: {}; most {}", said.join(", "), unit.show(most)),
        legend: html! {
            @for (n, said) in said.iter().enumerate() { span class=(format!("key k{n}")) { (said) } }
            @if !is_known { span.more { "nothing is known yet" } }
            @else if let Some(Instant(since)) = history.since.filter(|since| *since > history.from) {
                span.more { "since " (zone.time_of_day(since)) }
            }
        },
        width: POINTS,
        from: history.from.0,
        step: whole as f64 / shown.max(1) as f64,
        points: shown,
        axis,
    };
    let drawn = html! {
        @for (n, line) in lines.iter().enumerate() {
            @let points = reduced(line.points, POINTS);
            path class=(format!("line k{n}")) d=(path(&points, top)) data-name=(line.name) data-values=(values(&points)) {}
        }
    };
    volatile(&frame.around(zone, &drawn, &table(unit, lines, history, zone)))
}

/// Formats values for the script, compactly: empty if unknown.
fn values(points: &[Option<f64>]) -> String {
    let mut text = String::new();
    for (n, point) in points.iter().enumerate() {
        if n > 0 {
            text.push(',');
        }
        if let Some(value) = point {
            let _ = write!(text, "{}", (value * 100.0).round() / 100.0);
        }
    }
    text
}

/// A bar chart with a bar per step of time, including steps without jobs.
pub struct Bars<'a> {
    pub title: &'a str,
    /// Description for screen readers, also shown next to the title.
    pub said: String,
    /// Start of the first step, and milliseconds per step.
    pub from: u64,
    pub step: u64,
    pub counts: &'a [u64],
}

impl Bars<'_> {
    /// Creates the chart, and a table with every step.
    pub fn chart(&self, zone: &Zone) -> Markup {
        let most = self.counts.iter().copied().max().unwrap_or(0);
        let top = Unit::Jobs.ceiling(most as f64);
        let by_day = self.step as f64 >= DAY * 1000.0;
        let tick = |n: usize| {
            let at = self.from + self.step * n as u64;
            if by_day { zone.date(at) } else { zone.time_of_day(at) }
        };
        let mut axis: Vec<String> = (0..=2).map(|n| tick(self.counts.len() * n / 2)).collect();
        if let Some(last) = axis.last_mut() {
            let _ = write!(last, " {}", zone.name);
        }
        let frame = Frame {
            title: self.title,
            unit: Unit::Jobs,
            top,
            label: self.said.clone(),
            legend: html! { span.more { (self.said) } },
            width: self.counts.len() * 10,
            from: self.from,
            step: self.step as f64,
            points: self.counts.len(),
            axis,
        };
        let known: Vec<_> = self.counts.iter().map(|n| Some(*n as f64)).collect();
        let drawn = html! {
            g data-name="due" data-values=(values(&known)) {
                @for (n, jobs) in self.counts.iter().enumerate().filter(|(_, jobs)| **jobs > 0) {
                    @let high = (*jobs as f64 * HEIGHT / top).max(1.5);
                    rect.bar x=(n * 10 + 1) y=(format!("{:.1}", HEIGHT - high)) width="8" height=(format!("{high:.1}")) {}
                }
            }
        };
        let table = html! {
            table {
                caption { "Jobs by due time" }
                thead { tr { th scope="col" { "From" } th scope="col" { "Jobs" } } }
                tbody { @for (n, jobs) in self.counts.iter().enumerate() { tr {
                    th scope="row" { (zone.clock(self.from + self.step * n as u64)) }
                    td { (number(*jobs)) }
                } } }
            }
        };
        frame.around(zone, &drawn, &table)
    }
}

/// Creates a small line without labels, next to a number.
pub fn spark(points: &[Option<f64>]) -> Markup {
    let points = reduced(points, SPARK);
    let most = points.iter().filter_map(|point| *point).fold(0.0, f64::max);
    volatile(&html! {
        // Leaves space for a single point at the end.
        svg.spark viewBox=(format!("0 0 {SPARK} {HEIGHT}")) preserveAspectRatio="none" aria-hidden="true" {
            path class="line k0" d=(path(&points, most)) {}
        }
    })
}

fn table(unit: Unit, lines: &[Line<'_>], history: &HistoryReply, zone: &Zone) -> Markup {
    let rows: Vec<Vec<Option<f64>>> = lines.iter().map(|line| reduced(line.points, ROWS)).collect();
    let each = history.step * 1000 * history.ready.len() as u64 / ROWS as u64;
    let shown =
        |value: Option<f64>| value.map_or(PreEscaped("–".into()), |value| html! { (unit.show(value)) });
    html! {
        table {
            caption { "Maximum of each step" }
            thead { tr {
                th scope="col" { "From" }
                @for line in lines { th scope="col" { (line.name) } }
            } }
            tbody {
                @for row in 0..ROWS { tr {
                    th scope="row" { (zone.time_of_day(history.from.0 + each * row as u64)) " " (zone.name) }
                    @for line in &rows { td { (shown(line.get(row).copied().flatten())) } }
                } }
            }
        }
    }
}

/// Reduces a line to `to` points, each the maximum of several.
fn reduced(points: &[Option<f64>], to: usize) -> Vec<Option<f64>> {
    if points.len() <= to {
        return points.to_vec();
    }
    let bound = |n: usize| n * points.len() / to;
    let greatest = |n| points[bound(n)..bound(n + 1)].iter().filter_map(|point| *point).reduce(f64::max);
    (0..to).map(greatest).collect()
}

/// Draws a line through known values, on an axis that ends at `top`. Unknown values interrupt it.
fn path(points: &[Option<f64>], top: f64) -> String {
    let mut path = String::new();
    let (mut down, mut before) = (false, None);
    for (x, point) in points.iter().enumerate() {
        let Some(value) = point else {
            (down, before) = (false, None);
            continue;
        };
        let share = if top > 0.0 { value / top } else { 0.0 };
        let y = (HEIGHT - 1.0 - share.clamp(0.0, 1.0) * (HEIGHT - 2.0)).round() as i64;
        // A level stretch needs only its ends.
        let next = points.get(x + 1).copied().flatten();
        let level = |other: Option<f64>| other == *point;
        if down && level(before) && level(next) {
            before = *point;
            continue;
        }
        let _ = write!(path, "{}{x} {y}", if down { "L" } else { "M" });
        // A single point is a short stroke.
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
        assert_eq!(values(&points), ",0,10,10,10,,5");
    }

    #[test]
    fn of_several_points_the_greatest_is_shown() {
        let points: Vec<_> = (0..360).map(|n| (n % 6 != 5).then_some(f64::from(n))).collect();
        let shown = reduced(&points, 60);
        assert_eq!((shown.len(), shown[0], shown[59]), (60, Some(4.0), Some(358.0)));
        assert_eq!(reduced(&points[..3], 60).len(), 3);
    }

    #[test]
    fn an_axis_ends_at_a_number_that_is_read_at_a_glance() {
        for (unit, most, says) in [
            (Unit::Jobs, 0.0, "1 job"),
            (Unit::Jobs, 7.0, "8 jobs"),
            (Unit::Jobs, 12.0, "12 jobs"),
            (Unit::Jobs, 103.0, "120 jobs"),
            (Unit::Jobs, 100_000.0, "100,000 jobs"),
            (Unit::Rate, 0.0, "1.0/s"),
            (Unit::Rate, 3.1, "4.0/s"),
            (Unit::Rate, 0.02, "0.02/s"),
            (Unit::Time, 0.0, "1 s"),
            (Unit::Time, 301.0, "10 min"),
            (Unit::Time, 200_000.0, "2 d 12 h"),
        ] {
            let top = unit.ceiling(most);
            assert!(top >= most, "{most} fits below {top}");
            assert_eq!(unit.show(top), says, "of {most}");
        }
    }

    /// Guards against bars drawn side by side although minutes without jobs lie between them.
    #[test]
    fn bars_lie_at_their_steps() {
        let bars = Bars { title: "Due", said: "3 jobs".into(), from: 0, step: 60_000, counts: &[1, 0, 0, 2] };
        let shown = bars.chart(&Zone::utc(0)).0;
        assert!(shown.contains("x=\"1\"") && shown.contains("x=\"31\""), "{shown}");
        assert_eq!(shown.matches("<rect").count(), 2, "{shown}");
        assert_eq!(shown.matches("<tr>").count(), 5, "every step has a row: {shown}");
        assert!(shown.contains("2 jobs"), "the end of the axis: {shown}");
    }
}
