//! A port while the stores open: it answers from the start, so that probes and balancers can tell a server that starts
//! from none. Knows nothing of what comes after.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::http::{HeaderValue, Method, StatusCode};
use axum::response::{IntoResponse, Response};
use hyper::body::Incoming;
use tokio_util::either::Either;

use super::connection::Routes;
use super::middleware::{X_REQUEST_ID, caller_id};
use crate::http::answer::error::{ApiError, OwnFault};
use crate::http::answer::reply;
use crate::http::request::peer::Peer;
use crate::random;

/// The routes of a port, as soon as they are there. Clones are the same port.
#[derive(Debug)]
pub struct Opening<R>(Arc<OnceLock<R>>);

impl<R> Opening<R> {
    /// From now on `routes` answer. A port opens once.
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
    type Answer = Either<R::Answer, Ready<Result<Response, Infallible>>>;

    fn answer(&self, request: hyper::Request<Incoming>, peer: &Peer) -> Self::Answer {
        match self.0.get() {
            Some(routes) => Either::Left(routes.answer(request, peer)),
            None => {
                let mut answer = starting(request.method(), request.uri().path());
                let id = request.headers().get(X_REQUEST_ID).and_then(caller_id);
                let id = id.unwrap_or_else(|| random::ulid().to_string().into());
                OwnFault::name_request(&mut answer, &id);
                if let Ok(id) = HeaderValue::from_str(&id) {
                    answer.headers_mut().insert(X_REQUEST_ID, id);
                }
                Either::Right(ready(Ok(answer)))
            }
        }
    }
}

/// What a server says that starts.
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
