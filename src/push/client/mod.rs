//! The HTTP client of push. It resolves names itself, checks every address, and connects only to addresses
//! that passed, so no name leads where push may not go. Connections are kept alive and reused. Redirects are
//! never followed. Knows no job.

mod connect;
mod places;

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Body;
use hyper::header::{HeaderMap, PROXY_AUTHORIZATION};
use hyper::{Request, Response, StatusCode};
use hyper_util::client::legacy::connect::capture_connection;
use hyper_util::client::legacy::{Client as Pool, Error as PoolError};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use rustls::RootCertStore;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};
use tokio_rustls::TlsConnector;

use self::connect::Connector;
pub use self::connect::{ConnectFault, Proxy, Resolve, roots};
use self::places::{Places, Used};
use super::address::AddressGuard;
use crate::tls::plain_client;

/// Maximum bytes of a response that are read.
pub const MAX_ANSWER: usize = 1 << 20;
/// Bytes of a response body that are read without taking a turn. Responses with larger bodies, where the body
/// matters, take turns.
pub const SMALL_ANSWER: usize = 64 << 10;
/// How many larger responses are read at a time, of up to [`MAX_ANSWER`] bytes each.
const LARGE_ANSWERS: usize = 64;
/// Longest turn of one of them.
const TURN: Duration = Duration::from_secs(10);
/// How long an idle connection is kept: shorter than the servers of Node and Python keep it.
const IDLE: Duration = Duration::from_secs(4);
/// Maximum idle connections per endpoint.
const MOST_IDLE: usize = 1000;
/// Bytes that are kept, to be shown, of a response whose body does not matter.
pub const KEPT: usize = 1024;

/// A response of an endpoint.
#[derive(Clone, Debug)]
pub struct EndpointAnswer {
    pub status: u16,
    pub headers: HeaderMap,
    /// At most [`MAX_ANSWER`] bytes, or the first [`KEPT`] if the body does not matter.
    pub body: Bytes,
    /// Whether `body` is complete.
    pub whole: bool,
}

/// Sends requests. A trait, so that tests can respond without a network.
#[async_trait]
pub trait Send: std::marker::Send + Sync + fmt::Debug + 'static {
    /// Sends a request, and reads the response within `time`. With `body_counts`, a response whose body is
    /// incomplete by then is a timeout.
    async fn send(
        &self,
        request: Request<Bytes>,
        time: Duration,
        body_counts: bool,
    ) -> Result<EndpointAnswer, ConnectFault>;
}

/// Sends over its own connections.
#[derive(Debug)]
pub struct Client {
    pool: Pool<Connector, Full<Bytes>>,
    guard: Arc<AddressGuard>,
    proxy: Option<Proxy>,
    large: Semaphore,
}

impl Client {
    /// Verifies certificates against `roots`. Opens at most `connections` connections, idle ones included.
    pub fn new(
        guard: Arc<AddressGuard>,
        resolver: Arc<dyn Resolve>,
        proxy: Option<Proxy>,
        roots: RootCertStore,
        connections: usize,
    ) -> Client {
        let tls = TlsConnector::from(Arc::new(plain_client(roots)));
        let places = Arc::new(Places::new(connections));
        let connector = Connector { guard: guard.clone(), resolver, proxy: proxy.clone(), tls, places };
        let pool = Pool::builder(TokioExecutor::new())
            .pool_idle_timeout(IDLE)
            .pool_max_idle_per_host(MOST_IDLE)
            .pool_timer(TokioTimer::new())
            .http1_max_buf_size(SMALL_ANSWER)
            .build(connector);
        Client { pool, guard, proxy, large: Semaphore::new(LARGE_ANSWERS) }
    }

    async fn answer(
        &self,
        request: Request<Bytes>,
        deadline: Instant,
        body_counts: bool,
    ) -> Result<EndpointAnswer, ConnectFault> {
        let secure = request.uri().scheme_str() == Some("https");
        if self.guard.https_only && !secure {
            return Err(ConnectFault::Forbidden("PushHttps allows https only".into()));
        }
        let (parts, body) = request.into_parts();
        let mut again = false;
        let response = loop {
            let mut request = Request::from_parts(parts.clone(), Full::new(body.clone()));
            if let (Some(Proxy { auth: Some(auth), .. }), false) = (&self.proxy, secure) {
                request.headers_mut().insert(PROXY_AUTHORIZATION, auth.clone());
            }
            let used = capture_connection(&mut request);
            match self.pool.request(request).await {
                Ok(response) => break response,
                Err(error) => {
                    // The peer may have closed an idle connection just as it was reused. Retried once only:
                    // the request may also have crashed the peer.
                    let kept = used.connection_metadata().as_ref().is_some_and(Used::before);
                    if !kept || again || !was_closed(&error) {
                        return Err(fault(&error));
                    }
                    again = true;
                }
            }
        };
        let used = response.extensions().get().map(|used: &Arc<Used>| (used.clone(), used.answered()));
        if self.proxy.is_some() && !secure && response.status() == StatusCode::PROXY_AUTHENTICATION_REQUIRED {
            return Err(ConnectFault::Proxy("it requires a password".into()));
        }
        let body_counts = body_counts && response.status().is_success();
        let answer = read(response, deadline, body_counts, &self.large).await;
        if let Some((used, written)) = used {
            used.read(written);
        }
        answer
    }
}

#[async_trait]
impl Send for Client {
    async fn send(
        &self,
        request: Request<Bytes>,
        time: Duration,
        body_counts: bool,
    ) -> Result<EndpointAnswer, ConnectFault> {
        let deadline = Instant::now() + time;
        let answer = self.answer(request, deadline, body_counts);
        timeout_at(deadline, answer).await.unwrap_or(Err(ConnectFault::TimeOut(time)))
    }
}

/// Reads the body. If it does not matter, stops at the deadline; a large body also stops at the end of its
/// turn.
async fn read<B>(
    response: Response<B>,
    deadline: Instant,
    body_counts: bool,
    large: &Semaphore,
) -> Result<EndpointAnswer, ConnectFault>
where
    B: Body<Data = Bytes, Error: fmt::Display> + Unpin,
{
    let (parts, mut body) = response.into_parts();
    let mut bytes = Vec::new();
    let (mut whole, mut came) = (false, 0);
    let most = if body_counts { MAX_ANSWER } else { KEPT };
    // If the body does not matter, the response must be ready before the caller's timeout; otherwise that
    // timeout applies.
    let mut until = (!body_counts).then_some(deadline - Duration::from_millis(5));
    let mut turn = None;
    loop {
        let next = match until {
            None => Ok(body.frame().await),
            Some(until) => timeout_at(until, body.frame()).await,
        };
        let frame = match next {
            Ok(Some(Ok(frame))) => frame,
            Ok(None) => {
                whole = true;
                break;
            }
            Ok(Some(Err(error))) if body_counts => return Err(ConnectFault::Broken(error.to_string())),
            Ok(Some(Err(_))) | Err(_) => break,
        };
        if let Some(data) = frame.data_ref() {
            came += data.len();
            if body_counts && came > SMALL_ANSWER && turn.is_none() {
                turn = large.acquire().await.ok();
                until = Some(deadline.min(Instant::now() + TURN));
            }
            bytes.extend_from_slice(&data[..data.len().min(most - bytes.len())]);
            if came > MAX_ANSWER {
                break;
            }
        }
    }
    Ok(EndpointAnswer { status: parts.status.as_u16(), headers: parts.headers, body: bytes.into(), whole })
}

/// Whether the connection was closed before the first byte of a response.
fn was_closed(error: &PoolError) -> bool {
    let mut source = std::error::Error::source(error);
    while let Some(error) = source {
        if let Some(error) = error.downcast_ref::<hyper::Error>()
            && (error.is_incomplete_message() || error.is_canceled() || error.is_closed())
        {
            return true;
        }
        if let Some(error) = error.downcast_ref::<io::Error>() {
            use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset};
            return matches!(error.kind(), ConnectionReset | BrokenPipe | ConnectionAborted);
        }
        source = error.source();
    }
    false
}

/// Returns the cause of a pool error: the connector's own fault, or a broken connection.
fn fault(error: &PoolError) -> ConnectFault {
    let mut source: Option<&(dyn std::error::Error + 'static)> = Some(error);
    let mut last = error.to_string();
    while let Some(error) = source {
        if let Some(fault) = error.downcast_ref::<ConnectFault>() {
            return fault.clone();
        }
        last = error.to_string();
        source = error.source();
    }
    ConnectFault::Broken(last)
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use hyper::body::Frame;

    use super::*;

    /// `left` pieces of 32 KiB, then the end, or nothing forever.
    struct Pieces {
        left: usize,
        ends: bool,
    }

    impl Body for Pieces {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            if self.left == 0 {
                return if self.ends { Poll::Ready(None) } else { Poll::Pending };
            }
            self.left -= 1;
            Poll::Ready(Some(Ok(Frame::data(vec![0; 32 << 10].into()))))
        }
    }

    /// Guards against responses that fill the memory together, and against one that never ends and keeps its
    /// turn.
    #[tokio::test(start_paused = true)]
    async fn large_answers_take_turns() {
        let (began, large) = (Instant::now(), Semaphore::new(1));
        let ask = async |left: usize, ends: bool| {
            let deadline = began + Duration::from_secs(60);
            let answer = read(Response::new(Pieces { left, ends }), deadline, true, &large).await;
            let answer = answer.expect("an answer");
            (answer.body.len() >> 10, answer.whole, began.elapsed().as_secs())
        };
        let (stalls, large, small) = tokio::join!(ask(4, false), ask(20, true), ask(2, true));
        assert_eq!(small, (64, true, 0), "a small answer waits for none: KiB, whole, seconds");
        assert_eq!(stalls, (128, false, 10), "what does not come within its turn is left");
        assert_eq!(large, (640, true, 10), "the next one has its turn then");
    }
}
