//! Responses of pages: their headers, and the `ETag` with which browsers revalidate them.

use axum::body::Body;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::Response;
use xxhash_rust::xxh3::Xxh3;

use super::text::VOLATILE;
use crate::http::answer::reply;

const HTML: HeaderValue = HeaderValue::from_static("text/html; charset=utf-8");
/// Content security policy of a page: only resources of this server.
const POLICY: HeaderValue = HeaderValue::from_static(
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; \
     form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
);
/// Content security policy of a job's body.
const SANDBOX: HeaderValue = HeaderValue::from_static("sandbox; default-src 'none'; frame-ancestors 'none'");

/// Adds the headers that all responses of the dashboard have.
pub fn guarded(mut response: Response) -> Response {
    let headers = response.headers_mut();
    for (name, value) in [
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    headers.entry(header::CONTENT_SECURITY_POLICY).or_insert(POLICY);
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response
}

/// Creates the response of a page; 304 if the browser has it. `basis` identifies the page's inputs if they are known
/// before rendering; it is then part of the tag.
pub fn page(status: StatusCode, markup: &str, basis: Option<u64>, asked: &HeaderMap) -> Response {
    let (text, hash) = finished(markup);
    let tag = basis.map_or(hash.clone(), |basis| format!("{hash}-{basis:016x}"));
    let is_known =
        status == StatusCode::OK && tags(asked).any(|known| known.split('-').next() == Some(&hash));
    let response = if is_known { not_modified() } else { reply::with_body(status, HTML, Body::from(text)) };
    guarded(tagged(response, &tag))
}

/// Returns 304 without rendering, if the browser has the page of the same inputs.
pub fn unchanged(basis: u64, asked: &HeaderMap) -> Option<Response> {
    let basis = format!("{basis:016x}");
    let known = tags(asked).find(|tag| tag.split_once('-').is_some_and(|(_, of)| of == basis))?;
    Some(guarded(tagged(not_modified(), known)))
}

/// Returns the tags that the browser has, without quotes.
fn tags(asked: &HeaderMap) -> impl Iterator<Item = &str> {
    let given = asked.get_all(header::IF_NONE_MATCH).iter().filter_map(|given| given.to_str().ok());
    given.flat_map(|given| given.split(',')).map(|one| one.trim().trim_start_matches("W/").trim_matches('"'))
}

fn not_modified() -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NOT_MODIFIED;
    response
}

fn tagged(mut response: Response, tag: &str) -> Response {
    if let Ok(tag) = HeaderValue::from_str(&format!("\"{tag}\"")) {
        response.headers_mut().insert(header::ETAG, tag);
    }
    response
}

/// Creates the response of an error page, which has no tag: browsers do not revalidate it.
pub fn refused(status: StatusCode, markup: String) -> Response {
    guarded(reply::with_body(status, HTML, Body::from(markup)))
}

/// Removes the marks around volatile parts of the page, and hashes everything else.
fn finished(markup: &str) -> (String, String) {
    let mut hash = Xxh3::new();
    let mut text = String::with_capacity(markup.len());
    // They can be nested.
    let mut depth = 0usize;
    for piece in markup.split_inclusive([VOLATILE.0, VOLATILE.1]) {
        let plain = piece.trim_end_matches([VOLATILE.0, VOLATILE.1]);
        text.push_str(plain);
        if depth == 0 {
            hash.update(plain.as_bytes());
        }
        depth = match piece.chars().next_back() {
            Some(last) if last == VOLATILE.0 => depth + 1,
            Some(last) if last == VOLATILE.1 => depth.saturating_sub(1),
            _ => depth,
        };
    }
    (text, format!("{:032x}", hash.digest128()))
}

/// Redirects to another page of the dashboard. Changes do so, so that a reload does not repeat them.
pub fn see_other(to: &str) -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SEE_OTHER;
    // Its parts are escaped.
    let to = HeaderValue::from_str(to).unwrap_or(HeaderValue::from_static("?"));
    response.headers_mut().insert(header::LOCATION, to);
    guarded(response)
}

/// Creates a download of a job's body, which no browser displays.
pub fn download(name: &str, body: Vec<u8>) -> Response {
    let kind = HeaderValue::from_static("application/octet-stream");
    let mut response = reply::with_body(StatusCode::OK, kind, Body::from(body));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_SECURITY_POLICY, SANDBOX);
    let name = HeaderValue::from_str(&format!("attachment; filename=\"{name}\""));
    headers.insert(header::CONTENT_DISPOSITION, name.unwrap_or(HeaderValue::from_static("attachment")));
    guarded(response)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Guards against a page that is sent again each second, and one that is not although its numbers have changed.
    #[test]
    fn the_tag_names_the_figures_and_not_the_seconds() {
        let page = |n: u32, ago: &str| format!("<p>{n} jobs, \u{1}\u{1}{ago}\u{2} ago\u{2}</p>");
        let (text, tag) = finished(&page(7, "3 s"));
        assert_eq!(text, "<p>7 jobs, 3 s ago</p>");
        assert_eq!(finished(&page(7, "9 min")).1, tag);
        assert_ne!(finished(&page(8, "3 s")).1, tag);
        let mut asked = HeaderMap::new();
        asked.insert(
            header::IF_NONE_MATCH,
            HeaderValue::from_str(&format!("W/\"{tag}\", \"x\"")).expect("a tag"),
        );
        let answer = |status, n| super::page(status, &page(n, "1 h"), Some(5), &asked);
        assert_eq!(answer(StatusCode::OK, 7).status(), StatusCode::NOT_MODIFIED);
        assert_eq!(answer(StatusCode::OK, 6).status(), StatusCode::OK);
        assert_eq!(answer(StatusCode::BAD_REQUEST, 7).status(), 400);
    }

    /// Guards against a page that is rendered only to find that it has not changed.
    #[test]
    fn a_page_that_was_made_of_the_same_is_not_made_again() {
        let first = page(StatusCode::OK, "<p>7 jobs</p>", Some(5), &HeaderMap::new());
        let tag = first.headers()[header::ETAG].clone();
        let asked = HeaderMap::from_iter([(header::IF_NONE_MATCH, tag.clone())]);
        let same = unchanged(5, &asked).expect("it was made of the same");
        assert_eq!((same.status(), &same.headers()[header::ETAG]), (StatusCode::NOT_MODIFIED, &tag));
        assert!(unchanged(6, &asked).is_none(), "of something else: it is made, and compared");
        let made = page(StatusCode::OK, "<p>7 jobs</p>", Some(6), &asked);
        assert_eq!(made.status(), StatusCode::NOT_MODIFIED, "only the version of the data has changed");
        let newer = HeaderMap::from_iter([(header::IF_NONE_MATCH, made.headers()[header::ETAG].clone())]);
        assert!(unchanged(6, &newer).is_some(), "the 304 told the new tag");
    }
}
