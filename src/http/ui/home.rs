//! Redirects to the dashboard, and the choice of its time zone.

use axum::extract::Request;
use axum::http::{HeaderValue, header};
use axum::response::Response;
use maud::html;

use super::page::answer::see_other;
use super::page::ask::{Refusal, part};
use super::page::form::Filled;
use super::page::frame::Page;
use super::page::instant::Zone;
use super::page::visit::{Visit, ZONE_COOKIE};
use super::refused::accepts_html;
use crate::http::answer::reply;
use crate::http::request::origin::Bare;

/// `GET /`: redirects browsers to the dashboard. Programs get 404, as in lmstfy.
pub async fn home(request: Request) -> Response {
    if accepts_html(request.headers()) {
        let below = request.extensions().get::<Bare>().map_or("", |bare| &bare.0);
        see_other(&format!("{below}ui/"))
    } else {
        reply::not_found().await
    }
}

/// `GET /ui`
pub async fn redirect() -> Response {
    see_other("ui/")
}

/// `POST /ui/zone`: sets the zone of all pages from now on, in a cookie. Its path is that of this route.
pub async fn zone(mut visit: Visit, Filled(form): Filled) -> Response {
    let name = form.get("tz").unwrap_or("UTC").trim();
    let Some(zone) = Zone::named(name, visit.zone.now) else {
        let text = "invalid zone: use an IANA name, such as Europe/Berlin";
        visit.refuse(Refusal::bad(text), form);
        let back = html! { h1 { "Zone" } p { a.button href=(visit.to("")) { "Back" } } };
        return visit.answer(Ok(Page::new("Zone", "", back)));
    };
    let mut response = see_other(&back(form.or_empty("back")));
    let cookie = format!("{ZONE_COOKIE}={}; Max-Age=31536000; SameSite=Lax; HttpOnly", part(&zone.name));
    if let Ok(cookie) = HeaderValue::from_str(&cookie) {
        response.headers_mut().insert(header::SET_COOKIE, cookie);
    }
    response
}

/// Returns the page that a form names, below `/ui/`. Other places are rejected: a forged form could lead elsewhere.
pub fn back(to: &str) -> String {
    let plain = to.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.~%/?&=".contains(&b));
    let (path, _) = to.split_once('?').unwrap_or((to, ""));
    let below = !path.starts_with('/') && !path.split('/').any(|part| part == ".." || part == ".");
    // Browsers treat an escaped dot as a dot.
    let below = below && !path.to_ascii_lowercase().contains("%2e");
    if plain && below { format!("./{to}") } else { "./".into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_form_leads_to_no_other_place() {
        for (to, expected) in [
            ("queues/default/ns/q?state=dead", "./queues/default/ns/q?state=dead"),
            ("", "./"),
            ("//evil.example/", "./"),
            ("/metrics", "./"),
            ("https://evil.example/", "./"),
            ("javascript:alert(1)", "./"),
            ("../metrics", "./"),
            ("queues/../../metrics", "./"),
            ("%2e%2E/metrics", "./"),
            (".%2E/metrics", "./"),
            ("queues?q=%2e", "./queues?q=%2e"),
            ("\\\\evil", "./"),
        ] {
            assert_eq!(back(to), expected, "{to}");
        }
    }
}
