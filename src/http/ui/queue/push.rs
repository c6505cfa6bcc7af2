//! The push setting of a queue, and its results.

use axum::extract::Path;
use axum::http::{Method, StatusCode};
use axum::response::Response;
use maud::{Markup, html};
use serde_json::{Map, Value};

use crate::http::ui::page::ask::{Refusal, Said, Sent, part};
use crate::http::ui::page::form::{Fields, Filled};
use crate::http::ui::page::frame::{Page, curl, curls};
use crate::http::ui::page::instant::instant;
use crate::http::ui::page::rows::trail;
use crate::http::ui::page::sure::{Sure, page as asks};
use crate::http::ui::page::text::{count, cut, number, text, unknown, visible, visible_lines};
use crate::http::ui::page::visit::{PoolQueue, Visit};
use crate::random;

/// Fields of a reply that belong to the setting, besides its URL.
const SETTING: [&str; 10] =
    ["method", "headers", "timeout", "concurrency", "rate", "per", "retry", "ok_when", "format", "on_dead"];

/// Returns a route of the queue's push.
pub fn push_route(place: &PoolQueue, rest: &str) -> String {
    let [pool, namespace, queue] = [&place.pool, &place.namespace, &place.queue].map(|name| part(name));
    format!("/push/{namespace}/{queue}{rest}?pool={pool}")
}

/// `GET /ui/push/:pool/:namespace/:queue`
pub async fn show(visit: Visit, Path(place): Path<PoolQueue>) -> Response {
    let page = match visit.fields.get("ask") {
        Some(ask) => asking(&visit, &place, ask),
        None => page(&visit, &place).await,
    };
    visit.answer(page)
}

/// `POST /ui/push/:pool/:namespace/:queue`
pub async fn change(mut visit: Visit, Path(place): Path<PoolQueue>, Filled(form): Filled) -> Response {
    match act(&visit, &place, &form).await {
        Ok(Done::Said(code)) => visit.done(code),
        // Neither can be shown again.
        Ok(Done::Once(title, markup)) => {
            let page = Page::new(
                format!("{title} of {}", place.name()),
                "Queues",
                html! {
                    h1 { (title) }
                    div data-once="1" { (markup) }
                    p { a.button href=(visit.fields.link(&[])) { "Back" } }
                },
            );
            visit.answer(Ok(page.under(trail(&visit, &place))))
        }
        Err(refusal) => {
            visit.refuse(refusal, form);
            let page = page(&visit, &place).await;
            visit.answer(page)
        }
    }
}

enum Done {
    Said(&'static str),
    Once(&'static str, Markup),
}

async fn act(visit: &Visit, place: &PoolQueue, form: &Fields) -> Said<Done> {
    let sure = form.get("sure") == Some("yes");
    let post =
        async |rest: &str| visit.ask.change(Method::POST, &push_route(place, rest), Sent::Nothing).await;
    Ok(match form.or_empty("do") {
        "save" => {
            let sent = Sent::Json(setting(form)?);
            let said = visit.ask.change(Method::PUT, &push_route(place, ""), sent).await?;
            match said["secret"].as_str() {
                Some(secret) => {
                    Done::Once("Push is set", shown_once("The secret that requests are signed with", secret))
                }
                None => Done::Said("saved"),
            }
        }
        "pause" => post("/pause").await.map(|_| Done::Said("push-paused"))?,
        "resume" => post("/resume").await.map(|_| Done::Said("push-resumed"))?,
        "test" => tested(&post("/test").await?),
        "secret" if sure => {
            // Submitted twice, the second secret would replace the first.
            if !visit.ui.is_first(form.or_empty("mark")) {
                return Ok(Done::Said("before"));
            }
            let said = post("/secret").await?;
            let secret = said["secret"].as_str().unwrap_or_default();
            Done::Once(
                "New secret",
                html! {
                    (shown_once("The new secret", secret))
                    p { "Requests are signed with the old one too for 24 hours." }
                },
            )
        }
        "off" if sure => {
            visit.ask.change(Method::DELETE, &push_route(place, ""), Sent::Nothing).await?;
            Done::Said("push-off")
        }
        _ => return Err(Refusal::bad("the form does not say what to do")),
    })
}

/// Shows a secret, for this one time.
pub fn shown_once(what: &str, secret: &str) -> Markup {
    html! {
        p { (what) ". It is shown this once:" }
        pre #once tabindex="0" { code { (visible(secret)) } }
        p { button.copy type="button" data-copy="once" hidden { "Copy" } }
    }
}

fn tested(said: &Value) -> Done {
    let answer = said["answer"].as_str();
    Done::Once(
        "Test request",
        html! {
            @if said["ok"] == true { p.done { "The endpoint accepted the request." } }
            @else { p.trouble { "The endpoint did not accept the request: " (text(said["reason"].as_str().unwrap_or("no reason"))) } }
            dl.facts {
                dt { "Status" }
                dd { @match said["status"].as_u64() { Some(status) => { (status) } None => { (unknown("no response")) } } }
                dt { "Took" } dd { (said["milliseconds"].as_u64().unwrap_or(0)) " ms" }
                @if let Some(answer) = answer { dt { "Answer" } dd.text { (text(answer)) } }
            }
        },
    )
}

/// Returns the setting in a form: its URL, and the rest as JSON.
fn setting(form: &Fields) -> Said<Value> {
    let rest = form.get("setting").map_or("{}", str::trim);
    let rest: Value = serde_json::from_str(rest)
        .map_err(|error| Refusal::bad(format!("the other settings are not JSON: {error}")))?;
    let Value::Object(mut all) = rest else {
        return Err(Refusal::bad("the other settings should be a JSON object"));
    };
    all.insert("url".into(), form.or_empty("url").trim().into());
    Ok(all.into())
}

fn asking(visit: &Visit, place: &PoolQueue, ask: &str) -> Said<Page> {
    let (title, what, button) = match ask {
        "secret" => (
            "New secret",
            "Requests are signed with a new secret from now on, and for 24 hours with the old one too. An earlier one stops working at once.",
            "New secret",
        ),
        "off" => (
            "Turn push off",
            "Jobs of the queue are no longer sent. The secret, the counts and the attempts are deleted; the jobs stay.",
            "Turn push off",
        ),
        _ => return Err(Refusal::bad("invalid ask: unknown question")),
    };
    let mark = random::ulid().to_string();
    Ok(asks(
        visit,
        trail(visit, place),
        "Queues",
        Sure {
            title: format!("{title} of {}", place.name()),
            what: html! { p { (what) } },
            hidden: vec![("do", ask), ("mark", &mark)],
            more: html! {},
            button,
            curl: match ask {
                "secret" => curl(visit, "POST", &push_route(place, "/secret"), None),
                _ => curl(visit, "DELETE", &push_route(place, ""), None),
            },
        },
    ))
}

async fn page(visit: &Visit, place: &PoolQueue) -> Said<Page> {
    let push = match visit.ask.get::<Value>(push_route(place, "")).await {
        Ok(push) => Some(push),
        Err(refusal) if refusal.status == StatusCode::NOT_FOUND => None,
        Err(refusal) => return Err(refusal),
    };
    let body = html! {
        h1 { "Push of " (text(&place.name())) }
        @match &push {
            Some(push) => { (state(visit, push)) (actions(visit, place, push)) (form(visit, place, Some(push))) (attempts(visit, place, push)) }
            None => {
                p { "The queue is not pushed: workers fetch its jobs." }
                (form(visit, place, None))
            }
        }
    };
    let page = Page::new(format!("Push of {}", place.name()), "Queues", body);
    Ok(page.under(trail(visit, place)))
}

/// Shows the state of push as a badge, with the duration of an outage of the endpoint.
pub fn badge(visit: &Visit, push: &Value) -> Markup {
    let state = push["state"].as_str().unwrap_or("–");
    let since = instant(&push["since"]);
    html! {
        @match state {
            "open" => {
                span.badge.push {
                    "failing: no response"
                    @if let Some(at) = since { " for " (visit.zone.age(at.0)) }
                }
            }
            "on" => { span.badge.on { "on" } }
            other => { span.badge.warn { (text(other)) } }
        }
    }
}

fn state(visit: &Visit, push: &Value) -> Markup {
    let figure = |name: &str| push["counts"][name].as_u64().map_or("–".into(), number);
    html! {
        dl.facts {
            dt { "State" }
            dd { (badge(visit, push)) @if let Some(why) = push["why"].as_str() { " " (cut(why)) } }
            @if let Some(since) = instant(&push["since"]) { dt { "Since" } dd { (visit.zone.at(since)) } }
            dt { "URL" } dd { (text(push["url"].as_str().unwrap_or("–"))) }
        }
        dl.figures {
            @for (name, words) in [("delivered", "Delivered"), ("failed", "Failed"), ("dead", "Died"), ("in_flight", "In flight")] {
                div { dt { (words) } dd { (figure(name)) } }
            }
        }
    }
}

fn actions(visit: &Visit, place: &PoolQueue, push: &Value) -> Markup {
    if !visit.may_change() {
        return html! {};
    }
    let is_held = push["state"] == "paused" || push["state"] == "off";
    let switch = if is_held { "/resume" } else { "/pause" };
    let posts = [switch, "/test", "/secret"].map(|rest| ("POST", push_route(place, rest), None));
    let off = ("DELETE", push_route(place, ""), None);
    html! {
        form.actions method="post" action=(visit.fields.link(&[])) {
            @if is_held {
                button type="submit" name="do" value="resume" { "Resume push" }
            } @else {
                button type="submit" name="do" value="pause" { "Pause push" }
            }
            button type="submit" name="do" value="test" { "Send a test request" }
            button type="submit" name="ask" value="secret" formmethod="get" { "New secret" }
            button.danger type="submit" name="ask" value="off" formmethod="get" { "Turn push off" }
        }
        (curls(visit, &posts.into_iter().chain([off]).collect::<Vec<_>>()))
    }
}

fn form(visit: &Visit, place: &PoolQueue, push: Option<&Value>) -> Markup {
    let rest: Map<String, Value> = SETTING
        .iter()
        .filter_map(|name| {
            Some(((*name).to_owned(), push?.get(name).filter(|value| !value.is_null())?.clone()))
        })
        .collect();
    let headers = rest.contains_key("headers");
    let usual = serde_json::to_string_pretty(&rest).unwrap_or_default();
    let url = push.and_then(|push| push["url"].as_str()).unwrap_or_default();
    if !visit.may_change() {
        return html! { h2 { "Setting" } pre tabindex="0" { code { (visible_lines(&usual)) } } };
    }
    html! {
        h2 { "Setting" }
        form.fill method="post" action=(visit.fields.link(&[])) {
            label for="url" { "URL" }
            input #url name="url" value=(visit.typed("url", url)) required autocomplete="off" spellcheck="false";
            label for="setting" { "Other settings, as JSON" }
            textarea #setting name="setting" rows="8" spellcheck="false" { "\n" (visit.typed("setting", &usual)) }
            @if headers { p.wide.note { "The values of headers are not shown: enter them again, or leave out the headers." } }
            div.wide { button.primary type="submit" name="do" value="save" { "Save" } }
        }
        (curl(visit, "PUT", &push_route(place, ""), Some("{\"url\":\"https://shop.example/jobs\"}")))
    }
}

/// Returns the last attempts, newest first, with `of` only of that job.
pub fn attempts_of<'a>(push: &'a Value, of: Option<&str>) -> Vec<&'a Value> {
    let all = push["attempts"].as_array().map(Vec::as_slice).unwrap_or_default();
    all.iter().filter(|attempt| of.is_none_or(|id| attempt["job_id"] == id)).collect()
}

fn attempts(visit: &Visit, place: &PoolQueue, push: &Value) -> Markup {
    let all = attempts_of(push, None);
    html! {
        h2 { "Attempts" }
        @if all.is_empty() { p.hint { "There has been no attempt yet." } } @else {
            p.hint { "The last " (count(all.len() as u64, "attempt", "attempts")) ", the newest first." }
            (table(visit, place, &all))
        }
    }
}

/// Shows attempts in a table.
pub fn table(visit: &Visit, place: &PoolQueue, all: &[&Value]) -> Markup {
    html! {
        div.scroll role="region" aria-label="Attempts" tabindex="0" {
            table.jobs.wrap {
                caption { "Attempts" }
                thead { tr { @for name in ["Time", "Job", "Status", "Took", "Answer"] { th scope="col" { (name) } } } }
                tbody { @for attempt in all { tr {
                    td { @if let Some(at) = instant(&attempt["time"]) { (visit.zone.when(at)) } }
                    td.id { @if let Some(id) = attempt["job_id"].as_str() {
                        a href=(visit.to(&format!("jobs/{}/{}", place.path(), part(id)))) title=(visible(id)) { (text(id)) }
                    } }
                    td { @match attempt["status"].as_u64() { Some(status) => { (status) } None => { (unknown("no response")) } } }
                    td.n { (attempt["milliseconds"].as_u64().unwrap_or(0)) " ms" }
                    td { (cut(attempt["answer"].as_str().unwrap_or_default())) }
                } } }
            }
        }
    }
}
