//! The HTTP client of push. Each connection is ours from the name on: it is resolved, every address is judged, and only
//! then called, so that no name can lead where push may not go. Connections are kept and used again. Redirects are
//! never followed. Knows no job.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Body;
use hyper::header::{HeaderMap, HeaderValue, PROXY_AUTHORIZATION};
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper::{Request, Response, StatusCode, Uri};
use hyper_util::client::legacy::connect::proxy::Tunnel;
use hyper_util::client::legacy::connect::{Connected, Connection, capture_connection};
use hyper_util::client::legacy::{Client as Pool, Error as PoolError};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use parking_lot::Mutex;
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout, timeout_at};
use tokio_rustls::TlsConnector;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tower::Service;
use url::Url;

use super::address::Guard;

/// The most bytes of an answer that are read.
pub const MAX_ANSWER: usize = 1 << 20;
/// Of an answer that counts so much is read beside all others, and of any in one piece. Larger ones take turns.
pub const SMALL_ANSWER: usize = 64 << 10;
/// How many larger answers are read at a time, of [`MAX_ANSWER`] bytes each.
const LARGE_ANSWERS: usize = 64;
/// For how long one of them has its turn.
const TURN: Duration = Duration::from_secs(10);
/// How long one address of several may take to be reached.
const CONNECT: Duration = Duration::from_secs(10);
/// How long a connection that nobody uses is kept: shorter than the servers of Node and Python keep it.
const IDLE: Duration = Duration::from_secs(4);
/// How many of them are kept for one endpoint.
const MOST_IDLE: usize = 1000;
/// How often a request that waits for a connection looks for one to close that nobody uses.
const CLOSE_AGAIN: Duration = Duration::from_millis(100);
/// How much of an answer whose body does not count is kept, to be shown.
pub const KEPT: usize = 1024;

/// Why there was no answer. Its text is shown to operators, and holds no header.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Fault {
    #[error("the address is forbidden: {0}")]
    Forbidden(String),
    #[error("unknown host: {0}")]
    UnknownHost(String),
    #[error("cannot connect: {0}")]
    Connect(String),
    #[error("TLS: {0}")]
    Tls(String),
    #[error("the proxy: {0}")]
    Proxy(String),
    #[error("no answer within {} seconds", .0.as_secs())]
    TimeOut(Duration),
    #[error("the connection failed: {0}")]
    Broken(String),
}

/// What came back.
#[derive(Clone, Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: HeaderMap,
    /// [`MAX_ANSWER`] bytes at most, and the first [`KEPT`] where the body does not count.
    pub body: Bytes,
    /// Whether that is all of it.
    pub whole: bool,
}

/// Sends requests. A trait, so that tests can answer without a network.
#[async_trait]
pub trait Send: std::marker::Send + Sync + fmt::Debug + 'static {
    /// Sends a request, and reads the answer within `time`. With `body_counts` an answer whose body does not come in
    /// time is none.
    async fn send(&self, request: Request<Bytes>, time: Duration, body_counts: bool)
    -> Result<Answer, Fault>;
}

/// Finds the addresses of a name. A trait, so that tests can be the DNS.
#[async_trait]
pub trait Resolve: std::marker::Send + Sync + fmt::Debug + 'static {
    async fn resolve(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>>;
}

/// Where a proxy is, and what it wants to hear.
#[derive(Clone)]
pub struct Proxy {
    uri: Uri,
    auth: Option<HeaderValue>,
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Proxy({})", self.uri)
    }
}

impl Proxy {
    /// From `http://user:password@host:port`. The error does not show the URL: it may hold a password.
    pub fn parse(text: &str) -> Result<Proxy, String> {
        let wrong = || "PushProxy should be like \"http://proxy.example:3128\"".to_owned();
        let url = Url::parse(text).map_err(|_| wrong())?;
        let host =
            url.host_str().filter(|_| url.scheme() == "http" && url.path() == "/").ok_or_else(wrong)?;
        let port = url.port_or_known_default().ok_or_else(wrong)?;
        let uri = format!("http://{host}:{port}/").parse().map_err(|_| wrong())?;
        let decode = |text: &str| percent_encoding::percent_decode_str(text).decode_utf8_lossy().into_owned();
        let auth = (!url.username().is_empty()).then(|| {
            let (user, password) = (decode(url.username()), decode(url.password().unwrap_or_default()));
            format!("Basic {}", STANDARD.encode(format!("{user}:{password}")))
        });
        let auth = auth.map(|auth| HeaderValue::from_str(&auth).map_err(|_| wrong())).transpose()?;
        let auth = auth.map(|mut auth| {
            auth.set_sensitive(true);
            auth
        });
        Ok(Proxy { uri, auth })
    }
}

/// Sends over connections of its own.
#[derive(Debug)]
pub struct Client {
    pool: Pool<Connector, Full<Bytes>>,
    guard: Arc<Guard>,
    proxy: Option<Proxy>,
    large: Semaphore,
}

impl Client {
    /// Verifies certificates against `roots`. Has so many connections at most, those that nobody uses included.
    pub fn new(
        guard: Arc<Guard>,
        resolver: Arc<dyn Resolve>,
        proxy: Option<Proxy>,
        roots: RootCertStore,
        connections: usize,
    ) -> Client {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("ring has the suites of TLS 1.2 and 1.3")
            .with_root_certificates(roots)
            .with_no_client_auth();
        let tls = TlsConnector::from(Arc::new(tls));
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
    ) -> Result<Answer, Fault> {
        let secure = request.uri().scheme_str() == Some("https");
        if self.guard.https_only && !secure {
            return Err(Fault::Forbidden("PushHttps allows https only".into()));
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
                    // A connection that was kept may be closed by the other side at the moment of its use. Once
                    // only: it may also have taken the request and died of it.
                    let kept = used.connection_metadata().as_ref().is_some_and(was_used);
                    if !kept || again || !was_closed(&error) {
                        return Err(fault(&error));
                    }
                    again = true;
                }
            }
        };
        let used = used_mark(response.extensions()).map(|used| {
            used.0.answered.store(true, Ordering::Relaxed);
            (used.clone(), used.0.idle.lock().0)
        });
        if self.proxy.is_some() && !secure && response.status() == StatusCode::PROXY_AUTHENTICATION_REQUIRED {
            return Err(Fault::Proxy("it asks for a password".into()));
        }
        let body_counts = body_counts && response.status().is_success();
        let answer = read(response, deadline, body_counts, &self.large).await;
        if let Some((used, written)) = used {
            let mut idle = used.0.idle.lock();
            // The pool has it back by now: another request may be on it.
            if idle.0 == written {
                idle.1 = Some(Instant::now());
            }
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
    ) -> Result<Answer, Fault> {
        let deadline = Instant::now() + time;
        let answer = self.answer(request, deadline, body_counts);
        timeout_at(deadline, answer).await.unwrap_or(Err(Fault::TimeOut(time)))
    }
}

/// Reads the body. Where it does not count, what does not come in time is left. Of a large one, what does not come
/// within its turn is left too.
async fn read<B>(
    response: Response<B>,
    deadline: Instant,
    body_counts: bool,
    large: &Semaphore,
) -> Result<Answer, Fault>
where
    B: Body<Data = Bytes, Error: fmt::Display> + Unpin,
{
    let (parts, mut body) = response.into_parts();
    let mut bytes = Vec::new();
    let (mut whole, mut came) = (false, 0);
    let most = if body_counts { MAX_ANSWER } else { KEPT };
    // Where the body does not count, the answer must be there before the caller's own time-out. Where it does, that one
    // ends it.
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
            Ok(Some(Err(error))) if body_counts => return Err(Fault::Broken(error.to_string())),
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
    Ok(Answer { status: parts.status.as_u16(), headers: parts.headers, body: bytes.into(), whole })
}

/// Travels with a connection: what it was used for.
#[derive(Clone, Debug, Default)]
struct Used(Arc<Use>);

impl Used {
    /// Something is written: it is in use.
    fn written(&self) {
        let mut idle = self.0.idle.lock();
        *idle = (idle.0 + 1, None);
    }
}

#[derive(Debug, Default)]
struct Use {
    /// An answer has come over it.
    answered: AtomicBool,
    /// How often something was written, and since when nobody uses it.
    idle: Mutex<(u64, Option<Instant>)>,
    /// It is to make room.
    close: CancellationToken,
}

/// The connections that there may be. Each has a place until it is closed.
#[derive(Debug)]
struct Places {
    free: Arc<Semaphore>,
    taken: Mutex<HashMap<u64, Used>>,
    next: AtomicU64,
}

impl Places {
    fn new(most: usize) -> Places {
        Places { free: Arc::new(Semaphore::new(most)), taken: Mutex::default(), next: AtomicU64::new(0) }
    }

    /// Waits for a place. Where there is none, the connection that nobody has used for longest makes room.
    async fn take(self: &Arc<Self>) -> Place {
        let free = self.free.clone().acquire_owned();
        tokio::pin!(free);
        let permit = loop {
            if self.free.available_permits() == 0 {
                self.close_one();
            }
            if let Ok(permit) = timeout(CLOSE_AGAIN, &mut free).await {
                break permit.expect("the semaphore is never closed");
            }
        };
        let (number, used) = (self.next.fetch_add(1, Ordering::Relaxed), Used::default());
        self.taken.lock().insert(number, used.clone());
        Place { places: self.clone(), number, used, _permit: permit }
    }

    fn close_one(&self) {
        let taken = self.taken.lock();
        let idle = taken.values().filter_map(|used| Some((used.0.idle.lock().1?, used)));
        if let Some((_, used)) = idle.min_by_key(|(since, _)| *since) {
            // It may be in use by now.
            if used.0.idle.lock().1.take().is_some() {
                used.0.close.cancel();
            }
        }
    }
}

/// A connection's place.
struct Place {
    places: Arc<Places>,
    number: u64,
    used: Used,
    _permit: OwnedSemaphorePermit,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.places.taken.lock().remove(&self.number);
    }
}

fn was_used(connected: &Connected) -> bool {
    let mut extensions = hyper::http::Extensions::new();
    connected.get_extras(&mut extensions);
    used_mark(&extensions).is_some_and(|used| used.0.answered.load(Ordering::Relaxed))
}

fn used_mark(extensions: &hyper::http::Extensions) -> Option<&Used> {
    extensions.get::<Used>()
}

/// Whether the connection was closed before the first byte of an answer.
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

/// What an error of the pool means: the connector's own fault, or that of a connection.
fn fault(error: &PoolError) -> Fault {
    let mut source: Option<&(dyn std::error::Error + 'static)> = Some(error);
    let mut last = error.to_string();
    while let Some(error) = source {
        if let Some(fault) = error.downcast_ref::<Fault>() {
            return fault.clone();
        }
        last = error.to_string();
        source = error.source();
    }
    Fault::Broken(last)
}

/// Opens connections.
#[derive(Clone)]
struct Connector {
    guard: Arc<Guard>,
    resolver: Arc<dyn Resolve>,
    proxy: Option<Proxy>,
    tls: TlsConnector,
    places: Arc<Places>,
}

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connector").field("guard", &self.guard).finish_non_exhaustive()
    }
}

impl Connector {
    async fn connect(self, to: Uri) -> Result<Stream, Fault> {
        let secure = to.scheme_str() == Some("https");
        let host = to.host().unwrap_or_default();
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        let port = to.port_u16().unwrap_or(if secure { 443 } else { 80 });
        let addresses = self.resolve(host, port).await?;
        let place = self.places.take().await;
        let tcp = match &self.proxy {
            None => reach(&addresses).await?,
            Some(proxy) => self.through(proxy, secure.then_some(&to)).await?,
        };
        let proxied = self.proxy.is_some() && !secure;
        let io: Box<dyn Io> = if secure {
            let name =
                ServerName::try_from(host.to_owned()).map_err(|error| Fault::Tls(error.to_string()))?;
            let tls = timeout(CONNECT, self.tls.connect(name, tcp)).await;
            let tls = tls.map_err(|_| Fault::Tls("no handshake in time".into()))?;
            Box::new(tls.map_err(|error| Fault::Tls(error.to_string()))?)
        } else {
            Box::new(tcp)
        };
        let close = Box::pin(place.used.0.close.clone().cancelled_owned());
        Ok(Stream { io: TokioIo::new(io), proxied, close, place })
    }

    /// The addresses of a host that may be called. Through a proxy none is needed: a name that only the proxy knows is
    /// the proxy's to judge.
    async fn resolve(&self, host: &str, port: u16) -> Result<Vec<SocketAddr>, Fault> {
        let found = match host.parse::<IpAddr>() {
            Ok(address) => vec![SocketAddr::new(address, port)],
            Err(_) => match self.resolver.resolve(host, port).await {
                Ok(found) if !found.is_empty() => found,
                _ if self.proxy.is_some() => return Ok(Vec::new()),
                Ok(_) => return Err(Fault::UnknownHost(host.to_owned())),
                Err(error) => return Err(Fault::UnknownHost(format!("{host}: {error}"))),
            },
        };
        if self.guard.allows_name(host) {
            return Ok(found);
        }
        let refused = |address: &SocketAddr| self.guard.refuses(address.ip());
        let allowed: Vec<_> = found.iter().filter(|address| refused(address).is_none()).copied().collect();
        match found.iter().find_map(|address| refused(address).map(|why| (address.ip(), why))) {
            // Behind a proxy we do not choose the address.
            Some((address, why)) if allowed.is_empty() || self.proxy.is_some() => {
                Err(Fault::Forbidden(format!("{address} is {why}, and PushAllow does not name it")))
            }
            _ => Ok(allowed),
        }
    }

    /// A connection to the proxy; with `to` one through it.
    async fn through(&self, proxy: &Proxy, to: Option<&Uri>) -> Result<TcpStream, Fault> {
        let dial = Dial(self.resolver.clone());
        let Some(to) = to else { return Ok(dial.dial(proxy.uri.clone()).await?.into_inner()) };
        let mut tunnel = Tunnel::new(proxy.uri.clone(), dial);
        if let Some(auth) = &proxy.auth {
            tunnel = tunnel.with_auth(auth.clone());
        }
        let tunnel = timeout(CONNECT, tunnel.call(to.clone())).await;
        let tunnel = tunnel.map_err(|_| Fault::Proxy("no tunnel in time".into()))?;
        Ok(tunnel.map_err(|error| Fault::Proxy(error.to_string()))?.into_inner())
    }
}

/// Connects to the first address that answers.
async fn reach(addresses: &[SocketAddr]) -> Result<TcpStream, Fault> {
    let mut last = Fault::Connect("no address".into());
    for address in addresses {
        match timeout(CONNECT, TcpStream::connect(address)).await {
            Ok(Ok(tcp)) => {
                // Without it the requests would wait for acknowledgements; where it fails they do.
                let _ = tcp.set_nodelay(true);
                return Ok(tcp);
            }
            Ok(Err(error)) => last = Fault::Connect(format!("{address}: {error}")),
            Err(_) => last = Fault::Connect(format!("{address}: no connection in time")),
        }
    }
    Err(last)
}

/// Connects to a proxy, which is not judged: the configuration names it.
#[derive(Clone)]
struct Dial(Arc<dyn Resolve>);

impl Dial {
    async fn dial(&self, proxy: Uri) -> Result<TokioIo<TcpStream>, Fault> {
        let (host, port) = (proxy.host().unwrap_or_default(), proxy.port_u16().unwrap_or(80));
        let found = self.0.resolve(host.trim_matches(['[', ']']), port).await;
        let found = found.map_err(|error| Fault::Proxy(format!("{host}: {error}")))?;
        Ok(TokioIo::new(reach(&found).await.map_err(|fault| Fault::Proxy(fault.to_string()))?))
    }
}

impl Service<Uri> for Dial {
    type Response = TokioIo<TcpStream>;
    type Error = Fault;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Fault>> + std::marker::Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Fault>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, proxy: Uri) -> Self::Future {
        let dial = self.clone();
        Box::pin(async move { dial.dial(proxy).await })
    }
}

impl Service<Uri> for Connector {
    type Response = Stream;
    type Error = Fault;
    type Future = Pin<Box<dyn Future<Output = Result<Stream, Fault>> + std::marker::Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Fault>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, to: Uri) -> Self::Future {
        Box::pin(self.clone().connect(to))
    }
}

trait Io: AsyncRead + AsyncWrite + std::marker::Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + std::marker::Send + Unpin> Io for T {}

/// One connection, with TLS or without.
struct Stream {
    io: TokioIo<Box<dyn Io>>,
    /// It leads to a proxy that must be told the whole URL.
    proxied: bool,
    close: Pin<Box<WaitForCancellationFutureOwned>>,
    place: Place,
}

impl Connection for Stream {
    fn connected(&self) -> Connected {
        Connected::new().proxy(self.proxied).extra(self.place.used.clone())
    }
}

impl Read for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        to: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        // As if the other side had closed it.
        if self.close.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.io).poll_read(cx, to)
    }
}

impl Write for Stream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.place.used.written();
        Pin::new(&mut self.io).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.place.used.written();
        Pin::new(&mut self.io).poll_write_vectored(cx, bytes)
    }
}

/// The system's root certificates, and those of a PEM file. The error says what cannot be read.
pub fn roots(more: Option<&Path>) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    let system = rustls_native_certs::load_native_certs();
    let (added, _unfit) = roots.add_parsable_certificates(system.certs);
    if added == 0 && more.is_none() {
        tracing::warn!("this system has no root certificates: push cannot call https");
    }
    let Some(path) = more else { return Ok(roots) };
    let wrong = |error: &dyn fmt::Display| format!("PushCA {}: {error}", path.display());
    let certificates = CertificateDer::pem_file_iter(path).map_err(|error| wrong(&error))?;
    let mut added = 0;
    for certificate in certificates {
        roots.add(certificate.map_err(|error| wrong(&error))?).map_err(|error| wrong(&error))?;
        added += 1;
    }
    if added == 0 { Err(wrong(&"there is no certificate in it")) } else { Ok(roots) }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use hyper::body::Frame;

    use super::*;

    /// So many pieces of 32 KiB, and then nothing more for ever, or the end.
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

    /// Guards against answers that fill the memory together, and against one that never ends and keeps its turn.
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
