//! Pages for requests that were rejected before they reached a page; other clients get the JSON error.

use axum::body::to_bytes;
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::Response;
use maud::{DOCTYPE, Markup, html};
use serde_json::Value;

use super::page::answer;
use super::page::text::text;
use crate::http::request::origin::ByOrigin;

/// Message for an unknown address below `/ui/`.
pub const NO_PAGE: &str = "there is no such page";
/// Maximum size of an error that is read.
const MOST: usize = 64 << 10;
/// Headers that show a request's origin and the requested host.
const NAMES: [&str; 4] = ["Host", "Origin", "Sec-Fetch-Site", "Sec-Fetch-Dest"];

/// Middleware of all routes of the port: turns errors of pages into pages. Errors that no page has rendered are JSON:
/// rejections before routing, and unsupported methods.
pub async fn refusals_as_pages(request: Request, next: Next) -> Response {
    let path = request.uri().path();
    let is_below = path.starts_with("/ui/");
    let is_page = ["/", "/ui"].contains(&path) || is_below && !path.starts_with("/ui/assets/");
    let wants_page = is_page && accepts_html(request.headers());
    if !wants_page && !is_below {
        return next.run(request).await;
    }
    let asked = request.headers().clone();
    let response = next.run(request).await;
    let status = response.status();
    let is_error = status.is_client_error() || status.is_server_error();
    let kind = response.headers().get(header::CONTENT_TYPE);
    let is_html = kind.is_some_and(|kind| kind.as_bytes().starts_with(b"text/html"));
    let is_unknown = status == StatusCode::NOT_FOUND;
    // At the root of the port, a missing route is lmstfy's error, also for browsers.
    let stays = if is_unknown { !is_below } else { !wants_page };
    if !is_error || is_html || stays {
        return response;
    }
    let (mut parts, body) = response.into_parts();
    let bytes = to_bytes(body, MOST).await.unwrap_or_default();
    let said: Value = serde_json::from_slice(&bytes).unwrap_or_default();
    let why = said["error"].as_str().or(said["msg"].as_str()).unwrap_or_default();
    let why = if is_unknown { NO_PAGE } else { why };
    let by_origin = parts.extensions.get::<ByOrigin>().is_some();
    let id = said["request_id"].as_str().filter(|_| status.is_server_error());
    let page = page(status, why, id, by_origin.then_some(&asked));
    let html = answer::refused(status, page.0);
    parts.headers.remove(header::CONTENT_LENGTH);
    for (name, value) in html.headers() {
        parts.headers.insert(name, value.clone());
    }
    Response::from_parts(parts, html.into_body())
}

pub fn accepts_html(headers: &HeaderMap) -> bool {
    let mut accepted = headers.get_all(header::ACCEPT).iter();
    accepted.any(|kinds| kinds.to_str().is_ok_and(|kinds| kinds.contains("text/html")))
}

/// Renders an error page. `id` is the request's id in the log; `asked` are the headers of a request that was rejected
/// because of them.
fn page(status: StatusCode, why: &str, id: Option<&str>, asked: Option<&HeaderMap>) -> Markup {
    let title = match status.as_u16() {
        401 => "Who are you?",
        403 => "Not allowed",
        404 => "Not found",
        429 => "Too often",
        400..=499 => "That cannot be done",
        _ => "That did not work",
    };
    let why =
        if status == StatusCode::UNAUTHORIZED { "this server requires a user and a password" } else { why };
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (title) " – Dormouse" }
            }
            body { main {
                h1 { (title) }
                p { (text(why)) " (" (status.as_u16()) ")" }
                @if let Some(id) = id { p { "Request " code { (text(id)) } } }
                @if let Some(asked) = asked { (advice(asked)) }
            } }
        }
    }
}

/// Shows which headers were checked, and what to configure.
fn advice(asked: &HeaderMap) -> Markup {
    let given = |name: &str| asked.get(name).map(HeaderValue::as_bytes).map(String::from_utf8_lossy);
    html! {
        p { "The server checked these headers of the request:" }
        ul {
            @for name in NAMES {
                @if let Some(value) = given(name) { li { code { (name) } ": " (text(&value)) } }
                @else { li { code { (name) } ": none" } }
            }
        }
        p { "If people reach the dashboard at this address, for example through a proxy, set it in the configuration: " code { "AdminUrl = \"https://ops.example/dormouse\"" } "." }
        p { "Other sites may link to pages here. They cannot send forms, fetch data or show a page in a frame." }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Guards against showing only "Forbidden" to an operator behind a proxy, and against a header that is markup.
    #[test]
    fn a_refusal_names_the_header_and_the_key() {
        let mut asked = HeaderMap::new();
        asked.insert("origin", HeaderValue::from_static("https://<b>.example"));
        let shown = page(StatusCode::FORBIDDEN, "the request was sent by <another>", None, Some(&asked)).0;
        for part in ["Origin", "https://&lt;b&gt;.example", "Host", "AdminUrl", "&lt;another&gt;", "403"] {
            assert!(shown.contains(part), "{part}: {shown}");
        }
        let other = page(StatusCode::FORBIDDEN, "this account is read-only", None, None).0;
        assert!(other.contains("this account is read-only") && !other.contains("AdminUrl"), "{other}");
        let fault = page(StatusCode::SERVICE_UNAVAILABLE, "the server is starting", Some("a<b"), None).0;
        assert!(fault.contains("Request <code>") && fault.contains("a&lt;b"), "{fault}");
    }
}
