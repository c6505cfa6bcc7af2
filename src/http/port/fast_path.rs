//! Fast path of the public port. Nearly all requests are publishes, consumes or acks: they go from the connection to
//! their handler without axum's router, which took an eighth of their instructions. All other requests use the router.

use std::pin::Pin;
use std::sync::{Arc, OnceLock};

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::http::Method;
use axum::http::request::Parts;
use hyper::body::Incoming;
use tokio_util::either::Either;

use super::connection::{Answer, Routes};
use super::middleware::Observe;
use crate::http::answer::error::{ApiError, HandlerResult};
use crate::http::jobs::{consume, hold, publish};
use crate::http::request::extract::{Authorized, AuthorizedConsume, Head, Labels};
use crate::http::request::origin::CONSUME;
use crate::http::request::path::{self, Names};
use crate::http::request::peer::Peer;
use crate::http::state::AppState;
use crate::job::JobId;
use crate::metrics::RouteMetrics;
use crate::name::{Namespace, Queue, QueueName};

/// Pattern of a job.
pub const JOB: &str = "/api/{namespace}/{queue}/job/{job_id}";

/// Reserved name in place of a queue.
const SCHEDULES: &str = "_schedules";

/// Answers the requests of the public port.
#[derive(Clone)]
pub struct Api {
    observe: Observe,
    /// Metrics of the pattern shared by publish and consume, and of [`JOB`].
    of_queue: Arc<OnceLock<RouteMetrics>>,
    of_job: Arc<OnceLock<RouteMetrics>>,
    router: Router,
}

/// A request for the fast path, with the names in its path.
enum Asked {
    Publish(Result<Queue, ApiError>),
    Consume(Result<(Namespace, Vec<QueueName>), ApiError>),
    Ack(Result<(Queue, Option<JobId>), ApiError>),
}

impl Api {
    /// Creates the port; `router` answers all other requests.
    pub fn new(observe: Observe, router: Router) -> Api {
        Api { observe, of_queue: Arc::default(), of_job: Arc::default(), router }
    }
}

impl Routes for Api {
    fn answer(&self, request: hyper::Request<Incoming>, peer: &Peer) -> impl Answer + use<> {
        let Some(asked) = find(request.method(), request.uri().path()) else {
            return Either::Right(self.router.answer(request, peer));
        };
        let (route, counts) = match asked {
            Asked::Publish(_) | Asked::Consume(_) => (CONSUME, &self.of_queue),
            Asked::Ack(_) => (JOB, &self.of_job),
        };
        let handle = |request, labels| handle(asked, request, labels, peer, &self.observe.state);
        let request = request.map(Body::new);
        let watched = self.observe.watch(request, Some(route), Some(peer.addr.ip()), counts, handle);
        Either::Left(watched.respond())
    }
}

type Handling = Pin<Box<dyn Future<Output = HandlerResult> + Send>>;

/// Recognizes a request for the fast path. `None` passes it to the router.
fn find(method: &Method, path: &str) -> Option<Asked> {
    let parts = path::parts(path);
    let names = || Names::of(parts);
    if parts[1] == Some(SCHEDULES) {
        return None;
    }
    Some(match (method, parts) {
        (&Method::PUT, [Some(_), Some(_), None, ..]) => {
            Asked::Publish(names().and_then(|names| names.queue()))
        }
        (&Method::GET, [Some(_), Some(_), None, ..]) => {
            Asked::Consume(names().and_then(|names| names.queues()))
        }
        (&Method::DELETE, [Some(_), Some(_), Some("job"), Some(_), None]) => {
            Asked::Ack(names().and_then(|names| Ok((names.queue()?, names.job_id()))))
        }
        _ => return None,
    })
}

fn handle(
    asked: Asked,
    request: Request,
    labels: Arc<Labels>,
    peer: &Peer,
    state: &Arc<AppState>,
) -> Handling {
    let (parts, body) = request.into_parts();
    let state = state.clone();
    match asked {
        Asked::Publish(queue) => Box::pin(async move {
            let auth = Authorized::of(queue?, None, head(&parts, &labels), &state).await?;
            publish::publish(state, auth, Request::from_parts(parts, body)).await
        }),
        Asked::Consume(queues) => Box::pin(consume(queues, parts, labels, peer.clone(), state)),
        Asked::Ack(job) => Box::pin(async move {
            let (queue, job_id) = job?;
            let auth = Authorized::of(queue, job_id, head(&parts, &labels), &state).await?;
            hold::ack(auth, parts.uri.query()).await
        }),
    }
}

/// Consumes. Not an `async fn`, whose future would store the arguments twice for each parked poll.
fn consume(
    queues: Result<(Namespace, Vec<QueueName>), ApiError>,
    parts: Parts,
    labels: Arc<Labels>,
    peer: Peer,
    state: Arc<AppState>,
) -> impl Future<Output = HandlerResult> + Send {
    let query = parts.uri.query().map(str::to_owned);
    async move {
        let auth = AuthorizedConsume::of(queues?, head(&parts, &labels), &state).await?;
        let bytes = bytes_of(&parts);
        // A waiting consumer keeps no headers; its connection keeps the buffer they arrived in.
        drop(parts);
        consume::consume(state, auth, peer, (query, bytes)).await
    }
}

/// Returns the approximate size of a request head in bytes.
fn bytes_of(head: &Parts) -> usize {
    let uri = head.uri.path().len() + head.uri.query().map_or(0, str::len);
    head.headers.iter().fold(uri, |sum, (name, value)| sum + name.as_str().len() + value.len())
}

fn head<'a>(parts: &'a Parts, labels: &'a Labels) -> Head<'a> {
    Head { parts, labels: Some(labels) }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use axum::extract::MatchedPath;
    use http_body_util::BodyExt;
    use proptest::prelude::*;
    use tower::Service;

    use super::*;

    /// Returns a router with the public port's patterns, whose handlers return the pattern.
    fn telling() -> Router {
        let tell = axum::routing::any(async |pattern: MatchedPath| pattern.as_str().to_owned());
        let patterns: BTreeSet<&str> = routes().map(|route| route.pattern).collect();
        patterns.into_iter().fold(Router::new(), |router, pattern| router.route(pattern, tell.clone()))
    }

    fn routes() -> impl Iterator<Item = crate::http::Route> {
        crate::http::all_routes().into_iter().filter(|route| route.port == "public")
    }

    async fn told(path: &str) -> String {
        let request = Request::builder().uri(path).body(Body::empty()).expect("it is a path");
        let Ok(answer) = telling().call(request).await;
        let body = answer.into_body().collect().await.expect("it is in memory").to_bytes();
        String::from_utf8(body.to_vec()).expect("patterns are text")
    }

    /// Returns the name of the recognized request.
    fn found(method: &Method, path: &str) -> Option<&'static str> {
        find(method, path).map(|asked| match asked {
            Asked::Publish(_) => "publish",
            Asked::Consume(_) => "consume",
            Asked::Ack(_) => "ack",
        })
    }

    fn path() -> impl Strategy<Value = String> {
        let words =
            ["", "api", "ns", "q", "q,p", "job", "bulk", "key", SCHEDULES, "..", "%71", "%2F", "%ff", "a.b"];
        let word =
            || prop_oneof![prop::sample::select(words.to_vec()).prop_map(str::to_owned), "[a-z/%:*{}]{0,3}"];
        prop_oneof![
            (word(), word()).prop_map(|(namespace, queue)| format!("/api/{namespace}/{queue}")),
            (word(), word(), word())
                .prop_map(|(namespace, queue, id)| format!("/api/{namespace}/{queue}/job/{id}")),
            prop::collection::vec(word(), 0..6).prop_map(|words| format!("/{}", words.join("/"))),
        ]
    }

    proptest! {
        /// The fast path recognizes exactly the requests that the router would match with one of its three patterns and
        /// methods, which are those marked as fast in the table of routes.
        #[test]
        fn the_fast_path_has_all_requests_of_its_patterns_and_no_other(path in path(), method in 0..4usize) {
            let method = [Method::PUT, Method::GET, Method::DELETE, Method::POST][method].clone();
            prop_assume!(path.parse::<axum::http::Uri>().is_ok_and(|uri| uri.path() == path));
            let runtime = tokio::runtime::Builder::new_current_thread().build()?;
            let pattern = runtime.block_on(told(&path));
            let left = match (&method, &*pattern) {
                (&Method::PUT, CONSUME) => Some("publish"),
                (&Method::GET, CONSUME) => Some("consume"),
                (&Method::DELETE, JOB) => Some("ack"),
                _ => None,
            };
            let is_fast = |route: &crate::http::Route| route.fast && route.method == method.as_str();
            let is_left = routes().any(|route| is_fast(&route) && route.pattern == pattern);
            prop_assert_eq!(left.is_some(), is_left, "{} {} in the table of routes", method, path);
            // The router finds none of the three for an impossible queue name.
            let expected = left.filter(|_| path::parts(&path)[1] != Some(SCHEDULES));
            prop_assert_eq!(found(&method, &path), expected, "{} {}", method, path);
        }
    }

    #[test]
    fn what_is_asked_for_most_is_found() {
        for (method, path, expected) in [
            (Method::PUT, "/api/ns/q", Some("publish")),
            (Method::PUT, "/api/ns/%71", Some("publish")),
            (Method::PUT, "/api//q", Some("publish")),
            (Method::GET, "/api/ns/q,p", Some("consume")),
            (Method::DELETE, "/api/ns/q/job/01ARZ", Some("ack")),
            // Other routes have these methods or paths.
            (Method::DELETE, "/api/ns/q", None),
            (Method::POST, "/api/ns/q", None),
            (Method::HEAD, "/api/ns/q", None),
            (Method::PUT, "/api/ns/q/job/01ARZ", None),
            (Method::GET, "/api/ns/q/peek", None),
            (Method::DELETE, "/api/ns/q/job/01ARZ/", None),
            (Method::DELETE, "/api/ns/q/job/01ARZ/touch", None),
            (Method::DELETE, "/api/ns/q/deadletter", None),
            (Method::PUT, "/api/ns/", None),
            (Method::PUT, "/api/", None),
        ] {
            assert_eq!(found(&method, path), expected, "{method} {path}");
        }
    }

    /// Returns the size of a function's future.
    fn size_of_future<A, B, C, D, E, F>(_function: impl Fn(A, B, C, D, E) -> F) -> usize {
        size_of::<F>()
    }

    /// Guards against memory per parked poll. The allocator's next size is 1,280.
    #[test]
    fn a_parked_poll_keeps_little() {
        let size = size_of_future(consume);
        assert!(size <= 1280, "the future of a waiting consume takes {size} bytes");
    }
}
