//! Transports of requests: over HTTP, or, in tests, to an in-process [double](crate::double).

use std::error::Error as StdError;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::Uri;
use hyper::header::{HeaderMap, HeaderValue, PROXY_AUTHORIZATION, USER_AGENT};
use hyper_util::client::legacy::Client as Pool;
use hyper_util::client::legacy::connect::capture_connection;
use hyper_util::client::proxy::matcher::Matcher;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::connect::{Connector, leave};
use crate::error::{Error, ErrorKind, Result};

pub use hyper::Method;

/// A request. Its path begins with a slash, is percent-encoded, and includes the query.
#[derive(Clone)]
pub struct Request {
    /// GET, PUT, POST or DELETE.
    pub method: Method,
    /// The part after the server's URL.
    pub path: String,
    /// Include the token.
    pub headers: HeaderMap,
    /// The body; may be empty.
    pub body: Bytes,
}

/// A response.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The status.
    pub status: u16,
    /// The headers.
    pub headers: HeaderMap,
    /// The whole body.
    pub body: Bytes,
}

/// Signals between caller and transport during a request.
#[derive(Debug, Default)]
pub struct Head {
    came: OnceLock<Instant>,
    left: CancellationToken,
}

impl Head {
    /// Records that the head of the response has arrived, before its body.
    pub fn came(&self) {
        // A second call has no effect: the first head counts.
        let _ = self.came.set(Instant::now());
    }

    /// Returns when the head arrived, if it has.
    pub fn at(&self) -> Option<Instant> {
        self.came.get().copied()
    }

    /// Asks to end a poll without losing a job in transit. The future of the response is dropped a moment later.
    pub fn leave(&self) {
        self.left.cancel();
    }

    /// Completes when the caller asks for the end. A response may still arrive. Transports may ignore this.
    pub async fn left(&self) {
        self.left.cancelled().await;
    }
}

/// The future of a response.
pub type Answering<'a> = Pin<Box<dyn Future<Output = Result<Answer>> + Send + 'a>>;

/// Sends requests. Dropping a future closes its connection.
pub trait Transport: Send + Sync + 'static {
    /// Sends one request once, and follows no redirect.
    fn send<'a>(&'a self, request: Request, head: &'a Head) -> Answering<'a>;

    /// Returns a transport with its own connections, for another runtime; `None` if it has no connections.
    fn fork(&self) -> Option<Result<Arc<dyn Transport>>> {
        None
    }
}

/// HTTP/1.1 over persistent connections.
pub(crate) struct Http {
    pool: Pool<Connector, Full<Bytes>>,
    proxies: Arc<Matcher>,
    base: String,
}

impl Http {
    pub(crate) fn new(base: &str) -> Result<Http> {
        Http::through(Matcher::from_env(), base)
    }

    fn through(proxies: Matcher, base: &str) -> Result<Http> {
        let url: Uri = base.parse().map_err(|e| Error::invalid(format!("the URL cannot be read: {e}")))?;
        match url.scheme_str() {
            Some("http") => {}
            Some("https") if cfg!(feature = "rustls") => {}
            Some("https") => {
                return Err(Error::invalid("https needs the feature `rustls` of dormouse-client"));
            }
            _ => return Err(Error::invalid("the URL should begin with http:// or https://")),
        }
        if base.contains(['?', '#', '@']) {
            return Err(Error::invalid("the URL should have no user, query or fragment"));
        }
        let proxies = Arc::new(proxies);
        let pool = Pool::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .build(Connector::new(proxies.clone())?);
        Ok(Http { pool, proxies, base: base.trim_end_matches('/').to_owned() })
    }

    fn request(&self, given: Request) -> Result<hyper::Request<Full<Bytes>>> {
        let to: Uri = format!("{}{}", self.base, given.path)
            .parse()
            .map_err(|e| Error::invalid(format!("the request cannot be sent: {e}")))?;
        let mut request = hyper::Request::new(Full::new(given.body));
        *request.method_mut() = given.method;
        *request.headers_mut() = given.headers;
        let agent = HeaderValue::from_static(concat!("dormouse-rust/", env!("CARGO_PKG_VERSION")));
        request.headers_mut().insert(USER_AGENT, agent);
        // A TLS server is reached through a tunnel, which was authorized when it was opened.
        let proxy = self.proxies.intercept(&to).filter(|_| to.scheme_str() == Some("http"));
        if let Some(auth) = proxy.as_ref().and_then(|proxy| proxy.basic_auth()) {
            request.headers_mut().insert(PROXY_AUTHORIZATION, auth.clone());
        }
        *request.uri_mut() = to;
        Ok(request)
    }
}

impl Transport for Http {
    fn send<'a>(&'a self, request: Request, head: &'a Head) -> Answering<'a> {
        Box::pin(async move {
            let mut request = self.request(request)?;
            let connection = capture_connection(&mut request);
            let mut sent = pin!(self.pool.request(request));
            let sent = tokio::select! {
                biased;
                sent = &mut sent => sent,
                () = head.left() => {
                    if !leave(&connection) {
                        return Err(Error::new(ErrorKind::Network, "nothing was sent yet").never_sent());
                    }
                    sent.await
                }
            };
            let answer = sent.map_err(|e| {
                let error = broken(e.source());
                if e.is_connect() { error.never_sent() } else { error }
            })?;
            head.came();
            let (parts, body) = answer.into_parts();
            let body = body.collect().await.map_err(|e| broken(Some(&e)))?.to_bytes();
            Ok(Answer { status: parts.status.as_u16(), headers: parts.headers, body })
        })
    }

    fn fork(&self) -> Option<Result<Arc<dyn Transport>>> {
        Some(Http::new(&self.base).map(|http| Arc::new(http) as Arc<dyn Transport>))
    }
}

/// Returns why no complete response arrived: the causes, outermost first.
fn broken(mut cause: Option<&dyn StdError>) -> Error {
    let mut causes = Vec::new();
    while let Some(error) = cause {
        causes.push(error.to_string());
        cause = error.source();
    }
    let text = if causes.is_empty() { "the connection broke off".to_owned() } else { causes.join(": ") };
    Error::new(ErrorKind::Network, text)
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi";

    fn get() -> Request {
        Request {
            method: Method::GET,
            path: "/api/demo/q".to_owned(),
            headers: HeaderMap::new(),
            body: Bytes::new(),
        }
    }

    async fn listen() -> (TcpListener, String) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        (listener, address)
    }

    /// Returns the head of the next request on a new connection.
    async fn heard(listener: &TcpListener) -> (TcpStream, String) {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.unwrap());
        }
        (stream, String::from_utf8(head).unwrap())
    }

    /// Guards against the loss of a response in transit, and against a further request on a half-closed connection.
    #[tokio::test]
    async fn a_request_that_is_left_gets_its_answer_and_its_connection_no_other() {
        let (listener, address) = listen().await;
        let http = Http::through(Matcher::builder().build(), &format!("http://{address}/")).unwrap();
        let head = Head::default();
        let serve = async {
            let (mut first, text) = heard(&listener).await;
            assert!(text.starts_with("GET /api/demo/q HTTP/1.1\r\n"), "{text}");
            assert!(text.contains("user-agent: dormouse-rust/"), "{text}");
            head.leave();
            assert_eq!(first.read(&mut [0]).await.unwrap(), 0, "half of the connection is closed");
            first.write_all(ANSWER).await.unwrap();
            let (mut second, _) = heard(&listener).await;
            second.write_all(ANSWER).await.unwrap();
        };
        let ask = async {
            let answer = http.send(get(), &head).await.unwrap();
            assert_eq!((answer.status, &*answer.body), (200, &b"hi"[..]));
            http.send(get(), &Head::default()).await.unwrap();
        };
        tokio::join!(serve, ask);
    }

    #[tokio::test]
    async fn a_request_that_is_left_before_there_is_a_connection_is_not_sent() {
        let (_listener, address) = listen().await;
        let http = Http::through(Matcher::builder().build(), &format!("http://{address}")).unwrap();
        let head = Head::default();
        head.leave();
        let error = http.send(get(), &head).await.unwrap_err();
        assert!(error.kind() == ErrorKind::Network && !error.is_uncertain(), "{error}");
    }

    #[tokio::test]
    async fn requests_go_through_a_proxy_and_its_password_with_them() {
        let (listener, address) = listen().await;
        let matcher = || Matcher::builder().all(format!("http://me:pass@{address}")).build();
        let head = Head::default();
        let http = Http::through(matcher(), "http://dormouse.test/base").unwrap();
        let (sent, (_, text)) = tokio::join!(http.send(get(), &head), async {
            let (mut stream, text) = heard(&listener).await;
            stream.write_all(ANSWER).await.unwrap();
            (stream, text)
        });
        assert_eq!(sent.unwrap().status, 200);
        assert!(text.starts_with("GET http://dormouse.test/base/api/demo/q HTTP/1.1\r\n"), "{text}");
        assert!(text.contains("proxy-authorization: Basic bWU6cGFzcw==\r\n"), "{text}");

        let http = Http::through(matcher(), "https://dormouse.test");
        if !cfg!(feature = "rustls") {
            assert_eq!(http.err().map(|e| e.kind()), Some(ErrorKind::Invalid));
            return;
        }
        let http = http.unwrap();
        let (sent, text) = tokio::join!(http.send(get(), &head), async { heard(&listener).await.1 });
        assert!(!sent.unwrap_err().is_uncertain(), "there was no tunnel");
        assert!(text.starts_with("CONNECT dormouse.test:443 HTTP/1.1\r\n"), "{text}");
        assert!(text.to_lowercase().contains("proxy-authorization: basic bwu6cgfzcw==\r\n"), "{text}");
    }
}
