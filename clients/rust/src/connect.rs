//! Opens connections: directly or through a proxy from the environment, with or without TLS. A connection can be
//! left: its write side is closed, and data that the peer still sends is read.

use std::error::Error as StdError;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::Uri;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::client::legacy::connect::proxy::Tunnel;
use hyper_util::client::legacy::connect::{CaptureConnection, Connected, Connection, HttpConnector};
use hyper_util::client::proxy::matcher::Matcher;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tower_service::Service;

use crate::error::Result;

/// Interval at which an idle connection verifies that its peer exists.
const KEEPALIVE: Duration = Duration::from_secs(15);

#[cfg(feature = "rustls")]
type Tls = Arc<rustls::ClientConfig>;
#[cfg(not(feature = "rustls"))]
type Tls = ();

/// Returns the system's roots, with the program's choice of cryptography, if any.
#[cfg(feature = "rustls")]
fn tls() -> Result<Tls> {
    use hyper_rustls::ConfigBuilderExt as _;
    use rustls::crypto::{CryptoProvider, ring};

    let chosen = CryptoProvider::get_default().cloned();
    let provider = chosen.unwrap_or_else(|| Arc::new(ring::default_provider()));
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .and_then(|config| config.try_with_platform_verifier());
    let config = config.map_err(|e| crate::error::Error::invalid(format!("TLS cannot be set up: {e}")))?;
    Ok(Arc::new(config.with_no_client_auth()))
}

#[cfg(not(feature = "rustls"))]
#[expect(clippy::unnecessary_wraps, reason = "with TLS it may fail")]
fn tls() -> Result<Tls> {
    Ok(())
}

/// Adds TLS to the connections of `connector`, for https URLs.
#[cfg(feature = "rustls")]
fn secured<C>(connector: C, tls: &Tls) -> hyper_rustls::HttpsConnector<C> {
    (connector, tls.clone()).into()
}

#[cfg(not(feature = "rustls"))]
fn secured<C>(connector: C, (): &Tls) -> C {
    connector
}

#[derive(Clone)]
pub(crate) struct Connector {
    http: HttpConnector,
    tls: Tls,
    proxies: Arc<Matcher>,
}

impl Connector {
    pub(crate) fn new(proxies: Arc<Matcher>) -> Result<Connector> {
        let mut http = HttpConnector::new();
        http.enforce_http(false);
        http.set_nodelay(true);
        http.set_keepalive(Some(KEEPALIVE));
        http.set_keepalive_interval(Some(KEEPALIVE));
        http.set_keepalive_retries(Some(3));
        Ok(Connector { http, tls: tls()?, proxies })
    }

    async fn connect(self, to: Uri) -> Result<Stream, Box<dyn StdError + Send + Sync>> {
        let mut dial = secured(self.http, &self.tls);
        let (mut proxied, secure) = (false, to.scheme_str() == Some("https"));
        let io: Box<dyn Io> = match self.proxies.intercept(&to) {
            None => Box::new(dial.call(to).await?),
            Some(proxy) if secure => {
                let mut tunnel = Tunnel::new(proxy.uri().clone(), dial);
                if let Some(auth) = proxy.basic_auth() {
                    tunnel = tunnel.with_auth(auth.clone());
                }
                Box::new(secured(tunnel, &self.tls).call(to).await?)
            }
            Some(proxy) => {
                proxied = true;
                Box::new(dial.call(proxy.uri().clone()).await?)
            }
        };
        let leave = CancellationToken::new();
        Ok(Stream { io, proxied, left: Box::pin(leave.clone().cancelled_owned()), leave })
    }
}

impl Service<Uri> for Connector {
    type Response = Stream;
    type Error = Box<dyn StdError + Send + Sync>;
    type Future = Pin<Box<dyn Future<Output = Result<Stream, Self::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, to: Uri) -> Self::Future {
        Box::pin(self.clone().connect(to))
    }
}

/// Closes the write side of a request's connection. The server takes that for a disconnect: it replies that there is
/// no job, or has sent one already. No other request uses the connection. Returns `false` if there is no connection
/// yet.
pub(crate) fn leave(connection: &CaptureConnection) -> bool {
    let connected = connection.connection_metadata();
    let Some(connected) = connected.as_ref() else {
        return false;
    };
    connected.poison();
    let mut extras = hyper::http::Extensions::new();
    connected.get_extras(&mut extras);
    extras.get().inspect(|leave: &&CancellationToken| leave.cancel()).is_some()
}

trait Io: Read + Write + Send + Unpin {}
impl<T: Read + Write + Send + Unpin> Io for T {}

/// A connection.
pub(crate) struct Stream {
    io: Box<dyn Io>,
    /// It leads to a proxy that needs absolute URLs.
    proxied: bool,
    leave: CancellationToken,
    left: Pin<Box<WaitForCancellationFutureOwned>>,
}

impl Connection for Stream {
    fn connected(&self) -> Connected {
        Connected::new().proxy(self.proxied).extra(self.leave.clone())
    }
}

impl Read for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        to: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        // hyper reads while a response is expected, so this is woken. Reading tells whether the connection is broken:
        // an error of the closed side does not count.
        if self.left.as_mut().poll(cx).is_ready() {
            let _ = Pin::new(&mut self.io).poll_shutdown(cx);
        }
        Pin::new(&mut self.io).poll_read(cx, to)
    }
}

impl Write for Stream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
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
        Pin::new(&mut self.io).poll_write_vectored(cx, bytes)
    }
}
