//! Requests that a web page of another site had somebody's browser send. The browser does not show their answers
//! to the page, but what they ask for would be done: a token made, a job consumed. They are refused. Programs
//! (curl, client libraries, token-cli) send none of the headers that are looked at here.
//!
//! - `Sec-Fetch-Site` is set by browsers and by nobody else, and no page can change it. Only `same-origin` (a page
//!   of this very server) and `none` (typed by the user) are let in. `same-site` is not: another port of this
//!   machine, or another name of the same domain, is another server.
//! - `Origin` counts where a browser does not send `Sec-Fetch-Site` (plain HTTP beyond loopback): it must name
//!   the host and port that the request names. `null` names nobody.
//! - `Host` counts on an admin port that only this machine can reach: a page may give its own name the address
//!   127.0.0.1 (DNS rebinding) and is then of the same origin, but the browser still sends that name.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use axum::extract::Request;
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderName, Method, StatusCode, Uri, header};

use super::error::ApiError;

const OTHER_SITE: ApiError =
    ApiError::Refused(StatusCode::FORBIDDEN, "the request was sent by a web page of another site");
const OTHER_HOST: ApiError = ApiError::Refused(
    StatusCode::FORBIDDEN,
    "the Host of the request is not this machine: ask localhost or 127.0.0.1",
);

const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// The one GET of the public port that changes something: it consumes.
pub const CONSUME: &str = "/api/{namespace}/{queue}";

/// Who looks at the requests of a port.
#[derive(Clone, Debug)]
pub enum Guard {
    /// Refuses a change or a consume that another site sent.
    Public,
    /// Refuses whatever another site sent, and on a loopback address whatever names another host.
    Admin(Arc<AdminName>),
}

/// What an admin port takes as its own name.
#[derive(Debug)]
pub struct AdminName {
    /// Only this machine can reach the port.
    pub loopback: bool,
    /// `AdminHost` of the configuration.
    pub configured: String,
}

impl Guard {
    /// Why this request of a route is refused, if it is.
    pub fn refusal(&self, request: &Request, route: &str) -> Option<ApiError> {
        let guarded = match self {
            Guard::Public => !is_read(request.method(), route),
            Guard::Admin(name) if name.loopback && !names_this_machine(&name.configured, request) => {
                return Some(OTHER_HOST);
            }
            Guard::Admin(_) => true,
        };
        (guarded && from_other_site(request)).then_some(OTHER_SITE)
    }
}

/// Whether a request of the public port changes nothing.
fn is_read(method: &Method, route: &str) -> bool {
    [Method::GET, Method::HEAD, Method::OPTIONS].contains(method) && route != CONSUME
}

fn from_other_site(request: &Request) -> bool {
    // One look at each header of a program's request, in place of a search for either.
    if !request.headers().keys().any(|name| *name == SEC_FETCH_SITE || *name == header::ORIGIN) {
        return false;
    }
    let mut sites = request.headers().get_all(SEC_FETCH_SITE).iter().peekable();
    if sites.peek().is_some() {
        return !sites.all(|site| site == "same-origin" || site == "none");
    }
    let mut origins = request.headers().get_all(header::ORIGIN).iter();
    let host = host(request.uri(), request.headers());
    !origins.all(|origin| origin.to_str().is_ok_and(|origin| is_origin(origin, host.as_ref())))
}

/// Whether a page of this origin asks its own server.
fn is_origin(origin: &str, host: Option<&Authority>) -> bool {
    let Some((scheme, rest)) = origin.split_once("://") else { return false };
    let usual = match scheme {
        "http" => 80,
        "https" => 443,
        _ => return false,
    };
    let (Ok(origin), Some(host)) = (rest.parse::<Authority>(), host) else { return false };
    let port = |name: &Authority| name.port_u16().unwrap_or(usual);
    origin.host().eq_ignore_ascii_case(host.host()) && port(&origin) == port(host)
}

/// The host that the request names: in its target (`GET http://host/path`), or else in its one `Host`.
fn host(uri: &Uri, headers: &HeaderMap) -> Option<Authority> {
    if let Some(authority) = uri.authority() {
        return Some(authority.clone());
    }
    let mut hosts = headers.get_all(header::HOST).iter();
    let host = hosts.next()?.to_str().ok()?.parse().ok();
    host.filter(|_| hosts.next().is_none())
}

/// Whether every name in the request is one of this machine. One without a name (HTTP/1.0) is from no browser.
fn names_this_machine(configured: &str, request: &Request) -> bool {
    let ours = |name: &Authority| is_loopback(name.host()) || name.host().eq_ignore_ascii_case(configured);
    let mut hosts = request.headers().get_all(header::HOST).iter();
    request.uri().authority().is_none_or(ours)
        && hosts
            .all(|host| host.to_str().ok().and_then(|host| host.parse().ok()).is_some_and(|host| ours(&host)))
}

/// Whether a name without its port can only mean this machine.
fn is_loopback(host: &str) -> bool {
    if let Some(address) = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
        return address.parse::<Ipv6Addr>().is_ok_and(|ip| IpAddr::V6(ip).to_canonical().is_loopback());
    }
    if let Ok(address) = host.parse::<Ipv4Addr>() {
        return address.is_loopback();
    }
    let name = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
    name == "localhost" || name.ends_with(".localhost")
}

#[cfg(test)]
mod tests {
    use axum::body::Body;

    use super::*;

    fn request(target: &str, headers: &[(&str, &str)]) -> Request {
        let mut request = Request::builder().uri(target);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(Body::empty()).expect("a request")
    }

    #[test]
    fn a_page_of_another_site_is_told_apart() {
        let cases: &[(&[(&str, &str)], bool)] = &[
            (&[], false),
            (&[("sec-fetch-site", "none")], false),
            (&[("sec-fetch-site", "same-origin"), ("origin", "https://proxied.example")], false),
            (&[("sec-fetch-site", "cross-site")], true),
            (&[("sec-fetch-site", "same-site")], true),
            (&[("sec-fetch-site", "")], true),
            (&[("sec-fetch-site", "none"), ("sec-fetch-site", "cross-site")], true),
            (&[("origin", "null")], true),
            (&[("origin", "")], true),
            (&[("origin", "http://a.example:7778")], false),
            (&[("origin", "http://A.example:7778")], false),
            (&[("origin", "http://a.example")], true),
            (&[("origin", "http://a.example:7777")], true),
            (&[("origin", "http://b.example:7778")], true),
            (&[("origin", "file://")], true),
            (&[("origin", "http://a.example:7778"), ("origin", "http://b.example")], true),
        ];
        for (headers, other) in cases {
            let mut all = vec![("host", "a.example:7778")];
            all.extend_from_slice(headers);
            assert_eq!(from_other_site(&request("/", &all)), *other, "{headers:?}");
        }
        for (origin, host, other) in [
            ("https://a.example", "a.example", false),
            ("https://a.example", "a.example:443", false),
            ("http://a.example:80", "a.example", false),
            ("https://a.example:8443", "a.example", true),
            ("http://[::1]:7778", "[::1]:7778", false),
        ] {
            let request = request("/", &[("host", host), ("origin", origin)]);
            assert_eq!(from_other_site(&request), other, "{origin} asks {host}");
        }
        assert!(from_other_site(&request("/", &[("origin", "http://a.example")])), "nobody is named");
        let absolute = request("http://a.example/", &[("host", "b.example"), ("origin", "http://b.example")]);
        assert!(from_other_site(&absolute), "the target names the host");
    }

    #[test]
    fn only_loopback_names_mean_this_machine() {
        let good = [
            "localhost",
            "LOCALHOST:7778",
            "localhost.",
            "app.localhost",
            "127.0.0.1:7778",
            "127.9.9.9",
            "[::1]",
            "[::1]:7778",
            "[::ffff:127.0.0.1]:1",
            "admin.internal:7778",
        ];
        for host in good {
            assert!(names_this_machine("admin.internal", &request("/", &[("host", host)])), "{host}");
        }
        let bad = [
            "",
            "evil.example",
            "evil.example:7778",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "0.0.0.0",
            "10.0.0.1:7778",
            "[::]",
            "[fe80::1]",
            "xlocalhost",
            "a b",
            "localhost@evil.example",
        ];
        for host in bad {
            assert!(!names_this_machine("127.0.0.1", &request("/", &[("host", host)])), "{host}");
        }
        assert!(names_this_machine("127.0.0.1", &request("/", &[])), "HTTP/1.0 names nobody");
        let two = [("host", "localhost"), ("host", "evil.example")];
        assert!(!names_this_machine("127.0.0.1", &request("/", &two)), "each Host counts");
        let absolute = request("http://evil.example/", &[("host", "localhost")]);
        assert!(!names_this_machine("127.0.0.1", &absolute), "the target counts too");
    }
}
