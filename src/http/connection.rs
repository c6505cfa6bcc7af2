//! Connections: accepts them, bounds them, and lets a handler ask whether its peer is still there. Knows
//! nothing of routes.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use rustix::net::{RecvFlags, Shutdown, recv, shutdown};
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::{TcpListener, TcpSocket, TcpStream, lookup_host};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Sleep, sleep};
use tokio_util::sync::CancellationToken;
use tower::Service;

use crate::process::tasks::Tasks;

/// How many connections may wait to be accepted.
const BACKLOG: u32 = 4096;
/// The most bytes that a request's line and headers may take.
const MAX_HEAD: usize = 64 * 1024;
/// How long a connection may take to send a request's head, or stay idle between two.
const HEAD_TIMEOUT: Duration = Duration::from_secs(120);
/// How long a peer may take nothing of an answer: one that never reads would keep it in memory for ever.
const WRITE_STALL: Duration = Duration::from_secs(60);
/// After accept fails (no file descriptors left, most likely) the loop rests this long.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// The other end of the connection that a request came on.
#[derive(Clone, Debug)]
pub struct Peer {
    stream: Arc<TcpStream>,
    /// Where it came from.
    pub addr: SocketAddr,
}

impl Peer {
    /// Whether it has closed the connection, as far as the kernel knows now.
    pub fn is_gone(&self) -> bool {
        match self.peek() {
            Ok(read) => read == 0,
            Err(e) => !matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted),
        }
    }

    /// Returns when it has closed the connection. hyper could notice as well, but for that it keeps a buffer
    /// of 8 KiB ready to read into, for every poll that is parked.
    pub async fn gone(&self) {
        loop {
            let peeked = match self.stream.readable().await {
                Ok(()) => self.stream.try_io(Interest::READABLE, || self.peek()),
                Err(error) => Err(error),
            };
            match peeked {
                Ok(0) => return,
                // It has sent its next request already. What comes after that cannot be peeked at.
                Ok(_) => std::future::pending().await,
                Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
                Err(_) => return,
            }
        }
    }

    /// How many bytes can be read now, 0 or 1. 0 is the end of the stream.
    fn peek(&self) -> io::Result<usize> {
        let mut byte = [0u8; 1];
        let (_, read) = recv(&*self.stream, &mut byte[..], RecvFlags::PEEK | RecvFlags::DONTWAIT)?;
        Ok(read)
    }
}

/// Binds a `host:port` and listens there.
pub async fn listen(name: &str) -> io::Result<TcpListener> {
    let addr = lookup_host(name).await?.next().ok_or(io::ErrorKind::AddrNotAvailable)?;
    let socket = if addr.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.set_reuseaddr(true)?;
    socket.bind(addr)?;
    socket.listen(BACKLOG)
}

/// Serves `routes` on `listener` until `tasks` are stopped. Each connection is one of `tasks`; at the stop it
/// finishes the request that it is in, and ends. At most `most` connections at a time: further ones wait in the
/// listen queue.
pub async fn serve(listener: TcpListener, routes: Router, most: usize, tasks: Tasks) {
    let permits = Arc::new(Semaphore::new(most.min(Semaphore::MAX_PERMITS)));
    let stop = tasks.stopping();
    let accept = async || {
        // Nobody closes the semaphore.
        let permit = permits.clone().acquire_owned().await.ok()?;
        Some((permit, listener.accept().await))
    };
    while let Some(Some((permit, accepted))) = stop.run_until_cancelled(accept()).await {
        match accepted {
            Ok((stream, addr)) => {
                tasks.spawn(connection(stream, addr, routes.clone(), stop.clone(), permit));
            }
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Serves one connection. Not an `async fn`: its future would keep every argument twice, and there is one for
/// every parked poll.
fn connection(
    stream: TcpStream,
    addr: SocketAddr,
    routes: Router,
    stop: CancellationToken,
    permit: OwnedSemaphorePermit,
) -> impl Future<Output = ()> {
    // Answers are small and waited for.
    let _ = stream.set_nodelay(true);
    let stream = Arc::new(stream);
    let peer = Peer { stream: stream.clone(), addr };
    let service = tower::service_fn(move |mut request: Request<hyper::body::Incoming>| {
        request.extensions_mut().insert(peer.clone());
        routes.clone().call(request)
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(MAX_HEAD)
        // A handler that waits for long watches its peer itself.
        .half_close(true)
        .serve_connection(TokioIo::new(SharedStream::new(stream)), TowerToHyperService::new(service));
    // Moved into the task once, and polled there.
    let mut connection = Box::pin(connection);
    async move {
        let _permit = permit;
        // Errors here are the peer's: bad HTTP, or gone. hyper has answered what can be answered.
        tokio::select! {
            _ = connection.as_mut() => return,
            () = stop.cancelled() => connection.as_mut().graceful_shutdown(),
        }
        let _ = connection.await;
    }
}

/// A stream with two owners: hyper reads and writes it, and [`Peer`] peeks at it.
struct SharedStream {
    stream: Arc<TcpStream>,
    /// Runs while an answer cannot be written.
    stalled: Option<Pin<Box<Sleep>>>,
}

impl SharedStream {
    fn new(stream: Arc<TcpStream>) -> SharedStream {
        SharedStream { stream, stalled: None }
    }

    /// Writes as much as the kernel takes. Fails when it takes nothing for [`WRITE_STALL`].
    fn poll_with(
        &mut self,
        cx: &mut Context<'_>,
        write: impl Fn(&TcpStream) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        while self.stream.poll_write_ready(cx)?.is_ready() {
            match write(&self.stream) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                done => {
                    self.stalled = None;
                    return Poll::Ready(done);
                }
            }
        }
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(sleep(WRITE_STALL)));
        ready!(stalled.as_mut().poll(cx));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for SharedStream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        loop {
            ready!(self.stream.poll_read_ready(cx))?;
            // Into memory that is not touched before: most of a buffer is never used.
            match self.stream.try_read_buf(buf) {
                Ok(_) => return Poll::Ready(Ok(())),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                Err(e) => return Poll::Ready(Err(e)),
            }
        }
    }
}

impl AsyncWrite for SharedStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_with(cx, |stream| stream.try_write(buf))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_with(cx, |stream| stream.try_write_vectored(bufs))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(shutdown(&*self.stream, Shutdown::Write).map_err(io::Error::from))
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;
    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_does_not_read_is_given_up() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let _peer = TcpStream::connect(address).await.expect("it listens");
        let (stream, _) = listener.accept().await.expect("it is connected");
        let mut stream = SharedStream::new(Arc::new(stream));
        let began = Instant::now();
        // Far more than the kernel keeps for both ends.
        let written = stream.write_all(&vec![0; 64 << 20]).await;
        let error = written.expect_err("nobody reads, so not all can be written");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut, "{error}");
        assert!(began.elapsed() >= WRITE_STALL, "given up after {:?}", began.elapsed());
    }
}
