//! What the two ports take and answer, in OpenAPI. Each port serves its own, to everybody: it says nothing that the
//! documentation does not say. The files are YAML that is JSON, so they are served as they stand.

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
