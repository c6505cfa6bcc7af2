//! The HTTP of the command line: one call, and what the server says to it.

use std::error::Error;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::header::{HOST, HeaderValue};
use hyper::{Method, Request, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use percent_encoding::{AsciiSet, utf8_percent_encode};
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::runtime::Builder;
use tokio::time::timeout;

use super::program::{CommandError, Result};

/// How long the server may take to answer.
const TIMEOUT: Duration = Duration::from_secs(30);
/// The longest answer that is read, in bytes: a page of jobs with their bodies, or hundreds of thousands of tokens.
const MAX_ANSWER: usize = 64 << 20;

/// One call, built step by step.
#[derive(Clone, Debug)]
pub struct HttpCall {
    method: Method,
    /// Percent-encoded, as the query is.
    path: String,
    query: String,
    body: Vec<u8>,
}

impl HttpCall {
    /// A GET of nothing yet.
    pub fn get() -> HttpCall {
        HttpCall { method: Method::GET, path: String::new(), query: String::new(), body: Vec::new() }
    }

    /// The same one segment further down the path.
    pub fn to(mut self, segment: &str) -> HttpCall {
        self.path.push('/');
        self.path.push_str(&encode(segment));
        self
    }

    pub fn post(self, body: impl Into<Vec<u8>>) -> HttpCall {
        HttpCall { method: Method::POST, body: body.into(), ..self }
    }

    /// A PUT without a body.
    pub fn put(self) -> HttpCall {
        HttpCall { method: Method::PUT, ..self }
    }

    pub fn put_body(self, body: impl Into<Vec<u8>>) -> HttpCall {
        HttpCall { body: body.into(), ..self.put() }
    }

    pub fn delete(self) -> HttpCall {
        HttpCall { method: Method::DELETE, ..self }
    }

    /// With those parameters that are given.
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

/// A server, and the header that opens it.
pub struct ApiClient {
    /// As the user gave it, for messages.
    url: String,
    /// Host and port.
    address: String,
    key: Option<Header>,
}

/// A header's name, and its value, which is secret.
pub type Header = (&'static str, String);

pub fn basic_auth(account: &str) -> Header {
    ("Authorization", format!("Basic {}", STANDARD.encode(account)))
}

impl ApiClient {
    /// A client that follows no redirect and uses no proxy, so that the token goes to the named server only.
    pub fn new(url: &str, key: Option<Header>) -> Result<ApiClient> {
        let address = url.parse::<Uri>().ok().and_then(|uri| {
            let plain = uri.scheme_str() == Some("http") && uri.path() == "/" && uri.query().is_none();
            let authority = uri.authority().filter(|authority| plain && !authority.as_str().contains('@'))?;
            // What is behind the host is a port, or nothing.
            let port = match authority.as_str().strip_prefix(authority.host()) {
                Some("") => 80,
                _ => authority.port_u16()?,
            };
            Some(format!("{}:{port}", authority.host()))
        });
        let address = address
            .ok_or_else(|| CommandError::Usage("the URL should be like http://127.0.0.1:7777".to_owned()))?;
        if key.as_ref().is_some_and(|(_, key)| HeaderValue::from_str(key).is_err()) {
            return Err(CommandError::Usage("the token has characters that no token has".to_owned()));
        }
        Ok(ApiClient { url: url.trim_end_matches('/').to_owned(), address, key })
    }

    /// Sends a call, and answers the status and the text.
    pub fn exchange(&self, call: HttpCall) -> Result<(StatusCode, String)> {
        let trouble =
            |e: &dyn std::fmt::Display| CommandError::NotDone(format!("cannot reach {}: {e}", self.url));
        let mut request = Request::builder()
            .method(call.method)
            .uri(format!("{}{}", call.path, call.query))
            .header(HOST, &self.address);
        if let Some((name, key)) = &self.key {
            request = request.header(*name, key);
        }
        let request = request.body(Full::new(Bytes::from(call.body))).map_err(|e| trouble(&e))?;
        let runtime = Builder::new_current_thread().enable_all().build().map_err(|e| trouble(&e))?;
        let answer = runtime.block_on(async { timeout(TIMEOUT, send(&self.address, request)).await });
        // It may still look up a name.
        runtime.shutdown_background();
        answer.map_err(|_| trouble(&"no answer in time"))?.map_err(|e| trouble(&e))
    }

    /// The text of a 2xx.
    pub fn send(&self, call: HttpCall) -> Result<String> {
        let (status, text) = self.exchange(call)?;
        if status.is_success() {
            return Ok(text);
        }
        Err(CommandError::NotDone(format!("{} answered {status}: {}", self.url, says(&text))))
    }

    /// The same for an answer that is JSON.
    pub fn json(&self, call: HttpCall) -> Result<Value> {
        let text = self.send(call)?;
        self.read(&text)
    }

    /// The same for an answer that is JSON or nothing.
    pub fn json_or_nothing(&self, call: HttpCall) -> Result<Option<Value>> {
        let text = self.send(call)?;
        if text.is_empty() { Ok(None) } else { self.read(&text).map(Some) }
    }

    fn read(&self, text: &str) -> Result<Value> {
        serde_json::from_str(text)
            .map_err(|e| CommandError::NotDone(format!("{} did not answer as Dormouse does: {e}", self.url)))
    }
}

async fn send(
    address: &str,
    request: Request<Full<Bytes>>,
) -> std::result::Result<(StatusCode, String), Box<dyn Error + Send + Sync>> {
    let stream = TcpStream::connect(address).await?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let answer = async move {
        let answer = sender.send_request(request).await?;
        let status = answer.status();
        let body = Limited::new(answer.into_body(), MAX_ANSWER).collect().await?.to_bytes();
        Ok((status, String::from_utf8_lossy(&body).into_owned()))
    };
    // The connection ends when its sender is gone. What it fails with the request fails with too.
    tokio::join!(answer, connection).0
}

/// What an error answer says: its text, and which job or schedule it is about.
fn says(text: &str) -> String {
    let Ok(json) = serde_json::from_str::<Value>(text) else {
        return super::show::one_line(text);
    };
    let mut says = json["error"].as_str().or(json["msg"].as_str()).unwrap_or(text).to_owned();
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
