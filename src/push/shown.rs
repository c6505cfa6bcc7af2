//! What operators see of a pushed queue: the JSON of the admin port's routes. Contains no header values, and a secret
//! only when it is new.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::delivery;
use super::encrypted::LockedSetting;
use super::key::PushKey;
use super::record::{PushRecord, Switch};
use super::results::{Attempt, PushReport};
use crate::clock::Millis;
use crate::error::LOCKED;

/// Whether a queue is pushed now, as far as this server knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PushState {
    On,
    /// This server's breaker is open.
    Open,
    Paused,
    Off,
    /// No key of this server opens its record.
    Locked,
}

impl PushState {
    pub fn as_str(self) -> &'static str {
        match self {
            PushState::On => "on",
            PushState::Open => "open",
            PushState::Paused => "paused",
            PushState::Off => "off",
            PushState::Locked => "locked",
        }
    }
}

/// A setting and its state.
#[derive(Clone, Debug, Serialize)]
pub struct ShownPush {
    /// As an operator wrote it, with null in place of header values.
    #[serde(flatten)]
    setting: Value,
    pool: String,
    namespace: String,
    queue: String,
    state: PushState,
    /// `None` if this server cannot read the record.
    since: Option<String>,
    why: String,
    /// Present if the setting is new.
    #[serde(skip_serializing_if = "Option::is_none")]
    secret: Option<String>,
}

impl ShownPush {
    pub fn new(key: &PushKey, record: &PushRecord) -> ShownPush {
        let state = match record.switch {
            Switch::On => PushState::On,
            Switch::Paused => PushState::Paused,
            Switch::Off => PushState::Off,
        };
        let since = Some(delivery::time(record.since));
        ShownPush::of(key, record.setting.to_json(false), state, since, &record.why)
    }

    /// Shows the stored setting of a record that no key of this server opens.
    pub fn locked(key: &PushKey, setting: LockedSetting) -> ShownPush {
        ShownPush::of(key, setting.0.into(), PushState::Locked, None, LOCKED)
    }

    fn of(key: &PushKey, setting: Value, state: PushState, since: Option<String>, why: &str) -> ShownPush {
        ShownPush {
            setting,
            pool: key.pool.to_string(),
            namespace: key.queue.namespace.to_string(),
            queue: key.queue.name.to_string(),
            state,
            since,
            why: why.to_owned(),
            secret: None,
        }
    }

    /// Adds the secret, which is shown once.
    pub fn with_secret(self, secret: &str) -> ShownPush {
        ShownPush { secret: Some(secret.to_owned()), ..self }
    }

    /// Shows `open` while the breaker of any server is open, unless the queue is paused or off.
    fn with_open(self, since: Option<Millis>) -> ShownPush {
        match (self.state, since) {
            (PushState::On, Some(since)) => ShownPush {
                state: PushState::Open,
                since: Some(delivery::time(since)),
                why: "the endpoint is down; only probes are sent until it responds".into(),
                ..self
            },
            _ => self,
        }
    }
}

/// A setting with its results over all servers.
#[derive(Clone, Debug, Serialize)]
pub struct SeenPush {
    #[serde(flatten)]
    push: ShownPush,
    counts: Counts,
    /// Latest first.
    attempts: Vec<ShownAttempt>,
}

#[derive(Clone, Debug, Serialize)]
struct Counts {
    delivered: u64,
    failed: u64,
    dead: u64,
    in_flight: u64,
}

#[derive(Clone, Debug, Serialize)]
struct ShownAttempt {
    job_id: String,
    time: String,
    status: Option<u16>,
    milliseconds: u64,
    /// `None` for viewers without permission to read bodies.
    answer: Option<String>,
}

impl SeenPush {
    /// `in_flight` requests are in flight, and the breaker of some server is open since `open`.
    pub fn new(push: ShownPush, report: PushReport, (in_flight, open): (u64, Option<Millis>)) -> SeenPush {
        let counts =
            Counts { delivered: report.delivered, failed: report.failed, dead: report.dead, in_flight };
        let shown = |Attempt { job_id, time, status, milliseconds, answer }| ShownAttempt {
            job_id,
            time: delivery::time(time),
            status,
            milliseconds,
            answer: Some(answer),
        };
        let attempts = report.attempts.into_iter().rev().map(shown).collect();
        SeenPush { push: push.with_open(open), counts, attempts }
    }

    /// Removes the endpoint's responses, for viewers without permission to read bodies.
    pub fn hide_answers(&mut self) {
        self.attempts.iter_mut().for_each(|attempt| attempt.answer = None);
    }
}

/// Result of a test request.
#[derive(Clone, Debug, Serialize)]
pub struct Tested {
    pub ok: bool,
    pub status: Option<u16>,
    /// Why an attempt would have failed.
    pub reason: Option<String>,
    pub milliseconds: u64,
    pub answer: Option<String>,
}

/// A new secret. The previous one still signs until `both_sign_until`.
#[derive(Clone, Debug, Serialize)]
pub struct NewSecret {
    pub secret: String,
    pub both_sign_until: String,
}
