//! Creating and editing a schedule: the form shows the next occurrences before it is saved.

use axum::http::Method;
use axum::response::Response;
use maud::{Markup, html};
use serde_json::{Map, Value, json};

use super::page::answer::see_other;
use super::page::ask::{Refusal, Said, Sent, part};
use super::page::form::{Fields, Filled};
use super::page::frame::{Page, curl};
use super::page::instant::instant;
use super::page::text::{text, typed};
use super::page::visit::Visit;

/// Fields of a schedule besides its setting, and settings with their own input.
const NOT_OTHERS: [&str; 18] = [
    "name",
    "queue",
    "cron",
    "zone",
    "text",
    "state",
    "revision",
    "created_at",
    "changed_at",
    "mode",
    "anchor",
    "zones",
    "paused",
    "paused_until",
    "next",
    "counts",
    "last",
    "occurrences",
];

/// `GET /ui/schedules/edit?pool&namespace&name`: without a name, an empty form.
pub async fn show(visit: Visit) -> Response {
    let page = match visit.fields.get("name") {
        None => Ok(page(&visit, &Fields::default(), &Value::Null)),
        Some(_) => existing(&visit).await.map(|(usual, next)| page(&visit, &usual, &next)),
    };
    visit.answer(page)
}

/// `POST /ui/schedules/edit`: saves the schedule, or previews its occurrences.
pub async fn change(mut visit: Visit, Filled(form): Filled) -> Response {
    let saves = form.get("do") == Some("save");
    match put(&visit, &form, !saves).await {
        Ok(_) if saves => {
            let of = |name: &str| part(form.or_empty(name).trim());
            let list =
                format!("schedules?pool={}&namespace={}&done=schedule-saved", of("pool"), of("namespace"));
            let mut response = see_other(&visit.to(&list));
            visit.carry(&mut response);
            response
        }
        Ok(would_be) => {
            let page = page(&visit, &form, &would_be["next"]);
            visit.answer(Ok(page))
        }
        Err(refusal) => {
            visit.refuse(refusal, form);
            let page = page(&visit, &Fields::default(), &Value::Null);
            visit.answer(Ok(page))
        }
    }
}

fn route(of: &Fields) -> String {
    let [pool, namespace, name] = ["pool", "namespace", "name"].map(|field| part(of.or_empty(field).trim()));
    format!("/api/{namespace}/_schedules/{name}?pool={pool}")
}

/// Reads the fields of an existing schedule, and its next occurrences.
async fn existing(visit: &Visit) -> Said<(Fields, Value)> {
    let mut schedule = visit.ask.get::<Value>(route(&visit.fields)).await?;
    let next = schedule["next"].take();
    let told = |name: &str| schedule[name].as_str().unwrap_or_default().to_owned();
    let revision = schedule["revision"].to_string();
    let others: Map<String, Value> = schedule
        .as_object()
        .into_iter()
        .flatten()
        .filter(|(name, value)| !NOT_OTHERS.contains(&&***name) && !value.is_null())
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect();
    let others = serde_json::to_string_pretty(&others).unwrap_or_default();
    let (queue, cron, zone, body) = (told("queue"), told("cron"), told("zone"), told("text"));
    let fields = [
        ("pool", visit.fields.or_empty("pool")),
        ("namespace", visit.fields.or_empty("namespace")),
        ("name", visit.fields.or_empty("name")),
        ("queue", &queue),
        ("cron", &cron),
        ("zone", &zone),
        ("body", &body),
        ("others", &others),
        ("revision", &revision),
    ];
    Ok((Fields::of(fields), next))
}

/// Sets the schedule in a form. `dry`: only previews it.
async fn put(visit: &Visit, form: &Fields, dry: bool) -> Said<Value> {
    for (field, label) in [("namespace", "Namespace"), ("name", "Name")] {
        if form.or_empty(field).trim().is_empty() {
            return Err(Refusal::bad(format!("{label} is empty")));
        }
    }
    let setting = setting(form)?.to_string().into_bytes();
    // A new schedule does not replace an existing one.
    let is_new = form.get("revision").is_none() && !dry;
    let headers = is_new.then(|| ("If-None-Match".to_owned(), b"*".to_vec())).into_iter().collect();
    let path = if dry { format!("{}&dry_run=1", route(form)) } else { route(form) };
    visit.ask.change(Method::PUT, &path, Sent::Job(setting, headers)).await
}

/// Returns the JSON of a schedule.
fn setting(form: &Fields) -> Said<Value> {
    let others = form.get("others").map_or("{}", str::trim);
    let others: Value = serde_json::from_str(others)
        .map_err(|error| Refusal::bad(format!("the other settings are not JSON: {error}")))?;
    let Value::Object(mut all) = others else {
        return Err(Refusal::bad("the other settings should be a JSON object"));
    };
    all.insert("queue".into(), form.or_empty("queue").trim().into());
    for name in ["cron", "zone"] {
        if let Some(value) = form.get(name) {
            all.insert(name.into(), value.trim().into());
        }
    }
    // A body that is not text stays among the other settings.
    let body = form.or_empty("body").replace("\r\n", "\n");
    if !(body.is_empty() && all.contains_key("data")) {
        all.insert("text".into(), body.into());
    }
    if let Some(revision) = form.get("revision").and_then(|revision| revision.parse::<u64>().ok()) {
        all.insert("revision".into(), json!(revision));
    }
    Ok(all.into())
}

/// Creates the form. `usual` has the initial values, `next` the next occurrences.
fn page(visit: &Visit, usual: &Fields, next: &Value) -> Page {
    let value = |name: &str, other: &str| visit.typed(name, usual.get(name).unwrap_or(other));
    let asked = |name: &str| visit.fields.or_empty(name).to_owned();
    let (pool, namespace) = (
        value("pool", visit.fields.get("pool").unwrap_or("default")),
        value("namespace", &asked("namespace")),
    );
    let revision = value("revision", "");
    let is_new = revision.is_empty();
    let title =
        if is_new { "New schedule".to_owned() } else { format!("Edit schedule {}", value("name", "")) };
    let field = |name: &str, label: &str, hint: &str, required: bool| {
        html! {
            label for=(name) { (label) }
            input id=(name) name=(name) value=(value(name, "")) placeholder=(hint) required[required] autocomplete="off" spellcheck="false";
        }
    };
    let body = html! {
        h1 { (title) }
        @if visit.may_change() {
            form.fill method="post" action=(visit.fields.link(&[])) data-asks="1" {
                input type="hidden" name="revision" value=(typed(&revision));
                @if visit.many_pools() && is_new {
                    label for="pool" { "Pool" }
                    select #pool name="pool" { @for name in visit.state().pools.keys() {
                        option value=(name.as_str()) selected[pool == name.as_str()] { (name.as_str()) }
                    } }
                } @else { input type="hidden" name="pool" value=(typed(&pool)); }
                @if is_new {
                    label for="namespace" { "Namespace" }
                    input #namespace name="namespace" value=(namespace) required autocomplete="off" spellcheck="false";
                    (field("name", "Name", "nightly-report", true))
                } @else {
                    input type="hidden" name="namespace" value=(typed(&namespace));
                    input type="hidden" name="name" value=(value("name", ""));
                }
                (field("queue", "Queue", "", true))
                (field("cron", "Cron", "30 2 * * *: minute, hour, day, month, weekday", false))
                (field("zone", "Zone", "UTC, or Europe/Berlin", false))
                label for="job-body" { "Body" }
                textarea #job-body name="body" rows="5" spellcheck="false" { "\n" (value("body", "")) }
                label for="others" { "Other settings, as JSON" }
                textarea #others name="others" rows="5" spellcheck="false" { "\n" (value("others", "{}")) }
                p.wide.hint { "Instead of Cron: " code { "{\"every\": 3600}" } " among the other settings, in seconds." }
                div.wide.does {
                    button.primary type="submit" name="do" value="save" { "Save" }
                    button type="submit" name="do" value="preview" { "Preview" }
                    a.button href=(visit.to(&back(&pool, &namespace))) { "Back" }
                }
            }
            (occurrences(visit, next))
            (curl(visit, "PUT", "/api/demo/_schedules/nightly", Some("{\"queue\":\"reports\",\"cron\":\"30 2 * * *\",\"text\":\"sales\"}")))
        } @else { p.note { "This account is read-only." } }
    };
    Page::new(title, "Schedules", body)
}

fn back(pool: &str, namespace: &str) -> String {
    match namespace {
        "" => "schedules".into(),
        _ => format!("schedules?pool={}&namespace={}", part(pool), part(namespace)),
    }
}

/// Shows the next occurrences, in the page's zone and in the schedule's.
fn occurrences(visit: &Visit, next: &Value) -> Markup {
    let all = next.as_array().map(Vec::as_slice).unwrap_or_default();
    html! {
        @if next.is_array() {
            section.panel {
                h2 { "Next occurrences" }
                @if all.is_empty() { p.hint { "None." } }
                ol.next { @for one in all { @if let Some(at) = instant(&one["due"]) {
                    li { (visit.zone.at(at)) @if let Some(local) = one["local"].as_str() { " " span.pool { (text(local)) } } }
                } } }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_form_becomes_the_setting_of_a_schedule() {
        let form = [
            ("queue", " q "),
            ("cron", "* * * * *"),
            ("body", "a\r\nb"),
            ("others", "{\"tries\": 3}"),
            ("revision", "7"),
        ];
        let expected = json!({"queue": "q", "cron": "* * * * *", "text": "a\nb", "tries": 3, "revision": 7});
        assert_eq!(setting(&Fields::of(form)).expect("a setting"), expected);
        let bytes = [("queue", "q"), ("others", "{\"every\": 60, \"data\": \"/w==\"}")];
        let expected = json!({"queue": "q", "every": 60, "data": "/w=="});
        assert_eq!(setting(&Fields::of(bytes)).expect("a setting"), expected, "a body that is no text stays");
        assert!(setting(&Fields::of([("others", "[]")])).is_err());
    }
}
