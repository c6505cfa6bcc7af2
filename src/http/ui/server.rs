//! The page of the server: configuration, usage and limits, pools, changes by operators, and the other servers of its
//! fleet.

use axum::http::Method;
use axum::response::Response;
use maud::{Markup, html};

use super::page::ask::{Refusal, Said, Sent, part};
use super::page::form::Filled;
use super::page::frame::{Page, curl};
use super::page::text::{cut, duration, number, rate, size, text, unknown, volatile};
use super::page::visit::Visit;
use crate::engine::together;
use crate::http::operators::cluster::{ClusterReply, cluster};
use crate::http::operators::servers::{
    ChangeReply, ConnectionsReply, PoolReply, ServerReply, ServersReply, Took, server_for, servers_of,
};

/// `GET /ui/server`
pub async fn show(visit: Visit) -> Response {
    let page = page(&visit).await;
    visit.answer(page)
}

/// `POST /ui/server`
pub async fn change(mut visit: Visit, Filled(form): Filled) -> Response {
    let (status, code) = match form.or_empty("do") {
        "log-on" => ("enable", "log-on"),
        "log-off" => ("disable", "log-off"),
        _ => ("", ""),
    };
    let done = match status {
        "" => Err(Refusal::bad("the form does not say what to do")),
        status => visit.ask.change(Method::POST, &format!("/accesslog?status={status}"), Sent::Nothing).await,
    };
    match done {
        Ok(_) => visit.done(code),
        Err(refusal) => {
            visit.refuse(refusal, form);
            let page = page(&visit).await;
            visit.answer(page)
        }
    }
}

async fn page(visit: &Visit) -> Said<Page> {
    let server = visit.ask.read(async { Ok(server_for(&visit.ui.state, visit.ask.role).await) }).await?;
    let clusters = clusters(visit, &server.pools).await;
    let body = html! {
        h1 { "Server " (text(&server.server)) }
        (facts(visit, &server))
        @for (pool, cluster) in server.pools.iter().zip(&clusters) { (of_pool(visit, pool, cluster.as_ref())) }
        h2 { "Servers" }
        (servers(visit, &servers_of(visit.state())))
        (changes(visit, &server.changes))
    };
    Ok(Page::new("Server", "Server", body))
}

/// Reads the nodes of each clustered pool.
async fn clusters(visit: &Visit, pools: &[PoolReply]) -> Vec<Option<Said<ClusterReply>>> {
    let ask = async |pool: &PoolReply| match &*pool.about.kind {
        "cluster" => {
            Some(visit.ask.read(cluster(visit.state(), &format!("pool={}", part(&pool.pool)))).await)
        }
        _ => None,
    };
    together::all(pools.iter().map(ask)).await
}

/// Formats a number by its name: bytes and seconds get their unit.
fn amount(name: &str, n: f64) -> Markup {
    html! {
        @if name.contains("bytes") || name.contains("memory") { (size(n.max(0.0) as u64)) }
        @else if name.ends_with("seconds") { (duration(n)) }
        @else if n.fract() == 0.0 && n >= 0.0 { (number(n as u64)) }
        @else { (rate(n)) }
    }
}

fn words(name: &str) -> String {
    name.replace('_', " ")
}

/// Shows a usage and its limit.
fn of_most(now: Markup, most: Markup) -> Markup {
    html! { (now) " of " (most) }
}

/// Shows durations.
fn took(of: Option<&Took>) -> Markup {
    let end = |seconds: Option<f64>| {
        seconds.map_or("above the largest bucket".into(), |n| format!("≤ {}", short(n)))
    };
    html! {
        @match of {
            Some(Took { count, p50, p99, worst }) => {
                "p50 " (end(*p50)) ", p99 " (end(*p99)) ", worst " (end(*worst)) ", " (number(*count)) " since the start"
            }
            None => (unknown("none since the start")),
        }
    }
}

/// Formats a short time, down to hundredths of a millisecond.
fn short(seconds: f64) -> String {
    if seconds < 0.1 { format!("{} ms", (seconds * 1e5).round() / 100.0) } else { duration(seconds) }
}

fn facts(visit: &Visit, server: &ServerReply) -> Markup {
    let here = visit.fields.link(&[]);
    let ServerReply { most, process, connections, history, .. } = server;
    html! {
        dl.facts {
            dt { "Version" } dd { (text(&server.version)) " (" (text(&server.build_commit)) ")" }
            dt { "Started" } dd { (visit.zone.at(server.started)) }
            dt { "Configuration" } dd { @match &server.config_file { Some(file) => (text(file)), None => "none: variables and defaults" } }
            dt { "AdminUrl" } dd { @match &server.admin_url { Some(url) => (text(url)), None => "not set" } }
            dt { "Zone database" } dd { (text(&server.zone_database)) }
            dt { "Ready" } dd { @if server.ready { span.badge.good { "yes" } } @else { span.badge.bad { "no" } } }
            dt { "Accounts" } dd { @if server.asks_for_accounts { "required; your role: " (text(&server.role)) } @else { "none are configured" } }
            dt { "Requests in progress" } dd { (volatile(&html! { (number(server.requests)) })) }
            @for (port, ConnectionsReply { now, most }) in connections {
                dt { "Connections of the " (port) " port" } dd { (volatile(&of_most(html! { (number(*now)) }, html! { (number(*most)) }))) }
            }
            dt { "Waiting consumers" } dd { (number(server.waiting)) }
            dt { "Slots that they use" } dd { (of_most(html! { (number(server.waiting_places)) }, html! { (number(most.waiting as u64)) })) }
            dt { "Memory of large bodies" } dd { (of_most(html! { (size(server.body_bytes)) }, html! { (size(most.body_bytes as u64)) " each for requests and responses" })) }
            dt { "Memory of the process" } dd { (volatile(&html! { (size(process.memory_bytes)) })) }
            dt { "CPU time since the start" } dd { (volatile(&html! { (duration(process.cpu_seconds as f64)) })) }
            dt { "Open files" } dd { (volatile(&of_most(html! { (number(process.open_files)) }, html! { (number(process.most_files)) }))) }
            dt { "History: bytes" } dd { (size(history.bytes as u64)) }
            dt { "History: queues" } dd { (number(history.histories as u64)) }
            dt { "History: queues dropped" } dd { (number(history.lost_days)) }
            dt { "Access log" } dd { @if server.access_log { "on" } @else { "off" } }
        }
        @if visit.may_change() {
            form method="post" action=(here) {
                @if server.access_log { button type="submit" name="do" value="log-off" { "Access log off" } }
                @else { button type="submit" name="do" value="log-on" { "Access log on" } }
            }
            (curl(visit, "POST", "/accesslog?status=enable", None))
        }
    }
}

/// Labels of store statistics, by their names in the JSON.
const TOLD: [(&str, &str); 6] = [
    ("disk_bytes", "Bytes on the disk"),
    ("disk_journals", "Journals"),
    ("disk_quarantined_jobs", "Quarantined jobs"),
    ("used_mem_bytes", "Memory of the Redis"),
    ("max_mem_bytes", "Memory limit of the Redis"),
    ("connections", "Connections of the Redis"),
];
/// Free space on a disk.
const ROOM: &str = "disk_free_bytes";

fn of_pool(visit: &Visit, pool: &PoolReply, cluster: Option<&Said<ClusterReply>>) -> Markup {
    let others = || {
        pool.figures
            .iter()
            .filter(|(name, _)| name.as_str() != ROOM && TOLD.iter().all(|(told, _)| *told != name.as_str()))
    };
    html! {
        h2 { "Pool " (text(&pool.pool)) }
        @if let Some(why) = &pool.trouble {
            p.trouble { "Its store does not answer: " (text(why)) @if let Some(since) = pool.trouble_since { ", since " (visit.zone.at(since)) } }
        } @else if let Some(since) = pool.full_since {
            p.trouble { "Its store is full, since " (visit.zone.at(since)) ": publishes are refused." }
        } @else if !pool.up { p.trouble { "Requests to it fail." } }
        dl.facts {
            dt { "Kind" } dd { (text(&pool.about.kind)) }
            dt { "Address" } dd { (text(&pool.about.address)) }
            @if let Some(to) = &pool.about.migrates_to { dt { "Migrates to" } dd { (text(to)) } }
            dt { "Health" } dd { @if pool.up && pool.trouble.is_none() { span.badge.good { "up" } } @else { span.badge.bad { "unavailable" } } }
            @if let Some(free) = pool.figures.get(ROOM) {
                dt { "Free disk space" }
                dd {
                    (volatile(&html! { (size(free.max(0.0) as u64)) }))
                    @if let Some(least) = pool.about.min_free_disk { "; below MinFreeDisk, " (size(least)) ", publishes are refused" }
                }
            }
            @for (name, words) in TOLD {
                @if let Some(n) = pool.figures.get(name) { dt { (words) } dd { (volatile(&amount(name, *n))) } }
            }
            @if pool.about.kind == "disk" { dt { "Syncs" } dd { (volatile(&took(pool.sync.as_ref()))) } }
            dt { "Lateness" } dd { (volatile(&took(pool.lateness.as_ref()))) }
            dt { "Outages since the start" } dd { (number(pool.outages)) }
            dt { "Queues" } dd { (number(pool.queues)) }
            dt { "Delayed and running jobs" } dd { (number(pool.timers)) }
            @if let Some(late) = pool.overdue { dt { "Oldest overdue job" } dd { (volatile(&html! { (duration(late)) })) } }
            @if let Some(at) = pool.sampled_at { dt { "Read" } dd { (volatile(&visit.zone.at(at))) } }
        }
        @match cluster {
            Some(Ok(cluster)) => (nodes(visit, pool, cluster)),
            Some(Err(refusal)) => { p.trouble { "The nodes are not known: " (text(&refusal.text)) } }
            None => {}
        }
        @if others().next().is_some() {
            details {
                summary { "Statistics of the store" }
                dl.facts { @for (name, n) in others() { dt { (words(name)) } dd { (volatile(&amount(name, *n))) } } }
            }
        }
    }
}

fn nodes(visit: &Visit, pool: &PoolReply, cluster: &ClusterReply) -> Markup {
    let unsaid = || unknown("the node does not report it");
    html! {
        @for (parts, words) in [(&cluster.away, "unavailable"), (&cluster.moving, "moving to another node"), (&cluster.split, "on two nodes")] {
            @if !parts.is_empty() { p.trouble { "Of " (number(cluster.partitions.into())) " partitions " (number(parts.len() as u64)) " are " (words) "." } }
        }
        div.scroll role="region" aria-label=(format!("Nodes of pool {}", pool.pool)) tabindex="0" {
            table.jobs {
                caption { "Nodes" }
                thead { tr { @for name in ["Node", "Health", "Since", "Partitions", "Replicas", "Memory", "Clock", "Version"] { th scope="col" { (name) } } } }
                tbody { @for node in &cluster.nodes { tr data-key=(node.addr) {
                    th scope="row" { (text(&node.addr)) }
                    td { @if node.up { span.badge.good { "up" } } @else { span.badge.bad { "unavailable" } } }
                    td { (visit.zone.when(node.since)) }
                    td { (number(node.partitions.into())) }
                    td { @match node.replicas { Some(n) => (number(n)), None => (unsaid()) } }
                    td { @match node.used_memory { Some(n) => (volatile(&html! { (size(n)) })), None => (unsaid()) } }
                    td { @match node.clock_ms { Some(ms) => (volatile(&html! { (ms) " ms" })), None => (unsaid()) } }
                    td { @match &node.version { Some(version) => (text(version)), None => (unsaid()) } }
                } } }
            }
        }
    }
}

impl ServersReply {
    pub fn is_several(&self) -> bool {
        self.servers.len() > 1
    }
}

/// Shows the servers that share the tokens, with their sums.
pub fn servers(visit: &Visit, fleet: &ServersReply) -> Markup {
    html! {
        @if let Some(why) = &fleet.trouble { p.trouble { "The store that lists the servers does not answer: " (text(why)) } }
        @if fleet.versions_differ { p.note { "The servers run different versions." } }
        div.scroll role="region" aria-label="Servers" tabindex="0" {
            table.jobs {
                caption { "Servers: in " (rate(fleet.rates.entered)) "/s, out " (rate(fleet.rates.out)) "/s, " (number(fleet.waiting)) " consumers wait" }
                thead { tr { @for name in ["Server", "Version", "Started", "Ready", "In/s", "Out/s", "Waiting"] { th scope="col" { (name) } } } }
                tbody { @for line in &fleet.servers { tr data-key=(line.name) {
                    th scope="row" { @match line.admin_url.as_deref().filter(|url| is_web(url)) {
                        Some(url) => { a href=(format!("{}/ui/", url.trim_end_matches('/'))) rel="noreferrer" { (text(&line.name)) } }
                        None => (text(&line.name)),
                    } }
                    td { (text(&line.version)) }
                    td { (visit.zone.when(line.started)) }
                    td { @if line.ready { span.badge.good { "ready" } } @else { span.badge.bad { "not ready" } } }
                    td { (rate(line.rates.entered)) }
                    td { (rate(line.rates.out)) }
                    td { (number(line.waiting)) }
                } } }
            }
        }
    }
}

/// Whether the address that another server publishes of itself is safe as a link.
fn is_web(url: &str) -> bool {
    url.starts_with("https://") || url.starts_with("http://")
}

fn changes(visit: &Visit, changes: &[ChangeReply]) -> Markup {
    html! {
        h2 { "Changes" }
        p.hint { "The last " (changes.len()) " made through this server, the newest first. The log has all of them." }
        @if !changes.is_empty() {
            div.scroll role="region" aria-label="Changes by operators" tabindex="0" {
                table.jobs.wrap {
                    caption { "Changes by operators" }
                    thead { tr { @for name in ["When", "By", "Action", "Target"] { th scope="col" { (name) } } } }
                    tbody { @for change in changes { tr {
                        td { (visit.zone.when(change.at)) }
                        td { (text(&change.by)) }
                        td { (text(&change.action)) }
                        td { @if visit.many_pools() { (text(&change.pool)) " " } (cut(&change.of)) }
                    } } }
                }
            }
        }
    }
}
