//! Responses: JSON as lmstfy writes it, and the JSON of a job.

use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;
use base64::Engine as _;
use base64::display::Base64Display;
use base64::engine::general_purpose::STANDARD;
use http_body_util::BodyExt;
use serde::{Serialize, Serializer};
use tokio::sync::OwnedSemaphorePermit;

use crate::job::{Attributes, Job, JobId, JobView, Receipt};
use crate::name::Queue;

/// The type of plain text.
pub const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
const JSON: HeaderValue = HeaderValue::from_static("application/json; charset=utf-8");

/// Bodies of jobs up to this size become base64 in one piece.
const PIECE: usize = 4096;

/// A JSON answer.
pub fn json(status: StatusCode, value: &impl Serialize) -> Response {
    // What is serialized here has string keys and no failing serializers, so this cannot fail.
    raw_json(status, serde_json::to_vec(value).unwrap_or_default())
}

/// A JSON answer indented by four spaces, as most of the admin port's are.
pub fn indented(status: StatusCode, value: &impl Serialize) -> Response {
    raw_json(status, indented_text(value))
}

/// JSON text indented by four spaces.
pub fn indented_text(value: &impl Serialize) -> Vec<u8> {
    let mut text = Vec::new();
    let formatter = serde_json::ser::PrettyFormatter::with_indent(b"    ");
    let mut serializer = serde_json::Serializer::with_formatter(&mut text, formatter);
    // As above.
    let _ = value.serialize(&mut serializer);
    text
}

fn raw_json(status: StatusCode, text: Vec<u8>) -> Response {
    with_body(status, JSON, text.into())
}

/// A JSON answer whose body is made while it is sent.
pub fn json_stream(status: StatusCode, body: Body) -> Response {
    with_body(status, JSON, body)
}

/// An answer with a body of another type.
pub fn with_body(status: StatusCode, content_type: HeaderValue, body: Body) -> Response {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, content_type);
    response
}

/// `{"error": ..}`.
pub fn error(status: StatusCode, text: &str) -> Response {
    #[derive(Serialize)]
    struct Error<'a> {
        error: &'a str,
    }
    json(status, &Error { error: text })
}

/// `{"msg": ..}`.
pub fn message(status: StatusCode, text: &str) -> Response {
    #[derive(Serialize)]
    struct Message<'a> {
        msg: &'a str,
    }
    json(status, &Message { msg: text })
}

/// The same body; `room` is kept until it was sent.
pub fn keeping(body: Body, room: OwnedSemaphorePermit) -> Body {
    Body::new(body.map_frame(move |frame| {
        let _kept = &room;
        frame
    }))
}

/// Says when to come back: in `wait`, in whole seconds and at least one.
pub fn retry_after(mut response: Response, wait: Duration) -> Response {
    let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
    response.headers_mut().insert(header::RETRY_AFTER, seconds.max(1).into());
    response
}

/// 204.
pub fn no_content() -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    response
}

/// The answer to unknown routes and to methods that a route does not have.
pub async fn not_found() -> Response {
    error(StatusCode::NOT_FOUND, "api not found")
}

/// A job in an answer. Fields in the order of their names, as lmstfy writes them.
#[derive(Serialize)]
pub struct JobReply<'a> {
    #[serde(serialize_with = "null_when_empty")]
    attributes: &'a Attributes,
    #[serde(serialize_with = "as_base64")]
    data: &'a [u8],
    elapsed_ms: u64,
    job_id: JobId,
    #[serde(skip_serializing_if = "Option::is_none")]
    msg: Option<&'static str>,
    namespace: &'a str,
    queue: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    receipt: Option<Receipt>,
    remain_tries: u16,
    ttl: u64,
}

impl<'a> JobReply<'a> {
    /// A job that was peeked at.
    pub fn peeked(job: &'a Job) -> JobReply<'a> {
        JobReply {
            attributes: &job.attributes,
            data: &job.body,
            elapsed_ms: job.elapsed.as_millis() as u64,
            job_id: job.id,
            msg: None,
            namespace: job.queue.namespace.as_str(),
            queue: job.queue.name.as_str(),
            receipt: None,
            remain_tries: job.tries_left,
            ttl: seconds_left(job.ttl),
        }
    }

    /// The same of a job that was looked up.
    pub fn viewed(queue: &'a Queue, view: &'a JobView) -> JobReply<'a> {
        JobReply {
            attributes: &view.attributes,
            data: view.body.as_deref().unwrap_or_default(),
            elapsed_ms: view.elapsed.as_millis() as u64,
            job_id: view.id,
            msg: None,
            namespace: queue.namespace.as_str(),
            queue: queue.name.as_str(),
            receipt: None,
            // As of a job by its id.
            remain_tries: 0,
            ttl: seconds_left(view.ttl),
        }
    }

    /// The same without its body.
    pub fn without_data(self) -> JobReply<'a> {
        JobReply { data: &[], ..self }
    }

    /// A job that was handed out, with its receipt if it was asked for.
    pub fn consumed(job: &'a Job, receipt: bool) -> JobReply<'a> {
        JobReply { msg: Some("new job"), receipt: receipt.then(|| job.proof()), ..JobReply::peeked(job) }
    }
}

/// What is left of a job's life, rounded, but never to 0: that reads as forever.
pub fn seconds_left(ttl: Option<Duration>) -> u64 {
    ttl.map_or(0, |left| ((left.as_millis() as u64 + 500) / 1000).max(1))
}

/// `null` in place of an empty object.
pub fn null_when_empty<S: Serializer>(attributes: &Attributes, s: S) -> Result<S::Ok, S::Error> {
    if attributes.is_empty() { s.serialize_none() } else { attributes.serialize(s) }
}

/// A job's body.
pub fn as_base64<S: Serializer>(data: &[u8], s: S) -> Result<S::Ok, S::Error> {
    if data.len() <= PIECE {
        s.serialize_str(&STANDARD.encode(data))
    } else {
        // Piece by piece, without a copy of the whole.
        s.collect_str(&Base64Display::new(data, &STANDARD))
    }
}
