//! The error type of all calls.

use std::fmt;
use std::time::Duration;

use crate::job::Published;

/// Kind of an error. [`Error::is_retryable`] tells for which kinds a retry may help.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// 400, or rejected before anything was sent.
    Invalid,
    /// 401: the token is invalid.
    Unauthorized,
    /// 403.
    Forbidden,
    /// 404: no such job, key or pool.
    NotFound,
    /// The server is too old for this call, or is lmstfy's.
    Unsupported,
    /// 409: the delivery is no longer the caller's.
    Lost,
    /// 409: a key is taken, or a job is not dead or not delayed.
    Conflict,
    /// 409: a request with this idempotency key is in flight.
    Busy,
    /// 413.
    TooLarge,
    /// 422: the idempotency key was used for another request.
    KeyReused,
    /// 429: over the token's limit.
    Limited,
    /// 507: the store or a quota is full.
    Full,
    /// 502, 503, 504.
    Unavailable,
    /// Any other 5xx.
    Server,
    /// No response in time, or 408.
    Timeout,
    /// The connection was refused, reset or aborted.
    Network,
    /// A redirect, a 2xx that cannot be read, or any other status.
    Protocol,
}

impl ErrorKind {
    /// Returns the kind as a word, the same in all client libraries.
    pub fn as_str(self) -> &'static str {
        match self {
            ErrorKind::Invalid => "invalid",
            ErrorKind::Unauthorized => "unauthorized",
            ErrorKind::Forbidden => "forbidden",
            ErrorKind::NotFound => "not_found",
            ErrorKind::Unsupported => "unsupported",
            ErrorKind::Lost => "lost",
            ErrorKind::Conflict => "conflict",
            ErrorKind::Busy => "busy",
            ErrorKind::TooLarge => "too_large",
            ErrorKind::KeyReused => "key_reused",
            ErrorKind::Limited => "limited",
            ErrorKind::Full => "full",
            ErrorKind::Unavailable => "unavailable",
            ErrorKind::Server => "server",
            ErrorKind::Timeout => "timeout",
            ErrorKind::Network => "network",
            ErrorKind::Protocol => "protocol",
        }
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Why a call failed. Contains no token and no job body.
#[derive(Clone)]
pub struct Error(Box<Inner>);

#[derive(Clone)]
struct Inner {
    kind: ErrorKind,
    status: Option<u16>,
    message: String,
    request_id: Option<String>,
    retry_after: Option<Duration>,
    job_id: Option<String>,
    index: Option<usize>,
    published: Option<Vec<Published>>,
    unsent: bool,
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Error {
        Error(Box::new(Inner {
            kind,
            status: None,
            message: message.into(),
            request_id: None,
            retry_after: None,
            job_id: None,
            index: None,
            published: None,
            unsent: false,
        }))
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Error {
        Error::new(ErrorKind::Invalid, message)
    }

    pub(crate) fn with_status(mut self, status: u16, request_id: Option<String>) -> Error {
        self.0.status = Some(status);
        self.0.request_id = request_id;
        self
    }

    pub(crate) fn with_retry_after(mut self, after: Option<Duration>) -> Error {
        self.0.retry_after = after;
        self
    }

    pub(crate) fn with_job(mut self, job_id: Option<String>, index: Option<usize>) -> Error {
        self.0.job_id = job_id;
        self.0.index = index;
        self
    }

    /// Adds the jobs that the call had published before it failed.
    pub(crate) fn behind(mut self, before: Vec<Published>, jobs: usize) -> Error {
        self.0.index = self.0.index.map(|index| index + jobs);
        self.0.published = Some(before);
        self
    }

    /// Returns the kind.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Returns the status of the response, if there was one.
    pub fn status(&self) -> Option<u16> {
        self.0.status
    }

    /// Returns the server's error text, or the first 200 bytes of another response.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// Returns the `X-Request-ID` of the response, which is also in the server's log.
    pub fn request_id(&self) -> Option<&str> {
        self.0.request_id.as_deref()
    }

    /// Returns how long the server asks to wait before a retry.
    pub fn retry_after(&self) -> Option<Duration> {
        self.0.retry_after
    }

    /// Returns the job that has the key.
    pub fn job_id(&self) -> Option<&str> {
        self.0.job_id.as_deref()
    }

    /// Returns the index of the invalid job in a list, from 0.
    pub fn index(&self) -> Option<usize> {
        self.0.index
    }

    /// Returns the jobs that [`publish_many`](crate::Client::publish_many) published before this batch, in order.
    pub fn published(&self) -> Option<&[Published]> {
        self.0.published.as_deref()
    }

    /// Whether the same call may succeed later. A retry is not always harmless: a consume whose reply was lost may
    /// have taken a job.
    pub fn is_retryable(&self) -> bool {
        use ErrorKind::*;
        matches!(self.0.kind, Busy | Limited | Full | Unavailable | Server | Timeout | Network)
    }

    /// Whether the server reports that it has done nothing, and may be called again.
    pub(crate) fn did_nothing(&self) -> bool {
        matches!(self.0.kind, ErrorKind::Busy) || matches!(self.0.status, Some(429 | 503))
    }

    /// Whether a harmless call is retried after it.
    pub(crate) fn is_passing(&self) -> bool {
        self.did_nothing()
            || self.0.kind == ErrorKind::Network
            || self.0.kind == ErrorKind::Timeout
            || matches!(self.0.status, Some(500 | 502 | 504 | 507))
    }

    /// Whether it is unknown if the call was executed: no response arrived, or an unreadable one.
    pub(crate) fn is_uncertain(&self) -> bool {
        match self.0.kind {
            ErrorKind::Network => !self.0.unsent,
            ErrorKind::Timeout => true,
            ErrorKind::Protocol => matches!(self.0.status, None | Some(200..=299)),
            _ => matches!(self.0.status, Some(500 | 502 | 504 | 507)),
        }
    }

    /// Marks an error before there was a connection.
    pub(crate) fn never_sent(mut self) -> Error {
        self.0.unsent = true;
        self
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.0.kind, self.0.message)?;
        if let Some(status) = self.0.status {
            write!(f, " ({status}")?;
            if let Some(id) = &self.0.request_id {
                write!(f, ", request {id}")?;
            }
            f.write_str(")")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Error")
            .field("kind", &self.0.kind)
            .field("status", &self.0.status)
            .field("message", &self.0.message)
            .field("request_id", &self.0.request_id)
            .finish_non_exhaustive()
    }
}

impl std::error::Error for Error {}

/// Result of a call.
pub type Result<T, E = Error> = std::result::Result<T, E>;
