//! The frame of all pages: navigation, account, and age of the displayed data.

use axum::http::StatusCode;
use axum::response::Response;
use maud::{DOCTYPE, Markup, html};

use super::answer;
use super::ask::{Refusal, Said};
use super::assets::Assets;
use super::text::{count, duration, text, typed, volatile};
use super::visit::Visit;
use crate::clock::Millis;
use crate::process::version::Build;
use crate::time::Instant;

/// A page without its frame.
pub struct Page {
    pub status: StatusCode,
    /// Names the page and its queue.
    pub title: String,
    /// Breadcrumbs, from the overview on.
    pub trail: Vec<(String, Markup)>,
    /// Time of the displayed data; `None` if it was read for this page.
    pub read_at: Option<Millis>,
    /// Interval between readings in seconds, if longer than usual.
    pub read_each: Option<f64>,
    /// The page's [`Visit::basis`]; `None` if unknown before rendering.
    pub basis: Option<u64>,
    /// Entry of the navigation that is highlighted.
    pub nav: &'static str,
    pub body: Markup,
}

impl Page {
    pub fn new(title: impl Into<String>, nav: &'static str, body: Markup) -> Page {
        let (status, trail) = (StatusCode::OK, Vec::new());
        Page { status, title: title.into(), trail, read_at: None, read_each: None, basis: None, nav, body }
    }

    /// Adds the breadcrumbs.
    pub fn under(self, trail: Vec<(String, Markup)>) -> Page {
        Page { trail, ..self }
    }
}

/// Entries of the navigation, with their paths.
const NAV: &[(&str, &str)] = &[
    ("Overview", ""),
    ("Queues", "queues"),
    ("Dead", "dead"),
    ("Schedules", "schedules"),
    ("Bulk actions", "bulk"),
    ("Server", "server"),
];

impl Visit {
    /// Like [`answer`](Visit::answer), for pages whose [`basis`](Visit::basis) is known before rendering: replies 304
    /// without rendering if the browser has the page of that basis.
    pub async fn answer_if_new(&self, make: impl AsyncFnOnce(Option<u64>) -> Said<Page>) -> Response {
        let basis = self.basis();
        let unchanged = basis.and_then(|basis| answer::unchanged(basis, &self.headers));
        match unchanged {
            Some(unchanged) => unchanged,
            None => self.answer(make(basis).await),
        }
    }

    /// Creates the response: the page, or the error.
    pub fn answer(&self, page: Said<Page>) -> Response {
        let (status, page) = match page {
            Ok(page) => (page.status, page),
            Err(refusal) => (refusal.status, refusal_page(&refusal)),
        };
        let status = self.refused.as_ref().map_or(status, |(refusal, _)| refusal.status);
        let basis = page.basis;
        let mut response = answer::page(status, &render(self, page).0, basis, &self.headers);
        self.carry(&mut response);
        response
    }
}

/// Creates an error page.
fn refusal_page(refusal: &Refusal) -> Page {
    let Refusal { status, text: why } = refusal;
    let title = match status.as_u16() {
        404 => "Not found",
        403 => "Not allowed",
        400..=499 => "That cannot be done",
        _ => "That did not work",
    };
    let body = html! {
        h1 { (title) }
        p.trouble { (text(why)) " " span.status { "(" (status.as_u16()) ")" } }
    };
    Page { status: *status, ..Page::new(title, "", body) }
}

/// Renders the whole page.
fn render(visit: &Visit, page: Page) -> Markup {
    let [style, script, icon] = Assets::names().map(|name| visit.to(&format!("assets/{name}")));
    html! {
        (DOCTYPE)
        html lang="en" data-now=(volatile_number(visit.zone.now)) {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                // Other sites must not learn addresses of pages. But without any referrer browsers omit the origin of
                // this server's own forms, which over plain HTTP is the only evidence of where they come from.
                meta name="referrer" content="same-origin";
                title { (page.title) " – Dormouse" }
                link rel="stylesheet" href=(style);
                link rel="icon" type="image/svg+xml" href=(icon);
                script src=(script) defer {}
            }
            body data-root=(visit.to("")) {
                (top(visit, &page))
                main #content tabindex="-1" {
                    @if visit.state().server.readiness.is_draining() {
                        p.trouble { "This server is stopping: it finishes the requests it has, then exits." }
                    }
                    @if let Some(done) = visit.fields.get("done").and_then(said) {
                        p.done role="status" { (done) }
                    }
                    @if let Some((refusal, _)) = &visit.refused {
                        p.trouble role="alert" { "Not done: " (text(&refusal.text)) }
                    }
                    (page.body)
                }
                (bottom(visit, &page))
            }
        }
    }
}

/// Renders the top of a page: the navigation.
fn top(visit: &Visit, page: &Page) -> Markup {
    html! {
        a.skip href="#content" { "Skip to content" }
        div.bar { header.top {
            a.brand href=(visit.to("")) { "Dormouse" }
            nav aria-label="Pages" {
                ul {
                    @for (name, to) in NAV {
                        li { a href=(visit.to(to)) aria-current=[(page.nav == *name).then_some("page")] { (name) } }
                    }
                }
            }
            form.search role="search" method="get" action=(visit.to("search")) {
                label for="search" { "Search" }
                input #search type="search" name="q" value=(typed(search_text(visit)))
                    placeholder="queue, key, job id or text" autocomplete="off" spellcheck="false";
            }
        } }
        @if !page.trail.is_empty() {
            nav.trail aria-label="Where you are" {
                ol {
                    @for (to, name) in &page.trail { li { a href=(to) { (name) } } }
                }
            }
        }
    }
}

/// Renders the bottom of a page: age of the data, account, zone.
fn bottom(visit: &Visit, page: &Page) -> Markup {
    let version = Build::current().version;
    html! {
        footer.bottom {
            p {
                "Server " b { (text(&visit.state().server.name)) } ", version " (version) ". "
                @match page.read_at {
                    Some(at) => { span.read { "Statistics from " (volatile(&visit.zone.ago(at))) ". " } }
                    None => { span.read { "Read " (volatile(&visit.zone.at(Instant(visit.zone.now)))) ". " } }
                }
                @if let Some(each) = page.read_each {
                    span.each { "Reading the stores takes long, so it is done every " (duration(each)) ". " }
                }
                // The script shows it.
                span.gone { "The server does not respond. " }
                a.refresh href=(visit.fields.link(&[])) { "Refresh" }
                span.live hidden { " " label { input type="checkbox" data-live="1"; " Live" } }
            }
            p { (who(visit)) }
            form.zone method="post" action=(visit.to("zone")) {
                input type="hidden" name="back" value=(asked_again(visit, "back", &visit.here));
                label for="zone" { "Zone" }
                input #zone name="tz" value=(asked_again(visit, "tz", &visit.zone.name)) size="18" autocomplete="off" spellcheck="false";
                button type="submit" { "Set" }
            }
            p.keys hidden {
                label { input type="checkbox" data-keys="1"; " Keys" }
                ": " kbd { "/" } " search, " kbd { "?" } " help, " kbd { "g" } " " kbd { "o" } " overview, "
                kbd { "g" } " " kbd { "q" } " queues, " kbd { "g" } " " kbd { "d" } " dead"
            }
        }
    }
}

/// Formats a number that changes every second.
fn volatile_number(n: u64) -> String {
    volatile(&html! { (n) }).0
}

/// Returns the value of a zone field in a rejected form, or else the usual value.
fn asked_again(visit: &Visit, name: &str, usual: &str) -> String {
    let sent = visit.refused.as_ref().and_then(|(_, fields)| fields.get(name));
    sent.map_or_else(|| usual.to_owned(), typed)
}

fn search_text(visit: &Visit) -> &str {
    if visit.here.starts_with("search") { visit.fields.or_empty("q") } else { "" }
}

/// Shows the account and its role.
fn who(visit: &Visit) -> Markup {
    html! {
        @match visit.ask.account() {
            Some(account) if visit.may_change() => { "Account " b { (text(account)) } ", an operator." }
            Some(account) => { "Account " b { (text(account)) } ", read-only." }
            None => { "No accounts are configured: anyone who can reach this port may do everything." }
        }
    }
}

/// Returns the message about a completed action. The query contains only its code, so that no link can make a page
/// show other text.
fn said(code: &str) -> Option<String> {
    let (code, n) = code.split_once('.').unwrap_or((code, ""));
    let n = || n.parse::<u64>().ok();
    Some(match code {
        "paused" => "The queue is paused.".into(),
        "resumed" => "The queue is resumed.".into(),
        "published" => "The job is published.".into(),
        "kept" => "A job has this key already: nothing was published.".into(),
        "respawned" => format!("{} respawned.", count(n()?, "job was", "jobs were")),
        "cancelled" => format!("{} cancelled.", count(n()?, "job was", "jobs were")),
        "promoted" => format!("{} due now.", count(n()?, "job is", "jobs are")),
        "removed" => format!("{} deleted.", count(n()?, "job was", "jobs were")),
        "deleted" => "The dead jobs were deleted.".into(),
        "destroyed" => "The jobs are destroyed.".into(),
        "begun" => "The action has started, and continues when you close this page.".into(),
        "stopped" => "The action stops after its current step.".into(),
        "none" => "No job was selected: nothing was done.".into(),
        "saved" => "The setting is saved.".into(),
        "schedule-saved" => "The schedule is saved.".into(),
        "push-paused" => "Push is paused.".into(),
        "push-resumed" => "Push is resumed.".into(),
        "push-off" => "Push is off.".into(),
        "schedule-paused" => "The schedule is paused.".into(),
        "schedule-resumed" => "The schedule is resumed.".into(),
        "schedule-run" => "The schedule has published a job.".into(),
        "schedule-deleted" => "The schedule is deleted.".into(),
        "revoked" => "The token is revoked.".into(),
        "limited" => "The limit is set.".into(),
        "unlimited" => "The limit is removed.".into(),
        "log-on" => "The access log is on.".into(),
        "log-off" => "The access log is off.".into(),
        "before" => "This form was sent before: nothing was done again.".into(),
        _ => return None,
    })
}

/// Placeholder for a token in a path: the token is not shown, but known to the shell.
pub const TOKEN: &str = "{TOKEN}";

/// A command for the JSON routes: method, path and body.
pub type Command<'a> = (&'a str, String, Option<&'a str>);

/// Shows the equivalent command for the JSON routes.
pub fn curl(visit: &Visit, method: &str, path: &str, body: Option<&str>) -> Markup {
    curls(visit, &[(method, path.to_owned(), body)])
}

/// Shows the commands equivalent to the adjacent buttons, in their order.
pub fn curls(visit: &Visit, commands: &[Command<'_>]) -> Markup {
    let lines: Vec<String> = commands.iter().map(|command| command_line(visit, command)).collect();
    html! {
        details.curl {
            summary { "As curl" }
            pre tabindex="0" { code { (super::text::visible_lines(&lines.join("\n"))) } }
        }
    }
}

/// Formats a command for a shell.
pub fn command_line(visit: &Visit, (method, path, body): &Command<'_>) -> String {
    let auth = if visit.state().accounts.operators.is_empty() { "" } else { " -u \"$DORMOUSE_ADMIN_AUTH\"" };
    let method = if *method == "GET" { String::new() } else { format!(" -X {method}") };
    let quoted = |text: &str| text.replace('\'', "'\\''");
    let path = quoted(path).replace(TOKEN, "'\"$TOKEN\"'");
    let body = body.map_or(String::new(), |body| format!(" -d '{}'", quoted(body).replace('\n', " ")));
    format!("curl{auth}{method} '{}{path}'{body}", visit.base())
}
