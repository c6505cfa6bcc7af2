//! Connections: accepts them, bounds them, and lets a handler ask whether its peer is still there. Knows
//! nothing of routes.
//!
//! A peer is *gone* when it has closed its connection, or only its writing side: the kernel tells both by the same
//! packet, and nearly everybody who sends it has left. Bytes that it sent before do not hide that.

use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use ahash::HashMap;
use axum::Router;
use axum::response::Response;
use axum::routing::future::RouteFuture;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{RecvFlags, Shutdown, recv, shutdown, sockopt};
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::{TcpListener, TcpSocket, TcpStream, lookup_host};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep, sleep, timeout, timeout_at};
use tower::Service;

use super::head_timer::HeadTimer;
use super::logins::network;
use crate::process::tasks::{StopSignal, Tasks};

/// How many connections may wait to be accepted.
const BACKLOG: u32 = 4096;
/// The most bytes that a request's line and headers may take.
const MAX_HEAD: usize = 64 * 1024;
/// How long a connection may take to send a request's head, or stay idle between two.
const HEAD_TIMEOUT: Duration = Duration::from_secs(120);
/// A peer must take [`WRITE_LEAST`] of an answer, or all of it, within this time: one that never reads, or a byte
/// now and then, would keep the answer in memory for ever.
const WRITE_STALL: Duration = Duration::from_secs(10);
const WRITE_LEAST: usize = 64 * 1024;
/// After accept fails (no file descriptors left, most likely) the loop rests this long.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Failures to accept are one outage until none has come for this long. It is logged when it begins and ends.
const ACCEPT_SETTLED: Duration = Duration::from_secs(3);
/// A peer that is silent for `KEEPALIVE_IDLE` is asked whether it is there, `KEEPALIVE_COUNT` times,
/// `KEEPALIVE_INTERVAL` apart. One that lost its power or its network is gone after two minutes.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(60);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(15);
const KEEPALIVE_COUNT: u32 = 4;
/// At the stop, a connection that has sent nothing yet may begin its request for this long, and connections in the
/// listen queue may be accepted.
const LAST_CALL: Duration = Duration::from_millis(500);
/// How much is read at a time around the runtime: see [`Socket::ask_kernel`].
const PIECE: usize = 4096;

/// A connection's socket.
#[derive(Debug)]
struct Socket {
    stream: TcpStream,
    /// The runtime may not know of bytes that the kernel has: the next read asks the kernel itself.
    ask_kernel: AtomicBool,
    /// Something was read.
    was_read: AtomicBool,
}

impl Socket {
    fn new(stream: TcpStream) -> Socket {
        Socket { stream, ask_kernel: AtomicBool::new(false), was_read: AtomicBool::new(false) }
    }

    /// Has the next read ask the kernel, whatever the runtime knows. The reader and the caller are one task, so
    /// the flag needs no order.
    fn ask_kernel(&self) {
        self.ask_kernel.store(true, Ordering::Relaxed);
    }
}

/// The other end of the connection that a request came on.
#[derive(Clone, Debug)]
pub struct Peer {
    socket: Arc<Socket>,
    /// Where it came from.
    pub addr: SocketAddr,
}

impl Peer {
    /// Whether it is gone, as far as the kernel knows now. One system call.
    pub fn is_gone(&self) -> bool {
        const NOW: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };
        let gone = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
        let mut sockets = [PollFd::new(&self.socket.stream, gone)];
        // An error is about the call, not about the peer.
        poll(&mut sockets, Some(&NOW)).is_ok() && sockets[0].revents().intersects(gone)
    }

    /// Returns when it is gone. hyper could notice as well, but for that it keeps a buffer of 8 KiB ready to read
    /// into, for every poll that is parked; and it would read the next requests for it. Makes no system call.
    pub async fn gone(&self) {
        let stream = &self.socket.stream;
        while let Ok(ready) = stream.ready(Interest::READABLE).await
            && !ready.is_read_closed()
        {
            // It sends its next request already, or the runtime has not forgotten the last one. The bytes stay
            // where they are. The runtime is told to forget them, so that it tells of the next event.
            self.socket.ask_kernel();
            let _: io::Result<()> =
                stream.try_io(Interest::READABLE, || Err(io::ErrorKind::WouldBlock.into()));
        }
    }
}

/// Binds a `host:port` and listens there.
pub async fn listen(name: &str) -> io::Result<TcpListener> {
    let addr = lookup_host(name).await?.next().ok_or(io::ErrorKind::AddrNotAvailable)?;
    let socket = if addr.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.set_reuseaddr(true)?;
    // Connections have what their listener has.
    socket.set_keepalive(true)?;
    sockopt::set_tcp_keepidle(&socket, KEEPALIVE_IDLE)?;
    sockopt::set_tcp_keepintvl(&socket, KEEPALIVE_INTERVAL)?;
    sockopt::set_tcp_keepcnt(&socket, KEEPALIVE_COUNT)?;
    socket.bind(addr)?;
    socket.listen(BACKLOG)
}

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

/// Serves `routes` on `listener` until `tasks` are stopped. Each connection is one of `tasks`; at the stop it
/// answers what has come, and ends. At most `most` connections at a time: further ones wait in the listen queue. Those
/// of one address beyond `most_of_address` are closed. `port` is what the log calls it.
pub async fn serve(
    port: &'static str,
    listener: TcpListener,
    routes: impl Routes,
    (most, most_of_address): (usize, usize),
    tasks: Tasks,
) {
    let mut addresses = Addresses { most: most_of_address, connected: HashMap::default(), sweep_at: 0 };
    let permits = Arc::new(Semaphore::new(most.min(Semaphore::MAX_PERMITS)));
    let stop = tasks.stopping();
    let [mut trouble, mut refused] = [(); 2].map(|()| AcceptTrouble { port, failing: None });
    let begin = |stream, addr, permit| {
        tasks.spawn(connection(stream, addr, routes.clone(), tasks.stop_signal(), permit));
    };
    let accept = async || {
        // Nobody closes the semaphore.
        let permit = permits.clone().acquire_owned().await.ok()?;
        Some((permit, listener.accept().await))
    };
    while let Some(Some((permit, accepted))) = stop.run_until_cancelled(accept()).await {
        match accepted {
            Ok((stream, addr)) => {
                trouble.works();
                match addresses.enter(addr.ip()) {
                    Ok(place) => {
                        refused.works();
                        begin(stream, addr, (permit, place));
                    }
                    Err(error) => refused.failed(&error),
                }
            }
            Err(error) => {
                trouble.failed(&error);
                drop(permit);
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    // For their peers, those in the listen queue are connected, and many have sent a request.
    let until = Instant::now() + LAST_CALL;
    let Ok(listener) = listener.into_std() else { return };
    while let Ok((stream, addr)) = listener.accept() {
        let accepted = stream.set_nonblocking(true).and_then(|()| TcpStream::from_std(stream));
        let Ok(Ok(permit)) = timeout_at(until, permits.clone().acquire_owned()).await else { return };
        if let (Ok(stream), Ok(place)) = (accepted, addresses.enter(addr.ip())) {
            begin(stream, addr, (permit, place));
        }
    }
}

/// Who is connected. Addresses of one network count as one, see [`network`].
#[derive(Debug)]
struct Addresses {
    most: usize,
    /// Each of its connections has a handle too.
    connected: HashMap<IpAddr, Arc<()>>,
    /// With so many addresses, those that have left are forgotten.
    sweep_at: usize,
}

impl Addresses {
    /// One more connection of this address, for as long as what it gets is kept. Nothing is counted of this machine, where
    /// a balancer may have all clients behind it.
    fn enter(&mut self, address: IpAddr) -> io::Result<Option<Arc<()>>> {
        if address.to_canonical().is_loopback() {
            return Ok(None);
        }
        let address = network(address);
        if self.connected.len() >= self.sweep_at {
            self.connected.retain(|_, place| Arc::strong_count(place) > 1);
            self.sweep_at = 64.max(2 * self.connected.len());
        }
        let place = self.connected.entry(address).or_default();
        if Arc::strong_count(place) > self.most {
            return Err(io::Error::other(format!("{address} has {} already", self.most)));
        }
        Ok(Some(place.clone()))
    }
}

/// Logs failures to accept connections, or some of them, once an outage.
struct AcceptTrouble {
    port: &'static str,
    /// When the outage began, when the last failure came, and how many came.
    failing: Option<(Instant, Instant, u64)>,
}

impl AcceptTrouble {
    fn failed(&mut self, error: &io::Error) {
        let now = Instant::now();
        match &mut self.failing {
            Some((_, last, failures)) => (*last, *failures) = (now, *failures + 1),
            None => {
                self.failing = Some((now, now, 1));
                tracing::warn!(port = self.port, %error, "connections cannot be accepted");
            }
        }
    }

    fn works(&mut self) {
        if let Some((since, last, failures)) = self.failing
            && last.elapsed() >= ACCEPT_SETTLED
        {
            let seconds = last.duration_since(since).as_secs();
            tracing::info!(port = self.port, failures, seconds, "connections can be accepted again");
            self.failing = None;
        }
    }
}

/// Serves one connection. Not an `async fn`: its future would keep every argument twice, and there is one for
/// every parked poll.
fn connection(
    stream: TcpStream,
    addr: SocketAddr,
    routes: impl Routes,
    stop: StopSignal,
    places: (OwnedSemaphorePermit, Option<Arc<()>>),
) -> impl Future<Output = ()> {
    // Answers are small and waited for.
    let _ = stream.set_nodelay(true);
    let socket = Arc::new(Socket::new(stream));
    let peer = Peer { socket: socket.clone(), addr };
    let service = service_fn(move |request| routes.answer(request, &peer));
    let connection = http1::Builder::new()
        .timer(HeadTimer::default())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(MAX_HEAD)
        // The buffer may have got more than it asked for.
        .max_header_size(MAX_HEAD)
        // A handler that waits for long watches its peer itself.
        .half_close(true)
        .serve_connection(TokioIo::new(SharedStream::new(socket.clone())), service);
    // Moved into the task once, and polled there.
    let mut connection = Box::pin(connection);
    async move {
        let _places = places;
        // Errors here are the peer's: bad HTTP, or gone. hyper has answered what can be answered.
        if stop.run_until(&mut connection).await.is_some() {
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

/// A stream with two owners: hyper reads and writes it, and [`Peer`] watches it.
struct SharedStream {
    socket: Arc<Socket>,
    /// While an answer cannot be written.
    stalled: Option<Stall>,
}

/// A peer that does not read, or slowly.
struct Stall {
    end: Pin<Box<Sleep>>,
    /// What was written since it began.
    taken: usize,
}

impl Stall {
    /// Ends it when enough was written.
    fn took(stalled: &mut Option<Stall>, done: &io::Result<usize>) {
        if let (Some(stall), Ok(n)) = (&mut *stalled, done) {
            stall.taken += n;
            if stall.taken >= WRITE_LEAST {
                *stalled = None;
            }
        }
    }
}

impl SharedStream {
    fn new(socket: Arc<Socket>) -> SharedStream {
        SharedStream { socket, stalled: None }
    }

    /// Writes as much as the kernel takes. Fails when it takes less than [`WRITE_LEAST`] in [`WRITE_STALL`].
    fn poll_with(
        &mut self,
        cx: &mut Context<'_>,
        write: impl Fn(&TcpStream) -> rustix::io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        let SharedStream { socket, stalled } = self;
        let stream = &socket.stream;
        while stream.poll_write_ready(cx)?.is_ready() {
            match stream.try_io(Interest::WRITABLE, || Ok(write(stream)?)) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                done => {
                    Stall::took(stalled, &done);
                    return Poll::Ready(done);
                }
            }
        }
        let stall = stalled.get_or_insert_with(|| Stall { end: Box::pin(sleep(WRITE_STALL)), taken: 0 });
        ready!(stall.end.as_mut().poll(cx));
        // The runtime is told when a third of the kernel's buffer is free: megabytes. The peer may have read less.
        let done = write(stream).map_err(io::Error::from);
        if done.as_ref().is_err_and(|e| e.kind() == io::ErrorKind::WouldBlock) {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        Stall::took(stalled, &done);
        Poll::Ready(done)
    }

    /// Reads what the kernel has, whatever the runtime knows of it. `None` when it has nothing.
    fn read_from_kernel(&self, buf: &mut ReadBuf<'_>) -> Option<io::Result<()>> {
        let mut piece = [0; PIECE];
        let most = buf.remaining().min(PIECE);
        match recv(&self.socket.stream, &mut piece[..most], RecvFlags::DONTWAIT) {
            Ok((_, read)) => {
                if read > 0 {
                    // There may be more, of which the runtime does not know either.
                    self.socket.ask_kernel();
                }
                buf.put_slice(&piece[..read]);
                Some(Ok(()))
            }
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => None,
            Err(error) => Some(Err(error.into())),
        }
    }
}

impl AsyncRead for SharedStream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let socket = &self.socket;
        if socket.ask_kernel.swap(false, Ordering::Relaxed)
            && let Some(read) = self.read_from_kernel(buf)
        {
            socket.was_read.store(true, Ordering::Relaxed);
            return Poll::Ready(read);
        }
        loop {
            ready!(socket.stream.poll_read_ready(cx))?;
            let room = buf.remaining();
            let mut read = None;
            // Fewer bytes than there is room for: the kernel has no more, and need not be asked again. The runtime
            // is told so, and keeps what it learns while this runs.
            let _: io::Result<()> = socket.stream.try_io(Interest::READABLE, || {
                // Into memory that is not touched before: most of a buffer is never used.
                let bytes = read.insert(socket.stream.try_read_buf(buf)).as_ref().copied().unwrap_or(room);
                if bytes < room { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(()) }
            });
            match read {
                Some(Ok(_)) => {
                    socket.was_read.store(true, Ordering::Relaxed);
                    return Poll::Ready(Ok(()));
                }
                Some(Err(e)) if e.kind() != io::ErrorKind::WouldBlock => return Poll::Ready(Err(e)),
                _ => {}
            }
        }
    }
}

impl AsyncWrite for SharedStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_with(cx, |stream| rustix::io::write(stream, buf))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_with(cx, |stream| rustix::io::writev(stream, bufs))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        // All that there was is written.
        self.stalled = None;
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(shutdown(&self.socket.stream, Shutdown::Write).map_err(io::Error::from))
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;
    use tokio::time::Instant;

    use super::*;

    #[tokio::test]
    async fn a_silent_peer_is_asked_whether_it_is_there() {
        let listener = listen("127.0.0.1:0").await.expect("a free port");
        let _peer =
            TcpStream::connect(listener.local_addr().expect("it is bound")).await.expect("it listens");
        let (stream, _) = listener.accept().await.expect("it is connected");
        let of = |value: rustix::io::Result<Duration>| value.expect("a TCP socket");
        assert_eq!(sockopt::socket_keepalive(&stream), Ok(true), "keepalive of an accepted connection");
        assert_eq!(
            of(sockopt::tcp_keepidle(&stream)),
            KEEPALIVE_IDLE,
            "silent for so long before it is asked"
        );
        assert_eq!(of(sockopt::tcp_keepintvl(&stream)), KEEPALIVE_INTERVAL, "between two questions");
        assert_eq!(sockopt::tcp_keepcnt(&stream), Ok(KEEPALIVE_COUNT), "how many questions");
    }

    #[tokio::test(start_paused = true)]
    async fn failures_to_accept_are_one_outage_until_they_have_ended_for_a_while() {
        let mut trouble = AcceptTrouble { port: "public", failing: None };
        let error = io::Error::other("the test says so");
        for _ in 0..100 {
            trouble.failed(&error);
            sleep(ACCEPT_SETTLED / 2).await;
            trouble.works();
            assert!(trouble.failing.is_some(), "one that works between two that fail does not end it");
        }
        assert!(trouble.failing.is_some_and(|(_, _, failures)| failures == 100), "{:?}", trouble.failing);
        sleep(ACCEPT_SETTLED).await;
        trouble.works();
        assert!(trouble.failing.is_none(), "nothing has failed for {ACCEPT_SETTLED:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_reads_a_byte_now_and_then_is_given_up() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let mut peer = TcpStream::connect(address).await.expect("it listens");
        let (stream, _) = listener.accept().await.expect("it is connected");
        let mut stream = SharedStream::new(Arc::new(Socket::new(stream)));
        let reader = async {
            // Enough at a time that the kernel tells the server of it.
            let mut some = vec![0; WRITE_LEAST / 8];
            while let Ok(n) = tokio::io::AsyncReadExt::read(&mut peer, &mut some).await
                && n > 0
            {
                sleep(WRITE_STALL / 2).await;
            }
        };
        let all = vec![0; 64 << 20];
        let error = tokio::select! {
            written = stream.write_all(&all) => written.expect_err("the peer reads far too little"),
            () = reader => panic!("the connection ended before the server gave it up"),
        };
        assert_eq!(error.kind(), io::ErrorKind::TimedOut, "{error}");
    }

    /// Guards against a slow reader that is taken for one that does not read: the runtime tells only of megabytes.
    #[tokio::test(start_paused = true)]
    async fn a_peer_that_reads_slowly_is_served() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let mut peer = TcpStream::connect(address).await.expect("it listens");
        let (stream, _) = listener.accept().await.expect("it is connected");
        let mut stream = SharedStream::new(Arc::new(Socket::new(stream)));
        let reader = async {
            let mut some = vec![0; WRITE_LEAST];
            for _ in 0..60 {
                // Twelve times as much as must be: its kernel tells of room when a sixteenth of its buffer is free.
                sleep(WRITE_STALL / 12).await;
                tokio::io::AsyncReadExt::read_exact(&mut peer, &mut some).await.expect("it is served");
            }
        };
        let all = vec![0; 64 << 20];
        tokio::select! {
            written = stream.write_all(&all) => panic!("the peer has not read all: {written:?}"),
            () = reader => {}
        }
    }

    /// Guards against idle connections of one address that fill the port, and against a balancer on this machine that is
    /// taken for one client.
    #[test]
    fn one_address_has_its_connections_and_no_more() {
        let mut addresses = Addresses { most: 2, connected: HashMap::default(), sweep_at: 0 };
        let ip = |text: &str| text.parse::<IpAddr>().expect("an address");
        let mut places = Vec::new();
        for (address, fits) in [
            ("192.0.2.1", true),
            ("::ffff:192.0.2.1", true),
            ("192.0.2.1", false),
            ("192.0.2.2", true),
            ("2001:db8::1", true),
            ("2001:db8::2", true),
            ("2001:db8::3", false),
            ("2001:db8:0:1::3", true),
        ] {
            let place = addresses.enter(ip(address));
            assert_eq!(place.is_ok(), fits, "{address} beside {} others: {place:?}", places.len());
            places.extend(place);
        }
        for _ in 0..5 {
            for own in ["127.0.0.1", "127.1.2.3", "::1", "::ffff:127.0.0.1"] {
                assert!(addresses.enter(ip(own)).is_ok(), "{own} is this machine");
            }
        }
        let error = addresses.enter(ip("192.0.2.1")).expect_err("two are the most").to_string();
        assert!(error.contains("192.0.2.1 has 2 already"), "the log says whose: {error}");
        drop(places.remove(0));
        assert!(addresses.enter(ip("192.0.2.1")).is_ok(), "one has closed");
        drop(places);
        for n in 0..100_000 {
            let _ = addresses.enter(std::net::Ipv4Addr::from_bits(n).into());
        }
        assert!(addresses.connected.len() <= 64, "{} that have left are known", addresses.connected.len());
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_does_not_read_is_given_up() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let _peer = TcpStream::connect(address).await.expect("it listens");
        let (stream, _) = listener.accept().await.expect("it is connected");
        let mut stream = SharedStream::new(Arc::new(Socket::new(stream)));
        let began = Instant::now();
        // Far more than the kernel keeps for both ends.
        let written = stream.write_all(&vec![0; 64 << 20]).await;
        let error = written.expect_err("nobody reads, so not all can be written");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut, "{error}");
        assert!(began.elapsed() >= WRITE_STALL, "given up after {:?}", began.elapsed());
    }
}
