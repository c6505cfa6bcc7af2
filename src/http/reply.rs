//! Responses: JSON as lmstfy writes it, and the JSON of a job.

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;
use base64::Engine as _;
use base64::display::Base64Display;
use base64::engine::general_purpose::STANDARD;
use serde::{Serialize, Serializer};

use crate::job::{Attributes, Job};

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
    #[serde(serialize_with = "as_text")]
    job_id: crate::job::JobId,
    #[serde(skip_serializing_if = "Option::is_none")]
    msg: Option<&'static str>,
    namespace: &'a str,
    queue: &'a str,
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
            remain_tries: job.tries_left,
            // Rounded, but never to 0: that would read as forever.
            ttl: job.ttl.map_or(0, |left| ((left.as_millis() as u64 + 500) / 1000).max(1)),
        }
    }

    /// The same without its body.
    pub fn without_data(self) -> JobReply<'a> {
        JobReply { data: &[], ..self }
    }

    /// A job that was handed out.
    pub fn consumed(job: &'a Job) -> JobReply<'a> {
        JobReply { msg: Some("new job"), ..JobReply::peeked(job) }
    }
}

fn null_when_empty<S: Serializer>(attributes: &Attributes, s: S) -> Result<S::Ok, S::Error> {
    if attributes.is_empty() { s.serialize_none() } else { attributes.serialize(s) }
}

fn as_base64<S: Serializer>(data: &[u8], s: S) -> Result<S::Ok, S::Error> {
    if data.len() <= PIECE {
        s.serialize_str(&STANDARD.encode(data))
    } else {
        // Piece by piece, without a copy of the whole.
        s.collect_str(&Base64Display::new(data, &STANDARD))
    }
}

fn as_text<S: Serializer>(id: &crate::job::JobId, s: S) -> Result<S::Ok, S::Error> {
    s.collect_str(id)
}
