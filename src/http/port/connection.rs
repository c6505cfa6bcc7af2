//! One connection: hyper reads its requests, and [`Routes`] answer them. Knows nothing of routes.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Duration;

use axum::Router;
use axum::response::Response;
use axum::routing::future::RouteFuture;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tower::Service;

use super::head_timer::HeadTimer;
use super::stream::SharedStream;
use crate::http::request::peer::{Peer, Socket};
use crate::metrics::{Connected, PortMetrics};
use crate::process::tasks::StopSignal;

/// The most bytes that a request's line and headers may take.
const MAX_HEAD: usize = 64 * 1024;
/// How long a connection may take to send a request's head, or stay idle between two.
const HEAD_TIMEOUT: Duration = Duration::from_secs(120);
/// How long a TLS handshake may take.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// At the stop, a connection that has sent nothing yet may begin its request for this long, and connections in the
/// listen queue may be accepted.
pub const LAST_CALL: Duration = Duration::from_millis(500);

/// Who answers the requests of a port.
pub trait Routes: Clone + Send + Sync + 'static {
    /// What becomes an answer.
    type Answer: Future<Output = Result<Response, Infallible>> + Send + 'static;

    /// Answers a request that came from `peer`.
    fn answer(&self, request: hyper::Request<Incoming>, peer: &Peer) -> Self::Answer;
}

/// Handlers find the [`Peer`] in the request's extensions.
impl Routes for Router {
    type Answer = RouteFuture<Infallible>;

    fn answer(&self, mut request: hyper::Request<Incoming>, peer: &Peer) -> RouteFuture<Infallible> {
        request.extensions_mut().insert(peer.clone());
        // A router is always ready.
        self.clone().call(request)
    }
}

/// What a connection is counted in, until it ends.
pub struct Counted {
    pub _permit: OwnedSemaphorePermit,
    /// Among those of its address.
    pub _place: Option<Arc<()>>,
    pub _connected: Connected,
}

/// Serves one connection. Not an `async fn`: its future would keep every argument twice, and there is one for
/// every parked poll.
pub fn connection(
    stream: TcpStream,
    addr: SocketAddr,
    routes: impl Routes,
    stop: StopSignal,
    counted: (Counted, PortMetrics),
) -> impl Future<Output = ()> {
    let socket = socket(stream);
    serve(SharedStream::new(socket.clone()), Peer { socket, addr }, routes, stop, counted)
}

/// The same after a handshake, which has [`HANDSHAKE_TIMEOUT`].
pub async fn secured(
    tls: TlsAcceptor,
    stream: TcpStream,
    addr: SocketAddr,
    routes: impl Routes,
    stop: StopSignal,
    counted: (Counted, PortMetrics),
) {
    let socket = socket(stream);
    let mut handshake = Box::pin(timeout(HANDSHAKE_TIMEOUT, tls.accept(SharedStream::new(socket.clone()))));
    let done = match stop.run_until(&mut handshake).await {
        Some(done) => done,
        // One that has just connected is about to send its first request.
        None => match timeout(LAST_CALL, handshake).await {
            Ok(done) => done,
            Err(_) => return,
        },
    };
    // Errors here are the peer's: it speaks no TLS, or another, or nothing.
    let Ok(Ok(stream)) = done else { return };
    // What was read is no request yet.
    socket.was_read.store(false, Ordering::Relaxed);
    serve(stream, Peer { socket, addr }, routes, stop, counted).await;
}

fn socket(stream: TcpStream) -> Arc<Socket> {
    // Answers are small and waited for.
    let _ = stream.set_nodelay(true);
    Arc::new(Socket::new(stream))
}

/// Serves what is sent over `stream`, which is the peer's socket, or TLS over it.
fn serve(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    peer: Peer,
    routes: impl Routes,
    stop: StopSignal,
    (counted, metrics): (Counted, PortMetrics),
) -> impl Future<Output = ()> + Send {
    let socket = peer.socket.clone();
    let service = service_fn(move |request| routes.answer(request, &peer));
    let connection = http1::Builder::new()
        .timer(HeadTimer::default())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(MAX_HEAD)
        // The buffer may have got more than it asked for.
        .max_header_size(MAX_HEAD)
        // A handler that waits for long watches its peer itself.
        .half_close(true)
        .serve_connection(TokioIo::new(stream), service);
    // Moved into the task once, and polled there.
    let mut connection = Box::pin(connection);
    async move {
        let _counted = counted;
        // Errors here are the peer's: bad HTTP, or gone. hyper has answered what can be answered.
        if let Some(ended) = stop.run_until(&mut connection).await {
            if ended.is_err_and(|error| error.is_parse()) {
                metrics.bad_requests.inc();
            }
            return;
        }
        let last = async move {
            // One that has just connected is about to send its first request. hyper would close it.
            if !socket.was_read.load(Ordering::Relaxed) {
                let _ = timeout(LAST_CALL, socket.stream.readable()).await;
            }
            // hyper closes an idle connection when it is told to stop, also if a request lies in the kernel: so it
            // reads that first. The answers say by now that the connection ends.
            socket.ask_kernel();
            let read = std::future::poll_fn(|cx| Poll::Ready(connection.as_mut().poll(cx))).await;
            if read.is_pending() {
                connection.as_mut().graceful_shutdown();
                let _ = connection.await;
            }
        };
        // Not a part of the task of every connection.
        Box::pin(last).await;
    }
}
