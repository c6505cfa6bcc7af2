//! Processing common to all requests: ids, timing, logging and metrics. Query strings and headers are never logged,
//! since they carry tokens; some paths do too.

use std::convert::Infallible;
use std::future::poll_fn;
use std::net::IpAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use axum::body::{Body, HttpBody};
use axum::extract::{MatchedPath, Request};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use http_body_util::BodyExt;
use parking_lot::Mutex;
use tower::{Layer, Service};

use crate::http::answer::error::{ApiError, OwnFault, StoreFailure};
use crate::http::answer::reply;
use crate::http::request::extract::Labels;
use crate::http::request::origin::{ByOrigin, OriginCheck};
use crate::http::request::peer::{ClientIp, Peer};
use crate::http::state::AppState;
use crate::metrics::RouteMetrics;
use crate::random;

const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
pub const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// Limits for discarding a body that no handler has read, so that its sender sees the reply instead of a reset
/// connection: bytes, and time.
const DRAIN_BYTES: usize = 8 << 20;
const DRAIN_TIME: Duration = Duration::from_secs(2);

/// Middleware of every route: rejects cross-site requests, handles panics, sets the response's id, and logs and counts
/// it.
///
/// Replaces axum's `from_fn`, which boxes the request twice and keeps that as long as a poll is parked: 2 KB each. The
/// fast path does not even box the future.
#[derive(Clone)]
pub struct Observe {
    pub state: Arc<AppState>,
    pub guard: OriginCheck,
    /// Name of the port in the log.
    pub port: &'static str,
}

impl<S> Layer<S> for Observe {
    type Service = Observed<S>;

    fn layer(&self, routes: S) -> Observed<S> {
        Observed { routes, observe: self.clone(), counts: Arc::default() }
    }
}

/// A route wrapped in [`Observe`].
#[derive(Clone)]
pub struct Observed<S> {
    routes: S,
    observe: Observe,
    /// Metrics of the route, created with its first request.
    counts: Arc<OnceLock<RouteMetrics>>,
}

impl<S> Service<Request> for Observed<S>
where
    S: Service<Request, Response = Response, Error = Infallible>,
    S::Future: Unpin + Send + 'static,
{
    type Response = Response;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.routes.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request) -> Self::Future {
        let route = request.extensions().get::<MatchedPath>().cloned();
        let peer = request.extensions().get::<Peer>().map(|peer| peer.addr.ip());
        if let Some(peer) = peer {
            let client = self.observe.state.traffic.trusted_proxies.client(peer, request.headers());
            request.extensions_mut().insert(ClientIp(client));
        }
        let handle = |mut request: Request, labels| {
            request.extensions_mut().insert(labels);
            self.routes.call(request)
        };
        let route = route.as_ref().map(MatchedPath::as_str);
        Box::pin(self.observe.watch(request, route, peer, &self.counts, handle).respond())
    }
}

impl Observe {
    /// Runs `handle` for a request with or without a route, and observes it.
    pub fn watch<F>(
        &self,
        mut request: Request,
        route: Option<&str>,
        peer: Option<IpAddr>,
        counts: &Arc<OnceLock<RouteMetrics>>,
        handle: impl FnOnce(Request, Arc<Labels>) -> F,
    ) -> Watched<F> {
        let state = self.state.clone();
        let log = state.traffic.access_log.load(Ordering::Relaxed);
        let labels = Arc::new(Labels::new(log));
        let log = log.then(|| {
            let headers = request.headers();
            let ip = peer.map(|peer| state.traffic.trusted_proxies.client(peer, headers));
            let path = loggable(route, request.uri().path());
            Box::new(Logged { port: self.port, ip, path, trace_id: trace_id(headers), read: Arc::default() })
        });
        let caller_id = request.headers().get(X_REQUEST_ID).and_then(caller_id);
        let method = request.method().clone();
        // A client that sends `Expect: 100-continue` holds its body back until hyper asks for it, which the first read
        // does. If no handler reads the body, discarding it would ask for an unwanted body.
        let unread = (!request.body().is_end_stream()).then(UnreadBody::default);
        let holds_back = unread.is_some() && request.headers().contains_key(header::EXPECT);
        if let Some(unread) = &unread {
            let read = log.as_deref().map(|log| log.read.clone());
            request = request.map(|body| unread.watch(body, read));
        }
        if let Some(route) = route {
            counts.get_or_init(|| state.traffic.metrics.route(route));
        }
        let counts = counts.clone();
        let handling = match route.and_then(|route| self.guard.refusal(&request, route)) {
            Some(refusal) => {
                let mut response = refusal.into_response();
                response.extensions_mut().insert(ByOrigin);
                Err(response)
            }
            None => Ok(handle(request, labels.clone())),
        };
        state.traffic.requests.fetch_add(1, Ordering::Relaxed);
        let began = Instant::now();
        let observation =
            Observation { began, state, labels, method, counts, log, caller_id, unread, holds_back };
        Watched { observation, handling }
    }
}

/// A request in flight, and its handler, or the refusal in place of a handler.
pub struct Watched<F> {
    observation: Observation,
    handling: Result<F, Response>,
}

impl<F, E> Watched<F>
where
    F: Future<Output = Result<Response, E>> + Unpin,
    E: IntoResponse,
{
    /// Waits for the handler and returns the finished response. Not an `async fn`, whose future would store its
    /// argument twice for each parked poll.
    pub fn respond(self) -> impl Future<Output = Result<Response, Infallible>> {
        let Watched { mut observation, mut handling } = self;
        async move {
            let response = match &mut handling {
                Ok(handler) => poll_fn(|cx| poll_and_catch(handler, cx)).await,
                Err(refusal) => std::mem::take(refusal),
            };
            // Drops the handler and with it the body; the unread rest is known then.
            drop(handling);
            let (response, all_read) = match observation.unread.take() {
                None => (response, true),
                Some(unread) => {
                    let drained = unread.drain(observation.holds_back);
                    Box::pin(async move { (response, drained.await) }).await
                }
            };
            Ok(observation.finish(response, all_read))
        }
    }
}

/// What is known of a request in flight. Kept small, since there is one for each parked poll.
struct Observation {
    began: Instant,
    state: Arc<AppState>,
    labels: Arc<Labels>,
    method: Method,
    /// Empty if there is no route.
    counts: Arc<OnceLock<RouteMetrics>>,
    /// Data for the access log, if enabled.
    log: Option<Box<Logged>>,
    /// The request id supplied by the caller.
    caller_id: Option<Box<str>>,
    unread: Option<UnreadBody>,
    holds_back: bool,
}

impl Drop for Observation {
    fn drop(&mut self) {
        self.state.traffic.requests.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Data for the access log known before the reply.
struct Logged {
    port: &'static str,
    ip: Option<IpAddr>,
    path: String,
    trace_id: Option<Box<str>>,
    /// Bytes of its body that were read.
    read: Arc<AtomicU64>,
}

impl Observation {
    fn finish(&self, mut response: Response, all_read: bool) -> Response {
        let Observation { state, labels, method, counts, .. } = self;
        // hyper closes the connection after an unread body, and a stopping server closes all. A client that is not told
        // would send its next request on a closed connection.
        if !all_read || state.server.readiness.is_draining() {
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        // Overload is usually short. A 429 has its own Retry-After.
        if response.status() == StatusCode::SERVICE_UNAVAILABLE {
            response = reply::retry_after(response, Duration::ZERO);
        }
        let mut own_id = [0; ulid::ULID_LEN];
        let id = match &self.caller_id {
            Some(id) => id,
            None => &*random::ulid().array_to_str(&mut own_id),
        };
        OwnFault::name_request(&mut response, id);
        let failure = response.extensions().get::<StoreFailure>();
        // The pool is known once the request's token has named one. Failures without one are operators' requests: they
        // are few, so each is logged.
        match (failure, labels.pool().and_then(|name| state.pools.get(name))) {
            (Some(StoreFailure(error)), Some(pool)) => pool.outage.failed_request(error, id),
            (Some(StoreFailure(error)), None) => tracing::error!(%error, request_id = id, "a request failed"),
            (None, Some(pool)) if response.status().is_success() => pool.outage.works(),
            (None, _) => {}
        }
        let took = self.began.elapsed();
        let status = response.status();
        if let Some(counts) = counts.get() {
            counts.request(labels.accepted(), method_label(method), status.as_u16(), took);
        }
        if let Some(Logged { port, ip, path, trace_id, read }) = self.log.as_deref() {
            tracing::info!(
                target: crate::process::log::ACCESS,
                request_id = id,
                port,
                ip = ip.map(|ip| ip.to_string()),
                by = labels.by(),
                method = method.as_str(),
                path,
                pool = labels.accepted().map(|(pool, _)| pool.as_str()),
                namespace = labels.accepted().map(|(_, namespace)| namespace.as_str()),
                status = status.as_u16(),
                latency_ms = took.as_millis() as u64,
                latency_us = took.as_micros() as u64,
                bytes_in = read.load(Ordering::Relaxed),
                bytes_out = response.body().size_hint().exact(),
                trace_id = trace_id.as_deref(),
                "request"
            );
        }
        if let Ok(id) = HeaderValue::from_str(id) {
            response.headers_mut().insert(X_REQUEST_ID, id);
        }
        response
    }
}

/// Polls the handler, and converts a panic, which is a bug, to an error. The connection stays usable.
fn poll_and_catch(
    response: &mut (impl Future<Output = Result<Response, impl IntoResponse>> + Unpin),
    cx: &mut Context<'_>,
) -> Poll<Response> {
    // Unwind safe: after a panic the handler's future is dropped and never polled again.
    let poll =
        || Pin::new(response).poll(cx).map(|response| response.unwrap_or_else(IntoResponse::into_response));
    match catch_unwind(AssertUnwindSafe(poll)) {
        Ok(polled) => polled,
        Err(_) => {
            let fault = ApiError::Ours(StatusCode::INTERNAL_SERVER_ERROR, "internal error", None);
            Poll::Ready(fault.into_response())
        }
    }
}

/// Returns the caller's request id, if it is valid for logs and headers.
pub fn caller_id(value: &HeaderValue) -> Option<Box<str>> {
    let id = value.to_str().ok()?;
    let fits = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
    ((1..=64).contains(&id.len()) && id.bytes().all(fits)).then(|| id.into())
}

/// Returns the trace id of a `traceparent` (W3C): 32 digits after the version, not all 0.
fn trace_id(headers: &HeaderMap) -> Option<Box<str>> {
    let mut parts = headers.get(TRACEPARENT)?.to_str().ok()?.split('-');
    let (version, trace) = (parts.next()?, parts.next()?);
    let hex = |text: &str| text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    let is_one = version.len() == 2 && hex(version) && trace.len() == 32 && hex(trace);
    (is_one && trace.bytes().any(|b| b != b'0') && parts.next().is_some()).then(|| trace.into())
}

/// Returns a path as shown in the log. Paths of jobs contain no secrets. Others may contain a token, in any spelling,
/// so the log shows their route; a path without a route may have been meant for the other port.
fn loggable(route: Option<&str>, path: &str) -> String {
    match route {
        Some(route) if route.starts_with("/api/") => path.to_owned(),
        Some(route) => crate::metrics::pattern(route),
        None => "(no route)".to_owned(),
    }
}

/// Returns the method as a label. Clients can invent methods, and each label is a permanent time series, so unknown
/// ones share one.
fn method_label(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::PUT => "PUT",
        Method::POST => "POST",
        Method::DELETE => "DELETE",
        Method::HEAD => "HEAD",
        Method::OPTIONS => "OPTIONS",
        _ => "other",
    }
}

/// The unread rest of a request body, after its handler has dropped it.
#[derive(Clone, Default)]
struct UnreadBody(Arc<Mutex<Rest>>);

#[derive(Default)]
enum Rest {
    /// The handler has read it to the end.
    #[default]
    Nothing,
    Body(Body),
    /// The body was aborted or is invalid HTTP. Nothing can be read after it.
    Broken,
}

impl UnreadBody {
    /// Wraps a body, counting the bytes read in `read`.
    fn watch(&self, body: Body, read: Option<Arc<AtomicU64>>) -> Body {
        Body::new(WatchedBody { body: Some(body), unread: self.clone(), read })
    }

    /// Discards the rest, unless its sender holds it back. Returns whether the end was reached.
    async fn drain(self, holds_back: bool) -> bool {
        let body = match std::mem::take(&mut *self.0.lock()) {
            Rest::Nothing => return true,
            Rest::Broken => return false,
            Rest::Body(_) if holds_back => return false,
            Rest::Body(body) => body,
        };
        read_away(body).await
    }
}

/// Reads and discards a body. Returns whether its end was reached.
pub async fn read_away(mut body: Body) -> bool {
    let mut left = DRAIN_BYTES;
    let drain = async {
        loop {
            match body.frame().await {
                None => return true,
                Some(Err(_)) => return false,
                Some(Ok(frame)) => {
                    left = left.saturating_sub(frame.data_ref().map_or(0, |data| data.len()));
                }
            }
            if left == 0 {
                return body.is_end_stream();
            }
        }
    };
    tokio::time::timeout(DRAIN_TIME, drain).await.unwrap_or(false)
}

/// A body that moves to `unread` when dropped before its end.
struct WatchedBody {
    /// `Some` until the end was seen.
    body: Option<Body>,
    unread: UnreadBody,
    read: Option<Arc<AtomicU64>>,
}

impl HttpBody for WatchedBody {
    type Data = bytes::Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<hyper::body::Frame<bytes::Bytes>, axum::Error>>> {
        let Some(body) = &mut self.body else { return Poll::Ready(None) };
        let polled = Pin::new(body).poll_frame(cx);
        match &polled {
            Poll::Ready(None) => self.body = None,
            Poll::Ready(Some(Err(_))) => {
                self.body = None;
                *self.unread.0.lock() = Rest::Broken;
            }
            Poll::Ready(Some(Ok(frame))) => {
                if let (Some(read), Some(data)) = (&self.read, frame.data_ref()) {
                    read.fetch_add(data.len() as u64, Ordering::Relaxed);
                }
            }
            Poll::Pending => {}
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

impl Drop for WatchedBody {
    fn drop(&mut self) {
        if let Some(body) = self.body.take().filter(|body| !body.is_end_stream()) {
            *self.unread.0.lock() = Rest::Body(body);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Guards against memory per parked poll, beside its handler's future.
    #[test]
    fn an_observation_keeps_little() {
        fn size_of_future<A, F>(_function: impl Fn(A) -> F) -> usize {
            size_of::<F>()
        }
        type Handling = Pin<Box<dyn Future<Output = Result<Response, Infallible>>>>;
        let (size, most) =
            (size_of_future(Watched::<Handling>::respond), size_of::<Watched<Handling>>() + 32);
        assert!(size <= most, "the future takes {size} bytes, more than {most}");
    }

    #[tokio::test]
    async fn a_panic_in_a_handler_is_answered() {
        let panics = || -> Result<Response, Infallible> { panic!("the test says so") };
        let mut handler = Box::pin(async { panics() });
        let response = std::future::poll_fn(|cx| poll_and_catch(&mut handler, cx)).await;
        assert_eq!(response.status(), StatusCode::INTERNAL_SERVER_ERROR, "the status of the response");
    }
}
