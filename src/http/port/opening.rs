//! A port while the stores open. It replies from the start, so that probes and balancers can distinguish a starting
//! server from none.

use std::convert::Infallible;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::body::{Body, HttpBody};
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use hyper::body::Incoming;
use tokio_util::either::Either;

use super::connection::{Answer, Routes};
use super::middleware::{X_REQUEST_ID, caller_id, read_away};
use crate::http::answer::error::{ApiError, OwnFault};
use crate::http::answer::reply;
use crate::http::request::peer::Peer;
use crate::random;

/// Routes of a port, once available. Clones share the port.
#[derive(Debug)]
pub struct Opening<R>(Arc<OnceLock<R>>);

impl<R> Opening<R> {
    /// Makes `routes` available. Effective once.
    pub fn open(&self, routes: R) {
        let _ = self.0.set(routes);
    }
}

impl<R> Default for Opening<R> {
    fn default() -> Opening<R> {
        Opening(Arc::default())
    }
}

impl<R> Clone for Opening<R> {
    fn clone(&self) -> Opening<R> {
        Opening(self.0.clone())
    }
}

impl<R: Routes> Routes for Opening<R> {
    fn answer(&self, request: hyper::Request<Incoming>, peer: &Peer) -> impl Answer + use<R> {
        match self.0.get() {
            Some(routes) => Either::Left(routes.answer(request, peer)),
            None => Either::Right(Box::pin(answered(request))),
        }
    }
}

/// Discards the body, so that its sender sees the reply instead of a reset connection.
async fn answered(request: hyper::Request<Incoming>) -> Result<Response, Infallible> {
    let (parts, body) = request.into_parts();
    let mut answer = starting(&parts.method, parts.uri.path());
    let id = parts.headers.get(X_REQUEST_ID).and_then(caller_id);
    let id = id.unwrap_or_else(|| random::ulid().to_string().into());
    OwnFault::name_request(&mut answer, &id);
    if let Ok(id) = HeaderValue::from_str(&id) {
        answer.headers_mut().insert(X_REQUEST_ID, id);
    }
    // A client that waits for `100 Continue` has not sent its body.
    let holds_back = parts.headers.contains_key(header::EXPECT);
    if !body.is_end_stream() && (holds_back || !read_away(Body::new(body)).await) {
        answer.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    Ok(answer)
}

/// Returns the reply of a starting server.
fn starting(method: &Method, path: &str) -> Response {
    const WHY: &str = "the server is starting";
    let answer = match path {
        "/ping" if [Method::GET, Method::HEAD].contains(method) => {
            return reply::message(StatusCode::OK, "pong");
        }
        "/ready" => reply::readiness(Some(WHY.into()), &[]),
        _ => ApiError::Ours(StatusCode::SERVICE_UNAVAILABLE, WHY, None).into_response(),
    };
    reply::retry_after(answer, Duration::ZERO)
}
