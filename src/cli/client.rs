//! The HTTP of `dormouse queue`: one call, and what the server says to it.

use std::time::Duration;

use percent_encoding::{AsciiSet, utf8_percent_encode};
use serde_json::Value;
use ureq::http;

use super::{Failure, Result};

/// How long the server may take to answer.
const TIMEOUT: Duration = Duration::from_secs(30);
/// The longest answer that is read, in bytes: a page of jobs with their bodies.
const MAX_ANSWER: u64 = 64 << 20;

/// One call, built step by step.
#[derive(Clone, Debug)]
pub struct Call {
    method: http::Method,
    /// Percent-encoded, as the query is.
    path: String,
    query: String,
    body: Vec<u8>,
}

impl Call {
    /// A GET of nothing yet.
    pub fn get() -> Call {
        Call { method: http::Method::GET, path: String::new(), query: String::new(), body: Vec::new() }
    }

    /// The same one segment further down the path.
    pub fn to(mut self, segment: &str) -> Call {
        self.path.push('/');
        self.path.push_str(&encode(segment));
        self
    }

    /// A POST of this body.
    pub fn post(self, body: impl Into<Vec<u8>>) -> Call {
        Call { method: http::Method::POST, body: body.into(), ..self }
    }

    /// A PUT without a body.
    pub fn put(self) -> Call {
        Call { method: http::Method::PUT, ..self }
    }

    /// A PUT of this body.
    pub fn put_body(self, body: impl Into<Vec<u8>>) -> Call {
        Call { body: body.into(), ..self.put() }
    }

    /// A DELETE.
    pub fn delete(self) -> Call {
        Call { method: http::Method::DELETE, ..self }
    }

    /// With those parameters that are given.
    pub fn with(mut self, pairs: impl IntoIterator<Item = (&'static str, Option<String>)>) -> Call {
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
pub struct Client {
    agent: ureq::Agent,
    url: String,
    key: Option<Key>,
}

/// A header's name, and its value, which is secret.
pub type Key = (&'static str, String);

impl Client {
    /// A client that follows no redirect and uses no proxy, so that the token goes to the named server only.
    pub fn new(url: &str, key: Option<Key>) -> Result<Client> {
        let uri = url.parse::<http::Uri>().ok();
        let plain = uri.is_some_and(|uri| {
            uri.scheme_str() == Some("http")
                && uri.path() == "/"
                && uri.query().is_none()
                && uri.host().is_some()
        });
        if !plain {
            return Err(Failure::Usage("the URL should be like http://127.0.0.1:7777".to_owned()));
        }
        if key.as_ref().is_some_and(|(_, key)| http::HeaderValue::from_str(key).is_err()) {
            return Err(Failure::Usage("the token has characters that no token has".to_owned()));
        }
        let agent = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .proxy(None)
            .timeout_global(Some(TIMEOUT))
            .build()
            .into();
        Ok(Client { agent, url: url.trim_end_matches('/').to_owned(), key })
    }

    /// Sends a call, and answers the text of a 2xx.
    pub fn send(&self, call: Call) -> Result<String> {
        let trouble = |e: &dyn std::fmt::Display| Failure::NotDone(format!("cannot reach {}: {e}", self.url));
        let mut request = http::Request::builder()
            .method(call.method)
            .uri(format!("{}{}{}", self.url, call.path, call.query));
        if let Some((name, key)) = &self.key {
            request = request.header(*name, key);
        }
        let request = request.body(call.body).map_err(|e| trouble(&e))?;
        let mut answer = self.agent.run(request).map_err(|e| match e {
            ureq::Error::Io(e) => trouble(&e),
            e => trouble(&e),
        })?;
        let body = answer.body_mut().with_config().limit(MAX_ANSWER).read_to_vec();
        let text = String::from_utf8_lossy(&body.map_err(|e| trouble(&e))?).into_owned();
        if answer.status().is_success() {
            return Ok(text);
        }
        Err(Failure::NotDone(format!("{} answered {}: {}", self.url, answer.status(), says(&text))))
    }

    /// The same for an answer that is JSON.
    pub fn json(&self, call: Call) -> Result<Value> {
        let text = self.send(call)?;
        self.read(&text)
    }

    /// The same for an answer that is JSON or nothing.
    pub fn json_or_nothing(&self, call: Call) -> Result<Option<Value>> {
        let text = self.send(call)?;
        if text.is_empty() { Ok(None) } else { self.read(&text).map(Some) }
    }

    fn read(&self, text: &str) -> Result<Value> {
        serde_json::from_str(text)
            .map_err(|e| Failure::NotDone(format!("{} did not answer as Dormouse does: {e}", self.url)))
    }
}

/// What an error answer says: its text, and which job or element it is about.
fn says(text: &str) -> String {
    let Ok(json) = serde_json::from_str::<Value>(text) else {
        return super::show::one_line(text);
    };
    let mut says = json["error"].as_str().or(json["msg"].as_str()).unwrap_or(text).to_owned();
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
