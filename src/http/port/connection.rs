//! One connection: hyper parses its requests, and [`Routes`] answer them. Independent of routes.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Duration;

use axum::Router;
use axum::response::Response;
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

/// Maximum bytes of a request's line and headers.
const MAX_HEAD: usize = 64 * 1024;
/// Timeout for a request's head, and for an idle connection.
const HEAD_TIMEOUT: Duration = Duration::from_secs(120);
/// Timeout of a TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// When stopping: time for new connections to begin their first request, and for accepting connections from the listen
/// queue.
pub const LAST_CALL: Duration = Duration::from_millis(500);

/// Future of a response.
pub trait Answer: Future<Output = Result<Response, Infallible>> + Send {}

impl<F: Future<Output = Result<Response, Infallible>> + Send> Answer for F {}

/// Answers the requests of a port.
pub trait Routes: Clone + Send + Sync + 'static {
    /// Answers a request from `peer`.
    fn answer(&self, request: hyper::Request<Incoming>, peer: &Peer) -> impl Answer + use<Self>;
}

/// Handlers get the [`Peer`] from the request's extensions.
impl Routes for Router {
    fn answer(&self, mut request: hyper::Request<Incoming>, peer: &Peer) -> impl Answer + use<> {
        request.extensions_mut().insert(peer.clone());
        // A router is always ready.
        self.clone().call(request)
    }
}

/// Counters that include a connection, until dropped.
pub struct Counted {
    pub _permit: OwnedSemaphorePermit,
    /// Counts toward its address.
    pub _place: Option<Arc<()>>,
    pub _connected: Connected,
}

/// Serves one connection. Not an `async fn`, whose future would store every argument twice for every parked poll.
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

/// Like [`connection`], after a TLS handshake within [`HANDSHAKE_TIMEOUT`].
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
        // A client that has just connected is about to send its first request.
        None => match timeout(LAST_CALL, handshake).await {
            Ok(done) => done,
            Err(_) => return,
        },
    };
    // Errors here are caused by the peer: it does not use TLS, or an unsupported version, or sends nothing.
    let Ok(Ok(stream)) = done else { return };
    // Bytes read so far were not part of a request.
    socket.was_read.store(false, Ordering::Relaxed);
    serve(stream, Peer { socket, addr }, routes, stop, counted).await;
}

fn socket(stream: TcpStream) -> Arc<Socket> {
    // Replies are small, and clients wait for them.
    let _ = stream.set_nodelay(true);
    Arc::new(Socket::new(stream))
}

/// Serves requests over `stream`: the peer's socket, or TLS over it.
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
        // The buffer may have received more than requested.
        .max_header_size(MAX_HEAD)
        // A handler that waits for long watches its peer itself.
        .half_close(true)
        .serve_connection(TokioIo::new(stream), service);
    // Moved into the task once, and polled there.
    let mut connection = Box::pin(connection);
    async move {
        let _counted = counted;
        // Errors here are caused by the peer: invalid HTTP, or it disconnected. hyper has sent a reply if possible.
        if let Some(ended) = stop.run_until(&mut connection).await {
            if ended.is_err_and(|error| error.is_parse()) {
                metrics.bad_requests.inc();
            }
            return;
        }
        let last = async move {
            // A client that has just connected is about to send its first request. hyper would close the connection.
            if !socket.was_read.load(Ordering::Relaxed) {
                let _ = timeout(LAST_CALL, socket.stream.readable()).await;
            }
            // On shutdown hyper closes an idle connection even if a request has arrived in the kernel, so read that
            // first. Replies announce the end of the connection by now.
            socket.ask_kernel();
            let read = std::future::poll_fn(|cx| Poll::Ready(connection.as_mut().poll(cx))).await;
            if read.is_pending() {
                connection.as_mut().graceful_shutdown();
                let _ = connection.await;
            }
        };
        // Boxed, to keep it out of every connection's task.
        Box::pin(last).await;
    }
}
