//! The stylesheet, the script and the icon: embedded in the binary, and named by a hash of their content, so browsers
//! may cache them forever.

use std::sync::LazyLock;

use axum::body::Body;
use axum::extract::Path;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;
use xxhash_rust::xxh3::xxh3_64;

use super::answer::guarded;
use super::ask::Refusal;
use super::visit::Visit;
use crate::http::answer::reply;

/// A file of the dashboard.
struct Asset {
    name: String,
    content: &'static str,
    kind: HeaderValue,
}

/// Files that all pages refer to.
pub struct Assets {
    style: Asset,
    script: Asset,
    icon: Asset,
}

fn asset(stem: &str, end: &str, content: &'static str, kind: &'static str) -> Asset {
    let name = format!("{stem}-{:016x}.{end}", xxh3_64(content.as_bytes()));
    Asset { name, content, kind: HeaderValue::from_static(kind) }
}

static ASSETS: LazyLock<Assets> = LazyLock::new(|| Assets {
    style: asset("style", "css", include_str!("../assets/style.css"), "text/css; charset=utf-8"),
    script: asset("script", "js", include_str!("../assets/script.js"), "text/javascript; charset=utf-8"),
    icon: asset("icon", "svg", include_str!("../assets/icon.svg"), "image/svg+xml"),
});

impl Assets {
    /// Returns the names of the stylesheet, the script and the icon.
    pub fn names() -> [&'static str; 3] {
        let Assets { style, script, icon } = &*ASSETS;
        [&style.name, &script.name, &icon.name]
    }
}

/// `GET /ui/assets/:name`
pub async fn get(visit: Visit, Path(name): Path<String>) -> Response {
    let Assets { style, script, icon } = &*ASSETS;
    let Some(asset) = [style, script, icon].into_iter().find(|asset| asset.name == name) else {
        return visit.answer(Err(Refusal::new(StatusCode::NOT_FOUND, "there is no such page")));
    };
    let mut response = reply::with_body(StatusCode::OK, asset.kind.clone(), Body::from(asset.content));
    let forever = HeaderValue::from_static("public, max-age=31536000, immutable");
    response.headers_mut().insert(header::CACHE_CONTROL, forever);
    guarded(response)
}
