//! The OpenAPI documents of the two ports. Each port serves its own without authentication: it contains nothing that
//! is not in the public documentation. The files are YAML that is also JSON, so they are served unchanged.

use axum::body::Body;
use axum::http::StatusCode;
use axum::response::Response;

use crate::http::answer::reply;

const PUBLIC: &str = include_str!("../../../docs/openapi.yaml");
const ADMIN: &str = include_str!("../../../docs/openapi-admin.yaml");

/// `GET /openapi.json` on the public port.
pub async fn public() -> Response {
    reply::json_stream(StatusCode::OK, Body::from(PUBLIC))
}

/// `GET /openapi.json` on the admin port.
pub async fn admin() -> Response {
    reply::json_stream(StatusCode::OK, Body::from(ADMIN))
}
