//! Jobs: one that is to be published, one that was handed out, and what a server tells of others.

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

/// The attribute that a trace travels in.
pub const TRACEPARENT: &str = "traceparent";

const MAX_ATTRIBUTES: usize = 16;
const MAX_NAME: usize = 32;
const MAX_VALUE: usize = 128;

/// What a taken key means to a publish.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum OnConflict {
    /// Nothing is stored; the answer names the job that has the key.
    Keep,
    /// That job goes, unless it runs.
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

/// A job that is to be published.
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
    /// A job with this body, due at once.
    pub fn new(data: impl Into<Bytes>) -> NewJob {
        NewJob { data: data.into(), ..NewJob::default() }
    }

    /// A job whose body is `value` in JSON.
    pub fn json<T: Serialize + ?Sized>(value: &T) -> Result<NewJob> {
        let data = serde_json::to_vec(value)
            .map_err(|e| Error::invalid(format!("no JSON can be made of it: {e}")))?;
        Ok(NewJob::new(data))
    }

    /// How long until it is due.
    pub fn delay(mut self, delay: Duration) -> NewJob {
        self.delay = Some(delay);
        self
    }

    /// When it is due, in place of a delay. An instant that has passed is now.
    pub fn at(mut self, at: impl Into<At>) -> NewJob {
        self.at = Some(at.into());
        self
    }

    /// How long after the publish it disappears; zero is never.
    pub fn ttl(mut self, ttl: Duration) -> NewJob {
        self.ttl = Some(ttl);
        self
    }

    /// How many times it may be handed out.
    pub fn tries(mut self, tries: u32) -> NewJob {
        self.tries = Some(tries);
        self
    }

    /// The producer's own name for it: while it is delayed, ready or running there is no other of this name.
    pub fn key(mut self, key: impl Into<String>) -> NewJob {
        self.key = Some(key.into());
        self
    }

    /// What it means that the key is taken.
    pub fn on_conflict(mut self, what: OnConflict) -> NewJob {
        self.on_conflict = Some(what);
        self
    }

    /// A text that travels beside the body: 16 at most, names of 32 bytes in lower case, values of 128 bytes.
    pub fn attribute(mut self, name: impl Into<String>, value: impl Into<String>) -> NewJob {
        self.attributes.insert(name.into(), value.into());
        self
    }

    /// The trace that it belongs to. Without it a job that is published within a handler carries on that of the
    /// handler's job.
    pub fn traceparent(self, traceparent: impl Into<String>) -> NewJob {
        self.attribute(TRACEPARENT, traceparent)
    }

    /// Refuses what would not arrive as it was given.
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

/// A job that was published.
#[derive(Clone, Debug, Deserialize)]
pub struct Published {
    /// Its id; of a duplicate that of the job that was there.
    pub job_id: String,
    /// When it is due; none only of a duplicate whose store does not know.
    #[serde(default)]
    pub due_at: Option<Timestamp>,
    /// Nothing was stored, since a job had the key.
    #[serde(default)]
    pub duplicate: bool,
    /// The job whose place it took.
    #[serde(default)]
    pub replaced: Option<String>,
    /// The answer to an earlier request with the same idempotency key.
    #[serde(default)]
    pub replayed: bool,
}

/// A job that was handed out. A clone is the same job.
#[derive(Clone)]
pub struct Job {
    /// Its id.
    pub id: String,
    /// The queue that it is from.
    pub queue: String,
    /// The namespace of the queue.
    pub namespace: String,
    /// The body.
    pub data: Bytes,
    /// How many more times it may be handed out.
    pub remain_tries: u32,
    /// How long it is kept; none is for ever.
    pub ttl: Option<Duration>,
    /// How long ago it was published.
    pub elapsed: Duration,
    /// What travels beside the body.
    pub attributes: Attributes,
    pub(crate) hold: Arc<Hold>,
}

impl Job {
    /// The body as JSON. A handler that returns this error has its job buried: it would fail again.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, BodyError> {
        serde_json::from_slice(&self.data).map_err(|e| BodyError(e.to_string()))
    }

    /// The trace that the job belongs to.
    pub fn traceparent(&self) -> Option<&str> {
        self.attributes.get(TRACEPARENT).map(String::as_str)
    }

    /// The client that it came by.
    pub fn client(&self) -> &Client {
        self.hold.client()
    }

    /// Waits until the handler should end: the job is lost, its time is up, or the worker stops.
    pub async fn cancelled(&self) -> Cause {
        self.hold.cancelled().await
    }

    /// Why the handler should end, if it should.
    pub fn cause(&self) -> Option<Cause> {
        self.hold.cause()
    }

    /// Which attempt this is, counted from 1. It asks the server.
    pub async fn attempt(&self) -> Result<u32> {
        self.hold.attempt().await
    }

    /// The job is this caller's for `ttr` from now. A worker does so by itself.
    pub async fn touch(&self, ttr: Duration) -> Result<Timestamp> {
        self.hold.touch(ttr).await
    }

    /// It is done.
    pub async fn ack(&self) -> Result<()> {
        self.hold.ack().await
    }

    /// Not now: back to its queue after `delay`. `spend` is whether the try counts.
    pub async fn release(&self, delay: Duration, spend: bool, reason: &str) -> Result<Released> {
        self.hold.release(delay, spend, reason).await
    }

    /// Never again: to the dead letter.
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

/// What a release came to.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Released {
    /// It is in its queue again, with so many tries left.
    Back {
        /// How many more times it may be handed out.
        remain_tries: u32,
    },
    /// No try was left.
    Dead,
}

/// A body that is not the JSON that was asked for.
#[derive(Clone, Debug)]
pub struct BodyError(String);

impl fmt::Display for BodyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the body cannot be read: {}", self.0)
    }
}

impl std::error::Error for BodyError {}

/// What a handler says of a job that it did not do.
///
/// Any error turns into [`Outcome::Failed`] by `?`, and a [`BodyError`] into [`Outcome::Permanent`].
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Outcome {
    /// It failed: again after the worker's back-off, a try spent.
    Failed(String),
    /// It failed: again after this time, a try spent.
    RetryAfter(Duration, String),
    /// It can never work: to the dead letter.
    Permanent(String),
    /// Not now: again after this time, the try given back.
    Snooze(Duration),
}

impl Outcome {
    /// A failure of any kind that can be shown.
    pub fn failed(error: impl fmt::Display) -> Outcome {
        Outcome::Failed(error.to_string())
    }

    /// A failure, with the time until the next attempt.
    pub fn retry_after(delay: Duration, error: impl fmt::Display) -> Outcome {
        Outcome::RetryAfter(delay, error.to_string())
    }

    /// What no attempt will mend.
    pub fn permanent(error: impl fmt::Display) -> Outcome {
        Outcome::Permanent(error.to_string())
    }

    /// The text, if it has one.
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

/// The states of a job.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// It is not due yet.
    Delayed,
    /// It waits for a consumer.
    Ready,
    /// A consumer has it.
    Running,
    /// Its tries are used up, or it was buried.
    Dead,
}

impl State {
    /// The word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            State::Delayed => "delayed",
            State::Ready => "ready",
            State::Running => "running",
            State::Dead => "dead",
        }
    }
}

/// A job as a look shows it.
#[derive(Clone, Debug, Deserialize)]
pub struct JobInfo {
    /// Its id.
    #[serde(rename = "job_id")]
    pub id: String,
    /// The queue that it is in; not of lists.
    #[serde(default)]
    pub queue: Option<String>,
    /// The namespace of the queue; not of lists.
    #[serde(default)]
    pub namespace: Option<String>,
    /// The body; of a list only with [`Jobs::data`](crate::Jobs::data).
    #[serde(default, deserialize_with = "base64_body")]
    pub data: Option<Bytes>,
    /// Its state, where the store can tell it.
    #[serde(default)]
    pub state: Option<State>,
    /// When it becomes ready, when its `ttr` ends, or when it became ready or dead.
    #[serde(default)]
    pub due_at: Option<Timestamp>,
    /// When it was published; of lists alone.
    #[serde(default)]
    pub published_at: Option<Timestamp>,
    /// How many more times it may be handed out.
    #[serde(default)]
    pub remain_tries: Option<u32>,
    /// Seconds until it disappears; 0 is never.
    #[serde(default)]
    pub ttl: Option<u64>,
    /// Milliseconds since the publish; not of lists.
    #[serde(default)]
    pub elapsed_ms: Option<u64>,
    /// What travels beside the body.
    #[serde(default)]
    pub attributes: Option<Attributes>,
    /// The producer's own name for it.
    #[serde(default)]
    pub key: Option<String>,
    /// Why a worker gave it up.
    #[serde(default)]
    pub reason: Option<String>,
    /// Bytes of the body; of lists alone.
    #[serde(default)]
    pub size: Option<u64>,
    #[serde(default)]
    pub(crate) receipt: Option<String>,
}

/// A queue, and how many jobs it has.
#[derive(Clone, Debug, Deserialize)]
pub struct QueueInfo {
    /// Its name.
    pub queue: String,
    /// Jobs that wait for a consumer.
    pub ready: u64,
    /// Jobs that are not due yet, where the store can tell.
    #[serde(default)]
    pub delayed: Option<u64>,
    /// Jobs that a consumer has, where the store can tell.
    #[serde(default)]
    pub running: Option<u64>,
    /// Jobs in the dead letter.
    #[serde(default)]
    pub dead: u64,
    /// For how many seconds the next job has been ready.
    #[serde(default)]
    pub oldest_ready_age: Option<f64>,
    /// Nothing of it is handed out.
    #[serde(default)]
    pub paused: bool,
    /// When the pause ends by itself.
    #[serde(default)]
    pub paused_until: Option<Timestamp>,
}

/// The dead letter of a queue.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct DeadLetter {
    /// How many jobs it has.
    pub size: u64,
    /// The oldest of them.
    pub head: Option<String>,
}

/// What a respawn by id came to.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Respawned {
    /// How many are ready, or delayed, again.
    pub respawned: u64,
    /// Those that are not dead, or not there.
    pub missing: Vec<String>,
}

/// What an ack of many came to.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Acked {
    /// How many are gone.
    pub acked: u64,
    /// Those that are there, and not the caller's any more.
    pub stale: Vec<String>,
}

fn base64_body<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<Bytes>, D::Error> {
    let text = Option::<String>::deserialize(from)?;
    text.map(|text| STANDARD.decode(text).map(Bytes::from)).transpose().map_err(D::Error::custom)
}

/// A job as a consume answers it.
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
