//! Jobs: to be published, delivered, and as reported by a server.

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use jiff::Timestamp;
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Serialize};

use crate::client::Client;
use crate::error::{Error, Result};
use crate::hold::{Cause, Hold};
use crate::time::At;

/// The attributes of a job.
pub type Attributes = BTreeMap<String, String>;

/// The attribute with the trace.
pub const TRACEPARENT: &str = "traceparent";

const MAX_ATTRIBUTES: usize = 16;
const MAX_NAME: usize = 32;
const MAX_VALUE: usize = 128;

/// How a publish handles a taken key.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum OnConflict {
    /// Stores nothing; the reply names the job that has the key.
    Keep,
    /// Replaces that job, unless it is running.
    Replace,
    /// The publish fails.
    Fail,
}

impl OnConflict {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            OnConflict::Keep => "keep",
            OnConflict::Replace => "replace",
            OnConflict::Fail => "fail",
        }
    }
}

/// A job to be published.
///
/// ```
/// # use std::time::Duration;
/// # use dormouse_client::NewJob;
/// let job = NewJob::new("hello").delay(Duration::from_secs(30)).tries(5).key("order:7");
/// ```
#[derive(Clone, Debug, Default)]
pub struct NewJob {
    pub(crate) data: Bytes,
    pub(crate) delay: Option<Duration>,
    pub(crate) at: Option<At>,
    pub(crate) ttl: Option<Duration>,
    pub(crate) tries: Option<u32>,
    pub(crate) key: Option<String>,
    pub(crate) on_conflict: Option<OnConflict>,
    pub(crate) attributes: Attributes,
}

impl NewJob {
    /// Creates a job with this body, due at once.
    pub fn new(data: impl Into<Bytes>) -> NewJob {
        NewJob { data: data.into(), ..NewJob::default() }
    }

    /// Creates a job whose body is `value` as JSON.
    pub fn json<T: Serialize + ?Sized>(value: &T) -> Result<NewJob> {
        let data = serde_json::to_vec(value)
            .map_err(|e| Error::invalid(format!("no JSON can be made of it: {e}")))?;
        Ok(NewJob::new(data))
    }

    /// Time until it is due.
    pub fn delay(mut self, delay: Duration) -> NewJob {
        self.delay = Some(delay);
        self
    }

    /// When it is due, instead of a delay. A past instant means now.
    pub fn at(mut self, at: impl Into<At>) -> NewJob {
        self.at = Some(at.into());
        self
    }

    /// Time from the publish until it expires; zero is never.
    pub fn ttl(mut self, ttl: Duration) -> NewJob {
        self.ttl = Some(ttl);
        self
    }

    /// Maximum number of deliveries.
    pub fn tries(mut self, tries: u32) -> NewJob {
        self.tries = Some(tries);
        self
    }

    /// The producer's name for it: unique among the delayed, ready and running jobs of the queue.
    pub fn key(mut self, key: impl Into<String>) -> NewJob {
        self.key = Some(key.into());
        self
    }

    /// How to handle a taken key.
    pub fn on_conflict(mut self, what: OnConflict) -> NewJob {
        self.on_conflict = Some(what);
        self
    }

    /// Adds an attribute: at most 16, names of 32 bytes in lower case, values of 128 bytes.
    pub fn attribute(mut self, name: impl Into<String>, value: impl Into<String>) -> NewJob {
        self.attributes.insert(name.into(), value.into());
        self
    }

    /// Sets its trace. Without it, a job that is published within a handler continues the trace of the handler's job.
    pub fn traceparent(self, traceparent: impl Into<String>) -> NewJob {
        self.attribute(TRACEPARENT, traceparent)
    }

    /// Rejects values that would not arrive unchanged.
    pub(crate) fn check(&self) -> Result<()> {
        if self.delay.is_some() && self.at.is_some() {
            return Err(Error::invalid("only one of delay and at can be given"));
        }
        if self.on_conflict.is_some() && self.key.is_none() {
            return Err(Error::invalid("on_conflict needs a key"));
        }
        if self.attributes.len() > MAX_ATTRIBUTES {
            let count = self.attributes.len();
            return Err(Error::invalid(format!("a job has 16 attributes at most, and this one {count}")));
        }
        for (name, value) in &self.attributes {
            let wrong = if name.is_empty() {
                "has no name"
            } else if name.len() > MAX_NAME {
                "has a name over 32 bytes"
            } else if *name != name.to_lowercase() {
                "has a name that is not in lower case"
            } else if value.is_empty() {
                "has no value"
            } else if value.len() > MAX_VALUE {
                "has a value over 128 bytes"
            } else {
                continue;
            };
            return Err(Error::invalid(format!("the attribute {name:?} {wrong}")));
        }
        Ok(())
    }
}

impl From<&str> for NewJob {
    fn from(data: &str) -> NewJob {
        NewJob::new(Bytes::copy_from_slice(data.as_bytes()))
    }
}

impl From<&[u8]> for NewJob {
    fn from(data: &[u8]) -> NewJob {
        NewJob::new(Bytes::copy_from_slice(data))
    }
}

impl From<String> for NewJob {
    fn from(data: String) -> NewJob {
        NewJob::new(data)
    }
}

impl From<Vec<u8>> for NewJob {
    fn from(data: Vec<u8>) -> NewJob {
        NewJob::new(data)
    }
}

impl From<Bytes> for NewJob {
    fn from(data: Bytes) -> NewJob {
        NewJob::new(data)
    }
}

/// A published job.
#[derive(Clone, Debug, Deserialize)]
pub struct Published {
    /// Its id; for a duplicate, the id of the existing job.
    pub job_id: String,
    /// When it is due; missing only for a duplicate whose store does not know.
    #[serde(default)]
    pub due_at: Option<Timestamp>,
    /// Nothing was stored, since a job had the key.
    #[serde(default)]
    pub duplicate: bool,
    /// The job that it replaced.
    #[serde(default)]
    pub replaced: Option<String>,
    /// The reply was that of an earlier request with the same idempotency key.
    #[serde(default)]
    pub replayed: bool,
}

/// A delivered job. Clones are the same job.
#[derive(Clone)]
pub struct Job {
    /// Its id.
    pub id: String,
    /// Its queue.
    pub queue: String,
    /// The namespace of the queue.
    pub namespace: String,
    /// The body.
    pub data: Bytes,
    /// Number of deliveries left.
    pub remain_tries: u32,
    /// Time until it expires; `None` is forever.
    pub ttl: Option<Duration>,
    /// Time since it was published.
    pub elapsed: Duration,
    /// Its attributes.
    pub attributes: Attributes,
    pub(crate) hold: Arc<Hold>,
}

impl Job {
    /// Parses the body as JSON. If a handler returns this error the job is buried, since it would fail again.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, BodyError> {
        serde_json::from_slice(&self.data).map_err(|e| BodyError(e.to_string()))
    }

    /// Returns the job's trace.
    pub fn traceparent(&self) -> Option<&str> {
        self.attributes.get(TRACEPARENT).map(String::as_str)
    }

    /// Returns the client that consumed it.
    pub fn client(&self) -> &Client {
        self.hold.client()
    }

    /// Waits until the handler should end: the job is lost, its time is up, or the worker stops.
    pub async fn cancelled(&self) -> Cause {
        self.hold.cancelled().await
    }

    /// Returns why the handler should end, if it should.
    pub fn cause(&self) -> Option<Cause> {
        self.hold.cause()
    }

    /// Returns the number of this attempt, from 1. Calls the server.
    pub async fn attempt(&self) -> Result<u32> {
        self.hold.attempt().await
    }

    /// Extends the delivery to `ttr` from now. A worker does so by itself.
    pub async fn touch(&self, ttr: Duration) -> Result<Timestamp> {
        self.hold.touch(ttr).await
    }

    /// Acks the job.
    pub async fn ack(&self) -> Result<()> {
        self.hold.ack().await
    }

    /// Returns the job to its queue after `delay`. `spend`: whether the try counts.
    pub async fn release(&self, delay: Duration, spend: bool, reason: &str) -> Result<Released> {
        self.hold.release(delay, spend, reason).await
    }

    /// Moves the job to the dead letter.
    pub async fn bury(&self, reason: &str) -> Result<()> {
        self.hold.bury(reason).await
    }
}

impl fmt::Debug for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Job")
            .field("id", &self.id)
            .field("queue", &self.queue)
            .field("remain_tries", &self.remain_tries)
            .field("bytes", &self.data.len())
            .finish_non_exhaustive()
    }
}

/// Result of a release.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Released {
    /// It is in its queue again.
    Back {
        /// Number of deliveries left.
        remain_tries: u32,
    },
    /// It died, since no try was left.
    Dead,
}

/// A body that is not the expected JSON.
#[derive(Clone, Debug)]
pub struct BodyError(String);

impl fmt::Display for BodyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the body cannot be read: {}", self.0)
    }
}

impl std::error::Error for BodyError {}

/// Why a handler did not complete a job.
///
/// Any error turns into [`Outcome::Failed`] by `?`, and a [`BodyError`] into [`Outcome::Permanent`].
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Outcome {
    /// It failed: retried after the worker's back-off, and a try is used.
    Failed(String),
    /// It failed: retried after this time, and a try is used.
    RetryAfter(Duration, String),
    /// It can never succeed: moved to the dead letter.
    Permanent(String),
    /// Postponed for this time; the try is restored.
    Snooze(Duration),
}

impl Outcome {
    /// Returns a failure with any displayable error.
    pub fn failed(error: impl fmt::Display) -> Outcome {
        Outcome::Failed(error.to_string())
    }

    /// Returns a failure, with the time until the next attempt.
    pub fn retry_after(delay: Duration, error: impl fmt::Display) -> Outcome {
        Outcome::RetryAfter(delay, error.to_string())
    }

    /// Returns a permanent failure.
    pub fn permanent(error: impl fmt::Display) -> Outcome {
        Outcome::Permanent(error.to_string())
    }

    /// Returns the text, if it has one.
    pub fn text(&self) -> Option<&str> {
        match self {
            Outcome::Failed(text) | Outcome::RetryAfter(_, text) | Outcome::Permanent(text) => Some(text),
            Outcome::Snooze(_) => None,
        }
    }
}

impl<E: std::error::Error + 'static> From<E> for Outcome {
    fn from(error: E) -> Outcome {
        let permanent = (&error as &dyn Any).is::<BodyError>();
        if permanent { Outcome::Permanent(error.to_string()) } else { Outcome::Failed(error.to_string()) }
    }
}

/// State of a job.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// It is not due yet.
    Delayed,
    /// It waits for a consumer.
    Ready,
    /// It is delivered to a consumer.
    Running,
    /// Its tries are used up, or it was buried.
    Dead,
}

impl State {
    /// Returns the state as a word.
    pub fn as_str(self) -> &'static str {
        match self {
            State::Delayed => "delayed",
            State::Ready => "ready",
            State::Running => "running",
            State::Dead => "dead",
        }
    }
}

/// A job as reported by a server.
#[derive(Clone, Debug, Deserialize)]
pub struct JobInfo {
    /// Its id.
    #[serde(rename = "job_id")]
    pub id: String,
    /// Its queue; missing in lists.
    #[serde(default)]
    pub queue: Option<String>,
    /// The namespace of the queue; missing in lists.
    #[serde(default)]
    pub namespace: Option<String>,
    /// The body; in lists only with [`Jobs::data`](crate::Jobs::data).
    #[serde(default, deserialize_with = "base64_body")]
    pub data: Option<Bytes>,
    /// Its state, if the store knows it.
    #[serde(default)]
    pub state: Option<State>,
    /// When it becomes ready, when its `ttr` ends, or when it became ready or dead.
    #[serde(default)]
    pub due_at: Option<Timestamp>,
    /// When it was published; only in lists.
    #[serde(default)]
    pub published_at: Option<Timestamp>,
    /// Number of deliveries left.
    #[serde(default)]
    pub remain_tries: Option<u32>,
    /// Seconds until it expires; 0 is never.
    #[serde(default)]
    pub ttl: Option<u64>,
    /// Milliseconds since the publish; missing in lists.
    #[serde(default)]
    pub elapsed_ms: Option<u64>,
    /// Its attributes.
    #[serde(default)]
    pub attributes: Option<Attributes>,
    /// The producer's name for it.
    #[serde(default)]
    pub key: Option<String>,
    /// The reason that a worker gave.
    #[serde(default)]
    pub reason: Option<String>,
    /// Bytes of the body; only in lists.
    #[serde(default)]
    pub size: Option<u64>,
    #[serde(default)]
    pub(crate) receipt: Option<String>,
}

/// A queue, with its numbers of jobs.
#[derive(Clone, Debug, Deserialize)]
pub struct QueueInfo {
    /// Its name.
    pub queue: String,
    /// Jobs waiting for a consumer.
    pub ready: u64,
    /// Jobs that are not due yet, if the store knows.
    #[serde(default)]
    pub delayed: Option<u64>,
    /// Jobs delivered to consumers, if the store knows.
    #[serde(default)]
    pub running: Option<u64>,
    /// Jobs in the dead letter.
    #[serde(default)]
    pub dead: u64,
    /// Age of the oldest ready job in seconds.
    #[serde(default)]
    pub oldest_ready_age: Option<f64>,
    /// Deliveries are paused.
    #[serde(default)]
    pub paused: bool,
    /// When the pause ends by itself.
    #[serde(default)]
    pub paused_until: Option<Timestamp>,
}

/// The dead letter of a queue.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct DeadLetter {
    /// Number of jobs.
    pub size: u64,
    /// Id of the oldest.
    pub head: Option<String>,
}

/// Result of a respawn by id.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Respawned {
    /// Number of jobs that are ready or delayed again.
    pub respawned: u64,
    /// Ids of jobs that are not dead or do not exist.
    pub missing: Vec<String>,
}

/// Result of an ack of several jobs.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Acked {
    /// Number of deleted jobs.
    pub acked: u64,
    /// Ids of jobs that exist and are no longer the caller's.
    pub stale: Vec<String>,
}

fn base64_body<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<Bytes>, D::Error> {
    let text = Option::<String>::deserialize(from)?;
    text.map(|text| STANDARD.decode(text).map(Bytes::from)).transpose().map_err(D::Error::custom)
}

/// A job in the reply to a consume.
#[derive(Deserialize)]
pub(crate) struct HandedOut {
    pub job_id: String,
    pub queue: String,
    pub namespace: String,
    #[serde(deserialize_with = "base64_body")]
    pub data: Option<Bytes>,
    pub remain_tries: u32,
    pub ttl: u64,
    pub elapsed_ms: u64,
    #[serde(default)]
    pub attributes: Option<Attributes>,
    #[serde(default)]
    pub receipt: Option<String>,
}
