//! Publishing a job by form.

use axum::extract::Path;
use axum::http::{Method, StatusCode};
use axum::response::Response;
use maud::{Markup, html};
use serde::Deserialize;

use super::page::answer::see_other;
use super::page::ask::{Refusal, Said, Sent, part};
use super::page::form::{Fields, Filled};
use super::page::frame::{Page, curl};
use super::page::rows::namespace_path;
use super::page::text::{text, volatile};
use super::page::visit::{PoolQueue, Visit, Wanted};
use crate::random;
use crate::readable::{DURATION_FORMS, seconds};

/// Maximum size of a job's body.
const MOST: usize = 64 << 10;

/// A pool's namespace, as in paths.
#[derive(Clone, Debug, Deserialize)]
pub struct PoolNamespace {
    pub pool: String,
    pub namespace: String,
}

impl PoolNamespace {
    pub fn path(&self) -> String {
        namespace_path(&self.pool, &self.namespace)
    }

    /// Returns its breadcrumbs.
    pub fn trail(&self, visit: &Visit) -> Vec<(String, Markup)> {
        let name = match visit.many_pools() {
            true => html! { (text(&self.pool)) "/" (text(&self.namespace)) },
            false => text(&self.namespace),
        };
        vec![(visit.to(&self.path()), name)]
    }
}

/// `GET /ui/publish/:pool/:namespace?queue&from`
pub async fn show(visit: Visit, Path(scope): Path<PoolNamespace>) -> Response {
    let page = match visit.fields.get("from") {
        None => Ok(page(&visit, &scope, &Fields::default())),
        Some(id) => again(&visit, &scope, id).await.map(|usual| page(&visit, &scope, &usual)),
    };
    visit.answer(page)
}

/// Returns the fields of a form that publishes a job again, without its key, which may still be taken, and without its
/// delay, which has ended.
async fn again(visit: &Visit, scope: &PoolNamespace, id: &str) -> Said<Fields> {
    let PoolNamespace { pool, namespace } = scope.clone();
    let place = PoolQueue { pool, namespace, queue: visit.fields.or_empty("queue").to_owned() };
    let job = visit.job(&place, Wanted::Id(id)).await?;
    let job = job.verbose();
    let body = job.data.ok_or(Refusal::new(StatusCode::FORBIDDEN, "bodies are not shown to this account"))?;
    let text = std::str::from_utf8(body).ok().filter(|text| text.len() <= MOST && !text.contains('\0'));
    let text = text.ok_or(Refusal::bad(
        "this body does not fit a form, which accepts text of up to 64 KiB: download it, and publish it with curl",
    ))?;
    let attributes = job.attributes.iter().flat_map(|all| all.iter());
    let attributes: String = attributes.map(|(name, value)| format!("{name}: {value}\n")).collect();
    let ttl = if job.ttl == 0 { "0".to_owned() } else { String::new() };
    Ok(Fields::of([("body", text), ("attributes", &attributes), ("ttl", &ttl)]))
}

/// `POST /ui/publish/:pool/:namespace`
pub async fn publish(mut visit: Visit, Path(scope): Path<PoolNamespace>, Filled(form): Filled) -> Response {
    let PoolNamespace { pool, namespace } = scope.clone();
    let place = PoolQueue { pool, namespace, queue: form.or_empty("queue").to_owned() };
    match send(&visit, &place, &form).await {
        Ok((id, done)) => {
            let to = visit.to(&format!("jobs/{}/{}?done={done}", place.path(), part(&id)));
            let mut response = see_other(&to);
            visit.carry(&mut response);
            response
        }
        Err(refusal) => {
            visit.refuse(refusal, form);
            visit.answer(Ok(page(&visit, &scope, &Fields::default())))
        }
    }
}

/// Publishes the form's job. Returns its id, and the code of the result.
async fn send(visit: &Visit, place: &PoolQueue, form: &Fields) -> Said<(String, &'static str)> {
    if place.queue.is_empty() {
        return Err(Refusal::bad("the queue needs a name"));
    }
    // Browsers send CRLF line ends.
    let body = form.or_empty("body").replace("\r\n", "\n");
    if body.len() > MOST {
        return Err(Refusal::bad("a body in this form can have at most 64 KiB"));
    }
    let names = ["delay", "at", "tries", "ttl", "key", "on_conflict"];
    let mut given = Vec::new();
    for name in names {
        let Some(text) = form.get(name) else { continue };
        let text = text.trim();
        let text = match name {
            "delay" | "ttl" => seconds(text)
                .ok_or_else(|| Refusal::bad(format!("invalid {name} `{text}`: {DURATION_FORMS}")))?,
            _ => text.to_owned(),
        };
        given.push((name, text));
    }
    let query: Vec<_> = given.iter().map(|(name, text)| (*name, &**text)).collect();
    let mut headers = attributes(form.or_empty("attributes"))?;
    // A form that is submitted twice publishes once.
    if let Some(mark) = form.get("mark") {
        headers.push(("Idempotency-Key".into(), format!("form-{mark}").into_bytes()));
    }
    let said = visit
        .ask
        .change(Method::POST, &place.api("/jobs", &query), Sent::Job(body.into_bytes(), headers))
        .await?;
    let id = said["job_id"].as_str().unwrap_or_default().to_owned();
    Ok((id, if said["duplicate"] == true { "kept" } else { "published" }))
}

/// Parses attributes into headers: one name and value per line.
fn attributes(text: &str) -> Said<Vec<(String, Vec<u8>)>> {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let mut headers = lines
        .map(|line| {
            let (name, value) = line.split_once(':').ok_or("invalid attribute: write each on a line, as \"name: value\"")?;
            let (name, value) = (name.trim(), value.trim());
            let plain =
                !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b));
            if !plain || value.is_empty() || value.chars().any(char::is_control) {
                return Err("invalid attribute: a name consists of letters, digits, -, _ and ., and a value is not empty");
            }
            Ok((format!("Job-Attr-{name}"), value.as_bytes().to_vec()))
        })
        .collect::<Result<Vec<_>, _>>()
        .map_err(Refusal::bad)?;
    if !headers.is_empty() {
        headers.push(("Enable-Job-Version".into(), b"yes".to_vec()));
    }
    Ok(headers)
}

/// Creates the form. `usual` has the initial values.
fn page(visit: &Visit, scope: &PoolNamespace, usual: &Fields) -> Page {
    let typed = |name: &str, other: &str| visit.typed(name, usual.get(name).unwrap_or(other));
    let queue = typed("queue", visit.fields.or_empty("queue"));
    let mark = typed("mark", &random::ulid().to_string());
    // A rejected form has done nothing, so its next submission counts as another.
    let mark = if visit.refused.is_some() { random::ulid().to_string() } else { mark };
    let field = |name: &str, label: &str, usual: &str, hint: &str| {
        html! {
            label for=(name) { (label) }
            input id=(name) name=(name) value=(typed(name, usual)) placeholder=(hint) autocomplete="off" spellcheck="false";
        }
    };
    let conflict = typed("on_conflict", "");
    let body = html! {
        h1 { "Publish a job" }
        p.hint { "A real worker will get it, or the URL to which push sends the queue." }
        @if visit.may_change() {
            form.fill method="post" data-asks="1" {
                input type="hidden" name="mark" value=(volatile(&html! { (mark) }).0);
                label for="queue" { "Queue" }
                input #queue name="queue" value=(queue) required autocomplete="off" spellcheck="false";
                label for="job-body" { "Body" }
                textarea #job-body name="body" rows="8" spellcheck="false" { "\n" (typed("body", "")) }
                (field("delay", "Delay", "", "60, 5m, 2h or 1d"))
                (field("at", "Instant", "", "instead of a delay: 2026-11-24T08:00:00Z"))
                (field("tries", "Tries", "", "default: as configured"))
                (field("ttl", "TTL", "", "such as 1d; 0 is forever; default: as configured"))
                (field("key", "Key", "", "unique in the queue while the job exists"))
                label for="on_conflict" { "If the key is taken" }
                select #on_conflict name="on_conflict" {
                    @for (value, words) in [("", "keep the existing job"), ("replace", "replace the existing job"), ("fail", "refuse this job")] {
                        option value=(value) selected[conflict == value] { (words) }
                    }
                }
                label for="attributes" { "Attributes" }
                textarea #attributes name="attributes" rows="2" placeholder="name: value" spellcheck="false" { "\n" (typed("attributes", "")) }
                div.wide { button.primary type="submit" { "Publish a job" } }
            }
            @let example = PoolQueue { pool: scope.pool.clone(), namespace: scope.namespace.clone(), queue: if queue.is_empty() { "mail".into() } else { queue.clone() } };
            (curl(visit, "POST", &example.api("/jobs", &[("delay", "60")]), Some("to: ann")))
        } @else { p.note { "This account is read-only." } }
    };
    Page::new(format!("Publish a job to {}", scope.namespace), "Queues", body).under(scope.trail(visit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_lines() {
        let of = |text: &str| {
            attributes(text).map(|all| all.into_iter().map(|(name, _)| name).collect::<Vec<_>>())
        };
        assert_eq!(of(" \n").expect("none"), Vec::<String>::new());
        assert_eq!(
            of("kind: a: b\n\nx-1:é").expect("two"),
            ["Job-Attr-kind", "Job-Attr-x-1", "Enable-Job-Version"]
        );
        for wrong in ["novalue", "a b: c", ": x", "a:", "a: b\u{7}"] {
            assert!(of(wrong).is_err(), "{wrong}");
        }
    }
}
