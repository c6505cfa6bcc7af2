//! Tables of queues, for the overview, the list of queues and a namespace.

use maud::{Markup, html};

use super::ask::part;
use super::chart::spark;
use super::frame::Page;
use super::instant::Zone;
use super::text::{VOLATILE, count, duration, number, rate, text, timers, unknown, volatile};
use super::visit::{PoolQueue, Visit};
use crate::engine::Estimated;
use crate::history::need::Need;
use crate::history::{Of, Range};
use crate::http::operators::queues::{QueueReply, QueuesReply, SampleReply};
use crate::name::{Namespace, PoolName, Queue, QueueName};
use crate::time::Instant;

/// Tooltips of unknown numbers.
pub const NOT_BY_QUEUE: &str = "the store has not counted these";
const READ_OFF_THE_ID: &str = "estimated from the id of the first job: when it was published, plus its delay";
/// Usual seconds between two readings of a store.
const USUAL: f64 = 10.0;
const NOT_COUNTED: &str = "this server does not count this queue by itself";

impl QueuesReply {
    /// Returns the interval between readings of the pools in seconds, if slow readings make it longer than usual.
    fn read_each(&self) -> Option<f64> {
        self.pools.iter().map(|pool| pool.interval).filter(|interval| *interval > USUAL).reduce(f64::max)
    }

    /// Returns when the pool of a queue was last read.
    fn read_at(&self, row: &QueueReply) -> Option<Instant> {
        self.pools.iter().find(|pool| pool.pool == row.pool)?.sampled_at
    }
}

impl Page {
    /// Adds the time and interval of the displayed data.
    pub fn of_samples(self, listing: &QueuesReply) -> Page {
        let read_at = listing.sampled_at.map(|at| at.0);
        Page { read_at, read_each: listing.read_each(), ..self }
    }
}

impl QueueReply {
    /// Returns the queue of its page, if it has one.
    pub fn place(&self) -> Option<PoolQueue> {
        PoolQueue::of_queue(&self.pool, &self.namespace, &self.queue)
    }

    /// Returns the class of its need in the style sheet.
    pub fn class(&self) -> &'static str {
        self.need.map_or("", Need::as_str)
    }

    /// Shows its need as a badge. A paused queue is late because of the pause.
    pub fn badge(&self, zone: &Zone) -> Option<Markup> {
        let need = self.need?;
        let words = self.words_of(need, zone);
        let paused = self.paused && need != Need::Paused;
        let (badge, title) = (format!("badge {}", self.class()), words.0.clone());
        let title = title.replace([VOLATILE.0, VOLATILE.1], "");
        Some(volatile_title(&badge, &title, &html! { (words) @if paused { "; paused" } }))
    }

    /// Shows the state of its push, if it is pushed.
    pub fn push_badge(&self, zone: &Zone) -> Option<Markup> {
        Some(match self.push?.as_str() {
            "on" => html! { span.badge.on { "on" } },
            "paused" => html! { span.badge.warn { "paused" } },
            _ => html! { span.badge.push { (self.words_of(Need::Push, zone)) } },
        })
    }

    fn words_of(&self, need: Need, zone: &Zone) -> Markup {
        let since =
            |at: Instant| volatile(&html! { (duration(zone.now.saturating_sub(at.0) as f64 / 1000.0)) });
        html! {
            @match need {
                Need::Push => @match self.push.map(|push| push.as_str()) {
                    Some("off") => "push is off",
                    Some("locked") => "push cannot be read",
                    // The breaker opens when the endpoint does not respond.
                    _ => { "push is failing: no response" @if let Some(at) = self.push_failing_since { " for " (since(at)) } }
                },
                Need::Dying => { (number(self.worse)) " died in ten minutes" }
                Need::Nobody => "no consumers",
                Need::Late => { "late: waits " @if self.estimated.age { "≈ " } (duration(self.oldest_ready_age.unwrap_or(0.0))) }
                Need::Growing => "growing for five minutes",
                Need::Paused => "paused, with ready jobs",
                Need::Dead => (count(self.dead, "dead job", "dead jobs")),
            }
        }
    }
}

/// Creates a badge whose title repeats its words, which a narrow column cuts off. Both may change every second.
fn volatile_title(class: &str, title: &str, words: &Markup) -> Markup {
    if words.0.contains(VOLATILE.0) {
        // The existence of the badge counts for the tag of the page.
        return html! { (volatile(&html! { span class=(class) title=(title) { (words) } })) span hidden class=(class) {} };
    }
    html! { span class=(class) title=(title) { (words) } }
}

/// States with their labels.
pub const STATES: [(&str, &str); 4] =
    [("ready", "Ready"), ("delayed", "Delayed"), ("running", "Running"), ("dead", "Dead")];

/// Columns of the table: sort order, label, and width as a class.
const COLUMNS: [(&str, &str, &str); 9] = [
    ("need", "Need", "need"),
    ("name", "Queue", "name"),
    ("ready", "Ready", "n"),
    ("delayed", "Delayed", "n"),
    ("running", "Running", "n"),
    ("dead", "Dead", "n"),
    ("age", "Oldest", "age"),
    ("in", "In/s", "s"),
    ("out", "Out/s", "s"),
];
const OF_SERVER: &str = "of this server, over the last minute";

/// Creates the table. `sorted` is the sort column, if the reader may choose; `sparks` shows the last hour.
pub fn table(
    visit: &Visit,
    caption: &str,
    listing: &QueuesReply,
    sorted: Option<&str>,
    sparks: bool,
) -> Markup {
    html! {
        div.scroll.cards role="region" aria-label=(caption) tabindex="0" {
            table.queues {
                caption { (caption) }
                thead { tr {
                    @for (by, name, class) in COLUMNS {
                        th scope="col" class=(class) title=[["in", "out"].contains(&by).then_some(OF_SERVER)] aria-sort=[(sorted == Some(by)).then_some(if by == "name" { "ascending" } else { "descending" })] {
                            @if sorted.is_some() {
                                a href=(visit.fields.link_anew(&[("sort", Some(by))])) { (name) }
                            } @else { (name) }
                        }
                    }
                    th.s scope="col" title="consumers of this server that wait for jobs" { "Waiting" }
                    @if sparks { th.spark scope="col" { "Ready, last hour" } }
                } }
                tbody { @for row in &listing.queues { (line(visit, listing, row, sparks)) } }
            }
        }
    }
}

fn line(visit: &Visit, listing: &QueuesReply, row: &QueueReply, sparks: bool) -> Markup {
    let place = row.place();
    let page = place.as_ref().map(|place| visit.to(&format!("queues/{}", place.path())));
    let of_state = |state: &str, label: &str, n: Option<u64>| {
        let estimated =
            if ["delayed", "running"].contains(&state) { row.estimated } else { Estimated::default() };
        let jobs = timers(n, estimated, NOT_BY_QUEUE);
        html! {
            td.n data-label=(label) { @match (n, &page) {
                (Some(0), _) => { span.zero { (jobs) } }
                (Some(_), Some(page)) => { a href=(format!("{page}?state={state}")) { (jobs) } }
                _ => (jobs),
            } }
        }
    };
    let badge = row.badge(&visit.zone);
    let calm = badge.is_none() && !row.paused;
    let name = format!("{}/{}", row.namespace, row.queue);
    let key = format!("{}/{name}", row.pool);
    html! {
        tr data-key=(key) {
            td class=(if calm { "need calm" } else { "need" }) {
                @match badge {
                    Some(badge) => (badge),
                    None if row.paused => { span.badge { "paused" } }
                    None => { span.zero { "–" } }
                }
            }
            th.name scope="row" title=(name) {
                @if visit.many_pools() { span.pool { (text(&row.pool)) } " " }
                @match &page {
                    Some(page) => { a href=(page) { (text(&name)) } }
                    None => { a href=(visit.to(&namespace_path(&row.pool, &row.namespace))) { (text(&name)) } }
                }
            }
            (of_state("ready", "Ready", Some(row.ready)))
            (of_state("delayed", "Delayed", row.delayed))
            (of_state("running", "Running", row.running))
            (of_state("dead", "Dead", Some(row.dead)))
            td { (oldest(visit, listing, row)) }
            td { (per_second(row.entered)) }
            td { (per_second(row.out)) }
            td { @if place.is_some() { (number(row.waiting)) } @else { (unknown(NOT_COUNTED)) } }
            @if sparks { td.spark { (spark(&last_hour(visit, row))) } }
        }
    }
}

/// Returns the path of a namespace's page.
pub fn namespace_path(pool: &str, namespace: &str) -> String {
    format!("namespaces/{}/{}", part(pool), part(namespace))
}

/// Returns the breadcrumbs of a queue.
pub fn trail(visit: &Visit, place: &PoolQueue) -> Vec<(String, Markup)> {
    let namespace = visit.to(&namespace_path(&place.pool, &place.namespace));
    let name = match visit.many_pools() {
        true => html! { (text(&place.pool)) "/" (text(&place.namespace)) },
        false => text(&place.namespace),
    };
    vec![(namespace, name), (visit.to(&format!("queues/{}", place.path())), text(&place.queue))]
}

/// Shows the age of the oldest ready job.
pub fn oldest(visit: &Visit, listing: &QueuesReply, row: &QueueReply) -> Markup {
    match row.oldest_ready_age {
        Some(age) => {
            let read = listing.read_at(row).map_or(visit.zone.now, |at| at.0);
            let age = visit.zone.age(read.saturating_sub((age * 1000.0) as u64));
            html! { @if row.estimated.age { span title=(READ_OFF_THE_ID) { "≈ " } } (age) }
        }
        None if row.ready > 0 => unknown("this store does not know the age of its ready jobs"),
        None => html! { span.zero { "–" } },
    }
}

pub fn per_second(of: Option<f64>) -> Markup {
    match of {
        Some(0.0) => html! { span.zero { "0" } },
        Some(of) => html! { (rate(of)) },
        None => unknown(NOT_COUNTED),
    }
}

/// Returns the number of ready jobs over the last hour.
fn last_hour(visit: &Visit, row: &QueueReply) -> Vec<Option<f64>> {
    let (pool, namespace) = (PoolName::parse(&row.pool), Namespace::parse(&row.namespace));
    let (Ok(pool), Ok(namespace)) = (pool, namespace) else { return Vec::new() };
    let of = match QueueName::parse_for_consume(&row.queue) {
        Ok(name) => Of::Queue(pool, Queue { namespace, name }),
        Err(_) => Of::Jobs(pool, namespace),
    };
    let (_, points) =
        visit.state().operations.history.of(&of, Range::Hour, visit.state().server.began.time() / 1000);
    points.iter().map(|point| point.as_ref().map(|point| point.ready as f64)).collect()
}

/// Shows a line for each pool whose store is unavailable or full, or that is shown incompletely.
pub fn troubles(visit: &Visit, pools: &[SampleReply]) -> Markup {
    html! {
        @for pool in pools {
            @if let Some(why) = &pool.trouble {
                p.trouble {
                    "The store of pool " b { (text(&pool.pool)) } " does not answer: " (text(why))
                    @if let Some(since) = pool.trouble_since { ", since " (visit.zone.at(since)) }
                    ". "
                    @match pool.sampled_at {
                        Some(at) => { "Its statistics are from " (visit.zone.at(at)) "." }
                        None => { "It has not been read yet." }
                    }
                }
            } @else if let Some(since) = pool.full_since {
                p.trouble { "The store of pool " b { (text(&pool.pool)) } " is full, since " (visit.zone.at(since)) ": publishes are refused." }
            }
            @if pool.left_out > 0 {
                p.note { "Of pool " b { (text(&pool.pool)) } " " (count(pool.left_out, "queue is", "queues are")) " not shown: the pool has too many." }
            }
        }
    }
}
