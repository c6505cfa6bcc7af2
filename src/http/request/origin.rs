//! Rejects cross-site requests, which a web page of another site had a user's browser send. The page cannot read the
//! reply, but the request would take effect: a token created, a job consumed. Programs (curl, client libraries,
//! token-cli) send none of the headers checked here.
//!
//! - `Sec-Fetch-Site` is set by browsers only, and pages cannot change it. Only `same-origin` (a page of this server)
//!   and `none` (entered by the user) are allowed. `same-site` is not: another port of this machine, or another name of
//!   the same domain, is another server.
//! - `Origin` is checked if there is no `Sec-Fetch-Site` (plain HTTP beyond loopback): it must match the host and port
//!   of the request. `null` never matches.
//! - Dashboard pages may be visited from anywhere, since links lead to them. They change nothing.
//! - `Host` is checked on an admin port without passwords, or reachable from this machine only: a page may resolve its
//!   own name to the server's address (DNS rebinding) and is then same-origin, but the browser still sends that name.
//!   IP addresses cannot be rebound.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use axum::extract::Request;
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderName, Method, StatusCode, Uri, header};

use crate::http::answer::error::ApiError;

const OTHER_SITE: ApiError =
    ApiError::Refused(StatusCode::FORBIDDEN, "the request was sent by a web page of another site");
const OTHER_HOST: ApiError = ApiError::Refused(
    StatusCode::FORBIDDEN,
    "the Host of the request is not this machine: use localhost or 127.0.0.1, or set AdminUrl",
);
const OTHER_NAME: ApiError = ApiError::Refused(
    StatusCode::FORBIDDEN,
    "the Host of the request is not a name of this server: use the IP address or AdminHost, set AdminUrl, or configure [Accounts]",
);

const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// The only GET of the public port with an effect: it consumes.
pub const CONSUME: &str = "/api/{namespace}/{queue}";

/// Paths used by Prometheus and load balancers on an admin port beyond loopback, allowed for any `Host`. They change
/// nothing.
const BY_ANY_NAME: [&str; 3] = ["/ping", "/ready", "/metrics"];

/// Check of a port's requests.
#[derive(Clone, Debug)]
pub enum OriginCheck {
    /// Rejects cross-site changes and consumes, and, if the port requires no token, other `Host` names.
    Public(Option<Arc<OwnNames>>),
    /// Rejects all cross-site requests and other `Host` names.
    Admin(Arc<OwnNames>),
}

/// Names of a port.
#[derive(Debug)]
pub struct OwnNames {
    /// The port is reachable from this machine only.
    pub loopback: bool,
    /// It requires accounts, whose passwords no page knows.
    pub accounts: bool,
    /// `AdminHost` or `Host` of the configuration.
    pub configured: String,
    /// `AdminUrl`: the URL as users enter it.
    pub url: Option<OwnUrl>,
}

/// URL of a port as users enter it, if it is behind a proxy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnUrl {
    scheme: String,
    authority: Authority,
    /// Without a trailing slash; empty for the whole host.
    path: String,
}

/// The request was for that URL without a trailing slash. Relative links then need this prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bare(pub String);

/// The request was rejected because of its origin or `Host`.
#[derive(Clone, Copy, Debug)]
pub struct ByOrigin;

impl OwnUrl {
    /// Returns `None` if the text is not such a URL.
    pub fn parse(text: &str) -> Option<OwnUrl> {
        let uri: Uri = text.parse().ok()?;
        let (scheme, authority) = (uri.scheme_str()?.to_owned(), uri.authority()?.clone());
        Some(OwnUrl { scheme, authority, path: uri.path().trim_end_matches('/').to_owned() })
    }

    /// Removes its path from a request, unless the proxy has done so.
    pub fn strip(&self, request: &mut Request) {
        let uri = request.uri_mut();
        let rest = uri.path().strip_prefix(&self.path).filter(|_| !self.path.is_empty());
        let Some(rest) = rest.filter(|rest| rest.is_empty() || rest.starts_with('/')) else { return };
        let is_bare = rest.is_empty();
        let path = if is_bare { "/" } else { rest };
        let query = uri.query().map_or_else(String::new, |query| format!("?{query}"));
        // A suffix of a valid path is valid.
        if let Ok(stripped) = format!("{path}{query}").parse() {
            *uri = stripped;
        }
        if is_bare {
            let last = self.path.rsplit('/').next().unwrap_or_default();
            request.extensions_mut().insert(Bare(format!("{last}/")));
        }
    }

    fn is_origin(&self, origin: &str) -> bool {
        let same_scheme = origin.split_once("://").is_some_and(|(scheme, _)| scheme == self.scheme);
        same_scheme && is_origin(origin, Some(&self.authority))
    }
}

impl OriginCheck {
    /// Returns why this request of a route is rejected, if it is.
    pub fn refusal(&self, request: &Request, route: &str) -> Option<ApiError> {
        let (names, guarded) = match self {
            OriginCheck::Public(names) => (names.as_ref(), !is_read(request.method(), route)),
            OriginCheck::Admin(names) => (Some(names), true),
        };
        let url = names.and_then(|names| names.url.as_ref());
        let other_site = || {
            let asks = guarded && !is_visit(request, route) && from_other_site(request, url);
            asks.then_some(OTHER_SITE)
        };
        names.and_then(|names| names.refusal(request, route)).or_else(other_site)
    }
}

impl OwnNames {
    /// Returns why the `Host` names of this request are rejected, if they are. A request without one (HTTP/1.0) does
    /// not come from a browser.
    fn refusal(&self, request: &Request, route: &str) -> Option<ApiError> {
        let typed = self.url.as_ref().map_or("", |url| url.authority.host());
        let ours = |host: &str| {
            host.eq_ignore_ascii_case(without_dot(&self.configured))
                || !host.is_empty() && host.eq_ignore_ascii_case(without_dot(typed))
        };
        if self.loopback {
            let good = |host: &str| {
                ours(host) || is_localhost(host) || address(host).is_some_and(|ip| ip.is_loopback())
            };
            return (!all_names(request, good)).then_some(OTHER_HOST);
        }
        if self.accounts || BY_ANY_NAME.contains(&route) {
            return None;
        }
        let good = |host: &str| ours(host) || is_localhost(host) || address(host).is_some();
        (!all_names(request, good)).then_some(OTHER_NAME)
    }
}

/// Returns whether a request of the public port changes nothing.
fn is_read(method: &Method, route: &str) -> bool {
    [Method::GET, Method::HEAD, Method::OPTIONS].contains(method) && route != CONSUME
}

/// Returns whether a user follows a link to a page or enters its address. Frames, scripts and images have other values
/// in these headers.
fn is_visit(request: &Request, route: &str) -> bool {
    let is_page = ["/", "/ui"].contains(&route) || route.starts_with("/ui/");
    let says = |name: &str, value: &str| {
        let mut all = request.headers().get_all(name).iter();
        all.next().is_some_and(|first| first == value) && all.next().is_none()
    };
    is_page
        && request.method() == Method::GET
        && says("sec-fetch-mode", "navigate")
        && says("sec-fetch-dest", "document")
}

fn from_other_site(request: &Request, url: Option<&OwnUrl>) -> bool {
    // A single pass over the headers of a program's request, instead of a search for each.
    if !request.headers().keys().any(|name| *name == SEC_FETCH_SITE || *name == header::ORIGIN) {
        return false;
    }
    let mut sites = request.headers().get_all(SEC_FETCH_SITE).iter().peekable();
    if sites.peek().is_some() {
        return !sites.all(|site| site == "same-origin" || site == "none");
    }
    let mut origins = request.headers().get_all(header::ORIGIN).iter();
    let host = host(request.uri(), request.headers());
    let is_ours =
        |origin: &str| is_origin(origin, host.as_ref()) || url.is_some_and(|url| url.is_origin(origin));
    !origins.all(|origin| origin.to_str().is_ok_and(is_ours))
}

/// Returns whether `origin` is that of the requested server.
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

/// Returns the host of the request: from its target (`GET http://host/path`), or else its single `Host` header.
fn host(uri: &Uri, headers: &HeaderMap) -> Option<Authority> {
    if let Some(authority) = uri.authority() {
        return Some(authority.clone());
    }
    let mut hosts = headers.get_all(header::HOST).iter();
    let host = hosts.next()?.to_str().ok()?.parse().ok();
    host.filter(|_| hosts.next().is_none())
}

/// Returns whether every host in the request, without port and trailing dot, is `good`.
fn all_names(request: &Request, good: impl Fn(&str) -> bool) -> bool {
    let good = |name: &Authority| good(without_dot(name.host()));
    let mut hosts = request.headers().get_all(header::HOST).iter();
    request.uri().authority().is_none_or(good)
        && hosts
            .all(|host| host.to_str().ok().and_then(|host| host.parse().ok()).is_some_and(|host| good(&host)))
}

fn without_dot(host: &str) -> &str {
    host.strip_suffix('.').unwrap_or(host)
}

/// Parses a host that is an IP address. Browsers normalize other notations to these.
fn address(host: &str) -> Option<IpAddr> {
    match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
        Some(host) => host.parse::<Ipv6Addr>().ok().map(|ip| IpAddr::V6(ip).to_canonical()),
        None => host.parse::<Ipv4Addr>().ok().map(IpAddr::V4),
    }
}

/// Returns whether a name can only mean the local machine.
fn is_localhost(host: &str) -> bool {
    let name = host.to_ascii_lowercase();
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
            assert_eq!(from_other_site(&request("/", &all), None), *other, "{headers:?}");
        }
        for (origin, host, other) in [
            ("https://a.example", "a.example", false),
            ("https://a.example", "a.example:443", false),
            ("http://a.example:80", "a.example", false),
            ("https://a.example:8443", "a.example", true),
            ("http://[::1]:7778", "[::1]:7778", false),
        ] {
            let request = request("/", &[("host", host), ("origin", origin)]);
            assert_eq!(from_other_site(&request, None), other, "{origin} asks {host}");
        }
        assert!(from_other_site(&request("/", &[("origin", "http://a.example")]), None), "no host is named");
        let absolute = request("http://a.example/", &[("host", "b.example"), ("origin", "http://b.example")]);
        assert!(from_other_site(&absolute, None), "the target names the host");
    }

    fn admin(loopback: bool, accounts: bool, configured: &str) -> OriginCheck {
        OriginCheck::Admin(Arc::new(OwnNames {
            loopback,
            accounts,
            configured: configured.into(),
            url: None,
        }))
    }

    fn takes(guard: &OriginCheck, headers: &[(&str, &str)]) -> bool {
        guard.refusal(&request("/", headers), "/token/{namespace}").is_none()
    }

    const OF_THIS_MACHINE: [&str; 11] = [
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
        "Admin.Internal.:7778",
    ];
    const ADDRESSES: [&str; 5] = ["0.0.0.0", "10.0.0.1:7778", "[::]", "[fe80::1]", "[::ffff:10.0.0.1]:7778"];
    const OTHER_NAMES: [&str; 14] = [
        "",
        ".",
        ":7778",
        "evil.example",
        "evil.example:7778",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "10.0.0.1.evil.example",
        "xlocalhost",
        "a b",
        "localhost@evil.example",
        "admin.internal.evil.example",
        "2130706433",
        "[fe80::1%25eth0]",
    ];

    /// Guards against rejecting all forms behind a proxy, and against pages of another site that use it.
    #[test]
    fn the_address_that_people_type_is_ours() {
        let url = OwnUrl::parse("https://ops.example/dormouse/");
        assert_eq!(url.as_ref().map(|url| &*url.path), Some("/dormouse"));
        let names =
            OwnNames { loopback: true, accounts: true, configured: "127.0.0.1".into(), url: url.clone() };
        let guard = OriginCheck::Admin(Arc::new(names));
        for (host, origin, taken) in [
            ("ops.example", "https://ops.example", true),
            ("127.0.0.1:7778", "https://ops.example", true),
            ("127.0.0.1:7778", "https://ops.example:443", true),
            ("127.0.0.1:7778", "http://ops.example", false),
            ("127.0.0.1:7778", "https://ops.example:8443", false),
            ("127.0.0.1:7778", "https://evil.example", false),
            ("evil.example", "https://ops.example", false),
        ] {
            assert_eq!(takes(&guard, &[("host", host), ("origin", origin)]), taken, "{origin} asks {host}");
        }
        for (from, to) in [
            ("/dormouse/ui/queues?q=a", "/ui/queues?q=a"),
            ("/dormouse", "/"),
            ("/dormouse/", "/"),
            ("/dormouse?x=1", "/?x=1"),
            ("/dormouses/ui", "/dormouses/ui"),
            ("/ui/", "/ui/"),
        ] {
            let mut request = request(from, &[]);
            url.as_ref().expect("an address").strip(&mut request);
            assert_eq!(request.uri().to_string(), to, "{from}");
            let bare = request.extensions().get::<Bare>().map(|bare| &*bare.0);
            assert_eq!(bare, ["/dormouse", "/dormouse?x=1"].contains(&from).then_some("dormouse/"), "{from}");
        }
    }

    /// Guards against rejecting links in a chat, and against pages shown in another site's frame.
    #[test]
    fn links_lead_to_pages_and_to_nothing_else() {
        let guard = admin(false, true, "h");
        let visit = [
            ("sec-fetch-site", "cross-site"),
            ("sec-fetch-mode", "navigate"),
            ("sec-fetch-dest", "document"),
        ];
        let refused = |method: Method, headers: &[(&str, &str)], route: &str| {
            let mut request = request("/", headers);
            *request.method_mut() = method;
            guard.refusal(&request, route).is_some()
        };
        for (route, taken) in [
            ("/", true),
            ("/ui", true),
            ("/ui/", true),
            ("/ui/queues/{pool}", true),
            ("/queues", false),
            ("/token/{namespace}", false),
            ("/uix", false),
        ] {
            assert_eq!(!refused(Method::GET, &visit, route), taken, "{route}");
            assert!(refused(Method::POST, &visit, route), "a form of another site: {route}");
        }
        for (mode, dest) in
            [("navigate", "iframe"), ("no-cors", "image"), ("cors", "empty"), ("no-cors", "script")]
        {
            let other =
                [("sec-fetch-site", "cross-site"), ("sec-fetch-mode", mode), ("sec-fetch-dest", dest)];
            assert!(refused(Method::GET, &other, "/ui/"), "{mode} {dest}");
        }
        assert!(refused(Method::GET, &visit[..2], "/ui/"), "the purpose is not stated");
    }

    #[test]
    fn only_loopback_names_mean_this_machine() {
        for accounts in [false, true] {
            let guard = admin(true, accounts, "admin.internal");
            for host in OF_THIS_MACHINE {
                assert!(takes(&guard, &[("host", host)]), "{host}");
            }
            for host in OTHER_NAMES.iter().chain(&ADDRESSES) {
                assert!(!takes(&guard, &[("host", host)]), "{host}");
            }
            assert!(takes(&guard, &[]), "HTTP/1.0 has no Host");
            assert!(!takes(&guard, &[("host", "localhost"), ("host", "evil.example")]), "each Host counts");
            let absolute = request("http://evil.example/", &[("host", "localhost")]);
            assert!(guard.refusal(&absolute, "/ping").is_some(), "the target counts too");
        }
    }

    #[test]
    fn no_page_has_a_name_that_a_port_without_accounts_takes() {
        let guard = admin(false, false, "admin.internal.");
        for host in OF_THIS_MACHINE.iter().chain(&ADDRESSES) {
            assert!(takes(&guard, &[("host", host)]), "{host}");
        }
        for host in OTHER_NAMES {
            assert!(!takes(&guard, &[("host", host)]), "{host}");
            for route in BY_ANY_NAME {
                assert!(
                    guard.refusal(&request("/", &[("host", host)]), route).is_none(),
                    "{route} by {host}"
                );
            }
            assert!(takes(&admin(false, true, "0.0.0.0"), &[("host", host)]), "{host}, with accounts");
        }
        assert!(takes(&guard, &[]), "HTTP/1.0 has no Host");
    }
}
