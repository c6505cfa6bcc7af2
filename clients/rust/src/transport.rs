//! How requests get to a server: over HTTP, or, in tests, to a [double](crate::double) in the process.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use reqwest::header::HeaderMap;
use reqwest::redirect::Policy;
use tokio::time::Instant;

use crate::error::{Error, ErrorKind, Result};

pub use reqwest::Method;

/// A request. Its path begins with a slash, is percent-encoded, and has the query behind it.
#[derive(Clone)]
pub struct Request {
    /// GET, PUT, POST or DELETE.
    pub method: Method,
    /// What comes behind the URL of the server.
    pub path: String,
    /// The token is among them.
    pub headers: HeaderMap,
    /// The body; empty if there is none.
    pub body: Bytes,
}

/// An answer as it came.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The status.
    pub status: u16,
    /// The headers.
    pub headers: HeaderMap,
    /// The whole body.
    pub body: Bytes,
}

/// When the head of an answer came, which is before its body has.
#[derive(Debug, Default)]
pub struct Head(OnceLock<Instant>);

impl Head {
    /// It has come now.
    pub fn came(&self) {
        // A second call changes nothing: the first head counts.
        let _ = self.0.set(Instant::now());
    }

    /// When it came, if it has.
    pub fn at(&self) -> Option<Instant> {
        self.0.get().copied()
    }
}

/// The future of an answer.
pub type Answering<'a> = Pin<Box<dyn Future<Output = Result<Answer>> + Send + 'a>>;

/// Whoever takes requests. A future that is dropped closes the connection that it waits on.
pub trait Transport: Send + Sync + 'static {
    /// Sends one request once, and follows no redirect.
    fn send<'a>(&'a self, request: Request, head: &'a Head) -> Answering<'a>;

    /// The same with connections of its own, for another runtime; none if it has no connections.
    fn fork(&self) -> Option<Result<Arc<dyn Transport>>> {
        None
    }
}

/// HTTP/1.1 over connections that are kept.
pub(crate) struct Http {
    client: reqwest::Client,
    base: String,
}

impl Http {
    pub(crate) fn new(base: &str) -> Result<Http> {
        let url =
            reqwest::Url::parse(base).map_err(|e| Error::invalid(format!("the URL cannot be read: {e}")))?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(Error::invalid("the URL should begin with http:// or https://"));
        }
        if url.query().is_some() || url.fragment().is_some() || !url.username().is_empty() {
            return Err(Error::invalid("the URL should have no user, query or fragment"));
        }
        let client = reqwest::Client::builder()
            .redirect(Policy::none())
            .user_agent(concat!("dormouse-rust/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(|e| Error::invalid(format!("no HTTP client could be made: {e}")))?;
        Ok(Http { client, base: base.trim_end_matches('/').to_owned() })
    }
}

impl Transport for Http {
    fn send<'a>(&'a self, request: Request, head: &'a Head) -> Answering<'a> {
        Box::pin(async move {
            let url = format!("{}{}", self.base, request.path);
            let sent = self
                .client
                .request(request.method, url)
                .headers(request.headers)
                .body(request.body)
                .send()
                .await
                .map_err(|e| broken(&e))?;
            head.came();
            let status = sent.status().as_u16();
            let headers = sent.headers().clone();
            let body = sent.bytes().await.map_err(|e| broken(&e))?;
            Ok(Answer { status, headers, body })
        })
    }

    fn fork(&self) -> Option<Result<Arc<dyn Transport>>> {
        Some(Http::new(&self.base).map(|http| Arc::new(http) as Arc<dyn Transport>))
    }
}

/// Why no whole answer came. The URL stays out of it.
fn broken(error: &reqwest::Error) -> Error {
    let mut text = String::new();
    let mut cause: Option<&dyn std::error::Error> = std::error::Error::source(error);
    while let Some(error) = cause {
        if !text.is_empty() {
            text.push_str(": ");
        }
        text.push_str(&error.to_string());
        cause = error.source();
    }
    if error.is_builder() {
        return Error::invalid(format!("the request cannot be sent: {text}"));
    }
    let broken = Error::new(
        ErrorKind::Network,
        if text.is_empty() { "the connection broke off".to_owned() } else { text },
    );
    if error.is_connect() { broken.never_sent() } else { broken }
}
