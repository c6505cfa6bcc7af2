//! What the two ports take and answer, in OpenAPI, as `openapi/` has it. Each port serves its own, to everybody: it says
//! nothing that the documentation does not say.

use axum::body::Body;
use axum::http::StatusCode;
use axum::response::Response;

use crate::http::answer::reply;

const PUBLIC: &str = include_str!("../../../openapi/public.json");
const ADMIN: &str = include_str!("../../../openapi/admin.json");

/// `GET /openapi.json` on the public port.
pub async fn public() -> Response {
    reply::json_stream(StatusCode::OK, Body::from(PUBLIC))
}

/// `GET /openapi.json` on the admin port.
pub async fn admin() -> Response {
    reply::json_stream(StatusCode::OK, Body::from(ADMIN))
}
