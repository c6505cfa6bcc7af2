//! Encodes calls as requests, and decodes error responses.

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use hyper::header::{HeaderMap, RETRY_AFTER};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::error::{Error, ErrorKind, Result};
use crate::transport::{Answer, Method};

/// When a call is retried.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Repeat {
    /// After any transient error: repeating it is harmless.
    Safe,
    /// Only after a response that says that nothing was done.
    Undone,
}

/// A path, percent-encoded.
#[derive(Clone, Debug)]
pub(crate) struct Path(String);

impl Path {
    pub(crate) fn join(mut self, segment: &str) -> Path {
        self.0.push('/');
        match segment {
            // Unescaped, they would be resolved as path steps by proxies.
            "." | ".." => self.0.push_str(&segment.replace('.', "%2E")),
            _ => encode(&mut self.0, segment),
        }
        self
    }
}

pub(crate) fn namespace_path(namespace: &str) -> Path {
    Path("/api".to_owned()).join(namespace)
}

pub(crate) fn queue_path(namespace: &str, queue: &str) -> Path {
    namespace_path(namespace).join(queue)
}

pub(crate) fn job_path(namespace: &str, queue: &str, id: &str) -> Path {
    queue_path(namespace, queue).join("job").join(id)
}

/// Several queues are joined in one segment by commas, which are not escaped.
pub(crate) fn queues_path(namespace: &str, queues: &[impl AsRef<str>]) -> Path {
    let mut path = namespace_path(namespace).0;
    path.push('/');
    for (n, queue) in queues.iter().enumerate() {
        if n > 0 {
            path.push(',');
        }
        encode(&mut path, queue.as_ref());
    }
    Path(path)
}

/// Escapes everything except letters, digits and `-_.~`.
fn encode(to: &mut String, text: &str) {
    use std::fmt::Write as _;
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) {
            to.push(char::from(byte));
        } else {
            // Writing to a string cannot fail.
            let _ = write!(to, "%{byte:02X}");
        }
    }
}

/// A call, which may be sent more than once.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub method: Method,
    pub path: String,
    pub headers: HeaderMap,
    pub body: Bytes,
    pub repeat: Repeat,
    queries: bool,
}

impl Call {
    fn new(method: Method, path: Path, repeat: Repeat) -> Call {
        let headers = HeaderMap::new();
        Call { method, path: path.0, headers, body: Bytes::new(), repeat, queries: false }
    }

    /// A read, which may be retried.
    pub(crate) fn get(path: Path) -> Call {
        Call::new(Method::GET, path, Repeat::Safe)
    }

    pub(crate) fn post(path: Path) -> Call {
        Call::new(Method::POST, path, Repeat::Undone)
    }

    pub(crate) fn put(path: Path) -> Call {
        Call::new(Method::PUT, path, Repeat::Undone)
    }

    pub(crate) fn delete(path: Path) -> Call {
        Call::new(Method::DELETE, path, Repeat::Undone)
    }

    pub(crate) fn safe(mut self) -> Call {
        self.repeat = Repeat::Safe;
        self
    }

    pub(crate) fn undone(mut self) -> Call {
        self.repeat = Repeat::Undone;
        self
    }

    pub(crate) fn with(mut self, name: &str, value: &str) -> Call {
        self.path.push(if self.queries { '&' } else { '?' });
        self.queries = true;
        self.path.push_str(name);
        self.path.push('=');
        encode(&mut self.path, value);
        self
    }

    pub(crate) fn with_some(self, name: &str, value: Option<impl AsRef<str>>) -> Call {
        match value {
            Some(value) => self.with(name, value.as_ref()),
            None => self,
        }
    }

    pub(crate) fn body(mut self, body: impl Into<Bytes>) -> Call {
        self.body = body.into();
        self
    }
}

impl Answer {
    /// Parses the body as JSON.
    pub(crate) fn json<T: DeserializeOwned>(&self) -> Result<T> {
        serde_json::from_slice(&self.body).map_err(|e| {
            Error::new(ErrorKind::Protocol, format!("the answer cannot be read: {e}"))
                .with_status(self.status, self.request_id())
        })
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    pub(crate) fn request_id(&self) -> Option<String> {
        self.header("x-request-id").map(str::to_owned)
    }

    /// Returns the response if it is a 2xx, otherwise its error.
    pub(crate) fn accept(self) -> Result<Answer> {
        if (200..300).contains(&self.status) { Ok(self) } else { Err(self.error()) }
    }

    fn error(&self) -> Error {
        #[derive(Default, Deserialize)]
        struct Told {
            error: Option<String>,
            msg: Option<String>,
            job_id: Option<String>,
            index: Option<usize>,
        }
        let told: Told = serde_json::from_slice(&self.body).unwrap_or_default();
        let text = told.error.or(told.msg).unwrap_or_else(|| {
            let head = &self.body[..self.body.len().min(200)];
            // Removes the remains of a truncated character.
            String::from_utf8_lossy(head).trim_end_matches(char::REPLACEMENT_CHARACTER).trim().to_owned()
        });
        let kind = kind_of(self.status, &text);
        let after = self.headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok());
        Error::new(kind, text)
            .with_status(self.status, self.request_id())
            .with_retry_after(after.and_then(pause_of))
            .with_job(told.job_id, told.index)
    }
}

/// Parses `Retry-After`: seconds, or an instant. A past instant is ignored.
fn pause_of(text: &str) -> Option<Duration> {
    let text = text.trim();
    if let Ok(seconds) = text.parse() {
        return Some(Duration::from_secs(seconds)).filter(|pause| !pause.is_zero());
    }
    let at = SystemTime::from(jiff::fmt::rfc2822::DateTimeParser::new().parse_timestamp(text).ok()?);
    at.duration_since(SystemTime::now()).ok()
}

fn kind_of(status: u16, text: &str) -> ErrorKind {
    match status {
        400 => ErrorKind::Invalid,
        401 => ErrorKind::Unauthorized,
        403 => ErrorKind::Forbidden,
        404 if text == "api not found" => ErrorKind::Unsupported,
        404 => ErrorKind::NotFound,
        408 => ErrorKind::Timeout,
        409 if text == "the job is not yours any more" => ErrorKind::Lost,
        409 if text.contains("under way") => ErrorKind::Busy,
        409 => ErrorKind::Conflict,
        413 => ErrorKind::TooLarge,
        422 => ErrorKind::KeyReused,
        429 => ErrorKind::Limited,
        502..=504 => ErrorKind::Unavailable,
        507 => ErrorKind::Full,
        500..=599 => ErrorKind::Server,
        _ => ErrorKind::Protocol,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_escaped_by_segment() {
        let call = Call::get(queue_path("demo", "mail").join("key").join("order:1/2 ä"));
        assert_eq!(call.path, "/api/demo/mail/key/order%3A1%2F2%20%C3%A4");
        let call = Call::get(queue_path("demo", "mail").join("key").join(".."));
        assert_eq!(call.path, "/api/demo/mail/key/%2E%2E");
        let call = Call::get(queues_path("demo", &["a", "b"])).with("count", "2").with("at", "1+2");
        assert_eq!(call.path, "/api/demo/a,b?count=2&at=1%2B2");
    }

    #[test]
    fn retry_after_is_seconds_or_an_instant() {
        assert_eq!(pause_of(" 7 "), Some(Duration::from_secs(7)));
        let pause = pause_of("Fri, 01 Jan 2100 00:00:00 GMT").unwrap_or_default();
        assert!(pause > Duration::from_secs(86400), "{pause:?} until 2100");
        for nothing in ["0", "", "soon", "Wed, 21 Oct 2015 07:28:00 GMT"] {
            assert_eq!(pause_of(nothing), None, "{nothing}");
        }
    }

    #[test]
    fn each_status_is_told_as_what_it_is() {
        let cases = [
            (400, "x", "invalid"),
            (404, "api not found", "unsupported"),
            (404, "job not found", "not_found"),
            (409, "the job is not yours any more", "lost"),
            (409, "the key is taken", "conflict"),
            (409, "a request with this idempotency key is under way", "busy"),
            (302, "", "protocol"),
            (418, "", "protocol"),
            (500, "", "server"),
            (503, "", "unavailable"),
            (505, "", "server"),
            (507, "", "full"),
        ];
        for (status, text, kind) in cases {
            assert_eq!(kind_of(status, text).as_str(), kind, "{status} {text}");
        }
    }
}
