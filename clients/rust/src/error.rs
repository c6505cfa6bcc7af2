//! What can go wrong with a call, in one type.

use std::fmt;
use std::time::Duration;

use crate::job::Published;

/// What kind of trouble it is. [`Error::is_retryable`] says for which a repeat may help.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// 400, or refused before anything was sent.
    Invalid,
    /// 401: the token opens nothing.
    Unauthorized,
    /// 403.
    Forbidden,
    /// 404: there is no such job, key or pool.
    NotFound,
    /// The server is older than this call, or lmstfy's.
    Unsupported,
    /// 409: the hand-over is not the caller's any more.
    Lost,
    /// 409: a key is taken, or a job is not dead or not delayed.
    Conflict,
    /// 409: a request with this idempotency key is under way.
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
    /// No answer in time, or 408.
    Timeout,
    /// The connection was refused, reset or broken off.
    Network,
    /// A redirect, a 2xx that cannot be read, or any other status.
    Protocol,
}

impl ErrorKind {
    /// The word for it, the same in all client libraries.
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

/// Why a call failed. It holds no token and no body of a job.
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

    /// The same, of a call that had published `before` when it failed.
    pub(crate) fn behind(mut self, before: Vec<Published>, jobs: usize) -> Error {
        self.0.index = self.0.index.map(|index| index + jobs);
        self.0.published = Some(before);
        self
    }

    /// What kind of trouble it is.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The status of the answer; none if none came.
    pub fn status(&self) -> Option<u16> {
        self.0.status
    }

    /// The server's own text, or the first 200 bytes of what came in its place.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// The `X-Request-ID` of the answer, by which the server's log has it.
    pub fn request_id(&self) -> Option<&str> {
        self.0.request_id.as_deref()
    }

    /// After how long the server wants to be asked again.
    pub fn retry_after(&self) -> Option<Duration> {
        self.0.retry_after
    }

    /// The job that has the key.
    pub fn job_id(&self) -> Option<&str> {
        self.0.job_id.as_deref()
    }

    /// Which job of a list is wrong, counted from 0.
    pub fn index(&self) -> Option<usize> {
        self.0.index
    }

    /// Of [`publish_many`](crate::Client::publish_many): what was published before this batch, in order.
    pub fn published(&self) -> Option<&[Published]> {
        self.0.published.as_deref()
    }

    /// Whether the same call may succeed later. It does not say that a repeat is harmless: a consume whose
    /// answer was lost has perhaps taken a job.
    pub fn is_retryable(&self) -> bool {
        use ErrorKind::*;
        matches!(self.0.kind, Busy | Limited | Full | Unavailable | Server | Timeout | Network)
    }

    /// The server says that it has done nothing, and may be asked again.
    pub(crate) fn did_nothing(&self) -> bool {
        matches!(self.0.kind, ErrorKind::Busy) || matches!(self.0.status, Some(429 | 503))
    }

    /// A harmless call is repeated after it.
    pub(crate) fn is_passing(&self) -> bool {
        self.did_nothing()
            || self.0.kind == ErrorKind::Network
            || self.0.kind == ErrorKind::Timeout
            || matches!(self.0.status, Some(500 | 502 | 504 | 507))
    }

    /// Nobody knows whether the call was done: no answer has come, or none that can be read.
    pub(crate) fn is_uncertain(&self) -> bool {
        match self.0.kind {
            ErrorKind::Network => !self.0.unsent,
            ErrorKind::Timeout => true,
            ErrorKind::Protocol => matches!(self.0.status, None | Some(200..=299)),
            _ => matches!(self.0.status, Some(500 | 502 | 504 | 507)),
        }
    }

    /// There was not even a connection.
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

/// What a call answers.
pub type Result<T, E = Error> = std::result::Result<T, E>;
