//! The fast path of the public port. Nearly all requests publish a job, consume or ack: they go from the connection to
//! their handler without axum's router, which took an eighth of their instructions. What it puts into a request's
//! extensions (the pattern, the path's parts, the peer) is handed over instead. Every other request takes the
//! router, which knows these three too, and so does one with an escape in its path. Decides nothing that a handler
//! decides.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};

use axum::body::Body;
use axum::extract::{RawQuery, Request, State};
use axum::http::Method;
use axum::http::request::Parts;
use axum::response::Response;
use axum::{Extension, Router};
use hyper::body::Incoming;

use super::connection::Routes;
use super::middleware::{Observation, Observe};
use crate::http::answer::error::HandlerResult;
use crate::http::jobs::{consume, hold, publish};
use crate::http::request::extract::{Authorized, AuthorizedConsume, Head, Labels, Path};
use crate::http::request::origin::CONSUME;
use crate::http::request::peer::Peer;
use crate::http::state::AppState;
use crate::metrics::RouteMetrics;

/// The pattern of a job.
pub const JOB: &str = "/api/{namespace}/{queue}/job/{job_id}";

/// Who answers the requests of the public port.
#[derive(Clone)]
pub struct Api {
    observe: Observe,
    /// Count the requests of the pattern that publish and consume share, and of [`JOB`].
    of_queue: Arc<OnceLock<RouteMetrics>>,
    of_job: Arc<OnceLock<RouteMetrics>>,
    router: Router,
}

/// What is asked for most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verb {
    Publish,
    Consume,
    Ack,
}

/// What a request asks for, and where the parts of its path end.
#[derive(Clone, Copy, Debug)]
struct Found {
    verb: Verb,
    namespace: usize,
    queue: usize,
}

const API: &str = "/api/";
const OF_JOB: &str = "/job/";

impl Found {
    /// Takes the path apart that this was found for.
    fn path(self, path: &str) -> Path<'_> {
        let part = |range| path.get::<std::ops::Range<usize>>(range).unwrap_or_default();
        Path {
            namespace: part(API.len()..self.namespace),
            queue: part(self.namespace + 1..self.queue),
            job_id: part(self.queue + OF_JOB.len()..path.len()),
            key: "",
        }
    }
}

impl Api {
    /// `router` answers what is asked for seldom.
    pub fn new(observe: Observe, router: Router) -> Api {
        Api { observe, of_queue: Arc::default(), of_job: Arc::default(), router }
    }
}

impl Routes for Api {
    type Answer = Answer;

    fn answer(&self, request: hyper::Request<Incoming>, peer: &Peer) -> Answer {
        let Some(found) = find(request.method(), request.uri().path()) else {
            return Answer::Routed(self.router.answer(request, peer));
        };
        let (route, counts) = match found.verb {
            Verb::Publish | Verb::Consume => (CONSUME, &self.of_queue),
            Verb::Ack => (JOB, &self.of_job),
        };
        let handle = |request, labels| handle(found, request, labels, peer, &self.observe.state);
        let request = request.map(Body::new);
        Answer::Direct(self.observe.watch(request, Some(route), Some(peer.addr.ip()), counts, handle))
    }
}

/// What becomes the answer to a request.
pub enum Answer {
    Direct(Observation<Handling>),
    Routed(<Router as Routes>::Answer),
}

/// A handler at work.
type Handling = Pin<Box<dyn Future<Output = HandlerResult> + Send>>;

impl Future for Answer {
    type Output = Result<Response, Infallible>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.get_mut() {
            Answer::Direct(answer) => Pin::new(answer).poll(cx),
            Answer::Routed(answer) => Pin::new(answer).poll(cx),
        }
    }
}

/// What a request asks for. `None` if the router should say.
fn find(method: &Method, path: &str) -> Option<Found> {
    let rest = path.strip_prefix(API)?;
    if rest.contains('%') {
        return None;
    }
    let (namespace, rest) = rest.split_once('/')?;
    let (verb, queue) = match (method, rest.split_once('/')) {
        (&Method::PUT, None) => (Verb::Publish, rest),
        (&Method::GET, None) => (Verb::Consume, rest),
        (&Method::DELETE, Some((queue, rest))) => {
            let job_id = rest.strip_prefix(&OF_JOB[1..])?;
            if job_id.is_empty() || job_id.contains('/') {
                return None;
            }
            (Verb::Ack, queue)
        }
        _ => return None,
    };
    if namespace.is_empty() || queue.is_empty() {
        return None;
    }
    let namespace = API.len() + namespace.len();
    Some(Found { verb, namespace, queue: namespace + 1 + queue.len() })
}

/// Has the handler answer.
fn handle(
    found: Found,
    request: Request,
    labels: Arc<Labels>,
    peer: &Peer,
    state: &Arc<AppState>,
) -> Handling {
    let (parts, body) = request.into_parts();
    let state = state.clone();
    match found.verb {
        Verb::Publish => Box::pin(async move {
            let auth = Authorized::read(found.path(parts.uri.path()), head(&parts, &labels), &state).await?;
            publish::publish(State(state), auth, Request::from_parts(parts, body)).await
        }),
        Verb::Consume => Box::pin(consume(found, parts, labels, peer.clone(), state)),
        Verb::Ack => Box::pin(async move {
            let auth = Authorized::read(found.path(parts.uri.path()), head(&parts, &labels), &state).await?;
            hold::ack(auth, RawQuery(parts.uri.query().map(str::to_owned))).await
        }),
    }
}

/// Not an `async fn`, whose future would keep the arguments twice: there is one for each parked poll.
fn consume(
    found: Found,
    parts: Parts,
    labels: Arc<Labels>,
    peer: Peer,
    state: Arc<AppState>,
) -> impl Future<Output = HandlerResult> + Send {
    let query = parts.uri.query().map(str::to_owned);
    async move {
        let path = found.path(parts.uri.path());
        let auth = AuthorizedConsume::read(path, head(&parts, &labels), &state).await?;
        // A consumer that waits keeps no headers.
        drop(parts);
        consume::consume(State(state), auth, Extension(peer), RawQuery(query)).await
    }
}

fn head<'a>(parts: &'a Parts, labels: &'a Labels) -> Head<'a> {
    Head { parts, labels: Some(labels) }
}

#[cfg(test)]
mod tests {
    use axum::extract::{MatchedPath, RawPathParams};
    use http_body_util::BodyExt;
    use proptest::prelude::*;
    use tower::Service;

    use super::*;

    /// Patterns as the public port has them, with a handler that tells the pattern and what it names.
    fn telling() -> Router {
        let tell = axum::routing::any(async |pattern: MatchedPath, params: RawPathParams| {
            let params = params.iter().map(|(name, value)| format!(" {name}={value}")).collect::<String>();
            format!("{}{params}", pattern.as_str())
        });
        let others = [
            "/api/{namespace}",
            "/api/{namespace}/{queue}/bulk",
            "/api/{namespace}/{queue}/peek",
            "/api/{namespace}/{queue}/size",
            "/api/{namespace}/{queue}/ack",
            "/api/{namespace}/{queue}/pause",
            "/api/{namespace}/{queue}/jobs",
            "/api/{namespace}/{queue}/jobs/batch",
            "/api/{namespace}/{queue}/key/{key}",
            "/api/{namespace}/{queue}/job/{job_id}/touch",
            "/api/{namespace}/{queue}/deadletter",
            "/ping",
        ];
        let router = [CONSUME, JOB].into_iter().chain(others);
        router.fold(Router::new(), |router, pattern| router.route(pattern, tell.clone()))
    }

    async fn told(method: &Method, path: &str) -> String {
        let request = Request::builder().method(method).uri(path).body(Body::empty()).expect("it is a path");
        let Ok(answer) = telling().call(request).await;
        let body = answer.into_body().collect().await.expect("it is in memory").to_bytes();
        String::from_utf8(body.to_vec()).expect("names are text")
    }

    fn path() -> impl Strategy<Value = String> {
        let words = ["", "api", "ns", "q", "q,p", "job", "bulk", "peek", "key", "..", "%71", "%2F", "a.b"];
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
        #[test]
        fn what_is_found_is_what_the_router_finds(path in path(), method in 0..4usize) {
            let method = [Method::PUT, Method::GET, Method::DELETE, Method::POST][method].clone();
            prop_assume!(path.parse::<axum::http::Uri>().is_ok_and(|uri| uri.path() == path));
            if let Some(found) = find(&method, &path) {
                let Path { namespace, queue, job_id, key } = found.path(&path);
                let expected = match found.verb {
                    Verb::Publish | Verb::Consume => format!("{CONSUME} namespace={namespace} queue={queue}"),
                    Verb::Ack => format!("{JOB} namespace={namespace} queue={queue} job_id={job_id}"),
                };
                prop_assert_eq!(key, "", "none of these has a key");
                let runtime = tokio::runtime::Builder::new_current_thread().build()?;
                prop_assert_eq!(runtime.block_on(told(&method, &path)), expected, "{} {}", method, path);
            }
        }
    }

    #[test]
    fn what_is_asked_for_most_is_found() {
        let parts = |method, path| find(&method, path).map(|found| (found.verb, found.path(path)));
        let of = |queue, job_id| Path { namespace: "ns", queue, job_id, key: "" };
        for (method, path, expected) in [
            (Method::PUT, "/api/ns/q", Some((Verb::Publish, of("q", "")))),
            (Method::GET, "/api/ns/q,p", Some((Verb::Consume, of("q,p", "")))),
            (Method::DELETE, "/api/ns/q/job/01ARZ", Some((Verb::Ack, of("q", "01ARZ")))),
            // Others have these methods, or these paths.
            (Method::DELETE, "/api/ns/q", None),
            (Method::POST, "/api/ns/q", None),
            (Method::HEAD, "/api/ns/q", None),
            (Method::PUT, "/api/ns/q/job/01ARZ", None),
            (Method::GET, "/api/ns/q/peek", None),
            (Method::DELETE, "/api/ns/q/job/01ARZ/", None),
            (Method::DELETE, "/api/ns/q/deadletter", None),
            (Method::PUT, "/api//q", None),
            (Method::PUT, "/api/ns/", None),
            // The router decodes.
            (Method::PUT, "/api/ns/%71", None),
        ] {
            assert_eq!(parts(method.clone(), path), expected, "{method} {path}");
        }
    }

    /// How many bytes the future of a function takes.
    fn size_of_future<A, B, C, D, E, F>(_function: impl Fn(A, B, C, D, E) -> F) -> usize {
        size_of::<F>()
    }

    /// Guards against bytes that every parked poll would keep. The allocator's next size is 1,280.
    #[test]
    fn a_parked_poll_keeps_little() {
        let size = size_of_future(consume);
        assert!(size <= 1280, "a waiting consume takes {size} bytes, and what it waits for");
    }
}
