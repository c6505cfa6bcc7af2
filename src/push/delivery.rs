//! One delivery: builds the request of a job, and judges the response. Knows no connection and no store.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER, USER_AGENT};
use hyper::{Request, Uri};
use serde::{Deserialize, Serialize};

use super::breaker::Sign;
use super::client::{ConnectFault, EndpointAnswer, KEPT, SMALL_ANSWER};
use super::record::{PushRecord, Switch};
use super::setting::Setting;
use super::sign::Signer;
use crate::clock::Millis;
use crate::job::{Job, JobId, Reason};
use crate::name::{Queue, QueueName};

/// Longest pause that a `Retry-After` can ask for.
const LONGEST_RETRY_AFTER: Duration = Duration::from_secs(24 * 3600);
/// Prefix of push's reasons; the number of the attempt follows.
const ATTEMPT: &str = "attempt ";
/// Largest body that a death message repeats.
const MAX_DATA: usize = 1 << 20;

/// A setting prepared for use: what all deliveries of a queue have in common.
#[derive(Debug)]
pub struct Plan {
    pub setting: Setting,
    pub switch: Switch,
    /// Revision of the record.
    pub revision: u64,
    uri: Uri,
    headers: HeaderMap,
    signer: Signer,
}

impl Plan {
    /// Checks that a record can be read back: one that cannot must not be stored.
    pub fn check(queue: &Queue, record: &PushRecord) -> Result<(), String> {
        let read = PushRecord::parse(&record.to_bytes(), &queue.name);
        let read =
            read.map_err(|_| "the setting could not be read back: ok_when may be nested too deeply")?;
        Plan::new(queue, &read).map(drop)
    }

    /// Fails if the record cannot be used, which its parser should have found.
    pub fn new(queue: &Queue, record: &PushRecord) -> Result<Plan, String> {
        let setting = record.setting.clone();
        let uri = setting.url.as_str().parse().map_err(|_| "url cannot be called".to_owned())?;
        let mut headers = HeaderMap::new();
        let text = |text: &str| HeaderValue::from_str(text).map_err(|_| "a header cannot be sent".to_owned());
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
        headers.insert(USER_AGENT, HeaderValue::from_static(concat!("Dormouse/", env!("CARGO_PKG_VERSION"))));
        headers.insert("dormouse-namespace", text(queue.namespace.as_str())?);
        headers.insert("dormouse-queue", text(queue.name.as_str())?);
        if setting.cloud_events {
            headers.insert("ce-specversion", HeaderValue::from_static("1.0"));
            headers.insert("ce-type", HeaderValue::from_static("dormouse.job"));
            headers.insert("ce-source", text(&format!("/{queue}"))?);
        }
        for (name, value) in &setting.headers {
            let name = HeaderName::try_from(name).map_err(|_| "a header cannot be sent".to_owned())?;
            let mut value = text(value)?;
            value.set_sensitive(true);
            headers.insert(name, value);
        }
        let signer = record.signer().ok_or("the secret cannot be used")?;
        Ok(Plan { setting, switch: record.switch, revision: record.revision, uri, headers, signer })
    }

    /// Returns how much memory a job needs while it is sent: its body, with `on_dead` a possible death
    /// message, and the first part of the response.
    pub fn memory(&self, job: &Job) -> usize {
        let body = job.body.len() * if self.setting.on_dead.is_some() { 4 } else { 1 };
        body + SMALL_ANSWER * if self.setting.ok_when.is_some() { 2 } else { 1 }
    }

    /// Returns the ttr with which jobs are consumed.
    pub fn ttr(&self) -> Duration {
        self.setting.timeout + Duration::from_secs(10)
    }

    /// Builds the request for the `attempt`-th attempt of a job. `now` is the time of day.
    pub fn request(&self, job: &Job, attempt: u64, now: Millis) -> Request<Bytes> {
        let id = job.id.to_string();
        let mut request = self.signed(&id, job.body.clone(), now);
        let headers = request.headers_mut();
        for (name, value) in &job.attributes {
            let name = match name.as_str() {
                "content-type" => Ok(CONTENT_TYPE),
                "traceparent" => Ok(HeaderName::from_static("traceparent")),
                name => HeaderName::try_from(format!("job-attr-{name}")),
            };
            // Skips names and values that no header can have.
            if let (Ok(name), Ok(value)) = (name, HeaderValue::from_bytes(value.as_bytes())) {
                headers.insert(name, value);
            }
        }
        let due = job.id.published_at() + u64::from(job.id.delay_seconds()) * 1000;
        headers.insert("dormouse-attempt", attempt.into());
        headers.insert("dormouse-remaining-tries", job.tries_left.into());
        insert_text(headers, "dormouse-due", &time(due));
        if self.setting.cloud_events {
            insert_text(headers, "ce-id", &id);
            insert_text(headers, "ce-time", &time(job.id.published_at()));
        }
        request
    }

    /// Builds a test request, which belongs to no job.
    pub fn test_request(&self, id: &str, now: Millis) -> Request<Bytes> {
        let mut request = self.signed(id, Bytes::from_static(b"{\"test\":true}"), now);
        request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        request.headers_mut().insert("dormouse-test", HeaderValue::from_static("true"));
        if self.setting.cloud_events {
            insert_text(request.headers_mut(), "ce-id", id);
        }
        request
    }

    fn signed(&self, id: &str, body: Bytes, now: Millis) -> Request<Bytes> {
        let signature = self.signer.sign(id, now, &body);
        let mut request = Request::new(body);
        *request.method_mut() = self.setting.method.clone();
        *request.uri_mut() = self.uri.clone();
        let headers = request.headers_mut();
        headers.reserve(self.headers.len() + 10);
        headers.extend(self.headers.clone());
        insert_text(headers, "webhook-id", id);
        headers.insert("webhook-timestamp", (now / 1000).into());
        insert_text(headers, "webhook-signature", &signature);
        request
    }

    /// Judges a response. `now` is the time of day.
    pub fn judge(&self, answer: &Result<EndpointAnswer, ConnectFault>, now: Millis) -> Verdict {
        let now = UNIX_EPOCH + Duration::from_millis(now);
        let answer = match answer {
            Ok(answer) => answer,
            Err(fault) => {
                return Verdict::Failed(Failed {
                    reason: fault.to_string(),
                    // A forbidden address counts like an unknown host.
                    sign: Sign::Down,
                    was_sent: fault.was_sent(),
                    ..Failed::default()
                });
            }
        };
        let failed = |reason: String, sign| {
            let slow = matches!(answer.status, 429 | 502 | 503 | 504);
            let retry_after = answer.headers.get(RETRY_AFTER).and_then(|value| retry_after(value, now));
            let never = answer.headers.get("dormouse-retry");
            let never = never.is_some_and(|value| value.as_bytes().trim_ascii().eq_ignore_ascii_case(b"no"));
            let (status, was_sent) = (Some(answer.status), true);
            Verdict::Failed(Failed { reason, sign, was_sent, status, slow, retry_after, never })
        };
        match answer.status {
            200..=299 => match self.not_ok(answer) {
                None => Verdict::Delivered,
                Some(why) => failed(format!("status {}, {why}", answer.status), Sign::Answers),
            },
            410 => Verdict::Gone,
            status @ (502..=504) => failed(format!("status {status}"), Sign::Down),
            status => failed(format!("status {status}"), Sign::Answers),
        }
    }

    /// Returns why a 2xx does not meet `ok_when`.
    fn not_ok(&self, answer: &EndpointAnswer) -> Option<String> {
        let ok_when = self.setting.ok_when.as_ref()?;
        if !answer.whole {
            return Some("but the body is too large or incomplete".into());
        }
        ok_when.unmet(&answer.body)
    }
}

fn insert_text(headers: &mut HeaderMap, name: &'static str, text: &str) {
    // Ids, signatures and times are ASCII.
    if let Ok(value) = HeaderValue::from_str(text) {
        headers.insert(name, value);
    }
}

/// Formats a time as RFC 3339, in UTC, with milliseconds; empty beyond the year 9999.
pub fn time(millis: Millis) -> String {
    let time = i64::try_from(millis).ok().and_then(|millis| jiff::Timestamp::from_millisecond(millis).ok());
    time.map_or(String::new(), |time| format!("{time:.3}"))
}

/// What a response means for the job.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    Delivered,
    Failed(Failed),
    /// 410: the endpoint wants no further requests.
    Gone,
}

/// Why an attempt has failed, and what follows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Failed {
    pub reason: String,
    pub status: Option<u16>,
    pub sign: Sign,
    /// The request may have reached the endpoint: the job may be the cause.
    pub was_sent: bool,
    /// The endpoint asks for fewer requests.
    pub slow: bool,
    pub retry_after: Option<Duration>,
    /// The job dies without a further attempt.
    pub never: bool,
}

/// Parses seconds or a date. A past date is zero; an invalid text is `None`.
fn retry_after(value: &HeaderValue, now: SystemTime) -> Option<Duration> {
    let text = value.to_str().ok()?.trim();
    let after = if !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) {
        // More digits than fit are beyond the maximum.
        text.parse().map_or(LONGEST_RETRY_AFTER, Duration::from_secs)
    } else {
        httpdate::parse_http_date(text).ok()?.duration_since(now).unwrap_or_default()
    };
    Some(after.min(LONGEST_RETRY_AFTER))
}

/// Returns the reason that a failed attempt leaves with its job.
pub fn reason(attempt: u64, why: &str) -> Option<Reason> {
    let text = format!("{ATTEMPT}{attempt}: {why}");
    Reason::new(&text[..text.floor_char_boundary(KEPT)])
}

/// Returns the number of the attempt from a job's reason; 0 if push did not write the reason.
pub fn attempts_in(reason: Option<&Reason>) -> u64 {
    let told = reason.and_then(|reason| reason.as_str().strip_prefix(ATTEMPT)?.split_once(':'));
    // Consumers who poll the queue may write any reason.
    told.and_then(|(number, _)| number.parse::<u32>().ok()).unwrap_or(0).into()
}

pub fn shown(answer: &Result<EndpointAnswer, ConnectFault>) -> String {
    match answer {
        Ok(answer) => String::from_utf8_lossy(&answer.body[..answer.body.len().min(KEPT)]).into_owned(),
        Err(fault) => fault.to_string(),
    }
}

/// Returns the body of the message about a job that has died, for the `on_dead` queue.
pub fn death_message(queue: &QueueName, job: &Job, attempts: u64, failed: &Failed) -> Bytes {
    let death_message = DeathMessage {
        job_id: job.id.to_string(),
        queue: queue.to_string(),
        attempts,
        last_status: failed.status,
        reason: failed.reason.clone(),
        data: (job.body.len() <= MAX_DATA).then(|| STANDARD.encode(&job.body)),
    };
    // Texts and numbers always serialize.
    serde_json::to_vec(&death_message).unwrap_or_default().into()
}

/// Whether a job is a death message, judged by its body.
pub fn is_death_message(job: &Job) -> bool {
    let read = serde_json::from_slice::<DeathMessage>(&job.body);
    read.is_ok_and(|death_message| JobId::parse(&death_message.job_id).is_some())
}

/// Body of a message in an `on_dead` queue.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct DeathMessage {
    job_id: String,
    queue: String,
    attempts: u64,
    last_status: Option<u16>,
    reason: String,
    data: Option<String>,
}
