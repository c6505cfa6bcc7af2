//! The server: what it stands on, what it holds against its bounds, its pools, what operators changed, and the others of
//! its fleet.

use std::collections::BTreeMap;

use axum::http::Method;
use axum::response::Response;
use maud::{Markup, html};
use serde::Deserialize;
use serde_json::Value;

use super::ask::{Refusal, Said, Sent};
use super::form::Filled;
use super::frame::{Page, curl};
use super::instant::At;
use super::text::{cut, duration, number, rate, size, text};
use super::visit::Visit;

/// What `GET /server` answers.
#[derive(Deserialize)]
struct Server {
    server: String,
    version: String,
    build_commit: String,
    started: At,
    config_file: Option<String>,
    admin_url: Option<String>,
    zone_database: String,
    ready: bool,
    access_log: bool,
    most: BTreeMap<String, Value>,
    requests: u64,
    waiting: u64,
    history: Value,
    pools: Vec<Pool>,
    changes: Vec<Change>,
}

#[derive(Deserialize)]
struct Pool {
    pool: String,
    up: bool,
    outages: u64,
    sampled_at: Option<At>,
    trouble: Option<String>,
    trouble_since: Option<At>,
    queues: u64,
    timers: u64,
    overdue: Option<f64>,
    figures: BTreeMap<String, f64>,
    /// Its kind, where it is, and what else is configured.
    #[serde(flatten)]
    about: BTreeMap<String, Value>,
}

#[derive(Deserialize)]
struct Change {
    at: At,
    by: String,
    action: String,
    pool: String,
    of: String,
}

/// What `GET /servers` answers.
#[derive(Deserialize)]
pub struct Fleet {
    trouble: Option<String>,
    versions_differ: bool,
    #[serde(rename = "in")]
    entered: f64,
    out: f64,
    waiting: u64,
    servers: Vec<Line>,
}

#[derive(Deserialize)]
struct Line {
    name: String,
    version: String,
    started: At,
    admin_url: Option<String>,
    ready: bool,
    #[serde(rename = "in")]
    entered: f64,
    out: f64,
    waiting: u64,
}

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
    let (server, fleet) =
        tokio::join!(visit.ask.get::<Server>("/server"), visit.ask.get::<Fleet>("/servers"));
    let server = server?;
    let body = html! {
        h1 { "Server " (text(&server.server)) }
        (facts(visit, &server))
        @for pool in &server.pools { (of_pool(visit, pool)) }
        h2 { "Servers" }
        @match &fleet {
            Ok(fleet) => { (servers(visit, fleet)) }
            Err(refusal) => { p.trouble { "The others are not known now: " (text(&refusal.text)) } }
        }
        (changes(visit, &server.changes))
    };
    Ok(Page::new("Server", "Server", body))
}

/// A figure by the name that it has in the JSON.
fn figure(name: &str, value: &Value) -> Markup {
    match value {
        Value::Null => super::text::unknown("the server does not know it"),
        Value::Bool(is) => html! { @if *is { "yes" } @else { "no" } },
        Value::Number(n) => amount(name, n.as_f64().unwrap_or_default()),
        Value::String(said) => cut(said),
        other => cut(&other.to_string()),
    }
}

/// What ends in bytes or seconds is said so.
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

fn facts(visit: &Visit, server: &Server) -> Markup {
    let here = visit.fields.link(&[]);
    html! {
        dl.facts {
            dt { "Version" } dd { (text(&server.version)) " (" (text(&server.build_commit)) ")" }
            dt { "Started" } dd { (visit.zone.at(server.started)) }
            dt { "Configuration" } dd { @match &server.config_file { Some(file) => (text(file)), None => "none: variables and defaults" } }
            dt { "AdminUrl" } dd { @match &server.admin_url { Some(url) => (text(url)), None => "not set" } }
            dt { "Zone database" } dd { (text(&server.zone_database)) }
            dt { "Ready" } dd { @if server.ready { "yes" } @else { "no" } }
            dt { "Requests under way" } dd { (number(server.requests)) }
            dt { "Waiting consumers" } dd { (number(server.waiting)) }
            @for (name, value) in &server.most { dt { "At most: " (words(name)) } dd { (figure(name, value)) } }
            @if let Value::Object(history) = &server.history {
                @for (name, value) in history { dt { "History: " (words(name)) } dd { (figure(name, value)) } }
            }
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

fn of_pool(visit: &Visit, pool: &Pool) -> Markup {
    html! {
        h2 { "Pool " (text(&pool.pool)) }
        @if let Some(why) = &pool.trouble {
            p.trouble { "Its store does not answer: " (text(why)) @if let Some(since) = pool.trouble_since { ", since " (visit.zone.at(since)) } }
        } @else if !pool.up { p.trouble { "Requests to it fail." } }
        dl.facts {
            @for (name, value) in &pool.about { @if !value.is_null() { dt { (words(name)) } dd { (figure(name, value)) } } }
            dt { "Outages since the start" } dd { (number(pool.outages)) }
            dt { "Queues" } dd { (number(pool.queues)) }
            dt { "Delayed and running jobs" } dd { (number(pool.timers)) }
            @if let Some(late) = pool.overdue { dt { "The earliest is late by" } dd { (super::text::volatile(&html! { (duration(late)) })) } }
            @if let Some(at) = pool.sampled_at { dt { "Read" } dd { (super::text::volatile(&visit.zone.at(at))) } }
        }
        @if !pool.figures.is_empty() {
            details {
                summary { "Figures of the store" }
                dl.facts { @for (name, n) in &pool.figures { dt { (words(name)) } dd { (super::text::volatile(&amount(name, *n))) } } }
            }
        }
    }
}

impl Fleet {
    pub fn is_several(&self) -> bool {
        self.servers.len() > 1
    }
}

/// The servers that share the tokens, with their sums.
pub fn servers(visit: &Visit, fleet: &Fleet) -> Markup {
    html! {
        @if let Some(why) = &fleet.trouble { p.trouble { "The store that the servers tell of themselves in does not answer: " (text(why)) } }
        @if fleet.versions_differ { p.note { "The servers are not all of one version." } }
        div.scroll role="region" aria-label="Servers" tabindex="0" {
            table.jobs {
                caption { "Servers: in " (rate(fleet.entered)) "/s, out " (rate(fleet.out)) "/s, " (number(fleet.waiting)) " consumers wait" }
                thead { tr { @for name in ["Server", "Version", "Started", "Ready", "In/s", "Out/s", "Waiting"] { th scope="col" { (name) } } } }
                tbody { @for line in &fleet.servers { tr data-key=(line.name) {
                    th scope="row" { @match line.admin_url.as_deref().filter(|url| is_web(url)) {
                        Some(url) => { a href=(format!("{}/ui/", url.trim_end_matches('/'))) rel="noreferrer" { (text(&line.name)) } }
                        None => (text(&line.name)),
                    } }
                    td { (text(&line.version)) }
                    td { (visit.zone.at(line.started)) }
                    td { @if line.ready { "yes" } @else { b { "no" } } }
                    td { (rate(line.entered)) }
                    td { (rate(line.out)) }
                    td { (number(line.waiting)) }
                } } }
            }
        }
    }
}

/// Whether an address that another server says of itself is one that a link may lead to.
fn is_web(url: &str) -> bool {
    url.starts_with("https://") || url.starts_with("http://")
}

fn changes(visit: &Visit, changes: &[Change]) -> Markup {
    html! {
        h2 { "Changes" }
        p { "The last " (changes.len()) " over this server, the newest first. The log has all of them." }
        @if !changes.is_empty() {
            div.scroll role="region" aria-label="Changes by operators" tabindex="0" {
                table.jobs {
                    caption { "Changes by operators" }
                    thead { tr { @for name in ["When", "By", "What", "Of"] { th scope="col" { (name) } } } }
                    tbody { @for change in changes { tr {
                        td { (visit.zone.at(change.at)) }
                        td { (text(&change.by)) }
                        td { (text(&change.action)) }
                        td { @if visit.many_pools() { (text(&change.pool)) " " } (cut(&change.of)) }
                    } } }
                }
            }
        }
    }
}
