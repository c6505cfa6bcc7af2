//! Opens connections, with or without TLS, directly or through a proxy: resolves the name, checks every
//! address, and connects only to an address that passed.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hyper::Uri;
use hyper::header::HeaderValue;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::client::legacy::connect::proxy::Tunnel;
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::TokioIo;
use rustls::RootCertStore;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_util::sync::WaitForCancellationFutureOwned;
use tower::{Service, service_fn};
use url::Url;

use super::places::{ConnectionPlace, Places};
use crate::dial;
use crate::push::address::AddressGuard;
use crate::tls;

/// Timeout for connecting to any of a host's addresses, and for a TLS handshake.
const CONNECT: Duration = Duration::from_secs(10);

/// Why there was no response. The text is shown to operators, and contains no header.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ConnectFault {
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

impl ConnectFault {
    /// Whether the request may have reached the endpoint.
    pub fn was_sent(&self) -> bool {
        matches!(self, ConnectFault::TimeOut(_) | ConnectFault::Broken(_))
    }
}

/// Resolves names. A trait, so that tests can replace DNS.
#[async_trait]
pub trait Resolve: Send + Sync + fmt::Debug + 'static {
    async fn resolve(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>>;
}

/// A proxy's address and credentials.
#[derive(Clone)]
pub struct Proxy {
    uri: Uri,
    /// Value of `Proxy-Authorization`.
    pub(super) auth: Option<HeaderValue>,
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Proxy({})", self.uri)
    }
}

impl Proxy {
    /// Parses `http://user:password@host:port`. The error does not show the URL, since it may contain a
    /// password.
    pub fn parse(text: &str) -> Result<Proxy, String> {
        let wrong = || "expected a URL such as \"http://proxy.example:3128\"".to_owned();
        let url = Url::parse(text).map_err(|_| wrong())?;
        let host =
            url.host_str().filter(|_| url.scheme() == "http" && url.path() == "/").ok_or_else(wrong)?;
        let port = url.port_or_known_default().ok_or_else(wrong)?;
        let uri = format!("http://{host}:{port}/").parse().map_err(|_| wrong())?;
        let decode = |text: &str| percent_encoding::percent_decode_str(text).decode_utf8_lossy().into_owned();
        if url.username().is_empty() {
            return Ok(Proxy { uri, auth: None });
        }
        let (user, password) = (decode(url.username()), decode(url.password().unwrap_or_default()));
        let auth = format!("Basic {}", STANDARD.encode(format!("{user}:{password}")));
        let mut auth = HeaderValue::from_str(&auth).map_err(|_| wrong())?;
        auth.set_sensitive(true);
        Ok(Proxy { uri, auth: Some(auth) })
    }
}

#[derive(Clone)]
pub(super) struct Connector {
    pub guard: Arc<AddressGuard>,
    pub resolver: Arc<dyn Resolve>,
    pub proxy: Option<Proxy>,
    pub tls: TlsConnector,
    pub places: Arc<Places>,
}

impl Connector {
    async fn connect(self, to: Uri) -> Result<Stream, ConnectFault> {
        let secure = to.scheme_str() == Some("https");
        let host = to.host().unwrap_or_default();
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        let port = to.port_u16().unwrap_or(if secure { 443 } else { 80 });
        let addresses = self.resolve(host, port).await?;
        let place = self.places.take().await;
        let tcp = match &self.proxy {
            None => reach(&self.places, &addresses).await?,
            Some(proxy) => self.through(proxy, secure.then_some(&to)).await?,
        };
        let proxied = self.proxy.is_some() && !secure;
        let io: Box<dyn Io> = if secure {
            let name = ServerName::try_from(host.to_owned())
                .map_err(|error| ConnectFault::Tls(error.to_string()))?;
            let tls = timeout(CONNECT, self.tls.connect(name, tcp)).await;
            let tls = tls.map_err(|_| ConnectFault::Tls("TLS handshake timeout".into()))?;
            Box::new(tls.map_err(|error| ConnectFault::Tls(error.to_string()))?)
        } else {
            Box::new(tcp)
        };
        let close = Box::pin(place.used.closed());
        Ok(Stream { io: TokioIo::new(io), proxied, close, place })
    }

    /// Resolves a host to the addresses that may be called. Behind a proxy an empty list is fine: the proxy
    /// judges names that only it knows.
    async fn resolve(&self, host: &str, port: u16) -> Result<Vec<SocketAddr>, ConnectFault> {
        let found = match host.parse::<IpAddr>() {
            Ok(address) => vec![SocketAddr::new(address, port)],
            Err(_) => match self.resolver.resolve(host, port).await {
                Ok(found) if !found.is_empty() => found,
                _ if self.proxy.is_some() => return Ok(Vec::new()),
                Ok(_) => return Err(ConnectFault::UnknownHost(host.to_owned())),
                Err(error) => return Err(ConnectFault::UnknownHost(format!("{host}: {error}"))),
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
                Err(ConnectFault::Forbidden(format!("{address} is {why} and is not in PushAllow")))
            }
            _ => Ok(allowed),
        }
    }

    /// Connects to a proxy. Its address is not checked, since it comes from the configuration.
    async fn reach_proxy(self, proxy: Uri) -> Result<TcpStream, ConnectFault> {
        let (host, port) = (proxy.host().unwrap_or_default(), proxy.port_u16().unwrap_or(80));
        let found = self.resolver.resolve(host.trim_matches(['[', ']']), port).await;
        let found = found.map_err(|error| ConnectFault::Proxy(format!("{host}: {error}")))?;
        reach(&self.places, &found).await.map_err(|fault| ConnectFault::Proxy(fault.to_string()))
    }

    /// Opens a connection to the proxy, and with `to` a tunnel through it.
    async fn through(&self, proxy: &Proxy, to: Option<&Uri>) -> Result<TcpStream, ConnectFault> {
        let Some(to) = to else { return self.clone().reach_proxy(proxy.uri.clone()).await };
        let connector = self.clone();
        let reach = service_fn(move |proxy| {
            let reach = connector.clone().reach_proxy(proxy);
            async move { reach.await.map(TokioIo::new) }
        });
        let mut tunnel = Tunnel::new(proxy.uri.clone(), reach);
        if let Some(auth) = &proxy.auth {
            tunnel = tunnel.with_auth(auth.clone());
        }
        let tunnel = timeout(CONNECT, tunnel.call(to.clone())).await;
        let tunnel = tunnel.map_err(|_| ConnectFault::Proxy("timeout while opening a tunnel".into()))?;
        Ok(tunnel.map_err(|error| ConnectFault::Proxy(error.to_string()))?.into_inner())
    }
}

/// Connects to the first of these addresses that accepts. The first attempt uses the connection's own place;
/// each parallel one takes another, since each is an open file.
async fn reach(places: &Arc<Places>, addresses: &[SocketAddr]) -> Result<TcpStream, ConnectFault> {
    let connect = |address: SocketAddr| async move {
        let is_first = addresses.first() == Some(&address);
        let _place = if is_first { None } else { Some(places.take().await) };
        let tcp = TcpStream::connect(address).await?;
        // Without it small writes would wait for acknowledgements; if it fails they do.
        let _ = tcp.set_nodelay(true);
        Ok(tcp)
    };
    dial::race(addresses, CONNECT, connect).await.map_err(|error| ConnectFault::Connect(error.to_string()))
}

impl Service<Uri> for Connector {
    type Response = Stream;
    type Error = ConnectFault;
    type Future = Pin<Box<dyn Future<Output = Result<Stream, ConnectFault>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), ConnectFault>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, to: Uri) -> Self::Future {
        Box::pin(self.clone().connect(to))
    }
}

trait Io: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

/// A connection, with or without TLS.
pub(super) struct Stream {
    io: TokioIo<Box<dyn Io>>,
    /// It leads to a proxy that needs absolute URLs.
    proxied: bool,
    close: Pin<Box<WaitForCancellationFutureOwned>>,
    place: ConnectionPlace,
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
        // As if the peer had closed it.
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

/// Returns the system's root certificates, and the certificates of a PEM file. The error names what cannot be read.
pub fn roots(more: Option<&Path>) -> Result<RootCertStore, String> {
    let mut roots = tls::system_roots(if more.is_none() { "push cannot call https" } else { "" });
    if let Some(path) = more {
        tls::add_roots(&mut roots, path)?;
    }
    Ok(roots)
}
