//! HTTP client of the command line: one call, and the server's reply.

use std::error::Error;
use std::io::{self, Read as _};
use std::pin::Pin;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper::header::{HOST, HeaderValue};
use hyper::{Method, Request, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use percent_encoding::{AsciiSet, utf8_percent_encode};
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::lookup_host;
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;

use super::program::{CommandError, Result};
use crate::dial;
use crate::tls::{ClientTls, system_roots};

/// Timeout of a call.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Timeout for the beginning of a long reply, and maximum pause within it.
const LONG: Duration = Duration::from_secs(600);
const PAUSE: Duration = Duration::from_secs(60);
/// Timeout for connecting to the server.
const CONNECT: Duration = Duration::from_secs(10);
/// Maximum bytes of a reply: a page of jobs with their bodies, or hundreds of thousands of tokens.
const MAX_ANSWER: usize = 64 << 20;

/// A call, built step by step.
#[derive(Clone, Debug)]
pub struct HttpCall {
    method: Method,
    /// Percent-encoded, like the query.
    path: String,
    query: String,
    body: Vec<u8>,
    /// Time that the server may take in addition to the timeout.
    patience: Duration,
}

impl HttpCall {
    /// Returns a GET of the root.
    pub fn get() -> HttpCall {
        let (path, query, body) = (String::new(), String::new(), Vec::new());
        HttpCall { method: Method::GET, path, query, body, patience: Duration::ZERO }
    }

    /// Appends a segment to the path.
    pub fn to(mut self, segment: &str) -> HttpCall {
        self.path.push('/');
        self.path.push_str(&encode(segment));
        self
    }

    pub fn post(self, body: impl Into<Vec<u8>>) -> HttpCall {
        HttpCall { method: Method::POST, body: body.into(), ..self }
    }

    /// Makes it a PUT without a body.
    pub fn put(self) -> HttpCall {
        HttpCall { method: Method::PUT, ..self }
    }

    pub fn put_body(self, body: impl Into<Vec<u8>>) -> HttpCall {
        HttpCall { body: body.into(), ..self.put() }
    }

    /// Allows for a server that replies only after this time.
    pub fn patient(self, patience: Duration) -> HttpCall {
        HttpCall { patience, ..self }
    }

    pub fn delete(self) -> HttpCall {
        HttpCall { method: Method::DELETE, ..self }
    }

    /// Adds the parameters that have a value.
    pub fn with(mut self, pairs: impl IntoIterator<Item = (&'static str, Option<String>)>) -> HttpCall {
        for (key, value) in pairs {
            if let Some(value) = value {
                self.query.push(if self.query.is_empty() { '?' } else { '&' });
                self.query.push_str(key);
                self.query.push('=');
                self.query.push_str(&encode(&value));
            }
        }
        self
    }
}

/// A server, and the header with its credentials.
pub struct ApiClient {
    /// As given by the user, for messages.
    url: String,
    /// Host and port.
    address: String,
    /// Whether it speaks TLS.
    tls: bool,
    key: Option<Header>,
}

/// Name and secret value of a header.
pub type Header = (&'static str, String);

pub fn basic_auth(account: &str) -> Header {
    ("Authorization", format!("Basic {}", STANDARD.encode(account)))
}

impl ApiClient {
    /// Creates a client that follows no redirects and uses no proxy, so that the token is sent only to the named
    /// server.
    pub fn new(url: &str, key: Option<Header>) -> Result<ApiClient> {
        let found = url.parse::<Uri>().ok().and_then(|uri| {
            let tls = match uri.scheme_str()? {
                "http" => false,
                "https" => true,
                _ => return None,
            };
            let plain = uri.path() == "/" && uri.query().is_none();
            let authority = uri.authority().filter(|authority| plain && !authority.as_str().contains('@'))?;
            // The host is followed by a port or nothing.
            let port = match authority.as_str().strip_prefix(authority.host()) {
                Some("") => {
                    if tls {
                        443
                    } else {
                        80
                    }
                }
                _ => authority.port_u16()?,
            };
            Some((format!("{}:{port}", authority.host()), tls))
        });
        let (address, tls) = found.ok_or_else(|| {
            CommandError::Usage("invalid URL: use one such as http://127.0.0.1:7777".to_owned())
        })?;
        if key.as_ref().is_some_and(|(_, key)| HeaderValue::from_str(key).is_err()) {
            return Err(CommandError::Usage("the token contains invalid characters".to_owned()));
        }
        Ok(ApiClient { url: url.trim_end_matches('/').to_owned(), address, tls, key })
    }

    /// Sends a call, and returns the status and the text.
    pub fn exchange(&self, call: HttpCall) -> Result<(StatusCode, String)> {
        let trouble = |e: &dyn std::fmt::Display| self.trouble(e);
        let patience = TIMEOUT + call.patience;
        let request = self.request(call)?;
        let runtime = Builder::new_current_thread().enable_all().build().map_err(|e| trouble(&e))?;
        let answer = runtime.block_on(async { timeout(patience, self.carry(request)).await });
        // A look-up of a name may still be running.
        runtime.shutdown_background();
        answer.map_err(|_| trouble(&"no answer in time"))?.map_err(|e| trouble(&e))
    }

    /// Sends a call, and returns the text of a 2xx.
    pub fn send(&self, call: HttpCall) -> Result<String> {
        let (status, text) = self.exchange(call)?;
        self.succeeded(status, &text)?;
        Ok(text)
    }

    /// Parses the JSON of a reply that has been received.
    pub fn answered(&self, status: StatusCode, text: &str) -> Result<Value> {
        self.succeeded(status, text)?;
        self.parse(text)
    }

    fn succeeded(&self, status: StatusCode, text: &str) -> Result<()> {
        if status.is_success() {
            return Ok(());
        }
        Err(CommandError::NotDone(format!("{} answered {status}: {}", self.url, says(text))))
    }

    /// Like [`send`](ApiClient::send), for a JSON reply.
    pub fn json(&self, call: HttpCall) -> Result<Value> {
        let text = self.send(call)?;
        self.parse(&text)
    }

    /// Like [`json`](ApiClient::json), for a reply that may be empty.
    pub fn json_or_nothing(&self, call: HttpCall) -> Result<Option<Value>> {
        let text = self.send(call)?;
        if text.is_empty() { Ok(None) } else { self.parse(&text).map(Some) }
    }

    fn parse(&self, text: &str) -> Result<Value> {
        serde_json::from_str(text)
            .map_err(|e| CommandError::NotDone(format!("unexpected response of {}: {e}", self.url)))
    }
}

/// A body of any length, read as it arrives.
pub struct BodyReader {
    runtime: Runtime,
    connection: Option<Pin<Box<dyn Future<Output = hyper::Result<()>>>>>,
    body: Incoming,
    rest: Bytes,
}

impl BodyReader {
    fn next(&mut self) -> io::Result<Option<Bytes>> {
        let (connection, body) = (&mut self.connection, &mut self.body);
        let frame = async {
            loop {
                let Some(running) = connection else { return body.frame().await };
                tokio::select! {
                    biased;
                    frame = body.frame() => return frame,
                    // Its errors are reported by the body too.
                    _ = running => *connection = None,
                }
            }
        };
        let frame = self.runtime.block_on(async { timeout(PAUSE, frame).await });
        match frame.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))? {
            Some(frame) => Ok(Some(frame.map_err(io::Error::other)?.into_data().unwrap_or_default())),
            None => Ok(None),
        }
    }
}

impl io::Read for BodyReader {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        while self.rest.is_empty() {
            match self.next()? {
                Some(bytes) => self.rest = bytes,
                None => return Ok(0),
            }
        }
        let n = to.len().min(self.rest.len());
        to[..n].copy_from_slice(&self.rest.split_to(n));
        Ok(n)
    }
}

/// A reply, or why there is none.
type Answer = std::result::Result<(StatusCode, String), Box<dyn Error + Send + Sync>>;

impl ApiClient {
    /// Sends a call, and returns the body of a 2xx.
    pub fn read(&self, call: HttpCall) -> Result<BodyReader> {
        let trouble = |e: &dyn std::fmt::Display| self.trouble(e);
        let request = self.request(call)?;
        let runtime = Builder::new_current_thread().enable_all().build().map_err(|e| trouble(&e))?;
        let begun = async {
            let (mut sender, connection) = http1::handshake(TokioIo::new(self.connect().await?)).await?;
            let mut connection = Some(Box::pin(connection) as Pin<Box<dyn Future<Output = _>>>);
            let mut answer = Box::pin(sender.send_request(request));
            let answer = loop {
                let Some(running) = &mut connection else { break answer.await? };
                tokio::select! {
                    biased;
                    answer = &mut answer => break answer?,
                    _ = running => connection = None,
                }
            };
            Ok::<_, Box<dyn Error + Send + Sync>>((answer, connection))
        };
        let begun = runtime.block_on(async { timeout(LONG, begun).await });
        let (answer, connection) =
            begun.map_err(|_| trouble(&"no answer in time"))?.map_err(|e| trouble(&e))?;
        let status = answer.status();
        let mut body = BodyReader { runtime, connection, body: answer.into_body(), rest: Bytes::new() };
        if status.is_success() {
            return Ok(body);
        }
        let mut text = Vec::new();
        let _ = io::Read::take(&mut body, MAX_ANSWER as u64).read_to_end(&mut text);
        let text = String::from_utf8_lossy(&text);
        Err(CommandError::NotDone(format!("{} answered {status}: {}", self.url, says(&text))))
    }

    fn trouble(&self, error: &dyn std::fmt::Display) -> CommandError {
        CommandError::NotDone(format!("cannot reach {}: {error}", self.url))
    }

    fn request(&self, call: HttpCall) -> Result<Request<Full<Bytes>>> {
        let mut request = Request::builder()
            .method(call.method)
            .uri(format!("{}{}", call.path, call.query))
            .header(HOST, &self.address);
        if let Some((name, key)) = &self.key {
            request = request.header(*name, key);
        }
        request.body(Full::new(Bytes::from(call.body))).map_err(|e| self.trouble(&e))
    }

    async fn connect(&self) -> std::result::Result<Box<dyn Io>, Box<dyn Error + Send + Sync>> {
        let addresses: Vec<_> = lookup_host(&self.address).await?.collect();
        let stream = dial::connect(&addresses, CONNECT).await.map_err(|e| e.error)?;
        if !self.tls {
            return Ok(Box::new(stream));
        }
        let host = self.address.rsplit_once(':').map_or(&*self.address, |(host, _)| host);
        let host = host.trim_start_matches('[').trim_end_matches(']');
        Ok(Box::new(ClientTls::new(system_roots(""), None).connect(host, stream).await?))
    }

    /// Sends a request over a new connection.
    async fn carry(&self, request: Request<Full<Bytes>>) -> Answer {
        let (mut sender, connection) = http1::handshake(TokioIo::new(self.connect().await?)).await?;
        let answer = async move {
            let answer = sender.send_request(request).await?;
            let status = answer.status();
            let body = Limited::new(answer.into_body(), MAX_ANSWER).collect().await?.to_bytes();
            Ok((status, String::from_utf8_lossy(&body).into_owned()))
        };
        // The connection ends when its sender is dropped. Its errors are reported by the request too.
        tokio::join!(answer, connection).0
    }
}

/// A connection, with or without TLS.
trait Io: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Io for T {}

/// Returns the text of an error reply, and the job or element that it is about.
pub fn says(text: &str) -> String {
    let Ok(json) = serde_json::from_str::<Value>(text) else {
        return super::show::one_line(text);
    };
    let mut says = json["error"]
        .as_str()
        .or(json["msg"].as_str())
        .or(json["reason"].as_str())
        .unwrap_or(text)
        .to_owned();
    if let Some(name) = json["name"].as_str() {
        says = format!("{name}: {says}");
    }
    if let Some(id) = json["job_id"].as_str() {
        says = format!("{says} (job {id})");
    }
    super::show::one_line(&says)
}

/// Percent-encodes everything but the unreserved characters of RFC 3986.
fn encode(text: &str) -> String {
    const RESERVED: &AsciiSet =
        &percent_encoding::NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');
    utf8_percent_encode(text, RESERVED).to_string()
}
