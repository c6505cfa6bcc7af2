//! The first page: problems, queues that need attention, and sums.

use axum::response::Response;
use maud::{Markup, html};

use super::page::ask::{Refusal, Said};
use super::page::chart::{Line, Unit, chart};
use super::page::frame::{Page, command_line};
use super::page::rows::{self, NOT_BY_QUEUE};
use super::page::text::{rate, text, timers};
use super::page::visit::{Visit, scheme};
use super::server::servers;
use crate::engine::Estimated;
use crate::http::operators::queues::{HistoryReply, QueuesReply, SampleReply};
use crate::http::operators::servers::{ServersReply, servers_of};

/// Number of queues shown.
const QUEUES: usize = 25;

/// `GET /ui/`
pub async fn show(visit: Visit) -> Response {
    let make = async |basis: Option<u64>| {
        let queues = visit.queues(&format!("sort=need&limit={QUEUES}"));
        let (history, fleet) = (visit.history(""), servers_of(visit.state()));
        // A page without charts is incomplete, so the next request must render it again.
        let basis = basis.filter(|_| history.is_ok());
        Ok(Page { basis, ..page(&visit, queues, history, fleet)? })
    };
    visit.answer_if_new(make).await
}

fn page(
    visit: &Visit,
    queues: Said<QueuesReply>,
    history: Said<HistoryReply>,
    fleet: ServersReply,
) -> Said<Page> {
    let listing = queues?;
    let body = html! {
        h1 { "Overview" }
        (rows::troubles(visit, &listing.pools))
        (sums(visit, &listing.pools))
        @if listing.queues.is_empty() && listing.cursor.is_none() {
            (empty(visit))
        } @else {
            h2 { "Queues" }
            (rows::table(visit, "Queues, most urgent first", &listing, None, true))
            p { a href=(visit.to("queues")) { "All queues" } }
        }
        h2 { "Last hour" }
        (charts(visit, history.as_ref()))
        @if fleet.is_several() {
            h2 { "Servers" }
            (servers(visit, &fleet))
        }
    };
    Ok(Page::new("Overview", "Overview", body).of_samples(&listing))
}

/// Shows the sums over all pools. The label of a sum leads to the queues that have most of it.
fn sums(visit: &Visit, pools: &[SampleReply]) -> Markup {
    let exact = Estimated::default();
    let shown = |label: &str, to: &str, n: Option<u64>, estimated| {
        html! {
            div {
                dt { @if n > Some(0) { a href=(visit.to(to)) { (label) } } @else { (label) } }
                dd { (timers(n, estimated, NOT_BY_QUEUE)) }
            }
        }
    };
    let sum = |of: fn(&SampleReply) -> u64| Some(pools.iter().map(of).sum::<u64>());
    let all = |of: fn(&SampleReply) -> Option<u64>| pools.iter().map(of).sum::<Option<u64>>();
    let rates = |of: fn(&SampleReply) -> f64| rate(pools.iter().map(of).sum());
    let mut estimated = exact;
    pools.iter().for_each(|pool| estimated |= pool.sums.estimated);
    html! {
        dl.figures {
            (shown("Queues", "queues", sum(|pool| pool.queues + pool.left_out), exact))
            (shown("Ready", "queues?sort=ready", sum(|pool| pool.sums.ready), exact))
            (shown("Delayed", "queues?sort=delayed", all(|pool| pool.sums.delayed), estimated))
            (shown("Running", "queues?sort=running", all(|pool| pool.sums.running), estimated))
            (shown("Dead", "dead", sum(|pool| pool.sums.dead), exact))
            div { dt title="of this server, over the last minute" { "In/s" } dd { (rates(|pool| pool.sums.entered)) } }
            div { dt title="of this server, over the last minute" { "Out/s" } dd { (rates(|pool| pool.sums.out)) } }
            div { dt title="of this server, over the last minute" { "Died/s" } dd { (rates(|pool| pool.sums.died)) } }
        }
    }
}

/// Instructions for a server without queues.
pub fn empty(visit: &Visit) -> Markup {
    let create = command_line(visit, &("POST", "/token/demo?description=me".into(), None));
    html! {
        p { "There is no queue yet. Publishing a job creates its queue:" }
        pre tabindex="0" { code {
            "TOKEN=$(" (create) " -s | sed -n 's/.*\"token\": *\"\\([^\"]*\\)\".*/\\1/p')\n"
            "curl -X PUT -H \"X-Token: $TOKEN\" '" (api(visit)) "/api/demo/mail?tries=3' -d 'to: ann'"
        } }
    }
}

/// Returns the URL of the public port: on the host of the page, since the machine's own name may lead nowhere.
fn api(visit: &Visit) -> String {
    let base = visit.base();
    let place = base.split_once("://").map_or(&*base, |(_, place)| place);
    let place = place.split('/').next().unwrap_or_default();
    let has_port = |(_, port): &(&str, &str)| port.bytes().all(|b| b.is_ascii_digit());
    let host = place.rsplit_once(':').filter(has_port).map_or(place, |(host, _)| host);
    let port = visit.state().server.name.rsplit_once(':').map_or("7777", |(_, port)| port);
    format!("{}://{host}:{port}", scheme(visit.state().server.about.api_tls))
}

/// Charts of the rates in and out, of ready jobs, and of the oldest age.
pub fn charts(visit: &Visit, history: Result<&HistoryReply, &Refusal>) -> Markup {
    let of = match history {
        Ok(of) => of,
        Err(refusal) => {
            return html! { p.trouble { "The charts are not available: " (text(&refusal.text)) } };
        }
    };
    if !visit.state().operations.history.is_kept() {
        return html! { p.note { "No history is kept: HistoryMemory is 0." } };
    }
    let zone = &visit.zone;
    let ready: Vec<Option<f64>> = of.ready.iter().map(|n| n.map(|n| n as f64)).collect();
    html! {
        div.charts {
            (chart("Throughput of this server", Unit::Rate, &[
                Line { name: "in", points: &of.entered },
                Line { name: "out", points: &of.out },
                Line { name: "died", points: &of.died },
            ], of, zone))
            (chart("Ready jobs", Unit::Jobs, &[Line { name: "ready", points: &ready }], of, zone))
            (chart("Oldest ready job", Unit::Time, &[Line { name: "age", points: &of.oldest_ready_age }], of, zone))
        }
    }
}
