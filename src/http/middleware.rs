//! What every request passes through: an id, the clock, the access log, the metrics; and basic auth for the
//! guarded half of the admin port. Never logs a query or a header: tokens travel there.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use axum::body::{Body, HttpBody};
use axum::extract::{MatchedPath, Request, State as Shared};
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::Response;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http_body_util::BodyExt;
use parking_lot::Mutex;
use subtle::ConstantTimeEq;
use ulid::Ulid;

use super::State;
use super::connection::Peer;
use super::error::StoreFailure;
use super::extract::Labels;
use super::reply;

/// How much of a body that no handler read is read and thrown away, so that its sender gets to see the
/// answer instead of a reset connection; and how long that may take.
const DRAIN_BYTES: usize = 8 << 20;
const DRAIN_TIME: Duration = Duration::from_secs(2);

/// Gives the answer its id, and tells log and metrics of it. Not an `async fn`: its future would keep the
/// request twice, and there is one for every parked poll.
pub fn observe(
    Shared(state): Shared<Arc<State>>,
    mut request: Request,
    next: Next,
) -> impl Future<Output = Response> + Send {
    let began = Instant::now();
    let labels = Arc::new(Labels::default());
    request.extensions_mut().insert(labels.clone());
    let log = state.access_log.load(Ordering::Relaxed).then(|| {
        let peer = request.extensions().get::<Peer>().map(|peer| peer.addr.ip());
        Box::new((peer, shown(request.uri().path())))
    });
    let method = request.method().clone();
    let route = request.extensions().get::<MatchedPath>().cloned();
    // Who waits to be asked for the body is not asked by being drained: the refusal is answer enough.
    let waits = request.headers().get(header::EXPECT).is_some();
    let leftover = (!waits && !request.body().is_end_stream()).then(Leftover::default);
    if let Some(leftover) = &leftover {
        request = request.map(|body| leftover.watch(body));
    }
    let answer = unless_it_panics(Box::pin(next.run(request)));
    async move {
        let mut response = answer.await;
        if let Some(leftover) = leftover {
            Box::pin(leftover.drain()).await;
        }
        let failure = response.extensions().get::<StoreFailure>();
        // The pool is known once the request's token has named one. What fails without one is an operator's
        // request: they are few, and logged each.
        match (failure, labels.pool().and_then(|name| state.pools.get(name))) {
            (Some(StoreFailure(error)), Some(pool)) => pool.outage.failed(error),
            (Some(StoreFailure(error)), None) => tracing::error!(%error, "a request failed"),
            (None, Some(pool)) if response.status().is_success() => pool.outage.works(),
            (None, _) => {}
        }
        let took = began.elapsed();
        let status = response.status().as_u16();
        if let Some(route) = &route {
            state.metrics.request(labels.get(), known(&method), route.as_str(), status, took);
        }
        let id = Ulid::r#gen().to_string();
        if let Some((ip, path)) = log.as_deref() {
            tracing::info!(
                target: crate::process::log::ACCESS,
                request_id = id,
                ip = ip.map(|ip| ip.to_string()),
                method = method.as_str(),
                path,
                pool = labels.get().map(|(pool, _)| pool.as_str()),
                status,
                latency_ms = took.as_millis() as u64,
                "request"
            );
        }
        if let Ok(id) = HeaderValue::from_str(&id) {
            response.headers_mut().insert("x-request-id", id);
        }
        response
    }
}

/// A panic in a handler is a bug of ours: its caller hears that, and the connection goes on.
async fn unless_it_panics(mut answer: Pin<Box<impl Future<Output = Response>>>) -> Response {
    std::future::poll_fn(|cx| {
        // What a handler leaves half done is its own: it is dropped with the request, and never polled again.
        let polled = catch_unwind(AssertUnwindSafe(|| answer.as_mut().poll(cx)));
        polled.unwrap_or_else(|_| {
            Poll::Ready(reply::error(StatusCode::INTERNAL_SERVER_ERROR, "internal error"))
        })
    })
    .await
}

/// A path as the log may show it: on the admin port, tokens are a part of paths.
fn shown(path: &str) -> String {
    match path.strip_prefix("/token/").and_then(|rest| rest.split_once('/')) {
        Some((namespace, _)) => format!("/token/{namespace}/.."),
        None => path.to_owned(),
    }
}

/// A method as a label. Clients make methods up; each would be time series of its own, for ever.
fn known(method: &Method) -> &str {
    match *method {
        Method::GET | Method::PUT | Method::POST | Method::DELETE | Method::HEAD | Method::OPTIONS => {
            method.as_str()
        }
        _ => "other",
    }
}

/// Lets through who has an account, when there are accounts.
pub async fn basic_auth(Shared(state): Shared<Arc<State>>, request: Request, next: Next) -> Response {
    if state.accounts.is_empty() || allowed(&state, &request) {
        return next.run(request).await;
    }
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::UNAUTHORIZED;
    let ask = HeaderValue::from_static("Basic realm=\"Authorization Required\"");
    response.headers_mut().insert(header::WWW_AUTHENTICATE, ask);
    response
}

fn allowed(state: &State, request: &Request) -> bool {
    let given = request.headers().get(header::AUTHORIZATION).and_then(|v| v.to_str().ok());
    let given = given.and_then(|v| v.strip_prefix("Basic ")).and_then(|v| STANDARD.decode(v.trim()).ok());
    let Some(given) = given else { return false };
    // Every account is compared, in constant time, so that the time taken tells nothing.
    state.accounts.iter().fold(false, |ok, (user, password)| {
        let account = format!("{user}:{}", password.reveal());
        ok | bool::from(account.as_bytes().ct_eq(&given))
    })
}

/// Where a request's body ends up when its handler drops it unread.
#[derive(Clone, Default)]
struct Leftover(Arc<Mutex<Option<Body>>>);

impl Leftover {
    fn watch(&self, body: Body) -> Body {
        Body::new(Watched { body: Some(body), leftover: self.clone() })
    }

    async fn drain(self) {
        let Some(mut body) = self.0.lock().take() else { return };
        let mut left = DRAIN_BYTES;
        let drain = async {
            while let Some(Ok(frame)) = body.frame().await {
                left = left.saturating_sub(frame.data_ref().map_or(0, |data| data.len()));
                if left == 0 {
                    return;
                }
            }
        };
        let _ = tokio::time::timeout(DRAIN_TIME, drain).await;
    }
}

/// A body that remembers that it was not read to its end.
struct Watched {
    /// `Some` until the end was seen.
    body: Option<Body>,
    leftover: Leftover,
}

impl HttpBody for Watched {
    type Data = bytes::Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<hyper::body::Frame<bytes::Bytes>, axum::Error>>> {
        let Some(body) = &mut self.body else { return Poll::Ready(None) };
        let polled = Pin::new(body).poll_frame(cx);
        if matches!(polled, Poll::Ready(None | Some(Err(_)))) {
            self.body = None;
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(HttpBody::is_end_stream)
    }

    fn size_hint(&self) -> hyper::body::SizeHint {
        self.body.as_ref().map_or_else(|| hyper::body::SizeHint::with_exact(0), HttpBody::size_hint)
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        if let Some(body) = self.body.take().filter(|body| !body.is_end_stream()) {
            *self.leftover.0.lock() = Some(body);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_panic_in_a_handler_is_answered() {
        let handler = async { panic!("the test says so") };
        let response = unless_it_panics(Box::pin(handler)).await;
        assert_eq!(response.status(), StatusCode::INTERNAL_SERVER_ERROR, "what the caller sees");
    }
}
